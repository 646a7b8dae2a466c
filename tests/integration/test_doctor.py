"""The doctor on real services.

What is really set wrong is told, what was put right is not, and nothing is changed.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from uuid import uuid4

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from kafka_liveness_dagster.cli.main import main
from kafka_liveness_dagster.doctor import spark_facts
from kafka_liveness_dagster.doctor.catalog_probe import probe_catalog
from kafka_liveness_dagster.doctor.rules import Outcome
from kafka_liveness_dagster.embedded import services as embedded
from kafka_liveness_dagster.embedded.jars import find_java, resolve_jars
from kafka_liveness_dagster.spark.connect.session import close
from tests.timeouts import connect, seconds, set_timeouts
from tests.waiting import wait_for

KIND = ConfigResource.Type
MINUTE, HOUR_MS = 60, 3_600_000
NOT_NAMED = {("dagster", "settings"), ("location", "settings")}  # no DAGSTER_HOME, no -m and no -f: unknown


@pytest.fixture(scope="module")
def services_with_own_broker(services, tmp_path_factory):
    """The shared Spark, and a broker of this file.

    One test changes the broker so that it refuses every commit.
    """
    home = tmp_path_factory.mktemp("broker")
    try:
        own = embedded.ensure_services(which=("kafka",), home=home)
        yield replace(services, bootstrap_servers=own.bootstrap_servers)
    finally:
        embedded.stop_services(home)


@pytest.fixture
def admin(services_with_own_broker):
    """Who sets things wrong: a client that shares no code with the command."""
    return AdminClient({"bootstrap.servers": services_with_own_broker.bootstrap_servers, "log_level": 0})


@pytest.fixture
def doctor(services_with_own_broker, monkeypatch):
    """What is told by ``kafka-liveness doctor``: the exit code, and by area and check what is not well."""
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    for name in ("SERVER_TIMEOUT_SECONDS", "CATALOG_TIMEOUT_SECONDS", "PROBE_TIMEOUT_SECONDS"):
        monkeypatch.setattr(f"kafka_liveness_dagster.doctor.checkup.{name}", 300.0)
    services = services_with_own_broker
    where = ["--bootstrap-servers", services.bootstrap_servers, "--spark", services.spark_remote]

    def ask(*words):
        done = CliRunner().invoke(main, ["doctor", *where, "--json", *words], catch_exceptions=False)
        told = json.loads(done.stdout)
        found = {(one["area"], one["check"]): one for one in told["findings"]}
        assert sum(told[outcome] for outcome in ("ok", "warn", "fail", "unknown")) == len(found)
        return done.exit_code, {at: one for at, one in found.items() if one["outcome"] != "ok"}

    return ask


@pytest.fixture
def group(services_with_own_broker, admin):
    """A group with two records in its topic, one 40 min old and one of in 30 min, none of them processed."""
    topic, name = f"orders-{uuid4().hex[:8]}", f"etl-{uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(timeout=20)
    config = {"bootstrap.servers": services_with_own_broker.bootstrap_servers, "log_level": 0}
    producer = Producer(config)
    for minutes in (-40, 30):
        producer.produce(topic, b"{}", timestamp=round((time.time() + minutes * MINUTE) * 1000))
    assert producer.flush(120) == 0
    consumer = Consumer({**config, "group.id": name, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()
    return name, topic


@contextmanager
def set_wrong(admin, kind, name, **settings):
    """In the block the settings, with underscores for dots, are these; behind it what they were."""

    def alter(how):
        told = [
            ConfigEntry(key.replace("_", "."), value, incremental_operation=how)
            for key, value in settings.items()
        ]
        resource = ConfigResource(kind, name, incremental_configs=told)
        admin.incremental_alter_configs([resource])[resource].result()

    alter(AlterConfigOpType.SET)
    try:
        yield
    finally:
        alter(AlterConfigOpType.DELETE)


@contextmanager
def quota(bootstrap_servers, bytes_a_second):
    """In the block all users together may read no more; clients in Python cannot set one."""
    words = ["--bootstrap-server", bootstrap_servers, "--alter", "--entity-type", "users", "--entity-default"]
    command = [
        str(find_java()),
        "-Xmx128m",
        "-cp",
        f"{resolve_jars('kafka', show=print)}/*",
        "kafka.admin.ConfigCommand",
    ]

    def alter(how, what):
        subprocess.run([*command, *words, how, what], check=True, capture_output=True)

    alter("--add-config", f"consumer_byte_rate={bytes_a_second}")
    try:
        yield
    finally:
        alter("--delete-config", "consumer_byte_rate")


@contextmanager
def reading_on(config, topic):
    """In the block another client of the login reads a partition over and over, and is throttled."""
    delays, done = [], threading.Event()
    small = {"fetch.message.max.bytes": 20_000, "throttle_cb": delays.append}
    reader = Consumer({**config, "group.id": uuid4().hex, **small})
    reader.assign([TopicPartition(topic, 0, 0)])

    def read():
        read = 0
        while not done.is_set():
            read += reader.poll(0.1) is not None
            if read == 20:
                reader.seek(TopicPartition(topic, 0, 0))
                read = 0

    with ThreadPoolExecutor(1) as pool:
        reads = pool.submit(read)
        try:
            wait_for(lambda: len(delays) > 2, what="the reader is throttled again and again")
            yield
        finally:
            done.set()
        reads.result()
    reader.close()


@pytest.mark.certify
def test_a_quota_that_delays_reads_is_told(doctor, group, services_with_own_broker):
    """Who else of the login has read too much delays the fetch of the doctor, as it delays Spark's."""
    name, topic = group
    config = {"bootstrap.servers": services_with_own_broker.bootstrap_servers, "log_level": 0}
    producer = Producer(config)
    for _ in range(400):
        producer.produce(topic, b"x" * 10_000)
        producer.flush(120)  # small batches, so that one after the other is delayed a little
    assert producer.flush(120) == 0
    reads = (f"topic {topic}", "reads")
    assert reads not in doctor("--group", name)[1]
    wrong = {}

    def is_told():
        wrong.update(doctor("--group", name)[1])
        return reads in wrong

    with quota(config["bootstrap.servers"], 20_000), reading_on(config, topic):
        wait_for(is_told, what="the doctor meets the reader's throttling")
    assert wrong[reads]["outcome"] == "warn"
    assert "a quota delayed a fetch just now by" in wrong[reads]["message"]
    assert "consumer_byte_rate" in wrong[reads]["fix"]


