"""How far is a batch read, and what comes next of it? Told which records arrived, it gives those of the batch in turns.

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
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition  # noqa: TC001 - named in the doctest
from kafka_liveness_dagster.core.prefetch import Held, round_robin

if TYPE_CHECKING:
    from collections.abc import Iterable


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
