"""Judge the health of a group: the verdicts of its asset checks and of its health probe.

Judges one snapshot, in numbers and with the fix; reads neither Kafka nor Dagster, and keeps no state.

>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> behind = PartitionSnapshot(TopicPartition("orders", 3), committed=70, live_metadata=None, log_end=120)
>>> print(lag_below([behind], max_lag=20).message)
lag 50 is above max_lag=20. Fix: raise max_live_runs, or raise max_poll_records

>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> hanging = OpenTransaction(TopicPartition("orders", 3), offset=100, offsets=20, open_seconds=1200.0)
>>> fine = Verdict(Severity.FINE, "lag 0; no bound is set (max_lag)")
>>> print(with_open_transactions(fine, [hanging]).message)
lag 0; no bound is set (max_lag). 20 offsets of orders:3 wait behind a transaction that has been open at...

>>> from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> waits = PartitionSnapshot(TopicPartition("orders", 0), 70, None, log_end=120)
>>> [verdict.message for verdict in health_probe([waits], members=0) if verdict.severity is not Severity.FINE]
["the group has 50 offsets of lag, and no member. Fix: turn on the group's sensor, or launch its live job"]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.batch_size import INITIAL_OFFSETS
from kafka_liveness_dagster.core.commit_metadata import OwnerState
from kafka_liveness_dagster.core.departures import RunFate
from kafka_liveness_dagster.core.events import LeaveReason
from kafka_liveness_dagster.core.fencing import REJOINING_LEAVES
from kafka_liveness_dagster.core.names import format_count, join_some
from kafka_liveness_dagster.core.offsets import OffsetRange, Span
from kafka_liveness_dagster.core.partition_snapshot import (
    Expiry,
    PartitionSnapshot,
    expiry,
    replaced_log_lines,
)
from kafka_liveness_dagster.core.process_status import ProcessStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from kafka_liveness_dagster.core.bad_records import PendingDeadLetters
    from kafka_liveness_dagster.core.departures import GroupSnapshot
    from kafka_liveness_dagster.core.offsets import TopicPartition


_ORPHANED_RUN = (
    ". Queued or hung: the sensor starts a replacement later by itself. Fix: terminate the run, so that "
    "the sensor starts it now"
)
_FOREIGN = (
    ". The records that they consume never reach the table. Fix: give these clients a group_id of their own"
)
_REJOINS_WITH_NEXT_POLL = ". It rejoins with its next poll. Fix: read its log for the slow batch"
_RESTORE = "Fix: restore it, or set on_missing_rows='crash_lag' and backfill"
_NO_MEMBERS = ". Fix: switch on the group's sensor, which starts live runs"


class Severity(Enum):
    """Severity of a verdict."""

    FINE = "fine"
    WARNING = "warning"
    """Late, or recovers by itself, or needs a person's decision; nothing is lost."""
    ERROR = "error"
    """Records wait and no run processes them, or data is lost."""


@dataclass(frozen=True)
class Verdict:
    """One verdict: its severity, its message, and the numbers behind it."""

    severity: Severity
    message: str
    numbers: Mapping[str, int | float | str] = field(default_factory=dict)


