"""Build the sensor that observes a consumer group, reports events, adds partitions and requests runs.

It is level-triggered: every tick computes from the group's members, both commit logs, the log ends and
Dagster's runs. Its memory only prevents that an event is reported twice. It never joins and never commits; a
repeated tick changes nothing.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import dagster as dg

from kafka_liveness_dagster.core.commit_metadata import CATCH_UP_SUFFIX
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.event_detection import detect_events
from kafka_liveness_dagster.core.events import CrashLagFound, crashed_runs
from kafka_liveness_dagster.core.idle_groups import LastTick
from kafka_liveness_dagster.core.partition_keys import is_key, new_keys, parse_key
from kafka_liveness_dagster.embedded.state import ServicesDownError
from kafka_liveness_dagster.runs.storage import storage_errors
from kafka_liveness_dagster.runs.tags import GROUP_TAG, SESSION_TAG
from kafka_liveness_dagster.sensor.asset_events import (
    crash_lag_observations,
    group_observations,
    not_yet_materialized,
)
from kafka_liveness_dagster.sensor.checks import changed_evaluations, needs_reevaluation
from kafka_liveness_dagster.sensor.cursor import GroupCursor, WindowProgress
from kafka_liveness_dagster.sensor.dead_runs import (
    ExitWatch,
    OrphanedRuns,
    end_spark_session,
    free_pool_slots,
)
from kafka_liveness_dagster.sensor.kept_instance import KeptInstanceSensor
from kafka_liveness_dagster.sensor.observation import GroupObservation, KnownRuns, read_fingerprint
from kafka_liveness_dagster.sensor.run_requests import NOTHING_TO_START, EventHook, RunRequests
from kafka_liveness_dagster.sensor.settings import SensorSettings
from kafka_liveness_dagster.sensor.table_ledger import TableLedgerReader
from kafka_liveness_dagster.sensor.windows import WindowMaterializer
from kafka_liveness_dagster.settings.groups import ResourceKeys, Sensor
from kafka_liveness_dagster.settings.validation import validated
from kafka_liveness_dagster.telemetry.group_metrics import GroupMetrics
from kafka_liveness_dagster.telemetry.otel import set_up

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.settings import KafkaSettings
    from kafka_liveness_dagster.sensor.checks import GroupChecks
    from kafka_liveness_dagster.settings.windows import Windows

OBSERVE_INTERVAL_SECONDS = 60.0
"""Shortest time between two observations of the topic."""
SKIP_MESSAGE = (
    "a sensor writes and commits none. This tick started no run and added no partition; the next tick "
    "continues from the same cursor"
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
    """Return a sensor for one consumer group.

    Crashes and lag start live runs; pending ranges become partitions.

    Args:
        name: name of the sensor.
        group_id: group to watch.
        topics: topics of the group; each is observed on the asset ``kafka/<topic>_topic``.
        live_job: job to request when there is lag, at once after a crash.
        crash_lag: asset whose dynamic partitions are the pending ranges.
        crash_lag_job: job to request for each pending range, one at a time; with None people start its runs.
        sensor: interval of ticks, number of runs to start, callback for events; ``max_lag`` belongs to the
            checks.
        checks: asset checks to evaluate with the observations.
        table: Iceberg table; with it ticks compare the live commit log with the table's ledger.
        windows: windows of an asset with ``complete_every``; needs ``table``.
        resources: keys of both resources; Spark's is needed with ``table``.
    """
    watched = GroupSensor.of(
        name=name,
        group_id=group_id,
        topics=topics,
        live_job=live_job,
        crash_lag=crash_lag,
        crash_lag_job=crash_lag_job,
        sensor=sensor,
        checks=checks,
        table=table,
        windows=windows,
        resources=resources,
    )

    watch = ExitWatch()
    evaluation = _GroupEvaluation(watched)

    def group_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        with storage_errors(SKIP_MESSAGE), watch.before_observation(context.instance, [group_id]):
            kafka = getattr(context.resources, resources.kafka)
            try:
                kafka.create_missing_topics(topics, context.log.info)
                return evaluation.run(context, kafka.cluster())
            except ServicesDownError as error:
                watched.report_unknown_freshness(context.instance, error)
                # A person caused it, so it is a skip: a failure would log a page of traceback every 5 s
                return dg.SkipReason(str(error))
            except KafkaLivenessError as error:
                watched.report_unknown_freshness(context.instance, error)
                raise

    return KeptInstanceSensor(
        name=name,
        evaluation_fn=group_sensor,
        jobs=watched.jobs,
        minimum_interval_seconds=sensor.minimum_interval_seconds,
        default_status=sensor.default_status,
        required_resource_keys=watched.resource_keys,
        skip_message=evaluation.skip_message,
        description=(
            f"Watches consumer group {group_id}: starts live runs, and adds pending ranges as partitions."
        ),
    )


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
class GroupSensor:
    """The settings of one group's ticks, in a sensor of its own or in a shared one."""

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
    table: str | None
    resources: ResourceKeys
    jobs: Sequence[Any]

    @classmethod
    def of(
        cls,
        *,
        name: str,
        group_id: str,
        topics: Sequence[str],
        live_job: Any,
        crash_lag: dg.AssetsDefinition,
        crash_lag_job: Any,
        sensor: Sensor,
        checks: GroupChecks | None,
        table: str | None,
        windows: Windows | None,
        resources: ResourceKeys,
        run_key_prefix: str | None = None,
    ) -> GroupSensor:
        """Return the ticks of one group: see :func:`build_group_sensor`.

        ``run_key_prefix`` is the sensor's name, unless the sensor has several groups.
        """
        own = [live_job] if crash_lag_job is None else [live_job, crash_lag_job]
        jobs = [*own, *sensor.event_jobs]
        default_jobs = sensor.event_jobs if len(jobs) > 1 else jobs
        return cls(
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
                run_key_prefix or name,
                sensor.on_event,
                default_jobs[0].name if len(default_jobs) == 1 else None,
                [job.name for job in jobs],
            ),
            checks=checks,
            metrics=GroupMetrics(group_id),
            windows=WindowMaterializer(windows=windows, group_id=group_id, target=table)
            if windows and table
            else None,
            table=table,
            resources=resources,
            jobs=jobs,
        )

    @property
    def resource_keys(self) -> set[str]:
        """The keys of the resources that a tick needs."""
        return {self.resources.kafka, *([self.resources.spark] if self.table else [])}

    def tick(
        self,
        context: dg.SensorEvaluationContext,
        cluster: Cluster,
        cursor: str | None,
        known: KnownRecords | None = None,
    ) -> GroupTick:
        """Return a tick to run; ``known`` has records that were read for several groups together."""
        set_up()
        table = TableLedgerReader.from_resources(self.table, context.resources, self.resources.spark)
        return GroupTick(self, context, cluster, table, cursor=cursor, known=known)

    def report_unknown_freshness(self, instance: dg.DagsterInstance, error: Exception) -> None:
        """Store that the freshness is unknown, because this tick evaluates no check."""
        if self.checks is not None:
            self.checks.report_unknown_freshness(instance, error)

    def is_window_due(self, progress: WindowProgress, now: float) -> bool:
        """Return whether the end of a window has passed, so that a tick must process it."""
        return self.windows is not None and self.windows.is_due(progress, now)

    def may_skip(self, memory: TickMemory, now: float) -> bool:
        """Return whether the group needs no tick as long as its runs and its state in Kafka are the same.

        ``now`` is a time of the monotonic clock.
        """
        return memory.last.may_skip(now) and not self.is_window_due(memory.windows, time.time())

    @property
    def partitions_def(self) -> dg.DynamicPartitionsDefinition:
        """The partitions of the crash lag asset."""
        # SensorSettings has checked the type
        return cast("dg.DynamicPartitionsDefinition", self.crash_lag.partitions_def)


