"""Runs without a process, on the real broker: they are replaced, reported as ended, and free what they held.

And runs that only look like it: none of them is doubled, none is ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import dagster as dg
import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core import orphaned_runs as core_ghosts
from kafka_liveness_dagster.core.fencing import RunState
from kafka_liveness_dagster.core.process_status import HeartbeatTag, Process, ProcessNamespace
from kafka_liveness_dagster.core.run_ids import short_run_id
from kafka_liveness_dagster.kafka.run_context import RunContext
from kafka_liveness_dagster.resources import kafka as resources
from kafka_liveness_dagster.runs import proc
from kafka_liveness_dagster.runs.tags import AWAY_TAG, PROCESS_TAG, lane_tags
from kafka_liveness_dagster.sensor import observation
from kafka_liveness_dagster.sensor import sensor as sensors
from tests.integration.kafka_group import join
from tests.integration.test_sensor_requests import FAILURE, STARTED, Desk

ELSEWHERE = Process(ProcessNamespace("0c0ffee0", "4026532601.0"), 1, 22)
LIVE, CATCH_UP = "orders_job", "orders_crash_lag_job"


@pytest.fixture
def instance():
    with dg.instance_for_test() as found:
        yield found


@pytest.fixture
def clock(monkeypatch):
    """The sensor's, which stands still: ``clock(seconds)`` puts it on."""
    now = [time.time()]

    def put_on(seconds):
        now[0] += seconds

    for module in (sensors, observation):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: now[0], monotonic=time.monotonic))
    return put_on


@pytest.fixture
def worker():
    """A process that works for a run until it is killed, with all that could tell Dagster of it."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


class OrphanedRuns(Desk):
    """Runs with a process of their own, and what the sensor wants for them."""

    def works(self, lane, process, **tags):
        """A run at work that has said which process it is."""
        run = self.run(lane, **tags)
        self.beats(run, process)
        return run

    def beats(self, run, process, beat=0):
        """A sign of life."""
        self.instance.add_run_tags(
            run, {PROCESS_TAG: HeartbeatTag(short_run_id(run), beat, process).encode()}
        )

    def looks(self, clock, seconds, every=30.0, alive=()):
        """What all looks of so long a time asked for, while runs give signs of life.

        Pairs of run and process.
        """
        asked = []
        for look in range(round(seconds / every)):
            clock(every)
            for run, process in alive:
                self.beats(run, process, look)
            asked += self.wanted()
        return asked

    def why(self, run):
        """What the run's page says of its end."""
        ends = self.instance.all_logs(run, of_type=dg.DagsterEventType.RUN_FAILURE)
        return ends[-1].dagster_event.message if ends else ""


def killed(process):
    process.kill()
    process.wait()


def test_a_live_run_that_was_killed_with_its_dagster(crashed, instance, worker, clock):
    """The next one is asked for at once; at the second look the dead one is failed, and says why."""
    desk = OrphanedRuns(crashed, instance)
    process = proc.process(worker.pid)
    run = desk.works("live", process)
    assert desk.looks(clock, 270, alive=[(run, process)]) == [], "a slow start"
    killed(worker)
    first = desk.tick()
    assert [request.job_name for request in first.run_requests] == [LIVE]
    desk.run("live")
    clock(5)
    assert desk.wanted() == [], "one successor"
    assert desk.status(run) is FAILURE
    why = f"run {run[:8]} is in progress, but its process is gone: "
    assert desk.why(run) == f"{why}reported by sensor orders_sensor of group {crashed.group}"


def test_a_run_whose_other_steps_go_on_is_no_live_run_and_no_ghost(crashed, instance, worker, clock):
    """Its live step has left the group, and the steps that depend on it take an hour.

    Until its process is gone.
    """
    desk = OrphanedRuns(crashed, instance, sensor=kl.Sensor(fail_ghost_runs=True))
    process = proc.process(worker.pid)
    run = desk.works("live", process)
    instance.add_run_tags(
        run, {PROCESS_TAG: HeartbeatTag(short_run_id(run), None, process, has_ended=True).encode()}
    )
    assert desk.wanted() == [(LIVE, None)], "there is lag, and no live run"
    successor = desk.works("live", process, **{AWAY_TAG: "7200"})
    assert desk.looks(clock, 3_600, every=300, alive=[(successor, process)]) == []
    assert desk.status(run) is STARTED
    killed(worker)
    desk.looks(clock, 10, every=5)
    assert desk.status(run) is FAILURE


