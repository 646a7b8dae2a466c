"""A tick that watches the process of a live run: real processes, real Dagster runs."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from itertools import count, repeat
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._daemon.sensor import MIN_INTERVAL_LOOP_TIME

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.process_status import HeartbeatTag, Process, ProcessNamespace
from kafka_liveness_dagster.core.run_ids import short_run_id
from kafka_liveness_dagster.runs import proc
from kafka_liveness_dagster.runs.tags import PROCESS_TAG, lane_tags
from kafka_liveness_dagster.sensor import dead_runs
from kafka_liveness_dagster.sensor.dead_runs import ExitWatch, wait_for_process_exit
from tests.timeouts import seconds
from tests.waiting import wait_for

GROUP = "orders-etl"
LONG = seconds(120.0)  # seconds; whoever waits so long has waited in vain
AT_ONCE = 0.0
THREADS = {"use_threads": True, "num_workers": 8}


@pytest.fixture
def instance(request):
    """Of a daemon with threads; a test may say otherwise."""
    with dg.instance_for_test(overrides={"sensors": getattr(request, "param", THREADS)}) as found:
        yield found


@pytest.fixture
def watched(instance):
    """Makes a process a live run's."""

    def run_of(process, group_id=GROUP):
        run = dg.DagsterRun(
            "orders_job", tags=dict(lane_tags(group_id, "live")), status=dg.DagsterRunStatus.STARTED
        )
        instance.add_run(run)
        instance.add_run_tags(
            run.run_id, {PROCESS_TAG: HeartbeatTag(short_run_id(run.run_id), 0, process).encode()}
        )

    return run_of


def pidfds():
    """How many processes this one watches."""

    def name(fd):
        try:
            return fd.readlink().name
        except FileNotFoundError:  # closed since it was listed, by another thread or as the list's own
            return ""

    return sum(name(fd).endswith("[pidfd]") for fd in Path("/proc/self/fd").iterdir())


class Vigil(threading.Thread):
    """One that goes on in a thread."""

    def __init__(self, instance):
        super().__init__()
        self.instance, self.has_ended = instance, None

    def run(self):
        self.has_ended = wait_for_process_exit(self.instance, [GROUP], LONG)

    def begin(self):
        before = pidfds()
        self.start()
        wait_for(lambda: pidfds() > before or not self.is_alive(), what="it watches a process")
        assert self.is_alive(), self.has_ended

    def end(self):
        self.join(LONG / 2)
        assert not self.is_alive()
        return self.has_ended


def test_a_tick_notices_the_death_of_a_live_run_at_once(instance, watched, child):
    """The kernel says so, to a zombie's parent or anybody else."""
    watched(proc.process(child.pid))
    vigil = Vigil(instance)
    vigil.begin()
    child.kill()
    assert vigil.end() is True
    assert pidfds() == 0
    assert wait_for_process_exit(instance, [GROUP], LONG) is True, "it is gone, and nobody has said so yet"


def test_a_tick_ends_in_its_round(instance, watched, child):
    """All is well: the group is looked at, and the next round of the daemon finds the sensor ready."""
    watched(proc.process(child.pid))
    assert wait_for_process_exit(instance, [GROUP], AT_ONCE) is False
    assert ExitWatch().seconds + 0.5 < MIN_INTERVAL_LOOP_TIME
    assert kl.Sensor().minimum_interval_seconds < MIN_INTERVAL_LOOP_TIME


@pytest.mark.parametrize("took", [0.2, 1.3, 2.7, 60.0])
def test_a_watch_leaves_the_time_that_a_slow_observation_takes(instance, monkeypatch, took):
    """Dagster's daemon skips a sensor while its tick runs: a crash would be noticed 5 s later.

    The first tick of a code server takes seconds. Quick ones after it are watched as long as before.
    """
    watch, times = ExitWatch(), count(0.0, took)
    usual = watch.seconds
    monkeypatch.setattr(dead_runs, "time", SimpleNamespace(monotonic=lambda: next(times)))
    with watch.before_observation(instance, [GROUP]):
        pass
    assert watch.seconds == 0.0 or watch.seconds + took < MIN_INTERVAL_LOOP_TIME
    times = repeat(0.0)
    for _ in range(20):
        with watch.before_observation(instance, [GROUP]):
            pass
    assert watch.seconds == usual


@pytest.mark.parametrize(
    "process",
    [
        pytest.param(Process(ProcessNamespace("0c0ffee0", "4026531836"), os.getpid(), 1), id="elsewhere"),
        pytest.param(None, id="it has not said which"),
    ],
)
def test_nobody_waits_for_a_process_that_cannot_be_seen(instance, watched, process):
    """Its pid would be somebody else's here."""
    watched(process)
    assert wait_for_process_exit(instance, [GROUP], LONG) is False


def test_nobody_waits_without_a_live_run(instance, watched, child):
    """Another group's is none."""
    watched(proc.process(child.pid), "payments-etl")
    assert wait_for_process_exit(instance, [GROUP], LONG) is False


@pytest.mark.parametrize(
    "instance", [{}, {"use_threads": False}, {"use_threads": True, "num_workers": 1}], indirect=True
)
def test_nobody_waits_where_the_daemon_has_no_thread_to_spare(instance, watched, child):
    """All other sensors would wait too."""
    watched(proc.process(child.pid))
    assert wait_for_process_exit(instance, [GROUP], LONG) is False


def test_only_two_ticks_wait_at_once(instance, watched, child):
    """The others of the code location have the rest of the threads."""
    watched(proc.process(child.pid))
    with ExitStack() as ended:
        for vigil in (Vigil(instance), Vigil(instance)):
            vigil.begin()
            ended.callback(vigil.end)
        ended.callback(child.kill)
        assert wait_for_process_exit(instance, [GROUP], LONG) is False
    assert wait_for_process_exit(instance, [GROUP], AT_ONCE) is True, "their places are free again"