def group_alive(
    group: GroupSnapshot,
    ages_seconds: Mapping[str, float],
    ghost_after_seconds: float,
    *,
    requested: bool = False,
) -> Verdict:
    """Judge whether members read the group, or there is nothing to read and its last run was fine.

    Args:
        group: the group now; ``runs`` newest first.
        ages_seconds: seconds since the start of each run in progress.
        ghost_after_seconds: age from which a run that never became a member is a ghost.
        requested: whether a live run is being requested at this moment.
    """
    dead = {run for run, known in group.runs.items() if known.process is ProcessStatus.GONE}
    runs = _LiveRuns.of(group, dead, ages_seconds, ghost_after_seconds=ghost_after_seconds)
    ghosts = runs.ghosts
    foreign = [member.name for member in group.members if member.is_foreign]
    lag = total_lag(group.partitions)
    ours = group.size - len(set(foreign))
    failed = _failure_of_last_run(group, dead)
    ghost_severity = Severity.WARNING if ours or not lag else Severity.ERROR
    gone = ", ".join(f"run {run} {reason.value}" for run, reason in runs.away.items())
    rules = (
        # Rule 1: report a ghost run first, even while other members work
        (
            ghosts,
            ghost_severity,
            f"run {join_some(ghosts)} in progress, but no member of the group; lag {lag:,}",
            _ORPHANED_RUN,
        ),
        # Rule 2: members read; records that other clients consume never reach the table
        (ours, Severity.FINE, f"{format_count(ours, 'member')} at work, lag {lag:,}", ""),
        (
            foreign,
            Severity.ERROR,
            f"only external consumers are in the group: {join_some(foreign)}",
            _FOREIGN,
        ),
        # Rule 3: a run is starting, or will join again
        (
            requested or runs.are_coming,
            Severity.FINE,
            f"no member, a live run is starting or finishing; lag {lag:,}",
            "",
        ),
        (
            runs.away,
            Severity.WARNING,
            f"{gone} and has not rejoined yet, lag {lag:,}",
            _REJOINS_WITH_NEXT_POLL,
        ),
        # Rule 4: the group has no member
        (lag, Severity.ERROR, f"lag {lag:,} and no member{failed}", _NO_MEMBERS),
        (failed, Severity.WARNING, f"nothing to read{failed}", ""),
        (True, Severity.FINE, "nothing to read, no member needed", ""),
    )
    severity, sentence = next(
        (severity, sentence + remedy) for holds, severity, sentence, remedy in rules if holds
    )
    numbers = {
        "members": ours,
        "external_members": len(foreign),
        "runs_in_progress": len(runs.in_progress),
        "lag": lag,
    }
    return Verdict(severity, sentence, {**numbers, "ghosts": len(ghosts)})


@dataclass(frozen=True)
class _LiveRuns:
    """The runs in progress, by the state of their members.

    Attributes:
        ghosts: runs without a member for too long, or whose members stopped responding.
        away: runs whose members left and join again with their next poll; with the reason.
        are_coming: whether one of the runs may still join.
    """

    in_progress: list[str]
    ghosts: list[str]
    away: Mapping[str, LeaveReason]
    are_coming: bool

    @classmethod
    def of(
        cls,
        group: GroupSnapshot,
        dead: Collection[str],
        ages_seconds: Mapping[str, float],
        ghost_after_seconds: float,
    ) -> _LiveRuns:
        in_progress = [
            r
            for r, known in group.runs.items()
            if known.fate is RunFate.IN_PROGRESS and r not in dead and not known.has_ended
        ]
        left = {gone.run: gone.reason for gone in group.owners_without_member if gone.run in in_progress}
        # The coordinator may list a static member under an older run's name, so the owner states in the
        # commits decide which run works
        running = {
            p.live_metadata.run_id
            for p in group.partitions
            if p.live_metadata is not None and p.live_metadata.owner_state is OwnerState.RUNNING
        }
        at_work = {member.name for member in group.members} | (running - set(left))
        absent = [run for run in in_progress if run not in at_work and run not in left]
        late = [run for run in absent if ages_seconds.get(run, 0.0) >= ghost_after_seconds]
        unresponsive = [run for run, reason in left.items() if reason is LeaveReason.UNRESPONSIVE]
        return cls(
            in_progress,
            [*unresponsive, *late],
            {run: reason for run, reason in left.items() if reason in REJOINING_LEAVES},
            are_coming=len(absent) > len(late) or LeaveReason.GRACEFUL in left.values(),
        )


def _failure_of_last_run(group: GroupSnapshot, dead: Collection[str]) -> str:
    """Return how the last ended run failed, as a clause; empty if it did not fail."""
    ended = next(
        (r for r, known in group.runs.items() if known.fate is not RunFate.IN_PROGRESS or r in dead), None
    )
    if ended is None or not (ended in dead or group.runs[ended].fate is RunFate.FAILED):
        return ""
    by_signal = group.runs[ended].is_interrupted
    how = "was ended by a signal to its process" if by_signal else "failed, see its error"
    return f"; the last live run {how}"


