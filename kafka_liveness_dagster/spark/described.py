"""What do readers of a table find at this moment? Its snapshot, rows, columns and place."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.errors import PySparkException

from kafka_liveness_dagster.spark.errors import SparkFailedError
from kafka_liveness_dagster.spark.failed import in_short
from kafka_liveness_dagster.spark.line import line_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from kafka_liveness_dagster.spark.table import IcebergTable

_TOTALS = "summary['total-records'], summary['total-position-deletes']"
_COUNTS = f"SELECT {_TOTALS} FROM {{}}.`snapshots` WHERE snapshot_id = {{}}"


class TableNow(NamedTuple):
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


def described(session: SparkSession, table: IcebergTable, answer_seconds: float) -> TableNow | None:
    """The table as it is, None while it has no snapshot.

    One of its questions is a job, which waits for a core that batches have.

    Raises:
        SparkSilentError: Spark did not answer in time.
        SparkFailedError: it cannot say.
    """
    with line_of(session).within(answer_seconds, f"it was asked what {table.name} has"):
        try:
            return _described(session, table)
        except PySparkException as error:
            raise SparkFailedError(
                f"Spark cannot say what {table.name} has now ({in_short(error)}): what was committed is there, and the "
                "next materialization asks again"
            ) from error


def _described(session: SparkSession, table: IcebergTable) -> TableNow | None:
    shape = table.shape(session)
    snapshot_id = None if shape is None else table.snapshot_id(session)
    if shape is None or snapshot_id is None:
        return None
    counts = session.sql(_COUNTS.format(table.quoted, snapshot_id)).collect()
    rows = int(counts[0][0]) - int(counts[0][1] or 0) if counts and counts[0][0] else None
    return TableNow(snapshot_id, rows, shape.columns, table.name, table.details(session).get("Location"))
