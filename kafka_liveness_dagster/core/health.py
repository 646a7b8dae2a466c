"""Judge the health of a group: the verdicts of its asset checks and of its health probe.

Judges one look, in numbers and with the remedy; never asks Kafka or Dagster, and has no memory.

>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> behind = PartitionSnapshot(TopicPartition("orders", 3), committed=70, mark=None, log_end=120)
>>> print(lag_below([behind], max_lag=20).sentence)
lag 50 is above max_lag=20. Let more runs share it (max_live_runs), or take larger batches (max_poll_records)

>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> hanging = HeldBack(TopicPartition("orders", 3), offset=100, offsets=20, seconds=1200.0)
>>> print(judged(Verdict(Gravity.FINE, "lag 0; no bound is set (max_lag)"), [hanging]).sentence)
lag 0; no bound is set (max_lag). 20 offsets of orders:3 wait behind a transaction that has been open at 100 for...

>>> from kafka_liveness_dagster.core.departures import PartitionSnapshot
>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> waits = PartitionSnapshot(TopicPartition("orders", 0), 70, None, 120)
>>> [verdict.sentence for verdict in probe([waits], members=0) if verdict.gravity is not Gravity.FINE]
['50 offsets wait and the group has no member: is its sensor on? Else start the live job']
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.batch_size import FIRST_OFFSETS
from kafka_liveness_dagster.core.commit_metadata import Mark
from kafka_liveness_dagster.core.departures import Expiry, PartitionSnapshot, RunFate, expiry, replaced_logs
from kafka_liveness_dagster.core.events import LeaveReason
from kafka_liveness_dagster.core.names import listed
from kafka_liveness_dagster.core.offsets import OffsetRange, Span
from kafka_liveness_dagster.core.process_status import Word

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kafka_liveness_dagster.core.bad_records import OwedLetters
    from kafka_liveness_dagster.core.departures import GroupSnapshot
    from kafka_liveness_dagster.core.offsets import TopicPartition


_GHOST = ". Queued or hanging? The sensor starts another when nothing is seen of it for long, or when it is terminated"
_FOREIGN = ". What they commit comes into no table: give them a group id of their own"
_AWAY = ". It joins again with its next poll; its log says what took so long"
_RESTORE = "Restore it, or set on_missing_rows='crash_lag' and backfill"
_REJOINS = (LeaveReason.POLL_TIMEOUT, LeaveReason.PARTITIONS_LOST, LeaveReason.BROKERS_UNAVAILABLE)
_NOBODY = ". The group's sensor starts live runs: is it switched on?"


class Gravity(Enum):
    """How bad it is."""

    FINE = "fine"
    WARNING = "warning"
    """Late, or it mends itself, or it is people's to decide: nothing is lost."""
    ERROR = "error"
    """Nobody works on what waits, or data is gone."""


@dataclass(frozen=True)
class Verdict:
    """One judgement: what is told, and the numbers behind it."""

    gravity: Gravity
    sentence: str
    numbers: Mapping[str, int | float | str] = field(default_factory=dict)


