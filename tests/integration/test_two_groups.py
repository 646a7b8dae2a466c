"""Two consumer groups and one table: the second group is refused before it replaces a row of the first."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from kafka_liveness_dagster.cli.main import main
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.partition_state import GroupMismatchError
from kafka_liveness_dagster.core.sink_ledger import LaneLedger
from kafka_liveness_dagster.spark.table.ledger import TableLedger
from kafka_liveness_dagster.spark.table.table import IcebergTable
from kafka_liveness_dagster.spark.table.write import TableWrite, write_table
from tests.integration.group_with_table import GroupWithTable, written_rows


@pytest.fixture
def world(services, produce, rows, warm_spark):
    """A group with a table."""
    return GroupWithTable(services, produce, rows, warm_spark)


@pytest.fixture(autouse=True)
def _two_instances(monkeypatch):
    """The assets of two Dagster instances are never in one process: loading the second one is refused."""
    monkeypatch.setattr("kafka_liveness_dagster.assets.definitions.claim_group", lambda declared: None)


@pytest.fixture
def beside(services, produce, rows, warm_spark):
    """Make a group next to another one: the same topic and table, or only the same table."""

    def make(world, *, topic=True):
        other = GroupWithTable(services, produce, rows, warm_spark)
        other.table = world.table
        if topic:
            other.topic, other.tp, other.log_end = world.topic, world.tp, world.log_end
        return other

    return make


@pytest.fixture
def command(services):
    """Run a command of ``kafka-liveness`` that reaches Kafka and Spark."""

    def run(name, *words):
        both = ["--bootstrap-servers", services.bootstrap_servers, "--spark", services.spark_remote]
        return CliRunner(env={"COLUMNS": "160"}).invoke(main, [name, *both, *words])

    return run


def certified(told):
    return json.loads(told.stdout)["certified"]


def test_a_second_group_is_refused_before_it_replaces_a_row(world, beside, command):
    world.grow_to(60)
    assert world.live() is None
    other = beside(world)
    other.value = "'of another group'"
    refused = other.live()
    assert isinstance(refused, GroupMismatchError), refused
    assert f"contains rows of topic {world.topic} that group {world.group} wrote" in str(refused)
    assert f"kafka-liveness adopt {other.group} {world.table}" in str(refused)
    assert world.offsets() == written_rows(0, 60)
    assert other.committed() is None
    assert certified(command("audit", world.group, "--json"))
    told = command("audit", other.group, "--table", world.table, "--topic", world.topic, "--json")
    assert not certified(told), told.output
    assert f"Group {world.group} wrote rows of topic {world.topic} to this table too" in told.stdout


def test_the_catch_up_lane_and_a_replay_of_a_second_group_are_refused(world, beside):
    world.grow_to(60)
    assert world.live() is None
    other = beside(world)
    for again in ("", "@replay-20261126T120000Z"):
        assert isinstance(other.catch_up((0, 60), again=again), GroupMismatchError)
    assert world.offsets() == written_rows(0, 60)


def test_groups_with_different_topics_may_share_a_table(world, beside, command):
    other = beside(world, topic=False)
    for one in (world, other, world):
        one.grow_to(one.log_end + 30)
        assert one.live() is None
    assert all(certified(command("audit", one.group, "--json")) for one in (world, other))


def test_a_successor_adopts_the_rows_and_the_pending_ranges(world, beside, command):
    world.crash_and_resume_at_120()
    other = beside(world)
    told = command("adopt", other.group, world.table, "--yes")
    assert told.exit_code == 0, told.output
    assert f"{world.topic}: copied the commits of 1 partition from {world.group}" in told.stdout
    assert (other.committed(), other.pending_by_live_log()) == (120, [(70, 120)])
    other.grow_to(130)
    assert other.live() is None
    assert other.catch_up((70, 120)) is None
    assert world.offsets() == written_rows(0, 130)
    assert certified(command("audit", other.group, "--json"))
    assert isinstance(world.live(), GroupMismatchError)
    told = command("adopt", other.group, world.table, "--yes")
    assert (told.exit_code, "has no rows that another group" in told.output) == (1, True)


def rows_of(spark, partition, start, end):
    frame = f"SELECT 'orders' AS topic, {partition} AS partition, id AS offset FROM range({start}, {end})"
    return [OffsetRange("orders", partition, start, end)], lambda: spark.sql(frame)


def test_two_groups_that_begin_at_the_same_time_find_each_other(spark, table):
    """Both read an empty table.

    The second one began its write of another partition before the first one landed.
    """
    partitions = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
    first, second = (
        TableLedger(IcebergTable(table), lambda: spark, group_id=group) for group in ("g-a", "g-b")
    )
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {table.rpartition('.')[0]}").collect()
    write_table(
        spark, table, *rows_of(spark, 7, 0, 1), ledger=TableLedger(IcebergTable(table), lambda: spark)
    )
    for ledger in (first, second):
        ledger.read(partitions)
    ranges, frame = rows_of(spark, 1, 0, 10)
    begun = TableWrite(
        spark,
        IcebergTable(table),
        ranges,
        make_frame=frame,
        may_go_on=lambda: None,
        may_replace=lambda: None,
        ledger=LaneLedger.of(second),
    )
    execute = begun.prepare()
    write_table(spark, table, *rows_of(spark, 0, 0, 10), ledger=first)
    begun.execute_with_retries(execute)
    for ledger, other in ((second, "g-a"), (first, "g-b")):
        with pytest.raises(GroupMismatchError, match=f"that group {other} wrote"):
            write_table(spark, table, *rows_of(spark, 0, 0, 20), ledger=ledger)
    assert TableLedger(IcebergTable(table), lambda: spark).read(partitions)[partitions[0]].written == (
        Span(0, 10),
    )
