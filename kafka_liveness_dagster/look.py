"""What do Kafka and Dagster say of a group, at one look?

Read-only, and the same few requests for any number of partitions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import dagster as dg

from kafka_liveness_dagster.core.commit_log import CATCH_UP_SUFFIX, DoneLog, ForeignCommitError, LiveMark
from kafka_liveness_dagster.core.membership import PartitionSnapshot, Run, RunFate
from kafka_liveness_dagster.core.offsets import OffsetRange, intersection, union
from kafka_liveness_dagster.core.run_marks import run_mark, run_of_client
from kafka_liveness_dagster.core.watch import GroupSnapshot, GroupState, MemberSeen
from kafka_liveness_dagster.core.witnesses import PartitionFacts, check_identity
from kafka_liveness_dagster.kafka.witness import believed
from kafka_liveness_dagster.partitions import range_of
from kafka_liveness_dagster.runs import FENCED_TAG, lane_tags

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.witnesses import Witness
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.answers import Commit, Group, GroupMember

_RECENT_RUNS = 20
_FOREIGN_LETTERS = 24  # of a foreign member's name: the sensor's cursor is small
_STATES = {
    "STABLE": GroupState.STABLE,
    "EMPTY": GroupState.EMPTY,
    "DEAD": GroupState.DEAD,
    "PREPARING_REBALANCING": GroupState.REBALANCING,
    "COMPLETING_REBALANCING": GroupState.REBALANCING,
}


@dataclass(frozen=True)
class GroupLook:
    """A group and the newest live runs that Dagster knows of it, newest first."""

    snapshot: GroupSnapshot
    records: Sequence[dg.RunRecord]

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        instance: dg.DagsterInstance,
        group_id: str,
        topics: Sequence[str],
        *,
        recent_runs: int = 0,
        witness: Witness | None = None,
        must_ask: bool = True,
    ) -> GroupLook:
        """Dagster first: a run that began after that is no departure, as its mark would be of an unknown run.

        Args:
            cluster: where the group is.
            instance: knows its runs.
            group_id: the live lane's group.
            topics: what it consumes.
            recent_runs: how many runs to look at, at least.
            witness: the table.
            must_ask: ask it even where all commits vouch for themselves and nothing is owed: then it could only tell of
                rows that it has lost, which waits for the next look that must.

        Raises:
            BrokerUnreachableError: no broker answered: nothing is known of the group.
            TopicRecreatedError: the offsets are of a topic that was deleted.
        """
        records = instance.get_run_records(
            dg.RunsFilter(tags=dict(lane_tags(group_id, "live"))), limit=max(recent_runs, _RECENT_RUNS)
        )
        partitions, group = _asked(cluster, group_id, topics, witness, must_ask=must_ask)
        runs = {run_mark(record.dagster_run.run_id): _run(record.dagster_run) for record in records}
        seen = GroupSnapshot(_state(group), tuple(map(_member, group.members)), partitions, runs)
        return cls(replace(seen, runs={**runs, **_said_meanwhile(instance, seen, records)}), records)

    @cached_property
    def partitions(self) -> dict[TopicPartition, PartitionSnapshot]:
        """Each by its name."""
        return {seen.topic_partition: seen for seen in self.snapshot.partitions}

    @property
    def owed(self) -> list[OffsetRange]:
        """What is owed and not done."""
        return [
            OffsetRange(*seen.topic_partition, *span) for seen in self.snapshot.partitions for span in seen.outstanding
        ]

    def still_owed(self, keys: Iterable[str], *, paused: bool = True) -> list[str]:
        """The keys of which something is owed, in their order; with those of paused partitions, or without."""
        owed = {tp: seen.outstanding for tp, seen in self.partitions.items() if paused or not seen.paused}
        asked = ((key, range_of(key)) for key in keys)
        return [key for key, one in asked if intersection([one.span], owed.get(one.topic_partition, ()))]

    def run(self, mark: str | None) -> dg.DagsterRun | None:
        """The run of a mark, None when Dagster does not list it any more."""
        return next((r.dagster_run for r in self.records if run_mark(r.dagster_run.run_id) == mark), None)


def _said_meanwhile(
    instance: dg.DagsterInstance, seen: GroupSnapshot, records: Sequence[dg.RunRecord]
) -> dict[str, Run]:
    """The runs at work that are no members, with why: one that left between the two looks said so before it left."""
    members = {member.name for member in seen.known}
    out = {
        run_mark(record.dagster_run.run_id): record.dagster_run.run_id
        for record in records
        if not record.dagster_run.is_finished
    }
    away = [run_id for mark, run_id in out.items() if mark not in members]
    found = instance.get_runs(dg.RunsFilter(run_ids=away)) if away else []
    return {
        mark: replace(seen.runs[mark], fenced=run.tags.get(FENCED_TAG, ""))
        for run in found
        if (mark := run_mark(run.run_id)) in seen.runs
    }


def _asked(
    cluster: Cluster, group_id: str, topics: Sequence[str], witness: Witness | None, *, must_ask: bool
) -> tuple[tuple[PartitionSnapshot, ...], Group]:
    tps = cluster.partitions(topics)
    first = cluster.commits(group_id, tps)
    marks = {tp: _decode(commit.metadata) for tp, commit in first.items()}
    owing = [tp for tp, mark in marks.items() if mark and mark.owed]
    # Without a commit too: the broker deletes them with their topic, and the table knows of which one they were
    vouched = all((mark := marks.get(tp)) is not None and mark.origin is not None for tp in tps)
    if not (must_ask or owing) and vouched:
        witness = None
    owing = owing if witness is None else tps
    second = cluster.commits(group_id + CATCH_UP_SUFFIX, owing) if owing else {}
    bounds = cluster.log_bounds(tps)
    group = cluster.group(group_id)  # right after an answer, which it would else have to wait for
    facts = {tp: _facts(first.get(tp), marks.get(tp), second.get(tp), bounds[tp]) for tp in tps}
    if witness is not None:  # last: what is committed was written before that
        ids = cluster.topic_ids(topics)
        facts = {tp: replace(one, topic_id=ids[tp.topic]) for tp, one in believed(facts, witness).items()}
    return tuple(_partition(tp, one) for tp, one in facts.items()), group


def _facts(
    first: Commit | None, mark: LiveMark | None, second: Commit | None, bounds: tuple[int, int]
) -> PartitionFacts:
    done = DoneLog.decode(second.offset, second.metadata) if second else DoneLog()
    return PartitionFacts(first.offset if first else None, mark, *bounds, done)


def _partition(tp: TopicPartition, facts: PartitionFacts) -> PartitionSnapshot:
    """What is told of a partition; a topic made anew is an error: a sensor that skips would look healthy."""
    check_identity(tp, facts)
    missing = () if facts.committed is None else facts.missing(facts.committed)
    forgotten = () if facts.vouched else missing
    return PartitionSnapshot(
        tp,
        facts.committed,
        facts.mark,
        facts.log_end,
        union((*facts.outstanding, *forgotten)),
        log_start=facts.log_start,
        forgotten=forgotten,
        missing=missing if facts.vouched else (),
    )


def _decode(metadata: str) -> LiveMark | None:
    try:
        return LiveMark.decode(metadata)
    except ForeignCommitError:
        return None  # the live run refuses to join and says why; this only looks


def _state(group: Group) -> GroupState:
    """KIP-848's own states have no name in the client yet: a group with members that is not stable is rebalancing."""
    return _STATES.get(group.state, GroupState.REBALANCING if group.members else GroupState.EMPTY)


def _member(member: GroupMember) -> MemberSeen:
    """A member under its run's 8 digits, or as the foreign one it is."""
    run = run_of_client(member.client_id)
    name = run or f"{member.client_id} at {member.host.lstrip('/')}"[:_FOREIGN_LETTERS]
    return MemberSeen(member.member_id, name, member.partitions, run is None, member.group_instance_id is not None)


def _run(run: dg.DagsterRun) -> Run:
    return Run(fate(run), run.tags.get(FENCED_TAG, ""), run.status is dg.DagsterRunStatus.STARTED)


def fate(run: dg.DagsterRun) -> RunFate:
    """What became of a run."""
    if not run.is_finished:
        return RunFate.CANCELING if run.status is dg.DagsterRunStatus.CANCELING else RunFate.IN_PROGRESS
    return {
        dg.DagsterRunStatus.SUCCESS: RunFate.SUCCEEDED,
        dg.DagsterRunStatus.CANCELED: RunFate.CANCELED,
    }.get(run.status, RunFate.FAILED)
