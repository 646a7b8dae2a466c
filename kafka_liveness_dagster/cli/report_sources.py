"""Read the facts of a report from the table's snapshots, Kafka's record timestamps and Dagster's event log.

Names each fact that is missing. Joins no group, commits nothing and writes nothing.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import dagster as dg

from kafka_liveness_dagster.cli.crash_lag_assets import crash_lag_asset, open_instance
from kafka_liveness_dagster.core.errors import InvalidSettingError, KafkaLivenessError, summary_line
from kafka_liveness_dagster.core.events import LeaveReason
from kafka_liveness_dagster.core.freshness import ServiceLevel
from kafka_liveness_dagster.core.ledger import decode_summary
from kafka_liveness_dagster.core.names import format_count, is_table_name, join_some
from kafka_liveness_dagster.core.offsets import difference, union
from kafka_liveness_dagster.core.partition_keys import is_replay, parse_key
from kafka_liveness_dagster.core.report import BUCKETS, Backfill, Departure, GroupHistory, wanted_positions
from kafka_liveness_dagster.core.run_ids import short_run_id
from kafka_liveness_dagster.core.table_history import TableCommit, partition_steps
from kafka_liveness_dagster.kafka.group_status import group_status
from kafka_liveness_dagster.kafka.timestamps import offsets_for_times, timestamps_at
from kafka_liveness_dagster.runs.tags import fence_report_of, lane_tags
from kafka_liveness_dagster.sensor.asset_events import (
    jumped_partitions,
    reported_departures,
    reported_joins,
    topic_key,
)
from kafka_liveness_dagster.sensor.checks import FRESHNESS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.core.freshness import Position
    from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
    from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
    from kafka_liveness_dagster.core.table_history import Step
    from kafka_liveness_dagster.kafka.admin import Cluster

MAX_TIMESTAMPS = 10_000  # reads of a record, 1 to 3 ms each
_PAGE = 1_000  # events or runs in one query of Dagster's storage
_MAX_PAGES = 50
_ATTEMPTS = 2  # reads of a record whose timestamp did not come in time
_MAX_CHECKS = 20
_EXTERNAL = (LeaveReason.EXTERNAL_CLIENT, LeaveReason.UNEXPLAINED)


@dataclass(frozen=True)
class ReportSources:
    """The sources of one report.

    Args:
        cluster: cluster of the group.
        session: returns a Spark session of a server whose catalog has the table.
        topics: topics of the report; none for all that the group has commits of.
        table: the table; None for the one that the group's commits name.
    """

    cluster: Cluster
    session: Callable[[], SparkSession]
    group_id: str
    topics: Sequence[str] = ()
    table: str | None = None
    _: KW_ONLY
    notes: list[str] = field(default_factory=list)

    def read(self, since: float, until: float) -> tuple[GroupHistory, ServiceLevel]:
        """Return the history, and the SLA that Dagster has of the asset; without limits if it has none.

        Raises:
            NoSuchGroupError: the group has no commits.
            InvalidSettingError: the group's rows go to no table.
            KafkaLivenessError: Kafka or Spark did not respond.
        """
        status = group_status(self.cluster, self.group_id, self.topics)
        partitions = [one.snapshot for one in status.partitions]
        table = self.table or _table_of({one.catch_up_log.target for one in status.partitions}, self.group_id)
        known_since, commits, bases, written_off = self._read_table(table)
        events = DagsterEvents(self.group_id, sorted({one.topic_partition.topic for one in partitions}))
        found = events.read(since, until)
        steps = {
            one.topic_partition: partition_steps(
                one.topic_partition,
                commits,
                until=until,
                origin=one.origin,
                base=bases.get(one.topic_partition, ()),
                written_off=union((*one.written_off, *written_off.get(one.topic_partition, ()))),
                skips=found.skips.get(one.topic_partition, ()),
            )
            for one in partitions
        }
        if known_since > since:
            self.notes.append(
                f"The history of {table} begins at {format_time(known_since)}, with its oldest kept "
                "snapshot. The time before is unknown."
            )
        timestamps, unread = self._read_timestamps(partitions, steps, since)
        self.notes.extend(events.notes)
        history = GroupHistory(
            self.group_id,
            since,
            until,
            known_since=known_since,
            steps=steps,
            commits=[commit for commit in commits if since <= commit.at < until],
            timestamps=timestamps,
            unread=unread,
            log_starts={one.topic_partition: one.log_start for one in partitions},
            log_ends=list(self._read_log_ends(partitions, since, until)),
            departures=found.departures,
            live_starts=found.live_starts,
            joins=found.joins,
            skipped=found.skipped,
            backfills=found.backfills,
            notes=self.notes,
        )
        return history, found.sla

    def _read_table(
        self, table: str
    ) -> tuple[
        float,
        list[TableCommit],
        dict[TopicPartition, tuple[Span, ...]],
        dict[TopicPartition, tuple[Span, ...]],
    ]:
        """Return the begin of the known history, its commits, and what the table had before them."""
        from kafka_liveness_dagster.spark.table.ledger import TableLedger  # noqa: PLC0415 - pyspark stays lazy
        from kafka_liveness_dagster.spark.table.snapshots import commit_times, summaries_of  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.table import IcebergTable  # noqa: PLC0415

        target = IcebergTable(table)
        history = TableLedger(target, self.session).prove()
        if not history.commits:
            raise InvalidSettingError(
                f"Table {table} has no snapshot, so there is no history to report. Fix: name the table of "
                f"group {self.group_id} with --table, or start its live run."
            )
        times = commit_times(self.session(), target)
        kept = [one for one in reversed(history.commits) if isinstance(one.commit_id, int)]
        commits = [
            TableCommit(times[commit_id], one.written if one.text else {}, one.added_rows)
            for one in kept
            if (commit_id := int(one.commit_id)) in times
        ]
        bases: dict[TopicPartition, tuple[Span, ...]] = {}
        if kept[0].parent_id is not None:  # older snapshots have expired
            oldest = int(kept[0].commit_id)
            summary = summaries_of(self.session(), target, [oldest]).get(oldest)
            before = decode_summary(oldest, summary.total) if summary else {}
            for tp, entry in history.ledger.entries.items():
                since = union(span for one in commits for span in one.written.get(tp, ()))
                recorded = before[tp].written if tp in before else ()
                bases[tp] = union((*recorded, *difference(entry.written, since)))
        written_off = {tp: entry.written_off for tp, entry in history.ledger.entries.items()}
        return commits[0].at, commits, bases, written_off

    def _read_timestamps(
        self,
        partitions: Sequence[PartitionSnapshot],
        steps: Mapping[TopicPartition, Sequence[Step]],
        since: float,
    ) -> tuple[dict[Position, float], set[Position]]:
        """Return the record times, in seconds, and the positions without one although they have a record."""
        found: dict[Position, float] = {}
        wanted: dict[TopicPartition, list[int]] = {}
        count = 0
        for one in partitions:
            tp = one.topic_partition
            of_span = [step for step in steps[tp] if step.until > since]
            there = [at for _, at in wanted_positions(of_span) if one.log_start <= at < one.log_end]
            count += len(there)
            wanted[tp] = there
        every = max(1, -(-count // MAX_TIMESTAMPS))
        measured = {tp: offsets[::every] for tp, offsets in wanted.items() if offsets}
        unread = {(tp, offset) for tp, offsets in wanted.items() for offset in offsets}
        for _ in range(_ATTEMPTS):
            for tp, offset, at_ms in timestamps_at(self.cluster, self.group_id, measured):
                if at_ms is None or at_ms >= 0:  # a record without a timestamp has -1
                    unread.discard((tp, offset))
                if at_ms is not None and at_ms >= 0:
                    found[tp, offset] = at_ms / 1000
            measured = {
                tp: [one for one in offsets if (tp, one) in unread] for tp, offsets in measured.items()
            }
        if every > 1:
            self._use_older_timestamps(wanted, found, unread, every)
        if unread:
            self.notes.append(
                f"Kafka returned no timestamp of {format_count(len(unread), 'record')} in time. The times "
                "that depend on them are unknown."
            )
        return found, unread

    def _use_older_timestamps(
        self,
        wanted: Mapping[TopicPartition, Sequence[int]],
        found: dict[Position, float],
        unread: set[Position],
        every: int,
    ) -> None:
        """Give each position that was not read the timestamp of an older record.

        So its age is never too small.
        """
        gap = 0.0
        for tp, offsets in wanted.items():
            last: float | None = None
            for offset in sorted(offsets):
                if (tp, offset) in found:
                    gap = max(gap, found[tp, offset] - (last if last is not None else found[tp, offset]))
                    last = found[tp, offset]
                elif last is not None and (tp, offset) in unread:
                    found[tp, offset] = last
                    unread.discard((tp, offset))
        self.notes.append(
            f"The table has too many commits to read each record: one of {every} was read. Ages are at most "
            f"{gap:,.0f} s too large. Fix: choose a shorter time span for exact ages."
        )

    def _read_log_ends(
        self, partitions: Sequence[PartitionSnapshot], since: float, until: float
    ) -> Iterator[tuple[float, dict[TopicPartition, int]]]:
        """Yield the log ends at the end of each plotted bucket, by the records' timestamps."""
        ends = {one.topic_partition: one.log_end for one in partitions}
        width = (until - since) / BUCKETS
        for index in range(1, BUCKETS + 1):
            at = since + width * index
            found = offsets_for_times(self.cluster, ends, round(1000 * at))
            yield at, {tp: ends[tp] if offset is None else offset for tp, offset in found.items()}


