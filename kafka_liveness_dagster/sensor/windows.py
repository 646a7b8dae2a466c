"""Mark time windows complete at a sensor tick, and update windows that got late records.

Windows are marked in order, each once. A repeated tick marks the same windows, and Dagster has the earlier
ones. Never marks a window while the table cannot be read.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import dagster as dg

from kafka_liveness_dagster.core.names import format_count, join_some
from kafka_liveness_dagster.core.windows import (
    JudgedWindow,
    WindowStatus,
    are_processed,
    has_records,
    judge_window,
)
from kafka_liveness_dagster.metadata import LATE_RECORDS, late_ranges, window_metadata
from kafka_liveness_dagster.sensor.cursor import WindowProgress

if TYPE_CHECKING:
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.sensor.cursor import GroupCursor
    from kafka_liveness_dagster.sensor.observation import GroupObservation
    from kafka_liveness_dagster.settings.windows import Window, Windows

_MAX_WINDOWS = 100  # in one tick, because each costs a row and two requests
_MAX_SECONDS = 10.0  # in one tick; Dagster ends a tick after 60 s


@dataclass(frozen=True, kw_only=True)
class WindowMaterializer:
    """The windows of one group.

    Attributes:
        target: table with the rows.
    """

    windows: Windows
    group_id: str
    target: str

    def load_progress(self, instance: dg.DagsterInstance, cursor: GroupCursor, now: float) -> WindowProgress:
        """Return the progress from the cursor, or from Dagster if the cursor is reset or of other windows."""
        if cursor.windows_identity == self.windows.identity and cursor.windows_done_until <= now:
            numbers = (
                cursor.windows_done_until,
                cursor.windows_watched_since,
                cursor.last_late_event,
                cursor.windows_identity,
            )
            return WindowProgress((), *numbers, first_window_start=cursor.first_window_start)
        told = instance.get_materialized_partitions(self.windows.key)
        until = 0.0
        for window in self.windows.ended_windows(self.windows.begin, now, len(told)):
            if window.key not in told:
                break
            until = window.end
        newest = self.windows.materialized_until(instance)
        return WindowProgress(
            (),
            until,
            newest if newest <= now and told else 0.0,
            last_late_event=0,
            identity=self.windows.identity,
        )

    def is_due(self, progress: WindowProgress, now: float) -> bool:
        """Return whether a window is to be judged, so that the table must be read."""
        return bool(self._due_windows(progress.done_until, now))

    def materialize_complete(
        self,
        cluster: Cluster,
        instance: dg.DagsterInstance,
        observed: GroupObservation,
        progress: WindowProgress,
        *,
        now: float,
        unavailable_reason: str,
    ) -> WindowProgress:
        """Mark the ended windows that are complete, and return the new progress.

        Args:
            cluster: finds offsets by time.
            instance: Dagster instance, with the earlier materializations.
            observed: the group and its table, read before the cluster is queried here.
            progress: progress of the last tick.
            now: current time in seconds since the epoch.
            unavailable_reason: why the table could not be read; then no window is marked.
        """
        at_work = all(one.committed is not None or one.log_end == 0 for one in observed.snapshot.partitions)
        watched = progress.watched_since or (now if at_work else 0.0)
        events: list[dg.AssetMaterialization] = []
        unknown = 0
        said = ""
        told_to = progress.done_until
        first = progress.first_window_start
        due = deque(self._due_windows(told_to, now))
        give_up_at = time.monotonic() + _MAX_SECONDS
        known = instance.get_materialized_partitions(self.windows.key) if due else set()
        # Limited, because Dagster ends a tick that is too long, and stores nothing of it
        while due and time.monotonic() <= give_up_at:
            window = due.popleft()
            if window.key in known:
                told_to = window.end
                continue
            found = self._judge(cluster, observed, window, watched=watched or now)
            if found.status is WindowStatus.BEFORE:
                if not has_records(
                    observed.snapshot.partitions, {tp: one.log_end for tp, one in observed.partitions.items()}
                ):
                    said = "waiting for the first record"
                    break
                told_to = first = self._first_begin(cluster, observed, window, now=now)
                due = deque(self._due_windows(told_to, now))
                continue
            if unavailable_reason or found.status is WindowStatus.WAITING:
                waiting_for = f"the table: {unavailable_reason}" if unavailable_reason else found.waiting_for
                said = f"{window} waits for {waiting_for}"
                break
            told_to = window.end
            unknown += found.status is WindowStatus.UNKNOWN
            if found.status is WindowStatus.COMPLETE and (self.windows.mark_empty or not found.is_empty):
                events.append(self._materialization(window, found, now))
        again, late_seen, waiting = self._late_updates(instance, observed, progress.last_late_event)
        words = [
            f"marked complete up to {_format_time(told_to)}" if told_to else "",
            f"windows before {_format_time(first)} are not marked complete: the group's first record is later"
            if first
            else "",
            f"{unknown:,} windows up to there are not marked complete: the group did not have all of them"
            if unknown
            else "",
            said,
            f"waiting for late records in {join_some(waiting)}" if waiting else "",
        ]
        said = "; ".join(filter(None, words))
        return WindowProgress(
            [*events, *again],
            told_to,
            watched,
            last_late_event=late_seen,
            identity=self.windows.identity,
            status_text=said,
            first_window_start=first,
        )

    def _due_windows(self, told_to: float, now: float) -> list[Window]:
        return self.windows.ended_windows(told_to, now - self.windows.allowed_lateness_seconds, _MAX_WINDOWS)

    def _first_begin(self, cluster: Cluster, look: GroupObservation, window: Window, now: float) -> float:
        """Return the begin of the first window that does not end before the group's first record.

        Bisects by Kafka's index: 16 requests pass the hours of years. Judging each hour would take one tick
        per hundred.

        Args:
            cluster: finds offsets by time.
            look: the group.
            window: it ends before the first record.
            now: current time in seconds since the epoch.
        """
        from kafka_liveness_dagster.kafka.timestamps import window_ends  # noqa: PLC0415 - confluent_kafka stays lazy

        lateness = self.windows.allowed_lateness_seconds
        before = window.end
        behind = now - lateness
        while (middle := self.windows.window_at((before + behind) / 2).begin) > before:
            ends = window_ends(cluster, list(look.partitions), round(1000 * (middle + lateness)))
            before, behind = (
                (before, middle) if has_records(look.snapshot.partitions, ends) else (middle, behind)
            )
        return before

    def _judge(
        self, cluster: Cluster, look: GroupObservation, window: Window, watched: float
    ) -> JudgedWindow:
        from kafka_liveness_dagster.kafka.timestamps import window_bounds  # noqa: PLC0415 - confluent_kafka stays lazy

        until = window.end + self.windows.allowed_lateness_seconds
        begins, ends = window_bounds(
            cluster, list(look.partitions), round(1000 * window.begin), round(1000 * until)
        )
        return judge_window(
            look.snapshot.partitions, begins, ends, started_in_group_lifetime=window.begin >= watched
        )

    def _materialization(self, window: Window, found: JudgedWindow, now: float) -> dg.AssetMaterialization:
        offsets = format_count(sum(r.size for r in found.ranges), "offset")
        return dg.AssetMaterialization(
            self.windows.key,
            partition=window.key,
            description=f"every record up to {_format_time(window.end)} is in {self.target}: {offsets}",
            metadata={
                **window_metadata(self.group_id, found.ranges),
                "complete_at": dg.MetadataValue.timestamp(now),
                LATE_RECORDS: 0,
                **({"written_off_offsets": found.written_off} if found.written_off else {}),
            },
        )

    def _late_updates(
        self, instance: dg.DagsterInstance, look: GroupObservation, seen: int
    ) -> tuple[list[dg.AssetMaterialization], int, list[str]]:
        """Return updates of windows that got late records since they were marked, and those that wait.

        A window waits until its late records are in the table.
        """
        if not self.windows.reopen_on_late:
            return [], seen, []
        asked = dg.AssetRecordsFilter(asset_key=self.windows.key, after_storage_id=seen or None)
        late: dict[str, dg.EventLogRecord] = {}
        waiting: dict[str, None] = {}
        for record in instance.fetch_observations(asked, limit=_MAX_WINDOWS, ascending=True).records:
            key = record.partition_key
            ranges = late_ranges(record.asset_observation)
            if key is not None and ranges and not are_processed(look.snapshot.partitions, ranges):
                waiting[key] = None
            elif key is not None and ranges:
                late[key] = record
            if not waiting:
                seen = record.storage_id
        again = (
            self._updated_materialization(instance, key, one)
            for key, one in late.items()
            if key not in waiting
        )
        return [event for event in again if event is not None], seen, list(waiting)

    def _updated_materialization(
        self, instance: dg.DagsterInstance, key: str, late: dg.EventLogRecord
    ) -> dg.AssetMaterialization | None:
        """Return a window's materialization as before, with its late records added.

        None if they are already added, or the window was never marked.
        """
        asked = dg.AssetRecordsFilter(asset_key=self.windows.key, asset_partitions=[key])
        found = instance.fetch_materializations(asked, limit=1).records
        before = found[0].asset_materialization if found and found[0].storage_id < late.storage_id else None
        if before is None or late.asset_observation is None:
            return None
        return dg.AssetMaterialization(
            self.windows.key,
            partition=key,
            description="marked complete again: late records arrived",
            metadata={**before.metadata, LATE_RECORDS: late.asset_observation.metadata[LATE_RECORDS]},
        )


def _format_time(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
