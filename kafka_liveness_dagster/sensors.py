"""What does a consumer group need now? A sensor that looks, tells what it saw, adds partitions and requests runs.

Level-triggered: every tick computes from the group's members, both commit logs, the log ends and Dagster's own
runs; its memory only keeps it from telling a thing twice. It never joins and never commits, and doing a tick twice
changes nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import dagster as dg

from kafka_liveness_dagster.checks import news
from kafka_liveness_dagster.core.events import CrashLagFound, GhostFound, GroupEvent
from kafka_liveness_dagster.core.membership import RunFate, restart_delay_seconds, wants_live_run
from kafka_liveness_dagster.core.watch import changes
from kafka_liveness_dagster.cursors import GroupCursor
from kafka_liveness_dagster.hooks import Answers, Hook
from kafka_liveness_dagster.look import GroupLook, fate
from kafka_liveness_dagster.metadata import told
from kafka_liveness_dagster.observations import group_observations, range_observation
from kafka_liveness_dagster.partitions import is_key, new_keys, range_of
from kafka_liveness_dagster.runs import CAUSE_TAG, PARTITION_TAG, lane_tags, runs_in_progress
from kafka_liveness_dagster.table_look import TableLook

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kafka_liveness_dagster.checks import GroupChecks
    from kafka_liveness_dagster.kafka.admin import Cluster

_OBSERVE_SECONDS = 60.0
_RECENT_RUNS = 20


def build_group_sensor(
    *,
    name: str,
    group_id: str,
    topics: Sequence[str],
    live_job: Any,
    crash_lag: dg.AssetsDefinition,
    crash_lag_job: Any = None,
    max_live_runs: int = 1,
    ghost_after_seconds: float = 120.0,
    fail_ghost_runs: bool = False,
    on_event: Hook | None = None,
    event_jobs: Sequence[Any] = (),
    checks: GroupChecks | None = None,
    minimum_interval_seconds: int = 5,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    kafka_resource_key: str = "kafka",
    table: str | None = None,
    spark_resource_key: str = "spark",
) -> dg.SensorDefinition:
    """A sensor for one consumer group: crashes and lag start live runs, owed ranges become partitions.

    Args:
        name: of the sensor.
        group_id: the group to watch.
        topics: what the group consumes; each is observed on the asset ``kafka/<topic>``.
        live_job: job to request when there is lag, at once after a crash.
        crash_lag: the asset whose dynamic partitions mirror the owed ranges.
        crash_lag_job: job to request for each owed range, one at a time; None leaves them to people.
        max_live_runs: no run is requested while so many are in progress, or as many as there are partitions.
        ghost_after_seconds: a run in progress that is no member of the group for so long is reported.
        fail_ghost_runs: report such a run to Dagster as failed, too, so that another can take its place.
        on_event: called with each event of ``core.events`` when it is first seen; what it returns is requested. A
            request without a ``run_key`` gets one of its event, so that a repeated tick starts nothing twice.
        event_jobs: jobs that ``on_event`` may request; with a single one, requests need not name it.
        checks: asset checks to evaluate with the observations.
        minimum_interval_seconds: between two ticks.
        default_status: ``RUNNING`` to start with the code location.
        kafka_resource_key: of the :class:`KafkaLivenessResource`.
        table: the Iceberg table; with it looks hold the first commit log against what the table says it has.
        spark_resource_key: of the :class:`SparkConnectResource`; needed with ``table``.
    """
    own = [live_job] if crash_lag_job is None else [live_job, crash_lag_job]
    watch = _Watch(
        name=name,
        group_id=group_id,
        topics=tuple(topics),
        live_job_name=live_job.name,
        crash_lag=crash_lag,
        crash_lag_job_name=getattr(crash_lag_job, "name", None),
        max_live_runs=max_live_runs,
        ghost_after_seconds=ghost_after_seconds,
        fail_ghost_runs=fail_ghost_runs,
        answers=Answers(name, on_event, event_jobs[0].name if len(event_jobs) == 1 else None),
        checks=checks,
    )

    @dg.sensor(
        name=name,
        jobs=[*own, *event_jobs],
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        required_resource_keys={kafka_resource_key, *([spark_resource_key] if table else [])},
        description=f"Watches consumer group {group_id}: starts live runs, turns owed ranges into partitions.",
    )
    def group_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        cluster = getattr(context.resources, kafka_resource_key).cluster()
        return watch.tick(context, cluster, TableLook.of(table, context.resources, spark_resource_key))

    return group_sensor


@dataclass(frozen=True, kw_only=True)
class _Watch:
    name: str
    group_id: str
    topics: tuple[str, ...]
    live_job_name: str
    crash_lag: dg.AssetsDefinition
    crash_lag_job_name: str | None
    max_live_runs: int
    ghost_after_seconds: float
    fail_ghost_runs: bool
    answers: Answers
    checks: GroupChecks | None

    def tick(self, context: dg.SensorEvaluationContext, cluster: Cluster, table: TableLook | None) -> dg.SensorResult:
        # Dagster first: a range that is materialised between the two looks must not come back as a new partition
        instance = context.instance
        existing = instance.get_dynamic_partitions(self._partitions_name)
        materialized = instance.get_materialized_partitions(self.crash_lag.key) if existing else set()
        cursor, now = GroupCursor.decode(context.cursor), time.time()
        is_due = now - cursor.observed_at >= _OBSERVE_SECONDS
        look = self._look(cluster, instance, table, must_ask=is_due)
        events, memory = changes(cursor.memory, look.snapshot, now, self.ghost_after_seconds)
        keys, stray = new_keys(look.owed, existing, materialized), [key for key in existing if not is_key(key)]
        events += [CrashLagFound(key, range_of(key).size) for key in keys]
        observe = bool(events) or is_due or cursor.forgotten != memory.forgotten  # done now: the check may pass again
        answers, failed = self.answers.to(events, cursor, context.log)
        wanted, why_not = self._live_runs(instance, look, now)
        missing = [key for key in existing if is_key(key) and key not in materialized]
        judged: Sequence[dg.AssetCheckEvaluation] = ()
        outcomes, checked_at = cursor.outcomes, cursor.checked_at
        if self.checks is not None and observe:
            asked = table is None or table.asked  # a look that is stored must say whether rows are missing
            judged = self.checks.evaluate(
                look if asked else self._look(cluster, instance, table),
                instance,
                [*missing, *keys],
                now,
                requested=bool(wanted),
                forgotten=memory.forgotten,
                cannot_tell=table.cannot_tell if table else "",
            )
            judged, outcomes, checked_at = news(judged, outcomes, checked_at, now)
        runs = [*wanted, *self._catch_up_runs(instance, look, missing, now), *answers]
        if self.fail_ghost_runs:
            self._fail(instance, look, events)
        return dg.SensorResult(
            run_requests=runs,
            skip_reason=None if runs else why_not + _odd(stray),
            dynamic_partitions_requests=[self._partitions_def.build_add_request(keys)] if keys else [],
            asset_events=[
                *(group_observations(self.group_id, self.topics, look, events, failed) if observe else []),
                *(range_observation(self.crash_lag.key, self.group_id, key, look) for key in keys),
                *judged,
            ],
            cursor=GroupCursor.of(
                memory,
                observed_at=now if observe else cursor.observed_at,
                events=cursor.events + len(events),
                outcomes=outcomes,
                checked_at=checked_at,
                epoch=cursor.epoch or int(now),
            ).encode(),
        )

    def _look(
        self, cluster: Cluster, instance: dg.DagsterInstance, table: TableLook | None, *, must_ask: bool = True
    ) -> GroupLook:
        told, runs = (cluster, instance, self.group_id, self.topics), 3 * self.max_live_runs
        return GroupLook.of(*told, recent_runs=runs, witness=table, must_ask=must_ask)

    def _live_runs(self, instance: dg.DagsterInstance, look: GroupLook, now: float) -> tuple[list[dg.RunRequest], str]:
        """A live run, when one is wanted; and why not, when none is."""
        seen = look.snapshot
        in_progress = runs_in_progress(instance, self.group_id, "live")
        failures, delayed = _delay(look.records, now)
        wanted = wants_live_run(seen.partitions, seen.left, in_progress=in_progress, max_live_runs=self.max_live_runs)
        if wanted and not delayed:
            tags = {**lane_tags(self.group_id, "live"), CAUSE_TAG: told(seen.left) or "lag"}
            return [dg.RunRequest(job_name=self.live_job_name, tags=tags)], ""
        lag, owed = sum(p.lag for p in seen.partitions), sum(p.owed for p in seen.partitions)
        why = "nothing to read"
        if wanted:
            why = f"waiting after {failures} failures in a row"
        elif in_progress:
            why = f"{in_progress} of {self.max_live_runs} already in progress"
        return [], f"no live run: {why}; lag {lag:,}, {owed:,} offsets owed"

    def _catch_up_runs(
        self, instance: dg.DagsterInstance, look: GroupLook, missing: Sequence[str], now: float
    ) -> list[dg.RunRequest]:
        """The oldest missing partition's run, when nobody is catching up and it is not failing all the time."""
        if self.crash_lag_job_name is None:
            return []
        owed = look.still_owed(missing, paused=False)
        if not owed or runs_in_progress(instance, self.group_id, "catch-up"):
            return []
        tags = lane_tags(self.group_id, "catch-up")
        records = instance.get_run_records(dg.RunsFilter(tags=dict(tags)), limit=_RECENT_RUNS)
        if _delay(records, now)[1]:
            return []
        # A partition that fails every time must not keep the younger ones from being processed
        failed = Counter(record.dagster_run.tags.get(PARTITION_TAG) for record in _failed(records))
        oldest = min(owed, key=lambda key: failed[key])
        return [dg.RunRequest(job_name=self.crash_lag_job_name, partition_key=oldest, tags=tags)]

    def _fail(self, instance: dg.DagsterInstance, look: GroupLook, events: Iterable[GroupEvent]) -> None:
        for ghost in (event for event in events if isinstance(event, GhostFound)):
            known = look.run(ghost.run)
            run = instance.get_run_by_id(known.run_id) if known is not None else None
            if run is not None and not run.is_finished:  # it may have ended since the look
                instance.report_run_failed(run, f"{ghost} (group {self.group_id}): failed by sensor {self.name}")

    @property
    def _partitions_def(self) -> dg.DynamicPartitionsDefinition:
        found = self.crash_lag.partitions_def
        assert isinstance(found, dg.DynamicPartitionsDefinition)  # noqa: S101 - built by kafka_asset
        return found

    @property
    def _partitions_name(self) -> str:
        return self._partitions_def.name or ""


def _delay(records: Sequence[dg.RunRecord], now: float) -> tuple[int, bool]:
    """How many of the newest runs failed in a row, and whether it is too early for the next one."""
    failed = _failed(records)
    since = now - (failed[0].end_time or now) if failed else 0.0
    return len(failed), since < restart_delay_seconds(len(failed))


def _failed(records: Sequence[dg.RunRecord]) -> list[dg.RunRecord]:
    """The newest runs that failed in a row."""
    return list(takewhile(lambda record: fate(record.dagster_run) is RunFate.FAILED, records))


def _odd(stray: Sequence[str]) -> str:
    return f"; not crash lag partitions, delete them: {', '.join(stray[:3])}" if stray else ""
