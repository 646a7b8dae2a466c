"""What a run says of itself, and what its host and its launcher say of it.

Real processes, real Dagster runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import dagster as dg
import pytest
from dagster._core.launcher import CheckRunHealthResult, RunLauncher, WorkerStatus
from dagster._serdes import ConfigurableClass

from kafka_liveness_dagster.core.departures import GroupSnapshot, GroupState, RunFate
from kafka_liveness_dagster.core.process_status import HeartbeatTag, PidEntry, ProcessStatus, process_status
from kafka_liveness_dagster.core.run_ids import short_run_id
from kafka_liveness_dagster.runs import heartbeat, proc
from kafka_liveness_dagster.runs.heartbeat import RunHeartbeat, process_status_of
from kafka_liveness_dagster.runs.run_context import run_context_of
from kafka_liveness_dagster.runs.tags import PROCESS_TAG, STEP_TAG, heartbeat_of, lane_tags
from kafka_liveness_dagster.sensor.observation import refresh_runs, runs_by_short_id
from tests.waiting import wait_for

ROOT = Path(__file__).parents[1]
_TELLS = """
import os
from kafka_liveness_dagster.runs import proc
from kafka_liveness_dagster.core.process_status import HeartbeatTag
print(HeartbeatTag("0badcafe", None, proc.process(os.getpid())).encode())
"""


@pytest.fixture(scope="module")
def instance():
    with dg.instance_for_test() as found:
        yield found


def word_here(told):
    return process_status(told, proc.this_namespace(), proc.pid_entry(told.pid))


def test_a_process_is_there_until_it_is_killed(child):
    """A zombie has ended, whether or not somebody collects it."""
    told = proc.process(child.pid)
    assert word_here(told) is ProcessStatus.ALIVE
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not collected
    assert Path(f"/proc/{child.pid}").exists()
    assert (word_here(told), proc.process(child.pid)) == (ProcessStatus.GONE, None)
    child.wait()
    assert proc.pid_entry(child.pid) == PidEntry(exists=False)


def test_a_pid_that_came_again_is_another_process(child):
    """What counts is when it began, too."""
    told = proc.process(os.getpid())
    assert proc.pid_entry(os.getpid()).start_ticks == told.start_ticks
    assert proc.process(child.pid).start_ticks > told.start_ticks


def test_in_another_container_nothing_is_known():
    """A real pid namespace on this very kernel: the same pid is another process there, or none."""
    here = proc.process(os.getpid())
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", _TELLS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        pytest.skip(f"only root may make a namespace: {done.stderr.splitlines()[-1]}")
    there = HeartbeatTag.decode(done.stdout, "0badcafe").process
    assert there.namespace.boot_id == here.namespace.boot_id
    assert there.namespace.namespaces != here.namespace.namespaces
    assert there.namespace.machine_id == "", "a container may be anywhere the next time"
    assert process_status(there, here.namespace, proc.pid_entry(there.pid)) is ProcessStatus.UNKNOWN
    assert process_status(here, there.namespace, PidEntry(exists=False)) is ProcessStatus.UNKNOWN


def test_where_the_system_says_nothing_nothing_is_known(monkeypatch, tmp_path):
    """No /proc as Linux has it: no word, rather than a wrong one."""
    monkeypatch.setattr(proc, "PROC_ROOT", tmp_path)
    proc.this_namespace.cache_clear()
    try:
        assert proc.this_namespace() is None
        assert proc.process(os.getpid()) is None
        assert proc.pid_entry(os.getpid()) == PidEntry(exists=True)
    finally:
        proc.this_namespace.cache_clear()


# --- a run tells --------------------------------------------------------------------------------------------


def run_of(instance, work, **tags):
    """A run whose op does this; the run as it is afterwards."""

    @dg.asset
    def orders(context):
        work(context)

    done = dg.materialize([orders], instance=instance, tags=tags, raise_on_error=False)
    return instance.get_run_by_id(done.run_id)


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_gives_signs_of_life_while_its_op_is_at_work(instance, monkeypatch, fails):
    """From its first line to its last.

    Then its step is over, unless it failed and may be retried in the same run.
    """
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.01)
    seen = []
    first_tags = Mock(wraps=heartbeat.add_tags)
    monkeypatch.setattr(heartbeat, "add_tags", first_tags)

    def work(context):
        with RunHeartbeat(context, {"lane": "live"}):
            seen.append(instance.get_run_by_id(context.run.run_id))
            wait_for(lambda: (heartbeat_of(instance.get_run_by_id(context.run.run_id)).heartbeat_at or 0) > 2)
            if fails:
                raise ValueError("no such price")

    after = run_of(instance, work)
    assert seen[0].tags["lane"] == "live"
    (_, _, tags) = first_tags.call_args.args
    assert (
        tags[PROCESS_TAG] == HeartbeatTag(short_run_id(after.run_id), 0, proc.process(os.getpid())).encode()
    )
    assert heartbeat_of(after) == HeartbeatTag(
        short_run_id(after.run_id), None, proc.process(os.getpid()), has_ended=not fails
    )
    assert seen[0].tags[STEP_TAG] == "orders"
    assert not any(thread.name == "kafka-liveness-signs-of-life" for thread in threading.enumerate())


def test_a_sign_of_a_run_that_somebody_deleted_ends_no_step(instance, monkeypatch, caplog):
    """Its watchdog ends it; the process's log says why there is no sign."""
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.01)

    def work(context):
        with RunHeartbeat(context, {}):
            before = instance.get_run_by_id(context.run.run_id)
            instance.delete_run(context.run.run_id)
            wait_for(lambda: "Could not write the heartbeat" in caplog.text)
            instance.add_run(before)

    assert run_of(instance, work).status is dg.DagsterRunStatus.SUCCESS


