"""Which table, does it fit, and which snapshot is it at? Iceberg tables as Spark's catalog shows them.

Never writes rows.

>>> IcebergTable("lake.shop.orders").quoted
'`lake`.`shop`.`orders`'
>>> IcebergTable("orders")
Traceback (most recent call last):
kafka_liveness_dagster.core.errors.InvalidSettingError: 'orders' is not a table: wanted catalog.namespace.table...
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql.types import ArrayType, IntegerType, LongType, MapType, StringType, StructField, StructType

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.spark.errors import TableSchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){2,}")
KEY = {"topic": StringType(), "partition": IntegerType(), "offset": LongType()}
_NO_CATALOG = ("REQUIRES_SINGLE_PART_NAMESPACE", "CATALOG_NOT_FOUND")
_PROPERTIES = {
    "format-version": "2",
    "write.distribution-mode": "none",  # each task writes its own ranges: no shuffle before the files
    "write.spark.fanout.enabled": "true",
    "write.metadata.metrics.column.offset": "full",  # conflicts are decided by each file's first and last offset
    # A dictionary that does not pay is given up with the first page: files of a small batch would else be encoded twice
    "write.parquet.page-row-limit": "5000",
    "write.metadata.delete-after-commit.enabled": "true",  # a commit a batch would pile up metadata files
    "commit.retry.num-retries": "10",  # writers of other ranges commit at the same time
}


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

    def columns(self, session: SparkSession) -> StructType | None:
        """The table's columns, or None when there is no such table yet.

        Raises:
            TableSchemaError: the table lacks topic, partition or offset, or is not partitioned by the first two; or
                there is no such catalog.
        """
        try:
            schema: StructType = session.table(self.quoted).select("*", "_partition").schema
        except AnalysisException as error:
            if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
                return None
            if error.getCondition() in _NO_CATALOG:
                raise TableSchemaError(
                    f"the Spark server has no catalog {self.name.partition('.')[0]!r}: nothing was written; the "
                    "embedded server's is called lake, on one of your own set spark.sql.catalog.<name>"
                ) from None
            raise
        columns = StructType(schema.fields[:-1])
        check_key(columns, f"table {self.name}")
        self._check_partitioning(schema.fields[-1])
        return columns

    def create(self, session: SparkSession, columns: StructType) -> None:
        """Create namespace and table unless they exist; of two that create at once, both go on."""
        properties = ", ".join(f"'{key}'='{value}'" for key, value in _PROPERTIES.items())
        namespace = self.quoted.rpartition(".")[0]
        session.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        session.sql(
            f"CREATE TABLE IF NOT EXISTS {self.quoted} ({_columns(columns)}) USING iceberg "
            f"PARTITIONED BY (`topic`, `partition`) TBLPROPERTIES ({properties})"
        )

    def fit(self, session: SparkSession, frame: DataFrame, columns: StructType) -> DataFrame:
        """The frame with the table's columns: what it lacks is null, what is new to the table is added to it."""
        new = [field for field in frame.schema if field.name not in columns.names]
        if new:
            session.sql(f"ALTER TABLE {self.quoted} ADD COLUMNS ({_columns(new)})")
        lacking = [field for field in columns if field.name not in frame.columns]
        required = [field.name for field in lacking if not field.nullable]
        if required:
            raise TableSchemaError(
                f"rows for {self.name} lack {', '.join(required)}, which the table requires: nothing was written; "
                "add the columns in the transform or drop NOT NULL"
            )
        return frame.selectExpr("*", *(f"CAST(NULL AS {_type(f.dataType)}) {_name(f.name)}" for f in lacking))

    def snapshot_id(self, session: SparkSession) -> int | None:
        """The current snapshot, or None while the table has none."""
        found = session.sql(f"SHOW TBLPROPERTIES {self.quoted} ('current-snapshot-id')").collect()
        return int(found[0]["value"]) if found and found[0]["value"].isdigit() else None

    def current(self, session: SparkSession) -> int | None:
        """The current snapshot, or None while the table has none, or is none; raises as ``columns`` does.

        A query of a table that is missing would fill the log of the run with Spark's complaint.
        """
        return None if self.columns(session) is None else self.snapshot_id(session)

    def refresh(self, session: SparkSession) -> None:
        """Look at the catalog anew: one that caches would show the old snapshot again."""
        try:
            session.catalog.refreshTable(self.quoted)
        except AnalysisException as error:
            if error.getCondition() not in ("TABLE_OR_VIEW_NOT_FOUND", *_NO_CATALOG):  # not created yet, or no catalog
                raise

    def at(self, session: SparkSession, snapshot_id: int) -> DataFrame:
        """The rows as they were at a snapshot."""
        return session.sql(f"SELECT * FROM {self.quoted} VERSION AS OF {snapshot_id}")

    def files(self, session: SparkSession, snapshot_id: int, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """First to last offset of each data file that a snapshot has in the partitions of ``ranges``.

        Raises:
            TableSchemaError: a file was written without statistics of its offsets.
        """
        partitions = sorted({part.topic_partition for part in ranges})
        one_of = " OR ".join(f"(p.topic = '{at.topic}' AND p.partition = {at.partition})" for at in partitions)
        found = session.sql(
            "SELECT DISTINCT p.topic, p.partition, o.lower_bound, o.upper_bound FROM "
            f"(SELECT `partition` AS p, readable_metrics.`offset` AS o, content FROM {self.quoted}.`files` "
            f"VERSION AS OF {snapshot_id}) WHERE content = 0 AND ({one_of})"
        ).collect()
        if any(row["lower_bound"] is None or row["upper_bound"] is None for row in found):
            raise TableSchemaError(
                f"table {self.name} has files without statistics of their offsets, and this batch cuts through "
                "one of its files: nothing was written; set write.metadata.metrics.column.offset=full on the table "
                "and rewrite its data files"
            )
        return [OffsetRange(topic, partition, first, last + 1) for topic, partition, first, last in found]

    def _check_partitioning(self, partition: StructField) -> None:
        fields = partition.dataType.names if isinstance(partition.dataType, StructType) else []
        if not {"topic", "partition"} <= set(fields):
            raise TableSchemaError(
                f"table {self.name} is partitioned by ({', '.join(fields)}), not by (topic, partition): nothing was "
                f"written; ALTER TABLE {self.name} ADD PARTITION FIELD topic, the same for partition, or write to "
                "a new table, which is created as needed"
            )


def _columns(fields: Iterable[StructField]) -> str:
    """Columns as SQL declares them; pyspark's own toDDL works only in the thread that opened the session."""
    return ", ".join(f"{_name(field.name)} {_type(field.dataType)}" for field in fields)


def _name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _type(kind: DataType) -> str:
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{_name(field.name)}: {_type(field.dataType)}' for field in kind)}>"
    if isinstance(kind, ArrayType):
        return f"array<{_type(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{_type(kind.keyType)}, {_type(kind.valueType)}>"
    return str(kind.simpleString())


def check_key(columns: StructType, of: str) -> None:
    """Pass when there are topic, partition and offset, of the types Kafka gives.

    Raises:
        TableSchemaError: one is missing or of another type.
    """
    have = {field.name: field.dataType for field in columns}
    wrong = [
        f"{name} {wanted.simpleString()}" + (f" (is {have[name].simpleString()})" if name in have else "")
        for name, wanted in KEY.items()
        if have.get(name) != wanted
    ]
    if wrong:
        raise TableSchemaError(
            f"{of} must have {', '.join(wrong)}: nothing was written; a batch is replaced by its offsets, so keep "
            "the three columns in what the transform returns and in the table"
        )
