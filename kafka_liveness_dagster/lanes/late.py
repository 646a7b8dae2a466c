"""Which records of a batch are of a window that was told complete already? They are counted on it, and nothing waits.

Told when the batch is in the table, and before its offsets are committed: no crash hides it. A batch that is written
again is counted again.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING

import dagster as dg

from kafka_liveness_dagster.metadata import LATE_RECORDS, late_metadata, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.lanes.in_flight import InFlightWrite
    from kafka_liveness_dagster.settings.windows import Window, Windows


class LateRecords:
    """What one run writes of windows that were told.

    Args:
        context: the run's.
        windows: the asset's.
        group_id: of the live lane.
        again: what this run processes once more: it was in time.
    """

    def __init__(
        self, context: dg.AssetExecutionContext, windows: Windows, group_id: str, again: Sequence[OffsetRange]
    ) -> None:
        self._context, self._windows, self._group_id, self._again = context, windows, group_id, again

    def tell(self, one: InFlightWrite, since: float = 0.0) -> float:
        """Tell what of a written batch is of windows that were told; of those that end after ``since``.

        Returns:
            When the newest window ends that was told by now, in seconds since the epoch.
        """
        frame = one.frame
        if frame is None or any(r.overlaps(other) for r in one.batch.ranges for other in self._again):
            return since
        since, oldest = max(since, self._windows.begin), frame.oldest_ms()
        if oldest is not None and oldest >= 1000 * (time.time() - self._windows.allowed_lateness_seconds):
            return since
        until = max(since, self._windows.told_until(self._context.instance))
        if until > since and (oldest is None or oldest < 1000 * until):
            with one.job:
                found = frame.counted_by_time(since, until)
            self._tell(found, one.batch.ranges)
        return until

    def _tell(self, found: Sequence[tuple[str, int, float, int]], ranges: Sequence[OffsetRange]) -> None:
        counts: dict[Window, int] = defaultdict(int)
        where: dict[Window, set[tuple[str, int]]] = defaultdict(set)
        for topic, partition, moment, count in found:
            window = self._windows.at(moment)
            counts[window] += count
            where[window].add((topic, partition))
        for window, count in counts.items():
            total = count + self._told_before(window.key)
            late = [r for r in ranges if tuple(r.topic_partition) in where[window]]
            self._context.log.warning("%s of %s came after it was told complete", number(count, "record"), window)
            self._context.log_event(
                dg.AssetObservation(
                    self._windows.key,
                    partition=window.key,
                    description=f"{number(count, 'record')} came after it was told complete, {total:,} in all",
                    metadata=late_metadata(self._group_id, total, count, late),
                )
            )

    def _told_before(self, key: str) -> int:
        asked = dg.AssetRecordsFilter(asset_key=self._windows.key, asset_partitions=[key])
        records = self._context.instance.fetch_observations(asked, limit=1).records
        before = records[0].asset_observation if records else None
        told = before.metadata.get(LATE_RECORDS) if before else None
        return told.value or 0 if isinstance(told, dg.IntMetadataValue) else 0
