"""Compare the rows of a table with the records of its topics, in Spark.

``compare_rows`` reads every row and every record. Spark returns a few numbers per partition, however many
offsets it finds. Never writes a row.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from kafka_liveness_dagster.audit.rows import OffsetRun, RowComparison, merge_dense
from kafka_liveness_dagster.core.errors import summary_line
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.spark.error_classification import storage_read_error
from kafka_liveness_dagster.spark.errors import TableUnreadableError
from kafka_liveness_dagster.spark.source import read_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, Row, SparkSession

    from kafka_liveness_dagster.spark.table.table import IcebergTable


_MAX_STRETCHES = 64
"""The stretches into which each partition's log is divided. A finding names its stretch."""
_COMPARISON_QUERY = """
WITH held AS (
  SELECT topic, partition, offset, sum(n) AS rows, sum(n - 1) AS again
  FROM (SELECT topic, partition, offset, xxhash64(to_json(struct(*))) AS print, count(*) AS n FROM {rows}
        GROUP BY topic, partition, offset, print)
  GROUP BY topic, partition, offset),
judged AS (
  SELECT topic, partition, offset, rows,
    least(greatest((offset - life_start) DIV step, -1), {stretches}) AS stretch,
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
class ComparisonScope:
    """The scope of the comparison of one partition.

    Attributes:
        start: the first offset of the group.
        committed: the committed offset; above it no row is expected.
        done: offsets that the ledger or a commit log proves done.
        topic_offsets: log start and log end, read after the table.
        compacted: whether the topic's cleanup.policy includes compact.
    """

    start: int
    committed: int
    done: tuple[Span, ...]
    _: KW_ONLY
    topic_offsets: Span
    compacted: bool = False

    @property
    def records(self) -> Span:
        """The offsets of the records to read."""
        last = max((span.end for span in self.done), default=0)
        return Span(
            max(self.start, self.topic_offsets.start), min(self.topic_offsets.end, max(self.committed, last))
        )


def compare_rows(
    session: SparkSession,
    table: IcebergTable,
    snapshot_id: int,
    scopes: Mapping[TopicPartition, ComparisonScope],
    kafka_options: Mapping[str, str],
) -> dict[TopicPartition, RowComparison]:
    """Compare the rows of one snapshot with the offsets that are done and with the topic's records.

    Returns:
        A comparison for each partition of ``scopes``.

    Raises:
        TableUnreadableError: Spark could not read the records or the rows.
    """
    try:
        found = _comparison_query(
            session, table.rows_at(session, snapshot_id), scopes, kafka_options=kafka_options
        ).collect()
    except PySparkException as error:
        raise storage_read_error(error, table.name) or TableUnreadableError(
            f"The rows of {table.name} could not be compared with their records "
            f"({summary_line(error)[:300]}). No verdict was reached. Fix: audit again if retention deleted "
            "records meanwhile or the snapshot expired; otherwise read Spark's log"
        ) from error
    rows: dict[TopicPartition, list[Row]] = {tp: [] for tp in scopes}
    for row in found:
        rows[TopicPartition(row[0], row[1])].append(row)
    return {tp: _row_comparison(rows[tp], scope) for tp, scope in scopes.items()}


def _comparison_query(
    session: SparkSession,
    rows: DataFrame,
    scopes: Mapping[TopicPartition, ComparisonScope],
    kafka_options: Mapping[str, str],
) -> DataFrame:
    # No escaping: Kafka allows no quotes in the name of a topic
    topics = ", ".join(f"'{topic}'" for topic in sorted({tp.topic for tp in scopes}))
    rows_of_scope = [
        (*tp, s.start, *s.records, s.topic_offsets.end, s.committed, _bucket_size(s))
        for tp, s in scopes.items()
    ]
    columns = (
        "topic string, partition int, life_start long, read_start long, read_end long, log_end long, "
        "committed long, step long"
    )
    spans = [(*tp, *span) for tp, scope in scopes.items() for span in scope.done]
    return session.sql(
        _COMPARISON_QUERY,
        rows=rows.where(f"topic IN ({topics})"),
        records=_read_offsets(session, scopes, kafka_options),
        scope=session.createDataFrame(rows_of_scope, columns),
        spans=session.createDataFrame(spans, "topic string, partition int, start long, end long"),
        stretches=_MAX_STRETCHES,
    )


def _read_offsets(
    session: SparkSession, scopes: Mapping[TopicPartition, ComparisonScope], kafka_options: Mapping[str, str]
) -> DataFrame:
    ranges = [OffsetRange(*tp, *scope.records) for tp, scope in scopes.items() if scope.records.size > 0]
    if not ranges:
        return session.sql("SELECT '' AS topic, 0 AS partition, 0L AS offset, 1 AS recorded LIMIT 0")
    return read_ranges(session, ranges, kafka_options).selectExpr(
        "topic", "partition", "offset", "1 AS recorded"
    )


def _bucket_size(scope: ComparisonScope) -> int:
    reached = max(scope.committed, scope.topic_offsets.end, *(span.end for span in scope.done), scope.start)
    return max(1, -(-(reached - scope.start) // _MAX_STRETCHES))


def _row_comparison(found: Iterable[Row], scope: ComparisonScope) -> RowComparison:
    kinds: dict[str, list[OffsetRun]] = {}
    rows = 0
    for _, _, kind, _, offsets, first, last, held in found:
        kinds.setdefault(kind, []).append(OffsetRun(first, last + 1, offsets))
        rows += held if kind == "rows" else 0
    kinds.pop("rows", None)
    return RowComparison(
        rows, **{kind: merge_dense(ranges) for kind, ranges in kinds.items()}, compacted=scope.compacted
    )