def lag_below(partitions: Sequence[PartitionSnapshot], max_lag: int | None) -> Verdict:
    """Judge whether the live lane is near enough to the log end.

    Paused partitions are held on purpose and do not count.
    """
    lag = total_lag(partitions)
    paused = sum(p.lag for p in partitions if p.paused)
    numbers = {
        "lag": lag,
        "largest_lag": max((p.lag for p in partitions if not p.paused), default=0),
        "paused_lag": paused,
    }
    if max_lag is None:
        return Verdict(Severity.FINE, f"lag {lag:,}; no bound is set (max_lag)", numbers)
    numbers["max_lag"] = max_lag
    if lag <= max_lag:
        return Verdict(Severity.FINE, f"lag {lag:,}, at most max_lag={max_lag:,}", numbers)
    remedy = "Fix: raise max_live_runs, or raise max_poll_records"
    return Verdict(Severity.WARNING, f"lag {lag:,} is above max_lag={max_lag:,}. {remedy}", numbers)


def crash_lag_age(
    partitions: Sequence[PartitionSnapshot],
    oldest_seconds: float,
    ranges_without_key: Sequence[str],
    max_age_seconds: float | None,
) -> Verdict:
    """Judge whether the crash lag is processed soon enough.

    Args:
        partitions: the group's partitions.
        oldest_seconds: age of the Dagster partition of the oldest pending range.
        ranges_without_key: pending ranges without a Dagster partition; their age is unknown.
        max_age_seconds: limit of the age; None for a check that only reports.
    """
    pending = sum(p.pending_offsets for p in partitions)
    ranges = sum(len(p.outstanding) for p in partitions)
    numbers: dict[str, int | float | str] = {"pending_offsets": pending, "pending_ranges": ranges}
    if unsure := replaced_log_lines(p for p in partitions if p.is_upper_bound):
        return Verdict(Severity.WARNING, f"unknown: {join_some(unsure)}", numbers)
    if not pending:
        return Verdict(Severity.FINE, "nothing is pending", numbers)
    numbers["oldest_seconds"] = round(oldest_seconds, 3)
    sentence = (
        f"{pending:,} offsets in {format_count(ranges, 'range')} are pending, the oldest for "
        f"{oldest_seconds:,.0f} s"
    )
    if max_age_seconds is None:
        return Verdict(Severity.FINE, f"{sentence}; no bound is set (max_age_seconds of CrashLag)", numbers)
    numbers["max_crash_lag_age_seconds"] = max_age_seconds
    if oldest_seconds > max_age_seconds:
        remedy = "Fix: materialize the failed and missing partitions, or set auto_catch_up=True"
        return Verdict(Severity.WARNING, f"{sentence}, longer than {max_age_seconds:g} s. {remedy}", numbers)
    if ranges_without_key:
        sentence = (
            f"{join_some(ranges_without_key)} of {pending:,} pending offsets: no partition in Dagster, "
            "so the age is unknown"
        )
        return Verdict(
            Severity.WARNING,
            f"{sentence}. Fix: switch on the group's sensor, which adds the partitions",
            numbers,
        )
    return Verdict(Severity.FINE, f"{sentence}, at most {max_age_seconds:g} s", numbers)


def retention(partitions: Iterable[PartitionSnapshot], batch_size: int) -> Verdict:
    """Judge whether the broker deletes unprocessed records, or will soon.

    Args:
        partitions: the group's partitions.
        batch_size: offsets of the live lane's next batch. A lag of at most that size is never about to
            expire, because the log may be short.
    """
    lost = []
    near = []
    for seen in partitions:
        waiting = [*seen.unprocessed]
        if seen.committed is not None and seen.lag:
            waiting.append(Span(seen.committed, seen.log_end))
        for span in waiting:
            at_risk = expiry(span, seen.log_start, seen.log_end)
            if at_risk in (Expiry.PARTLY, Expiry.EXPIRED):
                gone = Span(span.start, min(span.end, seen.log_start))
                lost.append(OffsetRange(*seen.topic_partition, *gone))
            elif at_risk is Expiry.NEARLY and (
                span in seen.unprocessed or seen.paused or span.size > batch_size
            ):
                near.append(OffsetRange(*seen.topic_partition, *span))
    numbers = {
        "expired_offsets": sum(r.size for r in lost),
        "offsets_about_to_expire": sum(r.size for r in near),
    }
    longer = "process them now (crash lag: materialize its partitions), or raise the topic's retention.ms"
    if lost:
        sentence = (
            f"{join_some(lost)}, {numbers['expired_offsets']:,} offsets, expired before they were processed"
        )
        remedy = (
            "Fix: close pending ranges with `kafka-liveness write-off`, or set on_data_loss='write_off' "
            "to continue without the lost offsets"
        )
        also = f" About to expire: {join_some(near)}; {longer}." if near else ""
        return Verdict(Severity.ERROR, f"{sentence}.{also} {remedy}", numbers)
    if near:
        sentence = f"{join_some(near)}, {numbers['offsets_about_to_expire']:,} offsets, are about to expire"
        return Verdict(Severity.WARNING, f"{sentence}. Fix: {longer}", numbers)
    return Verdict(Severity.FINE, "no waiting record is about to expire", numbers)


