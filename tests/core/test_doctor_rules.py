"""What is told of a deployment.

Each row changes one fact of one that is well, and one answer changes with it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_liveness_dagster.core.health import Severity, Verdict
from kafka_liveness_dagster.doctor import dagster_rules, kafka_rules, spark_rules
from kafka_liveness_dagster.doctor.dagster_rules import GroupSensorFacts, facts_with_defaults
from kafka_liveness_dagster.doctor.rules import FAIL, OK, Finding, Outcome, Unavailable, run_rules
from kafka_liveness_dagster.doctor.spark_rules import ClockSkew, Jar, TimeZoneFacts, find_catalogs

WARN, UNKNOWN = Outcome.WARN, Outcome.UNKNOWN
DAY_MS = 86_400_000
CONNECTOR, RUNTIME = "spark-sql-kafka-0-10_2.13-{}.jar", "iceberg-spark-runtime-{}_2.13-1.12.0.jar"
UTC, BERLIN = TimeZoneFacts("UTC", (0, 15_638_400)), TimeZoneFacts("Europe/Berlin", (-3_600, 15_631_200))
ICEBERGS = "org.apache.iceberg.spark.SparkCatalog"

CLUSTER = kafka_rules.CLUSTER, {
    "differing": {},
    "group.min.session.timeout.ms": "6000",
    "group.max.session.timeout.ms": "1800000",
    "offset.metadata.max.bytes": "4096",
    "offsets.retention.minutes": "10080",
    "unclean.leader.election.enable": "false",
    "auto.create.topics.enable": "false",
}  # fmt: skip
COMMITS = (
    kafka_rules.OFFSETS_TOPIC,
    {"copies": 3, "min.insync.replicas": "2", "brokers": 3, "embedded": False},
)
GROUP = kafka_rules.GROUP, {"consumer.session.timeout.ms": "45000", "consumer.heartbeat.interval.ms": "5000"}
BACKLOG = kafka_rules.BACKLOG, {"expiry": Verdict(Severity.FINE, "no waiting record is about to expire")}
TOPIC = (
    kafka_rules.TOPIC,
    {
        "retention.ms": str(7 * DAY_MS),
        "offsets.retention.minutes": "10080",
        "retention.bytes": "-1",
        "unclean.leader.election.enable": "false",
        "message.timestamp.type": "CreateTime",
        "age seconds": 60.0,
        "ahead seconds": -1.0,
        "throttle seconds": 0.0,
    },
)
SERVER = (
    spark_rules.SERVER,
    {
        "version": "4.1.3",
        "client": "4.1.4",
        "connector": Jar(CONNECTOR.format("4.1.3")),
        "run with": "4.1.3",
        "iceberg": "1.12.0",
        "iceberg jar": Jar(RUNTIME.format("4.1")),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.connect.execute.manager.detachedTimeout": "60s",
        "spark.connect.progress.reportInterval": "500ms",
        "spark.kafka.consumer.fetchedData.cache.timeout": "10s",
        "spark.scheduler.mode": "FAIR",
        "zone": UTC,
        "host zone": TimeZoneFacts("Etc/UTC", UTC.midnights),
        "skew": ClockSkew(-0.1, 0.1),
    },
)
CATALOG = spark_rules.CATALOG, {
    "class": ICEBERGS, "cache-enabled": "false", "type": "rest", "warehouse": "s3://lake",
}  # fmt: skip
WELL = {
    "run_monitoring": {"enabled": True, "poll_interval_seconds": 30, "free_slots_after_run_end_seconds": 60},
    "run_coordinator": {
        "module": "dagster",
        "class": "QueuedRunCoordinator",
        "config": {"dequeue_interval_seconds": 1},
    },
    "concurrency": {
        "runs": {
            "max_concurrent_runs": 50,
            "tag_concurrency_limits": [{"key": "kafka_liveness/lane", "value": "catch-up", "limit": 10}],
        },
        "pools": {"granularity": "run"},
    },
    "storage": {"postgres": {}},
    "sensors": {"use_threads": True},
    "retention": {"sensor": {"purge_after_days": {"skipped": 1, "success": 30}}},
}
INSTANCE = (
    dagster_rules.INSTANCE,
    {
        **facts_with_defaults(WELL),
        "groups": ("orders-etl", "clicks-etl"),
        "daemon seconds": 20.0,
        "embedded": False,
    },
)
ON = GroupSensorFacts(
    "orders-etl", "orders_sensor", True, interval_seconds=5.0, tick_period_seconds=5.2, idle_seconds=1.0
)
OFF = GroupSensorFacts("clicks-etl", "clicks_sensor", False, interval_seconds=5.0)
LOCATION = dagster_rules.LOCATION, {"executor": "in_process", "sensors": (ON,)}
RUNS, MONITORING = "concurrency.runs.", "run_monitoring."


def answers(of, **changed):
    rules, facts = of
    return {one.check: one.result for one in run_rules("it", rules, {**facts, **changed})}


@pytest.mark.parametrize("of", [CLUSTER, COMMITS, GROUP, BACKLOG, TOPIC, SERVER, CATALOG, INSTANCE, LOCATION])
def test_what_is_well_is_told_without_advice(of):
    """With what it was judged by."""
    found = answers(of)
    assert {answer.outcome for answer in found.values()} == {Outcome.OK}
    assert all(answer.message and not answer.advice for answer in found.values())


@pytest.mark.parametrize(
    ("of", "changed", "check", "outcome", "words"),
    [
        (CLUSTER, {"differing": {"offsets.retention.minutes": {1: "10080", 2: "60"}}}, "agreement", WARN,
            "is 10080 on broker 1, 60 on broker 2"),
        (CLUSTER, {"group.min.session.timeout.ms": "30000"}, "sessions", WARN,
            "holds its partitions for 30 s"),
        (CLUSTER, {"group.max.session.timeout.ms": "30000"}, "sessions", WARN, "to 45,000 or more"),
        (CLUSTER, {"offset.metadata.max.bytes": "1024"}, "commit metadata", Outcome.FAIL, "set it to 4,096"),
        (CLUSTER, {"offsets.retention.minutes": "1440"}, "offsets retention", WARN, "1,440 (24 h)"),
        (CLUSTER, {"unclean.leader.election.enable": "true"}, "elections", WARN, "TopicRecreatedError"),
        (CLUSTER, {"auto.create.topics.enable": "true"}, "auto creation", WARN, "set it to false"),
        (COMMITS, {"copies": "1", "brokers": 1, "min.insync.replicas": "1"}, "offsets topic", WARN,
            "3 copies"),
        (COMMITS, {"min.insync.replicas": "1"}, "offsets topic", WARN, "min.insync.replicas=2"),
        (COMMITS, {"min.insync.replicas": "4"}, "offsets topic", Outcome.FAIL, "rejects every commit"),
        (COMMITS, {"copies": Unavailable("needs DESCRIBE")}, "offsets topic", UNKNOWN, "needs DESCRIBE"),
        (GROUP, {"consumer.heartbeat.interval.ms": "15001"}, "sessions", Outcome.FAIL, "a third"),
        (BACKLOG, {"expiry": Verdict(Severity.WARNING, "70-120 expire soon")}, "expiry", WARN, "70-120"),
        (BACKLOG, {"expiry": Verdict(Severity.ERROR, "expired: 70-120")}, "expiry", Outcome.FAIL, "status"),
        (TOPIC, {"retention.ms": str(DAY_MS)}, "retention", WARN, "to 259,200,000 (3 days)"),
        (TOPIC, {"offsets.retention.minutes": "1440"}, "retention", WARN, "to 10,080 or more"),
        (TOPIC, {"retention.bytes": "1000000"}, "size", WARN, "1,000,000 per partition"),
        (TOPIC, {"age seconds": 4 * 86_400.0}, "backlog", WARN, "4 days old, 57% of 7 days"),
        (TOPIC, {"age seconds": 6.5 * 86_400.0}, "backlog", Outcome.FAIL, "deletes the record at 100%"),
        (TOPIC, {"throttle seconds": 39.9}, "reads", WARN, "delayed a fetch just now by 39.90 s"),
        (TOPIC, {"ahead seconds": 3_600.0}, "clock", WARN, "1 h ahead of this machine's clock (CreateTime)"),
        (SERVER, {"client": "4.2.0"}, "version", WARN, "install pyspark 4.1"),
        (SERVER, {"connector": None}, "kafka connector", Outcome.FAIL, "spark-sql-kafka-0-10_2.13 4.1"),
        (SERVER, {"connector": Jar(CONNECTOR.format("4.0.1"))}, "kafka connector", Outcome.FAIL,
            "on Spark 4.1.3"),
        (SERVER, {"connector": Jar("")}, "kafka connector", UNKNOWN, "pyspark 4.1.4 goes with 4.1.3"),
        (SERVER, {"connector": Jar(CONNECTOR.format("4.1.1"))}, "kafka connector", WARN,
            "with pyspark 4.1.4; replace"),
        (SERVER, {"run with": None}, "kafka connector", WARN, "docs/spark.md"),
        (SERVER, {"iceberg": None}, "iceberg", Outcome.FAIL, "iceberg-spark-runtime-4.1_2.13 1.12.0"),
        (SERVER, {"iceberg jar": Jar(RUNTIME.format("4.0"))}, "iceberg", Outcome.FAIL,
            "for Spark 4.0 on Spark 4.1.3"),
        (SERVER, {"iceberg": "1.9.2"}, "iceberg", WARN, "1.9.2"),
        (SERVER, {"spark.sql.extensions": None}, "extensions", WARN, "is not set"),
        (SERVER, {"spark.connect.execute.manager.detachedTimeout": None}, "detached work", WARN,
            "after 5 min"),
        (SERVER, {"spark.connect.progress.reportInterval": None}, "progress", WARN, "every 2 s"),
        (SERVER, {"spark.kafka.consumer.fetchedData.cache.timeout": None}, "fetched records", WARN, "5 min"),
        (SERVER, {"spark.scheduler.mode": None}, "scheduler", WARN, "by FIFO, the default"),
        (SERVER, {"spark.scheduler.mode": "FIFO"}, "scheduler", WARN, "spark.scheduler.mode=FAIR"),
        (SERVER, {"zone": BERLIN}, "time zone", WARN, "is Europe/Berlin, this machine's Etc/UTC"),
        (SERVER, {"skew": ClockSkew(59.9, 60.1)}, "clock", WARN, "off by +59.90 to +60.10 s"),
        (SERVER, {"skew": ClockSkew(-60.1, -59.9)}, "clock", WARN, "off by -60.10 to -59.90 s"),
        (CATALOG, {"cache-enabled": None}, "cache", WARN, "up to 30 s late"),
        (CATALOG, {"type": "hadoop"}, "commits", Outcome.FAIL, "no atomic rename"),
        (INSTANCE, {f"{MONITORING}enabled": False}, "monitoring", WARN, "run_monitoring.enabled: true"),
        (INSTANCE, {f"{MONITORING}free_slots_after_run_end_seconds": 0}, "monitoring", WARN, "indefinitely"),
        (INSTANCE, {"run_coordinator.class": "DefaultRunCoordinator"}, "queue", WARN, "QueuedRunCoordinator"),
        (INSTANCE, {"run_coordinator.config.dequeue_interval_seconds": 5}, "queue", WARN, "every 5 s"),
        (INSTANCE, {f"{RUNS}max_concurrent_runs": 2}, "limits", Outcome.FAIL, "the last group never starts"),
        (INSTANCE, {f"{RUNS}tag_concurrency_limits": [{"key": "kafka_liveness/lane", "limit": 5}]}, "limits",
            Outcome.FAIL, "holds back kafka_liveness/lane: any"),
        (INSTANCE, {"groups": Unavailable("name the code location")}, "limits", UNKNOWN,
            "name the code location"),
        (INSTANCE, {"concurrency.pools.granularity": "op"}, "pools", WARN, "set it to run"),
        (INSTANCE, {"storage": "sqlite"}, "storage", WARN, "one writer"),
        (INSTANCE, {"storage": "sqlite", "run_launcher.class": "K8sRunLauncher"}, "storage", Outcome.FAIL,
            "other machines cannot reach it"),
        (INSTANCE, {"sensors.use_threads": False}, "threads", WARN, "one after the other"),
        (INSTANCE, {"daemon seconds": None}, "daemon", WARN, "dagster-daemon run"),
        (INSTANCE, {"daemon seconds": 7_200.0}, "daemon", Outcome.FAIL, "2 h ago"),
        (INSTANCE, {"daemon seconds": Unavailable("set DAGSTER_HOME")}, "daemon", UNKNOWN,
            "set DAGSTER_HOME"),
        (INSTANCE, {"retention.sensor.purge_after_days": {"skipped": 1}}, "ticks", WARN, "indefinitely"),
        (INSTANCE, {"retention.sensor.purge_after_days": -1}, "ticks", WARN, "success, skipped"),
        (LOCATION, {"executor": "multiprocess"}, "executor", WARN, "in_process_executor"),
        (LOCATION, {"sensors": (ON, OFF)}, "sensors", Outcome.FAIL, "off: clicks_sensor (clicks-etl)"),
        (LOCATION, {"sensors": ()}, "sensors", WARN, "no group sensor"),
        (LOCATION, {"sensors": (replace(ON, tick_period_seconds=12.0),)}, "period", WARN,
            "orders_sensor ticks every 12 s; its interval is 5 s"),
        (LOCATION, {"sensors": (replace(ON, interval_seconds=60.0, tick_period_seconds=150.0),)}, "period",
            WARN, "every 2 min 30 s; its interval is 1 min"),
        (LOCATION, {"sensors": (replace(ON, idle_seconds=600.0),)}, "period", Outcome.FAIL,
            "orders_sensor ticked 10 min ago"),
        (LOCATION, {"sensors": (replace(ON, tick_period_seconds=None, idle_seconds=None),)}, "period", WARN,
            "never ticked"),
    ],
)  # fmt: skip
def test_one_thing_that_is_not_well(of, changed, check, outcome, words):
    """It is told, with numbers and what to change, and nothing else is."""
    before, found = answers(of), answers(of, **changed)
    answer = found[check]
    assert answer.outcome is outcome
    assert words in f"{answer.message}; {answer.advice}"
    assert answer.advice
    others = {name for name, one in found.items() if one.outcome is not before[name].outcome} - {check}
    assert others <= ({"threads"} if "groups" in changed else set())


@pytest.mark.parametrize(
    ("of", "changed", "check", "words"),
    [
        (COMMITS, {"copies": 1, "brokers": 1, "min.insync.replicas": "1", "embedded": True}, "offsets topic",
            "one machine"),
        (INSTANCE, {"storage": "sqlite", "embedded": True}, "storage", "for one machine"),
        (TOPIC, {"retention.ms": "-1"}, "retention", "indefinitely"),
        (TOPIC, {"retention.ms": "-1"}, "backlog", "deletes none"),
        (TOPIC, {"age seconds": 0.0}, "backlog", "no record waits"),
        (TOPIC, {"ahead seconds": None}, "clock", "no record"),
        (TOPIC, {"message.timestamp.type": "LogAppendTime"}, "clock",
            "how far the broker's clock is behind"),
        (LOCATION, {"sensors": (replace(ON, tick_period_seconds=None),)}, "period",
            "orders_sensor ticked 1 s ago"),
        (LOCATION, {"sensors": ()}, "period", "no group sensor is on"),
        (SERVER, {"iceberg jar": None}, "iceberg", "Iceberg 1.12.0"),
        (SERVER, {"skew": ClockSkew(-50.0, 50.0)}, "clock", "within the precision of a query"),
        (CATALOG, {"class": "a.DeltaCatalog", "cache-enabled": None}, "cache", "custom sinks"),
        (CATALOG, {"type": "hadoop", "warehouse": "/srv/lake"}, "commits", "type hadoop"),
        (CATALOG, {"type": None, "warehouse": None}, "commits", "its own"),
        (INSTANCE, {"groups": ("orders-etl",), "sensors.use_threads": False}, "threads", "one group"),
        (INSTANCE, {f"{RUNS}max_concurrent_runs": -1}, "limits", "-1"),
        (INSTANCE, {f"{MONITORING}max_runtime_seconds": 3_600}, "monitoring",
            "before max_runtime_seconds, 3,600"),
        (INSTANCE, {"run_retries.enabled": True, "run_retries.max_retries": 3}, "retries",
            "not for live runs"),
    ],
)  # fmt: skip
def test_another_way_to_be_well(of, changed, check, words):
    """It is told as what it is."""
    answer = answers(of, **changed)[check]
    assert (answer.outcome, words in answer.message) == (Outcome.OK, True), answer


def test_what_could_not_be_asked_is_never_well():
    """All rules at once where the question was refused; one by one where a fact is missing."""
    rules, facts = CLUSTER
    [finding] = run_rules("kafka", rules, Unavailable("this login needs DESCRIBE_CONFIGS on the cluster"))
    assert (finding.outcome, finding.result.advice) == (
        UNKNOWN,
        "this login needs DESCRIBE_CONFIGS on the cluster",
    )
    assert finding.check == "settings"
    assert all(rule.check in finding.message for rule in rules)
    [alone] = run_rules("kafka", rules[:1], Unavailable("by nobody"))
    assert alone.check == rules[0].check
    fewer = {name: value for name, value in facts.items() if name != "offset.metadata.max.bytes"}
    told = {one.check: one.result for one in run_rules("kafka", rules, fewer)}
    assert [name for name, answer in told.items() if answer.outcome is UNKNOWN] == ["commit metadata"]
    assert told["commit metadata"].advice == "offset.metadata.max.bytes is not visible to this client"


def test_a_finding_for_programs():
    """Flat, with a word for the outcome."""
    told = {"area": "kafka", "check": "sessions", "outcome": "fail", "message": "70", "fix": "120"}
    assert Finding("kafka", "sessions", FAIL("70", "120")).as_json() == told
    assert Finding("kafka", "sessions", OK("70")).as_json()["fix"] == ""


def test_catalogs_are_found_by_their_settings():
    """Each by its name, with what is set of it."""
    told = find_catalogs({
        "spark.sql.catalog.lake": ICEBERGS, "spark.sql.catalog.lake.cache-enabled": "false",
        "spark.master": "local[2]",
    })  # fmt: skip
    assert told == {"lake": {"class": ICEBERGS, "cache-enabled": "false", "type": None, "warehouse": None}}


def test_dagsters_defaults_stand_for_what_is_not_set():
    """An empty file is Dagster as it comes; limits may be in their old places."""
    rules, _ = INSTANCE
    told = {
        one.check: one.outcome
        for one in run_rules("dagster", rules, {**facts_with_defaults({}), "groups": ("a", "b")})
    }
    assert [name for name, outcome in told.items() if outcome is Outcome.OK] == ["limits", "retries"]
    assert facts_with_defaults({"run_queue": None, "concurrency": 3, "storage": None}) == facts_with_defaults(
        {}
    )
    old = facts_with_defaults(
        {"run_coordinator": {"class": "QueuedRunCoordinator", "config": {"max_concurrent_runs": 3}}}
    )
    assert old[f"{RUNS}max_concurrent_runs"] == 3
