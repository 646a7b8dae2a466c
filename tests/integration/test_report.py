"""``kafka-liveness report`` of a group whose run is killed three times, held against what was done to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from uuid import uuid4

import dagster as dg
import pytest
from click.testing import CliRunner

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.cli.main import main
from kafka_liveness_dagster.core.offsets import TopicPartition
from tests.spark_addresses import spark_at
from tests.timeouts import seconds
from tests.waiting import wait_for

KILLS = 3
FRESH_SECONDS, COMPLETE_MINUTES = 1.0, 0.05
WORKER = """
import sys
import time
import dagster as dg
import kafka_liveness_dagster as kl
from tests.spark_addresses import spark_at
from tests.timeouts import be_patient, seconds

be_patient()
topic, group, table, servers, remote = sys.argv[1:]
batches = []

@kl.kafka_asset(
    topics=[topic], group_id=group, table=table, enable_parallel_rebalance=True, max_poll_records=70,
    batching=kl.Batching(in_flight=1),
)
def orders(batch):
    batches.append(1)
    if len(batches) == 2:
        print("in the second batch", flush=True)
        time.sleep(600)
    return batch.selectExpr("topic", "partition", "offset")

resources = {
    "kafka": kl.KafkaLivenessResource(bootstrap_servers=servers, session_timeout_seconds=seconds(2)),
    "spark": spark_at(remote),
}
defs = dg.Definitions.merge(orders.definitions, dg.Definitions(resources=resources))
defs.resolve_job_def("orders_job").execute_in_process(instance=dg.DagsterInstance.get())
"""


class Soak:
    """A group at work, with the times of what happened to it."""

    def __init__(self, services, topic, table, produce, instance):
        self.services, self.topic, self.table, self.instance = services, topic, table, instance
        self.group, self.cursor, self._produce = f"etl-{uuid4().hex[:8]}", None, produce
        self.began_at = time.time()
        self.killed, self.resumed, self.caught_up = [], [], []

        @kl.kafka_asset(
            topics=[topic], group_id=self.group, table=table, enable_parallel_rebalance=True,
            idle_seconds=0.5, sla=kl.Sla(fresh_seconds=FRESH_SECONDS, complete_minutes=COMPLETE_MINUTES),
        )  # fmt: skip
        def orders(batch):
            return batch.selectExpr("topic", "partition", "offset")

        self.orders = orders
        self.resources = {
            "kafka": kl.KafkaLivenessResource(
                bootstrap_servers=services.bootstrap_servers, session_timeout_seconds=30
            ),
            "spark": spark_at(services.spark_remote),
        }
        self.defs = dg.Definitions.merge(orders.definitions, dg.Definitions(resources=self.resources))

    def produce(self, count):
        """Append records."""
        self._produce(self.services.bootstrap_servers, self.topic, 0, map(str, range(count)))

    def kill(self):
        """Let a worker commit 70 offsets, and kill it in the batch behind them."""
        remote = f"{self.services.spark_remote};user_id=worker;session_id={uuid4()}"
        arguments = [self.topic, self.group, self.table, self.services.bootstrap_servers, remote]
        before = {run.run_id for run in self.instance.get_runs()}
        with subprocess.Popen(
            [sys.executable, "-c", WORKER, *arguments], stdout=subprocess.PIPE, text=True, env={**os.environ}
        ) as child:
            assert any("second batch" in line for line in child.stdout), "it ended before it was killed"
            child.kill()
        [dead] = [run for run in self.instance.get_runs() if run.run_id not in before]
        self.instance.report_run_failed(dead)  # as the code server does for a worker that died
        self.killed.append((time.time(), dead.run_id[:8]))

    def kill_when_idle(self):
        """Let a worker commit 70 offsets, and kill it while it waits for records."""
        remote = f"{self.services.spark_remote};user_id=worker;session_id={uuid4()}"
        arguments = [self.topic, self.group, self.table, self.services.bootstrap_servers, remote]
        with subprocess.Popen([sys.executable, "-c", WORKER, *arguments], env={**os.environ}) as child:
            wait_for(lambda: self.committed() == 70, what="the commit of its only batch", pause=0.2)
            child.kill()
        [dead] = self.instance.get_runs()
        self.instance.report_run_failed(dead)
        self.killed.append((time.time(), dead.run_id[:8]))

    def committed(self):
        """The committed offset of the only partition with records."""
        tp = TopicPartition(self.topic, 0)
        return self.resources["kafka"].cluster().partition_states(self.group, [tp])[tp].committed

    def tick(self):
        """A tick of the sensor, whose events and partitions are stored; the run that it requests."""
        with dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, resources=self.resources, sensor_name="orders_sensor"
        ) as context:
            tick = self.orders.sensor.evaluate_tick(context)
        self.cursor = tick.cursor
        for request in tick.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        for event in tick.asset_events:
            self.instance.report_runless_asset_event(event)
        return tick.run_requests

    def resume(self):
        """The sensor starts the next live run, which skips ahead; it commits records that arrive then."""
        [request] = self.tick()
        job = self.defs.resolve_job_def("orders_job")
        assert job.execute_in_process(instance=self.instance, tags=request.tags).success
        self.tick()
        self.produce(10)
        assert job.execute_in_process(instance=self.instance, tags=request.tags).success
        self.resumed.append(time.time())

    def backfill(self):
        """Materialize what is missing."""
        done = self.instance.get_materialized_partitions(self.orders.crash_lag.key)
        [key] = [one for one in self.instance.get_dynamic_partitions("orders_crash_lag") if one not in done]
        job = self.defs.resolve_job_def("orders_crash_lag_job")
        assert job.execute_in_process(instance=self.instance, partition_key=key).success
        self.caught_up.append(time.time())

    def report(self, *options):
        """The command, which reads the rest from the table, Kafka and Dagster."""
        where = [
            "--bootstrap-servers",
            self.services.bootstrap_servers,
            "--spark",
            self.services.spark_remote,
        ]
        return CliRunner().invoke(main, ["report", self.group, "--since", "1h", *where, *options])


def expire_snapshots(spark, table):
    """Leave the two newest ones."""
    catalog, _, name = table.partition(".")
    spark.sql(
        f"CALL {catalog}.system.expire_snapshots(table => '{name}', retain_last => 2, "
        "older_than => TIMESTAMP '2999-01-01 00:00:00')"
    ).collect()


def test_the_report_of_three_kills(services, spark, make_topic, produce, table, instance, tmp_path):  # noqa: PLR0917
    """Each crash, what it skipped, when the group was live again and caught up, and what it cost."""
    soak = Soak(services, make_topic(), table, produce, instance)
    for number in range(KILLS):
        soak.produce(100)
        soak.kill()
        soak.produce(20)
        soak.resume()
        if number < KILLS - 1:
            soak.backfill()
    page = tmp_path / "report.html"
    done = soak.report("--json", "--html", page)
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    assert found["sla"] == {"fresh_seconds": FRESH_SECONDS, "complete_seconds": 60 * COMPLETE_MINUTES}
    assert (found["crashes"], found["fences"], len(found["backfills"])) == (KILLS, 0, KILLS - 1)
    assert [one["run"] for one in found["incidents"]] == [run for _, run in soak.killed]
    assert [one["skipped_offsets"] for one in found["incidents"]] == [50, 50, 50]
    assert [one["pending_offsets"] for one in found["incidents"]] == [0, 0, 50]
    assert found["pending_offsets"] == 50
    slack = seconds(5)
    for number, one in enumerate(found["incidents"]):
        at, _ = soak.killed[number]
        assert at - slack < one["at"] <= at + 1
        assert 0 < one["resumed_after_seconds"] <= soak.resumed[number] - one["at"]
        caught_up = one["caught_up_after_seconds"]
        if number < KILLS - 1:
            assert soak.resumed[number] < one["at"] + caught_up <= soak.caught_up[number]
        else:
            assert caught_up is None
        # Records of the second batch were unread since before the kill, and pending until the backfill
        until = soak.caught_up[number] if number < KILLS - 1 else found["until"]
        assert 0 < one["complete_missed_seconds"] <= until - soak.began_at
        assert one["missed_seconds"] >= max(one["fresh_missed_seconds"], one["complete_missed_seconds"])
    assert found["within_sla"] == pytest.approx(1 - found["missed_seconds"] / found["known_seconds"])
    assert 0 <= found["within_sla"] < 1
    assert found["missed_seconds"] <= found["known_seconds"] <= time.time() - soak.began_at
    assert sum(one["live_rows"] for one in found["points"]) == KILLS * (70 + 10)
    assert sum(one["backfilled_rows"] for one in found["points"]) == (KILLS - 1) * 50
    [note] = found["notes"]
    assert "begins at" in note
    expire_snapshots(spark, table)
    rest = json.loads(soak.report("--json").stdout)
    assert rest["known_since"] > found["known_since"]
    assert rest["pending_offsets"] == 50, "what the expired snapshots wrote is not missing"
    assert [one["skipped_offsets"] for one in rest["incidents"]] == [50, 50, 50], "Dagster has them"
    assert rest["incidents"][-1]["pending_offsets"] == 50
    text = page.read_text(encoding="utf-8")
    assert all(run in text for _, run in soak.killed)


def test_a_kill_on_an_idle_topic_is_no_outage(services, make_topic, produce, table, instance):
    """The successor commits nothing for want of records, and the group is live again all the same."""
    soak = Soak(services, make_topic(), table, produce, instance)
    soak.produce(70)
    soak.kill_when_idle()
    [request] = soak.tick()
    job = soak.defs.resolve_job_def("orders_job")
    assert job.execute_in_process(instance=instance, tags=request.tags).success
    soak.resumed.append(time.time())
    soak.tick()
    done = soak.report("--json")
    found = json.loads(done.stdout)
    [incident] = found["incidents"]
    assert (incident["skipped_offsets"], incident["unread_after_seconds"]) == (0, None)
    assert 0 < incident["resumed_after_seconds"] <= soak.resumed[0] - incident["at"]
    assert "(idle topic); skipped none" in soak.report().stdout


def test_without_dagster_the_table_and_kafka_remain(  # noqa: PLR0917
    services, make_topic, produce, table, instance, monkeypatch
):
    """No crash is invented: the report has a note, and all that the other sources know."""
    soak = Soak(services, make_topic(), table, produce, instance)
    soak.produce(5)
    assert soak.defs.resolve_job_def("orders_job").execute_in_process(instance=instance).success
    monkeypatch.delenv("DAGSTER_HOME")
    done = soak.report("--fresh-seconds", "1000000", "--table", table)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{soak.group} kept its SLA 100 % of the known")
    assert lines[1].startswith("0 crashes, 0 fences, at most ")
    assert any("DAGSTER_HOME is not set, so the report has no runs" in line for line in lines)
    assert soak.report("--table", f"{table}_other").exit_code == 2, "no such table"