def test_an_op_of_the_users_own_tells_its_process_too(instance):
    """By its consumer; that of a run which it repeats is not taken for its own."""
    others = HeartbeatTag("0000beef", 7, proc.process(1)).encode()
    run = run_of(instance, lambda context: run_context_of(context, away_seconds=130), **{PROCESS_TAG: others})
    assert heartbeat_of(run) == HeartbeatTag(short_run_id(run.run_id), None, proc.process(os.getpid()))
    assert run.tags[".dagster/kafka_liveness.max_absence_seconds"] == "130"


# --- what is known of a run ---------------------------------------------------------------------------------


@dg.job
def orders_job():
    """Nothing: its runs are made by hand."""


def a_run(instance, *events, **tags):
    """A run as Dagster knows it, after so many events."""
    run = instance.create_run_for_job(orders_job, tags=tags)
    for event in events:
        instance.report_dagster_event(
            dg.DagsterEvent(event_type_value=event, job_name=run.job_name), run.run_id
        )
    return run.run_id


STARTING, STARTED = "PIPELINE_STARTING", "PIPELINE_START"


def word(instance, run_id, *, later=0.0, away=True):
    record = instance.get_run_record_by_id(run_id)
    return process_status_of(instance, record, time.time() + later, fence_report=away)


def told_by(process, instance, *events):
    run_id = a_run(instance, *events)
    instance.add_run_tags(run_id, {PROCESS_TAG: HeartbeatTag(short_run_id(run_id), 0, process).encode()})
    return run_id


def test_the_word_of_the_host(instance, child):
    """It is asked whether the run is a member or not: that costs nothing."""
    run = told_by(proc.process(child.pid), instance, STARTING, STARTED)
    assert word(instance, run, away=False) is ProcessStatus.ALIVE
    child.kill()
    child.wait()
    assert word(instance, run, away=False) is ProcessStatus.GONE
    taken_back = SimpleNamespace(dagster_run=SimpleNamespace(status=dg.DagsterRunStatus.QUEUED))
    assert process_status_of(instance, taken_back, time.time(), fence_report=True) is ProcessStatus.UNKNOWN, (
        "it will have another process"
    )
    assert word(instance, a_run(instance, STARTING, STARTED)) is ProcessStatus.UNKNOWN, "it said nothing"


