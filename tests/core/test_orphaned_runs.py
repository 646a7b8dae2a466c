"""Who keeps a place, who keeps none, and who is over: nobody who works is ever one of the last two."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_liveness_dagster.core.departures import Run, RunFate
from kafka_liveness_dagster.core.events import GhostFound
from kafka_liveness_dagster.core.orphaned_runs import (
    CERTAINLY_DEAD_SECONDS,
    Absence,
    find_orphaned,
    is_certainly_dead,
    not_counted_as_live,
    update_absences,
)
from kafka_liveness_dagster.core.process_status import HEARTBEAT_SECONDS, ProcessStatus

RUN, OTHER = "0badcafe", "0000beef"
GHOST_SECONDS = 120.0
LIVE = Run(RunFate.IN_PROGRESS, started=True, heartbeat_at=0, fenced_for_seconds=310.0)
CATCH_UP = replace(LIVE, fenced_for_seconds=None, is_catch_up=True)
HOUR = 3_600


class Looks:
    """One look after the other at one run, every 5 s."""

    def __init__(self):
        self.absent, self.now, self.told = {}, 0.0, []

    def at(self, run, *, member=False, seconds=5.0):
        """Look so long; does the run keep its place at the last look, and is it over?"""
        until = self.now + seconds
        while self.now < until:
            self.now += 5.0
            seen = (
                replace(run, heartbeat_at=int(self.now // HEARTBEAT_SECONDS))
                if run.heartbeat_at == "ticking"
                else run
            )
            present = [RUN] if member else []
            self.absent, told = find_orphaned(
                update_absences(self.absent, {RUN: seen}, present, self.now),
                {RUN: seen},
                self.now,
                GHOST_SECONDS,
            )
            self.told += told
        keeps = RUN not in not_counted_as_live({RUN: seen}, self.absent, self.now, GHOST_SECONDS)
        over = RUN in self.absent and is_certainly_dead(
            seen, self.absent[RUN], self.now, GHOST_SECONDS, always_report=False
        )
        return keeps, over


WORKS, REPLACED, OVER = (True, False), (False, False), (False, True)


def ticking(run=LIVE, **facts):
    """The same run, giving a sign of life every half minute."""
    return replace(run, heartbeat_at="ticking", **facts)


def test_a_process_that_is_gone_keeps_no_place():
    """At once; that it is over is told at the next look, and at every one while it is so."""
    looks, gone = Looks(), replace(LIVE, process=ProcessStatus.GONE)
    assert looks.at(LIVE, member=True) == WORKS
    assert looks.at(gone, member=True) == REPLACED, "listed until its session is over, or not"
    assert [looks.at(gone) for _ in range(3)] == [OVER] * 3
    assert looks.told == [GhostFound(RUN, 5.0, gone=True)], "told once"


@pytest.mark.parametrize(
    ("run", "member", "seconds"),
    [
        pytest.param(LIVE, True, 24 * HOUR, id="a member, whatever its batch takes"),
        pytest.param(ticking(), False, 300, id="joins late: its broker, its table or its resources are slow"),
        pytest.param(
            replace(LIVE, heartbeat_at=None, fenced_for_seconds=None), False, 300, id="the same without tags"
        ),
        pytest.param(
            ticking(process=ProcessStatus.ALIVE), False, 300, id="away after a poll timeout, in a long batch"
        ),
        pytest.param(LIVE, False, 85, id="a broker's restart took it out; one sign of life is late"),
        pytest.param(replace(LIVE, started=False), False, 24 * HOUR, id="queued, or starting"),
        pytest.param(replace(LIVE, fate=RunFate.SUCCEEDED), False, 24 * HOUR, id="over"),
        pytest.param(ticking(CATCH_UP), False, 24 * HOUR, id="catches up for a day, wherever it is"),
        pytest.param(ticking(fate=RunFate.CANCELING), False, 60, id="about to be canceled"),
    ],
)
def test_who_works_keeps_its_place(run, member, seconds):
    """None is doubled, none is ended, none is told."""
    looks = Looks()
    assert looks.at(run, member=member, seconds=seconds) == WORKS
    assert looks.told == []


@pytest.mark.parametrize(
    ("run", "seconds"),
    [
        pytest.param(LIVE, 125, id="in another container: no sign of life"),
        pytest.param(replace(LIVE, process=ProcessStatus.ALIVE), 125, id="frozen: its process is there"),
        pytest.param(
            ticking(process=ProcessStatus.ALIVE), 315, id="hangs: it would have come back by now (KIP-62)"
        ),
        pytest.param(replace(LIVE, heartbeat_at=None), 315, id="gives none: an op of the user's own"),
        pytest.param(CATCH_UP, 125, id="a catch-up run in another container"),
        pytest.param(
            replace(CATCH_UP, heartbeat_at=None),
            315,
            id="a catch-up run that was killed before it said anything",
        ),
        pytest.param(replace(LIVE, fate=RunFate.CANCELING), 125, id="killed while it was canceled"),
    ],
)
def test_who_does_not_is_replaced_and_left_alone(run, seconds):
    """A second run is safe; but nobody knows that this one is over."""
    looks = Looks()
    assert looks.at(run, seconds=seconds - 10)[0], "not a moment too early"
    assert looks.at(run, seconds=15) == REPLACED
    assert [event.gone for event in looks.told] == [False]
    assert looks.at(run, seconds=CERTAINLY_DEAD_SECONDS - 200) == REPLACED


def test_a_run_of_which_nobody_can_be_asked_is_over_after_an_hour_of_silence():
    """It kept its place in Dagster's queue until then; one whose process is there is never ended."""
    looks = Looks()
    assert looks.at(LIVE, seconds=CERTAINLY_DEAD_SECONDS) == REPLACED
    assert looks.at(LIVE, seconds=10) == OVER
    assert (
        Looks().at(replace(LIVE, process=ProcessStatus.ALIVE), seconds=2 * CERTAINLY_DEAD_SECONDS) == REPLACED
    )
    assert Looks().at(replace(LIVE, heartbeat_at=None), seconds=2 * CERTAINLY_DEAD_SECONDS) == REPLACED, (
        "it never said anything"
    )
    assert len(looks.told) == 1


