"""Evaluate the ticks of many groups in one sensor, with one read of what they share.

A group whose runs, state and log bounds are the same gets no tick, unless the last one was a minute ago. The
memory of these is the process's, and counts only for the cursor that the last tick returned. Has no second
copy of a tick: each is that of ``sensor.sensor``. The error of one group fails no other group.
"""

from __future__ import annotations

import time
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg

from kafka_liveness_dagster.core.errors import KafkaLivenessError, summary_line
from kafka_liveness_dagster.core.idle_groups import LastTick, groups_to_observe, skip_reason
from kafka_liveness_dagster.embedded.state import ServicesDownError
from kafka_liveness_dagster.runs.storage import DagsterStorageError, storage_errors
from kafka_liveness_dagster.runs.tags import GROUP_TAG, in_progress_filter
from kafka_liveness_dagster.sensor.cursor import decode_group_cursors, encode_group_cursors
from kafka_liveness_dagster.sensor.dead_runs import ExitWatch
from kafka_liveness_dagster.sensor.sensor import SKIP_MESSAGE, KnownRecords, TickMemory

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence

    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.group_reads import GroupReads
    from kafka_liveness_dagster.resources.kafka import KafkaLivenessResource
    from kafka_liveness_dagster.sensor.sensor import GroupSensor

_MAX_NEW_RUNS = 200  # in one query; with more of them since the last tick, every group counts as changed
_MAX_ERROR_CHARS = 200
_IN_PROGRESS_SECONDS = 1.0  # age of the runs in progress when a run is requested
_RECENT_RUNS_SECONDS = 600.0
MAX_TICKS_SECONDS = 20.0  # of the groups' ticks; Dagster ends a tick after 60 s, and stores nothing of it
UNFINISHED_PAUSE_SECONDS = 300.0
"""Time after which a group's tick is repeated that did not end, and so cost the ticks of all groups."""


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


class _RunsInProgress:
    """The runs of all groups in progress, read again if they are older than a second."""

    def __init__(self, instance: dg.DagsterInstance, group_ids: Sequence[str]) -> None:
        self._instance = instance
        self._group_ids = group_ids
        self._read_at = -_IN_PROGRESS_SECONDS
        self._known: dict[str, list[dg.RunRecord]] = {}

    def read(self, group_id: str) -> Sequence[dg.RunRecord]:
        if time.monotonic() - self._read_at >= _IN_PROGRESS_SECONDS:
            self._known = _runs_in_progress(self._instance, self._group_ids)
            self._read_at = time.monotonic()
        return self._known.get(group_id, ())


def _runs_in_progress(
    instance: dg.DagsterInstance, group_ids: Sequence[str]
) -> dict[str, list[dg.RunRecord]]:
    found: dict[str, list[dg.RunRecord]] = {}
    for record in instance.get_run_records(in_progress_filter(group_ids)):
        found.setdefault(record.dagster_run.tags[GROUP_TAG], []).append(record)
    return found


@dataclass(frozen=True)
class _GroupMemory(TickMemory):
    """The last tick of a group, and what it read that may be used again.

    Attributes:
        recent: newest live runs.
        recent_at: time when they were read.
    """

    recent: Sequence[dg.RunRecord]
    recent_at: float

    def recent_runs(self, runs: Hashable, now: float) -> Sequence[dg.RunRecord] | None:
        """Return the newest live runs; None if a run was added or has ended since they were read.

        A run that has ended changes only when a person deletes it.
        """
        is_same = self.last.runs == runs and now - self.recent_at <= _RECENT_RUNS_SECONDS
        return self.recent if is_same else None


@dataclass(frozen=True)
class _Memory:
    """The last ticks of all groups, and the cursor that the sensor returned then."""

    cursor: str | None = None
    at: float = 0.0
    runs: _Runs = field(default_factory=_Runs)
    memories: Mapping[str, _GroupMemory] = field(default_factory=dict)
    failed_at: Mapping[str, float] = field(default_factory=dict)

    def ticked_at(self, group_id: str) -> float:
        """Return the time of a group's last tick, which may have failed; 0 before the first."""
        known = self.memories.get(group_id)
        return self.failed_at.get(group_id, 0.0) if known is None else known.last.ticked_at