def test_what_is_set_wrong_is_told_until_it_is_put_right(doctor, admin, group, services_with_own_broker):
    """Of broker, group and topic; the one broker with the one copy of the commits is told all the time."""
    name, topic = group
    durable = {("kafka", "offsets topic"), (f"topic {topic}", "clock"), *NOT_NAMED}
    code, wrong = doctor("--group", name)
    assert (code, set(wrong)) == (0, durable)
    assert "copies 1, min.insync.replicas 1, brokers 1" in wrong["kafka", "offsets topic"]["message"]
    # The record was written a while ago
    ahead = r"(30|2\d) min( \d+ s)? ahead of this machine's clock \(CreateTime\)"
    assert re.search(ahead, wrong[f"topic {topic}", "clock"]["message"])
    assert doctor("--group", name, "--strict")[0] == 1

    short = {
        "retention_ms": str(HOUR_MS),
        "retention_bytes": "1000000",
        "unclean_leader_election_enable": "true",
    }
    set_timeouts(services_with_own_broker.bootstrap_servers, name, 6, 5)
    with (
        set_wrong(admin, KIND.TOPIC, topic, **short),
        set_wrong(admin, KIND.BROKER, "1", unclean_leader_election_enable="true"),
        set_wrong(admin, KIND.TOPIC, "__consumer_offsets", min_insync_replicas="2"),
    ):
        code, wrong = doctor("--group", name)
    assert code == 1
    assert {at: one["outcome"] for at, one in wrong.items() if at not in NOT_NAMED} == {
        ("kafka", "elections"): "warn", ("kafka", "offsets topic"): "fail", ("group", "sessions"): "fail",
        (f"topic {topic}", "retention"): "warn", (f"topic {topic}", "size"): "warn",
        (f"topic {topic}", "backlog"): "warn", (f"topic {topic}", "elections"): "warn",
        (f"topic {topic}", "clock"): "warn",
    }  # fmt: skip
    assert "the broker rejects every commit" in wrong["kafka", "offsets topic"]["fix"]
    assert "session 6,000 ms, heartbeat 5,000 ms" in wrong["group", "sessions"]["message"]
    old = r"4\d min( \d+ s)? old, 6\d% of 1 h"
    assert re.search(old, wrong[f"topic {topic}", "backlog"]["message"])

    set_timeouts(services_with_own_broker.bootstrap_servers, name, 45, 5)
    assert doctor("--group", name)[0] == 0
    assert set(doctor("--group", name)[1]) == durable


