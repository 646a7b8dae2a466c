"""Count late records: records of windows that were already marked complete. Never delays a window.

They are reported after the batch is in the table, and before its offsets are committed, so that no crash
hides them. A batch that is written again is counted again. If a run dies in between, the run that recovers
its rows counts them before it commits them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import dagster as dg

from kafka_liveness_dagster.core.hidden_values import error_text
from kafka_liveness_dagster.core.names import format_count, join_some
from kafka_liveness_dagster.metadata import LATE_RECORDS, late_metadata
from kafka_liveness_dagster.runs.storage import NEEDED_SECONDS, call_with_retries, storage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.lanes.in_flight import InFlightWrite
    from kafka_liveness_dagster.settings.windows import Window, Windows
    from kafka_liveness_dagster.spark.transform import TransformedBatch

_T = TypeVar("_T")


class _StorageCalls(NamedTuple):
    """Calls to Dagster's storage, with their longest wait and the state of the data for an error."""

    data_state: str
    seconds: float | None

    def call(self, ask: Callable[[], _T]) -> _T:
        return call_with_retries(ask, "the count of late records", self.data_state, seconds=self.seconds)


class LateRecords:
    """The late records of one run.

    Args:
        context: context of the run.
        windows: windows of the asset.
        group_id: the live lane's group.
        again: ranges that this run reprocesses; their records were in time.
        recovery_seconds: longest time to count the late records of a dead run.
    """

    def __init__(
        self,
        context: dg.AssetExecutionContext,
        windows: Windows,
        group_id: str,
        again: Sequence[OffsetRange],
        recovery_seconds: float = 60.0,
    ) -> None:
        self._context = context
        self._windows = windows
        self._group_id = group_id
        self._reprocessed = again
        self._recovery_seconds = recovery_seconds

    def report(
        self, one: InFlightWrite, batch: Batch, since: float = 0.0, wait_seconds: float | None = None
    ) -> float:
        """Report the late records of a written batch, for complete windows that end after ``since``.

        Args:
            one: write of the batch.
            batch: the part of it that is in the table.
            since: end of the newest window that was reported before.
            wait_seconds: longest wait for Dagster's storage; at most half of the batch's deadline by default.

        Returns:
            The end of the newest complete window, in seconds since the epoch.

        Raises:
            DagsterStorageError: the storage failed all the time. The batch is not committed.
        """
        since = max(since, self._windows.begin)
        ranges = self._without_reprocessed(batch.processed)
        if one.frame is None or not ranges:
            return since
        oldest = one.frame.oldest_ms()
        if oldest is not None and oldest >= 1000 * self._windows.window_at(time.time()).begin:
            return since  # all records are of the current window or later, as in nearly all batches
        seconds = min(NEEDED_SECONDS, batch.deadline_seconds / 2) if wait_seconds is None else wait_seconds
        storage = _StorageCalls(
            f"{batch} is in the table and not committed, so it is retried, and its rows are replaced", seconds
        )
        until = max(since, storage.call(lambda: self._windows.materialized_until(self._context.instance)))
        if until > since and (oldest is None or oldest < 1000 * until):
            with one.job:
                found = one.frame.for_ranges(ranges).count_by_time(since, until)
            self._report_windows(found, ranges, storage)
        return until

    def report_after_commit(self, one: InFlightWrite, batch: Batch, since: float) -> None:
        """Report late records of windows that were marked complete during the commit of the batch.

        Never raises, because the batch is committed.
        """
        try:
            self.report(one, batch, since, wait_seconds=0.0)
        except Exception as error:  # noqa: BLE001 - of Spark, or of Dagster's storage
            storage_of(self._context).log.warning(
                "Could not count late records of %s: %s", batch, error_text(error)
            )

    def report_recovered(self, frame: TransformedBatch, deleted: Sequence[OffsetRange]) -> None:
        """Count the late records of a run that died after it wrote them, perhaps before it counted them.

        Args:
            frame: ranges that are in the table and in no commit log; their records are read from Kafka again.
            deleted: further such ranges, whose records the broker has deleted.

        Raises:
            SparkNotRespondingError: Spark did not respond in time. Nothing was committed, and the next run
                counts them.
            DagsterStorageError: Dagster's storage failed all the time, with the same result.
        """
        from kafka_liveness_dagster.spark.connect.connection import connection_of  # noqa: PLC0415
        from kafka_liveness_dagster.spark.connect.job import SparkJob  # noqa: PLC0415 - pyspark stays lazy

        storage = _StorageCalls(
            "nothing of the dead run's ranges was committed, and the next run commits them", None
        )
        since = self._windows.begin
        until = storage.call(lambda: self._windows.materialized_until(self._context.instance))
        if until <= since:
            return
        if unknown := self._without_reprocessed(deleted):
            storage_of(self._context).log.warning(
                "%s (%s) may have late records that are not counted: a run died after it wrote them, and "
                "the broker has deleted their records since",
                format_count(sum(r.size for r in unknown), "offset"),
                join_some(unknown),
            )
        if ranges := self._without_reprocessed(frame.ranges):
            silent = connection_of(frame.session).abort_after(
                self._recovery_seconds, "waiting for the count of late records of a dead run"
            )
            with SparkJob(frame.session), silent:
                found = frame.for_ranges(ranges).count_by_time(since, until)
            self._report_windows(found, ranges, storage)

    def _without_reprocessed(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges without those that this run reprocesses."""
        return [r for r in ranges if not any(r.overlaps(other) for other in self._reprocessed)]

    def _report_windows(
        self,
        found: Sequence[tuple[str, int, float, int]],
        ranges: Sequence[OffsetRange],
        storage: _StorageCalls,
    ) -> None:
        counts: dict[Window, int] = defaultdict(int)
        where: dict[Window, set[tuple[str, int]]] = defaultdict(set)
        told = storage.call(lambda: self._context.instance.get_materialized_partitions(self._windows.key))
        for topic, partition, moment, count in found:
            window = self._windows.window_at(moment)
            if window.key in told:
                counts[window] += count
                where[window].add((topic, partition))
        for window, count in counts.items():
            total = count + storage.call(partial(self._previous_count, window.key))
            late = [r for r in ranges if tuple(r.topic_partition) in where[window]]
            storage_of(self._context).log.warning(
                "%s of %s arrived after it was marked complete", format_count(count, "record"), window
            )
            event = dg.AssetObservation(
                self._windows.key,
                partition=window.key,
                description=(
                    f"{format_count(count, 'record')} arrived after it was marked complete, {total:,} in all"
                ),
                metadata=late_metadata(self._group_id, total, count, ranges=late),
            )
            # Stored before the commit, so that no crash hides it
            storage.call(partial(self._context.log_event, event))

    def _previous_count(self, key: str) -> int:
        asked = dg.AssetRecordsFilter(asset_key=self._windows.key, asset_partitions=[key])
        records = self._context.instance.fetch_observations(asked, limit=1).records
        before = records[0].asset_observation if records else None
        told = before.metadata.get(LATE_RECORDS) if before else None
        return told.value or 0 if isinstance(told, dg.IntMetadataValue) else 0
