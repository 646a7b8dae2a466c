"""What does a consumer group need now? A sensor that looks, tells what it saw, adds partitions and requests runs.

Level-triggered: every tick computes from the group's members, both commit logs, the log ends and Dagster's own
runs. It never joins and never commits, and doing a tick twice changes nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import dagster as dg

from kafka_liveness_dagster.core.commit_log import CATCH_UP_SUFFIX, DoneLog, ForeignCommitError, LiveMark, run_mark
from kafka_liveness_dagster.core.membership import (
    MemberLeft,
    PartitionSnapshot,
    RunFate,
    departures,
    wants_live_run,
)
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.cursors import GroupCursor
from kafka_liveness_dagster.metadata import group_metadata, told
from kafka_liveness_dagster.partitions import is_key, new_keys, range_of
from kafka_liveness_dagster.runs import CAUSE_TAG, lane_tags, runs_in_progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kafka_liveness_dagster.kafka.admin import Cluster, GroupMember

_OBSERVE_SECONDS = 60.0
_RECENT_RUNS = 20


def build_group_sensor(
    *,
    name: str,
    group_id: str,
    topics: Sequence[str],
    live_job: Any,
    crash_lag: dg.AssetsDefinition,
    max_live_runs: int = 1,
    minimum_interval_seconds: int = 5,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    kafka_resource_key: str = "kafka",
) -> dg.SensorDefinition:
    """A sensor for one consumer group: crashes and lag start live runs, owed ranges become partitions.

    Args:
        name: of the sensor.
        group_id: the group to watch.
        topics: what the group consumes; each is observed on the asset ``kafka/<topic>``.
        live_job: job to request when there is lag, at once after a crash.
        crash_lag: the asset whose dynamic partitions mirror the owed ranges.
        max_live_runs: no run is requested while so many are in progress.
        minimum_interval_seconds: between two ticks.
        default_status: ``RUNNING`` to start with the code location.
        kafka_resource_key: of the :class:`KafkaLivenessResource`.
    """
    watch = _Watch(group_id, tuple(topics), live_job.name, crash_lag, max_live_runs)

    @dg.sensor(
        name=name,
        job=live_job,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        required_resource_keys={kafka_resource_key},
        description=f"Watches consumer group {group_id}: starts live runs, turns owed ranges into partitions.",
    )
    def group_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return watch.tick(context, getattr(context.resources, kafka_resource_key).cluster())

    return group_sensor


@dataclass(frozen=True)
class _Watch:
    group_id: str
    topics: tuple[str, ...]
    live_job_name: str
    crash_lag: dg.AssetsDefinition
    max_live_runs: int

    def tick(self, context: dg.SensorEvaluationContext, cluster: Cluster) -> dg.SensorResult:
        # Dagster first: a range that is materialised between the two looks must not come back as a new partition
        instance = context.instance
        existing = instance.get_dynamic_partitions(self._partitions_name)
        materialized = instance.get_materialized_partitions(self.crash_lag.key) if existing else set()
        runs = instance.get_run_records(self._live_runs(), limit=_RECENT_RUNS)
        partitions = self._look(cluster)
        members = cluster.members(self.group_id)
        fates = {run_mark(record.dagster_run.run_id): _fate(record.dagster_run) for record in runs}
        left = departures(partitions, _runs_in(members, partitions), fates)
        owed = [OffsetRange(*seen.topic_partition, *span) for seen in partitions for span in seen.outstanding]
        keys, stray = new_keys(owed, existing, materialized), [key for key in existing if not is_key(key)]
        cursor = GroupCursor.decode(context.cursor)
        now = time.time()
        news = [gone for gone in left if _name(gone) not in cursor.told]
        observe = bool(news or keys) or now - cursor.observed_at >= _OBSERVE_SECONDS
        events = self._observations(partitions, len(members), left) if observe else []
        in_progress = runs_in_progress(instance, self.group_id, "live")
        failed = list(takewhile(lambda record: _fate(record.dagster_run) is RunFate.FAILED, runs))
        wanted = wants_live_run(
            partitions,
            left,
            in_progress=in_progress,
            max_live_runs=self.max_live_runs,
            failures_in_a_row=len(failed),
            seconds_since_failure=now - (failed[0].end_time or now) if failed else 0.0,
        )
        return dg.SensorResult(
            run_requests=[self._live_run(left)] if wanted else [],
            skip_reason=None if wanted else self._why_not(partitions, in_progress, len(failed), stray),
            dynamic_partitions_requests=[self._partitions_def.build_add_request(keys)] if keys else [],
            asset_events=[*events, *(self._key_observation(key, partitions, runs) for key in keys)],
            cursor=GroupCursor(
                told=tuple(map(_name, left)), observed_at=now if observe else cursor.observed_at
            ).encode(),
        )

    def _look(self, cluster: Cluster) -> list[PartitionSnapshot]:
        tps = cluster.partitions(self.topics)
        first, second = (cluster.commits(group, tps) for group in (self.group_id, self.group_id + CATCH_UP_SUFFIX))
        bounds = cluster.log_bounds(tps)
        snapshots = []
        for tp in tps:
            commit, done = first.get(tp), second.get(tp)
            mark = _decode(commit.metadata) if commit else None
            log = DoneLog.decode(done.offset, done.metadata) if done else DoneLog()
            start, end = bounds[tp]
            outstanding = log.outstanding(mark.owed) if mark else ()
            snapshots.append(
                PartitionSnapshot(tp, commit.offset if commit else None, mark, end, outstanding, log_start=start)
            )
        return snapshots

    def _live_runs(self) -> dg.RunsFilter:
        return dg.RunsFilter(tags=dict(lane_tags(self.group_id, "live")))

    def _live_run(self, left: Sequence[MemberLeft]) -> dg.RunRequest:
        why = told(left) or "lag"
        return dg.RunRequest(job_name=self.live_job_name, tags={**lane_tags(self.group_id, "live"), CAUSE_TAG: why})

    def _observations(
        self, partitions: Sequence[PartitionSnapshot], members: int, left: Sequence[MemberLeft]
    ) -> list[dg.AssetObservation]:
        return [
            dg.AssetObservation(
                dg.AssetKey(["kafka", topic]),
                description=told(left) or None,
                metadata=group_metadata(
                    self.group_id, [p for p in partitions if p.topic_partition.topic == topic], members, left
                ),
            )
            for topic in self.topics
        ]

    def _key_observation(
        self, key: str, partitions: Sequence[PartitionSnapshot], runs: Sequence[dg.RunRecord]
    ) -> dg.AssetObservation:
        owed = range_of(key)
        seen = next(p for p in partitions if p.topic_partition == owed.topic_partition)
        by_mark = {run_mark(record.dagster_run.run_id): record.dagster_run for record in runs}
        finder = by_mark.get(seen.mark.run) if seen.mark else None
        cause = finder.tags.get(CAUSE_TAG, "") if finder else ""
        return dg.AssetObservation(
            self.crash_lag.key,
            partition=key,
            description=f"{owed.size:,} offsets the live lane jumped over ({cause or 'cause unknown'}); they are in no "
            "table until this partition is materialized",
            metadata={
                "group": self.group_id,
                "range": str(owed),
                "offsets": owed.size,
                "cause": cause or "unknown",
                "live_lane_at": seen.committed if seen.committed is not None else "none",
                "log_end": seen.log_end,
                **({"found_by_run": dg.MetadataValue.dagster_run(finder.run_id)} if finder else {}),
            },
        )

    def _why_not(
        self, partitions: Sequence[PartitionSnapshot], in_progress: int, failures: int, stray: Sequence[str]
    ) -> str:
        """Why this tick requests no run, and what else is to be seen."""
        lag, owed = sum(p.lag for p in partitions), sum(p.owed for p in partitions)
        if in_progress >= self.max_live_runs:
            why = f"{in_progress} of {self.max_live_runs} already in progress"
        else:
            why = f"waiting after {failures} failures in a row" if lag else "nothing to read"
        odd = f"; not crash lag partitions, delete them: {', '.join(stray[:3])}" if stray else ""
        return f"no live run: {why}; lag {lag:,}, {owed:,} offsets owed{odd}"

    @property
    def _partitions_def(self) -> dg.DynamicPartitionsDefinition:
        found = self.crash_lag.partitions_def
        assert isinstance(found, dg.DynamicPartitionsDefinition)  # noqa: S101 - built by kafka_asset
        return found

    @property
    def _partitions_name(self) -> str:
        return self._partitions_def.name or ""


def _fate(run: dg.DagsterRun) -> RunFate:
    if not run.is_finished:
        return RunFate.IN_PROGRESS
    return {
        dg.DagsterRunStatus.SUCCESS: RunFate.SUCCEEDED,
        dg.DagsterRunStatus.CANCELED: RunFate.CANCELED,
    }.get(run.status, RunFate.FAILED)


def _decode(metadata: str) -> LiveMark | None:
    try:
        return LiveMark.decode(metadata)
    except ForeignCommitError:
        return None  # the live run refuses to join and says why; the sensor only looks


def _run_mark(client_id: str) -> str:
    """The run's 8 digits out of ``dagster/<job>/<run id>/<step>``; a foreign member's id matches no run."""
    parts = client_id.split("/")
    return run_mark(parts[2]) if len(parts) > 2 and parts[0] in ("dagster", "kafka-liveness") else client_id  # noqa: PLR2004


def _runs_in(members: Iterable[GroupMember], partitions: Iterable[PartitionSnapshot]) -> set[str]:
    """The runs that are members now.

    Of a static member the coordinator shows the client id that joined first; whoever commits its partitions is it.
    """
    static = {tp for member in members if member.group_instance_id is not None for tp in member.partitions}
    by_commit = {seen.mark.run for seen in partitions if seen.mark is not None and seen.topic_partition in static}
    return by_commit | {_run_mark(member.client_id) for member in members}


def _name(gone: MemberLeft) -> str:
    return f"{gone.run} {gone.reason.value}"
