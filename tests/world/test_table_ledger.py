"""What a table says that it holds, and what was done to it under a process that goes on."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.accounts import Account
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.witnesses import RowsMissingError
from kafka_liveness_dagster.spark.iceberg import write
from kafka_liveness_dagster.spark.ledger import TableLedger
from kafka_liveness_dagster.spark.table import IcebergTable

TP = TopicPartition("orders", 0)


def put(spark, ledger, start, end):
    """A row for each of these offsets, written and told by this ledger; the snapshot that it gave."""
    frame = f"SELECT 'orders' AS topic, 0 AS partition, id AS offset FROM range({start}, {end})"
    write(spark, ledger.target, [OffsetRange(*TP, start, end)], lambda: spark.sql(frame), ledger=ledger)
    return IcebergTable(ledger.target).snapshot_id(spark)


def set_back(spark, table, to, expired):
    """Roll the table back, and expire what was rolled away, as one does with what should never have been."""
    catalog, _, name = table.partition(".")
    ids = ", ".join(map(str, expired))
    for procedure in (
        f"rollback_to_snapshot('{name}', {to})",
        f"expire_snapshots(table => '{name}', snapshot_ids => ARRAY({ids}))",
    ):
        spark.sql(f"CALL {catalog}.system.{procedure}").collect()


def test_what_was_rolled_away_and_expired_is_not_told_on(spark, table):
    """A process that never saw the snapshot to which its table was set back, but had seen what was rolled away.

    What it had summed up is of a snapshot that is no ancestor; and as that is gone, nobody could find out later.
    """
    lane, other = (TableLedger(IcebergTable(table), lambda: spark) for _ in range(2))
    offsets = (10, 20, 30)
    put(spark, lane, 0, 10)
    back_to, rolled_away = (put(spark, other, start, start + 10) for start in (offsets[0], offsets[1]))
    assert lane.accounts([TP])[TP].done == (Span(0, 30),)
    set_back(spark, table, back_to, [rolled_away])
    with pytest.raises(RowsMissingError, match="lacks orders:0:20-30"):
        put(spark, lane, 30, 40)
    assert TableLedger(IcebergTable(table), lambda: spark).accounts([TP])[TP].done == (Span(0, 20),)


def test_nor_is_it_where_the_history_from_before_is_expired_too(spark, table):
    """The table cannot tell what it held: what this process knew of it counts no more, where it was set back."""
    lane, other = (TableLedger(IcebergTable(table), lambda: spark) for _ in range(2))
    first = put(spark, lane, 0, 10)
    second = put(spark, other, 10, 20)
    back_to, rolled_away = (put(spark, other, start, start + 10) for start in (20, 30))
    lane.accounts([TP])
    set_back(spark, table, back_to, [first, second, rolled_away])
    with pytest.raises(RowsMissingError, match="30-40"):
        put(spark, lane, 40, 50)
    anew = TableLedger(IcebergTable(table), lambda: spark).accounts([TP]).get(TP, Account())
    assert not any(span.end > 30 for span in anew.done)
