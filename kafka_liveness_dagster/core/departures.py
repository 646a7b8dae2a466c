"""Decide which members left a group and why, from one snapshot of the group.

The same snapshot always gives the same answer, so a repeated sensor tick changes nothing. Reads neither Kafka
nor Dagster.

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
    """State of a Dagster run; ``UNKNOWN`` if Dagster does not list it (deleted, or no Dagster run)."""

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
    """A Dagster run, and the status of its process.

    Attributes:
        fence_report: the run's own report of the leave, and whether it is back; None if it never left, or
            could not report.
        started: whether its Dagster status is started, not queued or starting.
        process: status of the process of a run in progress. ``GONE`` needs a second query of Dagster. It
            shows that the run was still in progress after its process was gone.
        heartbeat_at: its last heartbeat, a counter that changes every half minute; None if it sends none.
        fenced_for_seconds: longest time that it may be out of the group: process timeout plus session
            timeout; None before it reports that.
        group_instance_id: id of an earlier run's membership that it took over.
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
        """Whether the run reported that a signal ended its process.

        It released its partitions if the broker responded.
        """
        return self.fence_report is not None and self.fence_report.reason is FenceReason.INTERRUPTED

    @property
    def is_working(self) -> bool:
        """Whether the run is in progress and its process is not known to be gone."""
        return (
            self.fate in (RunFate.IN_PROGRESS, RunFate.CANCELING) and self.process is not ProcessStatus.GONE
        )

    def took_over(self, group_instance_id: str) -> bool:
        """Return whether the run took over this membership from a dead run.

        A run that has not started has only inherited the tag of the run that it repeats.
        """
        return self.group_instance_id == group_instance_id and self.started and self.is_working


def departures(
    partitions: Iterable[PartitionSnapshot], members: Mapping[str, bool], runs: Mapping[str, Run]
) -> list[MemberLeft]:
    """Return the runs that own partitions in the commits but do not work on them any more, with the reason.

    Args:
        partitions: the group's partitions now.
        members: runs (8 hex digits) that the coordinator lists now, and whether as static members.
        runs: the live runs that Dagster lists.
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
    """Return why a run does not work on partitions with its owner state ``running``; None if it does."""
    # Rule 1: a run that is over owns nothing, though the broker may list it until its session times out
    if run.fate is RunFate.SUCCEEDED:
        return LeaveReason.PARTITIONS_LOST
    if run.fate in (RunFate.FAILED, RunFate.CANCELED) or run.process is ProcessStatus.GONE:
        by_signal = run.is_interrupted and run.fate is not RunFate.CANCELED
        return LeaveReason.UNRELEASED if by_signal else LeaveReason.CRASHED
    # Rule 2: the coordinator lists a run in progress as a member, so it has not left
    if static is not None:
        return None
    # Rule 3: in progress, but no member: its watchdog left the group and reported why, or could not report
    if run.fate in (RunFate.IN_PROGRESS, RunFate.CANCELING):
        if run.fence_report is None or run.fence_report.is_back:
            return LeaveReason.UNRESPONSIVE
        return run.fence_report.reason.leave or LeaveReason.UNRESPONSIVE
    # Rule 4: no such run, no such member: deleted, or a script that died
    return LeaveReason.CRASHED


def _orderly_reason(run: Run, static: bool | None) -> LeaveReason | None:  # noqa: FBT001 - None: not a member
    """Return why a run left that released all its partitions; None if it is still a member."""
    # Rule 1: a static member sends no LeaveGroup, so the coordinator keeps its membership after its run
    if static is not None:
        return LeaveReason.STATIC if static and run.fate in _FINISHED else None
    # Rule 2: the run is no member any more, so it left; its state gives the reason
    if run.fate in (RunFate.CANCELED, RunFate.CANCELING):
        return LeaveReason.CANCELED
    return LeaveReason.INTERRUPTED if run.is_interrupted else LeaveReason.GRACEFUL


def reason_without_commit(run: Run, *, is_back: bool) -> LeaveReason:
    """Return why a run left whose partitions have other owners since, or which is a member again."""
    # Rule 1: the run's state decides, unless the run is in progress, or a signal ended it
    if run.is_interrupted and run.fate in (RunFate.FAILED, RunFate.IN_PROGRESS):
        return LeaveReason.INTERRUPTED
    if run.process is ProcessStatus.GONE:
        return LeaveReason.CRASHED
    if run.fate in _REASON_WITHOUT_COMMIT:
        return _REASON_WITHOUT_COMMIT[run.fate]
    # Rule 2: the run reported why
    why = run.fence_report.reason if run.fence_report else None
    if why is FenceReason.CLOSED:
        return LeaveReason.GRACEFUL
    if why is not None and why.leave is not None:
        return why.leave
    # Rule 3: a run in progress that is away without a report is unresponsive; the reason of a run that is
    # back, or of a script, is unknown
    return (
        LeaveReason.UNRESPONSIVE
        if run.fate is RunFate.IN_PROGRESS and not is_back
        else LeaveReason.UNEXPLAINED
    )


def will_get_a_partition(partitions: int, others: Iterable[int]) -> bool:
    """Return whether a member without a partition will get one.

    It will if there are more partitions than other members that have some.

    Args:
        partitions: number of partitions of all topics of the group.
        others: number of partitions of each other member.

    >>> will_get_a_partition(4, [4]), will_get_a_partition(2, [1, 1]), will_get_a_partition(2, [1, 1, 0])
    (True, False, False)
    """
    return partitions > sum(1 for held in others if held)


class GroupState(Enum):
    """State of a group by its coordinator; the states of the classic protocol and KIP-848 map to these."""

    STABLE = "stable"
    REBALANCING = "rebalancing"
    EMPTY = "empty"
    DEAD = "dead"


@dataclass(frozen=True)
class MemberSnapshot:
    """One member as the coordinator lists it.

    Attributes:
        name: the run's 8 hex digits; a display text for an external client.
        is_foreign: whether it is no run of this package.
        is_static: whether it has a ``group.instance.id`` that the user set.
        group_instance_id: its ``group.instance.id`` if it was created for its run; after that run's death
            another run may use it.
        is_of_other_instance: whether it is a Dagster run that this instance does not have.
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
        """Hash of the member id, which identifies the member in later snapshots."""
        return f"{crc32(self.member_id.encode()):08x}"

    @property
    def is_successor(self) -> bool:
        """Whether it uses the ``group.instance.id`` of another run."""
        first = run_id_of_instance(self.group_instance_id)
        return first is not None and short_run_id(first) != self.name


