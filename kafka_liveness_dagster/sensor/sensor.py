"""Observe a consumer group, report what was seen, add partitions and request runs.

Done by a sensor. Level-triggered: every tick computes from the group's members, both commit logs, the log
ends and Dagster's own runs; its memory only keeps it from telling a thing twice. It never joins nor commits;
a tick done twice changes nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import dagster as dg

from kafka_liveness_dagster.core.commit_metadata import CATCH_UP_SUFFIX
from kafka_liveness_dagster.core.event_detection import detect_events
from kafka_liveness_dagster.core.events import CrashLagFound
from kafka_liveness_dagster.core.partition_keys import is_key, new_keys, parse_key
from kafka_liveness_dagster.embedded.state import ServicesDownError
from kafka_liveness_dagster.runs.storage import storage_errors
from kafka_liveness_dagster.sensor.asset_events import (
    crash_lag_observations,
    group_observations,
    not_yet_materialized,
)
from kafka_liveness_dagster.sensor.checks import changed_evaluations, needs_reevaluation
from kafka_liveness_dagster.sensor.cursor import GroupCursor, WindowProgress
from kafka_liveness_dagster.sensor.dead_runs import OrphanedRuns, free_pool_slots, wait_for_process_exit
from kafka_liveness_dagster.sensor.observation import GroupObservation
from kafka_liveness_dagster.sensor.run_requests import EventHook, RunRequests
from kafka_liveness_dagster.sensor.settings import SensorSettings
from kafka_liveness_dagster.sensor.table_ledger import TableLedgerReader
from kafka_liveness_dagster.sensor.windows import WindowMaterializer
from kafka_liveness_dagster.settings.groups import ResourceKeys, Sensor
from kafka_liveness_dagster.settings.validation import validated
from kafka_liveness_dagster.telemetry.group_metrics import GroupMetrics
from kafka_liveness_dagster.telemetry.otel import set_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.sensor.checks import GroupChecks
    from kafka_liveness_dagster.settings.windows import Windows

OBSERVE_INTERVAL_SECONDS = 60.0
"""Shortest time between two observations of the topic."""
_SKIP_MESSAGE = (
    "a sensor writes and commits none. This tick started no run and added no partition; the next one goes "
    "on from the same cursor"
)


@validated(SensorSettings)
def build_group_sensor(
    *,
    name: str,
    group_id: str,
    topics: Sequence[str],
    live_job: Any,
    crash_lag: dg.AssetsDefinition,
    crash_lag_job: Any = None,
    sensor: Sensor = Sensor(),
    checks: GroupChecks | None = None,
    table: str | None = None,
    windows: Windows | None = None,
    resources: ResourceKeys = ResourceKeys(),
) -> dg.SensorDefinition:
    """A sensor for one consumer group: crashes and lag start live runs, owed ranges become partitions.

    Args:
        name: of the sensor.
        group_id: the group to watch.
        topics: what the group consumes; each is observed on the asset ``kafka/<topic>_topic``.
        live_job: job to request when there is lag, at once after a crash.
        crash_lag: the asset whose dynamic partitions mirror the owed ranges.
        crash_lag_job: job to request for each owed range, one at a time; None leaves them to people.
        sensor: how often to tick, how many runs to start, what to call for an event; ``max_lag`` belongs to
            the checks.
        checks: asset checks to evaluate with the observations.
        table: the Iceberg table; with it looks hold the first commit log against what the table says it has.
        windows: those of an asset with ``complete_every``; needs ``table``.
        resources: the keys of both resources; Spark's is needed with ``table``.
    """
    own = [live_job] if crash_lag_job is None else [live_job, crash_lag_job]
    watched = _GroupSensor(
        name=name,
        group_id=group_id,
        topics=tuple(topics),
        requests=RunRequests(
            group_id=group_id,
            live_job_name=live_job.name,
            crash_lag_job_name=getattr(crash_lag_job, "name", None),
            max_live_runs=sensor.max_live_runs,
        ),
        crash_lag=crash_lag,
        ghost_after_seconds=sensor.ghost_after_seconds,
        fail_ghost_runs=sensor.fail_ghost_runs,
        event_hook=EventHook(
            name, sensor.on_event, sensor.event_jobs[0].name if len(sensor.event_jobs) == 1 else None
        ),
        checks=checks,
        metrics=GroupMetrics(group_id),
        windows=WindowMaterializer(windows=windows, group_id=group_id, target=table)
        if windows and table
        else None,
    )

    @dg.sensor(
        name=name,
        jobs=[*own, *sensor.event_jobs],
        minimum_interval_seconds=sensor.minimum_interval_seconds,
        default_status=sensor.default_status,
        required_resource_keys={resources.kafka, *([resources.spark] if table else [])},
        description=(
            f"Watches consumer group {group_id}: starts live runs, turns owed ranges into partitions."
        ),
    )
    def group_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        with storage_errors(_SKIP_MESSAGE):
            wait_for_process_exit(context.instance, group_id)
            kafka = getattr(context.resources, resources.kafka)
            try:
                kafka.create_missing_topics(topics, context.log.info)
                cluster = kafka.cluster()
            except ServicesDownError as error:
                # A person wanted it: no failure, and no page of traceback every 5 s
                return dg.SkipReason(str(error))
            return watched.tick(
                context, cluster, TableLedgerReader.from_resources(table, context.resources, resources.spark)
            )

    return group_sensor


@dataclass(frozen=True)
class _PartitionKeys:
    """The crash lag asset's partitions."""

    existing: Sequence[str]
    materialized: set[str]

    @property
    def missing(self) -> list[str]:
        return [key for key in self.existing if key not in self.materialized and is_key(key)]

    @property
    def foreign(self) -> list[str]:
        return [key for key in self.existing if key not in self.materialized and not is_key(key)]


