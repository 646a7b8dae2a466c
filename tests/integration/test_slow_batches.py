"""A batch that exceeds its budget comes again at half its size, down to the offset that is too slow alone."""

from __future__ import annotations

import re
import time
from uuid import uuid4

import dagster as dg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.batch_size import SlowRecordError
from kafka_liveness_dagster.spark.source import read_ranges
from kafka_liveness_dagster.spark.table.write import write_table
from tests.spark_addresses import spark_at
from tests.timeouts import connect, seconds

OFFSETS = 4
SESSION = seconds(4.0)  # a budget is no shorter
# A batch in time, one of two that is not, and what is left of it: each hang costs its budget
POISON, AT_MOST = 2, 2
TWO = "count(*) OVER (PARTITION BY partition) = 2"
MORE_THAN_TWO, IS_POISON = "count(*) OVER (PARTITION BY partition) > 2", f"offset = {POISON}"


def slow_if(condition):
    """A transform that keeps Spark busy for longer than any budget here, at rows with this condition."""
    nap = f"if({condition}, java_method('java.lang.Thread', 'sleep', 60000L), '')"
    return lambda batch: batch.selectExpr("topic", "partition", "offset", f"concat({nap}, '') AS nap")


@pytest.fixture(scope="module")
def budget(services, produce):
    """Seconds in which a batch that does not hang is done here and now, with room to spare.

    A hang costs all of it.
    """
    topic = f"orders-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": services.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    produce(services.bootstrap_servers, topic, 0, ["first"])
    options, ranges = (
        {"kafka.bootstrap.servers": services.bootstrap_servers},
        [kl.OffsetRange(topic, 0, 0, 1)],
    )

    def seconds_of_a_batch(condition):
        began, spark = time.monotonic(), connect(services.spark_remote)
        table = f"lake.warm.up_{uuid4().hex[:8]}"
        write_table(spark, table, ranges, lambda: slow_if(condition)(read_ranges(spark, ranges, options)))
        spark.stop()
        return time.monotonic() - began

    for condition in (MORE_THAN_TWO, IS_POISON):  # a cold Spark compiles for longer than a budget of seconds
        seconds_of_a_batch(condition)
    return min(max(SESSION, 5 * seconds_of_a_batch(MORE_THAN_TWO)), seconds(30.0))


@pytest.fixture
def world(services, make_topic, produce, table, budget):
    """A topic of one partition with a few records, and runs of an asset on it."""
    topic = make_topic(1)
    produce(services.bootstrap_servers, topic, 0, map(str, range(OFFSETS)))
    timeouts = {"session_timeout_seconds": SESSION, "heartbeat_interval_seconds": 0.5}
    resources = {
        "kafka": kl.KafkaLivenessResource(bootstrap_servers=services.bootstrap_servers, **timeouts),
        "spark": spark_at(services.spark_remote),
    }

    class World:
        """Runs of one asset in a Dagster of its own."""

        instance = dg.DagsterInstance.local_temp(overrides={"telemetry": {"enabled": False}})

        def asset(self, transform, **settings):
            settings = {"max_batch_seconds": budget, "idle_seconds": 0.5, "table": table, **settings}
            make = kl.kafka_asset(name="orders", topics=[topic], group_id=f"etl-{topic}", **settings)
            return make(transform)

        def run(self, asset, job="orders_job", **settings):
            defs = dg.Definitions.merge(asset.definitions, dg.Definitions(resources=resources))
            found = defs.resolve_job_def(job)
            return found.execute_in_process(instance=self.instance, raise_on_error=False, **settings)

        def said(self, run, words):
            logs = self.instance.all_logs(run.run_id)
            return [entry.user_message for entry in logs if words in entry.user_message]

    found = World()
    found.topic, found.table, found.kafka = topic, table, resources["kafka"]
    with found.instance:
        yield found


def test_half_the_batch_is_in_time(world, rows, monkeypatch):
    """A batch of more than two offsets hangs: four are too many, two are not, and all end in the table."""
    monkeypatch.setattr("kafka_liveness_dagster.lanes.batch_reporting.PROGRESS_EVERY_SECONDS", 1.0)
    asset = world.asset(slow_if(MORE_THAN_TWO))
    run = world.run(asset)
    assert run.success, run.failure_data_for_node("orders").error.cause
    assert [row["offset"] for row in rows(world.table)] == list(range(OFFSETS))
    late = world.said(run, "longer than its process timeout")
    assert late[0].startswith(f"p0:{world.topic}:0-4: ")
    assert "The next batch has at most 2 offsets" in late[0]
    assert re.match(rf"p0:{world.topic}:0-4: \d of \d tasks after \d+ s", world.said(run, "tasks after")[0])
    committed = world.said(run, "Committed ")
    assert committed[0].startswith(f"Committed p0:{world.topic}:0-2: 2 rows")


