"""Commit offsets with a timeout, in requests that the broker can append.

Without the split, the broker refused 10,000 partitions with 30 bytes of metadata each ("Unknown broker
error"). It would refuse 300 with 4,000 bytes each. Never decides which offsets to commit.

>>> from confluent_kafka import TopicPartition as KafkaTopicPartition
>>> metadata = "kl1 running 0badcafe @- 70-120" + ",140-190" * 450
>>> tokens = [KafkaTopicPartition("orders", p, 120, metadata) for p in range(300)]
>>> [len(portion) for portion in split_by_request_size(tokens, "orders-etl")]
[133, 133, 34]

``commit(asynchronous=False)`` has no timeout, and no other thread may use its client meanwhile. So each
commit runs in a thread. If the response takes too long, the thread and its client are abandoned.
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

from kafka_liveness_dagster.concurrency import run_in_daemon_thread
from kafka_liveness_dagster.kafka.errors import to_package_error

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from confluent_kafka import Consumer

    from kafka_liveness_dagster.core.offsets import TopicPartition


_MAX_REQUEST_BYTES = 500_000  # half of message.max.bytes, because the overhead of a record is an estimate
_OVERHEAD_BYTES = 100


def split_by_request_size(
    commits: Iterable[KafkaTopicPartition], group_id: str
) -> Iterator[list[KafkaTopicPartition]]:
    """Split commits into requests of limited size; each partition's offset and metadata stay together."""
    portion: list[KafkaTopicPartition] = []
    left = _MAX_REQUEST_BYTES
    for one in commits:
        size = _OVERHEAD_BYTES + len(group_id) + len(one.topic) + len(one.metadata or "")
        if portion and size > left:
            yield portion
            portion = []
            left = _MAX_REQUEST_BYTES
        portion.append(one)
        left -= size
    if portion:
        yield portion


_LOCK_TIMEOUT_SECONDS = 5.0
_MIN_SECONDS = 1.0  # an available broker responds in milliseconds


class Committer:
    """The commits of one client to one group.

    Args:
        client: client that no other thread uses during a commit.
        group_id: the group.
        bootstrap_servers: addresses, for errors.
        seconds: limit of one request.

    Attributes:
        timed_out: whether a commit got no response. The client may not be used any more, not even closed.
    """

    def __init__(self, client: Consumer, group_id: str, bootstrap_servers: str, seconds: float) -> None:
        self._client = client
        self._group_id = group_id
        self._servers = bootstrap_servers
        self._seconds = seconds
        self._pending_commit: Future[Any] = Future()
        self.timed_out = False

    def commit(
        self,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        *,
        until: float = math.inf,
        in_callback: bool = False,
    ) -> KafkaError | None:
        """Commit offsets with their metadata in as many requests as needed; return the first refusal.

        Args:
            offsets: offset and metadata of each partition.
            until: moment to give up at the latest, by ``time.monotonic()``.
            in_callback: whether this is called in a callback of this client. Only the callback's thread may
                commit there, and without a time limit.

        Raises:
            BrokerUnreachableError: no response came, so it is unknown whether the broker committed.
        """
        wanted = [KafkaTopicPartition(*tp, offset, metadata) for tp, (offset, metadata) in offsets.items()]
        for portion in split_by_request_size(wanted, self._group_id):
            commit = partial(self._client.commit, offsets=portion, asynchronous=False)
            try:
                answered = commit() if in_callback else self._commit_in_thread(commit, until)
            except KafkaException as refused:
                error: KafkaError = refused.args[0]
                return error
            except NoAnswerError:
                self.timed_out = True
                silence = KafkaError(KafkaError._TIMED_OUT, "no response to the commit")  # noqa: SLF001
                raise to_package_error(
                    silence, f"committing to group {self._group_id}", self._servers
                ) from None
            errors: list[KafkaError] = [tp.error for tp in answered or () if tp.error is not None]
            if errors:
                return errors[0]
        return None

    @contextmanager
    def lock_or_give_up(self, lock: threading.RLock) -> Iterator[None]:
        """Hold the lock of the commits; give up a pending commit that holds it for 5 s more."""
        if not lock.acquire(timeout=_LOCK_TIMEOUT_SECONDS):
            with suppress(InvalidStateError):
                self._pending_commit.set_exception(NoAnswerError())
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _commit_in_thread(self, commit: Callable[[], Any], until: float) -> Any:
        answer = self._pending_commit = run_in_daemon_thread(commit, "kafka-liveness-commit")
        return answer.result(min(self._seconds, max(0.0, until - time.monotonic()) + _MIN_SECONDS))
