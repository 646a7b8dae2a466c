"""Replace the rows of a batch's offset ranges in an Iceberg table, so that a repeated write changes nothing.

One commit replaces all rows that the table holds of the ranges. The commit is refused if another writer changed rows of
these ranges after the snapshot from which the write started. So a replay replaces its own rows, writers of disjoint
ranges do not conflict, and a late write of a dead client cannot overwrite rows of its successor. ``Attempt`` writes the
batch once; ``TableWrite`` decides whether to try again. After a commit without an answer, the catalog is queried for
the snapshot; the batch is written again if the snapshot is missing.

Never appends rows of offsets that the table holds, and never commits to Kafka.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.errors import AnalysisException, PySparkException

from kafka_liveness_dagster.core.table_layout import DEFAULT, Layout
from kafka_liveness_dagster.failpoints import Failpoint, failpoint
from kafka_liveness_dagster.spark.error_classification import Refusal, Why, in_short, is_the_servers, refusal, unwritten
from kafka_liveness_dagster.spark.errors import SparkFailedError, TableSchemaError, WriteConflictError
from kafka_liveness_dagster.spark.ranges import condition, layers, merged, names, whole_files, without
from kafka_liveness_dagster.spark.row_count import rows_of, summed
from kafka_liveness_dagster.spark.row_guard import inside
from kafka_liveness_dagster.spark.table import commits, schema
from kafka_liveness_dagster.spark.table.schema_check import check_new, check_rows, fit
from kafka_liveness_dagster.spark.table.table import IcebergTable
from kafka_liveness_dagster.spark.transform import Transformed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from kafka_liveness_dagster.core.errors import KafkaLivenessError
    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.spark.row_count import RowSums
    from kafka_liveness_dagster.spark.table.ledger import Entry, TableLedger
    from kafka_liveness_dagster.spark.table.schema_check import Fit
    from kafka_liveness_dagster.spark.table.table import Shape

_PAUSE_SECONDS = 0.5  # before the first of the attempts that follow a lost answer; twice as long before each other
_WHOLE_FILES_TRIED = 2  # by then another writer has had two chances to put a file there
_NOT_DETERMINISTIC = "INVALID_NON_DETERMINISTIC_EXPRESSIONS"  # Spark's refusal of a MERGE by copy-on-write
_DOES_NOT_FIT = ("INCOMPATIBLE_DATA_FOR_TABLE", "INSERT_COLUMN_ARITY_MISMATCH")


@dataclass(frozen=True)
class Written:
    """A batch that is in the sink, once.

    Attributes:
        rows: how many rows the transform gave; None when the sink does not tell.
        attempts: 1, or more when others wrote to the same offsets or files.
        rewritten: whether the ranges cut through files, whose other rows were then written again.
        unanswered: how many of the attempts the catalog said nothing of.
    """

    rows: int | None
    attempts: int
    rewritten: bool
    unanswered: int = 0


def write(
    session: SparkSession,
    table: str | IcebergTable,
    ranges: Sequence[OffsetRange],
    make_frame: Callable[[], DataFrame],
    *,
    may_go_on: Callable[[], None] = lambda: None,
    may_replace: Callable[[], None] = lambda: None,
    max_attempts: int = 5,
    ledger: TableLedger | None = None,
    layout: Layout = DEFAULT,
) -> Written:
    """Make the table hold exactly these rows for these ranges, in one commit; create the table when it is missing.

    Args:
        session: a Spark session of a server whose catalog has the table.
        table: ``catalog.namespace.table``.
        ranges: the offsets the rows come from; what the table held of them is replaced, also by no rows.
        make_frame: gives the rows: topic, partition, offset, and whatever else; none, one or many an offset.
            Called once an attempt, after the snapshot is known.
        may_go_on: called before each operation; raises when this process may not write any more.
        may_replace: called once an attempt, after the snapshot is known; raises when the ranges are another's by now.
            What a successor wrote before is found out here; what it writes later makes the table refuse ours.
        max_attempts: how often to begin again when others write to the same offsets, or the catalog loses its answers.
        ledger: says in the same commit which offsets these are, and is told when it has landed.
        layout: of a table that is created; and whether new ranges are appended.

    Raises:
        RowsMissingError: the table lost what the ledger knows it held.
        TableSchemaError: rows or table lack topic, partition and offset, or do not fit each other; or the table has
            properties that batches cannot be written with.
        RowsOutsideBatchError: a row's offset is in none of the ranges.
        WriteConflictError: others wrote to the same offsets ``max_attempts`` times.
        StorageError: catalog or store is away, or refuses.
        SparkFailedError: Spark failed at anything else.
    """
    table = table if isinstance(table, IcebergTable) else IcebergTable(table)
    writing = TableWrite(session, table, ranges, make_frame, may_go_on, may_replace, max_attempts, ledger, layout)
    return writing.finish(writing.begin())


@dataclass
class TableWrite:
    """One ``write`` in two halves: ``begin`` and ``finish`` in the caller's thread, what lies between in any.

    So the transform is always called in one thread, batch after batch, while Spark works on the batch before.
    """

    session: SparkSession
    table: IcebergTable
    ranges: Sequence[OffsetRange]
    make_frame: Callable[[], DataFrame]
    may_go_on: Callable[[], None]
    may_replace: Callable[[], None]
    max_attempts: int = 5
    ledger: TableLedger | None = None
    layout: Layout = DEFAULT
    _cuts: int = 0
    _unanswered: int = 0
    _is_taken: bool = False
    _attempt: Attempt = field(init=False)

    def begin(self) -> Callable[[], int]:
        """Look at the table and make the frame; gives what reads and writes, and returns how many rows those were."""
        try:
            return self._prepared()
        except PySparkException as error:
            refused = error  # the name of an except clause ends with it

        def raise_it() -> int:
            raise refused

        return raise_it

    def finish(self, execute: Callable[[], int]) -> Written:
        """Have it executed, and begin again as long as others were quicker; raises what ``write`` raises."""
        started, problem = time.monotonic(), Refusal(Why.WRITER, "")
        for attempt in range(1, self.max_attempts + 1):
            try:
                rows = execute() if attempt == 1 else self._prepared()()
            except PySparkException as error:
                problem = self._refusal(error)
                if problem.why is not Why.UNKNOWN:
                    self.table.refresh(self.session)
                    continue
                found = self._rows_if_landed(error, is_last=attempt == self.max_attempts)
                if found is None:
                    continue
                rows = found
            if self.ledger is not None and self._attempt.entry is not None:
                self.ledger.landed(self._attempt.entry)
            return Written(rows, attempt - self._is_taken, self._cuts > 0, self._unanswered)
        cause = (Why.CATALOG if problem.why is Why.CATALOG else Why.WRITER).value
        raise WriteConflictError(
            f"{names(self.ranges)} of {self.table.name} was refused {self.max_attempts} times in "
            f"{time.monotonic() - started:.0f} s ({problem.message[:300]}): nothing was written; look for {cause}"
        )

    def _prepared(self) -> Callable[[], int]:
        """Another attempt, that knows what those before met."""
        self._attempt = Attempt(self, self._cuts, self._is_taken)
        return self._attempt.prepare()

    def _refusal(self, error: PySparkException) -> Refusal:
        """Why to begin again; raises what the batch fails with when that cannot help."""
        refused = refusal(error, self.table.name, self.table.quoted)
        if refused is None and self._is_changed_since(error):
            refused = Refusal(Why.WRITER, str(error))
        if refused is None:
            if is_the_servers(error):
                raise error
            self.may_go_on()  # who was cancelled, or is fenced, failed because of that
            raise self._failed(error) from error
        self._cuts += refused.why is Why.CUTS_A_FILE
        self._unanswered += refused.why is Why.UNKNOWN
        self._is_taken = self._is_taken or refused.why is Why.TAKEN
        return refused

    def _rows_if_landed(self, error: PySparkException, *, is_last: bool) -> int | None:
        """Of an attempt of which the catalog said nothing: its rows in the table; None when it is to be made again.

        Raises:
            StorageError: the catalog does not answer this either, or it was the last attempt.
        """
        self.may_go_on()
        try:
            rows = self._attempt.rows_if_landed()
        except PySparkException as unanswered:
            if is_the_servers(unanswered):
                raise
            raise self._failed(error) from error
        if rows is None and is_last:
            raise self._failed(error) from error
        if rows is None:
            time.sleep(_PAUSE_SECONDS * 2 ** (self._unanswered - 1))
        return rows

    def _failed(self, error: PySparkException) -> KafkaLivenessError:
        """Spark's error as one of ours, when nothing can be tried again."""
        condition = error.getCondition() or ""
        if condition.startswith(_DOES_NOT_FIT):
            return self.table.refused(in_short(error))
        if condition == _NOT_DETERMINISTIC:
            return TableSchemaError(
                f"Table {self.table.name} takes no batch of a transform that is not deterministic, such as uuid(), "
                "where it has to be merged: its write.merge.mode is copy-on-write, the default. Nothing was written. "
                f"Fix: ALTER TABLE {self.table.name} SET TBLPROPERTIES ('write.merge.mode'='merge-on-read')"
            )
        if not_kept := unwritten(error, self.table.name, names(self.ranges)):
            return not_kept
        if isinstance(self.make_frame, Transformed) and (unreadable := self.make_frame.unreadable(error)):
            return unreadable
        if isinstance(error, AnalysisException) and (replaced := self._is_no_table_now()):
            return replaced
        return SparkFailedError(
            f"Spark could not write {names(self.ranges)} to {self.table.name} ({in_short(error)}): the table has all "
            "of the batch or nothing, no offset of it was committed, and it comes again; mend the transform or what "
            "the reason names, the server's log has the rest"
        )

    def _is_changed_since(self, error: PySparkException) -> bool:
        """Return whether rows do not fit because another writer changed the table's columns since the attempt began."""
        if not (error.getCondition() or "").startswith(_DOES_NOT_FIT):
            return False
        self.table.refresh(self.session)
        now = self.table.shape(self.session)
        return now is not None and now.columns != self._attempt.columns

    def _is_no_table_now(self) -> TableSchemaError | None:
        """Return why the table cannot be written any more, when somebody replaced it after the attempt began."""
        try:
            self.table.refresh(self.session)
            self.table.shape(self.session)
        except TableSchemaError as replaced:
            return replaced
        except PySparkException:
            pass  # the error of the write says more
        return None