@dataclass
class _Round:
    """One tick of the sensor, group by group.

    Attributes:
        before: cursors of the groups.
        latest: last materializations of the groups' assets.
        observed: groups whose turn it is to be observed.
    """

    context: dg.SensorEvaluationContext
    reads: GroupReads
    runs: _Runs
    _: KW_ONLY
    memory: _Memory
    now: float
    before: Mapping[str, str]
    latest: Mapping[dg.AssetKey, dg.EventLogRecord]
    observed: Collection[str]
    in_progress: _RunsInProgress
    memories: dict[str, _GroupMemory] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    _results: list[dg.SensorResult] = field(default_factory=list)
    _statuses: dict[str, str] = field(default_factory=dict)
    _cursors: dict[str, str] = field(default_factory=dict)

    def skip(self, group_id: str) -> None:
        """Keep the memory and the cursor of a group that needs no tick."""
        self.memories[group_id] = self.memory.memories[group_id]
        self._keep_cursor(group_id)

    def tick(self, group: GroupSensor) -> None:
        """Run the tick of a group; its error is logged, and its next tick goes on from the same cursor.

        Raises:
            DagsterStorageError: the storage failed, which it would do for each further group.
        """
        group_id = group.group_id
        if (self._results or self.errors) and time.monotonic() - self.now > MAX_TICKS_SECONDS:
            self._statuses[group_id] = f"its tick waits: those of other groups took {MAX_TICKS_SECONDS:.0f} s"
            self._keep_cursor(group_id)
            return
        log = self.context.log
        try:
            with storage_errors(SKIP_MESSAGE):
                self._run(group)
        except DagsterStorageError:
            raise
        except Exception as error:
            if isinstance(error, KafkaLivenessError):
                log.error("Group %s: %s", group_id, error)  # noqa: TRY400 - the error explains itself
            else:
                log.exception("The tick of group %s failed", group_id)
            group.report_unknown_freshness(self.context.instance, error)
            self.errors[group_id] = error
            self._statuses[group_id] = f"its tick failed: {summary_line(error)[:_MAX_ERROR_CHARS]}"
            self._keep_cursor(group_id)

    def leave_out(self, group_id: str) -> None:
        """Keep the cursor of a group during whose last tick Dagster gave up the sensor."""
        self._statuses[group_id] = (
            "its last tick has not ended: an on_event callback may block. It is repeated after "
            f"{UNFINISHED_PAUSE_SECONDS:.0f} s"
        )
        self.context.log.error("Group %s: %s", group_id, self._statuses[group_id])
        self._keep_cursor(group_id)

    def merged(self) -> dg.SensorResult:
        """Return the results of all groups as one."""
        results = self._results
        requests = [request for one in results for request in one.run_requests or ()]
        events: list[Any] = [event for one in results for event in one.asset_events]
        count = len(self.memories.keys() | self._statuses.keys())
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else skip_reason(count, self._statuses),
            dynamic_partitions_requests=[
                request for one in results for request in one.dynamic_partitions_requests or ()
            ],
            asset_events=events,
            cursor=encode_group_cursors(self._cursors),
        )

    def _run(self, group: GroupSensor) -> None:
        group_id = group.group_id
        seen = self.runs.fingerprint(group_id)
        before = self.memory.memories.get(group_id)
        recent = None if before is None else before.recent_runs(seen, self.now)
        known = KnownRecords(
            self.runs.in_progress.get(group_id, ()),
            recent,
            partial(self.in_progress.read, group_id),
            self.latest,
            must_observe=group_id in self.observed,
        )
        tick = group.tick(self.context, self.reads.cluster_of(group_id), self.before.get(group_id), known)
        result = tick.run()
        last = LastTick.after(
            None if before is None else before.last,
            self.now,
            runs=seen,
            kafka=self.reads.groups[group_id].fingerprint,
            is_idle=tick.is_idle,
        )
        recent_at = self.now if before is None or recent is None else before.recent_at
        observed_at = self.now if before is None or tick.has_observed else before.observed_at
        self.memories[group_id] = _GroupMemory(
            last, tick.window_progress, observed_at, recent=tick.recent_runs, recent_at=recent_at
        )
        self._results.append(result)
        self._cursors[group_id] = result.cursor or ""
        if not last.is_idle:
            self._statuses[group_id] = tick.status

    def _keep_cursor(self, group_id: str) -> None:
        if group_id in self.before:
            self._cursors[group_id] = self.before[group_id]


