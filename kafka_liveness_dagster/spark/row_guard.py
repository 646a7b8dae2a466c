"""Does every row belong to its batch? A row that does not would survive every replay, so it is never written.

Adds a condition to the frame; Spark looks while it writes, and no row passes through this process.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

from kafka_liveness_dagster.spark.ranges import limit_for_sql, one_per_partition

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
    """The frame, failing at a row that no replay of the batch would ever replace."""
    keys = ", ".join(f"coalesce(string(`{name}`), 'null')" for name in ("topic", "partition", "offset"))
    where = f"concat_ws(':', {keys})"
    return frame.where(
        f"CASE WHEN {ranges_condition(ranges)} THEN true ELSE CAST(raise_error(concat('{OUTSIDE_BATCH}', "
        f"{where})) AS boolean) END"
    )


def ranges_condition(ranges: Sequence[OffsetRange]) -> str:
    """Whether a row's offset is in one of these ranges, as SQL; null where its partition has none.

    The numbers are looked up in arrays by the partition. Written as they are they would be part of the code
    that Spark generates: each batch would have code of its own, compiled again and run cold, for half of a
    small batch's time. Each array ends with a null: those without any have other code.

    >>> from kafka_liveness_dagster.core.offsets import OffsetRange
    >>> print(ranges_condition([OffsetRange("t", 0, 7, 12)]))
    (`topic` = 't' AND `offset` >= get(array(7L, NULL), `partition`) AND `offset` < get(array(12L, NULL), ...
    """
    return " OR ".join(
        f"(`topic` = '{topic}' AND `offset` >= get({_bounds_array(starts)}, `partition`) "
        f"AND `offset` < get({_bounds_array(ends)}, `partition`))"
        for layer in one_per_partition(limit_for_sql(ranges))
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
    """The row at which a frame failed, as ``topic:partition:offset``; empty when the error is another one.

    Spark gives what was raised in a field, or as the cause that an error's text names on a line of its own.
    The rest of the text is no place to look: an error of any kind may show the plan, in which a row's message
    stands too.
    """
    said = raised_message(error)
    return said.removeprefix(OUTSIDE_BATCH) if said.startswith(OUTSIDE_BATCH) else ""


def metadata_column_advice(row: str) -> str:
    """What helps against such a row."""
    of_nothing = (
        "; an aggregate gives a row of no records, too, unless it has GROUP BY topic, partition and offset"
    )
    return f"keep topic, partition and offset as they are in the batch{of_nothing if 'null' in row else ''}"


def has_existing_rows(error: PySparkException) -> bool:
    """Whether rows were to be appended of offsets that the table has already.

    Told like ``row_outside_ranges``.
    """
    return raised_message(error) == ROWS_EXIST


def raised_message(error: PySparkException) -> str:
    """Return the text of the ``raise_error`` that a row met; empty for another error.

    Where one side of a join failed it is the cause of an error that has no condition.
    """
    if error.getCondition() == "USER_RAISED_EXCEPTION":
        return str((error.getMessageParameters() or {}).get("errorMessage", ""))
    caused = _CAUSED_BY.search(str(error))
    return caused["said"] if caused else ""
