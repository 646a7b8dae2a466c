"""Evaluate the ticks of many groups in one sensor, with one read of what they share.

A group whose runs, state and log bounds are the same gets no tick, unless the last one was a minute ago. The
memory of these is the process's, and counts only for the cursor that the last tick returned. Has no second
copy of a tick: each is that of ``sensor.sensor``. The error of one group fails no other group.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dagster as dg

from kafka_liveness_dagster.core.errors import KafkaLivenessError, summary_line
from kafka_liveness_dagster.core.shared_ticks import LastTick, groups_to_refresh, skip_reason
from kafka_liveness_dagster.embedded.state import ServicesDownError
from kafka_liveness_dagster.runs.storage import DagsterStorageError, storage_errors
from kafka_liveness_dagster.runs.tags import GROUP_TAG, in_progress_filter
from kafka_liveness_dagster.sensor.cursor import decode_group_cursors, encode_group_cursors
from kafka_liveness_dagster.sensor.dead_runs import wait_for_process_exit
from kafka_liveness_dagster.sensor.sensor import SKIP_MESSAGE, KnownRecords

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.group_reads import GroupReads
    from kafka_liveness_dagster.resources.kafka import KafkaLivenessResource
    from kafka_liveness_dagster.sensor.cursor import WindowProgress
    from kafka_liveness_dagster.sensor.sensor import GroupSensor

_MAX_NEW_RUNS = 200  # in one query; with more of them since the last tick, every group counts as changed
_MAX_ERROR_CHARS = 200


@dataclass(frozen=True)
class _Runs:
    """The runs of all groups, read before Kafka.

    Attributes:
        in_progress: runs of each group in progress.
        newest: storage id of the newest run of each group; 0 without.
        newest_of_all: the largest of them.
    """

    in_progress: Mapping[str, Sequence[dg.RunRecord]] = field(default_factory=dict)
    newest: Mapping[str, int] = field(default_factory=dict)
    newest_of_all: int = 0

    def fingerprint(self, group_id: str) -> tuple[int, frozenset[str]]:
        """Return the newest run of a group and its runs in progress, to compare with another tick."""
        ids = frozenset(record.dagster_run.run_id for record in self.in_progress.get(group_id, ()))
        return self.newest.get(group_id, 0), ids


@dataclass(frozen=True)
class _Memory:
    """The last ticks of all groups, and the cursor that the sensor returned then."""

    cursor: str | None = None
    at: float = 0.0
    runs: _Runs = field(default_factory=_Runs)
    ticks: Mapping[str, LastTick] = field(default_factory=dict)
    windows: Mapping[str, WindowProgress] = field(default_factory=dict)


@dataclass
class _Outcome:
    """What one tick of the sensor found, group by group."""

    results: list[dg.SensorResult] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)
    cursors: dict[str, str] = field(default_factory=dict)
    ticks: dict[str, LastTick] = field(default_factory=dict)
    windows: dict[str, WindowProgress] = field(default_factory=dict)

    def add_error(self, group_id: str, error: Exception, cursor: str | None) -> None:
        """Add a failed tick of a group, with the group's cursor, from which its next tick goes on."""
        self.errors[group_id] = error
        self.statuses[group_id] = f"its tick failed: {summary_line(error)[:_MAX_ERROR_CHARS]}"
        if cursor is not None:
            self.cursors[group_id] = cursor


