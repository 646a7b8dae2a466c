"""Find runs in progress for which no process works, and decide when the next live run starts.

A run that counts as a ghost has a successor started, and a second run of either lane does no harm: so time
alone may say it. That a run is over in Dagster too, only its host or its launcher may say, or an hour without
any sign.

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
"""A run that gave signs of life, gives none for so long, and of which nobody can be asked, is over."""
_OTHER_INSTANCE_SECONDS = 3.0  # a code server reports a worker that died within 1 s, and knows more of it
_MISSED_HEARTBEATS = 3
_UNREPORTED_SECONDS = DEFAULT_BUDGET_SECONDS + DEFAULT_SESSION_SECONDS


@dataclass(frozen=True)
class Absence:
    """A run in progress that is no member, or whose process is gone; in seconds on the clock of the looks.

    Attributes:
        since: when it was seen so first.
        last_heartbeat_at: when its beat was another one than before.
        is_reported: that it is a ghost.
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
    """Who is absent now, and since when.

    Args:
        before: as the last look left it.
        runs: in progress or over, by their 8 hex digits.
        present: the members of the group.
        now: seconds.
        unlisted: how much of the time since the last look does not count: nobody looked, and the runs may
            have slept too.
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
    """Whether nobody works for a run any more, or nobody can see that somebody does."""
    # Rule 1: its process is gone
    if run.process is ProcessStatus.GONE:
        return now - absence.since >= _OTHER_INSTANCE_SECONDS
    # Rule 2: its step in the lane has ended, and other steps give no signs
    if run.has_ended:
        return False
    # Rule 3: it gave signs of life and gives none
    if run.heartbeat_at is not None and now - absence.last_heartbeat_at >= max(
        ghost_after_seconds, _MISSED_HEARTBEATS * HEARTBEAT_SECONDS
    ):
        return True
    # Rule 4: alive or not, it would have come back by now (KIP-62). A catch-up run has no group to come back
    # to
    if run.is_catch_up and run.heartbeat_at is not None:
        return False
    patience = _UNREPORTED_SECONDS if run.fenced_for_seconds is None else run.fenced_for_seconds
    return now - absence.since >= max(ghost_after_seconds, patience)


def find_orphaned(
    absent: Mapping[str, Absence], runs: Mapping[str, Run], now: float, ghost_after_seconds: float
) -> tuple[dict[str, Absence], list[GhostFound]]:
    """The same, and the ghosts among them that were not told yet: that is told once."""
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
    """What is told of one."""
    since = absence.last_heartbeat_at if run.is_catch_up else absence.since
    return GhostFound(short_run_id, now - since, gone=run.process is ProcessStatus.GONE)


def not_counted_as_live(
    runs: Mapping[str, Run],
    absent: Mapping[str, Absence],
    now: float,
    ghost_after_seconds: float,
    max_alive: int = 1,
) -> list[str]:
    """The runs that keep no place from a successor.

    Args:
        runs: those of one lane.
        absent: as ``update_absences`` has it.
        now: seconds.
        ghost_after_seconds: a run that was heard of gets so long, at least.
        max_alive: so many ghosts with a living process have a successor; if that hangs too, more would not
            help.
    """
    dead: list[str] = []
    alive: list[str] = []
    for mark, absence in absent.items():
        run = runs.get(mark)
        if run is None:
            continue
        if run.process is ProcessStatus.GONE:
            dead.append(mark)  # at once: whoever reports it, it does not work
        elif is_orphaned(run, absence, now, ghost_after_seconds=ghost_after_seconds):
            (alive if run.process is ProcessStatus.ALIVE else dead).append(mark)
    return [*dead, *alive[:max_alive]]


def is_certainly_dead(
    run: Run, absence: Absence, now: float, ghost_after_seconds: float, *, always_report: bool
) -> bool:
    """Whether to tell Dagster that a run has ended.

    Args:
        run: as it is now.
        absence: how long it has been so.
        now: seconds.
        ghost_after_seconds: as for ``is_orphaned``.
        always_report: every ghost is; else only one whose end is certain.
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
    """Whether to start a live run: there is lag, or a crash to recover from, and room for one more run."""
    if in_progress >= min(max_live_runs, len(partitions)):
        return False
    return any(seen.lag for seen in partitions if not seen.paused) or any(
        gone.reason.needs_successor for gone in departures
    )


def restart_delay_seconds(failures_in_a_row: int) -> float:
    """No delay after a crash.

    A run that fails every time is started more and more rarely, at last every 5 min.
    """
    if failures_in_a_row < _FAILURES_BEFORE_BACKOFF:
        return 0.0
    doubled = min(failures_in_a_row - _FAILURES_BEFORE_BACKOFF, 10)
    return min(MAX_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * float(2**doubled))