@dataclass(frozen=True)
class KnownRecords:
    """Records of Dagster that a shared sensor read for several groups together.

    Attributes:
        in_progress: runs of the group in progress, read before Kafka.
        recent: newest live runs of the group; None if they changed since they were read.
        read_in_progress: returns the runs in progress as of the last second.
        latest: last materialization of each asset of the group.
        must_observe: whether the tick observes the topics and reads the table, before the minute is over.
    """

    in_progress: Sequence[dg.RunRecord]
    recent: Sequence[dg.RunRecord] | None
    read_in_progress: Callable[[], Sequence[dg.RunRecord]]
    latest: Mapping[dg.AssetKey, dg.EventLogRecord]
    must_observe: bool


@dataclass(frozen=True)
class TickMemory:
    """The last tick of a group, as far as it decides whether a later one is needed.

    Attributes:
        last: what it found.
        windows: progress of the group's windows after it.
        observed_at: time of the last observation of the topics, by the monotonic clock.
    """

    last: LastTick
    windows: WindowProgress
    observed_at: float


@dataclass(frozen=True)
class _OwnMemory(TickMemory):
    """The last tick of a group's own sensor.

    Attributes:
        cursor: cursor that it returned; with another one the memory does not count.
        skip_message: its skip message; None if it requested runs.
        kafka: settings of the cluster.
    """

    cursor: str | None
    skip_message: str | None
    kafka: KafkaSettings


