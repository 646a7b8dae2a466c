"""Runs of a real Dagster, in processes of their own, as their user and everybody around them sees them."""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import dagster as dg
import psutil
import requests
from confluent_kafka.admin import AdminClient, NewTopic
from dagster_graphql import DagsterGraphQLClient

from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.core.run_ids import short_run_id
from tests.integration.interrupted_runs import (
    BUSY,
    FIRST,
    GATES,
    HEARTBEAT,
    LAST,
    LONG,
    cases,
    definitions,
    go_on_property,
    offset_property,
)
from tests.timeouts import set_timeouts
from tests.waiting import wait_for

_STARTED = re.compile(r"Started process for run \(pid: (\d+)\)")
ROOT = Path(__file__).parents[2]
LOCATION = "tests.integration.interrupted_runs"
ALONE_YAML = """\
telemetry: {enabled: false}
compute_logs:  # two runs of one process would wait for each other's `tail`, for a minute
  module: dagster._core.storage.noop_compute_log_manager
  class: NoOpComputeLogManager
"""
"""For runs inside of a test's own process."""
DAGSTER_YAML = """
telemetry: {enabled: false}
nux: {enabled: false}
run_coordinator: {module: dagster.core.run_coordinator, class: DefaultRunCoordinator}  # needs no daemon
"""


def is_alive(process):
    """Whether it runs; an orphan may stay a zombie where nobody collects them."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class RealDagster:
    """The processes of a Dagster: webserver, code server, and whatever they start."""

    def __init__(self, services, home):
        self.name, self.services = f"chaos{uuid4().hex[:8]}", services
        (home / "dagster.yaml").write_text(DAGSTER_YAML)
        self.instance = dg.DagsterInstance.from_config(str(home))
        self._log = home / "webserver.log"
        self.env = {
            **os.environ,
            "DAGSTER_HOME": str(home),
            "CHAOS_WORLD": self.name,
            "CHAOS_KAFKA": services.bootstrap_servers,
            "CHAOS_SPARK": services.spark_remote,
        }

    def __enter__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "dagster_webserver",
            "-m",
            LOCATION,
            "-h",
            "127.0.0.1",
            "-p",
            str(port),
        ]
        with self._log.open("wb") as log:
            self._webserver = subprocess.Popen(
                command, cwd=ROOT, env=self.env, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            wait_for(lambda: self._answers(port))
            self.ui = DagsterGraphQLClient("127.0.0.1", port_number=port)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._webserver.terminate()
        for left in psutil.wait_procs(self._processes(), timeout=10)[1]:
            left.kill()
        self._webserver.wait()
        self.instance.dispose()

    def _answers(self, port):
        assert self._webserver.poll() is None, self._log.read_text()
        try:
            return requests.get(f"http://127.0.0.1:{port}/server_info", timeout=2).ok
        except requests.RequestException:
            return False

    def _processes(self):
        """All that carry this world's name in their environment."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("CHAOS_WORLD") == self.name:
                    found.append(process)
            except psutil.Error:
                continue  # another user's, or gone
        return found


def make_topics(world, produce):
    """A topic with 400 records for every case, and its group's timeouts under KIP-848."""
    servers = world.services.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for case in cases(world.name):
        admin.create_topics([NewTopic(case.topic, 1, 1)])[case.topic].result()
        set_timeouts(servers, case.group_id, min(case.law.session, LONG), HEARTBEAT)
        produce(servers, case.topic, 0, map(str, range(LAST)))


