"""Decide which members left a group and why, from two snapshots of the group.

Level-triggered: the same snapshot gives the same answer however often it is asked, so a sensor tick that is
repeated changes nothing. Never asks Kafka or Dagster.

>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
>>> held = LiveCommitMetadata(OwnerState.RUNNING, "0badcafe")
>>> running = PartitionSnapshot(TopicPartition("orders", 3), 70, held, log_end=120)
>>> [gone] = departures([running], members={}, runs={"0badcafe": Run(RunFate.FAILED)})
>>> print(gone)
run 0badcafe crashed; it had orders:3
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING
from zlib import crc32

from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.events import LeaveReason, MemberLeft
from kafka_liveness_dagster.core.fencing import FenceReason
from kafka_liveness_dagster.core.process_status import ProcessStatus
from kafka_liveness_dagster.core.run_ids import run_id_of_instance, short_run_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kafka_liveness_dagster.core.fencing import FenceReport
    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot


class RunFate(Enum):
    """What became of a Dagster run.

    ``UNKNOWN`` for a run that Dagster does not list: deleted, or no run at all.
    """

    IN_PROGRESS = "in progress"
    CANCELING = "being canceled"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    UNKNOWN = "unknown"


_FINISHED = (RunFate.SUCCEEDED, RunFate.FAILED, RunFate.CANCELED)
_REASON_WITHOUT_COMMIT = {
    RunFate.SUCCEEDED: LeaveReason.GRACEFUL,
    RunFate.FAILED: LeaveReason.CRASHED,
    RunFate.CANCELED: LeaveReason.CANCELED,
    RunFate.CANCELING: LeaveReason.CANCELED,
}


@dataclass(frozen=True)
class Run:
    """A run as Dagster knows it, and what is known of its process.

    Attributes:
        fence_report: why it left the group, or after which leave it is back, as it told itself; None while it
            never left, or when it could not say.
        started: Dagster says that it is at work, not queued or starting.
        process: of a run in progress; gone says that it was, too, when Dagster was asked again after that.
        heartbeat_at: its sign of life, another one every half minute; None when it gives none.
        fenced_for_seconds: how long it may be out of the group at most: process timeout and session; None
            before it said so.
        group_instance_id: of a run before it, in which it is a member now.
        has_ended: whether its step in the lane has ended, while other steps of the run go on.
    """

    fate: RunFate
    fence_report: FenceReport | None = None
    started: bool = False
    _: KW_ONLY
    process: ProcessStatus = ProcessStatus.UNKNOWN
    heartbeat_at: int | None = None
    fenced_for_seconds: float | None = None
    is_catch_up: bool = False
    group_instance_id: str | None = None
    has_ended: bool = False

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal ended its process, as it told itself.

        It released its partitions if the broker answered.
        """
        return self.fence_report is not None and self.fence_report.reason is FenceReason.INTERRUPTED

    @property
    def is_working(self) -> bool:
        """Whether somebody works for it, as far as anybody knows."""
        return (
            self.fate in (RunFate.IN_PROGRESS, RunFate.CANCELING) and self.process is not ProcessStatus.GONE
        )

    def has_instance_id(self, group_instance_id: str) -> bool:
        """Whether it goes on under the name of a dead run.

        One that has not started has it from a run it repeats.
        """
        return self.group_instance_id == group_instance_id and self.started and self.is_working


def departures(
    partitions: Iterable[PartitionSnapshot], members: Mapping[str, bool], runs: Mapping[str, Run]
) -> list[MemberLeft]:
    """The runs whose marks stand on partitions that they do not work on any more, and why.

    Args:
        partitions: the group's partitions now.
        members: runs (8 hex digits) the coordinator lists now, and whether as static members.
        runs: the live runs Dagster knows.
    """
    marked: dict[str, dict[OwnerState, list[TopicPartition]]] = {}
    for seen in partitions:
        if seen.live_metadata is not None and seen.live_metadata.owner_state is not OwnerState.PAUSED:
            marked.setdefault(seen.live_metadata.run_id, {}).setdefault(
                seen.live_metadata.owner_state, []
            ).append(seen.topic_partition)
    left = []
    for run in sorted(marked):
        running, released = (marked[run].get(mark) for mark in (OwnerState.RUNNING, OwnerState.RELEASED))
        known = runs.get(run, Run(RunFate.UNKNOWN))
        reason = (
            _departure_reason(known, members.get(run))
            if running
            else _orderly_reason(known, members.get(run))
        )
        if reason is not None:
            left.append(MemberLeft(run, reason, tuple(sorted(running or released or ()))))
    return left


