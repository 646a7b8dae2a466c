"""Read the state of a group from Kafka and Dagster for one sensor tick.

Never writes. Sends the same few requests for any number of partitions.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING
from zlib import crc32

import dagster as dg

from kafka_liveness_dagster.core.commit_metadata import (
    CATCH_UP_SUFFIX,
)
from kafka_liveness_dagster.core.departures import GroupSnapshot, GroupState, MemberSnapshot, Run, RunFate
from kafka_liveness_dagster.core.offsets import OffsetRange, intersection
from kafka_liveness_dagster.core.partition_keys import parse_key
from kafka_liveness_dagster.core.partition_snapshot import (
    PartitionSnapshot,
    ignored_pending_lines,
    replaced_log_lines,
)
from kafka_liveness_dagster.core.partition_state import (
    PartitionState,
    check_groups,
    check_identity,
    check_target,
)
from kafka_liveness_dagster.core.process_status import ProcessStatus
from kafka_liveness_dagster.core.run_ids import (
    dagster_run_id_of_client,
    run_id_of_client,
    run_id_of_instance,
    short_run_id,
)
from kafka_liveness_dagster.kafka.group_description import decode_catch_up_log, decode_partition_state
from kafka_liveness_dagster.kafka.partition_states import with_ledger
from kafka_liveness_dagster.runs.heartbeat import process_status_of
from kafka_liveness_dagster.runs.tags import (
    AWAY_TAG,
    GROUP_TAG,
    LANE_TAG,
    fence_report_of,
    heartbeat_of,
    in_progress_filter,
    instance_id_tag,
    is_active_in_lane,
    lane_tags,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from kafka_liveness_dagster.core.health import OpenTransaction
    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.sink_ledger import ReadableLedger
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.group_description import (
        GroupDescription,
        MemberDescription,
    )


def split_by_lane(records: Iterable[dg.RunRecord]) -> dict[str, list[dg.RunRecord]]:
    """Return the runs of each lane; a tag of the run names its lane."""
    found: dict[str, list[dg.RunRecord]] = {"live": [], "catch-up": []}
    for record in records:
        found.get(record.dagster_run.tags.get(LANE_TAG, ""), []).append(record)
    return found


def merge_newest_first(
    recent: Sequence[dg.RunRecord], in_progress: Iterable[dg.RunRecord]
) -> list[dg.RunRecord]:
    """Return the recent runs, and older ones in progress, because a ghost may be old."""
    known = {record.dagster_run.run_id for record in recent}
    return [*recent, *(record for record in in_progress if record.dagster_run.run_id not in known)]


def runs_by_short_id(records: Iterable[dg.RunRecord]) -> dict[str, Run]:
    """Return each run under its 8 hex digits."""
    return {short_run_id(record.dagster_run.run_id): _to_run(record.dagster_run) for record in records}


def mark_other_instances(
    instance: dg.DagsterInstance,
    seen: Iterable[MemberSnapshot],
    told: Sequence[MemberDescription],
    records: Iterable[dg.RunRecord],
) -> tuple[MemberSnapshot, ...]:
    """Return the members, each with whether its run belongs to another Dagster instance.

    Runs that are not among the records are read after the broker has listed the members.

    For a static member the coordinator may show the client id of a deleted run, so it is not marked.
    """
    ids = {member.member_id: dagster_run_id_of_client(member.client_id) for member in told}
    known = {record.dagster_run.run_id for record in records}
    wanted = [run for run in ids.values() if run is not None and run not in known]
    if wanted:
        known |= {run.run_id for run in instance.get_runs(dg.RunsFilter(run_ids=wanted))}
    return tuple(
        replace(
            member, is_of_other_instance=not member.is_static and ids[member.member_id] not in {None, *known}
        )
        for member in seen
    )


def refresh_runs(
    instance: dg.DagsterInstance, seen: GroupSnapshot, records: Iterable[dg.RunRecord]
) -> GroupSnapshot:
    """Return the snapshot with the process status of its runs, and why runs are no members.

    Dagster is read last. A run that left in between stored the reason before it left, and a process that is
    gone may have ended its run before.
    """
    members = seen.member_run_ids
    now = time.time()
    known = seen.runs_of_both_lanes
    away: dict[str, str] = {}
    for record in records:
        run = record.dagster_run
        mark = short_run_id(record.dagster_run.run_id)
        if run.is_finished:
            continue
        word = process_status_of(instance, record, now, fence_report=mark not in members)
        known[mark] = replace(known[mark], process=word)
        if mark not in members or word is ProcessStatus.GONE:
            away[run.run_id] = mark
    for run in instance.get_runs(dg.RunsFilter(run_ids=list(away))) if away else []:
        mark = away.pop(run.run_id)
        one = replace(known[mark], fence_report=fence_report_of(run))
        if run.is_finished:  # since the first read: not a departure yet, unless it was killed
            killed = one.process is ProcessStatus.GONE and run.status is dg.DagsterRunStatus.FAILURE
            one = replace(one, process=ProcessStatus.UNKNOWN, fate=RunFate.FAILED if killed else one.fate)
        known[mark] = one
    for mark in away.values():  # the remaining runs were deleted
        known[mark] = replace(known[mark], process=ProcessStatus.UNKNOWN)
    return replace(seen, runs={r: known[r] for r in seen.runs}, catch_up={r: known[r] for r in seen.catch_up})


def _to_run(run: dg.DagsterRun) -> Run:
    at_work = run.status in (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)
    return Run(
        run_fate(run),
        fence_report_of(run),
        at_work,
        heartbeat_at=heartbeat_of(run).heartbeat_at,
        has_ended=not (run.is_finished or is_active_in_lane(run)),
        fenced_for_seconds=float(away) if (away := run.tags.get(AWAY_TAG)) else None,
        is_catch_up=run.tags.get(LANE_TAG) == "catch-up",
        group_instance_id=run.tags.get(instance_id_tag(run.tags.get(GROUP_TAG, ""))) or None,
    )


def run_fate(run: dg.DagsterRun) -> RunFate:
    """Return the outcome of a run."""
    if not run.is_finished:
        return RunFate.CANCELING if run.status is dg.DagsterRunStatus.CANCELING else RunFate.IN_PROGRESS
    return {
        dg.DagsterRunStatus.SUCCESS: RunFate.SUCCEEDED,
        dg.DagsterRunStatus.CANCELED: RunFate.CANCELED,
    }.get(run.status, RunFate.FAILED)


_RECENT_RUNS = 20
_MARKUP = re.compile(r"[^\w .:/()+=,#-]|(?<=:)/|(?<=/)/|(?<=www)\.")
"""Characters that would make a link, HTML or the end of a cell in the markdown that Dagster renders."""
_MAX_FOREIGN_CHARS = 24  # of an external member's name, because the sensor's cursor must stay small
_STATES = {
    "STABLE": GroupState.STABLE,
    "EMPTY": GroupState.EMPTY,
    "DEAD": GroupState.DEAD,
    "PREPARING_REBALANCING": GroupState.REBALANCING,
    "COMPLETING_REBALANCING": GroupState.REBALANCING,
}


@dataclass(frozen=True)
class KnownRuns:
    """The runs of a group that a caller read before.

    Attributes:
        in_progress: runs in progress now.
        recent: newest live runs of an earlier read, since which no run was added or ended; None without one.
    """

    in_progress: Sequence[dg.RunRecord]
    recent: Sequence[dg.RunRecord] | None = None

    @property
    def current_recent(self) -> Sequence[dg.RunRecord] | None:
        """The newest live runs, with the current records of those in progress; None without them."""
        if self.recent is None:
            return None
        current = {record.dagster_run.run_id: record for record in self.in_progress}
        return [current.get(record.dagster_run.run_id, record) for record in self.recent]


@dataclass(frozen=True)
class GroupObservation:
    """A group, with its newest live runs in Dagster and all that are in progress, newest first.

    Attributes:
        catch_up: runs of the catch-up lane in progress.
    """

    snapshot: GroupSnapshot
    records: Sequence[dg.RunRecord]
    catch_up: Sequence[dg.RunRecord] = ()

    @classmethod
    def read(
        cls,
        cluster: Cluster,
        instance: dg.DagsterInstance,
        group_id: str,
        topics: Sequence[str],
        *,
        recent_runs: int = 0,
        ledger: ReadableLedger | None = None,
        must_read_ledger: bool = True,
        known_runs: KnownRuns | None = None,
    ) -> GroupObservation:
        """Read a group, with Dagster before Kafka.

        So a run that begins in between is no departure: its commits are of a run that this read has not seen.

        Args:
            cluster: cluster of the group.
            instance: Dagster instance, with the group's runs.
            group_id: the live lane's group.
            topics: topics that the group consumes.
            recent_runs: smallest number of runs to read.
            ledger: ledger of the table.
            must_read_ledger: whether to read it even if this package committed last and nothing is pending.
                Then it could only show lost rows, which the next tick that must read it finds.
            known_runs: runs of the group, if the caller has just read them.

        Raises:
            BrokerUnreachableError: no broker responded, so the state of the group is unknown.
            TopicRecreatedError: the offsets are of a topic that was deleted.
            TableMismatchError: the group's commits are about another table than the ledger.
            GroupMismatchError: the table contains rows of these topics that another group wrote.
        """
        if known_runs is None:
            known_runs = KnownRuns(instance.get_run_records(in_progress_filter([group_id])))
        by_lane = split_by_lane(known_runs.in_progress)
        recent = known_runs.current_recent
        if recent is None:
            recent = instance.get_run_records(
                dg.RunsFilter(tags=dict(lane_tags(group_id, "live"))), limit=max(recent_runs, _RECENT_RUNS)
            )
        records = merge_newest_first(recent, by_lane["live"])
        partitions, group = _read_states(cluster, group_id, topics, ledger=ledger, must_ask=must_read_ledger)
        members = mark_other_instances(
            instance, map(_member_snapshot, group.members), group.members, records=records
        )
        seen = GroupSnapshot(_group_state(group), members, partitions, runs=runs_by_short_id(records))
        seen = replace(seen, catch_up=runs_by_short_id(by_lane["catch-up"]))
        return cls(
            refresh_runs(instance, seen, (*records, *by_lane["catch-up"])),
            records,
            by_lane["catch-up"],
        )

    @property
    def fingerprint(self) -> Hashable:
        """What :func:`read_fingerprint` returns while the group and its topics are as in this observation."""
        bounds = {tp: (seen.log_start, seen.log_end) for tp, seen in self.partitions.items()}
        return _fingerprint(self.snapshot.state, (one.member_id for one in self.snapshot.members), bounds)

    @cached_property
    def partitions(self) -> dict[TopicPartition, PartitionSnapshot]:
        """The snapshot of each partition."""
        return {seen.topic_partition: seen for seen in self.snapshot.partitions}

    def open_transactions(self, cluster: Cluster, group_id: str) -> Sequence[OpenTransaction]:
        """Return the offsets behind open transactions now; see ``kafka.timestamps.open_transactions``."""
        from kafka_liveness_dagster.kafka.timestamps import open_transactions  # noqa: PLC0415 - confluent_kafka stays lazy

        return open_transactions(
            cluster, group_id, {tp: seen.log_end for tp, seen in self.partitions.items()}
        )

    @property
    def live_in_progress(self) -> list[dg.DagsterRun]:
        """The runs in progress in the live lane."""
        return [run for record in self.records if is_active_in_lane(run := record.dagster_run)]

    @property
    def pending(self) -> list[OffsetRange]:
        """The pending ranges that are not done, for partitions where that is known."""
        return [
            OffsetRange(*seen.topic_partition, *span)
            for seen in self.snapshot.partitions
            for span in seen.outstanding
            if not seen.is_upper_bound
        ]

    @property
    def external_commit_lines(self) -> list[str]:
        """Return a line for each partition with an external commit in a commit log."""
        return [
            *replaced_log_lines(self.snapshot.partitions),
            *ignored_pending_lines(self.snapshot.partitions),
        ]

    @property
    def pending_hash(self) -> int:
        """A hash of the pending ranges, to compare with another tick; 0 for none."""
        return crc32(repr(self.pending).encode()) if self.pending else 0

    def still_pending(self, keys: Iterable[str], *, paused: bool = True) -> list[str]:
        """Return the keys with pending offsets, in their order.

        ``paused`` includes those of paused partitions.
        """
        pending = {
            tp: seen.outstanding
            for tp, seen in self.partitions.items()
            if (paused or not seen.paused) and not seen.is_upper_bound
        }
        asked = ((key, parse_key(key)) for key in keys)
        return [key for key, one in asked if intersection([one.span], pending.get(one.topic_partition, ()))]

    def run_of_mark(self, mark: str | None) -> dg.DagsterRun | None:
        """Return the run with these 8 digits; None if Dagster does not list it any more."""
        known = (record.dagster_run for record in (*self.records, *self.catch_up))
        return next((run for run in known if short_run_id(run.run_id) == mark), None)

    def has_process_ended(self, mark: str) -> bool:
        """Return whether the run with these 8 digits is over in Dagster, or its process is certainly gone.

        A failed step may be retried in the same run, by a process that works.
        """
        known = self.snapshot.runs_of_both_lanes.get(mark)
        run = self.run_of_mark(mark)
        is_gone = known is not None and known.process is ProcessStatus.GONE
        return is_gone or (run is not None and run.is_finished)


def read_fingerprint(cluster: Cluster, group_id: str, topics: Sequence[str]) -> Hashable:
    """Read a group's state, its members and the log bounds of its topics, to compare with an observation.

    Raises:
        BrokerUnreachableError: no broker responded.
        TopicNotFoundError: a topic is gone.
    """
    bounds = cluster.log_bounds(cluster.partitions(topics))
    group = cluster.group(group_id)
    return _fingerprint(_group_state(group), (one.member_id for one in group.members), bounds)


def _fingerprint(
    state: GroupState, member_ids: Iterable[str], bounds: Mapping[TopicPartition, tuple[int, int]]
) -> Hashable:
    return state, frozenset(member_ids), frozenset(bounds.items())


def _read_states(
    cluster: Cluster, group_id: str, topics: Sequence[str], ledger: ReadableLedger | None, *, must_ask: bool
) -> tuple[tuple[PartitionSnapshot, ...], GroupDescription]:
    tps = cluster.partitions(topics)
    live_commits = cluster.commits(group_id, tps)
    live = {tp: decode_partition_state(live_commits.get(tp), None) for tp in tps}
    owing = [tp for tp, one in live.items() if one.live_metadata and one.live_metadata.pending]
    # Also without a commit: the broker deletes commits with their topic, and the table has the id of their
    # topic
    recorded = all(one.is_committed_by_this_package for one in live.values())
    if not (must_ask or owing) and recorded:
        ledger = None
    owing = owing if ledger is None else tps
    catch_up_commits = cluster.commits(group_id + CATCH_UP_SUFFIX, owing) if owing else {}
    bounds = cluster.log_bounds(tps)
    group = cluster.group(group_id)  # directly after a response; else this call first waits for one
    states = {
        tp: replace(
            one,
            log_start=bounds[tp][0],
            log_end=bounds[tp][1],
            catch_up_log=decode_catch_up_log(catch_up_commits.get(tp)),
        )
        for tp, one in live.items()
    }
    if ledger is not None:  # last, because rows are written before their offsets are committed
        check_target(group_id, states, ledger.target)
        ids = cluster.topic_ids(topics)
        states = {tp: replace(one, topic_id=ids[tp.topic]) for tp, one in with_ledger(states, ledger).items()}
        check_groups(group_id, {tp: one.ledger_entry for tp, one in states.items()}, ledger.target)
    return tuple(_partition_snapshot(tp, one) for tp, one in states.items()), group


def _partition_snapshot(tp: TopicPartition, state: PartitionState) -> PartitionSnapshot:
    """Return a partition's snapshot; raise for a recreated topic, because a skipped tick looks healthy."""
    check_identity(tp, state)
    return PartitionSnapshot.from_state(tp, state)


def _group_state(group: GroupDescription) -> GroupState:
    """Return the state of a group; one with members that is not stable is rebalancing.

    The client has no names for KIP-848's own states yet.
    """
    return _STATES.get(group.state, GroupState.REBALANCING if group.members else GroupState.EMPTY)


def _member_snapshot(member: MemberDescription) -> MemberSnapshot:
    """Return a member under its run's 8 digits, or as an external one."""
    run = run_id_of_client(member.client_id)
    name = run or _MARKUP.sub("?", f"{member.client_id} at {member.host.lstrip('/')}"[:_MAX_FOREIGN_CHARS])
    instance = member.group_instance_id
    place = instance if run_id_of_instance(instance) else None
    is_static = instance is not None and place is None
    return MemberSnapshot(
        member.member_id,
        name,
        member.partitions,
        is_foreign=run is None,
        is_static=is_static,
        group_instance_id=place,
    )