@dataclass(frozen=True)
class GroupSnapshot:
    """A group at one moment: the records of the coordinator, of the commit logs and of Dagster.

    Attributes:
        runs: runs of the live lane, the newest first.
        catch_up: runs of the catch-up lane that are in progress.
    """

    state: GroupState
    members: tuple[MemberSnapshot, ...]
    partitions: tuple[PartitionSnapshot, ...]
    _: KW_ONLY
    runs: Mapping[str, Run] = field(default_factory=dict)
    catch_up: Mapping[str, Run] = field(default_factory=dict)

    @property
    def runs_of_both_lanes(self) -> dict[str, Run]:
        """The runs of the live lane, and those of the catch-up lane in progress."""
        return {**self.runs, **self.catch_up}

    @cached_property
    def named_members(self) -> tuple[MemberSnapshot, ...]:
        """Members in a stable order, each with the name of the run that it is now.

        For a member with a ``group.instance.id`` the coordinator shows the client id that joined first. The
        run that commits its partitions is the static member. A run that took over a membership records that
        in a tag. If no run of this Dagster instance did, and the first run does not work either, the commits
        decide here too.
        """
        return tuple(
            self._name(member) for member in sorted(self.members, key=lambda member: member.member_id)
        )

    @property
    def size(self) -> int:
        """Number of different members.

        A run that lost its broker and joined again is listed twice until its session times out.
        """
        return len({member.name for member in self.named_members})

    def _name(self, member: MemberSnapshot) -> MemberSnapshot:
        if not (member.is_static or member.group_instance_id):
            return member
        heirs = [
            name
            for name, run in self.runs.items()
            if member.group_instance_id and run.took_over(member.group_instance_id)
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
        """Runs that the coordinator lists, and whether as static members."""
        return {member.name: member.is_static for member in self.named_members if not member.is_foreign}

    @property
    def owners_without_member(self) -> list[MemberLeft]:
        """Owners in the commits that do not work any more."""
        return departures(self.partitions, self.member_run_ids, self.runs)

    @property
    def assignment_hash(self) -> str:
        """Hash of the assignment of partitions to members, in 8 digits."""
        shares = sorted((member.member_id, *map(str, sorted(member.partitions))) for member in self.members)
        return f"{crc32(repr(shares).encode()):08x}"