def group_alive(
    seen: GroupSnapshot,
    ages_seconds: Mapping[str, float],
    ghost_after_seconds: float,
    *,
    requested: bool = False,
) -> Verdict:
    """Whether the group is read, or there is nothing to read and its last run was fine.

    Args:
        seen: the group now; ``runs`` newest first.
        ages_seconds: how long ago each run in progress was started.
        ghost_after_seconds: a run that has been no member since its start, for so long, is a ghost.
        requested: a live run is being requested at this moment.
    """
    dead = {run for run, known in seen.runs.items() if known.process is Word.GONE}
    in_progress = [
        r for r, known in seen.runs.items() if known.fate is RunFate.IN_PROGRESS and r not in dead and not known.is_over
    ]
    left = {gone.run: gone.reason for gone in seen.left if gone.run in in_progress}
    # of a static member the coordinator may show an older run's name: its marks tell who works
    marks = {p.mark.run for p in seen.partitions if p.mark is not None and p.mark.mark is Mark.RUNNING}
    at_work = {member.name for member in seen.members} | (marks - set(left))
    absent = [run for run in in_progress if run not in at_work and run not in left]
    late = [run for run in absent if ages_seconds.get(run, 0.0) >= ghost_after_seconds]
    ghosts = [*(run for run, reason in left.items() if reason is LeaveReason.UNRESPONSIVE), *late]
    away = {run: reason for run, reason in left.items() if reason in _REJOINS}
    coming = requested or len(absent) > len(late) or LeaveReason.GRACEFUL in left.values()
    ended = next((r for r, known in seen.runs.items() if known.fate is not RunFate.IN_PROGRESS or r in dead), None)
    has_failed = ended is not None and (ended in dead or seen.runs[ended].fate is RunFate.FAILED)
    foreign, lag = [member.name for member in seen.members if member.is_foreign], waiting(seen.partitions)
    ours = seen.size - len(set(foreign))
    by_signal = ended is not None and seen.runs[ended].is_interrupted
    how = "was ended by a signal to its process" if by_signal else "failed, see its error"
    failed = f"; the last live run {how}" if has_failed else ""
    waits = Gravity.WARNING if ours or not lag else Gravity.ERROR
    gone = ", ".join(f"run {run} {reason.value}" for run, reason in away.items())
    rules = (
        # Rule 1: a run that does not work is told, whoever works beside it
        (ghosts, waits, f"in progress and no member of the group: run {listed(ghosts)}; lag {lag:,}", _GHOST),
        # Rule 2: somebody reads; what others commit never comes into the table
        (ours, Gravity.FINE, f"{_count(ours, 'member')} at work, lag {lag:,}", ""),
        (foreign, Gravity.ERROR, f"only foreign consumers are in the group: {listed(foreign)}", _FOREIGN),
        # Rule 3: on its way in
        (coming, Gravity.FINE, f"no member, and a run is on its way; lag {lag:,}", ""),
        (away, Gravity.WARNING, f"{gone} and is not back yet, lag {lag:,}", _AWAY),
        # Rule 4: nobody is there
        (lag, Gravity.ERROR, f"lag {lag:,} and nobody reads{failed}", _NOBODY),
        (failed, Gravity.WARNING, f"nothing to read{failed}", ""),
        (True, Gravity.FINE, "nothing to read, no member needed", ""),
    )
    gravity, sentence = next((gravity, sentence + remedy) for holds, gravity, sentence, remedy in rules if holds)
    numbers = {"members": ours, "external_members": len(foreign), "runs_in_progress": len(in_progress), "lag": lag}
    return Verdict(gravity, sentence, {**numbers, "ghosts": len(ghosts)})


def lag_below(partitions: Sequence[PartitionSnapshot], max_lag: int | None) -> Verdict:
    """Whether the live lane is near enough to the log end; paused partitions are held by will and do not count."""
    lag, paused = waiting(partitions), sum(p.lag for p in partitions if p.paused)
    numbers = {
        "lag": lag,
        "largest_lag": max((p.lag for p in partitions if not p.paused), default=0),
        "paused_lag": paused,
    }
    if max_lag is None:
        return Verdict(Gravity.FINE, f"lag {lag:,}; no bound is set (max_lag)", numbers)
    numbers["max_lag"] = max_lag
    if lag <= max_lag:
        return Verdict(Gravity.FINE, f"lag {lag:,}, at most max_lag={max_lag:,}", numbers)
    remedy = "Let more runs share it (max_live_runs), or take larger batches (max_poll_records)"
    return Verdict(Gravity.WARNING, f"lag {lag:,} is above max_lag={max_lag:,}. {remedy}", numbers)


def crash_lag_age(
    partitions: Sequence[PartitionSnapshot],
    oldest_seconds: float,
    unlisted: Sequence[str],
    max_age_seconds: float | None,
) -> Verdict:
    """Whether what the live lane jumped over is caught up soon enough.

    Args:
        partitions: the group's.
        oldest_seconds: how long Dagster has known of the oldest range that is still owed.
        unlisted: owed ranges that Dagster has no partition for: nobody knows their age.
        max_age_seconds: None for a check that only reports.
    """
    owed, ranges = sum(p.owed for p in partitions), sum(len(p.outstanding) for p in partitions)
    numbers: dict[str, int | float | str] = {"pending_offsets": owed, "pending_ranges": ranges}
    if unsure := replaced_logs(p for p in partitions if p.is_upper_bound):
        return Verdict(Gravity.WARNING, f"cannot tell: {listed(unsure)}", numbers)
    if not owed:
        return Verdict(Gravity.FINE, "nothing is owed", numbers)
    numbers["oldest_seconds"] = round(oldest_seconds, 3)
    sentence = f"{owed:,} offsets in {_count(ranges, 'range')} are owed, the oldest for {oldest_seconds:,.0f} s"
    if max_age_seconds is None:
        return Verdict(Gravity.FINE, f"{sentence}; no bound is set (max_age_seconds of CrashLag)", numbers)
    numbers["max_crash_lag_age_seconds"] = max_age_seconds
    if oldest_seconds > max_age_seconds:
        remedy = "Materialize the partitions that are failed or missing, or let the sensor do it (auto_catch_up)"
        return Verdict(Gravity.WARNING, f"{sentence}, longer than {max_age_seconds:g} s. {remedy}", numbers)
    if unlisted:
        sentence = f"{listed(unlisted)} of {owed:,} owed offsets: no such partition in Dagster, so no known age"
        return Verdict(Gravity.WARNING, f"{sentence}. The group's sensor adds them: is it switched on?", numbers)
    return Verdict(Gravity.FINE, f"{sentence}, at most {max_age_seconds:g} s", numbers)


