"""What does the table's visible history say? Its snapshots, and the ledger they make, as of one of them.

Reads metadata only, all of it with one query, and never a row. Lives beside ``spark.ledger``, which reads as little as
a writer needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.history import Write
from kafka_liveness_dagster.core.ledger import Account, Snapshot, decode, lineage, read

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import Row, SparkSession

    from kafka_liveness_dagster.core.ledger import Accounts
    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.spark.table import IcebergTable

_WROTE, _HAD, _SINCE = (f"summary['kafka-liveness.{word}']" for word in ("wrote", "had", "since"))
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
        complete: what the ledger does not have is not in the table; False where its history was expired.
    """

    snapshot_id: int | None = None
    accounts: Accounts = field(default_factory=dict)
    writes: tuple[Write, ...] = ()
    complete: bool = True

    def account(self, tp: TopicPartition) -> Account:
        """What the table says of a partition, also where that is nothing."""
        if tp in self.accounts:
            return self.accounts[tp]
        ids = (account.topic_id for at, account in self.accounts.items() if at.topic == tp.topic)
        return Account(topic_id=next(ids, ""), complete=self.complete)


def history(session: SparkSession, table: IcebergTable) -> History:
    """The table now; nothing of one that is not there.

    Raises:
        TableSchemaError: it is not a table of topics, partitions and offsets.
        LedgerError: a newer version wrote to it.
    """
    table.refresh(session)
    snapshot_id = table.current(session)
    if snapshot_id is None:
        return History()
    rows: dict[int, Row] = {row[0]: row for row in session.sql(_ALL.format(table=table.quoted)).collect()}
    snapshots = {one: _snapshot(row) for one, row in rows.items()}
    found = lineage(snapshots, snapshot_id)
    for one, had in _sums(session, table, found.summed_up):
        snapshots[one] = replace(snapshots[one], had=had)
    writes = tuple(_write(rows[one]) for one in _back_from(snapshot_id, snapshots))
    return History(snapshot_id, read(snapshots, found), writes, found.complete)


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
    return Snapshot(snapshot_id, parent_id, wrote or "", "", int(since) if since else None)


def _write(row: Row) -> Write:
    snapshot_id, _, committed_at, operation, added, deleted, wrote, _ = row
    return Write(snapshot_id, committed_at, operation or "", int(added or 0), int(deleted or 0), decode(wrote or ""))
