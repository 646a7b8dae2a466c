"""The whole default as a user starts it.

One command, both services, a token, and nothing left where he stands.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import psutil
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.cli.main import main
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.doctor import checkup
from kafka_liveness_dagster.doctor.rules import Outcome
from kafka_liveness_dagster.embedded import jars, services, state
from kafka_liveness_dagster.embedded import spark as embedded_spark
from kafka_liveness_dagster.embedded.processes import free_port
from kafka_liveness_dagster.sensor.table_ledger import TableLedgerReader
from kafka_liveness_dagster.spark.connect import health
from kafka_liveness_dagster.spark.connect.session import close, connect
from kafka_liveness_dagster.spark.error_classification import is_cancelled
from tests.embedded.other_user import constant, java_of_nobody, send_message, unguarded

CLI = [sys.executable, "-c", "from kafka_liveness_dagster.cli.main import main; main()"]


@pytest.fixture(scope="module")
def where(tmp_path_factory):
    """An empty folder to be in."""
    return tmp_path_factory.mktemp("where_the_user_stands")


@pytest.fixture(scope="module")
def told(shared_home, where):
    """What ``up --json`` prints."""
    up = subprocess.run([*CLI, "up", "--json"], cwd=where, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(up.stdout)


def test_up_prints_one_json_object(told):
    """Standard output of ``up --json`` is one object with all that clients need, whatever else was shown."""
    assert list(told) == ["bootstrap_servers", "spark_remote", "catalog_uri", "warehouse", "catalog_name"]
    assert all(told.values())


def test_a_table_written_by_spark_is_read_by_pyiceberg(told, where):
    """Both see one catalog and one warehouse, and nothing is dropped in the folder of the user."""
    spark = connect(told["spark_remote"])
    spark.sql("create namespace lake.shop")
    spark.sql("create table lake.shop.orders using iceberg as select id from range(70, 120)").collect()
    spark.stop()
    where_it_is = {"uri": told["catalog_uri"], "warehouse": told["warehouse"]}
    lake = SqlCatalog(told["catalog_name"], **where_it_is)
    assert lake.load_table("shop.orders").scan().to_arrow().num_rows == 50
    with pytest.raises(NoSuchTableError):  # a catalog's tables are found by its name
        SqlCatalog("mine", **where_it_is).load_table("shop.orders")
    assert list(where.iterdir()) == []


@pytest.mark.parametrize(
    ("token", "why"), [("", "No authentication token"), (";token=guessed", "Invalid auth")]
)
def test_a_client_without_the_token_is_refused(told, token, why):
    """Other users of this machine reach the port, but may not run anything."""
    stranger = told["spark_remote"].partition("/;")[0] + "/" + token
    with pytest.raises(kl.SparkUnreachableError, match=why):
        connect(stranger)


def test_the_token_is_on_no_command_line_and_in_no_log(told, shared_home):
    """Command lines are shown to every user, and logs are sent around."""
    token = told["spark_remote"].partition("token=")[2]
    spark = psutil.Process(state.read_state(shared_home)["spark"].pid)
    assert spark.name() == "java"
    assert not any(token in argument for argument in spark.cmdline())
    assert not any(token in log.read_text() for log in (shared_home / "logs").iterdir())
    assert not any(token in conf.read_text() for conf in (shared_home / "spark" / "conf").iterdir())


def test_another_user_cannot_drive_spark_by_its_own_rpc(told):
    """Without it, any user that reaches the driver's port stops its block manager or executor.

    The port also deserializes objects.
    """
    spark = connect(told["spark_remote"], timeout_seconds=120)
    try:
        port = int(spark.conf.get("spark.driver.port"))
        with java_of_nobody() as java:
            storage, local = java.org.apache.spark.storage, java.org.apache.spark.scheduler.local
            messages = {
                "BlockManagerMaster": constant(storage, "BlockManagerMessages$StopBlockManagerMaster"),
                "LocalSchedulerBackendEndpoint": constant(local, "StopExecutor"),
            }
            with unguarded(java) as control, pytest.raises(Py4JJavaError, match="Cannot find endpoint"):
                send_message(java, control, "BlockManagerMaster", messages["BlockManagerMaster"])
            for (endpoint, message), secret in zip(messages.items(), (None, "guessed"), strict=True):
                with pytest.raises(
                    Py4JJavaError, match=r"SaslException|Expected SaslMessage|Outbox is stopped"
                ):
                    send_message(java, port, endpoint, message, secret)
        assert spark.range(0, 5, 1, 3).repartition(2).count() == 5
    finally:
        close(spark)


def test_up_leaves_a_busy_spark_alone(told, shared_home, monkeypatch):
    """A job that waits for a core does not show that the server is dead: its batches go on."""
    before = state.read_state(shared_home)["spark"]
    monkeypatch.setattr(health, "JOB_TIMEOUT_SECONDS", 0.5)
    spark = connect(told["spark_remote"], timeout_seconds=120)
    busy = spark.range(0, 4, 1, 4).selectExpr("java_method('java.lang.Thread', 'sleep', 600000L + id)")
    seen = Event()
    spark.registerProgressHandler(lambda inflight_tasks, **_: inflight_tasks >= 2 and seen.set())
    try:
        with ThreadPoolExecutor(1) as aside:
            batch = aside.submit(busy.collect)
            try:
                assert seen.wait(120), "both cores are taken"
                up = CliRunner().invoke(main, ["up", "--json"])
                assert not batch.done()
            finally:
                spark.interruptAll()
            assert is_cancelled(batch.exception())
    finally:
        close(spark)
    assert up.exit_code == 0
    assert "Spark is busy or hangs, and was not restarted" in up.stderr
    assert json.loads(up.stdout) == told
    assert state.read_state(shared_home)["spark"] == before


@pytest.mark.certify
def test_a_spark_that_is_dead_behind_an_open_port_is_noticed(home, monkeypatch, tmp_path):
    """Its executor has stopped, and it answers: doctor and sensor name that, and `up` restarts it."""
    (tmp_path / "spark.conf").write_text("spark.authenticate false\n")  # for the attack of the test above
    monkeypatch.setenv("KAFKA_LIVENESS_SPARK_CONF", str(tmp_path / "spark.conf"))
    remote = services.ensure_services(which=("spark",)).spark_remote
    spark = connect(remote, timeout_seconds=120)
    spark.sql("create namespace lake.shop")
    spark.sql(
        "create table lake.shop.orders using iceberg as select 'orders' topic, 0 partition, 70L offset"
    ).collect()
    port = int(spark.conf.get("spark.driver.port"))
    close(spark)
    with java_of_nobody() as java:
        stop = constant(java.org.apache.spark.scheduler.local, "StopExecutor")
        assert send_message(java, port, "LocalSchedulerBackendEndpoint", stop)
    look = TableLedgerReader("lake.shop.orders", kl.SparkConnectResource(), connect_seconds=120)
    look.read({})
    assert (
        "responds, but cannot run a job (java.util.concurrent.RejectedExecutionException"
        in look.unavailable_reason
    )
    assert "`kafka-liveness up` restarts the embedded one" in look.unavailable_reason
    [doctor] = checkup.check_spark(lambda: remote)
    assert doctor.outcome is Outcome.FAIL
    assert "responds, but cannot run a job" in doctor.message
    before = state.read_state(home)["spark"]
    up = subprocess.run([*CLI, "up", "--json"], capture_output=True, text=True, check=True)
    assert "cannot run a job" in up.stderr
    assert json.loads(up.stdout)["spark_remote"] == remote
    assert state.read_state(home)["spark"].pid != before.pid
    services.mark_for_restart(before)  # as of an `up` that was slower: this is another Spark
    assert services.running_services().spark_remote == remote


@pytest.mark.certify
def test_a_stopped_spark_context_is_noticed():
    """The server of a context that stopped answers, and opens no session."""
    port = free_port()
    with java_of_nobody() as java:
        builder = (
            java.org.apache.spark.sql.SparkSession.builder()
            .master("local[1]")
            .config("spark.ui.enabled", "false")
        )
        spark = builder.config("spark.connect.grpc.binding.port", str(port)).getOrCreate()
        constant(java.org.apache.spark.sql.connect.service, "SparkConnectService").start(spark.sparkContext())
        session = connect(f"sc://localhost:{port}", timeout_seconds=120)
        assert health.dead_reason(session, 120) == ""
        spark.sparkContext().stop()
        why = f"Spark at sc://localhost:{port} responds, but cannot run a job"
        assert health.dead_reason(session, 120).startswith(why)
        assert health.dead_reason_at(f"sc://localhost:{port}").startswith(why)
        close(session)


def test_the_doctor_finds_nothing_wrong(told):
    """Every check passes on the embedded default, without a warning.

    Of Dagster nothing is known without its home.
    """
    doctor = subprocess.run(
        [*CLI, "doctor"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "DAGSTER_HOME": ""},
    )
    *lines, counts = doctor.stdout.splitlines()
    well = [line for line in lines if line.startswith("ok")]
    assert {line.split()[1] for line in well} == {"machine", "kafka", "spark", "catalog"}
    assert counts == f"{len(well)} ok, 0 warn, 0 fail, 2 unknown", doctor.stdout
    unknown = [line.split()[1] for line in lines if line.startswith("?")]
    assert unknown == ["dagster", "location"], "what was not named was not looked at"
    assert "set DAGSTER_HOME" in doctor.stdout
    assert "session timeouts of 1,000 to 1,800,000 ms" in doctor.stdout
    assert doctor.returncode == 0


def test_the_doctor_waits_for_no_silent_spark(monkeypatch):
    """A server that takes connections and says nothing: pyspark alone would go on for ten minutes."""
    monkeypatch.setattr(checkup, "SPARK_TIMEOUT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"sc://127.0.0.1:{silent.getsockname()[1]}/;token=hunter2"
        [spark] = checkup.check_spark(lambda: url)
    assert spark.outcome is Outcome.FAIL
    assert "no Spark Connect server answered" in spark.message
    assert "hunter2" not in spark.message


def test_down_leaves_no_process(told, shared_home, processes_of):
    """``down`` leaves no service and no child of one, a second one finds none, and ``up`` starts both."""
    assert len(processes_of(shared_home)) == 2
    assert subprocess.check_output([*CLI, "down"], text=True) == "stopped: spark, kafka\n"
    assert processes_of(shared_home) == []
    assert subprocess.check_output([*CLI, "down"], text=True) == "stopped: nothing ran\n"
    again = subprocess.run([*CLI, "up", "--json"], stdout=subprocess.PIPE, text=True, check=True)
    assert json.loads(again.stdout) == told


def test_the_users_settings_come_last(tmp_path, monkeypatch):
    """Spark takes the later of two lines, and finds its own way back.

    A file that is not there is an error.
    """

    def launch():
        return embedded_spark.prepare_launch(tmp_path / "home", 1, "token", "mark", lambda _: None)

    monkeypatch.setenv("KAFKA_LIVENESS_SPARK_CONF", str(tmp_path / "spark.conf"))
    with pytest.raises(InvalidSettingError, match="No such file or directory"):
        launch()
    theirs = (
        "memory 3g",
        "extraClassPath=theirs.jar",
        "extraJavaOptions -Xint",
        "extraClassPath /opt/s3.jar:/opt/b/* ",
    )
    (tmp_path / "spark.conf").write_text("".join(f"spark.driver.{line}\n" for line in theirs))
    launch()
    lines = (tmp_path / "home" / "spark" / "conf" / "spark-defaults.conf").read_text().splitlines()
    assert [line for line in lines if "driver.memory" in line] == [
        "spark.driver.memory 1g",
        "spark.driver.memory 3g",
    ]
    assert ["mark" in line for line in lines if "extraJavaOptions" in line] == [True, False, True]
    class_path = [line for line in lines if "extraClassPath" in line][-1]
    assert class_path == f"spark.driver.extraClassPath {jars.resolve_jars('spark')}/*:/opt/s3.jar:/opt/b/*"
