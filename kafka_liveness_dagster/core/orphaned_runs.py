"""Find runs in progress for which no process works, and decide when the next live run starts.

A ghost's successor is started after a timeout alone, because a second run of either lane does no harm. A run
is ended in Dagster only if its host or its launcher reports it gone, or after an hour without a heartbeat.
Reads no clock, host or Dagster itself.

>>> gone = Run(RunFate.IN_PROGRESS, started=True, process=ProcessStatus.GONE)
>>> absent = update_absences({}, {"0badcafe": gone}, present=(), now=100.0)
>>> not_counted_as_live({"0badcafe": gone}, absent, now=100.0, ghost_after_seconds=120.0)
['0badcafe']
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.departures import Run, RunFate
from kafka_liveness_dagster.core.events import GhostFound
from kafka_liveness_dagster.core.process_status import HEARTBEAT_SECONDS, ProcessStatus
from kafka_liveness_dagster.core.timeouts import DEFAULT_BUDGET_SECONDS, DEFAULT_SESSION_SECONDS

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from kafka_liveness_dagster.core.events import MemberLeft
    from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot


CERTAINLY_DEAD_SECONDS = 3_600.0
"""Time without a heartbeat after which a run is over, if neither its host nor its launcher can be queried."""
_OTHER_INSTANCE_SECONDS = 3.0  # a code server reports its dead worker within 1 s, with more details
_MISSED_HEARTBEATS = 3
_UNREPORTED_SECONDS = DEFAULT_BUDGET_SECONDS + DEFAULT_SESSION_SECONDS


@dataclass(frozen=True)
class Absence:
    """A run in progress that is no member, or whose process is gone; in seconds on the sensor's clock.

    Attributes:
        since: time of the first observation.
        last_heartbeat_at: time of the last observed change of its heartbeat.
        is_reported: whether the ghost was reported.
    """

    since: float
    last_heartbeat_at: float
    heartbeat: int | None = None
    is_reported: bool = False


def update_absences(
    before: Mapping[str, Absence],
    runs: Mapping[str, Run],
    present: Container[str],
    now: float,
    unlisted: float = 0.0,
) -> dict[str, Absence]:
    """Return the absent runs, and since when they are absent.

    Args:
        before: the absences at the last tick.
        runs: runs in progress or over, by their 8 hex digits.
        present: the members of the group.
        now: current time in seconds.
        unlisted: part of the time since the last tick that does not count. No sensor tick ran, and the runs
            may have slept too.
    """
    found = {}
    for mark, run in runs.items():
        gone = run.process is ProcessStatus.GONE
        if run.fate not in (RunFate.IN_PROGRESS, RunFate.CANCELING) or not (run.started or gone):
            continue
        if mark in present and not gone:
            continue
        was = before.get(mark)
        if was is None:
            found[mark] = Absence(now, now, run.heartbeat_at)
        elif run.heartbeat_at not in (None, was.heartbeat):
            found[mark] = Absence(was.since + unlisted, now, run.heartbeat_at)
        else:
            found[mark] = replace(
                was, since=was.since + unlisted, last_heartbeat_at=was.last_heartbeat_at + unlisted
            )
    return found


def is_orphaned(run: Run, absence: Absence, now: float, ghost_after_seconds: float) -> bool:
    """Return whether no process works for a run any more, or no heartbeat or membership shows one."""
    # Rule 1: its process is gone
    if run.process is ProcessStatus.GONE:
        return now - absence.since >= _OTHER_INSTANCE_SECONDS
    # Rule 2: its step in the lane has ended, and other steps send no heartbeat
    if run.has_ended:
        return False
    # Rule 3: it sent heartbeats and has stopped
    if run.heartbeat_at is not None and now - absence.last_heartbeat_at >= max(
        ghost_after_seconds, _MISSED_HEARTBEATS * HEARTBEAT_SECONDS
    ):
        return True
    # Rule 4: a live process would have rejoined by now (KIP-62). A catch-up run has no group to rejoin
    if run.is_catch_up and run.heartbeat_at is not None:
        return False
    patience = _UNREPORTED_SECONDS if run.fenced_for_seconds is None else run.fenced_for_seconds
    return now - absence.since >= max(ghost_after_seconds, patience)


def find_orphaned(
    absent: Mapping[str, Absence], runs: Mapping[str, Run], now: float, ghost_after_seconds: float
) -> tuple[dict[str, Absence], list[GhostFound]]:
    """Return the absences with new ghosts marked as reported, and an event for each new ghost."""
    known = dict(absent)
    events = []
    for mark, absence in absent.items():
        run = runs[mark]
        if not absence.is_reported and is_orphaned(
            run, absence, now, ghost_after_seconds=ghost_after_seconds
        ):
            events.append(ghost_event(mark, run, absence, now=now))
            known[mark] = replace(absence, is_reported=True)
    return known, events


def ghost_event(short_run_id: str, run: Run, absence: Absence, now: float) -> GhostFound:
    """Return the event for one ghost run."""
    since = absence.last_heartbeat_at if run.is_catch_up else absence.since
    return GhostFound(short_run_id, now - since, gone=run.process is ProcessStatus.GONE)


def not_counted_as_live(
    runs: Mapping[str, Run],
    absent: Mapping[str, Absence],
    now: float,
    ghost_after_seconds: float,
    max_alive: int = 1,
) -> list[str]:
    """Return the runs that do not count towards the limit of runs, so that a successor may start.

    Args:
        runs: the runs of one lane.
        absent: the result of ``update_absences``.
        now: current time in seconds.
        ghost_after_seconds: minimum time without a heartbeat for a ghost.
        max_alive: number of ghosts with a living process that get a successor. If the successor hangs too,
            more would not help.
    """
    dead: list[str] = []
    alive: list[str] = []
    for mark, absence in absent.items():
        run = runs.get(mark)
        if run is None:
            continue
        if run.process is ProcessStatus.GONE:
            dead.append(mark)  # at once: without a process it cannot work, whichever component reports it
        elif is_orphaned(run, absence, now, ghost_after_seconds=ghost_after_seconds):
            (alive if run.process is ProcessStatus.ALIVE else dead).append(mark)
    return [*dead, *alive[:max_alive]]


def is_certainly_dead(
    run: Run, absence: Absence, now: float, ghost_after_seconds: float, *, always_report: bool
) -> bool:
    """Return whether to report to Dagster that a run has ended.

    Args:
        run: the run now.
        absence: its absence.
        now: current time in seconds.
        ghost_after_seconds: as for ``is_orphaned``.
        always_report: report every ghost; otherwise only a run whose end is certain.
    """
    if not is_orphaned(run, absence, now, ghost_after_seconds=ghost_after_seconds):
        return False
    silent = run.heartbeat_at is not None and now - absence.last_heartbeat_at >= CERTAINLY_DEAD_SECONDS
    return (
        always_report
        or run.process is ProcessStatus.GONE
        or (silent and run.process is ProcessStatus.UNKNOWN)
    )


_FAILURES_BEFORE_BACKOFF = 3
MAX_BACKOFF_SECONDS = 300.0
_FIRST_BACKOFF_SECONDS = 10.0


def should_start_live_run(
    partitions: Sequence[PartitionSnapshot],
    departures: Sequence[MemberLeft],
    *,
    in_progress: int,
    max_live_runs: int,
) -> bool:
    """Return whether to start a live run: for lag or after a crash, below the limit of live runs."""
    if in_progress >= min(max_live_runs, len(partitions)):
        return False
    return any(seen.lag for seen in partitions if not seen.paused) or any(
        gone.reason.needs_successor for gone in departures
    )


def restart_delay_seconds(failures_in_a_row: int) -> float:
    """Return the delay before the next live run; none after the first failures.

    The delay of a run that fails every time doubles up to 5 min.
    """
    if failures_in_a_row < _FAILURES_BEFORE_BACKOFF:
        return 0.0
    doubled = min(failures_in_a_row - _FAILURES_BEFORE_BACKOFF, 10)
    return min(MAX_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * float(2**doubled))
