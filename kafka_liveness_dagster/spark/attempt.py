"""How is a batch put into a table, as the table is now? One attempt: look, make the frame, write, and ask if it landed.

Never begins again: who does that is ``iceberg.TableWrite``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from kafka_liveness_dagster.failpoints import Failpoint, failpoint
from kafka_liveness_dagster.spark import schema, snapshots
from kafka_liveness_dagster.spark.counting import count_rows, rows_of
from kafka_liveness_dagster.spark.fit import check_new, check_rows, fit
from kafka_liveness_dagster.spark.inside import inside
from kafka_liveness_dagster.spark.ranges import condition, layers, merged, names, whole_files, without

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, Observation

    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.spark.iceberg import TableWrite
    from kafka_liveness_dagster.spark.table import Shape

_WHOLE_FILES_TRIED = 2  # by then another writer has had two chances to put a file there


@dataclass
class Attempt:
    """One of them.

    Attributes:
        of: whose it is.
        cuts: how many attempts before were refused because the ranges cut through files.
        is_taken: whether the table has rows of these offsets, so that they cannot be appended.
        name: what its snapshot is called in its summary.
    """

    of: TableWrite
    cuts: int = 0
    is_taken: bool = False
    name: str = field(default_factory=lambda: uuid4().hex)
    _is_new: bool = False

    def prepare(self) -> Callable[[], int]:
        """Prepare to replace the ranges as seen from the snapshot of now; gives what does it, and counts its rows."""
        of = self.of
        table, session, ranges = of.table, of.session, of.ranges
        of.may_go_on()
        shape = table.shape(session)
        self._is_new = shape is None
        snapshot_id = None if shape is None else table.snapshot_id(session)
        summary = {"kafka-liveness.ranges": names(ranges)}
        if of.ledger is not None:
            summary = of.ledger.properties(session, snapshot_id, ranges)
        summary = {**summary, snapshots.ATTEMPT: self.name}
        of.may_replace()
        of.may_go_on()
        frame = of.make_frame()
        check_rows(frame, f"the rows for {table.name}")
        of.may_go_on()
        if shape is None:
            return self._created(frame, summary)
        found = fit(frame, shape.columns, table.name)
        frame = inside(schema.widened(frame, found.lacking), ranges)
        written, counted = count_rows(frame)
        replaced: tuple[OffsetRange, ...] | None = merged(ranges)
        if self.cuts and snapshot_id is not None:
            of.may_go_on()
            written, replaced = self._with_survivors(written, snapshot_id, shape)
        if found.new or found.wider:
            schema.rehearse(table, frame, found, shape.columns)
            of.may_go_on()
            schema.evolve(table, session, found)
        merge = snapshots.Merge(written, table, ranges, summary, of.may_go_on)

        def execute() -> int:
            of.may_go_on()
            if of.layout.snapshots == "append" and not self.is_taken:
                if not frame.isEmpty():
                    merge.append()
                    return self._landed(counted)
                if table.count(session, ranges) == 0:
                    snapshots.append_nothing(frame, table, summary)
                    return self._landed(counted)
            if replaced is None:
                merge.replace()
            else:
                fans_out = shape.is_by_kafka_partition and schema.may_fan_out(replaced)
                snapshots.overwrite(written, table, snapshot_id, replaced, summary, fans_out=fans_out)
            return self._landed(counted)

        return execute

    def rows_if_landed(self) -> int | None:
        """When nobody said whether it was taken: how many rows the table has of it, None when it is not there."""
        of = self.of
        if not snapshots.has_landed(of.session, of.table, self.name):
            return None
        if self._is_new:
            schema.keep_sorted(of.table, of.session, of.layout)
        failpoint(Failpoint.AFTER_TABLE_COMMIT)
        return of.table.count(of.session, of.ranges)

    def _with_survivors(
        self, written: DataFrame, snapshot_id: int, shape: Shape
    ) -> tuple[DataFrame, tuple[OffsetRange, ...] | None]:
        """The rows and all others of the files that the ranges cut through, and which offsets they replace together.

        None where files may have offsets of several partitions, so that no ranges tell them from others: by the table's
        partitions, or by those of before, which some of its files still have.
        """
        of = self.of
        if self.cuts > _WHOLE_FILES_TRIED or not shape.is_by_kafka_partition:
            return written, None
        replaced = whole_files(of.ranges, of.table.files(of.session, snapshot_id, of.ranges))
        for side in layers(without(replaced, of.ranges)):  # apart, so that no new file spans the batch again
            survivors = of.table.at(of.session, snapshot_id).where(condition(side))
            written = written.unionByName(survivors, allowMissingColumns=True)
        return written, replaced

    def _created(self, frame: DataFrame, summary: Mapping[str, str]) -> Callable[[], int]:
        """Create the table with the rows in it: here and now, for the next batch looks whether it is there."""
        of = self.of
        check_new(frame.schema.fields, of.table.name)
        written, counted = count_rows(inside(frame, of.ranges))
        schema.create(of.table, written, of.ranges, summary, of.layout)
        schema.keep_sorted(of.table, of.session, of.layout)
        return lambda: self._landed(counted)

    def _landed(self, counted: Observation) -> int:
        failpoint(Failpoint.AFTER_TABLE_COMMIT)
        return rows_of(counted, self.of.session, self.of.table, self.of.ranges)
