"""Which windows of time are complete now, and which have to be told again? What a tick tells of them.

In order, each once: a tick that is repeated tells what it told, and Dagster has the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

import dagster as dg

from kafka_liveness_dagster.core.completeness import Completeness, JudgedWindow, all_done, judged
from kafka_liveness_dagster.metadata import LATE_RECORDS, late_ranges, number, window_metadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.sensor.cursor import GroupCursor
    from kafka_liveness_dagster.sensor.look import GroupLook
    from kafka_liveness_dagster.settings.windows import Window, Windows

_MOST = 100  # of one tick: each is a row, and two requests


class ToldWindows(NamedTuple):
    """What a tick tells of windows.

    Attributes:
        told_to: the end of the last window that was dealt with, in seconds since the epoch.
        late_seen: the last event of late records that was dealt with.
        said: how far the windows are, and what the next one waits for.
    """

    events: Sequence[dg.AssetMaterialization]
    told_to: float
    late_seen: int
    said: str


NO_WINDOWS = ToldWindows((), 0.0, 0, "")


@dataclass(frozen=True, kw_only=True)
class WindowWatch:
    """The windows of one group, watched.

    Attributes:
        target: where the rows are.
    """

    windows: Windows
    group_id: str
    target: str

    def told_to(self, instance: dg.DagsterInstance, cursor: GroupCursor) -> float:
        """Up to where they were dealt with; a cursor that was reset asks Dagster."""
        return cursor.told_to or max(self.windows.told_until(instance), self.windows.begin)

    def is_due(self, told_to: float, now: float) -> bool:
        """Whether there is a window to judge: then the table has to be asked."""
        return bool(self._due(told_to, now, 1))

    def tell(
        self,
        cluster: Cluster,
        instance: dg.DagsterInstance,
        look: GroupLook,
        cursor: GroupCursor,
        *,
        told_to: float,
        now: float,
        cannot_tell: str,
    ) -> ToldWindows:
        """Judge the windows that are over.

        Args:
            cluster: knows which offsets are of a time.
            instance: knows what was told.
            look: the group, asked before the cluster is, with what its table says.
            cursor: of the tick before.
            told_to: up to where windows were dealt with.
            now: seconds since the epoch.
            cannot_tell: why the table could not be asked; then nothing is told.
        """
        complete: dict[Window, JudgedWindow] = {}
        said = ""
        for window in self._due(told_to, now, _MOST):
            found = self._judged(cluster, look, window, watched_since=cursor.epoch or now)
            if cannot_tell or found.standing is Completeness.WAITING:
                said = f"{window} waits for {f'the table: {cannot_tell}' if cannot_tell else found.waits_for}"
                break
            told_to = window.end
            if found.standing is Completeness.COMPLETE:
                complete[window] = found
        known = instance.get_materialized_partitions(self.windows.key) if complete else set()
        events = [self._event(window, one, now) for window, one in complete.items() if window.key not in known]
        again, late_seen = self._again(instance, look, cursor.late_seen) if not cannot_tell else ([], cursor.late_seen)
        until = f"complete to {_iso(told_to)}" if told_to > self.windows.begin else ""
        return ToldWindows([*events, *again], told_to, late_seen, "; ".join(filter(None, (until, said))))

    def _due(self, told_to: float, now: float, most: int) -> list[Window]:
        return self.windows.ended(told_to, now - self.windows.allowed_lateness_seconds, most)

    def _judged(self, cluster: Cluster, look: GroupLook, window: Window, watched_since: float) -> JudgedWindow:
        from kafka_liveness_dagster.kafka.times import window_bounds  # noqa: PLC0415 - confluent_kafka stays lazy

        until = window.end + self.windows.allowed_lateness_seconds
        begins, ends = window_bounds(cluster, list(look.partitions), round(1000 * window.begin), round(1000 * until))
        return judged(look.snapshot.partitions, begins, ends, is_of_our_time=window.begin >= watched_since)

    def _event(self, window: Window, found: JudgedWindow, now: float) -> dg.AssetMaterialization:
        offsets = number(sum(r.size for r in found.ranges), "offset")
        return dg.AssetMaterialization(
            self.windows.key,
            partition=window.key,
            description=f"every record up to {_iso(window.end)} is in {self.target}: {offsets}",
            metadata={
                **window_metadata(self.group_id, found.ranges),
                "complete_at": dg.MetadataValue.timestamp(now),
                LATE_RECORDS: 0,
                **({"forgiven_or_lost": found.closed} if found.closed else {}),
            },
        )

    def _again(
        self, instance: dg.DagsterInstance, look: GroupLook, seen: int
    ) -> tuple[list[dg.AssetMaterialization], int]:
        """Those that have got late records since they were told, when these are in the table."""
        if not self.windows.reopen_on_late:
            return [], seen
        asked = dg.AssetRecordsFilter(asset_key=self.windows.key, after_storage_id=seen or None)
        late: dict[str, dg.EventLogRecord] = {}
        for record in instance.fetch_observations(asked, limit=_MOST, ascending=True).records:
            ranges = late_ranges(record.asset_observation)
            if ranges and not all_done(look.snapshot.partitions, ranges):
                break
            seen = record.storage_id
            if ranges and record.partition_key is not None:
                late[record.partition_key] = record
        again = (self._told_again(instance, key, one) for key, one in late.items())
        return [event for event in again if event is not None], seen

    def _told_again(
        self, instance: dg.DagsterInstance, key: str, late: dg.EventLogRecord
    ) -> dg.AssetMaterialization | None:
        """As it was told before, with what came since; None where that is known already, or it never was told."""
        asked = dg.AssetRecordsFilter(asset_key=self.windows.key, asset_partitions=[key])
        found = instance.fetch_materializations(asked, limit=1).records
        before = found[0].asset_materialization if found and found[0].storage_id < late.storage_id else None
        if before is None or late.asset_observation is None:
            return None
        return dg.AssetMaterialization(
            self.windows.key,
            partition=key,
            description="told again, since records came after it was told complete",
            metadata={**before.metadata, LATE_RECORDS: late.asset_observation.metadata[LATE_RECORDS]},
        )


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
