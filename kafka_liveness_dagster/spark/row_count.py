"""Count and sum rows while Spark computes them, without reading a row.

Never uses PySpark's ``Observation``: up to 4.1.3 PySpark raises a ``TypeError`` if a plan contains such a
frame twice (SPARK-56322). So the sums have only a name, and the session's connection receives them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql import functions as F  # noqa: N812 (PySpark's usual alias)

from kafka_liveness_dagster.spark.connect.connection import connection_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from pyspark.sql import Column, DataFrame, SparkSession

    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.spark.table.table import IcebergTable


@dataclass(eq=False)
class RowSums:
    """Sums of one frame's rows, as Spark reports them after each execution that uses the frame.

    An execution may read only some of the rows, for example for ``isEmpty`` or a ``LIMIT``. So the report
    with the most rows counts.

    Attributes:
        name: the name of the sums in Spark's plans.
    """

    name: str = field(default_factory=lambda: f"kafka-liveness-{uuid4().hex}")
    _largest_report: Mapping[str, Any] = field(default_factory=dict)

    def report(self, sums: Mapping[str, Any]) -> None:
        """Keep the sums of one execution if they cover the most rows.

        Caller: the session's connection, in the thread of the execution. Affects: the sums.
        """
        if (sums.get("rows") or 0) >= self.rows_read:
            self._largest_report = sums

    def get(self, name: str) -> Any:
        """Return a sum; None until Spark has reported it, or if there was no row."""
        return self._largest_report.get(name)

    @property
    def rows_read(self) -> int:
        """Number of rows in the sums."""
        return self.get("rows") or 0


def with_sums(frame: DataFrame, *what: Column) -> tuple[DataFrame, RowSums]:
    """Return the frame and its sums, which are empty until Spark has computed the rows.

    The sum ``rows``, the number of rows, is always included.
    """
    sums = RowSums()
    connection_of(frame.sparkSession).report_to(sums)
    return frame.observe(sums.name, F.count(F.lit(1)).alias("rows"), *what), sums


def row_count(
    counted: RowSums, session: SparkSession, table: IcebergTable, ranges: Sequence[OffsetRange]
) -> int:
    """Return the number of rows written.

    If Spark reported no sums, count the table's rows of these ranges; both numbers are equal. Spark waits
    0.1 s for its sums, and a busy server takes longer. Spark also reports no sums if it knows beforehand that
    there is no row.
    """
    rows = counted.get("rows")
    return table.count_rows(session, ranges) if rows is None else int(rows)
