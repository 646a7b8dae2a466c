"""Commit a batch's rows as a snapshot: by overwrite, by append, or by a MERGE exact to the row.

An overwrite replaces whole files, and is no append to who reads a table as a stream. A MERGE that finds none
of its offsets in the table commits an ``append`` snapshot, which Iceberg refuses when anybody has written to
these offsets since the MERGE began; one that deletes what it finds replaces rows wherever they lie.

Never decides which of them is right, and never writes twice. Who is not told whether a commit was taken asks
``is_committed``.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

from kafka_liveness_dagster.spark.ranges import merge_ranges, ranges_condition
from kafka_liveness_dagster.spark.row_guard import ROWS_EXIST
from kafka_liveness_dagster.spark.table.schema import write_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.spark.table.table import IcebergTable

ATTEMPT = "kafka-liveness.attempt"
"""In a snapshot's summary: which attempt at a batch made it."""
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
    """Replace all files that have these offsets and no others by the rows, as seen from a snapshot."""
    writer = frame.writeTo(table.quoted).options(**write_options(summary, fans_out=fans_out))
    if snapshot_id is not None:  # a table without a snapshot is validated from its beginning
        writer = writer.option("validate-from-snapshot-id", str(snapshot_id))
    writer.overwrite(F.expr(ranges_condition(replaced)))


def append_empty(frame: DataFrame, table: IcebergTable, summary: Mapping[str, str]) -> None:
    """Say that a range has no rows.

    A MERGE of none would be an overwrite, at which who reads a stream stops.
    """
    frame.limit(0).writeTo(table.quoted).options(**write_options(summary)).append()


def is_committed(session: SparkSession, table: IcebergTable, attempt: str) -> bool:
    """Whether a snapshot of this attempt is in the table's history: of one whose catalog did not say.

    One that is not there may still be on its way. It began from a snapshot as an attempt after it does:
    whichever of them comes second is refused.
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
        frame: its rows.
        may_go_on: asked when another MERGE of this session was waited for; raises when this one may not be
            any more.
    """

    frame: DataFrame
    table: IcebergTable
    ranges: Sequence[OffsetRange]
    _: KW_ONLY
    summary: Mapping[str, str]
    may_go_on: Callable[[], None]

    def append(self) -> None:
        """Add the rows in an ``append`` snapshot, if the table has none of these offsets.

        It fails when it has.
        """
        # A condition on the match itself would have Spark broadcast the batch
        taken = f"CASE WHEN {self._own_rows} THEN CAST(raise_error('{ROWS_EXIST}') AS boolean) ELSE false END"
        self._run(self.frame, taken)

    def replace(self) -> None:
        """Replace all that the table has of these offsets by the rows.

        Whatever else is in the same files stays. Each range is a row of the source too, which matches
        whatever is in it, and which is not inserted.
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
            merging.whenMatched().delete().whenNotMatched(if_not).insertAll().merge()


@contextmanager
def _with_summary(session: SparkSession, summary: Mapping[str, str]) -> Iterator[None]:
    """What the snapshot is to say.

    A MERGE takes no options, only its session's settings: so one at a time.
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
                with suppress(Exception):  # a server that is gone has no settings either
                    session.conf.unset(_SUMMARY_PREFIX + name)
