"""The units of deploy/systemd.

Systemd finds no fault in them, and what they start does its work and ends in order.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from sqlalchemy.exc import OperationalError

from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.settings import KafkaSettings
from tests.deploy.host import Host
from tests.deploy.lake import lake
from tests.deploy.units import ANALYZE, FOLDER, UNITS, Unit
from tests.end_to_end.processes import processes_of
from tests.integration.power_loss import pipeline
from tests.waiting import wait_for

DOCS = Path(__file__).parents[2] / "docs"
EXPOSURE = 13  # tenths: docs/deployment.md says so
BATCH = 20
SLOW = f"if(offset < {BATCH}, '', java_method('java.lang.Thread', 'sleep', 50L)) AS nap"  # a second each
DAEMONS = """{ instance { daemonHealth { allDaemonStatuses { daemonType required healthy } } } }"""
TICKS = """query ($sensor: SensorSelector!) { sensorOrError(sensorSelector: $sensor) {
  ... on Sensor { sensorState { ticks(limit: 3) { status } } } } }"""
RUNS = (
    """{ runsOrError(filter: {pipelineName: "orders_job"}) { ... on Runs { results { runId status } } } }"""
)
ORDERS_GROUP = {
    "repositoryLocationName": "orders",
    "repositoryName": "__repository__",
    "sensorName": "orders_sensor",
}


def test_systemd_finds_no_fault(tmp_path):
    """In a root of its own, where the commands are; a warning is a fault."""
    there, commands = tmp_path / "etc" / "systemd" / "system", tmp_path / "opt" / "pipeline" / "venv" / "bin"
    shutil.copytree(FOLDER, there)
    shutil.copytree("/usr/lib/systemd/system", tmp_path / "usr" / "lib" / "systemd" / "system", symlinks=True)
    commands.mkdir(parents=True)
    for name in UNITS:
        command = commands / Path(Unit(name).words("ExecStart")[0]).name
        command.touch(mode=0o755)
    names = ["pipeline.target", *(f"{name}.service" for name in UNITS)]
    done = subprocess.run(
        [ANALYZE, "verify", f"--root={tmp_path}", *names], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("name", UNITS)
def test_how_much_a_unit_exposes(name):
    """At most what the page says, of 10; and the page says it of this unit's kind."""
    asked = [
        ANALYZE,
        "security",
        "--offline=true",
        f"--threshold={EXPOSURE}",
        "--no-pager",
        f"./{name}.service",
    ]
    done = subprocess.run(asked, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    told = re.search(r"exposure level for \S+: ([\d.]+) ", done.stdout)[1]
    assert f"**{told}**" in (DOCS / "deployment.md").read_text()


class Pipeline:
    """The README's, on a host, with the group and the table that it has there."""

    def __init__(self, host, services, topic, table, produce):
        self.host, self._produce, self.topic, self.table = host, produce, topic, table
        self._servers, self.log_end = services.bootstrap_servers, 0
        self.tp, self.group = TopicPartition(topic, 0), f"etl-{topic}"

    def produce(self, count):
        self._produce(self._servers, self.topic, 0, map(str, range(self.log_end, self.log_end + count)))
        self.log_end += count

    def committed(self):
        return self._facts().committed or 0

    def offsets(self):
        """Every row's, read without Spark."""
        home = self.host.catalog
        if not (home / "catalog.db").exists():
            return []  # who opens it first makes it his own: that is for Spark's user
        uri, warehouse = f"sqlite:///{home}/catalog.db", f"{home}/warehouse"
        catalog = SqlCatalog("lake", uri=uri, warehouse=warehouse, init_catalog_tables="false")
        with suppress(NoSuchTableError, OperationalError):  # not made yet; or Spark is writing its name
            rows = (
                catalog.load_table(self.table.partition(".")[2]).scan(selected_fields=("offset",)).to_arrow()
            )
            return sorted(rows.column("offset").to_pylist())
        return []

    def runs(self):
        """The live runs, the newest first: their status by id."""
        answer = self.host.ask(RUNS)
        return {run["runId"]: run["status"] for run in answer["runsOrError"]["results"]} if answer else {}

    def in_the_middle_of_batches(self):
        """Some are committed since, and more wait than one batch takes."""
        at = self.committed()
        self.produce(5 * BATCH)
        wait_for(lambda: at < self.committed() < self.log_end - BATCH)

    def holds(self):
        """All that was produced is in the table, each offset once."""
        return self.offsets() == list(range(self.log_end))

    def cluster(self):
        return Cluster(KafkaSettings(self._servers))

    def _facts(self):
        return self.cluster().partition_states(self.group, [self.tp])[self.tp]


def code(topic, table):
    """The README's pipeline with addresses of the environment, small slow batches, and automatic catch-up."""
    text = pipeline(topic, f"etl-{topic}", table)
    for there, here in (
        ("max_poll_records=500_000", f"max_poll_records={BATCH}, crash_lag=kl.CrashLag(auto_catch_up=True)"),
        ('"cast(value as string) AS order_json"', f'"{SLOW}"'),
        (
            "KafkaLivenessResource()",
            'KafkaLivenessResource(bootstrap_servers=dg.EnvVar("KAFKA_BOOTSTRAP_SERVERS"))',
        ),
        ("SparkConnectResource()", 'SparkConnectResource(remote=dg.EnvVar("SPARK_REMOTE"))'),
    ):
        assert there in text
        text = text.replace(there, here)
    return text


def spark_settings(home):
    """A catalog in Spark's own state folder, and a heap that a test needs."""
    return {**lake(f"{home}/catalog.db", f"{home}/warehouse"), "spark.driver.memory": "1g"}


@pytest.fixture(scope="module")
def running(services, produce):
    """All units of a host, at work."""
    topic, table = f"orders-{uuid4().hex[:8]}", f"lake.shop_{uuid4().hex[:8]}.orders"
    admin = AdminClient({"bootstrap.servers": services.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    page = (DOCS / "dagster-instance.md").read_text()
    [settings] = re.findall(r"^```yaml\n(run_monitoring.*?)^```", page, re.DOTALL | re.MULTILINE)
    with Host(code(topic, table), settings, services.bootstrap_servers, spark_settings) as host:
        host.start_all()
        yield Pipeline(host, services, topic, table=table, sink=produce)


@pytest.mark.certify
def test_what_the_units_start_is_healthy(running):
    """The webserver answers, daemons have heartbeats, the sensor ticks, Spark writes what its run reads."""
    host = running.host

    def daemons():
        found = (host.ask(DAEMONS) or {"instance": {"daemonHealth": {"allDaemonStatuses": []}}})["instance"]
        wanted = [one for one in found["daemonHealth"]["allDaemonStatuses"] if one["required"]]
        return (
            {one["daemonType"] for one in wanted}
            if wanted and all(one["healthy"] for one in wanted)
            else None
        )

    assert wait_for(daemons) >= {"SENSOR", "QUEUED_RUN_COORDINATOR", "MONITORING", "BACKFILL"}
    running.produce(BATCH)
    wait_for(running.holds)
    told = wait_for(lambda: host.ask(TICKS, sensor=ORDERS_GROUP))
    ticks = told["sensorOrError"]["sensorState"]["ticks"]
    assert {tick["status"] for tick in ticks} <= {"SUCCESS", "SKIPPED", "STARTED"}
    assert list(running.runs().values()) == ["STARTED"]


@pytest.mark.certify
def test_none_of_it_is_roots(running):
    """What the units and their runs have written is another user's, whoever set up the host."""
    owners = {process.username() for name in UNITS for process in running.host.services[name].processes()}
    assert len(owners) == 1
    assert owners | {file.owner() for file in running.host.catalog.rglob("*")} == owners - {"root"}


@pytest.mark.certify
@pytest.mark.parametrize(
    "name", ["pipeline-webserver", "pipeline-daemon", "pipeline-code-server", "pipeline-spark"]
)
def test_a_restart_in_the_middle_of_batches(running, name):
    """Of each unit.

    It ends as systemd wants it, nothing of it is left, and all is in the table once afterwards.
    """
    running.in_the_middle_of_batches()
    before = running.runs()
    service = running.host.services[name]
    code = service.stop()
    assert code in service.unit.good_codes(), service.said()
    running.produce(BATCH)
    running.host.start(name)
    running.produce(BATCH)
    wait_for(running.holds)
    goes_on = name in {"pipeline-webserver", "pipeline-daemon"}
    assert (set(wait_for(running.runs)) == set(before)) is goes_on


@pytest.mark.certify
@pytest.mark.parametrize("name", ["pipeline-spark", "pipeline-webserver"])
def test_a_port_that_is_taken(running, name):
    """A second one of each unit ends by itself, with the port in what it says: systemd then tries again."""
    service = running.host.start_beside(name)
    wait_for(lambda: service.main.poll() is not None and not service.processes())
    assert service.main.returncode not in service.unit.good_codes()
    taken = r"address already in use|failed to bind to address"
    assert re.search(taken, service.said(), re.IGNORECASE), service.said()


@pytest.mark.certify
def test_all_of_them_end_in_good_order(running):
    """In the middle of batches, the last one first; the group is left, and no process stays."""
    running.in_the_middle_of_batches()
    for name in reversed(UNITS):
        service = running.host.services[name]
        assert service.stop() in service.unit.good_codes(), service.said()
    assert running.cluster().members(running.group) == ()
    assert list(processes_of(running.host.root)) == []