@pytest.mark.parametrize("slow", ["transform", pytest.param("sink", marks=pytest.mark.certify)])
def test_what_is_slow_in_python_comes_again_at_half_its_size_too(world, rows, budget, monkeypatch, slow):
    """It asks nothing of Spark for longer than a cancelled batch may take to end: no fault of Spark's."""
    monkeypatch.setattr("kafka_liveness_dagster.spark.connect.job.ABANDON_SECONDS", 0.5)
    calls = []

    def work():
        calls.append(slow)
        if len(calls) == 1:
            time.sleep(budget + 2)  # what it does all that time, a lookup over the network say
            monkeypatch.undo()  # half a second is a wait in Python; Spark may need longer for an answer here

    def transform(batch):
        if slow == "transform":
            work()
        return slow_if("false")(batch)

    def sink(replacement):
        work()
        replacement.raise_if_fenced()
        return write_table(
            replacement.rows.sparkSession, world.table, replacement.ranges, lambda: replacement.rows
        ).rows

    run = world.run(world.asset(transform, **({"sink": sink, "table": None} if slow == "sink" else {})))
    assert run.success, run.failure_data_for_node("orders").error.cause
    assert [row["offset"] for row in rows(world.table)] == list(range(OFFSETS))
    assert "The next batch has at most 2 offsets" in world.said(run, "longer than its process timeout")[0]


def test_a_poisoned_offset_ends_the_run_with_its_name(world, rows):
    """The default.

    Nothing behind it is processed, nothing of it is committed, and the error says where it is.
    """
    run = world.run(world.asset(slow_if(IS_POISON), max_poll_records=AT_MOST))
    assert not run.success
    error = run.failure_data_for_node("orders").error.cause
    assert error.cls_name == SlowRecordError.__name__
    assert f"offset {POISON} of {world.topic}:0" in error.message
    assert "on_slow_record='quarantine'" in error.message
    assert [row["offset"] for row in rows(world.table)] == list(range(POISON))


def test_a_search_for_bad_records_that_takes_too_long_comes_again_at_half_its_size(world, rows):
    """It has the batch's budget.

    What is found in half of it is passed, and then the other half is searched.
    """
    slow = "java_method('java.lang.Thread', 'sleep', 60000L)"
    number = f"CASE WHEN offset = 0 THEN raise_error('bad') WHEN {TWO} THEN {slow} ELSE '' END"
    batching = kl.Batching(on_bad_record="dead_letter", in_flight=1)
    transform = lambda batch: batch.selectExpr("topic", "partition", "offset", f"{number} AS number")  # noqa: E731
    run = world.run(world.asset(transform, max_poll_records=OFFSETS, batching=batching))
    assert run.success, run.failure_data_for_node("orders").error.cause
    assert "The next batch has at most 2 offsets" in world.said(run, "longer than its process timeout")[0]
    assert [row["offset"] for row in rows(world.table)] == [1, 2, 3]
    assert [row["offset"] for row in rows(f"{world.table}_dead_letters")] == [0]


def test_a_quarantined_offset_is_owed_and_the_others_go_on(world, rows):
    """It is a partition like any crash lag, with the reason on its page; a mended transform drains it."""
    asset = world.asset(
        slow_if(IS_POISON), max_poll_records=AT_MOST, batching=kl.Batching(on_slow_record="quarantine")
    )
    run = world.run(asset)
    assert run.success
    left = [offset for offset in range(OFFSETS) if offset != POISON]
    assert [row["offset"] for row in rows(world.table)] == left
    key = f"p0:{world.topic}:{POISON}-{POISON + 1}"
    seen = world.instance.fetch_observations(asset.crash_lag.key, limit=1).records[0]
    assert (
        seen.asset_entry.asset_key if hasattr(seen, "asset_entry") else seen.asset_key == asset.crash_lag.key
    )
    assert seen.partition_key == key
    assert "stays pending" in seen.asset_observation.description
    with world.kafka.consumer(topics=[world.topic], group_id=f"etl-{world.topic}") as consumer:
        assert [str(owed) for owed in consumer.pending(world.topic, 0)] == [key]

    world.instance.add_dynamic_partitions("orders_crash_lag", [key])
    still = world.run(asset, "orders_crash_lag_job", partition_key=key)
    assert not still.success
    assert "stay failed" in still.failure_data_for_node("orders_crash_lag").error.cause.message

    mended = world.asset(lambda batch: batch.selectExpr("topic", "partition", "offset", "'' AS nap"))
    assert world.run(mended, "orders_crash_lag_job", partition_key=key).success
    assert [row["offset"] for row in rows(world.table)] == list(range(OFFSETS))
