"""Does every row belong to its batch? A row that does not would survive every replay, so it is never written.

Adds a condition to the frame; Spark looks while it writes, and no row passes through this process.

>>> stray("… kafka-liveness: outside of the batch: orders:3:100 SQLSTATE …")
'orders:3:100'
>>> stray("disk full")
''
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_liveness_dagster.spark.ranges import condition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from kafka_liveness_dagster.core.offsets import OffsetRange

OUTSIDE = "kafka-liveness: outside of the batch: "


def inside(frame: DataFrame, ranges: Sequence[OffsetRange]) -> DataFrame:
    """The frame, failing at a row that no replay of the batch would ever replace."""
    where = "concat_ws(':', `topic`, `partition`, `offset`)"
    return frame.where(
        f"CASE WHEN {condition(ranges)} THEN true ELSE CAST(raise_error(concat('{OUTSIDE}', {where})) AS boolean) END"
    )


def stray(message: str) -> str:
    """The row at which a frame failed, as ``topic:partition:offset``; empty when the error is another one."""
    return message.partition(OUTSIDE)[2].partition(" ")[0]
