"""Decide which record of a batch is next and which partitions to prefetch (KIP-41).

Fetches nothing: the caller adds the records, and passes how many of each partition are buffered.

>>> round_robin([["a0", "a1"], ["b0", "b1"]])
['a0', 'b0', 'a1', 'b1']
>>> A, B = (TopicPartition("orders", p) for p in range(2))
>>> backlog = {A: Buffered(records=120, bytes=12_000), B: Buffered(records=0, bytes=0)}
>>> Prefetch(max_records=100).partitions_to_fetch(backlog)
{TopicPartition(topic='orders', partition=1)}

Ranges end by position, never by count. Their last offsets may be holes, so the next record or the log end
shows that they are over. Records that arrive beyond a batch are kept for the next one.

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
    """The fetched records of a partition that wait for their turn."""

    records: int
    bytes: int


@dataclass(frozen=True)
class Prefetch:
    """The rules when to fetch ahead, and how many records to buffer: KIP-41, "Prefetching".

    ``partition`` is the KIP's second heuristic, ``total`` its first. Kafka chose the first because it is
    simpler, and names its cost: while one partition fills the buffer, the others are not fetched. Here
    partitions take turns, so a partition that is not fetched stops all others. The second heuristic keeps
    each partition's share coming, and buffers more (the KIP expects twice as much). So it is the default.

    The bound replaces the KIP's ``max.poll.records``. librdkafka discards the fetched records of a partition
    when it is paused. So with a bound smaller than one fetch it would fetch the same records repeatedly.

    Attributes:
        max_records: bound of buffered records; three times as many at most, in the worst order of arrival.
        max_bytes: bound of the bytes of their values.
        limit_by: heuristic, ``partition`` or ``total``.
    """

    max_records: int = 100_000
    max_bytes: int = 64 * 1024 * 1024
    limit_by: Heuristic = "partition"

    def __post_init__(self) -> None:
        if self.max_records < 1 or self.max_bytes < 1:
            raise InvalidSettingError(
                f"max_buffered_records is {self.max_records} and max_buffered_bytes is "
                f"{self.max_bytes}: wanted at least 1 for both"
            )
        if self.limit_by not in ("partition", "total"):
            raise InvalidSettingError(
                f"prefetch is {self.limit_by!r}: wanted 'partition' or 'total' (KIP-41's heuristics)"
            )

    def partitions_to_fetch(self, buffered: Mapping[TopicPartition, Buffered]) -> set[TopicPartition]:
        """Return the partitions to fetch now.

        A partition without buffered records is always fetched, because the others wait for its turn.
        """
        if self.limit_by == "total":
            hungry = sum(map(self._used_share, buffered.values())) < 1
            return {tp for tp, h in buffered.items() if hungry or not h.records}
        return {tp for tp, h in buffered.items() if not h.records or self._used_share(h) * len(buffered) < 1}

    def partitions_to_pause(
        self, buffered: Mapping[TopicPartition, Buffered], paused: set[TopicPartition], *, drained: bool
    ) -> set[TopicPartition]:
        """Return the partitions that may not be fetched now.

        Args:
            buffered: buffered records of each partition.
            paused: partitions that are already paused.
            drained: whether all arrived records were taken. Before that pausing discards records, which is
                done only when the bound is used up.
        """
        full = set(buffered) - self.partitions_to_fetch(buffered)
        return full if drained or self._remaining(buffered) <= 1 / len(buffered) else full & paused

    def max_records_now(self, buffered: Mapping[TopicPartition, Buffered], record_bytes: float | None) -> int:
        """Return how many records to take now: the rest of the bound, at least one partition's share.

        Args:
            buffered: buffered records of each partition.
            record_bytes: mean size of the last records; None before the first.
        """
        if record_bytes is None:
            return 1
        part = max(self._remaining(buffered), 1 / len(buffered))
        return max(1, int(part / max(1 / self.max_records, record_bytes / self.max_bytes)))

    def _remaining(self, held: Mapping[TopicPartition, Buffered]) -> float:
        return 1 - sum(map(self._used_share, held.values()))

    def _used_share(self, held: Buffered) -> float:
        """Return the fraction of the bound that these records use."""
        return max(held.records / self.max_records, held.bytes / self.max_bytes)


def round_robin(queues: Sequence[list[T]]) -> list[T]:
    """Return the first record of each queue, then the second, and so on; all queues have one length."""
    if len(queues) == 1:
        return queues[0]
    given: list[T] = queues[0] * len(queues)
    for place, queue in enumerate(queues):
        given[place :: len(queues)] = queue
    return given


class KafkaRecord(NamedTuple):
    """A record with all that Spark's Kafka source reads of it.

    Attributes:
        key: key of the record.
        value: value of the record; None in a tombstone.
        topic: name of the topic.
        partition: number of the partition.
        offset: offset of the record.
        timestamp_ms: timestamp in milliseconds since the epoch.
        timestamp_type: Kafka's number: 0 of the producer, 1 of the broker, -1 without a timestamp.
        headers: names and values; None without headers.
    """

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    headers: Sequence[tuple[str, bytes | None]] | None

    @property
    def size(self) -> int:
        """Return the bytes of key, value and headers."""
        headers = sum(len(name.encode()) + len(value or b"") for name, value in self.headers or ())
        return len(self.key or b"") + len(self.value or b"") + headers


class ReadableRecord(Protocol):
    """The required methods of a record: its offset, and the size of its value."""

    def offset(self) -> int:
        """Return the record's offset."""

    def __len__(self) -> int: ...