@dataclass
class Attempt:
    """One attempt to write a batch to the table as the table is now: read its state, make the frame, write, check.

    Attributes:
        of: the write that this attempt belongs to; the write alone begins the next one.
        cuts: how many attempts before were refused because the ranges cut through files.
        is_taken: whether the table has rows of these offsets, so that they cannot be appended.
        name: what its snapshot is called in its summary.
        columns: the table's when it began; None while there is no table.
        entry: what it records in the ledger; None where there is no ledger, and before it is prepared.
    """

    of: TableWrite
    cuts: int = 0
    is_taken: bool = False
    name: str = field(default_factory=lambda: uuid4().hex)
    columns: StructType | None = field(default=None, init=False)
    entry: Entry | None = field(default=None, init=False)
    _is_new: bool = False

    def prepare(self) -> Callable[[], int]:
        """Prepare to replace the ranges as seen from the snapshot of now; gives what does it, and counts its rows."""
        of = self.of
        table, session, ranges = of.table, of.session, of.ranges
        of.may_go_on()
        shape = table.shape_to_write(session)
        self._is_new, self.columns = shape is None, None if shape is None else shape.columns
        snapshot_id = None if shape is None else table.snapshot_id(session)
        summary = {"kafka-liveness.ranges": names(ranges)}
        if of.ledger is not None:
            self.entry = of.ledger.entry(session, snapshot_id, ranges)
            summary = self.entry.summary
        summary = {**summary, commits.ATTEMPT: self.name}
        of.may_replace()
        of.may_go_on()
        frame = of.make_frame()
        check_rows(frame, f"the rows for {table.name}")
        table.check_main(session, is_new=shape is None)  # after the transform, which may change settings
        of.may_go_on()
        if shape is None:
            return self._created(frame, summary)
        found = fit(frame, shape.columns, table.name)
        frame = inside(schema.widened(frame, found), ranges)
        written, counted = summed(frame)
        replaced: tuple[OffsetRange, ...] | None = merged(ranges)
        if self.cuts and snapshot_id is not None:
            of.may_go_on()
            written, replaced = self._with_survivors(written, snapshot_id, shape, found)
        if found.evolves:
            schema.rehearse(table, frame, found, shape.columns)
            of.may_go_on()
            schema.evolve(table, session, found)
        merge = commits.Merge(written, table, ranges, summary, of.may_go_on)

        def execute() -> int:
            of.may_go_on()
            if of.layout.snapshots == "append" and not self.is_taken:
                if not frame.isEmpty():
                    merge.append()
                    return self._landed(counted)
                if table.count(session, ranges) == 0:
                    commits.append_nothing(frame, table, summary)
                    return self._landed(counted)
            if replaced is None:
                merge.replace()
            else:
                fans_out = shape.is_by_kafka_partition and schema.may_fan_out(replaced)
                commits.overwrite(written, table, snapshot_id, replaced, summary, fans_out=fans_out)
            return self._landed(counted)

        return execute

    def rows_if_landed(self) -> int | None:
        """When nobody said whether it was taken: how many rows the table has of it, None when it is not there."""
        of = self.of
        if not commits.has_landed(of.session, of.table, self.name):
            return None
        if self._is_new:
            schema.keep_sorted(of.table, of.session, of.layout)
        failpoint(Failpoint.AFTER_TABLE_COMMIT)
        return of.table.count(of.session, of.ranges)

    def _with_survivors(
        self, written: DataFrame, snapshot_id: int, shape: Shape, found: Fit
    ) -> tuple[DataFrame, tuple[OffsetRange, ...] | None]:
        """The rows and all others of the files that the ranges cut through, and which offsets they replace together.

        None where files may have offsets of several partitions, so that no ranges tell them from others: by the table's
        partitions, or by those of before, which some of its files still have. None too where a file has no bounds.
        """
        of = self.of
        if self.cuts > _WHOLE_FILES_TRIED or not shape.is_by_kafka_partition:
            return written, None
        if (files := of.table.files(of.session, snapshot_id, of.ranges)) is None:
            return written, None
        replaced = whole_files(of.ranges, files)
        for side in layers(without(replaced, of.ranges)):  # apart, so that no new file spans the batch again
            survivors = of.table.at(of.session, snapshot_id).where(condition(side))
            survivors = schema.in_shape(survivors, found.after)  # a union adds no field to an array's structs
            written = written.unionByName(survivors, allowMissingColumns=True)
        return written, replaced

    def _created(self, frame: DataFrame, summary: Mapping[str, str]) -> Callable[[], int]:
        """Create the table with the rows in it: here and now, for the next batch looks whether it is there."""
        of = self.of
        check_new(frame.schema.fields, of.table.name)
        schema.check_properties(of.table, of.session, of.layout)
        written, counted = summed(inside(frame, of.ranges))
        schema.create(of.table, written, of.ranges, summary, of.layout)
        schema.keep_sorted(of.table, of.session, of.layout)
        return lambda: self._landed(counted)

    def _landed(self, counted: RowSums) -> int:
        failpoint(Failpoint.AFTER_TABLE_COMMIT)
        return rows_of(counted, self.of.session, self.of.table, self.of.ranges)
