"""The examples of README and docs/ do what their pages say, on the real broker, Spark and Iceberg.

Each is taken as it stands but for its names: topic, group and table are the test's own. Others are tried
elsewhere: ``orders`` in tests/end_to_end, those of docs/readers.md in test_readers, ``login`` in
test_security, ``delta`` and ``parquet`` in test_sinks, ``decoded`` in test_decoded.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, nullcontext
from pathlib import Path

import dagster as dg
import pytest
from confluent_kafka import Producer

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.spark.sink import replace_rows
from tests.timeouts import seconds
from tests.waiting import wait_for

WORDS = ["tea", "mate"]


@pytest.fixture
def topic(services, make_topic, produce, warm_spark):
    """Two records wait."""
    name = make_topic()
    produce(services.bootstrap_servers, name, 0, WORDS)
    return name


@pytest.fixture
def run(topic, like):
    """``run(shown, *jobs, **names)``: an example's asset under our names; its live job, then these.

    The last run.
    """

    def run_jobs(shown, *jobs, instance=None, **names):
        asset = like(
            shown.orders, **{"topics": [topic], "group_id": f"etl-{topic}", "idle_seconds": 0.5, **names}
        )
        resources = dg.Definitions(resources=shown.defs.resources)
        defs = dg.Definitions.merge(asset.definitions, resources)
        with nullcontext(instance) if instance else dg.DagsterInstance.ephemeral() as held:
            for job in (f"{asset.identifier}_job", *jobs):
                done = defs.resolve_job_def(job).execute_in_process(instance=held)
                assert done.success
        return done

    return run_jobs


def test_the_script_handles_each_record_and_commits(example, topic, services):
    """Without Dagster: in order, and once."""
    handled = []
    example("script").process(topic, lambda record: handled.append(record.value().decode()))
    assert handled == WORDS
    first = kl.OffsetRange(topic, 0, 0, 2).topic_partition
    commits = kl.KafkaLivenessResource().cluster().commits(f"{topic}-script", [first])
    assert commits[first].offset == 2


def test_a_script_drains_the_gap_of_a_crash(example, topic):
    """Both lanes without Dagster.

    The live one goes on behind the gap, the other one does it, and nothing is left.
    """
    kafka, shown, group = kl.KafkaLivenessResource(), example("drained"), f"{topic}-script"
    live = {"topics": [topic], "group_id": group, "enable_parallel_rebalance": True}
    with pytest.raises(ZeroDivisionError), kafka.consumer(**live) as crashed:
        assert crashed.poll(seconds(120)) is not None
        raise ZeroDivisionError
    handled, gap = [], kl.OffsetRange(topic, 0, 0, 2)
    with kafka.consumer(**live) as consumer:
        wait_for(lambda: (consumer.poll(0.2), consumer.position(topic, 0))[1] == 2)
        assert (consumer.pending(topic, 0), consumer.committed(topic, 0)) == ((gap,), 0)
        assert shown.drain(topic, group, lambda record: handled.append(record.value().decode())) == [gap]
        assert (handled, consumer.pending(topic, 0), consumer.committed(topic, 0)) == (WORDS, (), 2)
        assert shown.drain(topic, group, pytest.fail) == []


def test_functions_of_ones_own(run, example, table, rows):
    """Row by row, and column by column."""
    run(example("functions"), table=table)
    assert [(row["order"], row["size"]) for row in rows(table)] == [("TEA", 3), ("MATE", 4)]


def test_a_schedule_starts_the_live_run(run, example, table, rows, topic):
    """At two in the morning it requests the live job with its tags, and the job reads to the log end."""
    shown = example("nightly")
    repository = shown.defs.get_repository_def()
    context = dg.build_schedule_context(repository_def=repository)
    assert len(shown.nightly.evaluate_tick(context).run_requests) == 1
    assert (shown.nightly.job_name, shown.nightly.cron_schedule) == ("orders_job", "0 2 * * *")
    assert shown.orders.sensor.default_status is dg.DefaultSensorStatus.STOPPED
    run(shown, table=table)
    assert [row["order_json"] for row in rows(table)] == WORDS


def test_the_checks_pass_and_know_their_limits(run, example, table):
    """Their job looks at the group that has just been read to its end."""
    done = run(example("checks"), "orders_checks_job", table=table)
    told = {one.check_name: one for one in done.get_asset_check_evaluations()}
    assert {name for name, one in told.items() if one.passed} == {
        "group_alive", "lag", "retention", "no_missing_rows", "crash_lag_age",
    }  # fmt: skip
    assert "1,000,000" in told["lag"].description


def test_the_table_is_as_fresh_as_promised(run, example, table):
    """The check of the SLA, after the group was read to its end."""
    done = run(example("sla"), "orders_checks_job", table=table)
    [fresh] = [one for one in done.get_asset_check_evaluations() if one.check_name == "freshness_sla"]
    assert fresh.passed
    limits = {name: float(fresh.metadata[f"{name}_limit_seconds"].value) for name in ("fresh", "complete")}
    assert limits == {"fresh": 30, "complete": 900}


def test_a_dead_letter_is_set_aside(run, example, topic, table, rows, services, produce):  # noqa: PLR0917
    """The records that are not JSON, and nothing else."""
    produce(services.bootstrap_servers, topic, 0, ['{"id": 7}'])
    run(example("letters"), table=table)
    assert [row["id"] for row in rows(table)] == [7]
    assert [row["value"].decode() for row in rows(f"{table}_dead_letters")] == WORDS


def test_another_asset_reads_the_snapshot_that_is_named(run, example, table):
    """Of the instance's newest materialization, by any reader."""
    shown = example("followed")
    with dg.DagsterInstance.ephemeral() as instance:
        run(shown, table=table, instance=instance)
        done = dg.materialize(
            [shown.customers], instance=instance, resources={"spark": kl.SparkConnectResource()}
        )
    # One customer, null: no record has a key
    assert done.asset_materializations_for_node("customers")[0].metadata["customers"].value == 1
    assert done.success