def test_a_run_that_comes_back_has_its_place_again():
    """Frozen and thawed: it gives signs of life, and joins; the next absence is a new one."""
    looks = Looks()
    assert looks.at(LIVE, seconds=200) == REPLACED
    assert looks.at(replace(LIVE, heartbeat_at=1)) == WORKS
    assert looks.at(replace(LIVE, heartbeat_at=1), member=True) == WORKS
    assert looks.at(replace(LIVE, heartbeat_at=1), seconds=100) == WORKS
    assert looks.at(replace(LIVE, heartbeat_at=1), seconds=50) == REPLACED
    assert len(looks.told) == 2


def test_a_run_that_says_no_more_is_not_silent():
    """Its op is done and others of the same run go on.

    It is no member, and is replaced when it would be missed.
    """
    looks, done = Looks(), replace(LIVE, heartbeat_at=None)
    assert looks.at(LIVE, member=True) == WORKS
    assert looks.at(done, seconds=305) == WORKS
    assert looks.at(done, seconds=2 * CERTAINLY_DEAD_SECONDS) == REPLACED


def test_a_run_whose_step_in_the_lane_has_ended_is_over_with_its_process():
    """Its other steps may take hours, and give no signs."""
    looks, run = Looks(), replace(LIVE, heartbeat_at=None, has_ended=True)
    assert looks.at(run, seconds=2 * HOUR) == WORKS
    assert looks.at(replace(run, process=ProcessStatus.GONE)) == OVER
    assert looks.at(replace(run, process=ProcessStatus.GONE)) == OVER


def test_runs_that_hang_are_not_piled_up():
    """Each that is alive and hangs has one successor; those that are dead do not count against that."""
    hangs = replace(LIVE, process=ProcessStatus.ALIVE)
    runs = {f"{n:08x}": hangs for n in range(4)} | {
        RUN: LIVE,
        OTHER: replace(LIVE, process=ProcessStatus.GONE),
    }
    absent = dict.fromkeys([*runs, "deadbeef"], Absence(0.0, 0.0, 0))
    assert not_counted_as_live(runs, absent, 400.0, GHOST_SECONDS, max_alive=2) == [
        RUN,
        OTHER,
        "00000000",
        "00000001",
    ]


def test_every_ghost_is_over_if_that_is_wanted():
    """``fail_ghost_runs``: those, too, of which nobody can say it. Who works is not."""
    silent = Absence(0.0, 0.0, 0)
    assert is_certainly_dead(LIVE, silent, 125.0, GHOST_SECONDS, always_report=True)
    assert not is_certainly_dead(LIVE, silent, 100.0, GHOST_SECONDS, always_report=True)


def test_less_than_three_signs_of_life_may_be_missed():
    """However short the user's patience is."""
    absent = update_absences({}, {RUN: LIVE}, (), 0.0)
    assert [RUN not in not_counted_as_live({RUN: LIVE}, absent, now, 1.0) for now in (80.0, 90.0)] == [
        True,
        False,
    ]
