"""Find runs in progress for which no process works, and decide when the next live run starts.

A run that counts as a ghost has a successor started, and a second run of either lane does no harm: so time alone
may say it. That a run is over in Dagster too, only its host or its launcher may say, or an hour without any sign.

>>> gone = Run(RunFate.IN_PROGRESS, started=True, process=Word.GONE)
>>> absent = absences({}, {"0badcafe": gone}, present=(), now=100.0)
>>> uncounted({"0badcafe": gone}, absent, now=100.0, ghost_after_seconds=120.0)
['0badcafe']
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.departures import Run, RunFate
from kafka_liveness_dagster.core.events import GhostFound, LeaveReason
from kafka_liveness_dagster.core.process_status import BEAT_SECONDS, Word
from kafka_liveness_dagster.core.timeouts import DEFAULT_BUDGET_SECONDS, DEFAULT_SESSION_SECONDS

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from kafka_liveness_dagster.core.departures import PartitionSnapshot
    from kafka_liveness_dagster.core.events import MemberLeft


GIVEN_UP_SECONDS = 3_600.0
"""A run that gave signs of life, gives none for so long, and of which nobody can be asked, is over."""
_OTHERS_SECONDS = 3.0  # a code server reports a worker that died within 1 s, and knows more of it
_MISSED_BEATS = 3
_UNTOLD_SECONDS = DEFAULT_BUDGET_SECONDS + DEFAULT_SESSION_SECONDS


@dataclass(frozen=True)
class Absence:
    """A run in progress that is no member, or whose process is gone; in seconds on the clock of the looks.

    Attributes:
        since: when it was seen so first.
        heard: when its beat was another one than before.
        announced: that it is a ghost.
    """

    since: float
    heard: float
    beat: int | None = None
    announced: bool = False


def absences(
    before: Mapping[str, Absence], runs: Mapping[str, Run], present: Container[str], now: float, unseen: float = 0.0
) -> dict[str, Absence]:
    """Who is absent now, and since when.

    Args:
        before: as the last look left it.
        runs: in progress or over, by their 8 hex digits.
        present: the members of the group.
        now: seconds.
        unseen: how much of the time since the last look does not count: nobody looked, and the runs may have slept too.
    """
    found = {}
    for mark, run in runs.items():
        gone = run.process is Word.GONE
        if run.fate not in (RunFate.IN_PROGRESS, RunFate.CANCELING) or not (run.started or gone):
            continue
        if mark in present and not gone:
            continue
        was = before.get(mark)
        if was is None:
            found[mark] = Absence(now, now, run.beat)
        elif run.beat not in (None, was.beat):
            found[mark] = Absence(was.since + unseen, now, run.beat)
        else:
            found[mark] = replace(was, since=was.since + unseen, heard=was.heard + unseen)
    return found


def is_ghost(run: Run, absence: Absence, now: float, ghost_after_seconds: float) -> bool:
    """Whether nobody works for a run any more, or nobody can see that somebody does."""
    # Rule 1: its process is gone
    if run.process is Word.GONE:
        return now - absence.since >= _OTHERS_SECONDS
    # Rule 2: its step in the lane has ended, and other steps give no signs
    if run.is_over:
        return False
    # Rule 3: it gave signs of life and gives none
    if run.beat is not None and now - absence.heard >= max(ghost_after_seconds, _MISSED_BEATS * BEAT_SECONDS):
        return True
    # Rule 4: alive or not, it would have come back by now (KIP-62). A catch-up run has no group to come back to
    if run.is_catch_up and run.beat is not None:
        return False
    patience = _UNTOLD_SECONDS if run.away_seconds is None else run.away_seconds
    return now - absence.since >= max(ghost_after_seconds, patience)


def found(
    absent: Mapping[str, Absence], runs: Mapping[str, Run], now: float, ghost_after_seconds: float
) -> tuple[dict[str, Absence], list[GhostFound]]:
    """The same, and the ghosts among them that were not told yet: that is told once."""
    known, events = dict(absent), []
    for mark, absence in absent.items():
        run = runs[mark]
        if not absence.announced and is_ghost(run, absence, now, ghost_after_seconds):
            events.append(ghost(mark, run, absence, now))
            known[mark] = replace(absence, announced=True)
    return known, events


def ghost(mark: str, run: Run, absence: Absence, now: float) -> GhostFound:
    """What is told of one."""
    since = absence.heard if run.is_catch_up else absence.since
    return GhostFound(mark, now - since, gone=run.process is Word.GONE)


def uncounted(
    runs: Mapping[str, Run], absent: Mapping[str, Absence], now: float, ghost_after_seconds: float, most_alive: int = 1
) -> list[str]:
    """The runs that keep no place from a successor.

    Args:
        runs: those of one lane.
        absent: as ``absences`` has it.
        now: seconds.
        ghost_after_seconds: a run that was heard of gets so long, at least.
        most_alive: so many ghosts with a living process have a successor; if that hangs too, more would not help.
    """
    dead: list[str] = []
    alive: list[str] = []
    for mark, absence in absent.items():
        run = runs.get(mark)
        if run is None:
            continue
        if run.process is Word.GONE:
            dead.append(mark)  # at once: whoever reports it, it does not work
        elif is_ghost(run, absence, now, ghost_after_seconds):
            (alive if run.process is Word.THERE else dead).append(mark)
    return [*dead, *alive[:most_alive]]


def is_over(run: Run, absence: Absence, now: float, ghost_after_seconds: float, *, always: bool) -> bool:
    """Whether to tell Dagster that a run has ended.

    Args:
        run: as it is now.
        absence: how long it has been so.
        now: seconds.
        ghost_after_seconds: as for ``is_ghost``.
        always: every ghost is; else only one whose end is certain.
    """
    if not is_ghost(run, absence, now, ghost_after_seconds):
        return False
    silent = run.beat is not None and now - absence.heard >= GIVEN_UP_SECONDS
    return always or run.process is Word.GONE or (silent and run.process is Word.UNKNOWN)


_PATIENT_FAILURES = 3
MAX_BACKOFF_SECONDS = 300.0
_FIRST_BACKOFF_SECONDS = 10.0


def wants_live_run(
    partitions: Sequence[PartitionSnapshot], left: Sequence[MemberLeft], *, in_progress: int, max_live_runs: int
) -> bool:
    """Whether to start a live run: there is lag, or a crash to recover from, and room for one more run."""
    if in_progress >= min(max_live_runs, len(partitions)):
        return False
    return any(seen.lag for seen in partitions if not seen.paused) or any(
        gone.reason in (LeaveReason.CRASHED, LeaveReason.UNRELEASED) for gone in left
    )


def restart_delay_seconds(failures_in_a_row: int) -> float:
    """No delay after a crash; a run that fails every time is started more and more rarely, at last every 5 min."""
    if failures_in_a_row < _PATIENT_FAILURES:
        return 0.0
    doubled = min(failures_in_a_row - _PATIENT_FAILURES, 10)
    return min(MAX_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * float(2**doubled))
