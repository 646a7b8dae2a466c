"""What do the summaries of a table's snapshots say of offsets? Queries of its metadata, as few texts as will do.

Never tells what follows from them: that is ``spark.ledger``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from kafka_liveness_dagster.core.ledger import Snapshot
from kafka_liveness_dagster.core.ledger_text import since_of
from kafka_liveness_dagster.spark.failed import NOT_FOUND

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.spark.table import IcebergTable

WROTE, HAD, SINCE = (f"kafka-liveness.{word}" for word in ("written", "total", "total-as-of"))
NEWEST = 128
"""Snapshots that ``newest`` gives: writers sum up more often than that."""
_TEXTS = f"SELECT snapshot_id, parent_id, summary['{WROTE}'], summary['{HAD}'], summary['{SINCE}'] FROM {{}}"


def newest(session: SparkSession, table: IcebergTable) -> dict[int, Snapshot]:
    """The last ``NEWEST`` snapshots that were committed, those that were rolled away too."""
    return _found(session, table, f"{_TEXTS} ORDER BY committed_at DESC LIMIT {NEWEST}")


def without_texts(session: SparkSession, table: IcebergTable) -> dict[int, Snapshot]:
    """All snapshots there are, without what they wrote and had."""
    return _found(session, table, f"SELECT snapshot_id, parent_id, '', '', summary['{SINCE}'] FROM {{}}")


def of(session: SparkSession, table: IcebergTable, snapshot_ids: Iterable[int]) -> dict[int, Snapshot]:
    """Those of these snapshots that are there."""
    wanted = ", ".join(map(str, snapshot_ids))
    return _found(session, table, f"{_TEXTS} WHERE snapshot_id IN ({wanted})") if wanted else {}


def _found(session: SparkSession, table: IcebergTable, sql: str) -> dict[int, Snapshot]:
    try:
        rows = session.sql(sql.format(f"{table.quoted}.`snapshots`")).collect()
    except AnalysisException as error:
        if error.getCondition() == NOT_FOUND:
            return {}
        raise
    return {
        one: Snapshot(one, parent, wrote or "", had or "", since_of(one, since))
        for one, parent, wrote, had, since in rows
    }
