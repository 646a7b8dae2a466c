"""The asset is materialized while its run is at work.

Downstream begins, and reads the snapshot that is named.
"""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.definitions.freshness import FreshnessState
from dagster._core.definitions.freshness_evaluator import TimeWindowFreshnessPolicyEvaluator
from dagster._core.loader import LoadingContextForTest
from dagster._serdes import serialize_value

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.failpoints import Failpoint
from kafka_liveness_dagster.lanes import runs
from tests.integration.live_runs import SIZE, LiveRuns
from tests.waiting import wait_for

ORDERS = dg.AssetKey("orders")


@pytest.fixture
def found(services, make_topic, produce, table, warm_spark):
    """A lane whose second batch waits for the gate."""
    topic = make_topic(1)
    produce(services.bootstrap_servers, topic, 0, map(str, range(3 * SIZE)))
    made = LiveRuns(services, topic, table, "classic", batching=kl.Batching(in_flight=1))
    made.make_table(warm_spark)
    return made


def told(instance):
    """The asset's materializations, oldest first."""
    records = instance.fetch_materializations(ORDERS, limit=100).records
    return [record.asset_materialization for record in reversed(records)]


def later_batches(found):
    """Rows whose offsets beyond the first batch wait for the gate."""
    nap = "java_method('java.lang.Thread', 'sleep', 100L)"
    closed = f"coalesce(java_method('java.lang.System', 'getProperty', '{found.gate}'), '') <> 'open'"
    held = f"if(offset >= {SIZE} AND {closed}, {' || '.join([nap] * 5)}, '')"
    return lambda batch: batch.selectExpr("topic", "partition", "offset", f"concat({held}, '') AS nap")


def test_the_first_batch_is_told_at_once_and_the_rest_at_the_end(found, spark, rows):
    """Each tells what is new since the one before; what depends on the asset begins while the run goes on."""

    @dg.asset(deps=[ORDERS], automation_condition=dg.AutomationCondition.eager())
    def downstream() -> None:
        """Of the table."""

    policy = dg.FreshnessPolicy.time_window(fail_window=timedelta(minutes=10))
    defs = dg.Definitions(assets=[dg.AssetSpec(ORDERS, freshness_policy=policy), downstream])

    def asked(cursor=None):
        return dg.evaluate_automation_conditions(defs, found.instance, cursor=cursor)

    def freshness():
        judge, graph = TimeWindowFreshnessPolicyEvaluator(), defs.resolve_asset_graph()
        return asyncio.run(judge.evaluate_freshness(LoadingContextForTest(found.instance), graph.get(ORDERS)))

    def in_sync():
        upstream = dg.AssetSpec("topic")
        both = dg.Definitions(assets=[upstream, dg.AssetSpec(ORDERS, deps=[upstream])]).resolve_asset_graph()
        asked = LoadingContextForTest(found.instance)
        return CachingStaleStatusResolver(found.instance, both, asked).get_status(ORDERS)

    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(found.run, later_batches(found))
        try:
            wait_for(lambda: found.instance is not None)
            before, fresh_before = asked(), freshness()
            [first] = wait_for(lambda: run.done() or told(found.instance))
            snapshot = first.tags["dagster/data_version"]
            requested = asked(before.cursor).get_requested_partitions(dg.AssetKey("downstream"))
            fresh_now, status = freshness(), in_sync()
            assert found.instance.get_runs()[0].status is dg.DagsterRunStatus.STARTED
        finally:
            found.open_gate(spark)
        finished, _ = run.result()
    assert finished.success
    assert requested == {None}, "downstream is begun while the run goes on"
    assert first.metadata["rows_written"].value == SIZE
    assert (fresh_before, fresh_now) == (FreshnessState.UNKNOWN, FreshnessState.PASS)
    assert status is StaleStatus.FRESH
    assert first.metadata["lag"].value == 2 * SIZE
    assert first.metadata["seconds_behind"].value >= 0
    read = spark.read.option("versionAsOf", snapshot).table(found.table)
    assert first.metadata["dagster/row_count"].value == read.count() == SIZE
    assert [one.name for one in first.metadata["dagster/column_schema"].value.columns] == read.columns
    assert (
        first.metadata["dagster/uri"].value
        == spark.sql(f"DESCRIBE EXTENDED {found.table}").where("col_name = 'Location'").first().data_type
    )
    last = finished.asset_materializations_for_node("orders")[-1].metadata
    assert (last["rows_written"].value, last["dagster/row_count"].value) == (2 * SIZE, 3 * SIZE)
    assert len(rows(found.table)) == 3 * SIZE


