"""A table that is kept small while both lanes write to it.

Nothing is lost by it, and no lane fails because of it.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dagster as dg
import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.core.table_layout import TableLayout
from kafka_liveness_dagster.spark.table.ledger import TableLedger
from kafka_liveness_dagster.spark.table.maintenance import TableMaintenance
from kafka_liveness_dagster.spark.table.table import IcebergTable
from kafka_liveness_dagster.spark.table.write import write_table
from tests.integration.live_runs import LiveRuns
from tests.integration.silent_proxy import SilentProxy
from tests.spark_addresses import spark_at
from tests.waiting import wait_for

DEFAULT, BY_DAY = TableLayout(), TableLayout(partition_by=("days(placed_at)",))
PORT = re.compile(r":(\d+)")
ALL_DAY = "timestamp_seconds(id) AS placed_at"


def orders(start, end, partition=0):
    """A range of one topic."""
    return kl.OffsetRange("orders", partition, start, end)


def put(session, ledger, *ranges, layout=DEFAULT):
    """A row for each offset, by one commit."""

    def rows():
        parts = [
            f"SELECT '{r.topic}' AS topic, {r.partition} AS partition, id AS offset, {ALL_DAY} FROM "
            f"range({r.start}, {r.end}, 1, 1)"
            for r in ranges
        ]
        return session.sql(" UNION ALL ".join(parts))

    return write_table(session, ledger.target, ranges, rows, ledger=ledger, layout=layout)


def files(session, table):
    """First and last offset of each data file."""
    sql = f"SELECT readable_metrics.partition.lower_bound, readable_metrics.`offset` AS o FROM {table}.files"
    return sorted(
        (partition, o["lower_bound"], o["upper_bound"]) for partition, o in session.sql(sql).collect()
    )


def held(session, table):
    """Each row, by partition and offset."""
    return sorted((row["partition"], row["offset"]) for row in session.table(table).collect())


@pytest.fixture
def ledger(warm_spark, table):
    """Of a table that does not exist yet."""
    return TableLedger(IcebergTable(table), lambda: warm_spark)


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(DEFAULT, id="by Kafka's partitions"),
        pytest.param(BY_DAY, id="by day", marks=pytest.mark.certify),
    ],
)
def test_what_is_owed_and_what_may_come_again_is_left_as_it_is(spark, table, ledger, layout):
    """A file over pending offsets would be rewritten by their catch-up, one of the newest by a replay."""
    for start in (0, 10, 20, 50, 60, 70):  # 30 to 50 was jumped over
        for partition in (0, 1):
            put(spark, ledger, orders(start, start + 10, partition), layout=layout)
    work = TableMaintenance(spark, IcebergTable(table))
    before = held(spark, table)
    settled = [orders(start, end, partition) for partition in (0, 1) for start, end in ((0, 30), (50, 70))]
    done = list(work.compact(settled, min_files=2))
    assert done == ([(6, 2), (4, 2)] if layout is DEFAULT else [(3, 1), (3, 1), (2, 1), (2, 1)])
    assert files(spark, table) == [(p, *file) for p in (0, 1) for file in [(0, 29), (50, 69), (70, 79)]]
    assert held(spark, table) == before
    for start, end in ((70, 80), (30, 50)):
        written = put(spark, ledger, orders(start, end), orders(start, end, 1), layout=layout)
        assert (written.attempts, written.rewrote_files) == (1, False), "it cuts through no file"
    assert held(spark, table) == [(p, offset) for p in (0, 1) for offset in range(80)]
    assert work.conflicts == 0


def test_fewer_small_files_than_asked_for_stay(spark, table, ledger):
    """Nor is a table compacted that does not exist."""
    work = TableMaintenance(spark, IcebergTable(table))
    assert list(work.compact([orders(0, 30)], min_files=4)) == []
    for start in (0, 10, 20):
        put(spark, ledger, orders(start, start + 10))
    assert [one for one in work.compact([orders(0, 30)], min_files=4) if one[0]] == []
    assert len(files(spark, table)) == 3


def test_what_it_reads_is_not_kept_in_the_server(spark, table, ledger):
    """Iceberg's readers by Arrow keep an allocator of each file (iceberg#13937), until the heap is full."""
    for start in (0, 10):
        put(spark, ledger, orders(start, start + 10))
    assert list(TableMaintenance(spark, IcebergTable(table)).compact([orders(0, 20)], min_files=2)) == [
        (2, 1)
    ]
    plan = spark.sql(f"EXPLAIN SELECT * FROM {table}").collect()[0][0]
    assert "BatchScan" in plan
    assert "ColumnarToRow" not in plan, "its session reads by Arrow"


