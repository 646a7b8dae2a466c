"""Compute a report of a group: freshness, crash lag, incidents, and the share of time within the SLA.

Takes commits, timestamps and events as facts. Never reads a clock. Never estimates a time for which facts are
missing: that time is unknown, and counts neither as kept nor as missed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from kafka_liveness_dagster.core.events import LeaveReason
from kafka_liveness_dagster.core.names import format_duration
from kafka_liveness_dagster.core.offsets import intersection, size
from kafka_liveness_dagster.core.table_history import find_gaps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from kafka_liveness_dagster.core.freshness import Position, ServiceLevel
    from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
    from kafka_liveness_dagster.core.table_history import Gap, Step, TableCommit

BUCKETS = 240
"""Points of each plot."""
_CRASHES = (LeaveReason.CRASHED, LeaveReason.UNRELEASED)


class Interval(NamedTuple):
    """Seconds since the epoch, ``[start, end)``."""

    start: float
    end: float


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same times as the fewest intervals, in order.

    >>> merge([Interval(5, 9), Interval(1, 3), Interval(3, 6), Interval(8, 8)])
    [Interval(start=1, end=9)]
    """
    merged: list[Interval] = []
    for one in sorted(intervals):
        if one.end <= one.start:
            continue
        if merged and one.start <= merged[-1].end:
            merged[-1] = Interval(merged[-1].start, max(merged[-1].end, one.end))
        else:
            merged.append(one)
    return merged


def total(intervals: Iterable[Interval]) -> float:
    """Return the seconds in the intervals, each counted once."""
    return sum(one.end - one.start for one in merge(intervals))


@dataclass(frozen=True)
class Departure:
    """A live run that crashed, or that was removed from its group (a fence).

    Attributes:
        at: when Dagster recorded it.
        run: first 8 digits of the run's id.
        reason: None for a run that failed before it joined the group.
    """

    at: float
    run: str
    reason: LeaveReason | None

    @property
    def is_crash(self) -> bool:
        """Whether the run ended by it; else the run was fenced and could rejoin."""
        return self.reason is None or self.reason in _CRASHES

    @property
    def text(self) -> str:
        """The reason for people."""
        return "failed before it joined the group" if self.reason is None else self.reason.value


@dataclass(frozen=True)
class Backfill:
    """A run of the catch-up lane; ``end`` is None while it is in progress."""

    start: float
    end: float | None
    run: str
    status: str


@dataclass(frozen=True)
class GroupHistory:
    """The facts of a report; times are seconds since the epoch.

    Attributes:
        since, until: the time span.
        known_since: begin of the table's known history.
        commits: commits of the table in the span, the oldest first.
        steps: steps of each partition.
        timestamps: times of the records at ``wanted_positions``.
        unread: positions whose timestamps could not be read.
        log_starts: first offset of each log: older timestamps are not known any more.
        log_ends: the log ends at some moments, the oldest first.
        departures: crashes and fences until the end of the span, the oldest first.
        live_starts: when live runs started, the oldest first.
        joins: when a live run was seen in the group, with its id, the oldest first.
        skipped: the ranges that Dagster reported as crash lag, with the run whose end was the cause.
        backfills: runs of the catch-up lane.
        notes: sentences about facts that are missing.
    """

    group_id: str
    since: float
    until: float
    _: KW_ONLY
    known_since: float
    steps: Mapping[TopicPartition, Sequence[Step]]
    commits: Sequence[TableCommit] = ()
    timestamps: Mapping[Position, float] = field(default_factory=dict)
    unread: Collection[Position] = ()
    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    log_ends: Sequence[tuple[float, Mapping[TopicPartition, int]]] = ()
    departures: Sequence[Departure] = ()
    live_starts: Sequence[float] = ()
    joins: Sequence[tuple[float, str]] = ()
    skipped: Mapping[OffsetRange, str] = field(default_factory=dict)
    backfills: Sequence[Backfill] = ()
    notes: Sequence[str] = ()


def wanted_positions(steps: Iterable[Step]) -> list[Position]:
    """Return the offsets whose timestamps a report needs, in the order of the steps, each once."""
    found: dict[Position, None] = {}
    for step in steps:
        found[step.topic_partition, step.position] = None
        if step.missing:
            found[step.topic_partition, step.missing[0].start] = None
    return list(found)


@dataclass(frozen=True)
class Point:
    """One point of the plots: the largest values within a bucket; None if they are unknown.

    Attributes:
        at: end of the bucket.
        seconds_behind: age of the oldest record that the live lane had not written.
        lag: offsets that it had not written, at the end of the bucket.
        pending_offsets: passed offsets that the table lacked.
        pending_age_seconds: age of the oldest of their records.
        live_rows, backfilled_rows: rows that the commits of each lane added.
    """

    at: float
    seconds_behind: float | None
    lag: int | None
    pending_offsets: int | None
    pending_age_seconds: float | None
    live_rows: int
    backfilled_rows: int