def _table_of(targets: set[str | None], group_id: str) -> str:
    known = sorted(target for target in targets if target)
    if len(known) == 1 and is_table_name(known[0]):
        return known[0]
    if known and not is_table_name(known[0]):
        raise InvalidSettingError(
            f"The rows of group {group_id} go to the sink {known[0]}. A report needs an Iceberg table, whose "
            "snapshots are the history. Fix: watch a sink with the metrics, docs/metrics.md."
        )
    raise InvalidSettingError(
        f"The commits of group {group_id} name {join_some(known) or 'no table'}. Fix: name the table with "
        "--table."
    )


@dataclass(frozen=True)
class FoundEvents:
    """The events of one group in Dagster."""

    departures: Sequence[Departure] = ()
    live_starts: Sequence[float] = ()
    joins: Sequence[tuple[float, str]] = ()
    skipped: Mapping[OffsetRange, str] = field(default_factory=dict)
    skips: Mapping[TopicPartition, Sequence[tuple[float, int]]] = field(default_factory=dict)
    backfills: Sequence[Backfill] = ()
    sla: ServiceLevel = ServiceLevel()  # noqa: RUF009 - it is frozen


class DagsterEvents:
    """Reads the runs and the sensor's events of one group.

    Attributes:
        notes: sentences about facts that are missing.
    """

    def __init__(self, group_id: str, topics: Sequence[str]) -> None:
        self._group_id = group_id
        self._topics = topics
        self.notes: list[str] = []

    def read(self, since: float, until: float) -> FoundEvents:
        """Return the events of a time span; none, with a note, if the instance cannot be read."""
        no_events = "so the report has no runs, crashes, fences and backfills."
        try:
            instance = open_instance()
            if instance is None:
                self.notes.append(f"DAGSTER_HOME is not set, {no_events} Fix: set it to your instance.")
                return FoundEvents()
            with instance:
                return self._read(instance, since, until)
        except Exception as error:  # noqa: BLE001 - Dagster's storages have errors of several packages
            self.notes.append(f"Dagster's instance could not be read ({summary_line(error)}), {no_events}")
            return FoundEvents()

    def _read(self, instance: dg.DagsterInstance, since: float, until: float) -> FoundEvents:
        live = self._runs(instance, "live", since)
        asset: dg.AssetKey | None = None
        try:
            asset = crash_lag_asset(instance, self._group_id, None, "No crash lag was read.")
        except KafkaLivenessError as error:
            self.notes.append(f"Dagster has no crash lag asset of the group: {summary_line(error)}")
        departures, joins = self._departures_and_joins(instance, live, since, until)
        skipped, skips = self._skipped(instance, asset, until) if asset else ({}, {})
        earlier = self._earlier_crashes(instance, set(skipped.values()), since)
        return FoundEvents(
            departures=[*earlier, *departures],
            live_starts=sorted(record.start_time for record in live if record.start_time),
            joins=joins,
            skipped={one: short_run_id(run) for one, run in skipped.items()},
            skips=skips,
            backfills=sorted(
                (
                    Backfill(
                        record.start_time or record.create_timestamp.timestamp(),
                        record.end_time,
                        short_run_id(record.dagster_run.run_id),
                        record.dagster_run.status.value,
                    )
                    for record in self._runs(instance, "catch-up", since)
                    if (record.start_time or record.create_timestamp.timestamp()) < until
                    and (record.end_time or until) >= since
                ),
                key=lambda one: one.start,
            ),
            sla=_stored_sla(instance, asset) if asset else ServiceLevel(),
        )

    def _runs(self, instance: dg.DagsterInstance, lane: Any, since: float) -> list[dg.RunRecord]:
        after = datetime.fromtimestamp(since, timezone.utc)
        wanted = dg.RunsFilter(tags=dict(lane_tags(self._group_id, lane)), updated_after=after)
        found = list(instance.get_run_records(wanted, limit=_PAGE))
        if len(found) == _PAGE:
            self.notes.append(f"Only the newest {_PAGE:,} runs of the {lane} lane were read.")
        return found

    def _departures_and_joins(
        self, instance: dg.DagsterInstance, live: Sequence[dg.RunRecord], since: float, until: float
    ) -> tuple[list[Departure], list[tuple[float, str]]]:
        """Return crashes and fences as the sensor reported them, and failed runs that it did not report.

        Also return when live runs were in the group. The sensor does not see a run that ends between two of
        its ticks; such a run was a member if it succeeded.
        """
        records = {short_run_id(record.dagster_run.run_id): record for record in live}
        found: list[Departure] = []
        reported: set[str] = set()
        joins = [
            (record.end_time, run)
            for run, record in records.items()
            if record.end_time and record.dagster_run.status is dg.DagsterRunStatus.SUCCESS
        ]
        for event in self._observations(instance, topic_key(self._topics[0]), since, until):
            joins += [(event.timestamp, run) for run in reported_joins(event.asset_observation)]
            for run, reason in reported_departures(event.asset_observation):
                reported.add(run)
                if reason.in_good_order or reason in _EXTERNAL:
                    continue
                one = Departure(event.timestamp, run, reason)
                ended = records[run].end_time if run in records else None
                # The sensor reports a crash seconds after Dagster recorded the end of its run
                is_earlier = one.is_crash and ended is not None and ended < event.timestamp
                found.append(Departure(ended if is_earlier and ended else event.timestamp, run, reason))
        for run, record in records.items():
            ended = record.end_time
            if run in reported or record.dagster_run.status is not dg.DagsterRunStatus.FAILURE or not ended:
                continue
            report = fence_report_of(record.dagster_run)
            left = report.reason.leave if report else None
            if left is not None and left.in_good_order:
                continue
            found.append(Departure(ended, run, LeaveReason.CRASHED if record.start_time else None))
        in_span = sorted((one for one in found if since <= one.at < until), key=lambda one: one.at)
        return in_span, sorted(one for one in joins if one[0] < until)

    def _skipped(
        self, instance: dg.DagsterInstance, asset: dg.AssetKey, until: float
    ) -> tuple[dict[OffsetRange, str], dict[TopicPartition, list[tuple[float, int]]]]:
        """Return the crash lag ranges with the id of the run that crashed, if Dagster has it.

        Also return when the sensor reported each of them: the live lane has skipped to its end by then.
        """
        found = {}
        skips: dict[TopicPartition, list[tuple[float, int]]] = {}
        for event in self._observations(instance, asset, None, until):
            observation = event.asset_observation
            crashed = observation.metadata.get("crashed_run") if observation else None
            for key in jumped_partitions(observation):
                if is_replay(key):
                    continue
                one = parse_key(key)
                skips.setdefault(one.topic_partition, []).append((event.timestamp, one.end))
                if isinstance(crashed, dg.DagsterRunMetadataValue):
                    found[one] = crashed.run_id
        return found, skips

    def _earlier_crashes(
        self, instance: dg.DagsterInstance, run_ids: set[str], since: float
    ) -> list[Departure]:
        """Return the crashes before the time span whose crash lag may be pending in it."""
        records = instance.get_run_records(dg.RunsFilter(run_ids=sorted(run_ids))) if run_ids else ()
        found = [
            Departure(record.end_time, short_run_id(record.dagster_run.run_id), LeaveReason.CRASHED)
            for record in records
            if record.end_time and record.end_time < since
        ]
        return sorted(found, key=lambda one: one.at)

    def _observations(
        self, instance: dg.DagsterInstance, asset: dg.AssetKey, since: float | None, until: float
    ) -> Iterator[dg.EventLogRecord]:
        wanted = dg.AssetRecordsFilter(asset_key=asset, after_timestamp=since, before_timestamp=until)
        cursor = None
        for _ in range(_MAX_PAGES):
            page = instance.fetch_observations(wanted, limit=_PAGE, cursor=cursor, ascending=False)
            yield from page.records
            if not page.has_more:
                return
            cursor = page.cursor
        self.notes.append(
            f"Only the newest {_PAGE * _MAX_PAGES:,} events of {asset.to_user_string()} were read."
        )


def _stored_sla(instance: dg.DagsterInstance, crash_lag: dg.AssetKey) -> ServiceLevel:
    """Return the limits of the last stored check ``freshness_sla`` with numbers."""
    *folders, name = crash_lag.path
    key = dg.AssetCheckKey(dg.AssetKey([*folders, name.removesuffix("_crash_lag")]), FRESHNESS)
    for record in instance.event_log_storage.get_asset_check_execution_history(key, limit=_MAX_CHECKS):
        event = record.event.dagster_event if record.event else None
        if event is None or event.event_type is not dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            continue
        metadata = event.asset_check_evaluation_data.metadata
        fresh = _number(metadata.get("fresh_limit_seconds"))
        complete = _number(metadata.get("complete_limit_seconds"))
        found = ServiceLevel(fresh, complete)
        if found.is_set:
            return found
    return ServiceLevel()


def _number(value: dg.MetadataValue | None) -> float | None:
    """Return a number of a check's metadata, which may be text with separators."""
    return None if value is None else float(str(value.value).replace(",", ""))


def format_time(at: float) -> str:
    """Return a time in UTC."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
