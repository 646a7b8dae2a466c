"""How is a consumer group, in both lanes? Both commit logs, the log's ends and the members, at one look (KIP-333).

Never joins and never commits. What another program committed is shown as such.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.core import commit_metadata
from kafka_liveness_dagster.core.commit_metadata import CATCH_UP_SUFFIX, DoneLog, ExternalCommit, LiveMark, Mark
from kafka_liveness_dagster.core.departures import Expiry, PartitionSnapshot, expiry
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import check_group_id
from kafka_liveness_dagster.core.offsets import intersection
from kafka_liveness_dagster.core.partition_state import PartitionFacts, check_identity
from kafka_liveness_dagster.core.run_ids import run_of_client, run_of_place
from kafka_liveness_dagster.kafka.group_description import both_logs
from kafka_liveness_dagster.kafka.partition_states import believed
from kafka_liveness_dagster.kafka.timestamps import held_back

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafka_liveness_dagster.core.health import HeldBack
    from kafka_liveness_dagster.core.offsets import Span, TopicPartition
    from kafka_liveness_dagster.core.partition_state import Witness
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.group_description import Commit, GroupMember


class NoSuchGroupError(InvalidSettingError):
    """Nobody is in the group and nothing is committed for it."""


@dataclass(frozen=True)
class PartitionStatus:
    """One partition: what both logs say, and the commits in them that are not ours."""

    seen: PartitionSnapshot
    second: DoneLog
    foreign: tuple[ExternalCommit, ...]

    @property
    def committed(self) -> int | None:
        """Every offset before it is processed, in whichever lane (KIP-333)."""
        return commit_metadata.committed(self.seen.committed, self.seen.pending)

    def expiry(self, owed: Span) -> Expiry:
        """How near the broker's retention is to what of an owed range needs its records."""
        needed = intersection((owed,), self.seen.unprocessed)
        return expiry(needed[0], self.seen.log_start, self.seen.log_end) if needed else Expiry.SAFE

    def as_json(self) -> dict[str, Any]:
        """Both logs apart, then what they mean together."""
        seen, mark = self.seen, self.seen.mark
        return {
            "topic": seen.topic_partition.topic,
            "partition": seen.topic_partition.partition,
            "log_start": seen.log_start,
            "log_end": seen.log_end,
            "first_log": {
                "committed": seen.committed,
                "owner_state": mark.mark.value if mark else None,
                "run": mark.run if mark else None,
            },
            "second_log": {"watermark": self.second.watermark, "done_above": [list(s) for s in self.second.done]},
            "external_commits": [asdict(one) for one in self.foreign],
            "lag": seen.lag,
            "committed": self.committed,
            "pending_offsets": seen.owed,
            "pending": [
                {"start": s.start, "end": s.end, "offsets": s.size, "expiry": self.expiry(s).value}
                for s in seen.outstanding
            ],
            "missing": [list(s) for s in seen.missing],
        }


@dataclass(frozen=True)
class MemberStatus:
    """One member, and the runs it works for (8 hex digits); none for a program that is not ours."""

    seen: GroupMember
    runs: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """As the coordinator sees it."""
        return {
            "client_id": self.seen.client_id,
            "member_id": self.seen.member_id,
            "group_instance_id": self.seen.group_instance_id,
            "host": self.seen.host,
            "runs": list(self.runs),
            "partitions": sorted(map(str, self.seen.partitions)),
        }


@dataclass(frozen=True)
class GroupStatus:
    """A group at one moment; ``held`` is what waits behind open transactions, which is no lag yet.

    Attributes:
        table: the table that was queried for what is processed; None where both commit logs decide alone.
    """

    group_id: str
    partitions: tuple[PartitionStatus, ...]
    members: tuple[MemberStatus, ...]
    held: tuple[HeldBack, ...] = ()
    table: str | None = None

    def as_json(self) -> dict[str, Any]:
        """One object; offsets are half-open ranges."""
        return {
            "group": self.group_id,
            "catch_up_group": self.group_id + CATCH_UP_SUFFIX,
            "source": self.table or "commit logs",
            "lag": sum(p.seen.lag for p in self.partitions),
            "pending_offsets": sum(p.seen.owed for p in self.partitions),
            "members": [member.as_json() for member in self.members],
            "partitions": [partition.as_json() for partition in self.partitions],
            "behind_open_transactions": [
                {
                    "partition": str(one.topic_partition),
                    "offset": one.offset,
                    "offsets": one.offsets,
                    "seconds": one.seconds,
                }
                for one in self.held
            ],
        }