@dataclass(frozen=True)
class Incident:
    """A departure with its consequences.

    Attributes:
        is_earlier: whether it happened before the span; then the next one is unknown.
        resumed_after_seconds: until the live lane committed, or was in the group with nothing to read; None
            if it did neither yet.
        unread_after_seconds: until a record was unread; None if none was before the group was live again.
        skipped_offsets: offsets that the live lane passed because of it, by Dagster's record or else by the
            table's history.
        pending_offsets: how many of these the table lacks at the end of the span.
        caught_up_after_seconds: until the table had them all; None while it lacks some, and if it had them
            before the known history.
        fresh_missed, complete_missed: times outside of each limit because of it.
    """

    departure: Departure
    is_earlier: bool
    resumed_after_seconds: float | None
    unread_after_seconds: float | None
    skipped_offsets: int
    pending_offsets: int
    caught_up_after_seconds: float | None
    fresh_missed: Sequence[Interval]
    complete_missed: Sequence[Interval]

    @property
    def missed_seconds(self) -> float:
        """Seconds outside of the SLA because of it."""
        return total((*self.fresh_missed, *self.complete_missed))


class _Miss(NamedTuple):
    """A time outside of a limit; ``cause`` is the index of a departure."""

    interval: Interval
    cause: int | None


@dataclass(frozen=True)
class Report:
    """The report of one history; all results are computed from it on demand."""

    history: GroupHistory
    sla: ServiceLevel

    @cached_property
    def known(self) -> Interval:
        """The part of the span with a known table history."""
        start = min(max(self.history.since, self.history.known_since), self.history.until)
        return Interval(start, self.history.until)

    @cached_property
    def unknown(self) -> list[Interval]:
        """Times without facts: before the history, and where the broker has deleted the oldest records.

        A time that is late for a known reason is not unknown.
        """
        expired = [
            self._clip(step.since, step.until)
            for step in self._steps
            if any(self._is_unknown(step.topic_partition, offset) for offset in _offsets(step))
        ]
        late = self.missed
        before = Interval(self.history.since, self.known.start)
        return merge((before, *(part for one in merge(expired) for part in _without(one, late))))

    @cached_property
    def fresh_missed(self) -> list[Interval]:
        """Times in which the live lane was further behind than allowed."""
        return merge(miss.interval for miss in self._fresh_misses)

    @cached_property
    def complete_missed(self) -> list[Interval]:
        """Times in which the table lacked records that were older than allowed."""
        return merge(miss.interval for miss in self._complete_misses)

    @property
    def known_seconds(self) -> float:
        """Seconds of the span with all facts."""
        return max(0.0, self.history.until - self.history.since - total(self.unknown))

    @property
    def fresh_share(self) -> float | None:
        """Share of the known time within ``fresh_seconds``; None without such a limit or facts."""
        return None if self.sla.fresh_seconds is None else self._share(self.fresh_missed)

    @property
    def complete_share(self) -> float | None:
        """Share of the known time within ``complete_seconds``, likewise."""
        return None if self.sla.complete_seconds is None else self._share(self.complete_missed)

    @property
    def share(self) -> float | None:
        """Share of the known time within both limits, likewise."""
        return self._share(self.missed) if self.sla.is_set else None

    @cached_property
    def missed(self) -> list[Interval]:
        """Times outside of one limit or both."""
        return merge((*self.fresh_missed, *self.complete_missed))

    @cached_property
    def unattributed_seconds(self) -> float:
        """Seconds outside of the SLA without a crash or fence as the cause."""
        misses = (*self._fresh_misses, *self._complete_misses)
        caused = merge(one.interval for one in misses if one.cause is not None)
        return total(self.missed) - total(caused)

    @cached_property
    def incidents(self) -> list[Incident]:
        """Each crash and fence of the span, and earlier ones that made it miss the SLA, the oldest first."""
        found = [self._incident(index, one) for index, one in enumerate(self.history.departures)]
        return [one for one in found if not one.is_earlier or one.missed_seconds]

    @cached_property
    def points(self) -> list[Point]:
        """The plots."""
        return _Plots(self).points()

    @cached_property
    def pending_offsets(self) -> int:
        """Offsets that the table lacks at the end of the span."""
        return sum(size(steps[-1].missing) for steps in self.history.steps.values() if steps)

    @cached_property
    def worst_behind(self) -> float | None:
        """Largest number of seconds behind; None without facts."""
        return max((p.seconds_behind for p in self.points if p.seconds_behind is not None), default=None)

    def is_live(self, commit: TableCommit) -> bool:
        """Return whether a commit advanced the live lane in some partition."""
        return any((tp, commit.at) in self._advances for tp in commit.written)

    @property
    def crashes(self) -> list[Incident]:
        """The incidents of the span that ended a run."""
        return [one for one in self.incidents if one.departure.is_crash and not one.is_earlier]

    @property
    def fences(self) -> list[Incident]:
        """The incidents of the span in which a run was removed from its group and could rejoin."""
        return [one for one in self.incidents if not (one.departure.is_crash or one.is_earlier)]

    @property
    def is_well(self) -> bool:
        """Whether no limit was missed in the known time."""
        return not self.missed

    @property
    def verdict(self) -> str:
        """The share of time within the SLA, in one sentence."""
        group = self.history.group_id
        span = format_duration(self.history.until - self.history.since)
        if not self.known_seconds:
            return f"unknown: no facts about {group} in {span}; see the notes"
        if not self.sla.is_set:
            return f"no SLA is known for {group}: declare sla, or set the limits by options"
        known = format_duration(self.known_seconds)
        of = f"of {known}" if not self.unknown else f"of the known {known}"
        if not self.missed:
            return f"{group} kept its SLA 100 % {of}"
        missed = format_duration(total(self.missed))
        return f"{group} missed its SLA for {missed} {of}: kept {format_share(self.share)}"

    @property
    def summary(self) -> str:
        """What happened, in one line."""
        worst = "unknown" if self.worst_behind is None else format_duration(self.worst_behind)
        crashes = _count(len(self.crashes), "crash", "crashes")
        fences = _count(len(self.fences), "fence", "fences")
        pending = f"{self.pending_offsets:,} offsets pending at the end"
        return f"{crashes}, {fences}, at most {worst} behind, {pending}"

    @cached_property
    def live_commit_times(self) -> list[float]:
        """Times of the live lane's commits."""
        return [one.at for one in self.history.commits if self.is_live(one)]

    @cached_property
    def gaps(self) -> list[tuple[Gap, int | None]]:
        """The passed offsets, each with the index of the departure that was the cause."""
        return [
            (gap, self._cause_of_gap(gap))
            for steps in self.history.steps.values()
            for gap in find_gaps(steps)
        ]

    @cached_property
    def _advances(self) -> set[tuple[TopicPartition, float]]:
        """The times at which the live lane's position grew."""
        return {
            (tp, step.since)
            for tp, steps in self.history.steps.items()
            for before, step in zip((None, *steps), steps, strict=False)
            if before is None or before.position < step.position
        }

    @cached_property
    def _steps(self) -> list[Step]:
        return [
            step
            for steps in self.history.steps.values()
            for step in steps
            if step.until > self.known.start and step.since < self.known.end
        ]

    def _clip(self, start: float, end: float) -> Interval:
        return Interval(max(start, self.known.start), min(end, self.known.end))

    def _is_unknown(self, tp: TopicPartition, offset: int) -> bool:
        return offset < self.history.log_starts.get(tp, 0) or (tp, offset) in self.history.unread

    def arrived_at(self, tp: TopicPartition, offset: int) -> float | None:
        """Return the timestamp of a record; None if there is none, or the broker has deleted it."""
        return None if self._is_unknown(tp, offset) else self.history.timestamps.get((tp, offset))

    def _late(self, step: Step, offset: int, limit: float) -> Interval | None:
        at = self.arrived_at(step.topic_partition, offset)
        found = None if at is None else self._clip(max(step.since, at + limit), step.until)
        return found if found is not None and found.start < found.end else None

    @cached_property
    def _fresh_misses(self) -> list[_Miss]:
        limit = self.sla.fresh_seconds
        return [] if limit is None else self._unread_misses(limit)

    @cached_property
    def _complete_misses(self) -> list[_Miss]:
        limit = self.sla.complete_seconds
        if limit is None:
            return []
        found = self._unread_misses(limit)
        for step in self._steps:
            late = self._late(step, step.missing[0].start, limit) if step.missing else None
            if late is not None:
                found.append(_Miss(late, self._cause_of_pending(step)))
        return found

    def _unread_misses(self, limit: float) -> list[_Miss]:
        """Return the times in which an unread record was too old.

        The cause is the last departure since the commit before. A time that goes on after the next commit has
        the same cause, because the live lane is still catching up.
        """
        found: list[_Miss] = []
        for steps in self.history.steps.values():
            cause: int | None = None
            for step in steps:
                late = self._late(step, step.position, limit)
                if late is None:
                    cause = None
                    continue
                if late.start > step.since:
                    cause = None
                parts = self._split(step, late, cause)
                found += [_Miss(part, index) for part, index in parts]
                cause = parts[-1][1]
        return found

    def _split(self, step: Step, late: Interval, inherited: int | None) -> list[tuple[Interval, int | None]]:
        inside = [
            (index, one.at)
            for index, one in enumerate(self.history.departures)
            if step.since <= one.at <= step.until
        ]
        before = [index for index, at in inside if at <= late.start]
        after = [(index, at) for index, at in inside if late.start < at < late.end]
        cause = before[-1] if before else inherited
        if cause is None and after:  # noticed only after the limit was missed
            cause = after.pop(0)[0]
        parts = []
        start = late.start
        for index, at in after:
            parts.append((Interval(start, at), cause))
            start = at
            cause = index
        parts.append((Interval(start, late.end), cause))
        return parts

    @cached_property
    def _gaps_by_partition(self) -> Mapping[TopicPartition, list[tuple[Gap, int | None]]]:
        found: dict[TopicPartition, list[tuple[Gap, int | None]]] = defaultdict(list)
        for gap, cause in self.gaps:
            found[gap.topic_partition].append((gap, cause))
        return found

    def _cause_of_pending(self, step: Step) -> int | None:
        first = step.missing[0].start
        gaps = self._gaps_by_partition[step.topic_partition]
        found = [cause for gap, cause in gaps if gap.span.start <= first < gap.span.end]
        return found[-1]  # each missing offset is in one

    def _cause_of_gap(self, gap: Gap) -> int | None:
        """Return the departure that Dagster recorded as the cause, else the last one before the gap."""
        named = {
            run
            for reported, run in self.history.skipped.items()
            if reported.topic_partition == gap.topic_partition and intersection((reported.span,), (gap.span,))
        }
        cause = None
        for index, one in enumerate(self.history.departures):
            if one.run in named:
                return index
            if gap.last_commit <= one.at <= gap.appeared:
                cause = index
        return cause

    def _incident(self, index: int, one: Departure) -> Incident:
        gaps = [gap for gap, cause in self.gaps if cause == index]
        ends = [gap.closed for gap in gaps if gap.closed is not None]
        open_gaps = [gap for gap in gaps if gap.closed is None]
        # Until the next run, Spark may still commit a batch of the run that crashed
        started = (
            next((at for at in self.history.live_starts if at > one.at), one.at) if one.is_crash else one.at
        )
        committed = next((at for at in self.live_commit_times if at > started), None)
        resumed = min(filter(None, (committed, self._idle_since(one))), default=None)
        unread = self._unread_since(one.at, resumed or self.history.until)
        missing = {tp: steps[-1].missing for tp, steps in self.history.steps.items() if steps}
        reported = sum(ranges.size for ranges, run in self.history.skipped.items() if run == one.run)
        pending = (size(intersection((gap.span,), missing[gap.topic_partition])) for gap in open_gaps)
        return Incident(
            one,
            is_earlier=one.at < self.history.since,
            resumed_after_seconds=None
            if resumed is None or one.at < self.history.since
            else resumed - one.at,
            unread_after_seconds=None if unread is None else unread - one.at,
            skipped_offsets=reported or sum(gap.span.size for gap in gaps),
            pending_offsets=sum(pending),
            caught_up_after_seconds=max(ends) - one.at if ends and not open_gaps else None,
            fresh_missed=merge(miss.interval for miss in self._fresh_misses if miss.cause == index),
            complete_missed=merge(miss.interval for miss in self._complete_misses if miss.cause == index),
        )

    def _idle_since(self, one: Departure) -> float | None:
        """Return when the next live run was in the group with nothing to read: no commit shows that."""
        joined = next(
            (at for at, run in self.history.joins if at > one.at and not (one.is_crash and run == one.run)),
            None,
        )
        if joined is None:
            return None
        changes = {step.since for step in self._steps if step.since > joined}
        return next((at for at in sorted({joined, *changes}) if self._unread_since(at, at) is None), None)

    def _unread_since(self, start: float, end: float) -> float | None:
        """Return when a record was first unread in this time; None if none was.

        An unknown record counts as unread, and so does the time before the known history.
        """
        if start < self.known.start:
            return start
        found = []
        for step in self._steps:
            if step.since > end or step.until <= start:
                continue
            at = self.arrived_at(step.topic_partition, step.position)
            if self._is_unknown(step.topic_partition, step.position):
                at = start
            if at is not None and at <= min(step.until, end):
                found.append(max(at, start, step.since))
        return min(found, default=None)

    def _share(self, missed: Iterable[Interval]) -> float | None:
        known = self.known_seconds
        return 1 - min(1.0, total(missed) / known) if known > 0 else None


