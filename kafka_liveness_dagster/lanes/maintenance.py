"""Run the maintenance of a table concurrently with both lanes, and report the result.

Never rewrites ranges that either lane may still write.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import dagster as dg

from kafka_liveness_dagster.core.names import format_count
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.table_layout import compactable_ranges
from kafka_liveness_dagster.lanes.batch_reporting import PROGRESS_EVERY_SECONDS, BatchProgress
from kafka_liveness_dagster.runs.storage import storage_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.settings.asset import KafkaAssetSettings
    from kafka_liveness_dagster.settings.groups import Maintenance as Settings
    from kafka_liveness_dagster.spark.table.maintenance import TableMaintenance, TableStatistics


MAX_SILENT_SECONDS = 120.0
"""Longest time without a sign of progress; while Spark works, it sends one every few seconds."""

_DELETION_OFF = "The table has gc.enabled=false. No snapshots were expired, and no orphan files were removed."


def run_maintenance(asset: KafkaAssetSettings, context: dg.OpExecutionContext) -> None:
    """Compact finished ranges, expire old snapshots, remove orphan files, and report it on the table's asset.

    Raises:
        KafkaLivenessError: Kafka or Spark refused; both lanes and the next maintenance are not affected.
    """
    from kafka_liveness_dagster.spark.connect.connection import connection_of  # noqa: PLC0415
    from kafka_liveness_dagster.spark.connect.job import SparkJob  # noqa: PLC0415 - pyspark stays lazy
    from kafka_liveness_dagster.spark.table.maintenance import TableMaintenance  # noqa: PLC0415
    from kafka_liveness_dagster.spark.table.table import IcebergTable  # noqa: PLC0415

    kafka, spark = (getattr(context.resources, key) for key in (asset.resources.kafka, asset.resources.spark))
    told = asset.maintenance
    table = IcebergTable(asset.table or "")
    log = storage_of(context).log
    session = spark.session()
    progress = BatchProgress(f"maintenance of {table.name}", time.monotonic(), PROGRESS_EVERY_SECONDS)

    def reported(completed: int, total: int) -> None:
        if (line := progress.next_line(completed, total, time.monotonic())) is not None:
            log.info("%s", line)

    silent = connection_of(session).abort_if_silent(
        MAX_SILENT_SECONDS, f"waiting for the maintenance of {table.name}"
    )
    with SparkJob(session, None, reported), silent:
        if table.current_snapshot_id(session) is None:
            log.info("%s has no snapshot yet: nothing was maintained", table.name)
            return
        work = TableMaintenance(session, table)
        before = work.statistics()
        for rewritten, into in work.compact(
            _compactable_ranges(kafka.cluster(), asset.group_id, asset.topics), told.min_files
        ):
            if rewritten:
                log.info("Compacted %s into %d", format_count(rewritten, "file"), into)
        work.rewrite_manifests()
        deleted = _delete(work, told)
        after = work.statistics()
    if work.conflicts:
        log.warning(
            "Rewrites gave way to the lanes' commits %s; the next maintenance continues",
            format_count(work.conflicts, "time"),
        )
    metadata = {**_before_and_after(before, after, work.conflicts), **deleted}
    storage = storage_of(context)
    storage.store_event(
        dg.AssetObservation(asset.key, description="maintained", metadata=metadata),
        "the observation of the maintenance",
    )
    storage.flush("the maintenance of the table is done, and both lanes are not affected")


def _delete(work: TableMaintenance, settings: Settings) -> dict[str, dg.MetadataValue]:
    """Expire snapshots and remove orphan files if the table allows it; return the metadata to show."""
    if not work.policy().allows_delete:
        return {"not_deleted": dg.MetadataValue.text(_DELETION_OFF)}
    work.expire(time.time(), max_age=settings.max_snapshot_age_seconds, max_snapshots=settings.max_snapshots)
    if settings.orphan_file_age_seconds is None:
        return {}
    removed = work.remove_orphans(time.time(), min_age=settings.orphan_file_age_seconds)
    return {"orphan_files_removed": dg.MetadataValue.int(removed)}


def _compactable_ranges(cluster: Cluster, group_id: str, topics: Sequence[str]) -> list[OffsetRange]:
    """Return the ranges that neither lane writes again, by both commit logs."""
    states = cluster.partition_states(group_id, cluster.partitions(topics))
    return [
        OffsetRange(*tp, *span)
        for tp, one in states.items()
        for span in compactable_ranges(one.committed, one.outstanding)
    ]


def _before_and_after(
    before: TableStatistics, after: TableStatistics, conflicts: int
) -> dict[str, dg.MetadataValue]:
    """Return each number before and after, and the number of rewrites that a lane's commit prevented."""
    numbers: dict[str, dg.MetadataValue] = {
        name: dg.MetadataValue.text(f"{was:,} → {now:,}")
        for name, was, now in zip(before._fields, before, after, strict=True)
    }
    return {**numbers, "commit_conflicts": dg.MetadataValue.int(conflicts)}