def _departure_reason(run: Run, static: bool | None) -> LeaveReason | None:  # noqa: FBT001 - None: not a member
    """Why a run's ``running`` mark stands alone."""
    # Rule 1: a run that is over owns nothing, though the broker may list it until its session times out
    if run.fate is RunFate.SUCCEEDED:
        return LeaveReason.PARTITIONS_LOST
    if run.fate in (RunFate.FAILED, RunFate.CANCELED) or run.process is ProcessStatus.GONE:
        by_signal = run.is_interrupted and run.fate is not RunFate.CANCELED
        return LeaveReason.UNRELEASED if by_signal else LeaveReason.CRASHED
    # Rule 2: the coordinator's word counts for the living
    if static is not None:
        return None
    # Rule 3: at work but not a member. Its watchdog took it out and said so, or it could not say anything
    if run.fate in (RunFate.IN_PROGRESS, RunFate.CANCELING):
        if run.fence_report is None or run.fence_report.is_back:
            return LeaveReason.UNRESPONSIVE
        return run.fence_report.reason.leave or LeaveReason.UNRESPONSIVE
    # Rule 4: no such run, no such member: deleted, or a script that died
    return LeaveReason.CRASHED


def _orderly_reason(run: Run, static: bool | None) -> LeaveReason | None:  # noqa: FBT001 - None: not a member
    """What became of a run that gave up all it had."""
    # Rule 1: a static member sends no LeaveGroup: the coordinator keeps its place after its run
    if static is not None:
        return LeaveReason.STATIC if static and run.fate in _FINISHED else None
    # Rule 2: nobody else is at work for it
    if run.fate in (RunFate.CANCELED, RunFate.CANCELING):
        return LeaveReason.CANCELED
    return LeaveReason.INTERRUPTED if run.is_interrupted else LeaveReason.GRACEFUL


def reason_without_commit(run: Run, *, is_back: bool) -> LeaveReason:
    """Why a run left whose partitions others have marked as theirs since, or which is back itself."""
    # Rule 1: what became of the run says it, unless the run goes on, or a signal ended it
    if run.is_interrupted and run.fate in (RunFate.FAILED, RunFate.IN_PROGRESS):
        return LeaveReason.INTERRUPTED
    if run.process is ProcessStatus.GONE:
        return LeaveReason.CRASHED
    if run.fate in _REASON_WITHOUT_COMMIT:
        return _REASON_WITHOUT_COMMIT[run.fate]
    # Rule 2: it said why
    why = run.fence_report.reason if run.fence_report else None
    if why is FenceReason.CLOSED:
        return LeaveReason.GRACEFUL
    if why is not None and why.leave is not None:
        return why.leave
    # Rule 3: a run that is away and says nothing cannot; of one that is back, and of scripts, nobody knows
    return (
        LeaveReason.UNRESPONSIVE
        if run.fate is RunFate.IN_PROGRESS and not is_back
        else LeaveReason.UNEXPLAINED
    )


def will_get_a_partition(partitions: int, others: Iterable[int]) -> bool:
    """Whether a member that has no partition will be given one: there are more of them than others that work.

    Args:
        partitions: of all topics of the group.
        others: how many partitions each of the other members has.

    >>> will_get_a_partition(4, [4]), will_get_a_partition(2, [1, 1]), will_get_a_partition(2, [1, 1, 0])
    (True, False, False)
    """
    return partitions > sum(1 for held in others if held)


