"""Reject rows whose offsets are outside of their batch: no replay would ever replace such a row.

Adds a condition to the frame, which Spark checks while it writes. No row passes through this process.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

from kafka_liveness_dagster.spark.ranges import merged_and_checked, one_per_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame

    from kafka_liveness_dagster.core.offsets import OffsetRange

OUTSIDE_BATCH = "kafka-liveness: outside of the batch: "
ROWS_EXIST = "kafka-liveness: the table has rows of the batch"
_CAUSED_BY = re.compile(
    r"^Caused by: org\.apache\.spark\.SparkRuntimeException: "
    r"\[USER_RAISED_EXCEPTION\] (?P<said>.*) SQLSTATE: P0001$",
    re.MULTILINE,
)


def require_rows_in_ranges(frame: DataFrame, ranges: Sequence[OffsetRange]) -> DataFrame:
    """Return the frame with a condition that fails at a row with an offset outside of the ranges."""
    keys = ", ".join(f"coalesce(string(`{name}`), 'null')" for name in ("topic", "partition", "offset"))
    where = f"concat_ws(':', {keys})"
    return frame.where(
        f"CASE WHEN {array_bounds_condition(ranges)} THEN true "
        f"ELSE CAST(raise_error(concat('{OUTSIDE_BATCH}', {where})) AS boolean) END"
    )


def array_bounds_condition(ranges: Sequence[OffsetRange]) -> str:
    """Return the SQL condition that a row's offset is in one of these ranges.

    The condition is null for a partition without a range. It takes the bounds from arrays by the partition.
    Literal bounds would be part of the code that Spark generates. Spark would then compile new code for each
    batch and run it cold, which takes half of a small batch's time. Each array ends with a null, because
    Spark generates other code for an array without one.

    >>> from kafka_liveness_dagster.core.offsets import OffsetRange
    >>> print(array_bounds_condition([OffsetRange("t", 0, 7, 12)]))
    (`topic` = 't' AND `offset` >= get(array(7L, NULL), `partition`) AND `offset` < get(array(12L, NULL), ...
    """
    return " OR ".join(
        f"(`topic` = '{topic}' AND `offset` >= get({_bounds_array(starts)}, `partition`) "
        f"AND `offset` < get({_bounds_array(ends)}, `partition`))"
        for layer in one_per_partition(merged_and_checked(ranges))
        for topic, starts, ends in _group_by_topic(layer)
    )


def _group_by_topic(layer: Iterable[OffsetRange]) -> Iterator[tuple[str, dict[int, int], dict[int, int]]]:
    for topic, parts in groupby(sorted(layer), key=lambda part: part.topic):
        spans = {part.partition: part.span for part in parts}
        yield topic, {p: span.start for p, span in spans.items()}, {p: span.end for p, span in spans.items()}


def _bounds_array(by_partition: Mapping[int, int]) -> str:
    numbers = (by_partition.get(partition) for partition in range(max(by_partition) + 2))
    return f"array({', '.join('NULL' if number is None else f'{number}L' for number in numbers)})"


def row_outside_ranges(error: PySparkException) -> str:
    """Return the row at which a frame failed, as ``topic:partition:offset``; empty for other errors.

    Spark has the raised message in a field, or on a line of its own that begins with "Caused by". Other lines
    are not searched: any error may show the plan, which contains the message too.
    """
    said = raised_message(error)
    return said.removeprefix(OUTSIDE_BATCH) if said.startswith(OUTSIDE_BATCH) else ""


def metadata_column_advice(row: str) -> str:
    """Return the remedy for such a row."""
    of_nothing = (
        ". An aggregate without GROUP BY topic, partition and offset returns a row even for no records"
    )
    return f"keep topic, partition and offset as they are in the batch{of_nothing if 'null' in row else ''}"


def has_existing_rows(error: PySparkException) -> bool:
    """Return whether an append found rows of its offsets in the table.

    It reads the error as ``row_outside_ranges`` does.
    """
    return raised_message(error) == ROWS_EXIST


def raised_message(error: PySparkException) -> str:
    """Return the message that a row raised.

    If one side of a join failed, the message is the cause of an error without a condition.
    """
    if error.getCondition() == "USER_RAISED_EXCEPTION":
        return str((error.getMessageParameters() or {}).get("errorMessage", ""))
    caused = _CAUSED_BY.search(str(error))
    return caused["said"] if caused else ""
