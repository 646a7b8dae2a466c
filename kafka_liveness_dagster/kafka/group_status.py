"""Read the status of a consumer group in both lanes, at one moment (KIP-333).

It is derived from both commit logs, the log bounds and the members. Commits of other programs are marked as
external. Never joins and never commits.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, asdict, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.core import commit_metadata
from kafka_liveness_dagster.core.commit_metadata import (
    CATCH_UP_SUFFIX,
    CatchUpCommitMetadata,
    ExternalCommit,
    LiveCommitMetadata,
    OwnerState,
)
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import check_group_id
from kafka_liveness_dagster.core.offsets import intersection
from kafka_liveness_dagster.core.partition_snapshot import Expiry, PartitionSnapshot, expiry
from kafka_liveness_dagster.core.partition_state import PartitionState, check_identity
from kafka_liveness_dagster.core.run_ids import run_id_of_client, run_id_of_instance
from kafka_liveness_dagster.kafka.group_description import decode_partition_state
from kafka_liveness_dagster.kafka.partition_states import with_ledger
from kafka_liveness_dagster.kafka.timestamps import open_transactions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafka_liveness_dagster.core.health import OpenTransaction
    from kafka_liveness_dagster.core.offsets import Span, TopicPartition
    from kafka_liveness_dagster.core.sink_ledger import ReadableLedger
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.group_description import CommittedOffset, MemberDescription


class NoSuchGroupError(InvalidSettingError):
    """The group has no member and no committed offset."""


@dataclass(frozen=True)
class PartitionStatus:
    """One partition by both commit logs, and the external commits in them."""

    snapshot: PartitionSnapshot
    catch_up_log: CatchUpCommitMetadata
    external_commits: tuple[ExternalCommit, ...]

    @property
    def committed(self) -> int | None:
        """The offset below which both lanes have processed every offset (KIP-333)."""
        return commit_metadata.committed_offset(self.snapshot.committed, self.snapshot.pending)

    def expiry(self, pending: Span) -> Expiry:
        """Return how near the broker's retention is to the unprocessed records of a pending range."""
        needed = intersection((pending,), self.snapshot.unprocessed)
        return expiry(needed[0], self.snapshot.log_start, self.snapshot.log_end) if needed else Expiry.SAFE

    def as_json(self) -> dict[str, Any]:
        """Return both commit logs separately, then the result of both."""
        seen = self.snapshot
        metadata = self.snapshot.live_metadata
        return {
            "topic": seen.topic_partition.topic,
            "partition": seen.topic_partition.partition,
            "log_start": seen.log_start,
            "log_end": seen.log_end,
            "first_log": {
                "committed": seen.committed,
                "owner_state": metadata.owner_state.value if metadata else None,
                "run": metadata.run_id if metadata else None,
            },
            "second_log": {
                "watermark": self.catch_up_log.watermark,
                "done_above": [list(s) for s in self.catch_up_log.done],
            },
            "external_commits": [asdict(one) for one in self.external_commits],
            "lag": seen.lag,
            "committed": self.committed,
            "pending_offsets": seen.pending_offsets,
            "pending": [
                {"start": s.start, "end": s.end, "offsets": s.size, "expiry": self.expiry(s).value}
                for s in seen.outstanding
            ],
            "missing": [list(s) for s in seen.missing_rows],
        }


@dataclass(frozen=True)
class MemberStatus:
    """A member and the runs it works for (8 hex digits); an external client has none."""

    member: MemberDescription
    runs: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the member as the coordinator reports it, with its runs."""
        return {
            "client_id": self.member.client_id,
            "member_id": self.member.member_id,
            "group_instance_id": self.member.group_instance_id,
            "host": self.member.host,
            "runs": list(self.runs),
            "partitions": sorted(map(str, self.member.partitions)),
        }


@dataclass(frozen=True)
class GroupStatus:
    """A group at one moment.

    ``open_transactions`` are the offsets behind open transactions; they are not lag yet.

    Attributes:
        table: the table that was queried for processed offsets; None if both commit logs decide alone.
    """

    group_id: str
    partitions: tuple[PartitionStatus, ...]
    members: tuple[MemberStatus, ...]
    _: KW_ONLY
    open_transactions: tuple[OpenTransaction, ...] = ()
    table: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return one object; offsets are half-open ranges."""
        return {
            "group": self.group_id,
            "catch_up_group": self.group_id + CATCH_UP_SUFFIX,
            "source": self.table or "commit logs",
            "lag": sum(p.snapshot.lag for p in self.partitions),
            "pending_offsets": sum(p.snapshot.pending_offsets for p in self.partitions),
            "members": [member.as_json() for member in self.members],
            "partitions": [partition.as_json() for partition in self.partitions],
            "behind_open_transactions": [
                {
                    "partition": str(one.topic_partition),
                    "offset": one.offset,
                    "offsets": one.offsets,
                    "seconds": one.open_seconds,
                }
                for one in self.open_transactions
            ],
        }


