"""The Spark queries of the audit: snapshots of the table, its rows, records of the topic. Never writes.

``compare`` reads every row and every record; what comes back is a few numbers a partition, however many offsets are
found. ``history`` reads metadata only, with one query, and never a row; ``spark.table.ledger`` reads as little as
a writer needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from kafka_liveness_dagster.audit.rows import RowFindings, Stretch, joined
from kafka_liveness_dagster.audit.snapshots import Write
from kafka_liveness_dagster.core.errors import first_line
from kafka_liveness_dagster.core.ledger import Ledger, Snapshot, lineage, read_ledger, since_of
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.spark.connect.connection import line_of
from kafka_liveness_dagster.spark.error_classification import unreadable
from kafka_liveness_dagster.spark.errors import TableUnreadableError
from kafka_liveness_dagster.spark.source import read
from kafka_liveness_dagster.spark.table.ledger import HAD, SINCE, WROTE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, Row, SparkSession

    from kafka_liveness_dagster.spark.table.table import IcebergTable


_STRETCHES = 64
"""Of each partition's log: what is found is told by the stretch it lies in."""
_COMPARED = """
WITH held AS (
  SELECT topic, partition, offset, sum(n) AS rows, sum(n - 1) AS again
  FROM (SELECT topic, partition, offset, xxhash64(to_json(struct(*))) AS print, count(*) AS n FROM {rows}
        GROUP BY topic, partition, offset, print)
  GROUP BY topic, partition, offset),
judged AS (
  SELECT topic, partition, offset, rows, least(greatest((offset - life_start) DIV step, -1), {stretches}) AS stretch,
    array_compact(array(
      CASE WHEN rows > 0 THEN 'rows' END,
      CASE WHEN rows > 0 AND NOT done AND offset >= life_start THEN 'outside' END,
      CASE WHEN rows > 0 AND recorded IS NULL AND offset >= read_start
        AND (offset < read_end OR offset >= log_end) THEN 'unrecorded' END,
      CASE WHEN rows IS NULL AND done AND offset < committed THEN 'without_rows' END,
      CASE WHEN again > 0 THEN 'doubled' END)) AS kinds
  FROM (
    SELECT seen.*, scope.*EXCEPT(topic, partition), spans.start IS NOT NULL AS done
    FROM (SELECT * FROM held FULL OUTER JOIN {records} USING (topic, partition, offset)) seen
    JOIN {scope} scope USING (topic, partition)
    LEFT JOIN {spans} spans ON spans.topic = seen.topic AND spans.partition = seen.partition
      AND seen.offset >= spans.start AND seen.offset < spans.end))
SELECT topic, partition, kind, stretch, count(*) AS offsets, min(offset), max(offset), sum(rows)
FROM (SELECT *, explode(kinds) AS kind FROM judged) GROUP BY topic, partition, kind, stretch
"""


@dataclass(frozen=True)
class Scope:
    """What is compared of one partition.

    Attributes:
        start: the first offset that the group answers for.
        committed: above it nothing is expected.
        done: what some witness says is done.
        log: log start and log end, asked after the table.
        compacted: as its topic's cleanup.policy says.
    """

    start: int
    committed: int
    done: tuple[Span, ...]
    log: Span
    compacted: bool = False

    @property
    def records(self) -> Span:
        """The offsets whose records are read."""
        last = max((span.end for span in self.done), default=0)
        return Span(max(self.start, self.log.start), min(self.log.end, max(self.committed, last)))


def compare(
    session: SparkSession,
    table: IcebergTable,
    snapshot_id: int,
    scopes: Mapping[TopicPartition, Scope],
    kafka_options: Mapping[str, str],
) -> dict[TopicPartition, RowFindings]:
    """What the rows of one snapshot say, beside what is done and what the topic has.

    Raises:
        TableUnreadableError: Spark could not read the records, or the rows.
    """
    try:
        found = _query(session, table.at(session, snapshot_id), scopes, kafka_options).collect()
    except PySparkException as error:
        raise unreadable(error, table.name) or TableUnreadableError(
            f"the rows of {table.name} could not be compared with their records ({first_line(error)[:300]}): "
            "when retention deleted records meanwhile, or the snapshot was expired, audit again; else look at Spark's "
            "log"
        ) from error
    rows: dict[TopicPartition, list[Row]] = {tp: [] for tp in scopes}
    for row in found:
        rows[TopicPartition(row[0], row[1])].append(row)
    return {tp: _findings(rows[tp], scope) for tp, scope in scopes.items()}


def _query(
    session: SparkSession, rows: DataFrame, scopes: Mapping[TopicPartition, Scope], kafka_options: Mapping[str, str]
) -> DataFrame:
    topics = ", ".join(f"'{topic}'" for topic in sorted({tp.topic for tp in scopes}))  # Kafka's: no quotes in them
    rows_of_scope = [(*tp, s.start, *s.records, s.log.end, s.committed, _step(s)) for tp, s in scopes.items()]
    columns = (
        "topic string, partition int, life_start long, read_start long, read_end long, log_end long, committed long, "
        "step long"
    )
    spans = [(*tp, *span) for tp, scope in scopes.items() for span in scope.done]
    return session.sql(
        _COMPARED,
        rows=rows.where(f"topic IN ({topics})"),
        records=_records(session, scopes, kafka_options),
        scope=session.createDataFrame(rows_of_scope, columns),
        spans=session.createDataFrame(spans, "topic string, partition int, start long, end long"),
        stretches=_STRETCHES,
    )


def _records(
    session: SparkSession, scopes: Mapping[TopicPartition, Scope], kafka_options: Mapping[str, str]
) -> DataFrame:
    ranges = [OffsetRange(*tp, *scope.records) for tp, scope in scopes.items() if scope.records.size > 0]
    if not ranges:
        return session.sql("SELECT '' AS topic, 0 AS partition, 0L AS offset, 1 AS recorded LIMIT 0")
    return read(session, ranges, kafka_options).selectExpr("topic", "partition", "offset", "1 AS recorded")


def _step(scope: Scope) -> int:
    reached = max(scope.committed, scope.log.end, *(span.end for span in scope.done), scope.start)
    return max(1, -(-(reached - scope.start) // _STRETCHES))


def _findings(found: Iterable[Row], scope: Scope) -> RowFindings:
    kinds: dict[str, list[Stretch]] = {}
    rows = 0
    for _, _, kind, _, offsets, first, last, held in found:
        kinds.setdefault(kind, []).append(Stretch(first, last + 1, offsets))
        rows += held if kind == "rows" else 0
    kinds.pop("rows", None)
    return RowFindings(rows, **{kind: joined(ranges) for kind, ranges in kinds.items()}, compacted=scope.compacted)


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
    return History(snapshot_id, read_ledger(snapshots, found), writes)


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