class _GroupEvaluation:
    """The evaluations of one group's sensor; an idle group without a change gets no tick."""

    def __init__(self, sensor: GroupSensor) -> None:
        self._sensor = sensor
        self._memory: _OwnMemory | None = None

    def skip_message(self, context: dg.SensorEvaluationContext) -> str | None:
        """Return the skip message of the last tick if the group is idle, and a tick could change nothing.

        Reads the cluster with the settings of the last tick, because Dagster has not created the resources.
        None if the cluster cannot be read: a tick reports that.
        """
        memory = self._memory_of(context.cursor)
        if memory is not None and memory.skip_message is not None:
            with storage_errors(SKIP_MESSAGE), suppress(KafkaLivenessError):
                if self._is_unchanged(memory, context.instance):
                    return memory.skip_message
        return None

    def run(self, context: dg.SensorEvaluationContext, cluster: Cluster) -> dg.SensorResult:
        """Run a tick."""
        now = time.monotonic()
        before = self._memory_of(context.cursor)
        self._memory = None  # of a tick that fails
        newest_run = _newest_run(context.instance, self._sensor.group_id)  # before Kafka, as an observation
        tick = self._sensor.tick(context, cluster, context.cursor)
        result = tick.run()
        last = LastTick.after(
            None if before is None else before.last,
            now,
            runs=newest_run,
            kafka=tick.fingerprint,
            is_idle=tick.is_idle,
        )
        observed_at = -math.inf if before is None else before.observed_at
        self._memory = _OwnMemory(
            last,
            tick.window_progress,
            now if tick.has_observed else observed_at,
            cursor=result.cursor,
            skip_message=None if result.skip_reason is None else result.skip_reason.skip_message,
            kafka=cluster.settings,
        )
        return result

    def _memory_of(self, cursor: str | None) -> _OwnMemory | None:
        memory = self._memory
        return memory if memory is not None and memory.cursor == cursor else None

    def _is_unchanged(self, memory: _OwnMemory, instance: dg.DagsterInstance) -> bool:
        """Return whether nothing is due and nothing has changed.

        An idle group has no run in progress, so only a new run could change Dagster's part.
        """
        now = time.monotonic()
        return (
            self._sensor.may_skip(memory, now)
            and now - memory.observed_at < OBSERVE_INTERVAL_SECONDS
            and memory.last.runs == _newest_run(instance, self._sensor.group_id)
            and memory.last.kafka == self._read_fingerprint(memory.kafka)
        )

    def _read_fingerprint(self, kafka: KafkaSettings) -> Hashable:
        from kafka_liveness_dagster.kafka.admin import Cluster  # noqa: PLC0415 - confluent_kafka stays lazy

        # Not the last tick's cluster: its client may have been closed, or its certificates have changed
        return read_fingerprint(Cluster(kafka), self._sensor.group_id, self._sensor.topics)


def _newest_run(instance: dg.DagsterInstance, group_id: str) -> int:
    """Return the storage id of the group's newest run; 0 without one."""
    newest = instance.get_run_records(dg.RunsFilter(tags={GROUP_TAG: group_id}), limit=1)
    return newest[0].storage_id if newest else 0


