"""Describe an Iceberg table: what it is, whether it fits, which snapshot it is at.

Never writes rows, nor changes what a table is.

>>> IcebergTable("lake.shop.orders").quoted
'`lake`.`shop`.`orders`'
>>> IcebergTable("orders")
Traceback (most recent call last):
kafka_liveness_dagster.core.errors.InvalidSettingError: 'orders' is not a table: wanted...
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.types import StructType

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.table_properties import (
    describe_refused,
    format_set_properties,
    needed_bounds,
    refused_properties,
)
from kafka_liveness_dagster.spark.connect.connection import connection_of
from kafka_liveness_dagster.spark.error_classification import NOT_FOUND, is_table_missing, summarize
from kafka_liveness_dagster.spark.errors import SparkFailedError, TableSchemaError
from kafka_liveness_dagster.spark.ranges import ranges_condition
from kafka_liveness_dagster.spark.table.schema_check import reject_metadata_names, require_key_columns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField


_TOTAL_COLUMNS = "summary['total-records'], summary['total-position-deletes']"
_TOTALS_QUERY = f"SELECT {_TOTAL_COLUMNS} FROM {{}}.`snapshots` WHERE snapshot_id = {{}}"


class TableInfo(NamedTuple):
    """A table at one of its snapshots.

    Attributes:
        snapshot_id: Iceberg's, the asset's data version.
        rows: it holds, None where a catalog keeps no history.
        uri: of its folder, None where a catalog does not say.
    """

    snapshot_id: int
    rows: int | None
    columns: StructType
    name: str
    uri: str | None


def describe_table(session: SparkSession, table: IcebergTable, answer_seconds: float) -> TableInfo | None:
    """The table as it is, None while it has no snapshot.

    One of its questions is a job, which waits for a core that batches have.

    Raises:
        SparkNotRespondingError: Spark did not answer in time.
        SparkFailedError: it cannot say.
    """
    with connection_of(session).abort_after(answer_seconds, f"it was asked what {table.name} has"):
        try:
            return _describe_table(session, table)
        except PySparkException as error:
            raise SparkFailedError(
                f"Spark cannot say what {table.name} has now ({summarize(error)}): what was committed is "
                "there, and the next materialization asks again"
            ) from error


def _describe_table(session: SparkSession, table: IcebergTable) -> TableInfo | None:
    shape = table.shape(session)
    snapshot_id = None if shape is None else table.snapshot_id(session)
    if shape is None or snapshot_id is None:
        return None
    counts = session.sql(_TOTALS_QUERY.format(table.quoted, snapshot_id)).collect()
    rows = int(counts[0][0]) - int(counts[0][1] or 0) if counts and counts[0][0] else None
    return TableInfo(
        snapshot_id, rows, shape.columns, name=table.name, uri=table.details(session).get("Location")
    )


_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){2,}")
_INSIDE_ANOTHER = re.compile(r"(branch|tag|snapshot_id|at_timestamp)_.+|changes|position_deletes")
_PLANNED = re.compile(r"\bsnapshotId=(\d+)\b")
_CHECK_EVERY_SECONDS = 60.0
_checked_at: WeakKeyDictionary[SparkSession, dict[str, float]] = WeakKeyDictionary()  # until when, by table
_VIEW = "a view"
_WAP_SETTINGS = ("spark.wap.branch", "spark.wap.id")
_WAP_ENABLED = "write.wap.enabled"
_NO_CATALOG = ("REQUIRES_SINGLE_PART_NAMESPACE", "CATALOGNOT_FOUND")


class TableShape(NamedTuple):
    """What a table looks like.

    Attributes:
        columns: the table's own.
        is_by_kafka_partition: whether no file can hold offsets of two of Kafka's partitions.
    """

    columns: StructType
    is_by_kafka_partition: bool


@dataclass(frozen=True)
class IcebergTable:
    """One Iceberg table, ``catalog.namespace.table``.

    Raises:
        InvalidSettingError: the name has fewer parts, or characters beyond letters, digits, ``_`` and ``-``.
    """

    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidSettingError(
                f"{self.name!r} is not a table: wanted catalog.namespace.table of letters, digits, _ and -, "
                "like lake.shop.orders"
            )

    @property
    def quoted(self) -> str:
        """The name as SQL takes it."""
        return ".".join(f"`{part}`" for part in self.name.split("."))

    def shape(self, session: SparkSession) -> TableShape | None:
        """What the table looks like, or None when there is no such table yet.

        Raises:
            TableSchemaError: the table lacks topic, partition or offset, or has a column with a name of
                Iceberg's; it is a view, a branch, or of another format; or there is no such catalog.
        """
        try:
            self._require_whole_table(session)
            schema: StructType = session.table(self.quoted).select("*", "_partition").schema
        except AnalysisException as error:
            condition = error.getCondition() or ""
            if condition in _NO_CATALOG:
                raise TableSchemaError(
                    f"the Spark server has no catalog {self.name.partition('.')[0]!r}: nothing was written; "
                    "the embedded server's is called lake, on one of your own set spark.sql.catalog.<name>"
                ) from None
            if condition != NOT_FOUND and not condition.startswith("UNRESOLVED_COLUMN"):
                raise
            if is_table_missing(error, self.quoted) or (kind := self._kind(session)) is None:
                return None
            raise self._not_a_table_error(kind) from error
        columns = StructType(schema.fields[:-1])
        # A view may show Iceberg's own columns
        if "_partition" in columns.names and self._is_view(session):
            raise self._not_a_table_error(_VIEW)
        require_key_columns(columns, f"table {self.name}")
        remedy = f"ALTER TABLE {self.name} RENAME COLUMN, and rename it in the transform"
        reject_metadata_names(columns.names, f"columns of table {self.name}", remedy)
        return TableShape(columns, _partitions_by_kafka(schema.fields[-1]))

    def writable_shape(self, session: SparkSession) -> TableShape | None:
        """Return what ``shape`` does, of a table that batches can be written to.

        Its properties are read once a minute at most: files that somebody writes with others meanwhile are
        merged.

        Raises:
            TableSchemaError: as ``shape``; or the table has properties with which Iceberg or Spark would
                refuse a later batch, or let two writers of the same offsets commit.
        """
        shape = self.shape(session)
        checked = _checked_at.setdefault(session, {})
        if shape is None or time.monotonic() < checked.get(self.name, 0.0):
            return shape
        bounds = needed_bounds(is_by_kafka_partition=shape.is_by_kafka_partition)
        if found := [*refused_properties(self.properties(session), bounds, shape.columns.names)]:
            raise TableSchemaError(
                f"Table {self.name} has properties that batches cannot be written with: "
                f"{describe_refused(found)}. Nothing was written. Fix: ALTER TABLE {self.name} SET "
                f"TBLPROPERTIES ({format_set_properties(found)})"
            )
        checked[self.name] = time.monotonic() + _CHECK_EVERY_SECONDS
        return shape

    def check_main(self, session: SparkSession, *, is_new: bool = False) -> None:
        """Pass if a write goes to the main branch, where readers find its rows.

        With the table's ``write.wap.enabled`` and a setting of the session, Iceberg writes to another branch,
        or stages the rows, and reports success. One request; the table is queried only where the session has
        such a setting.

        Args:
            session: the session that writes.
            is_new: the table does not exist yet. Its catalog may give it any property.

        Raises:
            TableSchemaError: it does not.
        """
        told = session.client.get_config_with_defaults(*((name, None) for name in _WAP_SETTINGS))
        settings = " and ".join(
            f"{name}={value!r}" for name, value in zip(_WAP_SETTINGS, told, strict=True) if value
        )
        if not settings:
            return
        of_the_server = "remove the setting from the Spark server and from the transform"
        if is_new:
            raise TableSchemaError(
                f"Table {self.name} does not exist, and {settings} may put its rows aside: its catalog may "
                f"create it with {_WAP_ENABLED}. Nothing was written. Fix: {of_the_server}, or create the "
                "table before."
            )
        if self.properties(session).get(_WAP_ENABLED, "").lower() == "true":
            raise TableSchemaError(
                f"Table {self.name} would stay without the rows: {settings} and the table's "
                f"{_WAP_ENABLED}=true put them aside, for an audit. Nothing was written. Fix: "
                f"{of_the_server}; or ALTER TABLE {self.name} UNSET TBLPROPERTIES ('{_WAP_ENABLED}')"
            )

    def unsupported_types_error(self, why: str) -> TableSchemaError:
        """The error for rows of types that the table does not take."""
        return TableSchemaError(
            f"the rows do not fit table {self.name} ({why}): nothing was written, and the table is as it "
            "was; CAST to the table's type in the transform, name the column otherwise (a new one is "
            "added), or ALTER the table"
        )

    def snapshot_id(self, session: SparkSession) -> int | None:
        """The current snapshot, or None while the table has none.

        The plan of a look at its branches says which, and nothing is executed for it. A query takes twice the
        processor time: it is for a table without one, an Iceberg whose plans do not say it, and the error of
        who has no table.
        """
        with suppress(AnalysisException):
            if planned := _PLANNED.search(session.table(f"{self.quoted}.`refs`")._explain_string()):  # noqa: SLF001
                return int(planned[1])
        found = session.sql(f"SHOW TBLPROPERTIES {self.quoted} ('current-snapshot-id')").collect()
        return int(found[0]["value"]) if found and found[0]["value"].isdigit() else None

    def current_snapshot_id(self, session: SparkSession) -> int | None:
        """The current snapshot, or None while the table has none, or is none; raises as ``shape`` does.

        A query of a table that is missing would fill the log of the run with Spark's complaint.
        """
        return None if self.shape(session) is None else self.snapshot_id(session)

    def refresh(self, session: SparkSession) -> None:
        """Look at the catalog again: one that caches would show the old snapshot again."""
        try:
            session.catalog.refreshTable(self.quoted)
        except AnalysisException as error:
            if error.getCondition() not in (NOT_FOUND, *_NO_CATALOG):  # not created yet, or no catalog
                raise

    def details(self, session: SparkSession) -> dict[str, str]:
        """What Spark tells of it, by name; a column of such a name comes before, and is not told.

        No job is run.
        """
        return {row[0]: row[1] for row in session.sql(f"DESCRIBE TABLE EXTENDED {self.quoted}").collect()}

    def properties(self, session: SparkSession) -> dict[str, str]:
        """Read its table properties, by name."""
        return {
            row["key"]: row["value"] for row in session.sql(f"SHOW TBLPROPERTIES {self.quoted}").collect()
        }

    def rows_at(self, session: SparkSession, snapshot_id: int) -> DataFrame:
        """The rows as they were at a snapshot."""
        return session.sql(f"SELECT * FROM {self.quoted} VERSION AS OF {snapshot_id}")

    def count_rows(self, session: SparkSession, ranges: Iterable[OffsetRange]) -> int:
        """How many rows the table has of these offsets."""
        return int(session.table(self.quoted).where(ranges_condition(ranges)).count())

    def file_ranges(
        self, session: SparkSession, snapshot_id: int, ranges: Iterable[OffsetRange]
    ) -> list[OffsetRange] | None:
        """First to last offset of each data file that a snapshot has in the partitions of ``ranges``.

        None if a file has no bounds of its offsets: another writer's, in Avro or with other properties.
        """
        partitions = sorted({part.topic_partition for part in ranges})
        one_of = " OR ".join(
            f"(p.topic = '{at.topic}' AND p.partition = {at.partition})" for at in partitions
        )
        found = session.sql(
            "SELECT DISTINCT p.topic, p.partition, o.lower_bound, o.upper_bound FROM "
            f"(SELECT `partition` AS p, readable_metrics.`offset` AS o, content FROM {self.quoted}.`files` "
            f"VERSION AS OF {snapshot_id}) WHERE content = 0 AND ({one_of})"
        ).collect()
        if any(row["lower_bound"] is None or row["upper_bound"] is None for row in found):
            return None
        return [OffsetRange(topic, partition, first, end=last + 1) for topic, partition, first, last in found]

    def _require_whole_table(self, session: SparkSession) -> None:
        """Refuse what is only a part of a table: what Iceberg writes to a branch is not in the table."""
        whole, _, part = self.quoted.rpartition(".")
        if (
            _INSIDE_ANOTHER.fullmatch(part.strip("`"))
            and whole.count(".")
            and session.catalog.tableExists(whole)
        ):
            raise TableSchemaError(
                f"{self.name} is a branch, a tag or metadata of table {whole.replace('`', '')}: nothing was "
                "written; batches go to the table's main branch, so name the table itself"
            )

    def _not_a_table_error(self, kind: str) -> TableSchemaError:
        return TableSchemaError(
            f"{self.name} is {kind}: nothing was written; name an Iceberg table, or one that does not exist "
            "yet, or write with a sink of your own"
        )

    def _is_view(self, session: SparkSession) -> bool:
        """Return whether it is a view; a table with a column of Iceberg's own cannot be described."""
        with suppress(PySparkException):
            return self._kind(session) == _VIEW
        return False

    def _kind(self, session: SparkSession) -> str | None:
        """What it is instead of an Iceberg table; None when it is not there."""
        try:
            told = self.details(session)
        except AnalysisException as error:
            if error.getCondition() == NOT_FOUND:
                return None
            raise
        return (
            _VIEW
            if "# Detailed View Information" in told
            else f"a table of format {told.get('Provider', '?')}"
        )


def _partitions_by_kafka(partition: StructField) -> bool:
    return isinstance(partition.dataType, StructType) and {"topic", "partition"} <= set(
        partition.dataType.names
    )
