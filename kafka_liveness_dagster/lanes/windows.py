"""What does a run do that somebody starts for a window of time? It processes the window again, whole, by today's code.

What is told of a window while nobody asks for it is the sensor's; a run changes rows, and neither commit log.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.names import listed
from kafka_liveness_dagster.core.witnesses import DataExpiredError
from kafka_liveness_dagster.lanes.hidden_values import without_values
from kafka_liveness_dagster.lanes.lanes import LEFT_ALONE, catch_up
from kafka_liveness_dagster.lanes.pipeline import Pipeline
from kafka_liveness_dagster.metadata import merged, number, window_metadata
from kafka_liveness_dagster.runs.selection import materializes, require_partition
from kafka_liveness_dagster.runs.signs import SignsOfLife
from kafka_liveness_dagster.runs.storage import needed, storage_of
from kafka_liveness_dagster.runs.tags import AT_BEGIN, AT_END, lane_tags
from kafka_liveness_dagster.telemetry.exporters import exported

if TYPE_CHECKING:
    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.lanes.lane import Transform
    from kafka_liveness_dagster.settings.declarations import KafkaAssetSettings
    from kafka_liveness_dagster.settings.windows import Window, Windows


class IncompleteWindowError(KafkaLivenessError):
    """A window of time is to be processed again whose records were not all processed once."""


def run_windows(
    asset: KafkaAssetSettings, windows: Windows, context: dg.AssetExecutionContext, transform: Transform
) -> None:
    """Process the windows of a run's partitions again: rows of exactly their offsets are replaced.

    A run that materializes the live asset, too, or whose backfill does, processes none: windows that were marked
    complete stay so.

    Raises:
        IncompleteWindowError: something of them is owed, or not read yet: nothing was touched.
        DataExpiredError: the broker has deleted records that may be theirs: nothing was touched.
    """
    require_partition(context, asset.partitioned_keys)
    if materializes(context, asset.key):
        _leave_alone(asset, windows, context)
        return
    with without_values(), SignsOfLife(context, lane_tags(asset.group_id, "catch-up")), exported():
        cluster = getattr(context.resources, asset.resources.kafka).cluster()
        keys = needed(lambda: context.partition_keys, "the keys of the run", AT_BEGIN)
        asked = [windows.of_key(key) for key in keys]
        found = {window: _offsets(asset, windows, cluster, window) for window in asked}
        ranges = merged(r for several in found.values() for r in several)
        storage_of(context).log.info("%s again: %s", number(len(asked), "window"), listed(ranges) or "no records")
        pipeline = Pipeline.of(asset, context, transform, "catch-up", again=ranges)
        done = catch_up(asset, context, pipeline, ranges, again=ranges) if ranges else None
        for window, of_window in found.items():
            told = window_metadata(asset.group_id, of_window)
            numbers = done.tally.of_run(len(asked)) if done is not None else {}
            storage_of(context).metadata_of(window.key, {**told, **numbers, **pipeline.spark.links()}, AT_END)


def _leave_alone(asset: KafkaAssetSettings, windows: Windows, context: dg.AssetExecutionContext) -> None:
    """Materialize the windows that are marked complete with what they had: a backfill waits for these events.

    Raises:
        IncompleteWindowError: others of the run's windows are not marked complete; the sensor marks them.
    """
    storage, instance, keys = storage_of(context), context.instance, context.partition_keys
    marked = needed(partial(instance.get_materialized_partitions, windows.key), "the windows of the asset", AT_BEGIN)
    known = {
        key: needed(partial(_metadata, windows, instance, key), f"the metadata of {key}", AT_BEGIN)
        for key in keys
        if key in marked
    }
    if known:
        storage.log.info(LEFT_ALONE, listed([*known]), "marked complete", asset.key.to_user_string())
    if others := [key for key in keys if key not in marked]:
        for key, metadata in known.items():  # a run that fails materializes nothing by itself
            event = dg.AssetMaterialization(windows.key, partition=key, metadata=metadata)
            storage.event(event, f"the materialization of {key}")
        raise IncompleteWindowError(
            f"Windows not marked complete ({len(others):,}): {listed(others)}. Nothing was processed, and windows "
            f"that are marked complete stay so. The sensor {asset.identifier}_sensor marks a window once all its "
            f"records are in {asset.target}, and none before the group's first record. Fix: none is needed; *windows* "
            "in the events of the topic's asset says what the next window waits for"
        )
    for key, metadata in known.items():
        storage.metadata_of(key, metadata, AT_BEGIN)


def _metadata(windows: Windows, instance: dg.DagsterInstance, key: str) -> dict[str, Any]:
    """Return what the newest materialization of a window says."""
    asked = dg.AssetRecordsFilter(asset_key=windows.key, asset_partitions=[key])
    found = instance.fetch_materializations(asked, limit=1).records
    newest = found[0].asset_materialization if found else None
    return dict(newest.metadata) if newest else {}


def _offsets(asset: KafkaAssetSettings, windows: Windows, cluster: Cluster, window: Window) -> tuple[OffsetRange, ...]:
    """The offsets of one window, all of them processed.

    Raises:
        IncompleteWindowError: some are not.
        DataExpiredError: nobody knows them all.
    """
    from kafka_liveness_dagster.kafka.processed import processed  # noqa: PLC0415 - confluent_kafka stays lazy

    until = window.end + windows.allowed_lateness_seconds
    if until > time.time():
        raise IncompleteWindowError(
            f"records of {window} may come until {_iso(until)}: nothing was processed; materialize it after that"
        )
    try:
        found = processed(cluster, asset.group_id, asset.topics, round(1000 * window.begin), round(1000 * until))
    except DataExpiredError as error:
        raise DataExpiredError(
            f"{error}: {window} cannot be processed again as a whole. Its rows stay as they are; "
            f"`kafka-liveness replay {asset.group_id} --from {_iso(window.begin)} --to {_iso(window.end)} "
            "--allow-expired` processes the records that are still there"
        ) from None
    if found.owed or found.ahead:
        remedies = [
            f"materialize their partitions of {asset.crash_lag_key.to_user_string()}; dead letters among them need "
            f"another transform, or `kafka-liveness write-off {asset.group_id}`"
            if found.owed
            else "",
            "a live run reads the others" if found.ahead else "",
        ]
        raise IncompleteWindowError(
            f"{window} is not complete: {sum(r.size for r in found.owed):,} offsets are owed "
            f"({listed(found.owed) or 'none'}), {found.ahead:,} are not read yet. Nothing was processed again. "
            f"Fix: {'; '.join(filter(None, remedies))}. The sensor marks the window complete then"
        )
    return found.ranges


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).isoformat()