def retention(partitions: Iterable[PartitionSnapshot], batch_size: int) -> Verdict:
    """Whether the broker deletes, or soon will, what neither lane has processed.

    Args:
        partitions: the group's.
        batch_size: what the live lane's next batch takes is not about to expire, however short the log is.
    """
    lost, near = [], []
    for seen in partitions:
        waiting = [*seen.unprocessed]
        if seen.committed is not None and seen.lag:
            waiting.append(Span(seen.committed, seen.log_end))
        for span in waiting:
            at_risk = expiry(span, seen.log_start, seen.log_end)
            if at_risk in (Expiry.BEGUN, Expiry.GONE):
                gone = Span(span.start, min(span.end, seen.log_start))
                lost.append(OffsetRange(*seen.topic_partition, *gone))
            elif at_risk is Expiry.NEAR and (span in seen.unprocessed or seen.paused or span.size > batch_size):
                near.append(OffsetRange(*seen.topic_partition, *span))
    numbers = {"expired_offsets": sum(r.size for r in lost), "offsets_about_to_expire": sum(r.size for r in near)}
    longer = "process them now (crash lag: its partitions), or raise the topic's retention"
    if lost:
        sentence = f"expired before they were processed: {listed(lost)}, {numbers['expired_offsets']:,} offsets"
        remedy = (
            "What is gone: `kafka-liveness write-off` closes owed ranges, on_data_loss='write_off' goes on without them"
        )
        also = f" About to expire: {listed(near)}: {longer}." if near else ""
        return Verdict(Gravity.ERROR, f"{sentence}.{also} {remedy}", numbers)
    if near:
        sentence = f"about to expire: {listed(near)}, {numbers['offsets_about_to_expire']:,} offsets"
        return Verdict(Gravity.WARNING, f"{sentence}: {longer}", numbers)
    return Verdict(Gravity.FINE, "nothing that waits is about to expire", numbers)


def exact(seen: GroupSnapshot, remembered: Sequence[str], cannot_tell: str) -> Verdict:
    """Whether every offset of the group's life below the first log is in the table, owed, or told as lost.

    Args:
        seen: the group now.
        remembered: ranges that were forgotten, and are not proven done yet.
        cannot_tell: why the table could not be asked; empty when it was.
    """
    if cannot_tell:
        return Verdict(Gravity.WARNING, f"cannot tell: {cannot_tell}")
    missing = [str(OffsetRange(*p.topic_partition, *span)) for p in seen.partitions for span in p.missing]
    forgotten = [str(OffsetRange(*p.topic_partition, *span)) for p in seen.partitions for span in p.forgotten]
    forgotten = list(dict.fromkeys((*remembered, *forgotten)))
    owed = sum(p.owed for p in seen.partitions)
    numbers: dict[str, int | float | str] = {
        "missing_offsets": sum(span.size for p in seen.partitions for span in p.missing),
        "forgotten_ranges": len(forgotten),
        "pending_offsets": owed,
    }
    if missing:
        sentence = f"the table lacks {listed(missing)}, {numbers['missing_offsets']:,} offsets that were committed"
        return Verdict(Gravity.ERROR, f"{sentence}: it was dropped, replaced or rolled back. {_RESTORE}", numbers)
    if forgotten:
        sentence = f"{listed(forgotten)}: not in the table, and a stranger's commit made the group forget it"
        return Verdict(Gravity.ERROR, f"{sentence}. It is owed again: materialize its partition", numbers)
    if replaced := replaced_logs(seen.partitions):
        return Verdict(Gravity.WARNING, listed(replaced), numbers)
    return Verdict(Gravity.FINE, f"every committed offset is in the table or accounted for; {owed:,} are owed", numbers)