def test_a_compacted_table_is_in_its_order(spark, table, ledger):
    """As one that was sorted by hand is, though each batch came in the order of its offsets."""
    layout = TableLayout(sort_by=("placed_at DESC",))
    for start in (0, 10, 20):
        put(spark, ledger, orders(start, start + 10), layout=layout)
    assert list(TableMaintenance(spark, IcebergTable(table)).compact([orders(0, 30)], min_files=2)) == [
        (3, 1)
    ]
    read = spark.sql(f"SELECT offset FROM {table}").collect()
    assert [row[0] for row in read] == list(reversed(range(30)))


def test_the_ledger_outlives_the_snapshots(spark, table, ledger):
    """Those that tell what the table holds stay, however old they are.

    All others go, and their files with them.
    """
    for start in range(0, 60, 10):
        put(spark, ledger, orders(start, start + 10))
        ledger.read([TopicPartition("orders", 0)])  # so that each commit sums up what was there before
    work = TableMaintenance(spark, IcebergTable(table))
    assert list(work.compact([orders(0, 50)], min_files=2)) == [(5, 1)]
    before = work.statistics()
    work.expire(time.time(), max_age=0.0, max_snapshots=1)
    after = work.statistics()
    assert (before.snapshots, before.files, after.files) == (7, 2, 2)
    assert after.snapshots < before.snapshots
    fresh = TableLedger(IcebergTable(table), lambda: spark)
    account = fresh.read([TopicPartition("orders", 0)])[TopicPartition("orders", 0)]
    assert (account.written, account.is_complete) == ((Span(0, 60),), True)
    put(spark, ledger, orders(60, 70))
    assert held(spark, table) == [(0, offset) for offset in range(70)]


def test_no_more_snapshots_are_kept_than_asked_for(spark, table, ledger):
    """Of those that are an hour old; younger ones a reader may be at work with."""
    for start in range(0, 60, 10):
        put(spark, ledger, orders(start, start + 10))
        ledger.read([TopicPartition("orders", 0)])
    work = TableMaintenance(spark, IcebergTable(table))
    work.expire(time.time(), max_age=1e6, max_snapshots=3)
    assert work.statistics().snapshots == 6
    work.expire(time.time() + 3_700, max_age=1e6, max_snapshots=3)
    assert work.statistics().snapshots == 3


def test_what_no_snapshot_has_is_deleted_when_it_is_old(spark, table, ledger):
    """As a batch leaves it that died in the middle; younger files may be of one that is still written."""
    put(spark, ledger, orders(0, 10))
    kept = Path(spark.sql(f"SELECT file_path FROM {table}.files").first()[0].removeprefix("file:"))
    old, young = kept.with_name("died.parquet"), kept.with_name("writing.parquet")
    for orphan in (old, young):
        orphan.write_bytes(kept.read_bytes())
    two_days_ago = time.time() - 2 * 86_400
    for one in (old, kept):
        os.utime(one, (two_days_ago, two_days_ago))
    assert TableMaintenance(spark, IcebergTable(table)).remove_orphans(time.time(), min_age=86_400.0) == 1
    assert (old.exists(), young.exists()) == (False, True)
    assert held(spark, table) == [(0, offset) for offset in range(10)]


def test_deleted_rows_are_gone_from_the_files(spark, table, ledger):
    """Where a replay marked rows as deleted, a rewrite leaves neither them nor the marks."""
    layout = TableLayout(
        "append", ("days(placed_at)",), table_properties={"write.delete.mode": "merge-on-read"}
    )
    for start in (0, 10, 20):
        put(spark, ledger, orders(start, start + 10), layout=layout)
    spark.sql(f"DELETE FROM {table} WHERE offset IN (3, 14)").collect()
    work = TableMaintenance(spark, IcebergTable(table))
    assert work.statistics().delete_files > 0
    assert list(work.compact([orders(0, 30)], min_files=2)) == [(3, 1)]
    work.rewrite_manifests()
    assert work.statistics()[:3:2] == (1, 0)
    assert held(spark, table) == [(0, offset) for offset in range(30) if offset not in (3, 14)]


def test_a_table_that_forbids_deletion_keeps_its_snapshots_and_files(live, table, spark):
    """With ``gc.enabled=false``, as Nessie sets it, expiry and orphan files are skipped; the run succeeds."""
    live.settings["key_prefix"] = "lake"
    live.run(lambda batch: batch.select("topic", "partition", "offset"))
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('gc.enabled'='false')")
    before, rows = TableMaintenance(spark, IcebergTable(table)).statistics(), held(spark, table)
    [file, *_] = (row[0] for row in spark.sql(f"SELECT file_path FROM {table}.files").collect())
    orphan = Path(file.removeprefix("file:")).with_name("died.parquet")
    orphan.write_bytes(b"of a batch that died")
    os.utime(orphan, (0, 0))
    asset = kl.kafka_asset(**live.settings)(lambda batch: batch)
    resources = dg.Definitions(resources={"kafka": live.kafka, "spark": live.spark})
    with dg.DagsterInstance.ephemeral() as instance:
        run, shown = run_job(instance, asset, resources)
    assert run.success
    assert "gc.enabled=false" in shown["not_deleted"]
    assert "orphan_files_removed" not in shown
    after = TableMaintenance(spark, IcebergTable(table)).statistics()
    assert after.snapshots >= before.snapshots, "nothing is expired"
    assert after.files < before.files, "small files are compacted"
    assert orphan.exists()
    assert held(spark, table) == rows


