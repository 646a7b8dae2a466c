"""Commit offsets with a timeout, in requests that the broker can append.

With 30 bytes of metadata each, 10,000 partitions were refused as "Unknown broker error"; with 4,000 bytes 300 would be.

>>> from confluent_kafka import TopicPartition as KafkaTopicPartition
>>> metadata = "kl1 running 0badcafe @- 70-120" + ",140-190" * 450
>>> tokens = [KafkaTopicPartition("orders", p, 120, metadata) for p in range(300)]
>>> [len(portion) for portion in portions(tokens, "orders-etl")]
[133, 133, 34]

``commit(asynchronous=False)`` has no timeout, and no other thread may use its client meanwhile. So it is made in a
thread that is left behind, with its client, when the answer takes too long.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as NoAnswerError
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kafka_liveness_dagster.concurrency import start
from kafka_liveness_dagster.kafka.errors import named

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from confluent_kafka import Consumer

    from kafka_liveness_dagster.core.offsets import TopicPartition


_MOST_BYTES = 500_000  # half of message.max.bytes: what surrounds a record is an estimate
_AROUND_BYTES = 100


def portions(commits: Iterable[KafkaTopicPartition], group_id: str) -> Iterator[list[KafkaTopicPartition]]:
    """The commits in as many requests as they need; each partition's offset and metadata stay together."""
    portion: list[KafkaTopicPartition] = []
    left = _MOST_BYTES
    for one in commits:
        size = _AROUND_BYTES + len(group_id) + len(one.topic) + len(one.metadata or "")
        if portion and size > left:
            yield portion
            portion, left = [], _MOST_BYTES
        portion.append(one)
        left -= size
    if portion:
        yield portion


_HURRIED_SECONDS = 5.0
_LEAST_SECONDS = 1.0  # a broker that is there answers in milliseconds


class Committing:
    """The commits of one client to one group.

    Args:
        client: nobody else uses it during a commit.
        group_id: the group's.
        bootstrap_servers: told in errors.
        seconds: how long one request may take.

    Attributes:
        silent: a commit has not come back. Nothing may be asked of the client any more, not even to close.
    """

    def __init__(self, client: Consumer, group_id: str, bootstrap_servers: str, seconds: float) -> None:
        self._client, self._group_id, self._servers, self._seconds = client, group_id, bootstrap_servers, seconds
        self._answer: Future[Any] = Future()
        self.silent = False

    def commit(
        self,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        *,
        until: float = math.inf,
        in_callback: bool = False,
    ) -> KafkaError | None:
        """Commit offsets, each with its metadata, in as many requests as it needs; returns the first refusal.

        Args:
            offsets: what to commit.
            until: give up then at the latest, by ``time.monotonic()``.
            in_callback: of this client: only the thread that runs it may commit there, without any limit of time.

        Raises:
            BrokerUnreachableError: nothing came back, so nobody knows whether it was committed.
        """
        wanted = [KafkaTopicPartition(*tp, offset, metadata) for tp, (offset, metadata) in offsets.items()]
        for portion in portions(wanted, self._group_id):
            commit = partial(self._client.commit, offsets=portion, asynchronous=False)
            try:
                answered = commit() if in_callback else self._in_time(commit, until)
            except KafkaException as refused:
                error: KafkaError = refused.args[0]
                return error
            except NoAnswerError:
                self.silent = True
                silence = KafkaError(KafkaError._TIMED_OUT, "not a word came back")  # noqa: SLF001
                raise named(silence, f"committing to group {self._group_id}", self._servers) from None
            errors: list[KafkaError] = [tp.error for tp in answered or () if tp.error is not None]
            if errors:
                return errors[0]
        return None

    @contextmanager
    def hurried(self, lock: threading.RLock) -> Iterator[None]:
        """Hold the lock that commits are made under; one that keeps it for 5 s more is given up."""
        if not lock.acquire(timeout=_HURRIED_SECONDS):
            with suppress(InvalidStateError):
                self._answer.set_exception(NoAnswerError())
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _in_time(self, commit: Callable[[], Any], until: float) -> Any:
        answer = self._answer = Future()
        if not start(partial(_ask, commit, answer), "kafka-liveness-commit"):
            _ask(commit, answer)
        return answer.result(min(self._seconds, max(0.0, until - time.monotonic()) + _LEAST_SECONDS))


def _ask(commit: Callable[[], Any], answer: Future[Any]) -> None:
    with suppress(InvalidStateError):  # it was given up
        try:
            answer.set_result(commit())
        except KafkaException as error:
            answer.set_exception(error)