def test_an_asset_of_the_same_job_reads_the_rows_of_the_run(example, like, topic, table):
    """It runs although the run had reported all rows before its end."""
    shown = example("orders_and_report")
    shown.orders = like(shown.orders, topics=[topic], group_id=f"etl-{topic}", idle_seconds=0.5, table=table)
    others = dg.Definitions(
        assets=[shown.report], jobs=[shown.orders_and_report], resources=shown.defs.resources
    )
    defs = dg.Definitions.merge(shown.orders.definitions, others)
    done = defs.resolve_job_def("orders_and_report").execute_in_process()
    assert done.asset_materializations_for_node("report")[0].metadata["orders"].value == len(WORDS)


def test_an_aggregate_reads_an_hour_that_is_whole(run, like, example, table, services, make_topic):  # noqa: PLR0917
    """The sensor tells the hour, and what is downstream counts its records.

    Also an hour of before it was there.
    """
    shown, topic = example("hourly"), make_topic()
    begin = int(time.time() // 3600 - 2) * 3600
    producer = Producer({"bootstrap.servers": services.bootstrap_servers})
    for minute in (1, 2, 61):
        producer.produce(topic, b"tea", partition=0, timestamp=1000 * (begin + 60 * minute))
    assert producer.flush(120) == 0
    start = time.strftime("%Y-%m-%d-%H:%M", time.gmtime(begin))
    names = {"topics": [topic], "group_id": f"etl-{topic}", "table": table, "completeness": {"start": start}}
    shown.orders = like(shown.orders, **names)
    resources = shown.defs.resources
    with dg.DagsterInstance.ephemeral() as instance:
        run(shown, instance=instance, **names)
        sensor = shown.orders.sensor
        with dg.build_sensor_context(
            instance=instance, resources=resources, sensor_name=sensor.name
        ) as context:
            told = [
                one
                for one in sensor.evaluate_tick(context).asset_events
                if one.asset_key == shown.orders.windows.key
            ]
        assert told[0].partition == start
        for event in told:
            instance.report_runless_asset_event(event)
        asked = dg.evaluate_automation_conditions(shown.defs, instance)
        assert asked.get_requested_partitions(shown.orders_an_hour.key) == {one.partition for one in told}
        again = dg.evaluate_automation_conditions(shown.defs, instance, cursor=asked.cursor)
        assert again.get_requested_partitions(shown.orders_an_hour.key) == set(), "each once"
        done = dg.materialize(
            [shown.orders_an_hour], partition_key=start, instance=instance, resources=resources
        )
    assert done.asset_materializations_for_node("orders_an_hour")[0].metadata["orders"].value == 2


def test_a_transform_asks_for_more(run, example, table, rows):
    """The run's context, and a resource of the page's own."""
    done = run(example("asked"), table=table)
    assert {(row["country"], row["written_by"]) for row in rows(table)} == {("NL", done.run_id)}


def test_an_alert_is_requested_with_a_config_that_its_job_takes(run, example, table):
    """The hook's request is run, and says what happened."""
    shown = example("alerts")
    run(shown, table=table)
    request = shown.on_event(kl.MemberLeft("0badcafe", kl.LeaveReason.CRASHED, ()))
    paged = shown.defs.resolve_job_def("page_someone").execute_in_process(run_config=request.run_config)
    assert paged.success


def test_a_stream_copies_what_is_new(run, example, table, warm_spark, tmp_path):
    """The table is partitioned by day and sorted, and each row is copied once."""
    into, checkpoint = f"{table}_copy", str(tmp_path / "checkpoint")
    run(example("streamed"), table=table)
    for _ in range(2):
        example("read_stream").copy(warm_spark, table, into, checkpoint)
    assert [row["offset"] for row in warm_spark.table(into).orderBy("offset").collect()] == [0, 1]
    partition = warm_spark.table(table).select("_partition").schema.fields[0].dataType.names
    assert partition == ["placed_at_day"]


def test_a_minutely_lane_commits_once_and_is_maintained(run, example, table, rows):
    """What waits is one batch when its time has come.

    The example's is a minute, which is none of a test's.
    """
    shown = example("minutely")
    batching = {"commit_interval_seconds": 0.5}
    done = run(shown, "orders_maintenance_job", table=table, batching=batching)
    [told] = [
        event.asset_observation_data.asset_observation
        for event in done.all_events
        if event.is_asset_observation
    ]
    assert told.metadata["snapshots"].value.startswith("1 → ")
    assert [row["offset"] for row in rows(table)] == [0, 1]
    assert shown.orders.maintenance.default_status is dg.DefaultScheduleStatus.RUNNING


def test_a_database_replaces_and_is_a_ledger(run, example, topic, tmp_path, warm_spark):
    """A batch with other bounds replaces its offsets alone, a fenced one nothing.

    It has the ledger's text of each batch that it committed.
    """
    sink, calls = example("database").DatabaseSink(tmp_path / "orders.db"), itertools.count(1)
    run(example("database"), sink=sink)

    def again(end, word, **options):
        row = f"SELECT '{topic}' AS topic, 0 AS partition, 0L AS offset, '{word}' AS order_json"
        replace_rows(sink, [kl.OffsetRange(topic, 0, 0, end)], lambda: warm_spark.sql(row), **options)

    def fenced_in_the_transaction():
        if next(calls) == 3:
            raise PermissionError

    again(1, "coffee")
    with pytest.raises(PermissionError):
        again(2, "cocoa", may_go_on=fenced_in_the_transaction)
    with closing(sqlite3.connect(sink.path)) as database:
        held = database.execute("SELECT offset, order_json FROM orders ORDER BY offset").fetchall()
    assert held == [(0, "coffee"), (1, "mate")]
    commits = sink.ledger_commits()
    assert [(one.commit_id, one.rows) for one in commits] == [("1", 2), ("2", 1)]
    assert f"{topic}/" in commits[0].text
    sink.merge_ledger()
    assert [one.text for one in sink.ledger_commits()] == [commits[0].text]


def test_json_with_bad_records_is_fixed_and_replayed(example, run, topic, services, *, rows, like):
    """The records of docs/json-records.md; the topic has two others that are no JSON.

    The fix is the one of the page, and the replay is a backfill of the partition.
    """
    page = (Path(__file__).parents[2] / "docs" / "json-records.md").read_text(encoding="utf-8")
    records = re.findall(r"echo '(\{.*?\})'", page, re.DOTALL)
    sender = Producer({"bootstrap.servers": services.bootstrap_servers})
    for record in records:
        sender.produce(topic, record.replace("\n", ""))
    assert sender.flush(seconds(60)) == 0
    table = f"lake.{topic.replace('-', '_')}.orders"
    shown = example("json_records")
    with dg.DagsterInstance.ephemeral() as instance:
        run(shown, table=table, instance=instance)
        [row] = rows(table)
        assert (row["order_id"], row["city"], row["skus"], row["total"]) == (1, "London", ["tea"], 3.5)
        assert str(row["placed_at"]) == "2026-11-26 10:00:00+00:00"
        letters = {one["offset"]: one["error"] for one in rows(f"{table}_dead_letters")}
        assert sorted(letters) == [0, 1, 3]
        assert f"`{letters[3]}`" in page

        assert "remove `NOT NULL` behind `customer`" in page
        shown.SCHEMA = shown.SCHEMA.replace("city: string> NOT NULL", "city: string>")
        names = {"topics": [topic], "group_id": f"etl-{topic}", "idle_seconds": 0.5, "table": table}
        fixed = like(shown.orders, **names)
        key = f"p0:{topic}:3-4"
        instance.add_dynamic_partitions(fixed.crash_lag.partitions_def.name, [key])
        resources = dg.Definitions(resources=shown.defs.resources)
        defs = dg.Definitions.merge(fixed.definitions, resources)
        job = defs.resolve_job_def(f"{fixed.identifier}_crash_lag_job")
        assert job.execute_in_process(instance=instance, partition_key=key).success
    assert [(one["order_id"], one["city"]) for one in rows(table)] == [(1, "London"), (2, None)]
    assert [one["offset"] for one in rows(f"{table}_dead_letters")] == [0, 1]


def test_a_transform_is_tested_without_kafka_and_without_a_server(tmp_path):
    """The example of docs/transforms.md, in plain pytest of a folder of its own."""
    copy = shutil.copy(Path(__file__).parents[2] / "docs" / "examples" / "test_orders.py", tmp_path)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(copy)]
    env = {name: value for name, value in os.environ.items() if "KAFKA_LIVENESS" not in name}
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        words, cwd=tmp_path, env={**env, "PYTHONPATH": root}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["test_orders.py"]