@dataclass(frozen=True, kw_only=True)
class _GroupSensor:
    name: str
    group_id: str
    topics: tuple[str, ...]
    requests: RunRequests
    crash_lag: dg.AssetsDefinition
    ghost_after_seconds: float
    fail_ghost_runs: bool
    event_hook: EventHook
    checks: GroupChecks | None
    metrics: GroupMetrics
    windows: WindowMaterializer | None

    def tick(
        self, context: dg.SensorEvaluationContext, cluster: Cluster, table: TableLedgerReader | None
    ) -> dg.SensorResult:
        set_up()
        instance = context.instance
        now = time.time()
        cursor = GroupCursor.decode(context.cursor).as_of(now)
        for commit_log in (
            self.group_id,
            *([self.group_id + CATCH_UP_SUFFIX] if cursor.pending_hash else []),
        ):
            cluster.find_coordinator(commit_log)
        is_due = now - cursor.observed_at >= OBSERVE_INTERVAL_SECONDS
        newest = self.checks.latest_storage_id(instance, now) if self.checks else 0
        forgotten = needs_reevaluation(
            newest, cursor.checked_materialization, cursor.checks_stored_at, now=now
        )
        windows = self.windows.load_progress(instance, cursor, now) if self.windows else WindowProgress()
        tells = self.windows is not None and self.windows.is_due(windows, now)
        # Dagster first: a range that is materialised between the two looks must not come back as a new
        # partition
        known = self._read_keys(instance) if is_due and cursor.pending_hash else None
        look = self._observe(cluster, instance, table, must_read_ledger=is_due or forgotten or tells)
        if known is None and look.pending_hash not in {0, cursor.pending_hash}:
            known = self._read_keys(instance)
            look = self._observe(cluster, instance, table, must_read_ledger=forgotten or tells)
        events, memory = detect_events(
            cursor.memory, look.snapshot, now, ghost_after_seconds=self.ghost_after_seconds
        )
        keys = [] if known is None else new_keys(look.pending, known.existing, known.materialized)
        events += [CrashLagFound(key, parse_key(key).size) for key in keys]
        # Ranges that are no longer forgotten: the check may pass again
        observe = bool(events) or is_due or cursor.forgotten_ranges != memory.forgotten_ranges
        for line in look.external_commit_lines if observe else ():
            context.log.warning("group %s: %s", self.group_id, line)
        answers, failed = self.event_hook.call(events, cursor, context.log)
        ghosts = OrphanedRuns(
            look, memory.absent_runs, now, after_seconds=self.ghost_after_seconds, always=self.fail_ghost_runs
        )
        has_ended = ghosts.end_dead_runs(
            instance, f"sensor {self.name} of group {self.group_id}", context.log
        )
        if has_ended or is_due:
            free_pool_slots(instance, self.crash_lag, now)
        wanted, why_not = self.requests.live_run(
            instance, look, now, orphaned=ghosts.live_runs(self.requests.max_live_runs)
        )
        if known is None and look.pending_hash and (observe or forgotten):
            known = self._read_keys(instance)
        missing = known.missing if known else []
        judged: Sequence[dg.AssetCheckEvaluation] = ()
        outcomes = cursor.check_outcomes
        checked_at = cursor.checks_stored_at
        if self.checks is not None and (observe or forgotten):
            asked = table is None or table.was_read  # a look that is stored must say whether rows are missing
            judged = self.checks.evaluate(
                look if asked else self._observe(cluster, instance, table),
                instance,
                [*missing, *keys],
                now=now,
                requested=bool(wanted),
                forgotten=memory.forgotten_ranges,
                table=table,
                open_transactions=look.open_transactions(cluster, self.group_id),
            )
            judged, outcomes, checked_at = changed_evaluations(
                judged, outcomes, checked_at, now=now, must_repeat=forgotten
            )
        if self.windows is not None and table is not None:
            cannot_tell = table.unavailable_reason or ("" if table.was_read else "it was not asked")
            cannot_tell = cannot_tell or ("" if table.exists else f"{table.target} does not exist yet")
            windows = self.windows.materialize_complete(
                cluster, instance, look, progress=windows, now=now, unavailable_reason=cannot_tell
            )
        catch_up = self.requests.catch_up_run(
            instance,
            look,
            lambda: (known or self._read_keys(instance)).missing,
            now=now,
            orphaned=ghosts.catch_up_runs(),
        )
        runs = [*wanted, *catch_up, *answers]
        foreign_keys = known.foreign if known else ()
        skip_reason = None if runs else why_not + _foreign_keys_warning(foreign_keys)
        seen = look.snapshot
        self.metrics.record(cluster, len(seen.members), seen.partitions, events, cluster_for_times=observe)
        return dg.SensorResult(
            run_requests=runs,
            skip_reason=skip_reason,
            dynamic_partitions_requests=[self._partitions_def.build_add_request(keys)] if keys else [],
            asset_events=[
                *(
                    group_observations(
                        self.group_id,
                        self.topics,
                        look,
                        events=events,
                        failed=failed,
                        windows=windows.status_text,
                    )
                    if observe
                    else []
                ),
                *windows.events,
                *crash_lag_observations(
                    instance,
                    self.crash_lag.key,
                    self.group_id,
                    keys=not_yet_materialized(instance, self.crash_lag.key, keys),
                    observed=look,
                ),
                *judged,
            ],
            cursor=GroupCursor.of(
                memory,
                observed_at=now if is_due else cursor.observed_at,
                event_count=cursor.event_count + len(events),
                check_outcomes=outcomes,
                checks_stored_at=checked_at,
                checked_materialization=max(newest if judged else 0, cursor.checked_materialization),
                pending_hash=look.pending_hash,
                told=windows,
                started_at=cursor.started_at or int(now),
            ).encode(),
        )

    def _read_keys(self, instance: dg.DagsterInstance) -> _PartitionKeys:
        """All that ever were are read to know of one.

        Only while something is owed, and that is news or is told.
        """
        existing = instance.get_dynamic_partitions(self._partitions_name)
        return _PartitionKeys(
            existing, instance.get_materialized_partitions(self.crash_lag.key) if existing else set()
        )

    def _observe(
        self,
        cluster: Cluster,
        instance: dg.DagsterInstance,
        table: TableLedgerReader | None,
        *,
        must_read_ledger: bool = True,
    ) -> GroupObservation:
        told = (cluster, instance, self.group_id, self.topics)
        runs = 3 * self.requests.max_live_runs
        return GroupObservation.read(*told, recent_runs=runs, ledger=table, must_read_ledger=must_read_ledger)

    @property
    def _partitions_def(self) -> dg.DynamicPartitionsDefinition:
        # SensorSettings has checked it
        return cast("dg.DynamicPartitionsDefinition", self.crash_lag.partitions_def)

    @property
    def _partitions_name(self) -> str:
        return self._partitions_def.name or ""


def _foreign_keys_warning(stray: Sequence[str]) -> str:
    return f"; not crash lag partitions, delete them: {', '.join(stray[:3])}" if stray else ""
