"""SIGKILL of a run worker while Spark writes its batch: the dead client's operation goes on without it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from uuid import uuid4

import dagster as dg

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.runs.tags import SESSION_TAG
from tests.integration.abandoned_spark_session import KEEPS_ANSWERS, await_end, is_at_work
from tests.spark_addresses import spark_at
from tests.waiting import wait_for

WORKER = """
import sys
import dagster as dg
import kafka_liveness_dagster as kl
from tests.spark_addresses import spark_at
from tests.timeouts import be_patient, seconds

be_patient()
topic, group, table, servers, remote = sys.argv[1:]

def told(stages, inflight_tasks, operation_id, done):
    if inflight_tasks and not done:
        print("writing", operation_id, flush=True)

@kl.kafka_asset(
    topics=[topic], group_id=group, table=table, enable_parallel_rebalance=True, max_poll_records=70
)
def orders(batch):
    print("batch", flush=True)
    batch.sparkSession.registerProgressHandler(told)
    nap = "if(offset < 70, '', java_method('java.lang.Thread', 'sleep', 100L))"
    written_by = f"if({nap} = 'awake', 'awake', 'dead') AS written_by"
    return batch.selectExpr("topic", "partition", "offset", written_by)

resources = {
    "kafka": kl.KafkaLivenessResource(bootstrap_servers=servers, session_timeout_seconds=seconds(2)),
    "spark": spark_at(remote),
}
defs = dg.Definitions.merge(orders.definitions, dg.Definitions(resources=resources))
defs.resolve_job_def("orders_job").execute_in_process(instance=dg.DagsterInstance.get())
"""


def orders_asset(topic, group, table, services):
    """The code location after the crash: the same names, rows marked as written by the living."""

    @kl.kafka_asset(
        topics=[topic], group_id=group, table=table, enable_parallel_rebalance=True, idle_seconds=0.5
    )
    def orders(batch):
        return batch.selectExpr("topic", "partition", "offset", "'alive' AS written_by")

    kafka = kl.KafkaLivenessResource(bootstrap_servers=services.bootstrap_servers, session_timeout_seconds=30)
    resources = {"kafka": kafka, "spark": spark_at(services.spark_remote)}
    return orders, dg.Definitions.merge(orders.definitions, dg.Definitions(resources=resources)), kafka


def kill_while_writing(arguments, env, worker=WORKER, before=lambda: None):
    """Run the worker until Spark writes its second batch, and kill it there; the operation left behind."""
    with subprocess.Popen(
        [sys.executable, "-c", KEEPS_ANSWERS + worker, *arguments], stdout=subprocess.PIPE, text=True, env=env
    ) as child:
        batches, operation = 0, None
        for line in child.stdout:
            word, *rest = line.split()
            batches += word == "batch"
            if word == "writing" and batches == 2:
                operation = rest[0]
                break
        before()
        child.kill()
    assert operation, "the worker ended before its second batch was written"
    return operation


def test_its_spark_job_ends_when_the_sensor_sees_the_crash(  # noqa: PLR0917
    services, make_topic, produce, table, rows, instance
):
    """Killed while a batch of 300 s is written: the successor has the cores, and nothing of it lands."""
    topic, group = make_topic(), f"etl-{uuid4().hex[:8]}"
    produce(services.bootstrap_servers, topic, 0, map(str, range(6_000)))
    arguments = [topic, group, table, services.bootstrap_servers, services.spark_remote]
    worker = WORKER.replace(
        "max_poll_records=70", "max_poll_records=3_000, batching=kl.Batching(in_flight=1)"
    )
    worker = worker.replace("offset < 70", "offset < 3000")
    orders, _, kafka = orders_asset(topic, group, table, services)
    ticks = []

    def tick():
        resources = {"kafka": kafka, "spark": spark_at(services.spark_remote)}
        with dg.build_sensor_context(
            instance=instance,
            resources=resources,
            sensor_name="orders_sensor",
            cursor=ticks[-1].cursor if ticks else None,
        ) as ctx:
            ticks.append(orders.sensor.evaluate_tick(ctx))
        return ticks[-1]

    operation = kill_while_writing(arguments, {**os.environ}, worker, before=tick)
    [dead] = instance.get_runs()
    session_id = dead.tags[SESSION_TAG]
    assert is_at_work(services.spark_remote, session_id, operation), "it goes on without its client"
    wait_for(lambda: tick().run_requests, what="the sensor requests the successor")
    assert "crashed" in ticks[-1].run_requests[0].tags["kafka_liveness/started_because"]
    wait_for(
        lambda: not is_at_work(services.spark_remote, session_id, operation),
        what="the job of the dead run ends",
    )
    assert len(rows(table)) == 3_000, "the first batch, and nothing of the one that was canceled"


def test_nothing_is_lost_or_doubled(services, make_topic, produce, table, rows, instance):  # noqa: PLR0917
    """Committed 70, killed while 70-100 is written, which lands, log end 120.

    Fresh, caught up, each offset once.
    """
    topic, group = make_topic(), f"etl-{uuid4().hex[:8]}"
    produce(services.bootstrap_servers, topic, 0, map(str, range(100)))
    remote = f"{services.spark_remote};user_id=worker;session_id={uuid4()}"
    arguments = [topic, group, table, services.bootstrap_servers, remote]
    operation = kill_while_writing(arguments, {**os.environ})
    # Its write lands: what it holds need not be done again, though nothing was committed
    await_end(remote, operation)
    produce(services.bootstrap_servers, topic, 0, map(str, range(20)))
    [dead] = instance.get_runs()
    instance.report_run_failed(dead)  # as the code server does for a worker that died

    orders, defs, kafka = orders_asset(topic, group, table, services)

    def tick():
        resources = {"kafka": kafka, "spark": spark_at(services.spark_remote)}
        with dg.build_sensor_context(
            instance=instance, resources=resources, sensor_name="orders_sensor"
        ) as ctx:
            return orders.sensor.evaluate_tick(ctx)

    first = tick()
    assert [request.job_name for request in first.run_requests] == ["orders_job"]
    assert "crashed" in first.run_requests[0].tags["kafka_liveness/started_because"]
    live = defs.resolve_job_def("orders_job").execute_in_process(instance=instance)
    [last] = live.asset_materializations_for_node("orders")
    assert last.metadata["rows_written"].value == 0, "it skipped ahead to the log end, and wrote nothing"
    assert [one.data["offsets"] for one in last.metadata["recovered"].value.records] == ["30"]

    second = tick()
    assert second.run_requests == [], "nothing is behind"
    [added] = second.dynamic_partitions_requests
    key = f"p0:{topic}:100-120"
    assert added.partition_keys == [key]
    [owed] = [event.metadata for event in second.asset_events if event.partition]
    assert [(row.data["range"], row.data["offsets"]) for row in owed["ranges"].records] == [("100-120", "20")]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d [\d:]+ to [\d:]+ UTC", owed["event_time"].value)
    assert re.fullmatch(r"\d+ s when its partition was added", owed["oldest_record_age"].value)
    instance.add_dynamic_partitions(added.partitions_def_name, added.partition_keys)
    assert tick().dynamic_partitions_requests == [], "a tick repeated adds nothing"

    backfill = defs.resolve_job_def("orders_crash_lag_job").execute_in_process(
        instance=instance, partition_key=key
    )
    assert backfill.success
    [done] = backfill.asset_materializations_for_node("orders_crash_lag")
    assert done.metadata["run_summary"].value.startswith("20 rows from 20 offsets in 1 batch: ")
    found = [(row["offset"], row["written_by"]) for row in rows(table)]
    assert found == [(n, "dead") for n in range(100)] + [(n, "alive") for n in range(100, 120)]
    assert instance.get_materialized_partitions(orders.crash_lag.key) == {key}

    again = defs.resolve_job_def("orders_crash_lag_job").execute_in_process(
        instance=instance, partition_key=key
    )
    [event] = again.asset_materializations_for_node("orders_crash_lag")
    assert event.metadata["state"].text == "reprocessed by this run"
    assert [(row["offset"], row["written_by"]) for row in rows(table)] == found
