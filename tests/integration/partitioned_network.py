"""Runs in processes of their own, whose network may fall silent, and what is left of them.

See ``partitioned_network_run``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from uuid import uuid4

import dagster as dg

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
from kafka_liveness_dagster.spark.table.write import write_table
from tests.timeouts import seconds
from tests.waiting import wait_for

SIZE, BUDGET, AFTER = 20, seconds(15.0), seconds(30.0)  # offsets, seconds, seconds
GIVE_UP = seconds(300.0)  # seconds; a run that lasts longer hangs


class PartitionedNetwork:
    """Runs of one group, in processes of their own, whose Spark is behind a proxy."""

    def __init__(self, services, topic, table, home, remote):
        self.topic, self.table, self.group, self.remote = topic, table, f"etl-{topic}", remote
        self.busy = f"busy-{uuid4().hex}"
        self.servers, self.home = services.bootstrap_servers, home
        self.kafka = {
            "bootstrap_servers": self.servers,
            "session_timeout_seconds": seconds(6),
            "heartbeat_interval_seconds": 0.5,
        }
        self.cluster = kl.KafkaLivenessResource(**self.kafka).cluster()

    def start(self, *, pauses_in="", settings=None, slow=True, is_patient=True, **asset):
        """Begin a run; one that is not patient waits for a Spark session for its budget."""
        told = {
            "run_id": str(uuid4()),
            "kafka": self.kafka,
            "spark": self.remote,
            "busy": self.busy if slow else "",
            "pauses_in": pauses_in,
            "settings": settings or {},
            "is_patient": is_patient,
            "asset": {
                "name": "orders",
                "topics": [self.topic],
                "group_id": self.group,
                "table": self.table,
                "max_poll_records": SIZE,
                "max_batch_seconds": BUDGET,
                "idle_seconds": 0.5,
                **asset,
            },
        }
        return Run(told, {**os.environ, "DAGSTER_HOME": str(self.home)}, self.home / f"{told['run_id']}.log")

    def committed(self):
        """The group's committed offset."""
        found = self.cluster.commits(self.group, [TopicPartition(self.topic, 0)]).values()
        return next((commit.offset for commit in found), 0)

    def is_busy(self, spark):
        """Whether Spark has reached a row of a run."""
        (row,) = spark.sql(f"SELECT java_method('java.lang.System', 'getProperty', '{self.busy}')").collect()
        return row[0] == "yes"

    def make_table(self, spark):
        """A table without rows: the batch that makes it is no ordinary one."""
        none = spark.sql("SELECT '' AS topic, 0 AS partition, 0L AS offset, '' AS nap").where("false")
        write_table(spark, self.table, [OffsetRange("before", 0, 0, 1)], lambda: none)


class Run:
    """One run's process."""

    def __init__(self, told, env, log):
        self.run_id, self.log = told["run_id"], log
        command = [
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            "tests.integration.partitioned_network_run",
            json.dumps(told),
        ]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=env
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()

    def shown(self):
        """Return the end of its log."""
        return self.log.read_text()[-3000:]

    def log_messages(self, word):
        """Wait until it said so."""
        assert self._process.stdout.readline().strip() == word, self.shown()

    def go_on(self):
        """Let it do what it said."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def terminate(self, home):
        """What the UI's button does: the run is being canceled, and its worker is interrupted."""
        with dg.DagsterInstance.from_config(str(home)) as instance:
            instance.report_run_canceling(instance.get_run_by_id(self.run_id))
        self._process.send_signal(signal.SIGINT)

    def interrupt(self):
        """What SIGTERM to a run worker of Dagster's is, and Ctrl-C: an interrupt in the main thread."""
        self._process.send_signal(signal.SIGINT)

    def end(self):
        """What it said at last, and after how long its process was gone.

        Its log has where it hung, if it did.
        """
        began, killer = (
            time.monotonic(),
            threading.Timer(GIVE_UP, self._process.send_signal, [signal.SIGABRT]),
        )
        killer.start()
        out, _ = self._process.communicate()
        killer.cancel()
        took = time.monotonic() - began
        lines = out.strip().splitlines()
        return (json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}), took


def slowness():
    """How many times as long all may take here.

    The load of the last minute says it late, hence at least twice.
    """
    return max(2.0, os.getloadavg()[0] / (os.cpu_count() or 1) / 2)


def ends(run, *, error, within):
    """It ended by itself, in time, with this error; its words."""
    said, took = run.end()
    assert said.get("error") == error, said or run.shown()
    assert took < within * slowness(), f"{took:.1f} s, where all may take {slowness():.1f} times as long"
    return said["message"]


def check_recovery(isolated, rows):
    """Nobody is left in the group, and the next run has each offset in the table once."""
    members = partial(isolated.cluster.members, isolated.group)
    wait_for(lambda: not members(), what="the members of the former run have left")
    with isolated.start(slow=False) as run:
        assert run.end()[0] == {"success": True}, run.shown()
    assert [row["offset"] for row in rows(isolated.table)] == list(range(4 * SIZE))
    assert isolated.committed() == 4 * SIZE