R = TypeVar("R", bound=ReadableRecord)
_SAMPLE_RECORDS = 100  # reading the size of every record would cost a tenth of reading the record


class SeekPlan(NamedTuple):
    """The moves that the client must make.

    It stops reading partitions, then reads others from an offset, whatever it has queued.
    """

    unassign: set[TopicPartition]
    seek: dict[TopicPartition, int]


class BatchReader(Generic[R]):
    """A reader of one batch after the other, each by its ranges."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, _PartitionReader[R]] = {}
        self._spans: dict[TopicPartition, list[Span]] = {}

    def start_batch(self, ranges: Iterable[OffsetRange]) -> SeekPlan:
        """Start to read these ranges; partitions that continue at their position need no move."""
        self._spans = {}
        for r in sorted(ranges):
            self._spans.setdefault(r.topic_partition, []).append(r.span)
        leave = set(self._partitions) - set(self._spans)
        for tp in leave:
            del self._partitions[tp]
        return SeekPlan(leave, self._skip_to_batch(list(self._spans)))

    def advance(self) -> dict[TopicPartition, int]:
        """Pass ranges that are over; return the seeks to next ranges that are too far away."""
        far: dict[TopicPartition, int] = {}
        for tp, spans in self._spans.items():
            while spans and self._partitions[tp].has_taken_all_below(spans[0].end):
                spans.pop(0)
                far.update(self._skip_to_batch([tp] if spans else []))
        return far

    @property
    def is_finished(self) -> bool:
        """Whether every record of the batch was returned; call ``advance`` first."""
        return not any(self._spans.values())

    def take(self) -> list[R]:
        """Take all complete rounds that are buffered, each with a record of every unfinished partition.

        Call ``advance`` first. The order depends only on the ranges and the log, not on the order of arrival.
        """
        in_turn = [(self._partitions[tp], spans[0].end) for tp, spans in self._spans.items() if spans]
        rounds = min((log.count_below(end) for log, end in in_turn), default=0)
        return round_robin([log.take(rounds) for log, _ in in_turn]) if rounds else []

    def add(self, tp: TopicPartition, records: list[R]) -> None:
        """Add arrived records of one partition, in order; records that arrived before are left out."""
        if tp in self._partitions:
            self._partitions[tp].add(records)

    def mark_end(self, tp: TopicPartition, offset: int) -> None:
        """Record that no more records come below ``offset``: the missing offsets are holes."""
        if tp in self._partitions:
            self._partitions[tp].end = max(self._partitions[tp].end, offset)

    def position(self, tp: TopicPartition) -> int | None:
        """Return the next offset to arrive; None for a partition that is not read."""
        return self._partitions[tp].end if tp in self._partitions else None

    def buffered(self) -> dict[TopicPartition, Buffered]:
        """Return the buffered records of each partition."""
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
    """The read position of one partition.

    Each offset in ``[begin, end)`` is buffered or a hole, and was not returned yet.
    """

    def __init__(self, begin: int) -> None:
        self.begin = self.end = begin
        self.buffered: list[R] = []
        self.bytes = 0

    def continues_at(self, offset: int) -> bool:
        """Return whether reading continues at ``offset`` without a seek; then records below are dropped."""
        if not self.begin <= offset <= self.end:
            return False
        self.take(self.count_below(offset))
        self.begin = offset
        return True

    def has_taken_all_below(self, end: int) -> bool:
        """Return whether all records below ``end`` were returned."""
        return self.end >= end and not self.count_below(end)

    def count_below(self, offset: int) -> int:
        """Return the number of buffered records with lower offsets."""
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
        """Remove and return the first records; the bytes of the others are estimated by the mean."""
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