def dead_letters(owed: OwedLetters, cannot_tell: str) -> Verdict:
    """Whether records wait that no transform could process yet, and nobody has forgiven.

    Args:
        owed: those whose offsets the group owes.
        cannot_tell: why their table could not be asked; empty when it was.

    >>> from kafka_liveness_dagster.core.bad_records import OwedLetters
    >>> print(dead_letters(OwedLetters(7, (OffsetRange("orders", 3, 75, 76),), "ValueError: 'x'"), "").sentence)
    7 dead letters are owed: orders:3:75-76 and 6 more; the first failed with ValueError: 'x'. Mend the transform and...
    """
    if cannot_tell:
        return Verdict(Gravity.WARNING, f"cannot tell: {cannot_tell}")
    numbers = {"dead_letters": owed.number}
    if not owed.number:
        return Verdict(Gravity.FINE, "no dead letter is owed", numbers)
    more = owed.number - len(owed.first)
    named = ", ".join(map(str, owed.first)) + (f" and {more:,} more" if more else "")
    are = "dead letters are" if owed.number > 1 else "dead letter is"
    remedy = "Mend the transform and materialize their partitions, or `kafka-liveness write-off` them"
    sentence = f"{owed.number:,} {are} owed: {named}; the first failed with {owed.why}. {remedy}"
    return Verdict(Gravity.WARNING, sentence, numbers)


def waiting(partitions: Iterable[PartitionSnapshot]) -> int:
    """Offsets that the live lane has not come to; paused partitions are held by will and do not count."""
    return sum(seen.lag for seen in partitions if not seen.paused)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


HANGING_SECONDS = 900.0
"""No producer may leave one open for longer, unless the broker's ``transaction.max.timeout.ms`` was changed."""
_REMEDY = (
    "Nobody who reads committed gets them before it ends. One whose producer is gone: `kafka-transactions.sh "
    "--bootstrap-server … find-hanging`, then `abort`"
)


@dataclass(frozen=True)
class HeldBack:
    """What of a partition is not to be read yet (KIP-98, last stable offset).

    Attributes:
        offset: of the oldest open transaction's first record.
        offsets: how many wait, that one and those of others included.
        seconds: how old it is by its timestamp; None where nobody could tell in time.
    """

    topic_partition: TopicPartition
    offset: int
    offsets: int
    seconds: float | None = None

    @property
    def is_hanging(self) -> bool:
        """Whether no producer can be expected to end it any more."""
        return self.seconds is not None and self.seconds >= HANGING_SECONDS

    def __str__(self) -> str:
        since = "" if self.seconds is None else f" for {self.seconds:,.0f} s"
        who = f"{self.offsets:,} offsets of {self.topic_partition} wait"
        return f"{who} behind a transaction that has been open at {self.offset}{since}"


def judged(lag: Verdict, held: Sequence[HeldBack]) -> Verdict:
    """The verdict on the lag, which is counted to the last stable offset: with what waits behind that."""
    if not held:
        return lag
    numbers = {**lag.numbers, "behind_open_transactions": sum(one.offsets for one in held)}
    hanging = sorted((one for one in held if one.is_hanging), key=lambda one: -one.offsets)
    if not hanging:
        return Verdict(lag.gravity, lag.sentence, numbers)
    gravity = lag.gravity if lag.gravity is Gravity.ERROR else Gravity.WARNING
    return Verdict(gravity, f"{lag.sentence}. {listed(hanging)}. {_REMEDY}", numbers)


def probe(
    partitions: Sequence[PartitionSnapshot],
    members: int,
    *,
    max_lag: int | None = None,
    max_pending: int | None = None,
    held: Sequence[HeldBack] = (),
) -> list[Verdict]:
    """Each thing that can be wrong, wrong or not.

    Args:
        partitions: the group's.
        members: how many it has.
        max_lag: offsets that may wait for the live lane; None for any number.
        max_pending: offsets of crash lag that may be pending; None for any number.
        held: what waits behind open transactions.
    """
    return [
        _is_read(partitions, members),
        judged(lag_below(partitions, max_lag), held),
        _is_caught_up(partitions, max_pending),
        retention(partitions, FIRST_OFFSETS),
    ]


def _is_read(partitions: Sequence[PartitionSnapshot], members: int) -> Verdict:
    if members:
        return Verdict(Gravity.FINE, f"members: {members}")
    if not (waits := waiting(partitions)):
        return Verdict(Gravity.FINE, "no member, and nothing waits")
    remedy = "is its sensor on? Else start the live job"
    return Verdict(Gravity.ERROR, f"{waits:,} offsets wait and the group has no member: {remedy}")


def _is_caught_up(partitions: Sequence[PartitionSnapshot], max_pending: int | None) -> Verdict:
    owed = sum(seen.owed for seen in partitions)
    if max_pending is None or owed <= max_pending:
        return Verdict(Gravity.FINE, f"pending offsets: {owed:,}")
    return Verdict(
        Gravity.WARNING,
        f"{owed:,} offsets are pending, more than {max_pending:,}: materialize the partitions of the crash lag asset, "
        "or let its sensor do it (auto_catch_up)",
    )
