"""How many rows did a write have, and what else is told of rows as they pass? None is read for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.spark.table import IcebergTable


def observed(frame: DataFrame, told: Observation, *what: Column) -> DataFrame:
    """The rows, of which these sums are told when they have passed."""
    frame.__dict__["isStreaming"] = False  # pyspark would have the server analyse all of it to know
    return frame.observe(told, *what)


def count_rows(frame: DataFrame) -> tuple[DataFrame, Observation]:
    """The rows, and who knows their number when they are written."""
    counted = Observation()
    return observed(frame, counted, F.count(F.lit(1)).alias("rows")), counted


def rows_of(counted: Observation, session: SparkSession, table: IcebergTable, ranges: Sequence[OffsetRange]) -> int:
    """How many they were; where Spark does not say, as many as the table has of these ranges, which is the same.

    It waits 0.1 s for what it observed, and a busy server takes longer; and where it knows beforehand that there is no
    row it observes nothing.
    """
    told = counted.get.get("rows")
    return table.count(session, ranges) if told is None else int(told)
