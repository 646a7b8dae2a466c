"""What a batch's write sends to Spark, in which order, and how it goes on after each reply."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from pyspark.sql.types import StructType

from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.sink_ledger import LedgerRecord
from kafka_liveness_dagster.core.table_layout import TableLayout
from kafka_liveness_dagster.spark import sink
from kafka_liveness_dagster.spark.errors import (
    RowsOutsideBatchError,
    StorageError,
    TableSchemaError,
    WriteConflictError,
)
from kafka_liveness_dagster.spark.row_guard import OUTSIDE_BATCH, array_bounds_condition
from kafka_liveness_dagster.spark.source import read_ranges
from kafka_liveness_dagster.spark.table import write as table_write
from kafka_liveness_dagster.spark.table.commits import Merge
from kafka_liveness_dagster.spark.table.table import IcebergTable
from kafka_liveness_dagster.spark.table.write import TableWrite, write_table
from tests.client.fake_connect_server import RECORDS, Failure, option

SECONDS = 20.0  # a wait this long is in vain
TABLE, QUOTED = "lake.shop.orders", "`lake`.`shop`.`orders`"
BATCH = (OffsetRange("orders", 0, 7, 12),)
KAFKA = {"kafka.bootstrap.servers": "kafka:9092"}
OVERWRITE = "mode: MODE_OVERWRITE"
NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"
MISSING = Failure("no table", NOT_FOUND, kind="org.apache.spark.sql.AnalysisException", relationName=QUOTED)
ICEBERG = "org.apache.iceberg.exceptions"
CONFLICT = Failure("Found conflicting files", kind=f"{ICEBERG}.ValidationException")
CUTS = Failure(
    "Cannot delete file where some, but not all, rows match", kind=f"{ICEBERG}.ValidationException"
)
UNANSWERED = Failure("Connection reset", kind=f"{ICEBERG}.CommitStateUnknownException")


class FencedError(Exception):
    """The process may not write any more."""


@pytest.fixture
def table(server):
    """A table at snapshot 7, partitioned by Kafka's partition."""
    server.has_table(QUOTED, RECORDS)
    return IcebergTable(TABLE)


@pytest.fixture
def no_pause(monkeypatch):
    """Attempts follow each other at once."""
    monkeypatch.setattr(table_write, "RETRY_PAUSE_SECONDS", 0.0)


def frame_of(session):
    """Make the frame of the batch, as a transform that changes nothing does."""
    return lambda: read_ranges(session, BATCH, KAFKA)


# --- what is read -------------------------------------------------------------------------------------------


def test_spark_fails_where_records_of_the_range_are_gone(server, session):
    """A gap would be committed as if it had been read."""
    read_ranges(session, BATCH, KAFKA).collect()
    [plan] = server.executed
    assert option(plan, "failOnDataLoss") == "true"


def test_settings_of_the_user_change_neither_the_range_nor_what_happens_at_a_gap(server, session):
    """Options of the Kafka resource reach the source, except for those that make a batch exact."""
    theirs = {"failOnDataLoss": "false", "endingOffsets": "latest", "kafka.fetch.max.bytes": "1"}
    read_ranges(session, BATCH, {**KAFKA, **theirs}).collect()
    [plan] = server.executed
    names = ("failOnDataLoss", "startingOffsets", "endingOffsets", "kafka.fetch.max.bytes")
    assert [option(plan, name) for name in names] == [
        "true",
        '{"orders": {"0": 7}}',
        '{"orders": {"0": 12}}',
        "1",
    ]


def test_aborted_transactions_are_not_read(server, session):
    """Spark's own default would read them."""
    read_ranges(session, BATCH, KAFKA).collect()
    [plan] = server.executed
    assert option(plan, "kafka.isolation.level") == "read_committed"


# --- what a write sends -------------------------------------------------------------------------------------


def test_a_write_is_validated_from_the_snapshot_before_the_batch_was_read(server, session, table):
    """What another writer commits while the batch is read makes the table refuse the batch."""

    def make_frame():
        server.gives("`refs`", "… snapshotId=8 …")
        return frame_of(session)()

    write_table(session, table, BATCH, make_frame)
    [plan] = server.executed_with(OVERWRITE)
    assert option(plan, "validate-from-snapshot-id") == "7"


