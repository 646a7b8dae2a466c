"""Judge a group for a person: whether it is well, which runs left it, and the next steps.

Takes the conditions of ``core.health`` and the departures of ``core.departures``. Reads neither Kafka nor
Dagster.

>>> from kafka_liveness_dagster.core.events import LeaveReason, MemberLeft
>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> gone = MemberLeft("fdeff1df", LeaveReason.CRASHED, (TopicPartition("orders", 3),))
>>> runs = GroupRuns((Departure(gone, seconds_ago=40.0),), is_dagster_read=True)
>>> print(*next_steps("orders-etl", [], 0, runs), sep="; ")
the group's sensor starts the next live run; if it does not, turn the sensor on
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.health import Severity, health_probe, total_lag
from kafka_liveness_dagster.core.names import StoredByName, format_count, format_duration
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.partition_snapshot import Expiry, expiry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kafka_liveness_dagster.core.events import MemberLeft
    from kafka_liveness_dagster.core.health import OpenTransaction
    from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot

_SENSOR_STARTS = "the group's sensor starts the next live run; if it does not, turn the sensor on"


@dataclass(frozen=True)
class Departure:
    """A run that owns partitions in the commits and does not work on them any more.

    Attributes:
        seconds_ago: seconds since the run ended; None if Dagster has no end of it.
    """

    event: MemberLeft
    seconds_ago: float | None = None


@dataclass(frozen=True)
class LiveRun:
    """A live run in progress.

    Attributes:
        run: its 8 hex digits.
        run_id: its id in Dagster.
        pid: process of the run, if it works on this host; its end ends the run.
    """

    run: str
    run_id: str
    pid: int | None = None


class PendingCause(StoredByName):
    """Why offsets are pending; the value is the text for people."""

    SKIPPED = "skipped by the live lane"
    BAD_RECORD = "dead letter"
    SLOW_RECORD = "too slow alone"


@dataclass(frozen=True)
class PendingReason:
    """Why a partition of the crash lag asset is not materialized, by Dagster's events.

    Attributes:
        range: its offsets.
        cause: why they are pending; None if no event has it.
        detail: the run that crashed, or the error of the record; empty if it is unknown.
        failures: number of catch-up runs of the partition that failed.
        error: first line of the error of the latest of them; empty if it is unknown.
    """

    range: OffsetRange
    cause: PendingCause | None = None
    detail: str = ""
    failures: int = 0
    error: str = ""

    @property
    def is_dead_letter(self) -> bool:
        """Whether the transform could not process its record."""
        return self.cause is PendingCause.BAD_RECORD

    @property
    def text(self) -> str:
        """The reason for people.

        >>> slow = OffsetRange("orders", 3, 75, 76)
        >>> PendingReason(slow, PendingCause.BAD_RECORD, "ValueError: 'x'", failures=2).text
        "dead letter: ValueError: 'x'; failed 2 times"
        >>> PendingReason(slow, PendingCause.SKIPPED, "run 0badcafe crashed", 1, "Stopped: no table").text
        'failed 1 time: Stopped: no table'
        """
        failed = f"failed {format_count(self.failures, 'time')}" if self.failures else ""
        if self.cause is None or (failed and self.cause is PendingCause.SKIPPED):
            return f"{failed}: {self.error}" if failed and self.error else failed
        if self.cause is PendingCause.SKIPPED and self.detail:
            return self.detail
        why = f"{self.cause.value}: {self.detail}" if self.detail else self.cause.value
        return f"{why}; {failed}" if failed else why


@dataclass(frozen=True)
class GroupRuns:
    """The runs of a group.

    Attributes:
        live: live runs in progress.
        departures: runs that left the group, except in good order.
        starting: live runs in progress that are no members yet.
        catching_up: catch-up runs in progress.
        crash_lag_asset: name of the crash lag asset; empty if it is unknown.
        partitions_to_backfill: number of its partitions with pending offsets; None if it is unknown.
        pending_reasons: why each of these partitions is not materialized.
        backfill_command: command that materializes them; empty if none is known.
        is_dagster_read: whether Dagster was read; else Kafka alone shows departures, without their reason.
        unread_reason: reason why Dagster could not be read; empty if it was read, or not asked for.
    """

    departures: tuple[Departure, ...] = ()
    _: KW_ONLY
    live: tuple[LiveRun, ...] = ()
    starting: tuple[str, ...] = ()
    catching_up: tuple[str, ...] = ()
    crash_lag_asset: str = ""
    partitions_to_backfill: int | None = None
    pending_reasons: tuple[PendingReason, ...] = ()
    backfill_command: str = ""
    is_dagster_read: bool = False
    unread_reason: str = ""

    def reasons_of(self, pending: OffsetRange) -> list[PendingReason]:
        """Return why the partitions of a pending range are not materialized."""
        return [one for one in self.pending_reasons if one.range.overlaps(pending)]

    def state_of(self, run: str) -> str | None:
        """Return the state of a run that left, as a word or two; None if it has not left."""
        for gone in self.departures:
            if gone.event.run == run:
                return gone.event.reason.name.lower().replace("_", " ") if self.is_dagster_read else "gone"
        return None


def problems(
    partitions: Sequence[PartitionSnapshot],
    members: int,
    runs: GroupRuns,
    open_transactions: Sequence[OpenTransaction] = (),
) -> list[str]:
    """Return a sentence for each condition that is not well; none for a group that is well.

    Args:
        partitions: the group's partitions.
        members: number of the group's members.
        runs: the group's runs.
        open_transactions: offsets that open transactions block.
    """
    missing = [OffsetRange(*p.topic_partition, *span) for p in partitions for span in p.missing_rows]
    lost = [f"the table lacks {sum(r.size for r in missing):,} committed offsets"] if missing else []
    verdicts = health_probe(
        partitions,
        members,
        allow_no_member=bool(runs.catching_up) and not total_lag(partitions),
        open_transactions=open_transactions,
    )
    return [
        *(_departure_text(gone, is_dagster_read=runs.is_dagster_read) for gone in runs.departures),
        *lost,
        *(
            verdict.message.partition(". Fix: ")[0]  # the next steps fit the runs in progress
            for verdict in verdicts
            if verdict.severity is not Severity.FINE
        ),
    ]


def next_steps(
    group_id: str, partitions: Sequence[PartitionSnapshot], members: int, runs: GroupRuns
) -> list[str]:
    """Return the next steps, of the sensor and of a person; none if nothing is left to do.

    Args:
        group_id: the live lane's group.
        partitions: the group's partitions.
        members: number of the group's members.
        runs: the group's runs.
    """
    return [*_live_steps(partitions, members, runs), *_pending_steps(group_id, partitions, runs)]


def _live_steps(partitions: Sequence[PartitionSnapshot], members: int, runs: GroupRuns) -> Iterator[str]:
    # Rule 1: only Dagster has the reason of a departure
    if runs.departures and not runs.is_dagster_read:
        yield "set DAGSTER_HOME to the instance of the run to see why the run left"
    # Rule 2: a live run is on its way
    if runs.starting:
        are = "is" if len(runs.starting) == 1 else "are"
        yield f"live run {', '.join(runs.starting)} {are} starting"
        return
    # Rule 3: a run left its partitions behind, or records wait and no member reads them
    if runs.departures or (total_lag(partitions) and not members):
        yield _SENSOR_STARTS


def _pending_steps(group_id: str, partitions: Sequence[PartitionSnapshot], runs: GroupRuns) -> Iterator[str]:
    waiting: list[OffsetRange] = []
    expired: list[OffsetRange] = []
    for p in partitions:
        for span in p.outstanding:
            is_expired = expiry(span, p.log_start, p.log_end) is Expiry.EXPIRED and span in p.unprocessed
            (expired if is_expired else waiting).append(OffsetRange(*p.topic_partition, *span))
    # Rule 4: a backfill is at work
    if waiting and runs.catching_up:
        yield f"run {', '.join(runs.catching_up)} processes pending ranges"
    # Rule 5: pending ranges have partitions to backfill, or get them from the sensor
    elif waiting:
        asset = runs.crash_lag_asset or "the group's crash lag asset"
        count = len(waiting) if runs.partitions_to_backfill is None else runs.partitions_to_backfill
        if count:
            yield from _repair_steps(group_id, runs.pending_reasons)
            command = f": {runs.backfill_command}" if runs.backfill_command else ""
            yield f"launch a backfill of {format_count(count, 'partition')} of {asset}{command}"
        else:
            yield f"the group's sensor adds {format_count(len(waiting), 'partition')} to {asset} to backfill"
    # Rule 6: no backfill can read deleted records
    if expired:
        yield f"write off what has expired: kafka-liveness write-off {group_id} {expired[0]} --reason …"


def _repair_steps(group_id: str, reasons: Sequence[PendingReason]) -> Iterator[str]:
    """Yield what a person has to do before a backfill can succeed."""
    if letters := [one for one in reasons if one.is_dead_letter]:
        count = format_count(sum(one.range.size for one in letters), "dead letter")
        yield (
            f"correct the transform for {count}, or write off: kafka-liveness write-off {group_id} "
            f"{letters[0].range} --reason …"
        )
    failed = sum(bool(one.failures) for one in reasons if not one.is_dead_letter)
    if failed:
        yield (
            f"remove the cause of the error of {format_count(failed, 'partition')} that failed (column why)"
        )


def _departure_text(gone: Departure, *, is_dagster_read: bool) -> str:
    event = gone.event
    had = f"; it had {', '.join(map(str, event.partitions))}" if event.partitions else ""
    if not is_dagster_read:
        return f"run {event.run} left the group and did not release its partitions{had}"
    ago = "" if gone.seconds_ago is None else f" {format_duration(round(gone.seconds_ago))} ago"
    return f"run {event.run} {event.reason.value}{ago}{had}"