def test_who_is_not_there_is_told_in_time(doctor):
    """A group that nobody knows is a warning.

    A broker and a Spark that do not answer fail, each with what helps.
    """
    code, wrong = doctor("--group", "nobody")
    assert code == 0
    assert "has not begun yet" in wrong["group", "nobody"]["message"]
    began_at = time.monotonic()
    code, wrong = doctor("--bootstrap-servers", "127.0.0.1:1", "--spark", "sc://127.0.0.1:1/;token=hunter2")
    assert time.monotonic() - began_at < seconds(60), "pyspark and librdkafka alone would go on for minutes"
    assert (code, set(wrong)) == (1, {("kafka", "brokers"), ("spark", "server"), *NOT_NAMED})
    assert "set DAGSTER_HOME" in wrong["dagster", "settings"]["fix"]
    assert "no Kafka broker answered at 127.0.0.1:1" in wrong["kafka", "brokers"]["message"]
    assert wrong["spark", "server"]["message"].startswith("no server listens at 127.0.0.1:1")


def test_a_machine_in_another_time_zone(doctor, monkeypatch):
    """Spark's own clock and zone stay: this one's differ."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        _, wrong = doctor()
    time.tzset()
    assert "this machine's Asia/Tokyo" in wrong["spark", "time zone"]["message"]
    assert ("spark", "clock") not in wrong


def test_a_catalog_is_probed_on_a_scratch_table(doctor, spark):
    """In a namespace of its own or in one that exists; afterwards the catalog is as it was."""
    spark.sql(f"CREATE NAMESPACE {(scratch := f'lake.scratch_{uuid4().hex[:8]}')}")

    def left():
        namespaces = [row[0] for row in spark.sql("SHOW NAMESPACES IN lake").collect()]
        return [one for one in namespaces if one.startswith("kafka_liveness_probe")], spark.sql(
            f"SHOW TABLES IN {scratch}"
        ).collect()

    for where in ("lake", scratch):
        code, wrong = doctor("--probe-catalog", where)
        assert code == 0
        assert [at for at in wrong if at[0] == f"catalog {where}"] == []
    assert left() == ([], [])
    code, wrong = doctor("--probe-catalog", "nowhere")
    assert code == 1
    assert "has no catalog 'nowhere'" in wrong["catalog nowhere", "create"]["message"]
    assert wrong["catalog nowhere", "race"]["outcome"] == "unknown"


def test_a_probe_reports_what_a_catalog_does_otherwise(services):
    """One that forbids deletion, as Nessie does, and has properties of its own."""
    session = connect(services.spark_remote)
    for name, value in (("gc.enabled", "false"), ("commit.retry.num-retries", "4")):
        session.conf.set(f"spark.sql.catalog.lake.table-override.{name}", value)
    try:
        found = {one.check: one for one in probe_catalog(session, "lake")}
    finally:
        close(session)
    assert {check for check, one in found.items() if one.outcome is not Outcome.OK} == {"properties", "drop"}
    assert "commit.retry.num-retries=4, gc.enabled=false" in found["properties"].message
    assert "expires no snapshot" in found["expiry"].message
    assert "its files are still there" in found["drop"].message


def test_a_class_that_is_not_there_is_an_answer(spark, capfd):
    """Nothing is printed of it; pyspark alone would print a page of JSON."""
    assert spark_facts._call_java(spark, "no.such.Class", "version") is None
    assert capfd.readouterr() == ("", "")