def test_a_catch_up_run_is_alive_from_its_start_to_its_end(instance, child):
    """One that waits, or is starting, has no process yet; one that was killed has none any more."""
    alive = {}

    def add(status):
        run = dg.DagsterRun(job_name="any", status=status, tags=lane_tags("g", "catch-up"))
        return instance.add_run(run).run_id

    def look(context):
        link = run_context_of(context)
        # Only the run of a code location can be queued
        for status in set(dg.DagsterRunStatus) - {dg.DagsterRunStatus.QUEUED}:
            run_id = add(status)
            alive[status] = link.catch_up_runs("g")
            instance.delete_run(run_id)
        killed = add(dg.DagsterRunStatus.STARTED)
        process = proc.process(child.pid)
        instance.add_run_tags(killed, {PROCESS_TAG: HeartbeatTag(short_run_id(killed), 0, process).encode()})
        alive["here"] = link.catch_up_runs("g")
        child.kill()
        child.wait()
        alive["killed"] = link.catch_up_runs("g")
        instance.delete_run(killed)

    run_of(instance, look)
    assert {name for name, runs in alive.items() if runs} == {dg.DagsterRunStatus.STARTED, "here"}
    assert len(alive) == len(dg.DagsterRunStatus) + 1


class FakeCloudLauncher(RunLauncher, ConfigurableClass):
    """A launcher that knows its workers, as Kubernetes' does."""

    health: CheckRunHealthResult | None = None
    asked = 0

    def __init__(self, inst_data=None):
        self._inst_data = inst_data
        super().__init__()

    inst_data = property(lambda self: self._inst_data)

    @classmethod
    def config_type(cls):
        return {}

    @classmethod
    def from_config_value(cls, inst_data, config_value):
        return cls(inst_data)

    def launch_run(self, context):
        raise NotImplementedError

    def terminate(self, run_id):
        raise NotImplementedError

    supports_check_run_worker_health = True
    supports_resume_run = True

    def check_run_worker_health(self, run):
        FakeCloudLauncher.asked += 1
        if FakeCloudLauncher.health is None:
            raise PermissionError
        return FakeCloudLauncher.health


@pytest.fixture(scope="module")
def cloud():
    """An instance with that launcher."""
    with dg.instance_for_test(
        overrides={"run_launcher": {"module": __name__, "class": "FakeCloudLauncher"}}
    ) as found:
        yield found


@pytest.mark.parametrize(
    ("health", "found"),
    [
        pytest.param(CheckRunHealthResult(WorkerStatus.RUNNING), ProcessStatus.ALIVE, id="running"),
        pytest.param(CheckRunHealthResult(WorkerStatus.FAILED), ProcessStatus.GONE, id="failed"),
        pytest.param(CheckRunHealthResult(WorkerStatus.NOT_FOUND), ProcessStatus.GONE, id="not found"),
        pytest.param(
            CheckRunHealthResult(WorkerStatus.FAILED, transient=True), ProcessStatus.UNKNOWN, id="it may pass"
        ),
        pytest.param(
            CheckRunHealthResult(WorkerStatus.SUCCESS),
            ProcessStatus.UNKNOWN,
            id="done: Dagster hears of it yet",
        ),
        pytest.param(
            CheckRunHealthResult(WorkerStatus.UNKNOWN), ProcessStatus.UNKNOWN, id="it does not know"
        ),
        pytest.param(None, ProcessStatus.UNKNOWN, id="we may not ask"),
    ],
)
def test_the_word_of_the_launcher(cloud, monkeypatch, health, found):
    """Asked where the host says nothing, of runs that are away only."""
    monkeypatch.setattr(FakeCloudLauncher, "health", health)
    monkeypatch.setattr(FakeCloudLauncher, "asked", 0)
    run, here = a_run(cloud, STARTING, STARTED), told_by(proc.process(os.getpid()), cloud, STARTING, STARTED)
    assert (word(cloud, run, away=False), word(cloud, here)) == (ProcessStatus.UNKNOWN, ProcessStatus.ALIVE)
    assert FakeCloudLauncher.asked == 0
    assert word(cloud, run) is found


