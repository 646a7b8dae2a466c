"""Replace the rows of a batch's offset ranges in an Iceberg table, so that a repeated write changes nothing.

One commit replaces all rows that the table has of the ranges. Iceberg refuses the commit if another writer
changed rows of these ranges after the snapshot from which the write started. So a replay replaces its own
rows, and writers of disjoint ranges do not conflict. A late write of a dead client cannot overwrite rows of
its successor.

``WriteAttempt`` writes the batch once; ``TableWrite`` decides whether to retry. After a commit without a
response ``TableWrite`` queries the catalog for the snapshot. If it is missing, the batch is written again.

Never appends rows of offsets that the table has, and never commits to Kafka.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.errors import AnalysisException, PySparkException

from kafka_liveness_dagster.core.sink_ledger import LaneLedger
from kafka_liveness_dagster.core.table_layout import DEFAULT_LAYOUT, TableLayout
from kafka_liveness_dagster.failpoints import Failpoint, failpoint
from kafka_liveness_dagster.spark.error_classification import (
    RefusedCommit,
    RetryReason,
    is_server_error,
    retry_reason,
    storage_write_error,
    summarize,
)
from kafka_liveness_dagster.spark.errors import SparkFailedError, TableSchemaError, WriteConflictError
from kafka_liveness_dagster.spark.ranges import (
    describe,
    merge_ranges,
    one_per_partition,
    ranges_condition,
    subtract,
    widen_to_files,
)
from kafka_liveness_dagster.spark.row_count import row_count, with_sums
from kafka_liveness_dagster.spark.row_guard import require_rows_in_ranges
from kafka_liveness_dagster.spark.table import commits, schema
from kafka_liveness_dagster.spark.table.ledger import TableVersion
from kafka_liveness_dagster.spark.table.schema_check import (
    diff_schema,
    require_row_columns,
    require_supported_types,
)
from kafka_liveness_dagster.spark.table.table import IcebergTable
from kafka_liveness_dagster.spark.transform import TransformedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from kafka_liveness_dagster.core.errors import KafkaLivenessError
    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.core.sink_ledger import LedgerRecord
    from kafka_liveness_dagster.spark.row_count import RowSums
    from kafka_liveness_dagster.spark.table.ledger import TableLedger
    from kafka_liveness_dagster.spark.table.schema_check import SchemaDiff
    from kafka_liveness_dagster.spark.table.table import TableShape

RETRY_PAUSE_SECONDS = 0.5
"""Pause before the first retry after a lost response; twice as long before each further retry."""
_WHOLE_FILE_ATTEMPTS = 2  # in two attempts another writer added a file each time
_NOT_DETERMINISTIC = "INVALID_NON_DETERMINISTIC_EXPRESSIONS"  # Spark's refusal of a MERGE by copy-on-write
_NO_MERGE = "UNSUPPORTED_FEATURE.TABLE_OPERATION"  # Spark's refusal of a MERGE into a view
_DOES_NOT_FIT = ("INCOMPATIBLE_DATA_FOR_TABLE", "INSERT_COLUMN_ARITY_MISMATCH")


@dataclass(frozen=True)
class WriteResult:
    """The result of the write of a batch.

    Attributes:
        rows: number of rows of the transform; None if the sink does not report it.
        attempts: 1, or more if others wrote to the same offsets or files.
        rewrote_files: whether the ranges cut through files, so that their other rows were written again.
        unknown_commits: number of attempts to which the catalog did not respond.
    """

    rows: int | None
    attempts: int
    rewrote_files: bool
    unknown_commits: int = 0


def write_table(
    session: SparkSession,
    table: str | IcebergTable,
    ranges: Sequence[OffsetRange],
    make_frame: Callable[[], DataFrame],
    *,
    may_go_on: Callable[[], None] = lambda: None,
    may_replace: Callable[[], None] = lambda: None,
    max_attempts: int = 5,
    ledger: TableLedger | LaneLedger | None = None,
    layout: TableLayout = DEFAULT_LAYOUT,
) -> WriteResult:
    """Replace the table's rows of these ranges by exactly these rows, in one commit.

    Create the table if it is missing.

    Args:
        session: Spark session of a server with the table's catalog.
        table: ``catalog.namespace.table``.
        ranges: offsets of the rows; the table's rows of these offsets are replaced, also by no rows.
        make_frame: returns the rows: topic, partition, offset and further columns; none, one or many rows per
            offset. Called once per attempt, after the snapshot is known.
        may_go_on: called before each operation; raises if this process must not write any more.
        may_replace: called once per attempt, after the snapshot is known; raises if another member owns the
            ranges now. This call detects writes of a successor before it. After later ones Iceberg refuses
            this write.
        max_attempts: number of attempts if others write to the same offsets, or the catalog's responses are
            lost.
        ledger: returns the record of these offsets, which the same commit stores.
        layout: layout of a table that is created; also whether new ranges are appended.

    Raises:
        RowsMissingError: the table lost rows that its ledger recorded.
        TableSchemaError: rows or table lack topic, partition and offset, or do not fit each other. Or batches
            cannot be written with the table's properties.
        RowsOutsideBatchError: a row's offset is in none of the ranges.
        WriteConflictError: others wrote to the same offsets ``max_attempts`` times.
        StorageError: catalog or storage is unavailable, or refuses.
        SparkFailedError: Spark failed for any other reason.
    """
    table = table if isinstance(table, IcebergTable) else IcebergTable(table)
    writing = TableWrite(
        session,
        table,
        ranges,
        make_frame=make_frame,
        may_go_on=may_go_on,
        may_replace=may_replace,
        max_attempts=max_attempts,
        ledger=LaneLedger.of(ledger),
        layout=layout,
    )
    return writing.execute_with_retries(writing.prepare())


@dataclass
class TableWrite:
    """One ``write_table`` in two steps.

    ``prepare`` and ``execute_with_retries`` run in the caller's thread, the rest in any thread. So one thread
    calls the transform, batch after batch, while Spark works on the batch before.
    """

    session: SparkSession
    table: IcebergTable
    ranges: Sequence[OffsetRange]
    _: KW_ONLY
    make_frame: Callable[[], DataFrame]
    may_go_on: Callable[[], None]
    may_replace: Callable[[], None]
    max_attempts: int = 5
    ledger: LaneLedger | None = None
    layout: TableLayout = DEFAULT_LAYOUT
    _partial_file_conflicts: int = 0
    _unknown_commits: int = 0
    _has_existing_rows: bool = False
    _attempt: WriteAttempt = field(init=False)

    def prepare(self) -> Callable[[], int]:
        """Read the table's state and make the frame.

        Return the function that reads and writes, and returns the number of rows.
        """
        try:
            return self._next_attempt()
        except PySparkException as error:
            refused = error  # Python deletes the name of an except clause at its end

        def raise_it() -> int:
            raise refused

        return raise_it

    def execute_with_retries(self, execute: Callable[[], int]) -> WriteResult:
        """Execute the write, and retry while other writers commit first.

        Raises the errors of ``write_table``.
        """
        started = time.monotonic()
        problem = RefusedCommit(RetryReason.OTHER_WRITER, "")
        for attempt in range(1, self.max_attempts + 1):
            try:
                rows = execute() if attempt == 1 else self._next_attempt()()
            except PySparkException as error:
                problem = self._retry_reason(error)
                if problem.reason is not RetryReason.COMMIT_STATE_UNKNOWN:
                    self.table.refresh(self.session)
                    continue
                found = self._rows_if_committed(error, is_last=attempt == self.max_attempts)
                if found is None:
                    continue
                rows = found
            if self._attempt.ledger_record is not None:
                self._attempt.ledger_record.mark_committed()
            return WriteResult(
                rows,
                attempt - self._has_existing_rows,
                self._partial_file_conflicts > 0,
                unknown_commits=self._unknown_commits,
            )
        cause = (
            RetryReason.CATALOG if problem.reason is RetryReason.CATALOG else RetryReason.OTHER_WRITER
        ).value
        raise WriteConflictError(
            f"{describe(self.ranges)} of {self.table.name} was refused {self.max_attempts} times in "
            f"{time.monotonic() - started:.0f} s ({problem.message[:300]}). Nothing was written. Fix: "
            f"look for {cause}."
        )

    def _next_attempt(self) -> Callable[[], int]:
        """Prepare another attempt, with the conflicts of those before."""
        self._attempt = WriteAttempt(self, self._partial_file_conflicts, self._has_existing_rows)
        return self._attempt.prepare()

    def _retry_reason(self, error: PySparkException) -> RefusedCommit:
        """Return the reason for a retry; raise the batch's error if a retry cannot help."""
        refused = retry_reason(error, self.table.name, self.table.quoted)
        if refused is None and self._has_schema_changed(error):
            refused = RefusedCommit(RetryReason.OTHER_WRITER, str(error))
        if refused is None:
            if is_server_error(error):
                raise error
            self.may_go_on()  # a cancel or a fence is the cause, and raises here
            raise self._to_package_error(error) from error
        self._partial_file_conflicts += refused.reason is RetryReason.PARTIAL_FILE_CONFLICT
        self._unknown_commits += refused.reason is RetryReason.COMMIT_STATE_UNKNOWN
        self._has_existing_rows = self._has_existing_rows or refused.reason is RetryReason.ROWS_EXIST
        return refused

    def _rows_if_committed(self, error: PySparkException, *, is_last: bool) -> int | None:
        """Return the number of rows that the table has of an attempt without a response of the catalog.

        None if the attempt is to be retried.

        Raises:
            StorageError: the catalog does not respond to this query either, or it was the last attempt.
        """
        self.may_go_on()
        try:
            rows = self._attempt.rows_if_committed()
        except PySparkException as unanswered:
            if is_server_error(unanswered):
                raise
            raise self._to_package_error(error) from error
        if rows is None and is_last:
            raise self._to_package_error(error) from error
        if rows is None:
            time.sleep(RETRY_PAUSE_SECONDS * 2 ** (self._unknown_commits - 1))
        return rows

    def _to_package_error(self, error: PySparkException) -> KafkaLivenessError:
        """Return Spark's error as one of this package's, if no retry can help."""
        condition = error.getCondition() or ""
        if condition.startswith(_DOES_NOT_FIT):
            return self.table.unsupported_types_error(summarize(error))
        if condition == _NOT_DETERMINISTIC:
            return TableSchemaError(
                f"Table {self.table.name} refuses a batch of a transform that is not deterministic, such as "
                "uuid(). The batch has to be merged, and write.merge.mode is copy-on-write, the default. "
                f"Nothing was written. Fix: ALTER TABLE {self.table.name} SET TBLPROPERTIES "
                "('write.merge.mode'='merge-on-read')"
            )
        if not_kept := storage_write_error(error, self.table.name, describe(self.ranges)):
            return not_kept
        if isinstance(self.make_frame, TransformedBatch) and (
            unreadable := self.make_frame.unreadable_record(error)
        ):
            return unreadable
        may_be_replaced = isinstance(error, AnalysisException) or condition == _NO_MERGE
        if may_be_replaced and (replaced := self._table_replaced_error()):
            return replaced
        bad = self.make_frame.bad_json(error) if isinstance(self.make_frame, TransformedBatch) else ""
        return SparkFailedError(
            f"Batch {describe(self.ranges)} could not be written to {self.table.name} "
            f"({bad or summarize(error)}). The table has the whole batch or nothing. No offsets were "
            "committed; the batch is retried. Fix: correct the transform, or the cause in this message; "
            "Spark's log has the whole error"
        )

    def _has_schema_changed(self, error: PySparkException) -> bool:
        """Return whether rows do not fit because another writer changed the columns.

        The change was made during the attempt, or since the columns were read for an earlier batch. Spark
        has several errors for a MERGE with other columns; all are raised before it writes.
        """
        is_analysis = self._attempt.is_shape_kept and isinstance(error, AnalysisException)
        if not is_analysis and not (error.getCondition() or "").startswith(_DOES_NOT_FIT):
            return False
        self.table.refresh(self.session)
        now = self.table.shape(self.session)
        return now is not None and now.columns != self._attempt.columns

    def _table_replaced_error(self) -> TableSchemaError | None:
        """Return why the table cannot be written any more, if it was replaced after the attempt began."""
        try:
            self.table.refresh(self.session)
            self.table.shape(self.session)
        except TableSchemaError as replaced:
            return replaced
        except PySparkException:
            pass  # the error of the write is more specific
        return None


