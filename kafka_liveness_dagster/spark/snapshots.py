"""How do a batch's rows become a snapshot? As an overwrite, as an append, or by a MERGE that is precise to the row.

An overwrite replaces whole files, and is no append to who reads a table as a stream. A MERGE that finds none of its
offsets in the table commits an ``append`` snapshot, which Iceberg refuses when anybody has written to these offsets
since the MERGE began; one that deletes what it finds replaces rows wherever they lie.

Never decides which of them is right, and never writes twice.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

from kafka_liveness_dagster.spark.inside import TAKEN
from kafka_liveness_dagster.spark.ranges import condition, merged
from kafka_liveness_dagster.spark.schema import write_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.spark.table import IcebergTable

_PROPERTY = "spark.sql.iceberg.snapshot-property."
_told: WeakKeyDictionary[SparkSession, threading.Lock] = WeakKeyDictionary()
_new = threading.Lock()


def overwrite(
    frame: DataFrame,
    table: IcebergTable,
    snapshot_id: int | None,
    replaced: Sequence[OffsetRange],
    summary: Mapping[str, str],
) -> None:
    """Put the rows in the place of all files that have these offsets and no others, as seen from a snapshot."""
    writer = frame.writeTo(table.quoted).options(**write_options(summary))
    if snapshot_id is not None:  # a table without a snapshot is validated from its beginning
        writer = writer.option("validate-from-snapshot-id", str(snapshot_id))
    writer.overwrite(F.expr(condition(replaced)))


def append_nothing(frame: DataFrame, table: IcebergTable, summary: Mapping[str, str]) -> None:
    """Say that a range has no rows: a MERGE of none would be an overwrite, at which who reads a stream stops."""
    frame.limit(0).writeTo(table.quoted).options(**write_options(summary)).append()


def append(
    frame: DataFrame,
    table: IcebergTable,
    ranges: Sequence[OffsetRange],
    summary: Mapping[str, str],
    may_go_on: Callable[[], None],
) -> None:
    """Add the rows in an ``append`` snapshot, if the table has none of these offsets; it fails when it has."""
    mine = condition(ranges, of=table.quoted)
    # A condition on the match itself would have Spark broadcast the batch
    taken = f"({mine}) AND CASE WHEN {mine} THEN CAST(raise_error('{TAKEN}') AS boolean) ELSE false END"
    with _summary(frame.sparkSession, summary):
        may_go_on()  # another may have been waited for
        merging = frame.mergeInto(table.quoted, F.expr(taken))
        merging.whenMatched().delete().whenNotMatched().insertAll().merge()


def replace(
    frame: DataFrame,
    table: IcebergTable,
    ranges: Sequence[OffsetRange],
    summary: Mapping[str, str],
    may_go_on: Callable[[], None],
) -> None:
    """Put the rows in the place of all that the table has of these offsets, whatever else is in the same files.

    Each range is a row of the source too, which matches whatever is in it, and which is not inserted.
    """
    session, target = frame.sparkSession, table.quoted
    parts = ", ".join(f"('{r.topic}', {r.partition}, {r.start}L, {r.end}L)" for r in merged(ranges))
    holes = session.sql(f"SELECT * FROM VALUES {parts} AS holes(_topic_gone, _partition_gone, _start_gone, _end_gone)")
    source = frame.unionByName(holes, allowMissingColumns=True)
    matches = (
        f"({condition(ranges, of=target)}) AND {target}.`topic` = _topic_gone AND {target}.`partition` = "
        f"_partition_gone AND {target}.`offset` >= _start_gone AND {target}.`offset` < _end_gone"
    )
    with _summary(session, summary):
        may_go_on()
        merging = source.mergeInto(target, F.expr(matches))
        merging.whenMatched().delete().whenNotMatched(F.expr("_topic_gone IS NULL")).insertAll().merge()


@contextmanager
def _summary(session: SparkSession, summary: Mapping[str, str]) -> Iterator[None]:
    """What the snapshot is to say. A MERGE takes no options, only its session's settings: so one at a time."""
    with _new:
        lock = _told.setdefault(session, threading.Lock())
    with lock:
        try:
            for name, text in summary.items():
                session.conf.set(_PROPERTY + name, text)
            yield
        finally:
            for name in summary:
                with suppress(Exception):  # a server that is gone has no settings either
                    session.conf.unset(_PROPERTY + name)