class GroupTick:
    """One evaluation of the sensor, as steps that share their findings.

    Args:
        sensor: settings of the group.
        context: context of Dagster's evaluation.
        cluster: cluster of the group.
        table: reads the table's ledger; None for a group without a table.
        cursor: cursor of the group.
        known: records of Dagster that were read before; None without.
    """

    def __init__(  # noqa: PLR0917 - one call
        self,
        sensor: GroupSensor,
        context: dg.SensorEvaluationContext,
        cluster: Cluster,
        table: TableLedgerReader | None,
        cursor: str | None,
        known: KnownRecords | None,
    ) -> None:
        self._sensor = sensor
        self._instance = context.instance
        self._log = context.log
        self._cluster = cluster
        self._table = table
        self._now = time.time()
        self._cursor = GroupCursor.decode(cursor).as_of(self._now)
        self._known = known
        self._runs = None if known is None else KnownRuns(known.in_progress, known.recent)
        self._partition_keys: _PartitionKeys | None = None
        self._windows = WindowProgress()
        self._evaluations: Sequence[dg.AssetCheckEvaluation] = ()
        self._checks = self._cursor.stored_checks
        self._are_all_checks_stored = False

    def run(self) -> dg.SensorResult:
        """Run all steps, in an order in which each needs only the findings of earlier ones."""
        self._find_coordinators()
        self._find_what_is_due()
        self._observe_group()
        self._detect_events()
        self._end_orphaned_runs()
        self._end_spark_sessions()
        self._request_live_run()
        self._evaluate_checks()
        self._complete_windows()
        self._request_catch_up_run()
        return self._result()

    @property
    def is_idle(self) -> bool:
        """Whether a later tick could act only on a change; for a tick that was run.

        Changes are those of the group's state, of log bounds, of runs and of commits.
        """
        observed = self._observed
        seen = observed.snapshot
        is_at_work = bool(
            seen.members
            or observed.live_in_progress
            or observed.catch_up
            or any(one.lag or one.pending_offsets for one in seen.partitions)
            or any(gone.reason.needs_successor for gone in seen.owners_without_member)
        )
        has_acted = bool(
            self._events
            or self._live_runs
            or self._catch_up_runs
            or self._event_runs
            or self._memory.forgotten_ranges
        )
        is_checked = self._newest_storage_id <= self._cursor.checked_materialization
        return not (is_at_work or has_acted or self.is_window_due) and (is_checked or bool(self._evaluations))

    @property
    def fingerprint(self) -> Hashable:
        """The group's state and log bounds, as the tick observed them."""
        return self._observed.fingerprint

    @property
    def has_observed(self) -> bool:
        """Whether the tick observed the topics without an event, as once a minute."""
        return self._is_due

    @property
    def recent_runs(self) -> Sequence[dg.RunRecord]:
        """The newest live runs, and all in progress, as the tick observed them."""
        return self._observed.records

    @property
    def window_progress(self) -> WindowProgress:
        """The progress of the windows after the tick."""
        return self._windows

    @property
    def status(self) -> str:
        """Why the tick requests no live run, with lag and pending offsets."""
        return self._why_no_live_run.removeprefix(NOTHING_TO_START)

    @property
    def is_window_due(self) -> bool:
        """Whether the end of a window has passed by now, so that a tick must process it."""
        return self._sensor.is_window_due(self._windows, time.time())

    def _find_coordinators(self) -> None:
        group_id = self._sensor.group_id
        both = (group_id, group_id + CATCH_UP_SUFFIX)
        for commit_log in both if self._cursor.pending_hash else both[:1]:
            self._cluster.find_coordinator(commit_log)

    def _find_what_is_due(self) -> None:
        """Decide what to report without an event: the observation, checks, and complete windows."""
        sensor = self._sensor
        cursor = self._cursor
        known = self._known
        must_observe = known is not None and known.must_observe
        latest = None if known is None else known.latest
        self._is_due = must_observe or self._now - cursor.observed_at >= OBSERVE_INTERVAL_SECONDS
        self._newest_storage_id = (
            sensor.checks.latest_storage_id(self._instance, self._now, known=latest) if sensor.checks else 0
        )
        self._must_reevaluate = needs_reevaluation(
            self._newest_storage_id, cursor.checked_materialization, cursor.checks_stored_at, now=self._now
        )
        if sensor.windows:
            self._windows = sensor.windows.load_progress(self._instance, cursor, self._now)
        self._are_windows_due = sensor.is_window_due(self._windows, self._now)

    def _observe_group(self) -> None:
        """Read Dagster, then the group.

        Else a range that is materialized in between comes back as a new partition. A shared sensor reads
        Kafka for all groups first, so a group with what looks like a new partition is read once more.
        """
        tells = self._must_reevaluate or self._are_windows_due
        if self._is_due and self._cursor.pending_hash:
            self._partition_keys = self._read_partition_keys()
        self._observed = self._read_group(must_read_ledger=self._is_due or tells)
        if self._known is not None and self._find_new_keys():
            self._observed = self._read_group(must_read_ledger=self._is_due or tells)
        is_news = self._observed.pending_hash not in {0, self._cursor.pending_hash}
        if self._partition_keys is None and is_news:
            self._partition_keys = self._read_partition_keys()
            self._observed = self._read_group(must_read_ledger=tells)

    def _find_new_keys(self) -> list[str]:
        known = self._partition_keys
        if known is None:
            return []
        return new_keys(self._observed.pending, known.existing, known.materialized)

    def _detect_events(self) -> None:
        sensor = self._sensor
        cursor = self._cursor
        observed = self._observed
        self._events, self._memory = detect_events(
            cursor.memory, observed.snapshot, self._now, ghost_after_seconds=sensor.ghost_after_seconds
        )
        self._new_keys = self._find_new_keys()
        self._events += [CrashLagFound(key, parse_key(key).size) for key in self._new_keys]
        # Some ranges are no longer forgotten, so the check may pass again
        is_less_forgotten = cursor.forgotten_ranges != self._memory.forgotten_ranges
        self._reports = bool(self._events) or self._is_due or is_less_forgotten
        for line in observed.external_commit_lines if self._reports else ():
            self._log.warning("Group %s: %s", sensor.group_id, line)
        self._event_runs, self._failed_hooks = sensor.event_hook.call(self._events, cursor, self._log)

    def _end_orphaned_runs(self) -> None:
        sensor = self._sensor
        self._orphaned = OrphanedRuns(
            self._observed,
            self._memory.absent_runs,
            self._now,
            after_seconds=sensor.ghost_after_seconds,
            always=sensor.fail_ghost_runs,
        )
        by = f"sensor {sensor.name} of group {sensor.group_id}"
        has_ended = self._orphaned.end_dead_runs(self._instance, by, self._log)
        if has_ended or self._is_due:
            free_pool_slots(self._instance, sensor.crash_lag, self._now)

    def _end_spark_sessions(self) -> None:
        """End the Spark sessions of crashed runs, so that their jobs take no core from the successor."""
        if self._table is None:
            return
        for mark in crashed_runs(self._events):
            run = self._observed.run_of_mark(mark)
            session_id = run.tags.get(SESSION_TAG) if run is not None else None
            if session_id and self._observed.has_process_ended(mark):
                end_spark_session(self._table, session_id, mark)

    def _request_live_run(self) -> None:
        requests = self._sensor.requests
        self._live_runs, self._why_no_live_run = requests.live_run(
            self._instance,
            self._observed,
            self._now,
            orphaned=self._orphaned.live_runs(requests.max_live_runs),
            read_in_progress=self._read_in_progress,
        )

    def _evaluate_checks(self) -> None:
        """Evaluate the asset checks with each report, or when their last results are outdated."""
        sensor = self._sensor
        observed = self._observed
        table = self._table
        is_evaluated = self._reports or self._must_reevaluate
        if sensor.checks is not None and not is_evaluated:
            is_evaluated = sensor.checks.has_freshness_changed(observed, self._checks.outcomes, self._now)
        if self._partition_keys is None and observed.pending_hash and is_evaluated:
            self._partition_keys = self._read_partition_keys()
        if sensor.checks is None or not is_evaluated:
            return
        missing = self._partition_keys.missing if self._partition_keys else []
        was_read = table is None or table.was_read  # a stored result must show whether rows are missing
        evaluations = sensor.checks.evaluate(
            observed if was_read else self._read_group(),
            self._instance,
            [*missing, *self._new_keys],
            now=self._now,
            requested=bool(self._live_runs),
            forgotten=self._memory.forgotten_ranges,
            table=table,
            open_transactions=observed.open_transactions(self._cluster, sensor.group_id),
            timestamps_ms=sensor.checks.read_timestamps(self._cluster, observed),
        )
        self._evaluations, self._checks = changed_evaluations(
            evaluations,
            self._checks,
            now=self._now,
            must_repeat=self._must_reevaluate
            or sensor.checks.are_results_outdated(self._instance, self._checks.outcomes),
        )
        self._are_all_checks_stored = len(self._evaluations) == len(evaluations)

    def _complete_windows(self) -> None:
        windows = self._sensor.windows
        table = self._table
        if windows is None or table is None:
            return
        cannot_tell = table.unavailable_reason or ("" if table.was_read else "it was not read")
        cannot_tell = cannot_tell or ("" if table.exists else f"{table.target} does not exist yet")
        self._windows = windows.materialize_complete(
            self._cluster,
            self._instance,
            self._observed,
            progress=self._windows,
            now=self._now,
            unavailable_reason=cannot_tell,
        )

    def _request_catch_up_run(self) -> None:
        self._catch_up_runs = self._sensor.requests.catch_up_run(
            self._instance,
            self._observed,
            lambda: (self._partition_keys or self._read_partition_keys()).missing,
            now=self._now,
            orphaned=self._orphaned.catch_up_runs(),
            read_in_progress=self._read_in_progress,
        )

    def _result(self) -> dg.SensorResult:
        runs = [*self._live_runs, *self._catch_up_runs, *self._event_runs]
        foreign_keys = self._partition_keys.foreign if self._partition_keys else ()
        skip_reason = None if runs else self._why_no_live_run + _foreign_keys_warning(foreign_keys)
        seen = self._observed.snapshot
        self._sensor.metrics.record(
            self._cluster, len(seen.members), seen.partitions, self._events, cluster_for_times=self._reports
        )
        keys = self._new_keys
        return dg.SensorResult(
            run_requests=runs,
            skip_reason=skip_reason,
            dynamic_partitions_requests=(
                [self._sensor.partitions_def.build_add_request(keys)] if keys else []
            ),
            asset_events=self._asset_events(),
            cursor=self._next_cursor().encode(),
        )

    def _asset_events(self) -> list[Any]:
        sensor = self._sensor
        of_topics = (
            group_observations(
                sensor.group_id,
                sensor.topics,
                self._observed,
                events=self._events,
                failed=self._failed_hooks,
                windows=self._windows.status_text,
            )
            if self._reports
            else ()
        )
        keys = not_yet_materialized(self._instance, sensor.crash_lag.key, self._new_keys)
        of_crash_lag = crash_lag_observations(
            self._instance,
            sensor.crash_lag.key,
            sensor.group_id,
            keys=keys,
            observed=self._observed,
            event_times=self._event_times([parse_key(key) for key in keys]),
        )
        return [*of_topics, *self._windows.events, *of_crash_lag, *self._evaluations]

    def _event_times(self, ranges: Sequence[OffsetRange]) -> Mapping[OffsetRange, tuple[float, float]]:
        """Read the event times of new crash lag; none if the broker fails, because the tick must not fail."""
        from kafka_liveness_dagster.kafka.timestamps import event_times  # noqa: PLC0415 - confluent_kafka stays lazy

        try:
            return event_times(self._cluster, self._sensor.group_id, ranges)
        except KafkaLivenessError as error:
            self._log.warning("Event times of new crash lag are unknown: %s", error)
            return {}

    def _next_cursor(self) -> GroupCursor:
        cursor = self._cursor
        checked = self._newest_storage_id if self._are_all_checks_stored else 0
        return GroupCursor.of(
            self._memory,
            observed_at=self._now if self._is_due else cursor.observed_at,
            event_count=cursor.event_count + len(self._events),
            checks=self._checks,
            checked_materialization=max(checked, cursor.checked_materialization),
            pending_hash=self._observed.pending_hash,
            told=self._windows,
            started_at=cursor.started_at or int(self._now),
        )

    @property
    def _read_in_progress(self) -> Callable[[], Sequence[dg.RunRecord]] | None:
        return None if self._known is None else self._known.read_in_progress

    def _read_partition_keys(self) -> _PartitionKeys:
        """Read all partition keys that ever existed.

        Only if ranges are pending, and these have changed or are reported.
        """
        existing = self._instance.get_dynamic_partitions(self._sensor.partitions_def.name or "")
        crash_lag = self._sensor.crash_lag.key
        return _PartitionKeys(
            existing, self._instance.get_materialized_partitions(crash_lag) if existing else set()
        )

    def _read_group(self, *, must_read_ledger: bool = True) -> GroupObservation:
        sensor = self._sensor
        # Used once, because a second read needs the runs of that moment
        runs, self._runs = self._runs, None
        return GroupObservation.read(
            self._cluster,
            self._instance,
            sensor.group_id,
            sensor.topics,
            recent_runs=3 * sensor.requests.max_live_runs,
            ledger=self._table,
            must_read_ledger=must_read_ledger,
            known_runs=runs,
        )


def _foreign_keys_warning(stray: Sequence[str]) -> str:
    return f"; delete the partitions that are not crash lag: {', '.join(stray[:3])}" if stray else ""
