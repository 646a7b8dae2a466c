"""Commit a batch's rows as a snapshot: by overwrite, by append, or by a MERGE exact to the row.

An overwrite replaces whole files, and streaming readers do not accept it as an append. A MERGE that finds
none of its offsets in the table commits an ``append`` snapshot. Iceberg refuses that snapshot if another
writer has written to these offsets since the MERGE began. A MERGE that deletes the found rows replaces them
in any file.

Never decides which of these to use, and never retries. After a commit without a response the caller queries
``is_committed``.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pyspark.sql import functions as F  # noqa: N812 (the usual name)

from kafka_liveness_dagster.spark.ranges import merge_ranges, ranges_condition
from kafka_liveness_dagster.spark.row_guard import ROWS_EXIST
from kafka_liveness_dagster.spark.table.schema import write_options
from kafka_liveness_dagster.spark.table.schema_check import quote_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.spark.table.table import IcebergTable

ATTEMPT = "kafka-liveness.attempt"
"""Key in a snapshot's summary for the attempt that committed it."""
_SUMMARY_PREFIX = "spark.sql.iceberg.snapshot-property."
_session_locks: WeakKeyDictionary[SparkSession, threading.Lock] = WeakKeyDictionary()
_locks_guard = threading.Lock()


def overwrite(
    frame: DataFrame,
    table: IcebergTable,
    snapshot_id: int | None,
    replaced: Sequence[OffsetRange],
    summary: Mapping[str, str],
    *,
    fans_out: bool,
) -> None:
    """Replace all files that have only these offsets by the rows, validated from a snapshot.

    Args:
        frame: rows to write.
        table: table to write to.
        snapshot_id: snapshot from which Iceberg validates the commit; None for a table without one.
        replaced: offsets of the replaced files.
        summary: properties for the summary of the new snapshot.
        fans_out: whether a task has a file open for each table partition.
    """
    writer = frame.writeTo(table.quoted).options(**write_options(summary, fans_out=fans_out))
    if snapshot_id is not None:  # a table without a snapshot is validated from its beginning
        writer = writer.option("validate-from-snapshot-id", str(snapshot_id))
    writer.overwrite(F.expr(ranges_condition(replaced)))


def append_empty(frame: DataFrame, table: IcebergTable, summary: Mapping[str, str]) -> None:
    """Record that a range has no rows, by an empty append.

    A MERGE of no rows would be an overwrite, at which streaming readers stop.
    """
    frame.limit(0).writeTo(table.quoted).options(**write_options(summary)).append()


def is_committed(session: SparkSession, table: IcebergTable, attempt: str) -> bool:
    """Return whether the table's history has a snapshot of an attempt without a response of the catalog.

    A missing snapshot may still be committed later. Both it and the next attempt are validated from their
    snapshots, so Iceberg refuses the second of them.
    """
    table.refresh(session)
    found = (
        f"SELECT count(*) FROM {table.quoted}.`snapshots` JOIN {table.quoted}.`history` USING (snapshot_id) "
        f"WHERE is_current_ancestor AND summary['{ATTEMPT}'] = '{attempt}'"
    )
    return table.shape(session) is not None and bool(session.sql(found).collect()[0][0])


@dataclass(frozen=True)
class Merge:
    """A batch that is committed by a MERGE, precise to the row.

    Attributes:
        frame: rows of the batch.
        table: table to write to.
        ranges: offsets of the batch.
        summary: properties for the summary of the new snapshot.
        may_go_on: called after the wait for another MERGE of this session; raises if this one must not be
            committed any more.
    """

    frame: DataFrame
    table: IcebergTable
    ranges: Sequence[OffsetRange]
    _: KW_ONLY
    summary: Mapping[str, str]
    may_go_on: Callable[[], None]

    def append(self) -> None:
        """Add the rows in an ``append`` snapshot; fail if the table has rows of these offsets."""
        # A condition on the match itself would make Spark broadcast the batch
        taken = f"CASE WHEN {self._own_rows} THEN CAST(raise_error('{ROWS_EXIST}') AS boolean) ELSE false END"
        self._run(self.frame, taken)

    def replace(self) -> None:
        """Replace the table's rows of these offsets by the rows.

        Other rows of the same files stay. Each range is also a row of the source: it matches all rows in the
        range, and is not inserted.
        """
        target = self.table.quoted
        parts = ", ".join(
            f"('{r.topic}', {r.partition}, {r.start}L, {r.end}L)" for r in merge_ranges(self.ranges)
        )
        columns = "_topic_gone, _partition_gone, _start_gone, _end_gone"
        holes = self.frame.sparkSession.sql(f"SELECT * FROM VALUES {parts} AS holes({columns})")
        matches = (
            f"{target}.`topic` = _topic_gone AND {target}.`partition` = _partition_gone "
            f"AND {target}.`offset` >= _start_gone AND {target}.`offset` < _end_gone"
        )
        self._run(
            self.frame.unionByName(holes, allowMissingColumns=True), matches, inserted="_topic_gone IS NULL"
        )

    @property
    def _own_rows(self) -> str:
        return ranges_condition(self.ranges, table=self.table.quoted)

    def _run(self, source: DataFrame, matches: str, inserted: str | None = None) -> None:
        with _with_summary(source.sparkSession, self.summary):
            self.may_go_on()
            merging = source.mergeInto(self.table.quoted, F.expr(f"({self._own_rows}) AND {matches}"))
            if_not = None if inserted is None else F.expr(inserted)
            # By name: insertAll() drops the values of a column that another writer has dropped
            names = map(quote_name, self.frame.columns)
            inserting = merging.whenMatched().delete().whenNotMatched(if_not)
            inserting.insert({name: F.col(name) for name in names}).merge()


@contextmanager
def _with_summary(session: SparkSession, summary: Mapping[str, str]) -> Iterator[None]:
    """Set the summary of the next snapshot in this block.

    A MERGE takes no options, only its session's settings, so only one MERGE of a session runs at a time.
    """
    with _locks_guard:
        lock = _session_locks.setdefault(session, threading.Lock())
    with lock:
        try:
            for name, text in summary.items():
                session.conf.set(_SUMMARY_PREFIX + name, text)
            yield
        finally:
            for name in summary:
                with suppress(Exception):  # a lost server has lost its settings, too
                    session.conf.unset(_SUMMARY_PREFIX + name)