def no_missing_rows(seen: GroupSnapshot, remembered: Sequence[str], unavailable_reason: str) -> Verdict:
    """Return whether each committed offset is in the table, pending or written off.

    Args:
        seen: the group now.
        remembered: ranges whose record was replaced, and which are not proven done yet.
        unavailable_reason: why the table gave no response; empty when it did.
    """
    if unavailable_reason:
        return Verdict(Severity.WARNING, f"not checked: {unavailable_reason}")
    missing = [
        str(OffsetRange(*p.topic_partition, *span)) for p in seen.partitions for span in p.missing_rows
    ]
    forgotten = [
        str(OffsetRange(*p.topic_partition, *span)) for p in seen.partitions for span in p.forgotten_pending
    ]
    forgotten = list(dict.fromkeys((*remembered, *forgotten)))
    pending = sum(p.pending_offsets for p in seen.partitions)
    numbers: dict[str, int | float | str] = {
        "missing_offsets": sum(span.size for p in seen.partitions for span in p.missing_rows),
        "forgotten_ranges": len(forgotten),
        "pending_offsets": pending,
    }
    if missing:
        sentence = (
            f"the table lacks {join_some(missing)}, {numbers['missing_offsets']:,} offsets that were "
            "committed"
        )
        return Verdict(
            Severity.ERROR, f"{sentence}: it was dropped, replaced or rolled back. {_RESTORE}", numbers
        )
    if forgotten:
        sentence = f"{join_some(forgotten)}: not in the table, and another client replaced the group's commit"
        return Verdict(
            Severity.ERROR,
            (
                f"{sentence}. Fix: stop that client; the next live run makes the range pending; materialize "
                "its partition"
            ),
            numbers,
        )
    if replaced := replaced_log_lines(seen.partitions):
        return Verdict(Severity.WARNING, join_some(replaced), numbers)
    return Verdict(
        Severity.FINE,
        f"every committed offset is in the table, pending or reported as lost; {pending:,} are pending",
        numbers,
    )


def dead_letters_waiting(pending: PendingDeadLetters, unavailable_reason: str) -> Verdict:
    """Judge whether dead letters are pending: records that failed and were not written off.

    Args:
        pending: the dead letters whose offsets are pending.
        unavailable_reason: why their table gave no response; empty when it did.

    >>> from kafka_liveness_dagster.core.bad_records import PendingDeadLetters
    >>> pending = PendingDeadLetters(7, (OffsetRange("orders", 3, 75, 76),), "ValueError: 'x'")
    >>> print(dead_letters_waiting(pending, "").message)
    7 dead letters are pending: p3:orders:75-76 and 6 more; the first failed with ValueError: 'x'. Fix...
    """
    if unavailable_reason:
        return Verdict(Severity.WARNING, f"not checked: {unavailable_reason}")
    numbers = {"dead_letters": pending.offset_count}
    if not pending.offset_count:
        return Verdict(Severity.FINE, "no dead letter is pending", numbers)
    more = pending.offset_count - len(pending.first_offsets)
    named = ", ".join(map(str, pending.first_offsets)) + (f" and {more:,} more" if more else "")
    are = "dead letters are" if pending.offset_count > 1 else "dead letter is"
    remedy = "Fix: correct the transform and materialize their partitions, or run `kafka-liveness write-off`"
    sentence = (
        f"{pending.offset_count:,} {are} pending: {named}; the first failed with {pending.reason}. {remedy}"
    )
    return Verdict(Severity.WARNING, sentence, numbers)


def total_lag(partitions: Iterable[PartitionSnapshot]) -> int:
    """Return the lag of the live lane; paused partitions are held on purpose and do not count."""
    return sum(seen.lag for seen in partitions if not seen.paused)