@dataclass
class WriteAttempt:
    """One attempt to write a batch to the current table.

    An attempt reads the table's state, makes the frame, writes and checks.

    Attributes:
        write: write of this attempt; it begins the next attempt.
        partial_file_conflicts: number of earlier attempts refused because the ranges cut through files.
        has_existing_rows: whether the table has rows of these offsets, so that they cannot be appended.
        name: name of the attempt in the summary of its snapshot.
        columns: columns of the table at the begin of the attempt; None without a table.
        is_shape_kept: whether an earlier batch read these columns.
        ledger_record: record of the attempt in the ledger; None without a ledger, and before ``prepare``.
    """

    write: TableWrite
    partial_file_conflicts: int = 0
    has_existing_rows: bool = False
    _: KW_ONLY
    name: str = field(default_factory=lambda: uuid4().hex)
    columns: StructType | None = field(default=None, init=False)
    is_shape_kept: bool = field(default=False, init=False)
    ledger_record: LedgerRecord | None = field(default=None, init=False)
    _is_new: bool = False

    def prepare(self) -> Callable[[], int]:
        """Prepare to replace the ranges, relative to the current snapshot.

        Return the function that replaces them and returns the number of rows.
        """
        of = self.write
        table = of.table
        session = of.session
        ranges = of.ranges
        of.may_go_on()
        shape = table.writable_shape(session)
        self._is_new = shape is None
        self.columns = None if shape is None else shape.columns
        snapshot_id = None if shape is None else table.snapshot_id(session)
        summary: Mapping[str, str] = {"kafka-liveness.ranges": describe(ranges)}
        if of.ledger is not None:
            self.ledger_record = of.ledger.record(ranges, TableVersion(session, snapshot_id))
            summary = self.ledger_record.properties
        summary = {**summary, commits.ATTEMPT: self.name}
        of.may_replace()
        of.may_go_on()
        frame = of.make_frame()
        require_row_columns(frame, f"the rows for {table.name}")
        table.check_main(session, is_new=shape is None)  # after the transform, which may change settings
        of.may_go_on()
        if shape is None:
            return self._create_table(frame, summary)
        shape, found = self._diff_schema(frame, shape)
        self.columns = shape.columns
        self.is_shape_kept = shape.is_kept
        frame = require_rows_in_ranges(schema.with_missing_columns(frame, found), ranges)
        written, counted = with_sums(frame)
        replaced: tuple[OffsetRange, ...] | None = merge_ranges(ranges)
        if self.partial_file_conflicts and snapshot_id is not None:
            of.may_go_on()
            written, replaced = self._with_other_rows(written, snapshot_id, shape, found=found)
        if found.changes_table:
            schema.dry_run_write(table, frame, found, columns=shape.columns)
            of.may_go_on()
            schema.evolve_schema(table, session, found)
            table.forget_shape(session)
        merge = commits.Merge(written, table, ranges, summary=summary, may_go_on=of.may_go_on)

        def execute() -> int:
            of.may_go_on()
            if of.layout.snapshots == "append" and not self.has_existing_rows:
                if not frame.isEmpty():
                    merge.append()
                    return self._on_committed(counted)
                if table.count_rows(session, ranges) == 0:
                    commits.append_empty(frame, table, summary)
                    return self._on_committed(counted)
            if replaced is None:
                merge.replace()
            else:
                fans_out = shape.is_by_kafka_partition and schema.allows_fanout(replaced)
                commits.overwrite(
                    written, table, snapshot_id, replaced=replaced, summary=summary, fans_out=fans_out
                )
            return self._on_committed(counted)

        return execute

    def rows_if_committed(self) -> int | None:
        """Return the number of this attempt's rows in the table, after a commit without a response.

        None if its snapshot is missing.
        """
        of = self.write
        if not commits.is_committed(of.session, of.table, self.name):
            return None
        if self._is_new:
            schema.set_sort_order(of.table, of.session, of.layout)
        failpoint(Failpoint.AFTER_TABLE_COMMIT)
        return of.table.count_rows(of.session, of.ranges)

    def _diff_schema(self, frame: DataFrame, shape: TableShape) -> tuple[TableShape, SchemaDiff]:
        """Return the table's shape, and the differences between rows and table.

        A kept shape is read again before the table is changed or the rows are refused for it.
        """
        of = self.write
        if shape.is_kept:
            with suppress(TableSchemaError):
                found = diff_schema(frame, shape.columns, of.table.name)
                if not found.changes_table:
                    return shape, found
            of.table.forget_shape(of.session)
            shape = of.table.writable_shape(of.session) or shape
        return shape, diff_schema(frame, shape.columns, of.table.name)

    def _with_other_rows(
        self, written: DataFrame, snapshot_id: int, shape: TableShape, found: SchemaDiff
    ) -> tuple[DataFrame, tuple[OffsetRange, ...] | None]:
        """Return the rows and all other rows of the files that the ranges cut through.

        Return also the offsets that they replace together. These are None if files may have offsets of
        several Kafka partitions, because no ranges describe such a file. The table's partition fields allow
        such files, or former ones did for existing files. The offsets are also None if a file has no bounds.
        """
        of = self.write
        if self.partial_file_conflicts > _WHOLE_FILE_ATTEMPTS or not shape.is_by_kafka_partition:
            return written, None
        if (files := of.table.file_ranges(of.session, snapshot_id, of.ranges)) is None:
            return written, None
        replaced = widen_to_files(of.ranges, files)
        for side in one_per_partition(
            subtract(replaced, of.ranges)
        ):  # apart, so that no new file spans the batch again
            survivors = of.table.rows_at(of.session, snapshot_id).where(ranges_condition(side))
            # A union adds no field to an array's structs
            survivors = schema.reshape(survivors, found.table_after)
            written = written.unionByName(survivors, allowMissingColumns=True)
        return written, replaced

    def _create_table(self, frame: DataFrame, summary: Mapping[str, str]) -> Callable[[], int]:
        """Create the table with the rows in it.

        This is done at once, because the next batch checks whether the table exists.
        """
        of = self.write
        require_supported_types(frame.schema.fields, of.table.name)
        schema.check_properties(of.table, of.session, of.layout)
        written, counted = with_sums(require_rows_in_ranges(frame, of.ranges))
        schema.create_table(of.table, written, of.ranges, summary=summary, layout=of.layout)
        schema.set_sort_order(of.table, of.session, of.layout)
        return lambda: self._on_committed(counted)

    def _on_committed(self, counted: RowSums) -> int:
        failpoint(Failpoint.AFTER_TABLE_COMMIT)
        return row_count(counted, self.write.session, self.write.table, self.write.ranges)