def test_a_write_is_serializable(server, session, table):
    """With Iceberg's default two writers of the same offsets would both be accepted."""
    write_table(session, table, BATCH, frame_of(session))
    [plan] = server.executed_with(OVERWRITE)
    assert option(plan, "isolation-level") == "serializable"


def test_a_row_outside_of_the_batch_fails_the_write(server, session, table):
    """Spark evaluates the ranges at each row that is written."""
    write_table(session, table, BATCH, frame_of(session))
    [plan] = server.executed_with(OVERWRITE)
    assert (
        f"CASE WHEN {array_bounds_condition(BATCH)} THEN true ELSE CAST(raise_error(concat('{OUTSIDE_BATCH}'"
        in plan
    )


def test_a_row_outside_of_the_batch_fails_the_write_of_a_new_table(server, session):
    """The first batch creates the table with its rows in it."""
    server.has(f'unparsed_identifier: "{QUOTED}"', MISSING)
    write_table(session, TABLE, BATCH, frame_of(session))
    [plan] = server.executed_with("mode: MODE_CREATE")
    assert (
        f"CASE WHEN {array_bounds_condition(BATCH)} THEN true ELSE CAST(raise_error(concat('{OUTSIDE_BATCH}'"
        in plan
    )


def test_rows_without_the_offset_are_refused(server, session, table):
    """Later batches could not replace them: nothing is written."""
    server.has("'without offset'", StructType([field for field in RECORDS if field.name != "offset"]))
    with pytest.raises(TableSchemaError, match=r"the rows for .* must have offset bigint"):
        write_table(
            session, table, BATCH, lambda: read_ranges(session, BATCH, KAFKA).where("'without offset' != ''")
        )
    assert server.executed_with(OVERWRITE) == []


def test_a_namespace_that_a_write_created_goes_with_its_table(server, session):
    """When the first batch fails there is neither a table nor a namespace."""
    server.has(f'unparsed_identifier: "{QUOTED}"', MISSING)
    server.gives("mode: MODE_CREATE", Failure("disk is full", kind="java.io.IOException"))
    with pytest.raises(Exception, match="disk is full"):
        write_table(session, TABLE, BATCH, frame_of(session))
    assert server.executed_with("CREATE NAMESPACE `lake`.`shop`")
    assert server.executed_with("DROP NAMESPACE IF EXISTS `lake`.`shop`"), "the namespace stays"


# --- who may write ------------------------------------------------------------------------------------------


def test_a_process_that_is_fenced_after_the_transform_writes_nothing(server, session, table):
    """The permission is checked right before the write."""
    fenced = []

    def may_go_on():
        if fenced:
            raise FencedError

    writing = TableWrite(
        session, table, BATCH, make_frame=frame_of(session), may_go_on=may_go_on, may_replace=lambda: None
    )
    execute = writing.prepare()
    fenced.append(True)
    with pytest.raises(FencedError):
        writing.execute_with_retries(execute)
    assert server.executed_with(OVERWRITE) == []


def test_a_successor_is_noticed_after_the_snapshot_is_known(server, session, table):
    """What the successor writes later makes the table refuse this write.

    What it wrote before is found out here.
    """
    known = []

    def look(_text):
        known.append("snapshot")
        return "… snapshotId=7 …"

    server.gives("`refs`", look)
    write_table(session, table, BATCH, frame_of(session), may_replace=lambda: known.append("permission"))
    assert known == ["snapshot", "permission"]


def test_a_canceled_process_reports_the_cancel_and_not_the_error_of_its_write(server, session, table):
    """Spark fails because of the cancel; a run that blamed its transform would quarantine records."""
    canceled = []

    def fail(_text):
        canceled.append(True)
        return Failure("Job aborted: stage was cancelled", kind="org.apache.spark.SparkException")

    def may_go_on():
        if canceled:
            raise FencedError

    server.gives(OVERWRITE, fail)
    with pytest.raises(FencedError):
        write_table(session, table, BATCH, frame_of(session), may_go_on=may_go_on)


# --- replies ------------------------------------------------------------------------------------------------