HANGING_SECONDS = 900.0
"""The broker's limit for an open transaction, unless its ``transaction.max.timeout.ms`` was changed."""
_REMEDY = (
    "No reader with read_committed gets them before it ends. Fix: if its producer is gone, run "
    "`kafka-transactions.sh --bootstrap-server … find-hanging`, then `abort`"
)


@dataclass(frozen=True)
class OpenTransaction:
    """The part of a partition that open transactions block (KIP-98, last stable offset).

    Attributes:
        offset: first record of the oldest open transaction.
        offsets: number of blocked offsets, of this transaction and of other writers.
        open_seconds: age of the transaction by its timestamp; None if its age is unknown.
    """

    topic_partition: TopicPartition
    offset: int
    offsets: int
    open_seconds: float | None = None

    @property
    def is_hanging(self) -> bool:
        """Whether its producer will probably never end it."""
        return self.open_seconds is not None and self.open_seconds >= HANGING_SECONDS

    def __str__(self) -> str:
        since = "" if self.open_seconds is None else f" for {self.open_seconds:,.0f} s"
        who = f"{self.offsets:,} offsets of {self.topic_partition} wait"
        return f"{who} behind a transaction that has been open at {self.offset}{since}"


def with_open_transactions(lag: Verdict, open_transactions: Sequence[OpenTransaction]) -> Verdict:
    """Add the blocked offsets to a lag verdict, whose lag ends at the last stable offset."""
    if not open_transactions:
        return lag
    numbers = {**lag.numbers, "behind_open_transactions": sum(one.offsets for one in open_transactions)}
    hanging = sorted((one for one in open_transactions if one.is_hanging), key=lambda one: -one.offsets)
    if not hanging:
        return Verdict(lag.severity, lag.message, numbers)
    severity = lag.severity if lag.severity is Severity.ERROR else Severity.WARNING
    return Verdict(severity, f"{lag.message}. {join_some(hanging)}. {_REMEDY}", numbers)


def health_probe(
    partitions: Sequence[PartitionSnapshot],
    members: int,
    *,
    max_lag: int | None = None,
    max_pending: int | None = None,
    allow_no_member: bool = False,
    open_transactions: Sequence[OpenTransaction] = (),
) -> list[Verdict]:
    """Return one verdict for each condition of a healthy group, fine ones included.

    Args:
        partitions: the group's partitions.
        members: number of the group's members.
        max_lag: limit of the live lane's lag in offsets; None for no limit.
        max_pending: limit of pending crash lag in offsets; None for no limit.
        allow_no_member: whether a group with lag or pending ranges may be without members.
        open_transactions: offsets that open transactions block.
    """
    return [
        _readers_verdict(partitions, members, allow_no_member=allow_no_member),
        with_open_transactions(lag_below(partitions, max_lag), open_transactions),
        _pending_verdict(partitions, max_pending),
        retention(partitions, INITIAL_OFFSETS),
    ]


def _readers_verdict(
    partitions: Sequence[PartitionSnapshot], members: int, *, allow_no_member: bool
) -> Verdict:
    if members:
        return Verdict(Severity.FINE, f"members: {members}")
    lag = total_lag(partitions)
    pending = sum(seen.pending_offsets for seen in partitions if not seen.paused)
    if not (lag or pending):
        return Verdict(Severity.FINE, "no member, and nothing to read")
    counts = {"of lag": lag, "pending": pending}
    waiting = " and ".join(
        f"{format_count(count, 'offset')} {noun}" for noun, count in counts.items() if count
    )
    if allow_no_member:
        return Verdict(Severity.FINE, f"no member, which is allowed: {waiting}")
    remedy = (
        "Fix: turn on the group's sensor, or launch its live job"
        if lag
        else "Fix: launch a backfill of the pending ranges; dead letters need a corrected transform first"
    )
    return Verdict(Severity.ERROR, f"the group has {waiting}, and no member. {remedy}")


def _pending_verdict(partitions: Sequence[PartitionSnapshot], max_pending: int | None) -> Verdict:
    pending = sum(seen.pending_offsets for seen in partitions)
    if max_pending is None or pending <= max_pending:
        return Verdict(Severity.FINE, f"pending offsets: {pending:,}")
    return Verdict(
        Severity.WARNING,
        f"{pending:,} offsets are pending, more than {max_pending:,}. Fix: materialize the partitions "
        "of the crash lag asset, or set auto_catch_up=True",
    )
