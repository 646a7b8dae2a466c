"""Decide which record of a batch is next and which partitions to prefetch (KIP-41). Fetches nothing.

Holds no record and fetches none: it is told how much is held of each partition.

>>> round_robin([["a0", "a1"], ["b0", "b1"]])
['a0', 'b0', 'a1', 'b1']
>>> A, B = (TopicPartition("orders", p) for p in range(2))
>>> backlog = {A: Buffered(records=120, bytes=12_000), B: Buffered(records=0, bytes=0)}
>>> Prefetch(max_records=100).partitions_to_fetch(backlog)
{TopicPartition(topic='orders', partition=1)}

Ranges end by position, never by count: their last offsets may be holes, so the next record or the log end
tells that they are over. What arrives beyond a batch is kept for the next one.

>>> A = TopicPartition("orders", 3)
>>> reading = BatchReader()
>>> reading.start_batch([OffsetRange("orders", 3, 70, 120)])
SeekPlan(unassign=set(), seek={TopicPartition(topic='orders', partition=3): 70})
>>> reading.mark_end(A, 120)  # the log end: all 50 offsets are holes
>>> reading.take(), reading.advance(), reading.is_finished
([], {}, True)
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Protocol, TypeVar

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition  # noqa: TC001 - named in the doctest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


Heuristic = Literal["partition", "total"]
T = TypeVar("T")


class Buffered(NamedTuple):
    """What was fetched of a partition and waits for its turn."""

    records: int
    bytes: int


@dataclass(frozen=True)
class Prefetch:
    """When to fetch ahead, and how much may wait: KIP-41, "Prefetching".

    ``partition`` is the KIP's second heuristic, ``total`` its first. Kafka chose the first for being simpler,
    and names its price: with much held of one partition the others are not fetched until that is worked off.
    Records are given in turns here, so a partition that is not fetched stops all others; the second keeps
    each one's share coming, for more held at once (the KIP expects twice as much). Hence it is the default.

    The bound stands where the KIP has ``max.poll.records``: librdkafka throws away what it fetched of a
    partition when that is paused, so with a bound below what one fetch brings, the same records would be
    fetched again and again.

    Attributes:
        max_records: how many records may wait; three times as many at most, in the worst order of arrival.
        max_bytes: how many bytes their values may have.
        limit_by: which heuristic.
    """

    max_records: int = 100_000
    max_bytes: int = 64 * 1024 * 1024
    limit_by: Heuristic = "partition"

    def __post_init__(self) -> None:
        if self.max_records < 1 or self.max_bytes < 1:
            raise InvalidSettingError(
                f"max_buffered_records is {self.max_records} and max_buffered_bytes {self.max_bytes}: a "
                "record that waits for its turn needs room, both must be at least 1"
            )
        if self.limit_by not in ("partition", "total"):
            raise InvalidSettingError(
                f"prefetch is {self.limit_by!r}: wanted 'partition' or 'total', KIP-41's heuristics"
            )

    def partitions_to_fetch(self, buffered: Mapping[TopicPartition, Buffered]) -> set[TopicPartition]:
        """The partitions to fetch now.

        One of which nothing is held is always fetched: the others wait for its turn.
        """
        if self.limit_by == "total":
            hungry = sum(map(self._used_share, buffered.values())) < 1
            return {tp for tp, h in buffered.items() if hungry or not h.records}
        return {tp for tp, h in buffered.items() if not h.records or self._used_share(h) * len(buffered) < 1}

    def partitions_to_pause(
        self, buffered: Mapping[TopicPartition, Buffered], paused: set[TopicPartition], *, drained: bool
    ) -> set[TopicPartition]:
        """The partitions that may not be fetched now.

        Args:
            buffered: what waits of each partition.
            paused: which are not fetched already.
            drained: nothing more has arrived that could be taken. Until then pausing throws records away,
                which is done only when the room is used up.
        """
        full = set(buffered) - self.partitions_to_fetch(buffered)
        return full if drained or self._remaining(buffered) <= 1 / len(buffered) else full & paused

    def max_records_now(self, buffered: Mapping[TopicPartition, Buffered], record_bytes: float | None) -> int:
        """How many records to take now: what is left of the bound, at least one partition's share.

        Args:
            buffered: what waits of each partition.
            record_bytes: the mean size of the last records, None before the first.
        """
        if record_bytes is None:
            return 1
        part = max(self._remaining(buffered), 1 / len(buffered))
        return max(1, int(part / max(1 / self.max_records, record_bytes / self.max_bytes)))

    def _remaining(self, held: Mapping[TopicPartition, Buffered]) -> float:
        return 1 - sum(map(self._used_share, held.values()))

    def _used_share(self, held: Buffered) -> float:
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


class ReadableRecord(Protocol):
    """What has to be known of a record: its offset, and the size of its value."""

    def offset(self) -> int:
        """Its place in its partition."""

    def __len__(self) -> int: ...


R = TypeVar("R", bound=ReadableRecord)
_SAMPLE_RECORDS = 100  # asking every record for its size would cost a tenth of reading it


class SeekPlan(NamedTuple):
    """What the client must do.

    Stop reading partitions, then read others from an offset, whatever it has queued.
    """

    unassign: set[TopicPartition]
    seek: dict[TopicPartition, int]


class BatchReader(Generic[R]):
    """One batch after the other, each by its ranges."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, _PartitionReader[R]] = {}
        self._spans: dict[TopicPartition, list[Span]] = {}

    def start_batch(self, ranges: Iterable[OffsetRange]) -> SeekPlan:
        """Read these next. Partitions that go on where they are need no move."""
        self._spans = {}
        for r in sorted(ranges):
            self._spans.setdefault(r.topic_partition, []).append(r.span)
        leave = set(self._partitions) - set(self._spans)
        for tp in leave:
            del self._partitions[tp]
        return SeekPlan(leave, self._skip_to_batch(list(self._spans)))

    def advance(self) -> dict[TopicPartition, int]:
        """Pass ranges that are over; where partitions must be sought that have another one, too far away."""
        far: dict[TopicPartition, int] = {}
        for tp, spans in self._spans.items():
            while spans and self._partitions[tp].has_taken_all_below(spans[0].end):
                spans.pop(0)
                far.update(self._skip_to_batch([tp] if spans else []))
        return far

    @property
    def is_finished(self) -> bool:
        """Whether every record of the batch was given; ask ``advance`` first."""
        return not any(self._spans.values())

    def take(self) -> list[R]:
        """Take as many whole rounds as can be given now, a record of each partition that has more.

        Call ``advance`` first. The order depends on the ranges and the log alone, not on what arrived first.
        """
        in_turn = [(self._partitions[tp], spans[0].end) for tp, spans in self._spans.items() if spans]
        rounds = min((log.count_below(end) for log, end in in_turn), default=0)
        return round_robin([log.take(rounds) for log, _ in in_turn]) if rounds else []

    def add(self, tp: TopicPartition, records: list[R]) -> None:
        """Records of one partition arrived, in order; what is known already is left out."""
        if tp in self._partitions:
            self._partitions[tp].add(records)

    def mark_end(self, tp: TopicPartition, offset: int) -> None:
        """Nothing else is to be read of a partition below ``offset``: what was not told is a hole."""
        if tp in self._partitions:
            self._partitions[tp].end = max(self._partitions[tp].end, offset)

    def position(self, tp: TopicPartition) -> int | None:
        """The next offset to arrive, None for a partition that is not read."""
        return self._partitions[tp].end if tp in self._partitions else None

    def buffered(self) -> dict[TopicPartition, Buffered]:
        """What waits of each partition."""
        return {tp: Buffered(len(log.buffered), log.bytes) for tp, log in self._partitions.items()}

    def _skip_to_batch(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        starts = {tp: self._spans[tp][0].start for tp in partitions}
        far = {
            tp: at
            for tp, at in starts.items()
            if tp not in self._partitions or not self._partitions[tp].continues_at(at)
        }
        self._partitions.update({tp: _PartitionReader(at) for tp, at in far.items()})
        return far


class _PartitionReader(Generic[R]):
    """How far one partition is read.

    Everything in ``[begin, end)`` is held or a hole, and was not given yet.
    """

    def __init__(self, begin: int) -> None:
        self.begin = self.end = begin
        self.buffered: list[R] = []
        self.bytes = 0

    def continues_at(self, offset: int) -> bool:
        """Whether reading goes on at ``offset`` without a seek; what is held below it is dropped then."""
        if not self.begin <= offset <= self.end:
            return False
        self.take(self.count_below(offset))
        self.begin = offset
        return True

    def has_taken_all_below(self, end: int) -> bool:
        """Whether all below ``end`` was given."""
        return self.end >= end and not self.count_below(end)

    def count_below(self, offset: int) -> int:
        """How many held records have lower offsets."""
        if not self.buffered or self.buffered[-1].offset() < offset:
            return len(self.buffered)
        return bisect_left(self.buffered, offset, key=_offset)

    def add(self, records: list[R]) -> None:
        new = (
            records[bisect_left(records, self.end, key=_offset) :]
            if records[0].offset() < self.end
            else records
        )
        if new:
            self.buffered += new
            self.end = new[-1].offset() + 1
            sample = new[:: len(new) // _SAMPLE_RECORDS + 1]
            self.bytes += sum(map(len, sample)) * len(new) // len(sample)

    def take(self, count: int) -> list[R]:
        """The first records, for good. The bytes of the others are reckoned by the mean."""
        if not count:
            return []
        given = self.buffered[:count]
        before = len(self.buffered)
        del self.buffered[:count]
        self.bytes = self.bytes * len(self.buffered) // before
        self.begin = given[-1].offset() + 1
        return given


def _offset(record: ReadableRecord) -> int:
    return record.offset()
