"""Which changes of another writer a batch notices that were made after the batch before it.

Of the columns, of the table itself, and of settings that put rows aside.
"""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
from kafka_liveness_dagster.core.partition_state import RowsMissingError
from kafka_liveness_dagster.core.table_layout import TableLayout
from kafka_liveness_dagster.spark.errors import TableSchemaError
from kafka_liveness_dagster.spark.table.ledger import TableLedger
from kafka_liveness_dagster.spark.table.table import IcebergTable
from kafka_liveness_dagster.spark.table.write import write_table
from tests.timeouts import connect

TP = TopicPartition("orders", 3)
KEY = ("'orders' AS topic", "3 AS partition", "id AS offset")


@pytest.fixture
def session(warm_spark, services):
    """The session of a run; another writer has ``warm_spark``."""
    found = connect(services.spark_remote)
    yield found
    found.stop()


@pytest.fixture(params=["overwrite", "append"])
def write(request, session, table):
    """Write the next five offsets with these columns; the first call creates the table."""
    layout = TableLayout(snapshots=request.param)
    ledger = TableLedger(IcebergTable(table), lambda: session, group_id="orders-etl")
    count = iter(range(0, 1_000, 5))

    def batch(*columns, before=lambda: None):
        at = next(count)

        def make():
            before()
            return session.range(at, at + 5, 1, 1).selectExpr(*KEY, *columns)

        ranges = [OffsetRange(*TP, at, at + 5)]
        return write_table(session, table, ranges, make, ledger=ledger, layout=layout)

    return batch


def values(rows, table, *names):
    """The values of these columns in the order of the offsets, one of each batch."""
    found = rows(table)
    return [tuple(row.get(name, "absent") for name in names) for row in found[::5]]


def test_a_column_that_another_writer_adds_between_two_batches_is_null(write, warm_spark, table, rows):
    """A transform that does not know it goes on."""
    for _ in range(2):
        write("1 AS v")
    warm_spark.sql(f"ALTER TABLE {table} ADD COLUMNS (n int)")
    write("1 AS v")
    assert values(rows, table, "v", "n") == [(1, None)] * 3


def test_a_column_that_both_add_is_added_once(write, warm_spark, table, rows):
    """The other lane has begun with the new transform before."""
    for _ in range(2):
        write("1 AS v")
    warm_spark.sql(f"ALTER TABLE {table} ADD COLUMNS (n int)")
    assert write("1 AS v", "2 AS n").attempts == 1
    assert values(rows, table, "v", "n") == [(1, None)] * 2 + [(1, 2)]


@pytest.mark.parametrize("change", ["DROP COLUMN v", "RENAME COLUMN v TO old"])
def test_a_column_that_another_writer_removes_is_added_again(write, warm_spark, table, rows, change):
    """As by the first batch of a run, which reads the columns."""
    for _ in range(3):
        write("1 AS v")
    warm_spark.sql(f"ALTER TABLE {table} {change}")
    write("2 AS v")
    assert values(rows, table, "v") == [(None,), (None,), (None,), (2,)]


def test_a_column_of_another_type_is_named(write, warm_spark, table):
    """A number does not fit the other writer's new column, and nothing is written."""
    for _ in range(2):
        write("DATE '2026-01-01' AS v")
    warm_spark.sql(f"ALTER TABLE {table} DROP COLUMN v")
    warm_spark.sql(f"ALTER TABLE {table} ADD COLUMNS (v int)")
    before = warm_spark.table(table).count()
    with pytest.raises(TableSchemaError, match=r"Rows do not fit table .*othing was written"):
        write("DATE '2026-01-01' AS v")
    assert warm_spark.table(table).count() == before


def test_a_transform_with_other_columns_changes_the_table_again(write, table, rows):
    """Each batch compares its own rows with the table."""
    write("1 AS v")
    write("1 AS v")
    write("1 AS v", "'a' AS n")
    write("1 AS v", "'b' AS n")
    write("3000000000 AS v", "'c' AS n")
    expected = [(1, None), (1, None), (1, "a"), (1, "b"), (3_000_000_000, "c")]
    assert values(rows, table, "v", "n") == expected


def test_rows_that_a_former_column_refused_are_written_after_its_change(write, warm_spark, table, rows):
    """The refusal is by the columns of now, in the batch after the other writer's change."""
    for _ in range(2):
        write("1 AS v")
    with pytest.raises(TableSchemaError, match="columns that differ by case only"):
        write("1 AS V")
    for old, new in (("v", "aside"), ("aside", "V")):
        warm_spark.sql(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")
    write("2 AS V")
    assert values(rows, table, "V") == [(1,), (1,), (2,)]


def test_a_table_that_is_replaced_between_two_batches_is_noticed(write, warm_spark, table):
    """Its rows are gone, though the new table has the same columns."""
    for _ in range(3):
        write("1 AS v")
    warm_spark.sql(f"DROP TABLE {table}")
    with pytest.raises(RowsMissingError, match="it was dropped, replaced or rolled back"):
        write("1 AS v")


def test_a_table_that_is_replaced_by_one_without_offsets_is_named(write, warm_spark, table):
    """No later batch could replace rows in it."""
    for _ in range(3):
        write("1 AS v")
    warm_spark.sql(f"CREATE OR REPLACE TABLE {table} USING iceberg AS SELECT 'orders' AS topic, 1 AS v")
    with pytest.raises(TableSchemaError, match="must have partition int, offset bigint"):
        write("1 AS v")
    assert warm_spark.table(table).count() == 1


@pytest.mark.parametrize("way", ["sql", "conf"])
def test_a_setting_of_a_later_batch_that_puts_rows_aside_is_named(write, session, warm_spark, table, way):
    """The transform sets it after batches that found none."""
    for _ in range(3):
        write("1 AS v")
    warm_spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.wap.enabled'='true')")
    sets = {
        "sql": lambda: session.sql("SET spark.wap.branch = audit"),
        "conf": lambda: session.conf.set("spark.wap.branch", "audit"),
    }
    with pytest.raises(TableSchemaError, match=r"spark\.wap\.branch='audit'.*write\.wap\.enabled"):
        write("1 AS v", before=sets[way])
    assert warm_spark.table(table).count() == 15
