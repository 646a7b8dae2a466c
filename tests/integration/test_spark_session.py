"""A Spark Connect server that is away is told in seconds."""

from __future__ import annotations

import gc
import re
import socket
import subprocess
import sys
import time
import weakref
from datetime import datetime
from functools import partial

import pytest
from pyspark.errors.exceptions.connect import SparkConnectException
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql.connect.session import SparkSession as ConnectSession

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.embedded import services as embedded
from kafka_liveness_dagster.spark.connect import session as sessions
from kafka_liveness_dagster.spark.connect.job import SparkJob
from kafka_liveness_dagster.spark.connect.session import close
from kafka_liveness_dagster.spark.connect.session import connect as connect_at_once
from kafka_liveness_dagster.spark.errors import SparkUnreachableError
from kafka_liveness_dagster.spark.sink import replace_rows
from kafka_liveness_dagster.spark.table.ledger import TableLedger
from kafka_liveness_dagster.spark.table.table import IcebergTable
from kafka_liveness_dagster.spark.table.write import write_table
from kafka_liveness_dagster.spark.transform import TransformedBatch
from tests.integration import canceled_run
from tests.integration.silent_proxy import SilentProxy
from tests.spark_addresses import spark_at
from tests.timeouts import CONNECT_SECONDS, connect, seconds
from tests.waiting import wait_for

IN_TIME = seconds(30)  # pyspark alone would go on for ten minutes


def test_each_caller_has_a_session_of_its_own(services):
    """Two callers share nothing: a setting of one is not seen by the other."""
    one, other = connect(services.spark_remote), connect(services.spark_remote)
    one.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    assert other.conf.get("spark.sql.session.timeZone") != "Asia/Tokyo"
    one.stop()
    assert other.range(3).count() == 3
    other.stop()


def test_a_server_that_was_started_anew_has_a_new_session(services):
    """It refuses the session of before, once.

    A run that goes on has one of the new server's, and so has a look.
    """
    spark = spark_at(services.spark_remote)
    before = spark.session()
    before.client._server_session_id = "of the server before"
    with pytest.raises(SparkConnectException, match="NO_ACTIVE_SESSION"):
        before.range(3).count()
    assert spark.session().range(3).count() == 3
    assert spark.session() is spark.session()
    spark.session().client._server_session_id = "of the server before"
    assert TableLedger(IcebergTable("lake.shop.nowhere"), spark.session).read([]) == {}
    spark.teardown_after_execution(None)


def test_a_session_that_is_opened_ahead_is_the_one_that_is_asked_for(services):
    """Once; its end is the resource's, also when nobody has asked for it."""
    spark = spark_at(services.spark_remote)
    spark.open_ahead()
    opened = spark._opening_session
    spark.open_ahead()
    assert spark.session() is opened.result() is spark.session()
    spark.teardown_after_execution(None)
    assert opened.result().client.is_closed
    spark.open_ahead()
    unused = spark._opening_session
    spark.teardown_after_execution(None)
    wait_for(lambda: unused.result().client.is_closed)


def test_what_hinders_a_session_that_is_opened_ahead_is_told_who_asks(monkeypatch, tmp_path):
    """And asked for again by the next one. The embedded server is started by who needs it, not ahead."""
    spark = kl.SparkConnectResource(remote="sc://localhost:1")
    monkeypatch.setattr(sessions, "connect", partial(connect_at_once, timeout_seconds=1))
    spark.open_ahead()
    for _ in range(2):
        with pytest.raises(SparkUnreachableError, match="localhost:1"):
            spark.session()
    monkeypatch.setenv("KAFKA_LIVENESS_HOME", str(tmp_path))
    embedded = kl.SparkConnectResource()
    embedded.open_ahead()
    assert embedded._opening_session.result() is None
    embedded.teardown_after_execution(None)
    assert not [*tmp_path.iterdir()]


def test_an_unreachable_server_is_named_in_time():
    """Nobody listens: an error with the address and the remedy, within the time given."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.monotonic()
    says = rf"no Spark .*localhost:{port}/;token=\*\*\* \(.*refused\)\. Fix: .*kafka-liveness up"
    with pytest.raises(SparkUnreachableError, match=says) as e:
        connect_at_once(f"sc://localhost:{port}/;token=s3cr3t")
    assert time.monotonic() - began < IN_TIME
    assert "s3cr3t" not in str(e.value)


def test_no_session_is_taken_for_everybodys(services):
    """Pyspark asks the active session, or else the default one, for settings.

    Also one that was refused, or is over.
    """
    before = ConnectSession.getActiveSession(), ConnectSession._default_session
    with pytest.raises(SparkUnreachableError):
        connect_at_once("sc://localhost:1", timeout_seconds=1)
    session = connect(services.spark_remote)
    assert (ConnectSession.getActiveSession(), ConnectSession._default_session) == before
    close(session)


def test_a_server_that_accepts_and_says_nothing_is_named_in_time():
    """A listener that never speaks gRPC (a stuck JVM, another program) is unreachable too."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(SparkUnreachableError, match="no Spark Connect server answered"):
            connect_at_once(f"sc://localhost:{silent.getsockname()[1]}", timeout_seconds=2)
        assert time.monotonic() - began < IN_TIME