class DagsterRuns:
    """What happens to the runs of one case, as told by Dagster, Kafka, Spark and the table."""

    def __init__(self, case, world, spark, rows):
        self.case, self.world, self.instance, self._spark, self._rows = (
            case,
            world,
            world.instance,
            spark,
            rows,
        )
        self.kafka = case.kafka(world.services.bootstrap_servers)
        self.cluster = self.kafka.cluster()

    def launch(self, job, *, busy=False, gates=None):
        """Press the button in the UI; the run's id."""
        tags = {**({BUSY: "yes"} if busy else {}), **({GATES: str(gates)} if gates else {})}
        return self.world.ui.submit_job_execution(job, LOCATION, "__repository__", tags=tags)

    def launch_live(self, *, busy=False, gates=None):
        """A live run as the UI starts it, in one process."""
        return self.launch(f"{self.case.name}_job", busy=busy, gates=gates)

    def script(self):
        """A live run whose worker is started by us, so that nobody marks it failed.

        The worker and the run's id.
        """
        command = [
            sys.executable,
            "-m",
            "dagster",
            "job",
            "execute",
            "-m",
            LOCATION,
            "-j",
            self.case.steps_job,
        ]
        worker = psutil.Popen(
            [*command, "--tags", json.dumps({BUSY: "yes"})],
            cwd=ROOT,
            env=self.world.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wanted = dg.RunsFilter(job_name=self.case.steps_job)

        def begun():
            assert worker.poll() is None, "dagster job execute ended at once"
            return [run.run_id for run in self.instance.get_runs(wanted)]

        return worker, wait_for(begun)[0]

    def finish(self):
        """A live run in this process, until nothing is behind."""
        services = self.world.services
        defs = definitions([self.case], services.bootstrap_servers, services.spark_remote)
        return defs.resolve_job_def(f"{self.case.name}_job").execute_in_process(instance=self.instance)

    def log_messages(self, run_id):
        """The run's event log."""
        return [entry.user_message or entry.message for entry in self.instance.all_logs(run_id)]

    def worker(self, run_id):
        """The one process that the code server started for a run."""
        (pid,) = wait_for(lambda: _STARTED.findall("\n".join(self.log_messages(run_id))))
        return psutil.Process(int(pid))

    def step(self, run_id):
        """The process that a run worker started for its step, None before it said so."""
        started = self.instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_WORKER_STARTED)
        return psutil.Process(started[0].dagster_event.pid) if started else None

    def status(self, run_id):
        """How the run is."""
        return self.instance.get_run_by_id(run_id).status

    def end(self, run_id):
        """How the run ended."""
        return wait_for(lambda: (run := self.instance.get_run_by_id(run_id)).is_finished and run.status)

    def members(self):
        """The group, as its coordinator sees it."""
        return self.cluster.members(self.case.group_id)

    def seconds_to_leave(self, since):
        """How long after that moment the group was empty."""
        wait_for(lambda: not self.members())
        return time.monotonic() - since

    def live_log(self):
        """Committed offset and its metadata, None without a commit."""
        found = self.cluster.commits(self.case.group_id, [TopicPartition(self.case.topic, 0)]).values()
        return next(((commit.offset, LiveCommitMetadata.decode(commit.metadata)) for commit in found), None)

    def busy_at(self, run_id):
        """The offset of the second batch at which Spark is, None before it."""
        told = self._property("getProperty", f"'{offset_property(run_id)}'")
        return None if told == "null" else int(told)

    def is_busy(self, run_id):
        """Wait until Spark is in the middle of the second batch."""
        assert wait_for(lambda: self.busy_at(run_id)) < LAST - 1
        # The first batch has landed
        wait_for(
            lambda: self.live_log() == (FIRST, LiveCommitMetadata(OwnerState.RUNNING, short_run_id(run_id)))
        )
        assert len(self.members()) == 1

    def has_stopped(self, run_id):
        """Whether Spark works no longer for a run: in the time of three offsets it comes to none."""
        at = self.busy_at(run_id)
        pause(0.7)
        return self.busy_at(run_id) == at < LAST - 1

    def go_on(self, run_id):
        """Let Spark finish the second batch, and not wait in it again."""
        self._property("setProperty", f"'{go_on_property(run_id)}', 'yes'")

    def offsets(self):
        """The offsets in the table, as often as they are there."""
        return [row["offset"] for row in self._rows(self.case.table)]

    def writers(self):
        """The runs whose rows are in the table, in the order of their first offset."""
        return list(dict.fromkeys(row["written_by"] for row in self._rows(self.case.table)))

    def _property(self, method, arguments):
        (row,) = self._spark.sql(f"SELECT java_method('java.lang.System', '{method}', {arguments})").collect()
        return row[0]


def pause(seconds):
    """A stall that is a test's input."""
    threading.Event().wait(seconds)


def stop(process, instance):
    """SIGSTOP, seen to have worked; while it has a lock of Dagster's SQLite, nobody else could go on."""
    while True:
        process.suspend()
        wait_for(lambda: process.status() == psutil.STATUS_STOPPED)
        if not any(map(_is_locked, Path(instance.root_directory).rglob("*.db"))):
            return
        process.resume()


def _is_locked(file):
    try:
        with closing(sqlite3.connect(file, timeout=2.0)) as held:
            held.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return True
    return False
