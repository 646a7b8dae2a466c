"""What does the table's visible history say? Its snapshots, and the ledger they make, as of one of them.

Reads metadata only, all of it with one query, and never a row. Lives beside ``spark.ledger``, which reads as little as
a writer needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from kafka_liveness_dagster.core.errors import first_line
from kafka_liveness_dagster.core.history import Write
from kafka_liveness_dagster.core.ledger import Ledger, Snapshot, lineage, read
from kafka_liveness_dagster.core.ledger_text import since_of
from kafka_liveness_dagster.spark.errors import TableUnreadableError
from kafka_liveness_dagster.spark.keepers import unreadable
from kafka_liveness_dagster.spark.line import line_of
from kafka_liveness_dagster.spark.summaries import HAD, SINCE, WROTE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import Row, SparkSession

    from kafka_liveness_dagster.spark.table import IcebergTable

_ANSWER_SECONDS = 120.0  # 5,000 snapshots took 0.5 s
_WROTE, _HAD, _SINCE = (f"summary['{name}']" for name in (WROTE, HAD, SINCE))
_ALL = (
    f"SELECT snapshot_id, parent_id, CAST(committed_at AS string), operation, summary['added-records'], "
    f"summary['deleted-records'], {_WROTE}, {_SINCE} FROM {{table}}.`snapshots`"
)


@dataclass(frozen=True)
class History:
    """A table at one moment.

    Attributes:
        snapshot_id: the current one; None where the table has none, or is none.
        writes: those that led to it, the newest first.
        ledger: what they make together.
    """

    snapshot_id: int | None = None
    ledger: Ledger = field(default_factory=Ledger)
    writes: tuple[Write, ...] = ()


def history(session: SparkSession, table: IcebergTable) -> History:
    """The table now, to a session that has not seen it yet; nothing of one that is not there.

    Raises:
        TableSchemaError: it is not a table of topics, partitions and offsets.
        LedgerError: a newer version wrote to it.
        TableUnreadableError: Spark could not tell.
        SparkSilentError: it did not tell in time.
    """
    try:
        with line_of(session).within(_ANSWER_SECONDS, f"it was asked for the snapshots of {table.name}"):
            return _history(session, table)
    except PySparkException as error:
        raise unreadable(error, table.name) or TableUnreadableError(
            f"the snapshots of {table.name} could not be read ({first_line(error)[:300]}): nothing is known "
            "of the table; look at Spark's log"
        ) from error


def _history(session: SparkSession, table: IcebergTable) -> History:
    snapshot_id = table.current(session)
    if snapshot_id is None:
        return History()
    rows: dict[int, Row] = {row[0]: row for row in session.sql(_ALL.format(table=table.quoted)).collect()}
    snapshots = {one: _snapshot(row) for one, row in rows.items()}
    found = lineage(snapshots, snapshot_id)
    for one, had in _sums(session, table, found.summed_up):
        snapshots[one] = replace(snapshots[one], had=had)
    writes = tuple(_write(rows[one]) for one in _back_from(snapshot_id, snapshots))
    return History(snapshot_id, read(snapshots, found), writes)


def _sums(session: SparkSession, table: IcebergTable, wanted: tuple[int, ...]) -> list[Row]:
    """The long texts, of few snapshots."""
    if not wanted:
        return []
    ids = ", ".join(map(str, wanted))
    sql = f"SELECT snapshot_id, {_HAD} FROM {table.quoted}.`snapshots` WHERE snapshot_id IN ({ids})"
    found: list[Row] = session.sql(sql).collect()
    return found


def _back_from(current: int, snapshots: Mapping[int, Snapshot]) -> Iterator[int]:
    """The current one and its ancestors, as far as they are there."""
    at: int | None = current
    while at is not None and at in snapshots:
        yield at
        at = snapshots[at].parent_id


def _snapshot(row: Row) -> Snapshot:
    snapshot_id, parent_id, *_, wrote, since = row
    return Snapshot(snapshot_id, parent_id, wrote or "", "", since_of(snapshot_id, since))


def _write(row: Row) -> Write:
    snapshot_id, parent_id, committed_at, operation, added, deleted, wrote, _ = row
    return Write(snapshot_id, committed_at, operation or "", int(added or 0), int(deleted or 0), wrote or "", parent_id)