def group_status(
    cluster: Cluster, group_id: str, topics: Sequence[str] = (), ledger: ReadableLedger | None = None
) -> GroupStatus:
    """Return the status of a group now, for these topics or all that it committed or is assigned.

    Args:
        cluster: cluster of the group.
        group_id: the live lane's group.
        topics: topics to show; none for all.
        ledger: ledger of the table; it records which committed offsets the table has. It also has the topic's
            id after the broker has deleted the group's commits with their topic.

    Raises:
        TopicRecreatedError: the commits or the table are of a deleted topic of the same name.
        NoSuchGroupError: no member and no commit was found.
        BrokerUnreachableError: no broker responded within seconds.
    """
    check_group_id(group_id)
    members = cluster.members(group_id)
    asked = cluster.partitions(topics or None)
    live, catch_up = (cluster.commits(group, asked) for group in (group_id, group_id + CATCH_UP_SUFFIX))
    states = _states_of_same_topics(cluster, live, catch_up, asked=asked if ledger else (), ledger=ledger)
    if not (members or live or catch_up):
        of = f" for {', '.join(topics)}" if topics else ""
        raise NoSuchGroupError(
            f"Group {group_id!r} has not begun yet: at {cluster.settings.bootstrap_servers} it has no "
            f"member and no committed offset{of}. Commits of an empty group expire "
            "(offsets.retention.minutes, 7 days by default), and the broker deletes them with their topic. "
            "Fix: turn on the group's sensor, or launch its live job. If it ran before, check the name; "
            "`kafka-liveness status` with --table finds a topic that was recreated."
        )
    named = set(topics) or {
        tp.topic for tp in chain(live, catch_up, *(member.partitions for member in members))
    }
    wanted = [tp for tp in asked if tp.topic in named]
    bounds = cluster.log_bounds(wanted)
    partitions = tuple(
        _partition_status(tp, (live.get(tp), catch_up.get(tp)), bounds[tp], state=states.get(tp))
        for tp in wanted
    )
    metadata_of = {p.snapshot.topic_partition: p.snapshot.live_metadata for p in partitions}
    held = open_transactions(cluster, group_id, {tp: end for tp, (_, end) in bounds.items()})
    by = ledger.target if ledger else None
    return GroupStatus(
        group_id,
        partitions,
        tuple(MemberStatus(m, _run_ids(m, metadata_of)) for m in members),
        open_transactions=held,
        table=by,
    )


def _states_of_same_topics(
    cluster: Cluster,
    live: Mapping[TopicPartition, CommittedOffset],
    catch_up: Mapping[TopicPartition, CommittedOffset],
    asked: Sequence[TopicPartition],
    ledger: ReadableLedger | None,
) -> dict[TopicPartition, PartitionState]:
    """Return the states by both commit logs and the table; check that no topic was recreated.

    The states lack the log bounds. Only topics that the group committed or the table has are described:
    another one of the cluster may be gone by now.
    """
    known = sorted({*live, *catch_up, *asked})
    states = {tp: decode_partition_state(live.get(tp), catch_up.get(tp)) for tp in known}
    found = with_ledger(states, ledger) if ledger else states
    recorded = {tp.topic for tp, one in found.items() if one.ledger_entry and one.ledger_entry.topic_id}
    ids = cluster.topic_ids(recorded | {tp.topic for tp in (*live, *catch_up)})
    found = {tp: replace(one, topic_id=ids.get(tp.topic, "")) for tp, one in found.items()}
    for tp, one in found.items():
        check_identity(tp, one)
    return found


def _partition_status(
    tp: TopicPartition,
    commits: tuple[CommittedOffset | None, CommittedOffset | None],
    bounds: tuple[int, int],
    state: PartitionState | None,
) -> PartitionStatus:
    committed = decode_partition_state(*commits, bounds)
    found = replace(state or committed, log_start=committed.log_start, log_end=committed.log_end)
    return PartitionStatus(
        PartitionSnapshot.from_state(tp, found), committed.catch_up_log, committed.external_commits
    )


def _run_ids(
    member: MemberDescription, metadata_of: Mapping[TopicPartition, LiveCommitMetadata | None]
) -> tuple[str, ...]:
    """Return the runs of a member, from its client id or from its commits.

    For a member with an instance id the coordinator shows the client id that joined first, so its commits
    decide.
    """
    run = run_id_of_client(member.client_id)
    if member.group_instance_id is not None:
        found = (metadata_of.get(tp) for tp in member.partitions)
        runs = {
            metadata.run_id
            for metadata in found
            if metadata is not None and metadata.owner_state is not OwnerState.RELEASED
        }
        if runs or not run_id_of_instance(member.group_instance_id):
            return tuple(sorted(runs))
    return () if run is None else (run,)
