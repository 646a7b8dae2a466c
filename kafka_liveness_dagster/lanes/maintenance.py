"""What does a run of a table's maintenance do? It keeps the table small beside both lanes, and tells what it did."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import dagster as dg

from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.table_layout import settled
from kafka_liveness_dagster.lanes.batch_reporting import TELL_EVERY_SECONDS, ProgressLog
from kafka_liveness_dagster.metadata import number
from kafka_liveness_dagster.runs.storage import storage_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.settings.asset import KafkaAssetSettings
    from kafka_liveness_dagster.settings.groups import Maintenance as Settings
    from kafka_liveness_dagster.spark.table.maintenance import Figures, Maintenance


_SILENT_SECONDS = 120.0
"""Spark tells every few seconds that it is at work, however long that takes."""

_NOT_DELETED = "The table has gc.enabled=false. No snapshots were expired, and no orphan files were removed."


def run_maintenance(asset: KafkaAssetSettings, context: dg.OpExecutionContext) -> None:
    """Compact what is settled, expire old snapshots, remove what nobody has; then show it on the table's asset.

    Raises:
        KafkaLivenessError: Kafka or Spark refused; both lanes go on, and so does the next maintenance.
    """
    from kafka_liveness_dagster.spark.connect.connection import line_of  # noqa: PLC0415
    from kafka_liveness_dagster.spark.connect.job import SparkJob  # noqa: PLC0415 - pyspark stays lazy
    from kafka_liveness_dagster.spark.table.maintenance import Maintenance  # noqa: PLC0415
    from kafka_liveness_dagster.spark.table.table import IcebergTable  # noqa: PLC0415

    kafka, spark = (getattr(context.resources, key) for key in (asset.resources.kafka, asset.resources.spark))
    told, table, log = asset.maintenance, IcebergTable(asset.table or ""), storage_of(context).log
    session = spark.session()
    progress = ProgressLog(f"maintenance of {table.name}", time.monotonic(), TELL_EVERY_SECONDS)

    def reported(completed: int, total: int) -> None:
        if (line := progress.report(completed, total, time.monotonic())) is not None:
            log.info("%s", line)

    silent = line_of(session).unless_silent(_SILENT_SECONDS, f"{table.name} is maintained")
    with SparkJob(session, None, reported), silent:
        if table.current(session) is None:
            log.info("%s has no snapshot yet: nothing to maintain", table.name)
            return
        work = Maintenance(session, table)
        before = work.figures()
        for rewritten, into in work.compact(_settled(kafka.cluster(), asset.group_id, asset.topics), told.min_files):
            if rewritten:
                log.info("compacted %s into %d", number(rewritten, "file"), into)
        work.tidy()
        deleted = _delete(work, told)
        after = work.figures()
    if work.gave_way:
        log.warning("gave way to the lanes' commits %s: what is left is done next time", number(work.gave_way, "time"))
    metadata = {**_shown(before, after, work.gave_way), **deleted}
    storage = storage_of(context)
    storage.event(dg.AssetObservation(asset.name, description="maintained", metadata=metadata), "what was done")
    storage.settle("the maintenance of the table is done, and both lanes are untouched by it")


def _delete(work: Maintenance, told: Settings) -> dict[str, dg.MetadataValue]:
    """Expire snapshots and remove orphan files where the table allows it; give what to show of that."""
    if not work.policy().may_delete:
        return {"not_deleted": dg.MetadataValue.text(_NOT_DELETED)}
    work.expire(time.time(), max_age=told.max_snapshot_age_seconds, max_snapshots=told.max_snapshots)
    if told.orphan_file_age_seconds is None:
        return {}
    removed = work.remove_orphans(time.time(), min_age=told.orphan_file_age_seconds)
    return {"orphan_files_removed": dg.MetadataValue.int(removed)}


def _settled(cluster: Cluster, group_id: str, topics: Sequence[str]) -> list[OffsetRange]:
    """What neither lane writes again, by both commit logs."""
    facts = cluster.facts(group_id, cluster.partitions(topics))
    return [OffsetRange(*tp, *span) for tp, one in facts.items() for span in settled(one.committed, one.outstanding)]


def _shown(before: Figures, after: Figures, conflicts: int) -> dict[str, dg.MetadataValue]:
    """Return each number before and after, and how many rewrites gave way to a lane's commit."""
    numbers: dict[str, dg.MetadataValue] = {
        name: dg.MetadataValue.text(f"{was:,} → {now:,}")
        for name, was, now in zip(before._fields, before, after, strict=True)
    }
    return {**numbers, "commit_conflicts": dg.MetadataValue.int(conflicts)}