def test_a_run_that_dagster_resumes_is_dagsters(monkeypatch):
    """Its worker is gone and comes again: with `max_resume_run_attempts` run monitoring starts a new one."""
    monkeypatch.setattr(FakeCloudLauncher, "health", CheckRunHealthResult(WorkerStatus.FAILED))
    settings = {
        "run_launcher": {"module": __name__, "class": "FakeCloudLauncher"},
        "run_monitoring": {"enabled": True, "max_resume_run_attempts": 1},
    }
    with dg.instance_for_test(overrides=settings) as found:
        assert word(found, a_run(found, STARTING, STARTED)) is ProcessStatus.UNKNOWN


@pytest.mark.parametrize("events", [(), (STARTING,)])
def test_a_run_that_starts(instance, cloud, monkeypatch, events):
    """Slowly, or never: by whom it was launched, and how long ago."""
    run = a_run(instance, *events)
    assert [word(instance, run, later=seconds) for seconds in (0, 170, 190)] == [
        ProcessStatus.UNKNOWN
    ] * 2 + [ProcessStatus.GONE]
    began = time.time() + 5  # a code server that began after it was launched
    monkeypatch.setattr(proc, "process_started_at", lambda: began)
    assert [word(instance, run, later=seconds) for seconds in (30, 40)] == [
        ProcessStatus.UNKNOWN,
        ProcessStatus.GONE,
    ]
    monkeypatch.setattr(FakeCloudLauncher, "health", CheckRunHealthResult(WorkerStatus.RUNNING))
    pending = a_run(cloud, *events)
    assert word(cloud, pending, later=3_600) is ProcessStatus.ALIVE, "it waits for a machine"
    monkeypatch.setattr(FakeCloudLauncher, "health", CheckRunHealthResult(WorkerStatus.NOT_FOUND))
    assert [word(cloud, pending, later=seconds) for seconds in (40, 190)] == [
        ProcessStatus.UNKNOWN,
        ProcessStatus.GONE,
    ]


def test_a_start_may_take_as_long_as_is_allowed():
    """Dagster's own settings, whether run monitoring is on or not; 0 is its word for any time."""
    for limit, later, found in (
        (600, 500, ProcessStatus.UNKNOWN),
        (600, 700, ProcessStatus.GONE),
        (0, 86_400, ProcessStatus.UNKNOWN),
    ):
        with dg.instance_for_test(overrides={"run_monitoring": {"start_timeout_seconds": limit}}) as instance:
            assert word(instance, a_run(instance, STARTING), later=later) is found
    with dg.instance_for_test(overrides={"code_servers": {"local_startup_timeout": 400}}) as instance:
        run = a_run(instance, STARTING)
        assert [word(instance, run, later=seconds) for seconds in (390, 410)] == [
            ProcessStatus.UNKNOWN,
            ProcessStatus.GONE,
        ]


# --- at a look ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended", "fate", "process"),
    [
        pytest.param(None, RunFate.IN_PROGRESS, ProcessStatus.GONE, id="nobody said so"),
        pytest.param(
            "PIPELINE_FAILURE",
            RunFate.FAILED,
            ProcessStatus.UNKNOWN,
            id="its code server says so at this moment",
        ),
        pytest.param(
            "PIPELINE_SUCCESS",
            RunFate.IN_PROGRESS,
            ProcessStatus.UNKNOWN,
            id="it ended well, and then its process",
        ),
        pytest.param("deleted", RunFate.IN_PROGRESS, ProcessStatus.UNKNOWN, id="deleted at this moment"),
    ],
)
def test_dagster_is_asked_again_after_the_process(instance, child, ended, fate, process):
    """What a run said before its process went is known when that is said to be gone."""
    told = proc.process(child.pid)
    child.kill()
    child.wait()
    run = told_by(told, instance, STARTING, STARTED)
    record = instance.get_run_record_by_id(run)
    seen = GroupSnapshot(GroupState.EMPTY, (), (), runs=runs_by_short_id([record]))
    if ended == "deleted":
        instance.delete_run(run)
    elif ended:
        event = dg.DagsterEvent(event_type_value=ended, job_name=record.dagster_run.job_name)
        instance.report_dagster_event(event, run)
    [known] = refresh_runs(instance, seen, [record]).runs.values()
    assert (known.fate, known.process) == (fate, process)