def test_a_refused_batch_is_written_again_from_a_newer_snapshot(server, session, table):
    """The catalog's cache is refreshed first: it would show the snapshot that was refused."""
    server.gives("`refs`", "… snapshotId=7 …", "… snapshotId=8 …")
    server.gives(OVERWRITE, CONFLICT, [])
    written = write_table(session, table, BATCH, frame_of(session))
    assert written.attempts == 2
    # The table's properties, which forbid things, are read once
    plans = [plan for plan in server.executed if "SHOW TBLPROPERTIES" not in plan]
    kinds = [
        "refresh" if "refresh_table" in plan else option(plan, "validate-from-snapshot-id") for plan in plans
    ]
    assert kinds == ["7", "refresh", "8"]


def test_a_batch_that_is_refused_each_time_ends_with_a_conflict(server, session, table):
    """Nothing of the batch is in the table."""
    server.gives(OVERWRITE, CONFLICT)
    with pytest.raises(WriteConflictError, match="refused 3 times"):
        write_table(session, table, BATCH, frame_of(session), max_attempts=3)
    assert len(server.executed_with(OVERWRITE)) == 3


def test_a_batch_that_cuts_through_files_replaces_them_whole(server, session, table):
    """The bounds of a file are inclusive.

    A file that is touched may overlap others, which are replaced too.
    """
    server.gives(OVERWRITE, CUTS, [])
    bounds = ((5, 8), (8, 20), (20, 30), (40, 50))
    names = ("topic", "partition", "lower_bound", "upper_bound")
    server.gives("readable_metrics", [dict(zip(names, ("orders", 0, *one), strict=True)) for one in bounds])
    written = write_table(session, table, BATCH, frame_of(session))
    assert written.rewrote_files
    [_, plan] = server.executed_with(OVERWRITE)
    replaced = plan.partition("overwrite_condition")[2]
    assert "`offset` >= 5 AND `offset` < 31)" in replaced


def test_a_commit_without_a_reply_is_not_written_again_if_it_landed(server, session, table, no_pause):
    """The attempt is in the table's history."""
    server.gives(OVERWRITE, UNANSWERED)
    server.gives("is_current_ancestor", [{"count": 1}])
    server.gives("aggregate", [{"count": 5}])
    written = write_table(session, table, BATCH, frame_of(session))
    assert (written.rows, written.attempts, written.unknown_commits) == (5, 1, 1)
    assert len(server.executed_with(OVERWRITE)) == 1


def test_a_commit_without_a_reply_is_written_again_if_it_did_not_land(server, session, table, no_pause):
    """The attempt is not in the table's history."""
    server.gives(OVERWRITE, UNANSWERED, [])
    server.gives("is_current_ancestor", [{"count": 0}])
    written = write_table(session, table, BATCH, frame_of(session))
    assert (written.attempts, written.unknown_commits) == (2, 1)


def test_a_last_commit_without_a_reply_is_the_storage_s_error(server, session, table, no_pause):
    """It names the catalog: a conflict would send people to look for a second writer."""
    server.gives(OVERWRITE, UNANSWERED)
    server.gives("is_current_ancestor", [{"count": 0}])
    with pytest.raises(StorageError, match="did not respond whether it took the commit"):
        write_table(session, table, BATCH, frame_of(session), max_attempts=2)


class Ledger:
    """A ledger that records which ranges are reported as committed."""

    target = "lake.shop.orders"

    def __init__(self):
        self.committed = []

    def record(self, ranges, _known, _as_of):
        return LedgerRecord({"kafka-liveness.written": ""}, lambda: self.committed.extend(ranges))


def test_the_ledger_hears_of_a_batch_when_it_is_committed(server, session, table):
    """And of none that was refused."""
    ledger = Ledger()
    write_table(session, table, BATCH, frame_of(session), ledger=ledger)
    assert ledger.committed == [*BATCH]
    server.gives(OVERWRITE, CONFLICT)
    with suppress(WriteConflictError):
        write_table(session, table, BATCH, frame_of(session), ledger=ledger, max_attempts=1)
    assert ledger.committed == [*BATCH]


# --- MERGE --------------------------------------------------------------------------------------------------