class SharedSensor:
    """The groups of one sensor, all of one cluster."""

    def __init__(self, groups: Sequence[GroupSensor]) -> None:
        self._groups = {one.group_id: one for one in groups}
        self._memory = _Memory()

    def evaluate(
        self, context: dg.SensorEvaluationContext, kafka: KafkaLivenessResource
    ) -> dg.SensorResult | dg.SkipReason:
        """Evaluate the sensor.

        Raises:
            KafkaLivenessError: the tick of every group failed.
        """
        with storage_errors(SKIP_MESSAGE):
            wait_for_process_exit(context.instance, list(self._groups))
            try:
                topics = {topic: None for group in self._groups.values() for topic in group.topics}
                kafka.create_missing_topics(list(topics), context.log.info)
                return self._tick(context, kafka.cluster())
            except ServicesDownError as error:
                self._report_unknown_freshness(context.instance, error)
                # A person caused it, so it is a skip: a failure would log a page of traceback every 5 s
                return dg.SkipReason(str(error))

    def _tick(self, context: dg.SensorEvaluationContext, cluster: Cluster) -> dg.SensorResult:
        from kafka_liveness_dagster.kafka.group_reads import GroupReads  # noqa: PLC0415 - confluent_kafka stays lazy

        now = time.monotonic()
        # Another cursor: Dagster did not store the last one, or another process evaluated the sensor
        memory = self._memory if context.cursor == self._memory.cursor else _Memory()
        runs = self._read_runs(context.instance, memory.runs)
        try:
            reads = GroupReads(cluster, {one.group_id: one.topics for one in self._groups.values()})
            chosen, refreshed = self._choose_and_read(reads, runs, memory, now=now)
        except KafkaLivenessError as error:  # of all groups
            self._report_unknown_freshness(context.instance, error)
            raise
        latest = self._latest_materializations(context.instance, chosen)
        before = decode_group_cursors(context.cursor)
        found = _Outcome()
        for group_id, group in self._groups.items():
            last = memory.ticks.get(group_id)
            if group_id not in chosen and last is not None:
                found.ticks[group_id] = last
                found.windows[group_id] = memory.windows[group_id]
                found.cursors[group_id] = before[group_id]
                continue
            known = KnownRecords(
                runs.in_progress.get(group_id, ()), latest, must_observe=group_id in refreshed
            )
            try:
                with storage_errors(SKIP_MESSAGE):
                    tick = group.tick(context, reads.cluster_of(group_id), before.get(group_id), known)
                    result = tick.run()
            except DagsterStorageError:
                raise  # of all groups: each further one would wait for the storage too
            except Exception as error:
                if isinstance(error, KafkaLivenessError):
                    context.log.error("Group %s: %s", group_id, error)  # noqa: TRY400 - the error explains itself
                else:
                    context.log.exception("The tick of group %s failed", group_id)
                group.report_unknown_freshness(context.instance, error)
                found.add_error(group_id, error, before.get(group_id))
                continue
            found.results.append(result)
            found.cursors[group_id] = result.cursor or ""
            found.windows[group_id] = tick.window_progress
            found.ticks[group_id] = LastTick.after(
                last,
                now,
                runs=runs.fingerprint(group_id),
                kafka=reads.groups[group_id].fingerprint,
                is_idle=tick.is_idle,
            )
            if not tick.is_idle:
                found.statuses[group_id] = tick.status
        if len(found.errors) == len(self._groups):
            raise next(iter(found.errors.values()))
        return self._merge(found, runs, now)

    def _choose_and_read(
        self, reads: GroupReads, runs: _Runs, memory: _Memory, now: float
    ) -> tuple[set[str], set[str]]:
        """Read what the chosen groups need, and return them, and those of them whose turn it was."""
        quiet = {
            group_id: last
            for group_id, last in memory.ticks.items()
            if last.may_skip(now)
            and last.runs == runs.fingerprint(group_id)
            and not self._is_window_due(group_id, memory)
        }
        refreshed = set(groups_to_refresh(quiet, now, now - memory.at))
        early = [group_id for group_id in self._groups if group_id not in quiet or group_id in refreshed]
        at_work = [group_id for group_id in early if runs.in_progress.get(group_id)]
        reads.read_commits(early, at_work)
        reads.read_shared()
        late = [
            group_id
            for group_id, last in quiet.items()
            if group_id not in refreshed and reads.groups[group_id].fingerprint != last.kafka
        ]
        if late:
            reads.read_commits(late, at_work)
            reads.read_log_bounds(late)
        reads.read_descriptions([*early, *late])
        return {*early, *late}, refreshed

    def _is_window_due(self, group_id: str, memory: _Memory) -> bool:
        windows = self._groups[group_id].windows
        return windows is not None and windows.is_due(memory.windows[group_id], time.time())

    def _read_runs(self, instance: dg.DagsterInstance, last: _Runs) -> _Runs:
        """Read the runs in progress, and the newest run of each group if there is a newer one than before."""
        by_group: dict[str, list[dg.RunRecord]] = {}
        for record in instance.get_run_records(in_progress_filter(list(self._groups))):
            by_group.setdefault(record.dagster_run.tags[GROUP_TAG], []).append(record)
        every = dg.RunsFilter(tags={GROUP_TAG: list(self._groups)})
        newest_of_all = max((one.storage_id for one in instance.get_run_records(every, limit=1)), default=0)
        newest = dict(last.newest)
        if newest_of_all != last.newest_of_all:
            records = instance.get_run_records(every, limit=_MAX_NEW_RUNS)
            if len(records) == _MAX_NEW_RUNS and records[-1].storage_id > last.newest_of_all:
                newest = dict.fromkeys(self._groups, newest_of_all)
            for record in reversed(records):
                newest[record.dagster_run.tags[GROUP_TAG]] = record.storage_id
        return _Runs(by_group, newest, newest_of_all)

    def _latest_materializations(
        self, instance: dg.DagsterInstance, group_ids: Collection[str]
    ) -> dict[dg.AssetKey, dg.EventLogRecord]:
        """Return the last materialization of each asset of these groups."""
        checks = [one for group_id in group_ids if (one := self._groups[group_id].checks) is not None]
        keys = [key for one in checks for key in (one.live, one.crash_lag)]
        found = {}
        for record in instance.get_asset_records(keys) if keys else ():
            entry = record.asset_entry
            if entry.last_materialization_record is not None:
                found[entry.asset_key] = entry.last_materialization_record
        return found

    def _report_unknown_freshness(self, instance: dg.DagsterInstance, error: KafkaLivenessError) -> None:
        for group in self._groups.values():
            group.report_unknown_freshness(instance, error)

    def _merge(self, found: _Outcome, runs: _Runs, now: float) -> dg.SensorResult:
        """Return the results of all groups as one, and keep their ticks in memory."""
        requests = [request for one in found.results for request in one.run_requests or ()]
        cursor = encode_group_cursors(found.cursors)
        self._memory = _Memory(cursor, now, runs, ticks=found.ticks, windows=found.windows)
        events: list[Any] = [event for one in found.results for event in one.asset_events]
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else skip_reason(len(self._groups), found.statuses),
            dynamic_partitions_requests=[
                request for one in found.results for request in one.dynamic_partitions_requests or ()
            ],
            asset_events=events,
            cursor=cursor,
        )
