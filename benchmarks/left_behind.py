"""Create in Kafka what a crash leaves: commit logs of a group without a run, and records that still arrive.

Written by another client than the group's members, which only a group without members allows. No process has
to be killed for it.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.offsets import Span
from kafka_liveness_dagster.kafka.committer import split_by_request_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from typing_extensions import Self

_RUN = "0badcafe"
_SECONDS = 60


def crashed_at(servers: str, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """The group's last run committed these offsets and died in its next batch."""
    mark = LiveCommitMetadata(OwnerState.RUNNING, _RUN).encode()
    commit(servers, group, [KafkaTopicPartition(topic, at, offset, mark) for at, offset in offsets.items()])


def owes(servers: str, group: str, topic: str, ends: Mapping[int, int]) -> None:
    """The group's live lane jumped over all before these offsets, and ended in good order."""
    marks = {
        at: LiveCommitMetadata(OwnerState.RELEASED, _RUN, (Span(0, end),)).encode()
        for at, end in ends.items()
    }
    commit(servers, group, [KafkaTopicPartition(topic, at, ends[at], mark) for at, mark in marks.items()])


def commit(servers: str, group: str, offsets: Iterable[KafkaTopicPartition]) -> None:
    """Commit to a group without members, as a stranger."""
    client = Consumer({"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False})
    try:
        for portion in split_by_request_size(offsets, group):
            for told in client.commit(offsets=portion, asynchronous=False):
                if told.error is not None:
                    raise KafkaException(told.error)
    finally:
        client.close()


class Trickle:
    """Fresh records, one each 20 ms on the partitions in turn, until the block ends or ``stop`` is called."""

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "log_level": 0})
        self._topic, self._partitions = topic, partitions
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trickle", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.stop()
        self._thread.join(_SECONDS)
        self._producer.flush(_SECONDS)

    def stop(self) -> None:
        """No more of them."""
        self._stop.set()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.02):
            with suppress(BufferError):
                told = f'{{"fresh": {number}, "at": {time.time():.3f}}}'
                self._producer.produce(self._topic, told.encode(), partition=number % self._partitions)
            self._producer.poll(0)
            number += 1