MERGING = "merge_into_table_command"
ATTEMPT = "spark.sql.iceberg.snapshot-property.attempt"


def merge_of(session, table, name, may_go_on=lambda: None):
    return Merge(frame_of(session)(), table, BATCH, summary={"attempt": name}, may_go_on=may_go_on)


def test_merges_of_one_session_take_turns(server, session, table):
    """A MERGE takes its summary from the settings of its session: a second one would change it."""
    inside, go_on, summaries = threading.Event(), threading.Event(), []

    def merging(_text):
        first = not inside.is_set()
        inside.set()
        if first:
            go_on.wait(0.3)  # the second MERGE would set it
        summaries.append(server.settings.get(ATTEMPT))
        go_on.set()
        return []

    server.gives(MERGING, merging)
    first = threading.Thread(target=merge_of(session, table, "first").replace)
    first.start()
    assert inside.wait(SECONDS)
    merge_of(session, table, "second").replace()
    first.join(SECONDS)
    assert summaries == ["first", "second"], "another MERGE changed the summary"
    assert ATTEMPT not in server.settings


def test_a_merge_that_waited_for_another_one_checks_whether_it_may_write(server, session, table):
    """Its process may have been fenced meanwhile."""
    inside, go_on, fenced = threading.Event(), threading.Event(), []

    def merging(_text):
        inside.set()
        go_on.wait(SECONDS)
        return []

    def may_go_on():
        if fenced:
            raise FencedError

    server.gives(MERGING, merging)
    errors = []

    def second():
        try:
            merge_of(session, table, "second", may_go_on).replace()
        except FencedError as error:
            errors.append(error)

    first = threading.Thread(target=merge_of(session, table, "first").replace)
    first.start()
    assert inside.wait(SECONDS)
    waiting = threading.Thread(target=second)
    waiting.start()
    fenced.append(True)
    go_on.set()
    for thread in (first, waiting):
        thread.join(SECONDS)
    assert len(errors) == len(server.executed_with(MERGING)) == 1, "the second MERGE was sent"


def test_appended_batches_do_not_overwrite(server, session, table):
    """With appended snapshots a batch is a MERGE that fails on rows of its own offsets."""
    server.gives("limit", [{"n": 1}])
    write_table(session, table, BATCH, frame_of(session), layout=TableLayout(snapshots="append"))
    [plan] = server.executed_with(MERGING)
    assert "raise_error('kafka-liveness: the table has rows of the batch')" in plan
    assert server.executed_with(OVERWRITE) == []


# --- a sink of the user's own -------------------------------------------------------------------------------


def test_a_sink_is_given_rows_of_the_batch_alone(server, session):
    """A row outside of the ranges fails the job that computes it."""
    sink.replace_rows(lambda replacement: len(replacement.rows.collect()), BATCH, frame_of(session))
    [plan] = server.executed
    assert (
        f"CASE WHEN {array_bounds_condition(BATCH)} THEN true ELSE CAST(raise_error(concat('{OUTSIDE_BATCH}'"
        in plan
    )


def test_a_row_outside_of_the_batch_is_named_by_a_sink_too(server, session):
    """The error names the row, whatever the sink did with the rows."""
    outside = f"{OUTSIDE_BATCH}orders:0:12"
    failure = Failure(
        outside, "USER_RAISED_EXCEPTION", kind="org.apache.spark.SparkRuntimeException", errorMessage=outside
    )
    server.gives("kafka", failure)
    with pytest.raises(
        RowsOutsideBatchError, match="a row of orders:0:12, which is not in the batch p0:orders:7-12"
    ):
        sink.replace_rows(lambda replacement: len(replacement.rows.collect()), BATCH, frame_of(session))


# --- bounds -------------------------------------------------------------------------------------------------


def test_a_file_ends_behind_its_last_offset(server, session, table):
    """Iceberg's upper bound is the last offset itself."""
    row = {"topic": "orders", "partition": 0, "lower_bound": 5, "upper_bound": 8}
    server.gives("readable_metrics", [row])
    assert table.file_ranges(session, 7, BATCH) == [OffsetRange("orders", 0, 5, 9)]
