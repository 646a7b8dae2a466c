"""Decide which record of a batch is next and which partitions to prefetch (KIP-41). Fetches nothing.

Holds no record and fetches none: it is told how much is held of each partition.

>>> round_robin([["a0", "a1"], ["b0", "b1"]])
['a0', 'b0', 'a1', 'b1']
>>> A, B = (TopicPartition("orders", p) for p in range(2))
>>> backlog = {A: Held(records=120, bytes=12_000), B: Held(records=0, bytes=0)}
>>> Prefetch(max_records=100).to_fetch(backlog)
{TopicPartition(topic='orders', partition=1)}

Ranges end by position, never by count: their last offsets may be holes, so the next record or the log end tells that
they are over. What arrives beyond a batch is kept for the next one.

>>> A = TopicPartition("orders", 3)
>>> reading = Reading()
>>> reading.begin([OffsetRange("orders", 3, 70, 120)])
Moves(leave=set(), seek={TopicPartition(topic='orders', partition=3): 70})
>>> reading.reached(A, 120)  # the log end: all 50 offsets are holes
>>> reading.give(), reading.go_on(), reading.is_over
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


class Record(Protocol):
    """What has to be known of a record: its offset, and the size of its value."""

    def offset(self) -> int:
        """Its place in its partition."""

    def __len__(self) -> int: ...


R = TypeVar("R", bound=Record)
_SAMPLE = 100  # asking every record for its size would cost a tenth of reading it


class Moves(NamedTuple):
    """What the client must do: stop reading partitions, then read others from an offset, whatever it has queued."""

    leave: set[TopicPartition]
    seek: dict[TopicPartition, int]


class Reading(Generic[R]):
    """One batch after the other, each by its ranges."""

    def __init__(self) -> None:
        self._logs: dict[TopicPartition, _Log[R]] = {}
        self._spans: dict[TopicPartition, list[Span]] = {}

    def begin(self, ranges: Iterable[OffsetRange]) -> Moves:
        """Read these next. Partitions that go on where they are need no move."""
        self._spans = {}
        for r in sorted(ranges):
            self._spans.setdefault(r.topic_partition, []).append(r.span)
        leave = set(self._logs) - set(self._spans)
        for tp in leave:
            del self._logs[tp]
        return Moves(leave, self._reach(list(self._spans)))

    def go_on(self) -> dict[TopicPartition, int]:
        """Pass ranges that are over; where partitions must be sought that have another one, too far away."""
        far: dict[TopicPartition, int] = {}
        for tp, spans in self._spans.items():
            while spans and self._logs[tp].is_past(spans[0].end):
                spans.pop(0)
                far.update(self._reach([tp] if spans else []))
        return far

    @property
    def is_over(self) -> bool:
        """Whether every record of the batch was given; ask ``go_on`` first."""
        return not any(self._spans.values())

    def give(self) -> list[R]:
        """As many whole rounds as can be given now, a record of each partition that has more; ask ``go_on`` first.

        The order depends on the ranges and the log alone, not on what arrived first.
        """
        in_turn = [(self._logs[tp], spans[0].end) for tp, spans in self._spans.items() if spans]
        rounds = min((log.count_below(end) for log, end in in_turn), default=0)
        return round_robin([log.give(rounds) for log, _ in in_turn]) if rounds else []

    def add(self, tp: TopicPartition, records: list[R]) -> None:
        """Records of one partition arrived, in order; what is known already is left out."""
        if tp in self._logs:
            self._logs[tp].add(records)

    def reached(self, tp: TopicPartition, offset: int) -> None:
        """Nothing else is to be read of a partition below ``offset``: what was not told is a hole."""
        if tp in self._logs:
            self._logs[tp].end = max(self._logs[tp].end, offset)

    def position(self, tp: TopicPartition) -> int | None:
        """The next offset to arrive, None for a partition that is not read."""
        return self._logs[tp].end if tp in self._logs else None

    def held(self) -> dict[TopicPartition, Held]:
        """What waits of each partition."""
        return {tp: Held(len(log.held), log.bytes) for tp, log in self._logs.items()}

    def _reach(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        starts = {tp: self._spans[tp][0].start for tp in partitions}
        far = {tp: at for tp, at in starts.items() if tp not in self._logs or not self._logs[tp].reaches(at)}
        self._logs.update({tp: _Log(at) for tp, at in far.items()})
        return far


class _Log(Generic[R]):
    """How far one partition is read: everything in ``[begin, end)`` is held or a hole, and was not given yet."""

    def __init__(self, begin: int) -> None:
        self.begin = self.end = begin
        self.held: list[R] = []
        self.bytes = 0

    def reaches(self, offset: int) -> bool:
        """Whether reading goes on at ``offset`` without a seek; what is held below it is dropped then."""
        if not self.begin <= offset <= self.end:
            return False
        self.give(self.count_below(offset))
        self.begin = offset
        return True

    def is_past(self, end: int) -> bool:
        """Whether all below ``end`` was given."""
        return self.end >= end and not self.count_below(end)

    def count_below(self, offset: int) -> int:
        """How many held records have lower offsets."""
        if not self.held or self.held[-1].offset() < offset:
            return len(self.held)
        return bisect_left(self.held, offset, key=_offset)

    def add(self, records: list[R]) -> None:
        new = records[bisect_left(records, self.end, key=_offset) :] if records[0].offset() < self.end else records
        if new:
            self.held += new
            self.end = new[-1].offset() + 1
            sample = new[:: len(new) // _SAMPLE + 1]
            self.bytes += sum(map(len, sample)) * len(new) // len(sample)

    def give(self, count: int) -> list[R]:
        """The first records, for good. The bytes of the others are reckoned by the mean."""
        if not count:
            return []
        given, before = self.held[:count], len(self.held)
        del self.held[:count]
        self.bytes = self.bytes * len(self.held) // before
        self.begin = given[-1].offset() + 1
        return given


def _offset(record: Record) -> int:
    return record.offset()