def test_it_is_failed_at_whichever_look_dagster_takes_it(crashed, instance, worker, clock, capfd):
    """Its storage was away: the successor is asked for all the same, and the end is told later, once."""
    desk = OrphanedRuns(crashed, instance)
    run = desk.works("live", proc.process(worker.pid))
    killed(worker)
    with pytest.MonkeyPatch.context() as away:
        away.setattr(type(instance), "report_run_failed", lambda *_: 1 / 0)
        assert desk.looks(clock, 60) == [(LIVE, None)] * 2
    assert desk.status(run) is STARTED
    assert "Could not report to Dagster that run" in capfd.readouterr().err
    desk.run("live")
    assert desk.looks(clock, 60) == []
    assert desk.status(run) is FAILURE
    assert len(instance.all_logs(run, of_type=dg.DagsterEventType.RUN_FAILURE)) == 1


def test_a_run_that_was_killed_while_it_was_canceled_is_canceled(crashed, instance, worker, clock):
    """What its user wanted has come to pass."""
    desk = OrphanedRuns(crashed, instance)
    run = desk.works("live", proc.process(worker.pid))
    instance.report_run_canceling(instance.get_run_by_id(run))
    assert desk.wanted() == []
    killed(worker)
    assert desk.looks(clock, 10, every=5) == [(LIVE, None)] * 2
    assert desk.status(run) is dg.DagsterRunStatus.CANCELED


def test_a_run_whose_worker_never_came_up(crashed, instance, clock):
    """Its daemon died between two words to Dagster.

    It is starting for ever, and keeps its place as long as one may.
    """
    desk = OrphanedRuns(crashed, instance)
    job = desk.defs.resolve_job_def(LIVE)
    run = instance.create_run_for_job(job, tags=lane_tags(crashed.group, "live"))
    instance.report_dagster_event(
        dg.DagsterEvent(event_type_value="PIPELINE_STARTING", job_name=run.job_name), run.run_id
    )
    assert desk.looks(clock, 150) == [], "it is about to start"
    assert desk.looks(clock, 40, every=40) == [(LIVE, None)]
    desk.run("live")
    assert desk.looks(clock, 30) == []
    assert desk.status(run.run_id) is FAILURE


def test_an_older_ghost_than_all_the_runs_that_are_looked_at(world, instance, worker, clock):
    """Twenty runs have ended since: it took a place from all of them."""
    desk = OrphanedRuns(world, instance, sensor=kl.Sensor(max_live_runs=2))
    run = desk.works("live", proc.process(worker.pid))
    job, tags = desk.defs.resolve_job_def(LIVE), lane_tags(world.group, "live")
    for _ in range(21):
        instance.create_run_for_job(job, tags=tags, status=dg.DagsterRunStatus.CANCELED)
    killed(worker)
    assert desk.looks(clock, 10, every=5) == [], "nothing is to be read"
    assert desk.status(run) is FAILURE


def test_a_run_elsewhere_goes_by_its_signs_of_life(crashed, instance, clock, monkeypatch):
    """In another container, on another host.

    Silence has a successor started, and a lot of it ends the run.
    """
    monkeypatch.setattr(core_ghosts, "CERTAINLY_DEAD_SECONDS", 600.0)
    desk = OrphanedRuns(crashed, instance)
    run = desk.works("live", ELSEWHERE, **{AWAY_TAG: "310"})
    assert desk.looks(clock, 120) == [], "a broker's restart, a slow start"
    assert desk.looks(clock, 30) == [(LIVE, None)]
    desk.beats(run, ELSEWHERE, 1)
    assert desk.looks(clock, 30) == [], "it lives"
    assert desk.looks(clock, 120) == [(LIVE, None)]
    successor = desk.works("live", ELSEWHERE, **{AWAY_TAG: "7200"})
    assert desk.looks(clock, 600, every=60, alive=[(successor, ELSEWHERE)]) == []
    assert (desk.status(run), desk.status(successor)) == (FAILURE, STARTED)
    assert "has shown no activity for" in desk.why(run)