class GroupState(Enum):
    """What the coordinator says of a group.

    The classic protocol's and KIP-848's states come to these four.
    """

    STABLE = "stable"
    REBALANCING = "rebalancing"
    EMPTY = "empty"
    DEAD = "dead"


@dataclass(frozen=True)
class MemberSnapshot:
    """One member as the coordinator lists it.

    Attributes:
        name: the run's 8 hex digits; of an external member words for people.
        is_foreign: it is no run of this package.
        is_static: it has a ``group.instance.id`` of the user's.
        group_instance_id: its ``group.instance.id`` when that was made for its run: after its death another
            run may be there.
        is_of_other_instance: a Dagster run that this instance does not have.
    """

    member_id: str
    name: str
    partitions: tuple[TopicPartition, ...]
    _: KW_ONLY
    is_foreign: bool = False
    is_static: bool = False
    group_instance_id: str | None = None
    is_of_other_instance: bool = False

    @property
    def key(self) -> str:
        """Enough of the member id to know it again."""
        return f"{crc32(self.member_id.encode()):08x}"

    @property
    def is_successor(self) -> bool:
        """Whether it goes on under the name of another run."""
        first = run_id_of_instance(self.group_instance_id)
        return first is not None and short_run_id(first) != self.name


@dataclass(frozen=True)
class GroupSnapshot:
    """A group at one look: the coordinator's, the commit logs' and Dagster's word.

    Attributes:
        runs: of the live lane, the newest first.
        catch_up: runs of the other lane, those in progress.
    """

    state: GroupState
    members: tuple[MemberSnapshot, ...]
    partitions: tuple[PartitionSnapshot, ...]
    _: KW_ONLY
    runs: Mapping[str, Run] = field(default_factory=dict)
    catch_up: Mapping[str, Run] = field(default_factory=dict)

    @cached_property
    def named_members(self) -> tuple[MemberSnapshot, ...]:
        """The members in a lasting order, each under the run that it is.

        Of a member with a ``group.instance.id`` the coordinator shows the client id that joined first: who
        commits a static one's partitions is it, and who took over a place has said so; where nobody has that
        this Dagster knows of, and the one it was made for does not work either, commits tell here too.
        """
        return tuple(
            self._name(member) for member in sorted(self.members, key=lambda member: member.member_id)
        )

    @property
    def size(self) -> int:
        """How many work.

        A run that lost its broker, and joined again, is listed twice until its session times out.
        """
        return len({member.name for member in self.named_members})

    def _name(self, member: MemberSnapshot) -> MemberSnapshot:
        if not (member.is_static or member.group_instance_id):
            return member
        heirs = [
            name
            for name, run in self.runs.items()
            if member.group_instance_id and run.has_instance_id(member.group_instance_id)
        ]
        first = self.runs.get(member.name)
        marks = [self._owner_states[tp] for tp in member.partitions if tp in self._owner_states]
        marked = min(
            ((mark.owner_state is not OwnerState.RUNNING, mark.run_id) for mark in marks), default=(True, "")
        )[1]
        if heirs:
            return replace(member, name=marked if marked in heirs else heirs[0], is_of_other_instance=False)
        if marked and (member.is_static or not (first and first.is_working)):
            return replace(member, name=marked, is_foreign=False)
        return member

    @cached_property
    def _owner_states(self) -> dict[TopicPartition, LiveCommitMetadata]:
        return {
            seen.topic_partition: seen.live_metadata
            for seen in self.partitions
            if seen.live_metadata is not None
        }

    @property
    def member_run_ids(self) -> dict[str, bool]:
        """The runs that the coordinator lists, and whether as static members."""
        return {member.name: member.is_static for member in self.named_members if not member.is_foreign}

    @property
    def owners_without_member(self) -> list[MemberLeft]:
        """Who stands in the commit log and does not work any more."""
        return departures(self.partitions, self.member_run_ids, self.runs)

    @property
    def assignment_hash(self) -> str:
        """Who has which partitions, in 8 digits."""
        shares = sorted((member.member_id, *map(str, sorted(member.partitions))) for member in self.members)
        return f"{crc32(repr(shares).encode()):08x}"