def format_share(share: float | None) -> str:
    """Return a share as percent; rounded down, so that only a full share is 100 %.

    >>> format_share(0.99996), format_share(1.0), format_share(None)
    ('99.99 %', '100 %', 'unknown')
    """
    if share is None:
        return "unknown"
    percent = math.floor(10_000 * share) / 100
    return f"{percent:g} %"


def _count(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"


def _offsets(step: Step) -> list[int]:
    return [step.position, *(span.start for span in step.missing[:1])]


def _without(one: Interval, removed: Iterable[Interval]) -> list[Interval]:
    """Return the parts of an interval that are in none of the others, which are in order."""
    rest = []
    start = one.start
    for other in removed:
        if other.end > start and other.start < one.end:
            rest.append(Interval(start, other.start))
            start = max(start, other.end)
    return [part for part in (*rest, Interval(start, one.end)) if part.start < part.end]


class _Plots:
    """The points of a report, filled step by step."""

    def __init__(self, report: Report) -> None:
        history = report.history
        self._report = report
        self._starts = {tp: [step.since for step in steps] for tp, steps in history.steps.items()}
        self._since = history.since
        self._width = (history.until - history.since) / BUCKETS
        self._ends = [history.since + self._width * (index + 1) for index in range(BUCKETS)]

    def points(self) -> list[Point]:
        """Return the points."""
        behind = self._ages(lambda step: step.position)
        age = self._ages(lambda step: step.missing[0].start if step.missing else None)
        pending = self._pending()
        lag = self._lag()
        rows = self._rows()
        unknown = [self._buckets(one.start, one.end) for one in self._report.unknown]
        dark = {index for buckets in unknown for index in buckets}
        return [
            Point(
                end,
                seconds_behind=None if index in dark else behind[index],
                lag=None if index in dark else lag.get(index),
                pending_offsets=None if index in dark else pending[index],
                pending_age_seconds=None if index in dark else age[index],
                live_rows=rows[index][0],
                backfilled_rows=rows[index][1],
            )
            for index, end in enumerate(self._ends)
        ]

    def _buckets(self, start: float, end: float) -> range:
        first = max(0, int((start - self._since) / self._width))
        last = min(BUCKETS, -int(-(end - self._since) // self._width))
        return range(first, last)

    def _ages(self, offset_of: Callable[[Step], int | None]) -> list[float]:
        found = [0.0] * BUCKETS
        for step in self._report.history.steps.values():
            for one in step:
                offset = offset_of(one)
                at = None if offset is None else self._report.arrived_at(one.topic_partition, offset)
                if at is None:
                    continue
                for index in self._buckets(one.since, one.until):
                    found[index] = max(found[index], min(one.until, self._ends[index]) - at)
        return found

    def _pending(self) -> list[int]:
        changes: list[tuple[float, int]] = []
        for steps in self._report.history.steps.values():
            before = 0
            for step in steps:
                now = size(step.missing)
                changes.append((step.since, now - before))
                before = now
        changes.sort()
        found = [0] * BUCKETS
        level = 0
        ends = [*(at for at, _ in changes[1:]), self._report.history.until]
        for (at, change), end in zip(changes, ends, strict=False):
            level += change
            for index in self._buckets(at, end):
                found[index] = max(found[index], level)
        return found

    def _lag(self) -> dict[int, int]:
        """Return the lag at the ends of buckets for which log ends are known."""
        found = {}
        for at, ends in self._report.history.log_ends:
            index = min(BUCKETS - 1, max(0, round((at - self._since) / self._width) - 1))
            found[index] = sum(
                max(0, end - position)
                for tp, end in ends.items()
                if (position := self._position(tp, at)) is not None
            )
        return found

    def _position(self, tp: TopicPartition, at: float) -> int | None:
        steps = self._report.history.steps.get(tp, ())
        index = bisect_right(self._starts.get(tp, ()), at)
        return steps[index - 1].position if index else None

    def _rows(self) -> list[tuple[int, int]]:
        found = [(0, 0)] * BUCKETS
        for commit in self._report.history.commits:
            index = int((commit.at - self._since) / self._width)
            if 0 <= index < BUCKETS and commit.written:
                live, backfilled = found[index]
                is_live = self._report.is_live(commit)
                found[index] = (
                    live + commit.rows * is_live,
                    backfilled + commit.rows * (not is_live),
                )
        return found
