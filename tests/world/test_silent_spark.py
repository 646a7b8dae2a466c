"""Spark's network falls silent, without a reset and without an end: each run ends by itself, by name, and in time."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from uuid import uuid4

import dagster as dg
import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
from kafka_liveness_dagster.spark.iceberg import write
from tests.world.silent_proxy import SilentProxy
from tests.world.stories import wait_for

SIZE, BUDGET, AFTER = 20, 8.0, 30.0  # offsets, seconds, seconds
GIVE_UP = 150.0
PORT = re.compile(r":(\d+)")


class Lonely:
    """Runs of one group, in processes of their own, whose Spark is behind a proxy."""

    def __init__(self, services, topic, table, home, remote):
        self.topic, self.table, self.group, self.remote = topic, table, f"etl-{topic}", remote
        self.busy = f"busy-{uuid4().hex}"
        self.servers, self.home = services.bootstrap_servers, home
        self.kafka = {
            "bootstrap_servers": self.servers,
            "session_timeout_seconds": 6,
            "heartbeat_interval_seconds": 0.5,
        }
        self.cluster = kl.KafkaLivenessResource(**self.kafka).cluster()

    def start(self, *, pauses_in="", settings=None, slow=True, **asset):
        """Begin a run."""
        told = {
            "run_id": str(uuid4()),
            "kafka": self.kafka,
            "spark": self.remote,
            "busy": self.busy if slow else "",
            "pauses_in": pauses_in,
            "settings": settings or {},
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
        write(spark, self.table, [OffsetRange("before", 0, 0, 1)], lambda: none)


class Run:
    """One run's process."""

    def __init__(self, told, env, log):
        self.run_id, self.log = told["run_id"], log
        command = [sys.executable, "-m", "tests.world.lonely_run", json.dumps(told)]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=env
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()

    def said(self, word):
        """Wait until it said so."""
        assert self._process.stdout.readline().strip() == word, self.log.read_text()[-3000:]

    def go_on(self):
        """Let it do what it said."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def terminate(self, home):
        """What the UI's button does: the run is being canceled, and its worker is interrupted."""
        with dg.DagsterInstance.from_config(str(home)) as instance:
            instance.report_run_canceling(instance.get_run_by_id(self.run_id))
        self._process.send_signal(signal.SIGINT)

    def end(self):
        """What it said at last, and after how long its process was gone."""
        began, killer = time.monotonic(), threading.Timer(GIVE_UP, self._process.kill)
        killer.start()
        out, _ = self._process.communicate()
        killer.cancel()
        seconds = time.monotonic() - began
        lines = out.strip().splitlines()
        return (json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}), seconds


@pytest.fixture
def proxy(services):
    """In front of the Spark Connect server."""
    with SilentProxy(int(PORT.search(services.spark_remote)[1])) as found:
        yield found


@pytest.fixture
def lonely(services, make_topic, produce, table, tmp_path, proxy, warm_spark):  # noqa: PLR0917
    """Four batches of data, and a table without rows."""
    topic = make_topic()
    produce(services.bootstrap_servers, topic, 0, map(str, range(4 * SIZE)))
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    found = Lonely(services, topic, table, tmp_path, PORT.sub(f":{proxy.port}", services.spark_remote, count=1))
    found.make_table(warm_spark)
    return found


def ends(run, *, error, within):
    """It ended by itself, in time, with this error; its words."""
    said, seconds = run.end()
    assert seconds < within, f"{seconds:.1f} s"
    assert said["error"] == error, said
    return said["message"]


def goes_on(lonely, rows):
    """Nobody is left in the group, and the next run has each offset in the table once."""
    wait_for(lambda: not lonely.cluster.members(lonely.group))
    with lonely.start(slow=False) as run:
        assert run.end()[0] == {"success": True}
    assert [row["offset"] for row in rows(lonely.table)] == list(range(4 * SIZE))
    assert lonely.committed() == 4 * SIZE


@pytest.mark.parametrize("in_flight", [1, 2])
def test_in_the_middle_of_a_batch(lonely, proxy, spark, rows, in_flight):
    """Spark works and is heard no more: fenced at its budget, given up soon after it, nothing of it committed."""
    with lonely.start(batches_in_flight=in_flight) as run:
        wait_for(lambda: lonely.is_busy(spark))
        before = lonely.committed()
        proxy.fall_silent()
        told = ends(run, error="SparkSilentError", within=BUDGET + AFTER)
    assert str(proxy.port) in told
    assert re.search(r"said nothing for \d+ s", told), told
    assert lonely.committed() == before
    proxy.talk()
    goes_on(lonely, rows)


def test_in_the_analysis(lonely, proxy, rows):
    """The transform's schema is asked for and never told."""
    with lonely.start(pauses_in="transform") as run:
        run.said("transform")
        proxy.fall_silent()
        run.go_on()
        ends(run, error="SparkSilentError", within=BUDGET + AFTER)
    assert lonely.committed() == 0
    proxy.talk()
    goes_on(lonely, rows)


def test_before_the_first_connection(lonely, proxy, rows):
    """It is connected to, and says nothing."""
    proxy.fall_silent()
    with lonely.start(pauses_in="start") as run:
        run.said("start")
        run.go_on()
        ends(run, error="SparkUnreachableError", within=BUDGET + AFTER)
    proxy.talk()
    goes_on(lonely, rows)


def test_while_the_run_stops(lonely, proxy, rows):
    """All is committed, and the session cannot be ended: the run was good, and so it is told."""
    with lonely.start(slow=False, idle_seconds=3.0) as run:
        wait_for(lambda: lonely.committed() == 4 * SIZE)
        proxy.fall_silent()
        said, seconds = run.end()
    assert said == {"success": True}
    assert seconds < AFTER
    proxy.talk()
    goes_on(lonely, rows)


def test_terminate(lonely, proxy, spark, rows):
    """The button in the UI ends a run that hears nothing, however large its budget is."""
    with lonely.start(max_batch_seconds=300) as run:
        wait_for(lambda: lonely.is_busy(spark))
        proxy.fall_silent()
        run.terminate(lonely.home)
        _, seconds = run.end()
    assert seconds < AFTER
    proxy.talk()
    goes_on(lonely, rows)


def test_a_catalog_that_accepts_and_never_answers(lonely, rows):
    """Spark itself answers, and what it waits for does not: the same end."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        catalog, port = "spark.sql.catalog.mute", mute.getsockname()[1]
        settings = {
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "rest",
            f"{catalog}.uri": f"http://127.0.0.1:{port}",
        }
        with lonely.start(table="mute.shop.orders", settings=settings, pauses_in="start") as run:
            run.said("start")
            run.go_on()
            ends(run, error="SparkSilentError", within=BUDGET + AFTER)
    goes_on(lonely, rows)
