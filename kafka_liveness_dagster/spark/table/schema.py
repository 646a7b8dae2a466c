"""Create a table with the columns of a batch's rows, or add new columns to a table.

Columns are added after all checks of the rows. A batch that is refused changes no schema, no table and no
namespace.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 (the usual name)
from pyspark.sql.functions import partitioning

from kafka_liveness_dagster.core.table_layout import DEFAULT_LAYOUT, Field, TableLayout, parse_partition_field
from kafka_liveness_dagster.core.table_properties import (
    describe_refused,
    format_set_properties,
    new_table_properties,
    refused_new_table_properties,
)
from kafka_liveness_dagster.spark.error_classification import (
    is_column_added_concurrently,
    is_server_error,
    summarize,
)
from kafka_liveness_dagster.spark.errors import TableSchemaError
from kafka_liveness_dagster.spark.table.schema_check import (
    cast_to_table,
    column_ddl,
    quote_name,
    reshape_expression,
    sql_type,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.spark.table.schema_check import SchemaDiff
    from kafka_liveness_dagster.spark.table.table import IcebergTable

_MAX_OPEN_FILES = 64
"""Largest number of open files of a task. Each has buffers: 1,000 in two tasks filled a 1 GB Spark server."""


def create_table(
    table: IcebergTable,
    frame: DataFrame,
    ranges: Sequence[OffsetRange],
    summary: Mapping[str, str],
    layout: TableLayout = DEFAULT_LAYOUT,
) -> None:
    """Create the table with these rows in one commit, and its namespaces before it.

    If the commit fails, the created namespaces are dropped again.
    """
    session = frame.sparkSession
    made = _create_namespaces(session, table.quoted.split(".")[:-1])
    writer = frame.sortWithinPartitions(*map(F.expr, layout.sort_by)) if layout.sort_by else frame
    creating = writer.writeTo(table.quoted).using("iceberg")
    if fields := [_partition_expressions(parse_partition_field(text)) for text in layout.partition_by]:
        creating = creating.partitionedBy(*fields)
    for key, value in new_table_properties(layout).items():
        creating = creating.tableProperty(key, value)
    try:
        fans_out = layout.is_by_kafka_partition and allows_fanout(ranges)
        creating.options(**write_options(summary, fans_out=fans_out)).create()
    except PySparkException:
        _drop_namespaces(session, made)
        raise


def check_properties(table: IcebergTable, session: SparkSession, layout: TableLayout) -> None:
    """Check that later batches can be written to a table with these properties.

    The check includes the catalog's own properties. This package's properties override a catalog's defaults,
    and a catalog's overrides override all others. Properties that the server of a REST catalog sets are
    visible only in the created table, before the second batch.

    Raises:
        TableSchemaError: later batches cannot be written; the table was not created.
    """
    catalog = f"spark.sql.catalog.{table.name.partition('.')[0]}."
    settings = {row["key"]: row["value"] for row in session.sql("SET").collect()}
    default, override = (
        {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}
        for prefix in (f"{catalog}table-default.", f"{catalog}table-override.")
    )
    if found := refused_new_table_properties(layout, default, override):
        raise TableSchemaError(
            f"Table {table.name} would have properties that batches cannot be written with: "
            f"{describe_refused(found)}. It was not created. Fix: set {format_set_properties(found)} in "
            f"table_properties, or in {catalog}table-override if the catalog sets them there"
        )


def set_sort_order(table: IcebergTable, session: SparkSession, layout: TableLayout) -> None:
    """Set the sort order of a new table, because the statement that creates it cannot."""
    if layout.sort_by:
        session.sql(f"ALTER TABLE {table.quoted} WRITE LOCALLY ORDERED BY {', '.join(layout.sort_by)}")


def _partition_expressions(by: Field) -> Column:
    if by.transform == "bucket":
        return partitioning.bucket(by.buckets, by.column)
    return getattr(partitioning, by.transform)(by.column) if by.transform else F.col(by.column)


def with_missing_columns(frame: DataFrame, found: SchemaDiff) -> DataFrame:
    """Return the frame with the missing columns, and missing fields inside columns, as null."""
    added = (f"CAST(NULL AS {sql_type(f.dataType)}) {quote_name(f.name)}" for f in found.missing)
    if not found.incomplete:
        return frame.selectExpr("*", *added)
    return reshape(frame, found.table_after, found.incomplete).selectExpr("*", *added)


def reshape(frame: DataFrame, columns: StructType, names: Collection[str] | None = None) -> DataFrame:
    """Return the frame with the table's fields inside its columns.

    Args:
        frame: rows to change.
        columns: columns of the table.
        names: names of the columns to change; None for all.
    """
    kinds = {one.name: one.dataType for one in columns if names is None or one.name in names}
    return frame.selectExpr(
        *(
            f"{reshape_expression(quote_name(one.name), one.dataType, kinds.get(one.name, one.dataType))} AS "
            f"{quote_name(one.name)}"
            for one in frame.schema
        )
    )


def dry_run_write(table: IcebergTable, frame: DataFrame, found: SchemaDiff, columns: StructType) -> None:
    """Check that rows can be written before the table's schema is changed for them.

    The schema change is not part of the rows' commit. So Spark first plans the write of the known columns.
    Then it computes all rows without writing them, which finds a row outside of the batch or a function that
    fails. Iceberg's ``mergeSchema`` adds the columns before any such check.

    Args:
        table: table to write to.
        frame: rows of the batch.
        found: difference between the rows and the table.
        columns: columns of the table.

    Raises:
        TableSchemaError: the rows do not fit the table.
        pyspark.errors.PySparkException: a row failed.
    """
    known = reshape(frame.drop(*(F.col(quote_name(one.name)) for one in found.new)), columns)
    sql = f"EXPLAIN INSERT INTO {table.quoted} BY NAME SELECT * FROM {{rows}}"
    plan = frame.sparkSession.sql(sql, rows=known).collect()
    if len(plan) > 1 and plan[0][0].startswith("Error") and not is_column_added_concurrently(plan[1][0]):
        now = table.shape(frame.sparkSession)
        # If the columns differ, another writer changed the table, and the commit is refused
        if now is not None and now.columns == columns:
            raise table.unsupported_types_error(plan[1][0])
    cast_to_table(frame, found.table_after).write.format("noop").mode("overwrite").save()


def evolve_schema(table: IcebergTable, session: SparkSession, found: SchemaDiff) -> None:
    """Add columns and fields inside columns, and widen the types of others.

    Each change is a metadata commit, which rewrites no row.

    Raises:
        TableSchemaError: Iceberg does not support the change.
        pyspark.errors.PySparkException: another writer added one of them concurrently.
    """
    added = [*map(column_ddl, found.new), *(f"{one.name} {sql_type(one.data_type)}" for one in found.added)]
    changes = [f"ADD COLUMNS ({', '.join(added)})"] if added else []
    changes += [f"ALTER COLUMN {one.name} TYPE {sql_type(one.data_type)}" for one in found.widened]
    try:
        for change in changes:
            session.sql(f"ALTER TABLE {table.quoted} {change}")
    except PySparkException as error:
        if is_server_error(error) or error.getCondition() == "FIELD_ALREADY_EXISTS":
            raise
        raise table.unsupported_types_error(summarize(error)) from error


def allows_fanout(ranges: Iterable[OffsetRange]) -> bool:
    """Return whether a task may have a file open for each Kafka partition.

    A task has the rows of one partition, unless the transform moves rows. Then a task may have rows of all
    partitions.
    """
    return len({r.topic_partition for r in ranges}) <= _MAX_OPEN_FILES


def write_options(summary: Mapping[str, str], *, fans_out: bool = False) -> dict[str, str]:
    """Return the options of a write.

    Args:
        summary: properties for the summary of the new snapshot.
        fans_out: whether a task has a file open for each table partition; otherwise it sorts its rows by
            table partition.
    """
    properties = {f"snapshot-property.{name}": text for name, text in summary.items()}
    fan_out = str(fans_out).lower()
    return {
        "isolation-level": "serializable",
        "distribution-mode": "none",
        "fanout-enabled": fan_out,
        **properties,
    }


def _create_namespaces(session: SparkSession, parts: Sequence[str]) -> list[str]:
    """Create the missing namespaces and return them.

    Outer ones come first, because some catalogs create none inside a missing namespace.
    """
    made: list[str] = []
    for depth in range(2, len(parts) + 1):
        namespace = ".".join(parts[:depth])
        try:
            session.sql(f"CREATE NAMESPACE {namespace}")
        except PySparkException as error:
            # Another writer created it, or the response was lost; not every catalog has a condition for that
            if error.getCondition() == "SCHEMA_ALREADY_EXISTS" or _namespace_exists(session, namespace):
                continue
            _drop_namespaces(session, made)
            raise
        made.append(namespace)
    return made


def _namespace_exists(session: SparkSession, namespace: str) -> bool:
    try:
        session.sql(f"DESCRIBE NAMESPACE {namespace}")
    except PySparkException:
        return False
    return True


def _drop_namespaces(session: SparkSession, created: Sequence[str]) -> None:
    for namespace in reversed(created):
        with suppress(PySparkException):  # another writer has created a table in it
            session.sql(f"DROP NAMESPACE IF EXISTS {namespace}")