def test_a_server_that_is_slow_is_waited_for(services, monkeypatch):
    """It accepts the connection, and has no time for it yet; how long it may take is a setting."""
    monkeypatch.setattr(sessions, "ACCEPT_TIMEOUT_SECONDS", 0.5)
    port, said = int(re.search(r":(\d+)", services.spark_remote)[1]), []
    with SilentProxy(port) as proxy:
        remote = services.spark_remote.replace(f":{port}", f":{proxy.port}")

        def say(sentence):
            said.append(sentence)
            proxy.resume()

        proxy.fall_silent()
        session = connect_at_once(remote, timeout_seconds=seconds(CONNECT_SECONDS), report=say)
        assert session.range(3).count() == 3
        close(session)
        assert len(said) == 1
        assert "accepts connections, and opened no session" in said[0]
        proxy.fall_silent()
        # The tests' own is more patient than the setting
        monkeypatch.setattr(sessions, "connect", connect_at_once)
        with pytest.raises(SparkUnreachableError, match=r"within 1 s.*connect_timeout_seconds"):
            kl.SparkConnectResource(remote=remote, connect_timeout_seconds=1.0).session()


def test_the_processs_own_session_may_be_dead(services, make_topic, produce, table, monkeypatch):
    """A notebook's, or one of `getOrCreate()`: pyspark asks it for settings, in our calls too."""
    topic = make_topic()
    produce(services.bootstrap_servers, topic, 0, "a")
    options, ranges = {"kafka.bootstrap.servers": services.bootstrap_servers}, (OffsetRange(topic, 0, 0, 1),)
    own = connect(services.spark_remote)
    own.client._server_session_id = "of the server before"
    monkeypatch.setattr(ConnectSession._active_session, "session", own, raising=False)
    monkeypatch.setattr(ConnectSession, "_default_session", own)
    monkeypatch.setattr("pyspark.errors.utils._enable_debugging_cache", None)
    seen = []

    def transform(batch):
        seen.append(ConnectSession.builder.getOrCreate())
        return batch.withColumn("read_at", F.lit(datetime(2026, 11, 26)))  # noqa: DTZ001 - Spark's own kind

    def sink(replacement):
        seen.append(ConnectSession.getActiveSession())
        return replacement.rows.count()

    session = connect(services.spark_remote)
    rows = TransformedBatch(transform, session, ranges, options=options)
    assert TableLedger(IcebergTable(table), lambda: session).read([]) == {}
    with SparkJob(session):
        assert write_table(session, table, ranges, rows).rows == 1
        assert replace_rows(sink, ranges, rows).rows == 1
    assert set(seen) == {session}
    assert ConnectSession._active_session.session is own
    assert not own.is_stopped, "nobody asked it"
    close(session)


@pytest.fixture
def small_spark(tmp_path, monkeypatch):
    """A server of the test's own, with 600 MB of memory."""
    (tmp_path / "spark.conf").write_text("spark.driver.memory 600m\n")
    monkeypatch.setenv("KAFKA_LIVENESS_SPARK_CONF", str(tmp_path / "spark.conf"))
    try:
        yield embedded.ensure_services(which=("spark",), home=tmp_path / "home").spark_remote
    finally:
        embedded.stop_services(tmp_path / "home")


@pytest.mark.certify
def test_a_spark_that_runs_out_of_memory_is_lost_and_no_transform_is_to_blame(small_spark):
    """It ends itself, and answers for some seconds more that its SparkContext is stopped."""
    session = connect(small_spark)
    says = (
        r"was lost in the middle of a batch: the server or one.*ended.*spark\.driver\.memory.*out of memory"
    )
    with pytest.raises(SparkUnreachableError, match=says), SparkJob(session):
        frame = session.range(1_000).selectExpr("repeat(string(id), 900000000) AS v")
        frame.write.format("noop").mode("overwrite").save()


def test_a_wrong_token_is_named_and_never_shown(services):
    """The server refuses us at once; the message has the address, not the token."""
    remote = re.sub(r"token=.*", "token=s3cr3t", services.spark_remote)
    began = time.monotonic()
    with pytest.raises(SparkUnreachableError, match=r"token=\*\*\*.*[Tt]oken.*check the token") as e:
        connect(remote)
    assert time.monotonic() - began < CONNECT_SECONDS / 2
    assert "s3cr3t" not in str(e.value)


def test_what_is_no_spark_connect_url_is_refused_at_once():
    """A wrong scheme is a wrong setting, not an unreachable server."""
    with pytest.raises(InvalidSettingError, match="Fix: write it as sc://host:port"):
        connect_at_once("spark://localhost:7077")


def test_a_forgotten_session_is_not_collected(services):
    """Its ``__del__`` can wait for ever inside another session's call, so it must never run."""
    session = connect(services.spark_remote)
    session.stop()
    forgotten = weakref.ref(session)
    del session
    gc.collect()
    assert forgotten() is not None


def test_an_interrupt_while_a_call_begins_stops_nothing_for_ever(services):
    """Dagster's signal is raised in the main thread wherever it is.

    Inside gRPC it left a lock taken, for the end's.
    """
    command = [sys.executable, "-m", "tests.integration.canceled_run", services.spark_remote]
    said = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout
    outcomes = [line.partition(": ")[2] for line in said.splitlines()]
    assert set(outcomes) == {canceled_run.ENDED}, said
    assert len(outcomes) >= 3, "a lock for each of its calls, and one for each answer"


def test_files_are_read_as_they_are_without_us(spark):
    """By Spark's V1 readers, with ``_metadata`` and all; Kafka alone by the new one."""
    sources = set(spark.conf.get("spark.sql.sources.useV1SourceList").split(","))
    assert sources >= {"avro", "csv", "json", "orc", "parquet", "text"}
    assert "kafka" not in sources
