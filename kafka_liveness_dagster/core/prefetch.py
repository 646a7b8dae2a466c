"""Whose record is next, and which partitions are fetched meanwhile? Fair turns and KIP-41's prefetch heuristics.

Holds no record and fetches none: it is told how much is held of each partition.

>>> round_robin([["a0", "a1"], ["b0", "b1"]])
['a0', 'b0', 'a1', 'b1']
>>> A, B = (TopicPartition("orders", p) for p in range(2))
>>> backlog = {A: Held(records=120, bytes=12_000), B: Held(records=0, bytes=0)}
>>> Prefetch(max_records=100).to_fetch(backlog)
{TopicPartition(topic='orders', partition=1)}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import TopicPartition  # noqa: TC001 - named in the doctest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Heuristic = Literal["partition", "total"]
T = TypeVar("T")


class Held(NamedTuple):
    """What was fetched of a partition and waits for its turn."""

    records: int
    bytes: int


@dataclass(frozen=True)
class Prefetch:
    """When to fetch ahead, and how much may wait: KIP-41, "Prefetching".

    ``partition`` is the KIP's second heuristic, ``total`` its first. Kafka chose the first for being simpler, and names
    its price: with much held of one partition the others are not fetched until that is worked off. Records are given in
    turns here, so a partition that is not fetched stops all others; the second keeps each one's share coming, for more
    held at once (the KIP expects twice as much). Hence it is the default.

    The bound stands where the KIP has ``max.poll.records``: librdkafka throws away what it fetched of a partition when
    that is paused, so with a bound below what one fetch brings, the same records would be fetched again and again.

    Attributes:
        max_records: how many records may wait; three times as many at most, in the worst order of arrival.
        max_bytes: how many bytes their values may have.
        by: which heuristic.
    """

    max_records: int = 100_000
    max_bytes: int = 64 * 1024 * 1024
    by: Heuristic = "partition"

    def __post_init__(self) -> None:
        if self.max_records < 1 or self.max_bytes < 1:
            raise InvalidSettingError(
                f"max_buffered_records is {self.max_records} and max_buffered_bytes {self.max_bytes}: a record that "
                "waits for its turn needs room, both must be at least 1"
            )
        if self.by not in ("partition", "total"):
            raise InvalidSettingError(f"prefetch is {self.by!r}: wanted 'partition' or 'total', KIP-41's heuristics")

    def to_fetch(self, held: Mapping[TopicPartition, Held]) -> set[TopicPartition]:
        """The partitions to fetch now. One of which nothing is held is always fetched: the others wait for its turn."""
        if self.by == "total":
            hungry = sum(map(self._fill, held.values())) < 1
            return {tp for tp, h in held.items() if hungry or not h.records}
        return {tp for tp, h in held.items() if not h.records or self._fill(h) * len(held) < 1}

    def to_pause(
        self, held: Mapping[TopicPartition, Held], paused: set[TopicPartition], *, drained: bool
    ) -> set[TopicPartition]:
        """The partitions that may not be fetched now.

        Args:
            held: what waits of each partition.
            paused: which are not fetched already.
            drained: nothing more has arrived that could be taken. Until then pausing throws records away, which is done
                only when the room is used up.
        """
        full = set(held) - self.to_fetch(held)
        return full if drained or self._left(held) <= 1 / len(held) else full & paused

    def room(self, held: Mapping[TopicPartition, Held], record_bytes: float | None) -> int:
        """How many records to take now: what is left of the bound, at least one partition's share.

        Args:
            held: what waits of each partition.
            record_bytes: the mean size of the last records, None before the first.
        """
        if record_bytes is None:
            return 1
        part = max(self._left(held), 1 / len(held))
        return max(1, int(part / max(1 / self.max_records, record_bytes / self.max_bytes)))

    def _left(self, held: Mapping[TopicPartition, Held]) -> float:
        return 1 - sum(map(self._fill, held.values()))

    def _fill(self, held: Held) -> float:
        """Which part of the bound it uses up."""
        return max(held.records / self.max_records, held.bytes / self.max_bytes)


def round_robin(queues: Sequence[list[T]]) -> list[T]:
    """The first record of each, then the second of each, and so on; all queues are of one length."""
    if len(queues) == 1:
        return queues[0]
    given: list[T] = queues[0] * len(queues)
    for place, queue in enumerate(queues):
        given[place :: len(queues)] = queue
    return given
