"""Query the snapshots of a table, with the ledger's texts in their summaries. Reads no row, writes nothing.

A writer queries only the latest snapshots (``latest_summaries``). The audit queries all (``read_history``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, PySparkException

from kafka_liveness_dagster.core.errors import summary_line
from kafka_liveness_dagster.core.ledger import (
    TOTAL_AS_OF_KEY,
    TOTAL_KEY,
    WRITTEN_KEY,
    SnapshotSummary,
    ancestors,
    decode_total_as_of,
    lineage,
    read_ledger,
)
from kafka_liveness_dagster.core.sink_ledger import LedgerCommit, LedgerHistory
from kafka_liveness_dagster.spark.connect.connection import connection_of
from kafka_liveness_dagster.spark.error_classification import NOT_FOUND, storage_read_error
from kafka_liveness_dagster.spark.errors import TableUnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Row, SparkSession

    from kafka_liveness_dagster.spark.table.table import IcebergTable

LATEST_COUNT = 128
"""Number of snapshots that ``latest_summaries`` returns; writers record a total more often than that."""
_SUMMARY_COLUMNS = (
    f"SELECT snapshot_id, parent_id, summary['{WRITTEN_KEY}'], summary['{TOTAL_KEY}'], "
    f"summary['{TOTAL_AS_OF_KEY}'] "
    "FROM {}"
)


READ_ATTEMPTS = 3
"""Largest number of reads if the table grows between the queries for its current and for all snapshots."""


def has_grown(
    session: SparkSession,
    table: IcebergTable,
    snapshots: Mapping[int, SnapshotSummary],
    snapshot_id: int | None,
) -> bool:
    """Return whether the table has another current snapshot than when these snapshots were queried.

    Snapshots that were committed between both queries look like rolled-back snapshots. If there are any, the
    current snapshot is queried again.
    """
    if not lineage(snapshots, snapshot_id).rolled_back:
        return False
    table.refresh(session, keep_shape=True)
    return table.current_snapshot_id(session) != snapshot_id


def latest_summaries(session: SparkSession, table: IcebergTable) -> dict[int, SnapshotSummary]:
    """Return the last ``LATEST_COUNT`` committed snapshots, including rolled-back ones."""
    return _query_summaries(
        session, table, f"{_SUMMARY_COLUMNS} ORDER BY committed_at DESC LIMIT {LATEST_COUNT}"
    )


def summaries_without_text(session: SparkSession, table: IcebergTable) -> dict[int, SnapshotSummary]:
    """Return all snapshots, without their texts."""
    return _query_summaries(
        session, table, f"SELECT snapshot_id, parent_id, '', '', summary['{TOTAL_AS_OF_KEY}'] FROM {{}}"
    )


def summaries_of(
    session: SparkSession, table: IcebergTable, snapshot_ids: Iterable[int]
) -> dict[int, SnapshotSummary]:
    """Return these snapshots, without those that the table no longer has."""
    wanted = ", ".join(map(str, snapshot_ids))
    return (
        _query_summaries(session, table, f"{_SUMMARY_COLUMNS} WHERE snapshot_id IN ({wanted})")
        if wanted
        else {}
    )


def _query_summaries(session: SparkSession, table: IcebergTable, sql: str) -> dict[int, SnapshotSummary]:
    try:
        rows = session.sql(sql.format(f"{table.quoted}.`snapshots`")).collect()
    except AnalysisException as error:
        if error.getCondition() == NOT_FOUND:
            return {}
        raise
    return {
        one: SnapshotSummary(
            one, parent, wrote or "", total=had or "", total_as_of=decode_total_as_of(one, since)
        )
        for one, parent, wrote, had, since in rows
    }


_ANSWER_SECONDS = 120.0  # 5,000 snapshots took 0.5 s
_SNAPSHOTS_QUERY = (
    f"SELECT snapshot_id, parent_id, CAST(committed_at AS string), operation, summary['added-records'], "
    f"summary['deleted-records'], summary['{WRITTEN_KEY}'], summary['{TOTAL_AS_OF_KEY}'] "
    "FROM {table}.`snapshots`"
)


def read_history(session: SparkSession, table: IcebergTable) -> LedgerHistory:
    """Return the snapshots of a table that the session has not read yet; empty without a table.

    Raises:
        TableSchemaError: the table lacks topic, partition and offset.
        UnknownLedgerFormatError: a newer version wrote to the table.
        TableUnreadableError: Spark could not read the snapshots.
        SparkNotRespondingError: Spark did not respond in time.
    """
    try:
        with connection_of(session).abort_after(
            _ANSWER_SECONDS, f"it was queried for the snapshots of {table.name}"
        ):
            return _query_history(session, table)
    except PySparkException as error:
        raise _read_error(error, table) from error


def _read_error(error: PySparkException, table: IcebergTable) -> Exception:
    return storage_read_error(error, table.name) or TableUnreadableError(
        f"Snapshots of {table.name} could not be read ({summary_line(error)[:300]}). The state of the "
        "table is unknown. Fix: remove the cause in this message; Spark's log has the whole error"
    )


def commit_times(session: SparkSession, table: IcebergTable) -> dict[int, float]:
    """Return the commit time of each snapshot, in seconds since the epoch; the history has it as text.

    Raises:
        TableUnreadableError: Spark could not read the snapshots.
        SparkNotRespondingError: Spark did not respond in time.
    """
    try:
        with connection_of(session).abort_after(
            _ANSWER_SECONDS, f"it was queried for the snapshots of {table.name}"
        ):
            found = session.sql(
                f"SELECT snapshot_id, unix_millis(committed_at) FROM {table.quoted}.`snapshots`"
            ).collect()
    except PySparkException as error:
        raise _read_error(error, table) from error
    return {snapshot_id: at_ms / 1000 for snapshot_id, at_ms in found}


def _query_history(session: SparkSession, table: IcebergTable) -> LedgerHistory:
    for attempt in range(READ_ATTEMPTS):
        snapshot_id = table.current_snapshot_id(session)
        if snapshot_id is None:
            return LedgerHistory()
        rows: dict[int, Row] = {
            row[0]: row for row in session.sql(_SNAPSHOTS_QUERY.format(table=table.quoted)).collect()
        }
        snapshots = {one: _to_summary(row) for one, row in rows.items()}
        found = lineage(snapshots, snapshot_id)
        if not has_grown(session, table, snapshots, snapshot_id):
            break
        if attempt == READ_ATTEMPTS - 1:
            found = replace(found, rolled_back=())
    snapshots |= summaries_of(session, table, found.totals)  # few, with the long texts
    writes = tuple(_to_record(rows[one]) for one in ancestors(snapshots, snapshot_id))
    return LedgerHistory(snapshot_id, read_ledger(snapshots, found), writes)


def _to_summary(row: Row) -> SnapshotSummary:
    snapshot_id, parent_id, *_, wrote, since = row
    return SnapshotSummary(
        snapshot_id, parent_id, wrote or "", total="", total_as_of=decode_total_as_of(snapshot_id, since)
    )


def _to_record(row: Row) -> LedgerCommit:
    snapshot_id, parent_id, committed_at, operation, added, deleted, wrote, _ = row
    return LedgerCommit(
        snapshot_id,
        committed_at,
        operation or "",
        added_rows=int(added or 0),
        deleted_rows=int(deleted or 0),
        text=wrote or "",
        parent_id=parent_id,
    )