def test_a_run_that_writes_nothing_materializes_nothing(found, spark):
    """Or what depends on it would begin for nothing."""
    found.open_gate(spark)
    first, _ = found.run(later_batches(found))
    again, _ = found.run(later_batches(found))
    assert first.success
    assert again.success
    assert (
        sum(one.metadata["rows_written"].value for one in first.asset_materializations_for_node("orders"))
        == 3 * SIZE
    )
    assert again.asset_materializations_for_node("orders") == []
    lines = [entry.user_message for entry in found.events]
    assert lines.count(runs.IDLE_LINE % found.settings["idle_seconds"]) == 1


def test_a_run_that_only_recovers_rows_materializes_the_asset(found, produce, spark, rows, monkeypatch):
    """The run that wrote them ended before it could report them, and downstream has not seen them."""
    found.settings["enable_parallel_rebalance"] = True
    found.open_gate(spark)

    def ends_here(step):
        if step is Failpoint.AFTER_TABLE_COMMIT and len(rows(found.table)) == 3 * SIZE:
            raise RuntimeError("ended here")

    with monkeypatch.context() as patch:
        patch.setattr("kafka_liveness_dagster.spark.table.write.failpoint", ends_here)
        ended, _ = found.run(found.rows_of)
    assert not ended.success
    assert (found.committed(), len(rows(found.table))) == (2 * SIZE, 3 * SIZE)
    produce(found.kafka.bootstrap_servers, found.topic, 0, ["skipped as crash lag"])
    after, _ = found.run(found.rows_of)
    assert after.success
    [last] = after.asset_materializations_for_node("orders")
    assert last.metadata["recovered"].value.records[0].data["offsets"] == f"{SIZE:,}"
    assert (last.metadata["rows_written"].value, last.metadata["dagster/row_count"].value) == (0, 3 * SIZE)


def test_a_batch_of_many_partitions_weighs_no_more_in_the_event_log(services, make_topic, produce):
    """With a line and a materialization for each, which is far more than there are."""

    def bytes_a_batch(partitions):
        topic = make_topic(partitions)
        for number in range(partitions):
            produce(services.bootstrap_servers, topic, number, "abc")
        every = {"materialize_interval_seconds": 0, "max_poll_records": partitions}
        runs = LiveRuns(services, topic, None, "classic", sink=lambda _: None, **every)
        run, _ = runs.run(lambda batch: batch)
        assert run.success
        batches = sum(one.metadata["batches"].value for one in run.asset_materializations_for_node("orders"))
        assert batches >= 3
        return sum(len(serialize_value(event)) for event in runs.events) / batches

    assert bytes_a_batch(200) <= 1.3 * bytes_a_batch(20)


def test_a_run_that_fails_tells_what_it_has_committed(found, spark):
    """Its third batch fails: the second is in the table, and downstream hears of it."""
    found.open_gate(spark)
    batches = itertools.count(1)

    def fails_at_the_third(batch):
        if next(batches) == 3:
            raise ValueError("no such price")
        return found.rows_of(batch)

    run, _ = found.run(fails_at_the_third)
    assert not run.success
    told = [one for event in found.events if (one := event.asset_materialization)]
    assert [one.metadata["rows_written"].value for one in told] == [SIZE, SIZE]