@pytest.mark.parametrize("fails", [True, False])
def test_a_run_that_says_nothing_is_told_and_failed_if_wanted(crashed, instance, clock, fails):
    """Killed before its first word; one that has not started is left alone."""
    desk = OrphanedRuns(crashed, instance, sensor=kl.Sensor(max_live_runs=3, fail_ghost_runs=fails))
    run, starting = desk.run("live"), desk.run("live", status=None)
    instance.report_run_canceling(instance.get_run_by_id(starting))
    desk.run("live")
    desk.run("live")
    assert desk.looks(clock, 330) == []
    clock(30)
    told = desk.tick().asset_events[0].description
    assert f"run {run[:8]} is in progress, but has shown no activity for 3" in told
    assert desk.status(run) is (FAILURE if fails else STARTED)
    clock(5)
    assert "shown no activity" not in " ".join(str(event) for event in desk.tick().asset_events), "told once"


def test_a_member_is_no_ghost_whatever_else_is_heard_of_it(crashed, instance, clock, monkeypatch):
    """In a long batch, elsewhere, with Dagster's storage out of its reach: the group has it."""
    desk = OrphanedRuns(crashed, instance)
    run = desk.works("live", ELSEWHERE)
    link = RunContext(run, f"dagster/orders_job/{run}/orders", lambda: RunState.IN_PROGRESS)
    monkeypatch.setattr(resources, "run_context_of", lambda *_, **__: link)
    with crashed.live() as consumer:
        join(crashed, consumer)
        crashed.grow_to(150)
        assert desk.looks(clock, 900, every=60) == []
        assert desk.status(run) is STARTED
    assert desk.looks(clock, 90) == []
    assert desk.looks(clock, 60) == [(LIVE, None)], "it left, and its run has been silent since"


def test_a_catch_up_run_that_was_killed_gives_its_place_and_its_slot_back(crashed, instance, worker, clock):
    """The only slot of the pool, and the only run at a time.

    The partition's next run starts, and finds a slot.
    """
    desk = OrphanedRuns(crashed, instance, crash_lag=kl.CrashLag(auto_catch_up=True))
    with crashed.live() as consumer:
        join(crashed, consumer)
        desk.tick()
        [(job, key)] = desk.wanted()
        assert job == CATCH_UP
        pool = desk.asset.crash_lag.op.pool
        slots = instance.event_log_storage
        slots.set_concurrency_slots(pool, 1)
        process = proc.process(worker.pid)
        run = desk.works("catch-up", process, **{"dagster/partition": key})
        assert slots.claim_concurrency_slot(pool, run, "orders_crash_lag").is_claimed
        waiting = desk.run("catch-up", FAILURE)
        assert not slots.claim_concurrency_slot(pool, waiting, "orders_crash_lag").is_claimed
        slots.free_concurrency_slots_for_run(waiting)
        assert desk.looks(clock, 7_200, every=600, alive=[(run, process)]) == [], (
            "it has been catching up for hours"
        )
        killed(worker)
        assert desk.looks(clock, 5, every=5) == [(CATCH_UP, key)]
        successor = desk.works("catch-up", proc.process(os.getpid()), **{"dagster/partition": key})
        assert desk.looks(clock, 5, every=5) == []
        assert desk.status(run) is FAILURE
        assert slots.claim_concurrency_slot(pool, successor, "orders_crash_lag").is_claimed


def test_a_slot_that_a_finished_run_left_taken_is_given_back(crashed, instance, clock):
    """Its worker was killed and its code server failed it.

    A run that has just ended gives its slot back itself.
    """
    desk = OrphanedRuns(crashed, instance)
    with crashed.live() as consumer:
        join(crashed, consumer)
        desk.tick()
        pool, slots = desk.asset.crash_lag.op.pool, instance.event_log_storage
        slots.set_concurrency_slots(pool, 2)
        dead, alive = desk.run("catch-up", FAILURE), desk.works("catch-up", proc.process(os.getpid()))
        for run in (dead, alive):
            assert slots.claim_concurrency_slot(pool, run, "orders_crash_lag").is_claimed
        desk.tick()
        assert {slot.run_id for slot in slots.get_concurrency_info(pool).claimed_slots} == {dead, alive}
        desk.looks(clock, 120)
        assert [slot.run_id for slot in slots.get_concurrency_info(pool).claimed_slots] == [alive]