def test_snapshots_are_kept_as_long_as_the_table_says(spark, table, ledger):
    """A table's ``history.expire`` properties keep more than the settings of the asset."""
    for start in range(0, 60, 10):
        put(spark, ledger, orders(start, start + 10))
        ledger.read([TopicPartition("orders", 0)])
    work = TableMaintenance(spark, IcebergTable(table))
    for key, value, kept in (("max-snapshot-age-ms", "3600000", 6), ("min-snapshots-to-keep", "4", 4)):
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('history.expire.{key}'='{value}')")
        work.expire(time.time(), max_age=0.0, max_snapshots=1)
        assert work.statistics().snapshots == kept
        spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('history.expire.{key}')")


def run_job(instance, asset, resources):
    """One run of the maintenance job; what it showed on the table's asset."""
    name = f"{asset.settings.identifier}_maintenance_job"
    job = dg.Definitions.merge(asset.definitions, resources).resolve_job_def(name)
    run = job.execute_in_process(instance=instance, raise_on_error=False)
    [shown] = [
        event.asset_observation_data.asset_observation
        for event in run.all_events
        if event.is_asset_observation
    ]
    assert shown.asset_key == asset.live.key
    return run, {name: one.value for name, one in shown.metadata.items()}


@pytest.fixture
def live(services, make_topic, produce, table, warm_spark):
    """A lane with much to do in small batches."""
    topic = make_topic(2)
    often = kl.Maintenance(min_files=2, max_snapshot_age_seconds=0.0)
    for partition in (0, 1):
        produce(services.bootstrap_servers, topic, partition, map(str, range(100)))
    return LiveRuns(services, topic, table, "classic", max_poll_records=10, maintenance=often)


def test_it_runs_beside_a_live_lane(live, table, spark, services, produce):
    """Again and again, and each commit of the lane's comes first."""
    asset = kl.kafka_asset(**live.settings)(lambda batch: batch)
    resources = dg.Definitions(resources={"kafka": live.kafka, "spark": live.spark})
    batches, enough = itertools.count(), threading.Event()

    def rows(batch):
        if not enough.is_set():  # else the lane might be at its end before
            next(batches)
            for partition in (0, 1):
                produce(services.bootstrap_servers, live.topic, partition, map(str, range(5)))
        return batch.select("topic", "partition", "offset")

    with ThreadPoolExecutor(1) as pool, dg.DagsterInstance.ephemeral() as instance:
        lane = pool.submit(live.run, rows)
        try:
            wait_for(lambda: lane.done() or live.committed())
            for _ in range(3):
                run, _ = run_job(instance, asset, resources)
                assert run.success
            assert not lane.done()
        finally:
            enough.set()
        run, _ = lane.result()
        assert run.success
        run, told = run_job(instance, asset, resources)
        assert run.success
    end = 100 + 5 * next(batches)
    assert held(spark, table) == [(p, offset) for p in (0, 1) for offset in range(end)]
    assert len(files(spark, table)) <= 4
    assert told["files"].endswith(f"→ {len(files(spark, table))}")
    ledger = TableLedger(IcebergTable(table), lambda: spark)
    for partition in (0, 1):
        tp = TopicPartition(live.topic, partition)
        account = ledger.read([tp])[tp]
        assert (account.written, account.is_complete) == ((Span(0, end),), True)


def test_a_spark_that_falls_silent_ends_it(services, live, monkeypatch):
    """By name, and long before somebody looks; both lanes have their own limits."""
    monkeypatch.setattr("kafka_liveness_dagster.lanes.maintenance.MAX_SILENT_SECONDS", 2.0)
    live.run(lambda batch: batch.select("topic", "partition", "offset"))
    with SilentProxy(int(PORT.search(services.spark_remote)[1])) as proxy:
        compact = TableMaintenance.compact

        def silently(*arguments):
            proxy.fall_silent()
            return compact(*arguments)

        monkeypatch.setattr(TableMaintenance, "compact", silently)
        asset = kl.kafka_asset(**live.settings)(lambda batch: batch)
        remote = PORT.sub(f":{proxy.port}", services.spark_remote, count=1)
        resources = dg.Definitions(resources={"kafka": live.kafka, "spark": spark_at(remote)})
        job = dg.Definitions.merge(asset.definitions, resources).resolve_job_def("orders_maintenance_job")
        run = job.execute_in_process(raise_on_error=False)
    assert run.failure_data_for_node("maintain_orders").error.cause.cls_name == "SparkNotRespondingError"