def look(cluster: Cluster, group_id: str, topics: Sequence[str] = (), witness: Witness | None = None) -> GroupStatus:
    """The group now, of these topics or of all it has committed to or is assigned.

    Args:
        cluster: where it is.
        group_id: the live lane's group.
        topics: only these.
        witness: the table: what of the committed offsets it has, and, since a broker deletes a group's commits with
            their topic, whose they were.

    Raises:
        TopicRecreatedError: what is committed, or in the table, is of a topic of that name that was deleted.
        NoSuchGroupError: no member and no commit was found.
        BrokerUnreachableError: no broker answered within seconds.
    """
    check_group_id(group_id)
    members = cluster.members(group_id)
    asked = cluster.partitions(topics or cluster.topics())
    first, second = (cluster.commits(group, asked) for group in (group_id, group_id + CATCH_UP_SUFFIX))
    facts = _identified(cluster, first, second, topics, asked if witness else (), witness)
    if not (members or first or second):
        of = f" for {', '.join(topics)}" if topics else ""
        raise NoSuchGroupError(
            f"group {group_id!r} does not exist at {cluster.settings.bootstrap_servers}: it has no member, and nothing "
            f"is committed{of}. A group begins with its first member; commits of an empty group expire "
            "(offsets.retention.minutes, 7 days unless changed), and the broker deletes them with their topic: --table "
            "tells a topic that was made anew"
        )
    named = set(topics) or {tp.topic for tp in chain(first, second, *(member.partitions for member in members))}
    wanted = [tp for tp in asked if tp.topic in named]
    bounds = cluster.log_bounds(wanted)
    partitions = tuple(_partition(tp, (first.get(tp), second.get(tp)), bounds[tp], facts.get(tp)) for tp in wanted)
    marks = {p.seen.topic_partition: p.seen.mark for p in partitions}
    held = held_back(cluster, group_id, {tp: end for tp, (_, end) in bounds.items()})
    by = witness.target if witness else None
    return GroupStatus(group_id, partitions, tuple(MemberStatus(m, _runs(m, marks)) for m in members), held, by)


def _identified(  # noqa: PLR0917
    cluster: Cluster,
    first: Mapping[TopicPartition, Commit],
    second: Mapping[TopicPartition, Commit],
    topics: Sequence[str],
    asked: Sequence[TopicPartition],
    witness: Witness | None,
) -> dict[TopicPartition, PartitionFacts]:
    """Both commit logs and the table, of topics that are still those that they are of; without the log bounds."""
    known = sorted({*first, *second, *asked})
    ids = cluster.topic_ids({tp.topic for tp in known})
    facts = {}
    for tp in known:
        mark, log, _ = both_logs(first.get(tp), second.get(tp))
        committed = first[tp].offset if tp in first else None
        facts[tp] = PartitionFacts(committed, mark, 0, 0, log, topic_id=ids[tp.topic])
    found = believed(facts, witness) if witness else facts
    for tp, one in found.items():
        if not topics or tp.topic in topics:
            check_identity(tp, one)
    return found


def _partition(
    tp: TopicPartition,
    commits: tuple[Commit | None, Commit | None],
    bounds: tuple[int, int],
    facts: PartitionFacts | None,
) -> PartitionStatus:
    _, log, foreign = both_logs(*commits)
    found = replace(facts or PartitionFacts(None, None, 0, 0), log_start=bounds[0], log_end=bounds[1])
    return PartitionStatus(PartitionSnapshot.of(tp, found), log, foreign)


def _runs(member: GroupMember, marks: Mapping[TopicPartition, LiveMark | None]) -> tuple[str, ...]:
    """Of a member with an instance id the coordinator shows the client id that joined first: commits know better."""
    run = run_of_client(member.client_id)
    if member.group_instance_id is not None:
        found = (marks.get(tp) for tp in member.partitions)
        runs = {mark.run for mark in found if mark is not None and mark.mark is not Mark.RELEASED}
        if runs or not run_of_place(member.group_instance_id):
            return tuple(sorted(runs))
    return () if run is None else (run,)
