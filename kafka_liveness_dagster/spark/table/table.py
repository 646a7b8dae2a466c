"""Describe an Iceberg table: its columns, its properties and its current snapshot.

Never writes rows, and never changes a table.

>>> IcebergTable("lake.shop.orders").quoted
'`lake`.`shop`.`orders`'
>>> IcebergTable("orders")
Traceback (most recent call last):
kafka_liveness_dagster.core.errors.InvalidSettingError: 'orders' is not a table name. Fix: write...
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
    from collections.abc import Collection, Iterable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField


_TOTAL_COLUMNS = "summary['total-records'], summary['total-position-deletes']"
_TOTALS_QUERY = f"SELECT {_TOTAL_COLUMNS} FROM {{}}.`snapshots` WHERE snapshot_id = {{}}"


class TableInfo(NamedTuple):
    """A table at one of its snapshots.

    Attributes:
        snapshot_id: Iceberg's snapshot id, which is the asset's data version.
        rows: number of rows; None if the catalog keeps no history.
        columns: columns of the table.
        name: ``catalog.namespace.table``.
        uri: URI of the table's folder; None if the catalog does not return it.
    """

    snapshot_id: int
    rows: int | None
    columns: StructType
    name: str
    uri: str | None


def describe_table(session: SparkSession, table: IcebergTable, answer_seconds: float) -> TableInfo | None:
    """Return the current state of the table; None if it has no snapshot.

    One of the queries is a Spark job. It waits while batches use all cores.

    Raises:
        SparkNotRespondingError: Spark did not respond within ``answer_seconds``.
        SparkFailedError: Spark could not read the table's metadata.
    """
    with connection_of(session).abort_after(answer_seconds, f"it was queried for {table.name}"):
        try:
            return _describe_table(session, table)
        except PySparkException as error:
            raise SparkFailedError(
                f"Metadata of {table.name} could not be read ({summarize(error)}). Committed rows are in the "
                "table. The next materialization reads it again. Fix: if this repeats, remove the cause in "
                "this message; Spark's log has the whole error"
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


class _KeptShape(NamedTuple):
    shape: TableShape
    until: float


_checked_until: WeakKeyDictionary[SparkSession, dict[str, float]] = WeakKeyDictionary()  # by table
_kept_shapes: WeakKeyDictionary[SparkSession, dict[str, _KeptShape]] = WeakKeyDictionary()  # by table
# Version and text of a session's settings
_wap_settings: WeakKeyDictionary[SparkSession, tuple[object, str]] = WeakKeyDictionary()
_VIEW = "a view"
_WAP_SETTINGS = ("spark.wap.branch", "spark.wap.id")
_WAP_ENABLED = "write.wap.enabled"
_NO_CATALOG = ("REQUIRES_SINGLE_PART_NAMESPACE", "CATALOGNOT_FOUND")


class TableShape(NamedTuple):
    """The columns and the partitioning of a table.

    Attributes:
        columns: columns of the table, without metadata columns.
        is_by_kafka_partition: whether each file has offsets of a single Kafka partition.
        is_kept: whether they were read for an earlier batch or for the ledger, at most a minute before.
    """

    columns: StructType
    is_by_kafka_partition: bool
    is_kept: bool = False


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
                f"{self.name!r} is not a table name. Fix: write catalog.namespace.table of letters, digits, "
                "_ and -, like lake.shop.orders"
            )

    @property
    def quoted(self) -> str:
        """The name quoted for SQL."""
        return ".".join(f"`{part}`" for part in self.name.split("."))

    def shape(self, session: SparkSession) -> TableShape | None:
        """Return columns and partitioning of the table; None if it does not exist yet.

        Raises:
            TableSchemaError: batches cannot be written to it. The table lacks topic, partition or offset, or
                has a column with the name of a metadata column. Or it is a view, a branch, or a table of
                another format. Or there is no such catalog.
        """
        try:
            self._require_whole_table(session)
            schema: StructType = session.table(self.quoted).select("*", "_partition").schema
        except AnalysisException as error:
            condition = error.getCondition() or ""
            if condition in _NO_CATALOG:
                raise TableSchemaError(
                    f"The Spark server has no catalog {self.name.partition('.')[0]!r}. Nothing was written. "
                    "Fix: use catalog lake on the embedded server, or set spark.sql.catalog.<name> on your "
                    "server"
                ) from None
            if condition != NOT_FOUND and not condition.startswith("UNRESOLVED_COLUMN"):
                raise
            if is_table_missing(error, self.quoted) or (kind := self._kind(session)) is None:
                return None
            raise self._not_a_table_error(kind) from error
        columns = StructType(schema.fields[:-1])
        # A view may have Iceberg's metadata columns
        if "_partition" in columns.names and self._is_view(session):
            raise self._not_a_table_error(_VIEW)
        require_key_columns(columns, f"Table {self.name}")
        remedy = f"ALTER TABLE {self.name} RENAME COLUMN, and rename it in the transform"
        reject_metadata_names(columns.names, f"Columns of table {self.name}", remedy)
        return TableShape(columns, _partitions_by_kafka(schema.fields[-1]))

    def writable_shape(self, session: SparkSession) -> TableShape | None:
        """Return ``shape`` of a table that batches can be written to.

        The shape and the table's properties are read at most once a minute, because each costs a request.
        If another writer changes the columns in between, Spark refuses the rows or writes nulls into new
        columns. After a refusal ``refresh`` drops the kept shape. If another writer writes files with other
        properties in between, a MERGE replaces the rows in these files.

        Raises:
            TableSchemaError: as for ``shape``; or the table's properties are unsuitable. With them Iceberg or
                Spark would refuse a later batch, or let two writers of the same offsets commit.
        """
        shape = self._kept_shape(session) or self._read_shape(session)
        if shape is not None:
            self._check_properties(session, shape)
        return shape

    def _kept_shape(self, session: SparkSession) -> TableShape | None:
        found = _kept_shapes.setdefault(session, {}).get(self.name)
        return found.shape if found is not None and time.monotonic() < found.until else None

    def _read_shape(self, session: SparkSession) -> TableShape | None:
        """Return ``shape``, and keep it for the batches of the next minute."""
        shape = self.shape(session)
        if shape is not None:
            until = time.monotonic() + _CHECK_EVERY_SECONDS
            _kept_shapes.setdefault(session, {})[self.name] = _KeptShape(shape._replace(is_kept=True), until)
        return shape

    def forget_shape(self, session: SparkSession) -> None:
        """Drop the kept shape, so that the next batch reads the columns."""
        _kept_shapes.setdefault(session, {}).pop(self.name, None)

    def _check_properties(self, session: SparkSession, shape: TableShape) -> None:
        checked = _checked_until.setdefault(session, {})
        if time.monotonic() < checked.get(self.name, 0.0):
            return
        bounds = needed_bounds(is_by_kafka_partition=shape.is_by_kafka_partition)
        if found := [*refused_properties(self.properties(session), bounds, shape.columns.names)]:
            raise TableSchemaError(
                f"Table {self.name} has properties that batches cannot be written with: "
                f"{describe_refused(found)}. Nothing was written. Fix: ALTER TABLE {self.name} SET "
                f"TBLPROPERTIES ({format_set_properties(found)})"
            )
        checked[self.name] = time.monotonic() + _CHECK_EVERY_SECONDS

    def check_main(self, session: SparkSession, *, is_new: bool = False) -> None:
        """Check that a write goes to the main branch, where readers find its rows.

        With the table's ``write.wap.enabled`` and a setting of the session, Iceberg writes to another branch,
        or stages the rows, and reports success. The check is one request, and none while this client has sent
        nothing that may change a setting. It queries the table only if the session has such a setting.

        Args:
            session: session of the write.
            is_new: whether the table does not exist yet. Its catalog may then set any property.

        Raises:
            TableSchemaError: the write would not go to the main branch.
        """
        settings = _describe_wap_settings(session)
        if not settings:
            return
        of_the_server = "remove the setting from the Spark server and from the transform"
        if is_new:
            raise TableSchemaError(
                f"Table {self.name} does not exist, and {settings} may stage its rows: the catalog may "
                f"create it with {_WAP_ENABLED}. Nothing was written. Fix: {of_the_server}, or create the "
                "table before."
            )
        if self.properties(session).get(_WAP_ENABLED, "").lower() == "true":
            raise TableSchemaError(
                f"Table {self.name} would not get the rows: {settings} and the table's "
                f"{_WAP_ENABLED}=true stage them for an audit. Nothing was written. Fix: "
                f"{of_the_server}; or ALTER TABLE {self.name} UNSET TBLPROPERTIES ('{_WAP_ENABLED}')"
            )

    def unsupported_types_error(self, why: str) -> TableSchemaError:
        """Return the error for rows with types that the table refuses."""
        return TableSchemaError(
            f"Rows do not fit table {self.name} ({why}). Nothing was written, and the table is unchanged. "
            "Fix: CAST to the table's type in the transform, give the column another name (it is added), or "
            "ALTER the table"
        )

    def snapshot_id(self, session: SparkSession) -> int | None:
        """Return the id of the table's current snapshot; None if it has none.

        The plan of a read of the table's branches contains the id, and Spark does not execute that plan. A
        query takes twice the processor time. It is used for a table without a snapshot, and for Iceberg
        versions that do not show the id in a plan. It also raises the error for a missing table.
        """
        with suppress(AnalysisException):
            if planned := _PLANNED.search(session.table(f"{self.quoted}.`refs`")._explain_string()):  # noqa: SLF001
                return int(planned[1])
        found = session.sql(f"SHOW TBLPROPERTIES {self.quoted} ('current-snapshot-id')").collect()
        return int(found[0]["value"]) if found and found[0]["value"].isdigit() else None

    def current_snapshot_id(self, session: SparkSession, known: Collection[int] = ()) -> int | None:
        """Return the id of the current snapshot; None without a snapshot or a table. Raise as ``shape`` does.

        The shape is read first, because a query of a missing table would write Spark's error into the log of
        the run. It is not read if it is kept, or if the table is at a ``known`` snapshot, at which it was
        checked before.
        """
        found: int | None = None
        is_kept = self._kept_shape(session) is not None
        if is_kept or known:
            with suppress(AnalysisException):  # the table was dropped or replaced: the shape has the error
                found = self.snapshot_id(session)
            if found is not None and (is_kept or found in known):
                return found
        if self._read_shape(session) is None:
            return None
        return self.snapshot_id(session) if found is None else found

    def refresh(self, session: SparkSession, *, keep_shape: bool = False) -> None:
        """Drop cached metadata of the table, because a caching catalog would return the old snapshot.

        Args:
            session: the session that reads the table next.
            keep_shape: whether only the snapshots are read next. Else the kept shape is dropped, too.
        """
        if not keep_shape:
            self.forget_shape(session)
        try:
            session.catalog.refreshTable(self.quoted)
        except AnalysisException as error:
            if error.getCondition() not in (NOT_FOUND, *_NO_CATALOG):  # not created yet, or no catalog
                raise

    def details(self, session: SparkSession) -> dict[str, str]:
        """Return Spark's description of the table, by name; Spark runs no job for it.

        A column with the name of an entry is left out.
        """
        return {row[0]: row[1] for row in session.sql(f"DESCRIBE TABLE EXTENDED {self.quoted}").collect()}

    def properties(self, session: SparkSession) -> dict[str, str]:
        """Return the table's properties, by name."""
        return {
            row["key"]: row["value"] for row in session.sql(f"SHOW TBLPROPERTIES {self.quoted}").collect()
        }

    def rows_at(self, session: SparkSession, snapshot_id: int) -> DataFrame:
        """Return the rows of a snapshot."""
        return session.sql(f"SELECT * FROM {self.quoted} VERSION AS OF {snapshot_id}")

    def count_rows(self, session: SparkSession, ranges: Iterable[OffsetRange]) -> int:
        """Return the number of rows that the table has of these offsets."""
        return int(session.table(self.quoted).where(ranges_condition(ranges)).count())

    def file_ranges(
        self, session: SparkSession, snapshot_id: int, ranges: Iterable[OffsetRange]
    ) -> list[OffsetRange] | None:
        """Return the first to last offset of each data file of a snapshot in the partitions of ``ranges``.

        None if a file has no bounds of its offsets. Another writer may have written it in Avro, or with other
        properties.
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
        """Refuse a branch, a tag or a metadata table, because rows of a branch are not in the table."""
        whole, _, part = self.quoted.rpartition(".")
        if (
            _INSIDE_ANOTHER.fullmatch(part.strip("`"))
            and whole.count(".")
            and session.catalog.tableExists(whole)
        ):
            raise TableSchemaError(
                f"{self.name} is a branch, a tag or metadata of table {whole.replace('`', '')}. Nothing was "
                "written. Batches go to the table's main branch. Fix: name the table itself"
            )

    def _not_a_table_error(self, kind: str) -> TableSchemaError:
        return TableSchemaError(
            f"{self.name} is {kind}, not an Iceberg table. Nothing was written. Fix: name an Iceberg table, "
            "or a table that does not exist yet, or use a custom sink"
        )

    def _is_view(self, session: SparkSession) -> bool:
        """Return whether it is a view; False if Spark cannot describe it, because of a column's name."""
        with suppress(PySparkException):
            return self._kind(session) == _VIEW
        return False

    def _kind(self, session: SparkSession) -> str | None:
        """Return the kind of an object that is no Iceberg table; None if it does not exist."""
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


def _describe_wap_settings(session: SparkSession) -> str:
    """Return the session's settings for other branches as text; empty if there are none.

    Only requests of this client change the settings of its session, so the text is kept until the next one.
    """
    version = connection_of(session).settings_version
    read = _wap_settings.get(session)
    if read is None or read[0] is not version:
        told = session.client.get_config_with_defaults(*((name, None) for name in _WAP_SETTINGS))
        found = (f"{name}={value!r}" for name, value in zip(_WAP_SETTINGS, told, strict=True) if value)
        read = _wap_settings[session] = version, " and ".join(found)
    return read[1]


def _partitions_by_kafka(partition: StructField) -> bool:
    return isinstance(partition.dataType, StructType) and {"topic", "partition"} <= set(
        partition.dataType.names
    )
