"""Sum up rows while Spark computes them, in particular count them; no row is read for it.

Never uses pyspark's ``Observation``: PySpark fails with a ``TypeError`` where a frame that has one is used
twice in a plan (SPARK-56322; up to 4.1.3). So the sums have a name only, and the session's line receives
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

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

    An execution may read a part of the rows only, for ``isEmpty`` or a ``LIMIT`` for example. So the report
    with the most rows counts.

    Attributes:
        name: the name of the sums in Spark's plans.
    """

    name: str = field(default_factory=lambda: f"kafka-liveness-{uuid4().hex}")
    _largest_report: Mapping[str, Any] = field(default_factory=dict)

    def report(self, sums: Mapping[str, Any]) -> None:
        """Take what Spark reports.

        Caller: the session's line, in the thread of the execution. Affects: the sums.
        """
        if (sums.get("rows") or 0) >= self.rows_read:
            self._largest_report = sums

    def get(self, name: str) -> Any:
        """Return a sum; None while Spark has not reported it, or where there was no row."""
        return self._largest_report.get(name)

    @property
    def rows_read(self) -> int:
        """How many rows were summed up."""
        return self.get("rows") or 0


def with_sums(frame: DataFrame, *what: Column) -> tuple[DataFrame, RowSums]:
    """Return the rows, and their sums after Spark has computed the rows.

    ``rows``, their number, is always one.
    """
    sums = RowSums()
    connection_of(frame.sparkSession).report_to(sums)
    return frame.observe(sums.name, F.count(F.lit(1)).alias("rows"), *what), sums


def row_count(
    counted: RowSums, session: SparkSession, table: IcebergTable, ranges: Sequence[OffsetRange]
) -> int:
    """Return how many rows were written.

    Where Spark reports no number: as many as the table has of these ranges. Both are the same number. Spark
    waits 0.1 s for its sums, and a busy server takes longer; and where it knows beforehand that there is no
    row it has no sums.
    """
    rows = counted.get("rows")
    return table.count_rows(session, ranges) if rows is None else int(rows)