class SharedSensor:
    """The groups of one sensor, all of one cluster."""

    def __init__(self, groups: Sequence[GroupSensor]) -> None:
        self._groups = {one.group_id: one for one in groups}
        self._memory = _Memory()
        self._watch = ExitWatch()
        self._began_at: dict[str, float] = {}  # ticks that have not ended

    def evaluate(
        self, context: dg.SensorEvaluationContext, kafka: KafkaLivenessResource
    ) -> dg.SensorResult | dg.SkipReason:
        """Evaluate the sensor.

        Raises:
            KafkaLivenessError: the tick of every group failed.
        """
        # Another cursor: Dagster did not store the last one, or another process evaluated the sensor
        memory = self._memory if context.cursor == self._memory.cursor else _Memory()
        self._memory = _Memory()  # of a tick that fails
        with (
            storage_errors(SKIP_MESSAGE),
            self._watch.before_observation(context.instance, list(self._groups)),
        ):
            try:
                topics = {topic: None for group in self._groups.values() for topic in group.topics}
                kafka.create_missing_topics(list(topics), context.log.info)
                return self._tick(context, kafka.cluster(), memory)
            except ServicesDownError as error:
                self._report_unknown_freshness(context.instance, error)
                # A person caused it, so it is a skip: a failure would log a page of traceback every 5 s
                return dg.SkipReason(str(error))

    def _tick(
        self, context: dg.SensorEvaluationContext, cluster: Cluster, memory: _Memory
    ) -> dg.SensorResult:
        from kafka_liveness_dagster.kafka.group_reads import GroupReads  # noqa: PLC0415 - confluent_kafka stays lazy

        now = time.monotonic()
        runs = self._read_runs(context.instance, memory.runs)
        try:
            reads = GroupReads(cluster, {one.group_id: one.topics for one in self._groups.values()})
            chosen, observed = self._choose_and_read(reads, runs, memory, now=now)
        except KafkaLivenessError as error:  # of all groups
            self._report_unknown_freshness(context.instance, error)
            raise
        this_round = _Round(
            context,
            reads,
            runs,
            memory=memory,
            now=now,
            before=decode_group_cursors(context.cursor),
            latest=self._latest_materializations(context.instance, chosen),
            observed=observed,
            in_progress=_RunsInProgress(context.instance, list(self._groups)),
        )
        # Those that got no tick for the longest time first: the others may have to wait for the next tick
        for group_id in sorted(self._groups, key=lambda one: (one in self._began_at, memory.ticked_at(one))):
            if group_id not in chosen:
                this_round.skip(group_id)
            elif self._is_unfinished(group_id, now):
                this_round.leave_out(group_id)
            else:
                self._began_at[group_id] = now
                try:
                    this_round.tick(self._groups[group_id])
                finally:
                    self._began_at.pop(group_id, None)
        if len(this_round.errors) == len(self._groups):
            raise next(iter(this_round.errors.values()))
        result = this_round.merged()
        failed_at = dict.fromkeys(this_round.errors, now)
        self._memory = _Memory(result.cursor, now, runs, memories=this_round.memories, failed_at=failed_at)
        return result

    def _is_unfinished(self, group_id: str, now: float) -> bool:
        """Return whether Dagster ended the sensor's tick during that of this group, not long ago."""
        began_at = self._began_at.get(group_id)
        return began_at is not None and MAX_TICKS_SECONDS <= now - began_at < UNFINISHED_PAUSE_SECONDS

    def _choose_and_read(
        self, reads: GroupReads, runs: _Runs, memory: _Memory, now: float
    ) -> tuple[set[str], set[str]]:
        """Read what the chosen groups need, and return them, and those of them to observe."""
        quiet = {
            group_id: one.last
            for group_id, one in memory.memories.items()
            if self._groups[group_id].may_skip(one, now) and one.last.runs == runs.fingerprint(group_id)
        }
        observed = set(
            groups_to_observe(
                {group_id: one.observed_at for group_id, one in memory.memories.items()}, now, now - memory.at
            )
        )
        # In the order of the ticks: the last ones may have to wait for the next tick
        by_age = sorted(self._groups, key=memory.ticked_at)
        early = [group_id for group_id in by_age if group_id not in quiet or group_id in observed]
        at_work = [group_id for group_id in early if runs.in_progress.get(group_id)]
        reads.read_commits(early, at_work)
        reads.read_shared()
        late = [
            group_id
            for group_id, last in quiet.items()
            if group_id not in observed and reads.groups[group_id].fingerprint != last.kafka
        ]
        if late:
            reads.read_commits(late, at_work)
            reads.read_log_bounds(late)
        reads.read_descriptions([*early, *late])
        return {*early, *late}, observed

    def _read_runs(self, instance: dg.DagsterInstance, last: _Runs) -> _Runs:
        """Read the runs in progress, and the newest run of each group if there is a newer one than before."""
        in_progress = _runs_in_progress(instance, list(self._groups))
        every = dg.RunsFilter(tags={GROUP_TAG: list(self._groups)})
        newest_of_all = max((one.storage_id for one in instance.get_run_records(every, limit=1)), default=0)
        newest = dict(last.newest)
        if newest_of_all != last.newest_of_all:
            records = instance.get_run_records(every, limit=_MAX_NEW_RUNS)
            if len(records) == _MAX_NEW_RUNS and records[-1].storage_id > last.newest_of_all:
                newest = dict.fromkeys(self._groups, newest_of_all)
            for record in reversed(records):
                newest[record.dagster_run.tags[GROUP_TAG]] = record.storage_id
        return _Runs(in_progress, newest, newest_of_all)

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
