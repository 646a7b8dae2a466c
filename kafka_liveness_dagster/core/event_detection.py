"""Derive the events of a group from its last memory and its current snapshot.

The same snapshot and the same memory give the same events. A caller that repeats a snapshot with the old
memory repeats the events. Reads neither Kafka nor Dagster.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.departures import GroupState, Run, RunFate, reason_without_commit
from kafka_liveness_dagster.core.events import (
    CrashLagForgotten,
    GroupDied,
    GroupEmptied,
    LeaveReason,
    MemberJoined,
    MemberLeft,
    RebalanceCompleted,
    RebalanceStarted,
)
from kafka_liveness_dagster.core.offsets import OffsetRange, difference, intersection
from kafka_liveness_dagster.core.orphaned_runs import find_orphaned, update_absences

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from kafka_liveness_dagster.core.departures import GroupSnapshot
    from kafka_liveness_dagster.core.events import GhostFound, GroupEvent
    from kafka_liveness_dagster.core.orphaned_runs import Absence

MAX_REMEMBERED = 20  # members by name: the cursor is bounded, so a larger group is reported by its numbers
MAX_ABSENT = 10  # runs without membership, and since when
MAX_REPORTED = 60  # departures that the commit log shows at the same time
# Longest expected time between two ticks; in a longer one the machine, and its runs, may have slept
_MAX_BLINK_SECONDS = 60.0
_WITHOUT_MEMBERS: dict[GroupState, GroupEvent] = {
    GroupState.EMPTY: GroupEmptied(),
    GroupState.DEAD: GroupDied(),
}


@dataclass(frozen=True)
class SeenMember:
    """A member at the last sensor tick; ``MemberSnapshot`` describes the fields."""

    name: str
    is_foreign: bool = False
    is_of_other_instance: bool = False


@dataclass(frozen=True)
class SensorMemory:
    """The events that were already reported, so that each is reported once.

    Attributes:
        group_state: state of the group at the last tick.
        members: members of the last tick by their keys, at most ``MAX_REMEMBERED``.
        reported_departures: reported departures that the commit log still shows, by their runs.
        assignment_hash: hash of the assignment when the group was last stable.
        rebalancing_since: start of the rebalance in seconds; None without one.
        absent_runs: runs in progress that were no members, and since when; the newest first.
        forgotten_ranges: forgotten ranges such as ``p3:orders:70-120`` that are not proven done yet.
        last_tick_at: time of the last tick in seconds; 0 if it is unknown.
    """

    group_state: GroupState
    members: Mapping[str, SeenMember]
    reported_departures: Mapping[str, LeaveReason]
    _: KW_ONLY
    assignment_hash: str
    rebalancing_since: float | None = None
    absent_runs: Mapping[str, Absence] = field(default_factory=dict)
    forgotten_ranges: tuple[str, ...] = ()
    last_tick_at: float = 0.0


def detect_events(
    memory: SensorMemory | None, observed: GroupSnapshot, now_seconds: float, ghost_after_seconds: float
) -> tuple[list[GroupEvent], SensorMemory]:
    """Return the events since ``memory``, and the new memory.

    The first tick has no memory: it reports only events that need an action.

    Args:
        memory: the memory of the last tick; None for the first one.
        observed: the group now.
        now_seconds: current time, on the clock of ``memory``.
        ghost_after_seconds: time without a heartbeat before a run counts as a ghost.
    """
    left = observed.owners_without_member[:MAX_REPORTED]
    absent, ghosts = _update_absent(memory, observed, now_seconds, ghost_after_seconds=ghost_after_seconds)
    lost, forgotten = _forgotten_events(memory, observed)
    after = SensorMemory(
        observed.state,
        {
            m.key: SeenMember(m.name, m.is_foreign, m.is_of_other_instance)
            for m in observed.named_members[:MAX_REMEMBERED]
        },
        {gone.run: gone.reason for gone in left},
        assignment_hash=observed.assignment_hash,
        absent_runs=absent,
        forgotten_ranges=forgotten,
        last_tick_at=now_seconds,
    )
    if memory is None:
        return [*(gone for gone in left if not gone.reason.in_good_order), *lost, *ghosts], after
    if observed.state is GroupState.REBALANCING:
        since = now_seconds if memory.rebalancing_since is None else memory.rebalancing_since
        after = replace(after, assignment_hash=memory.assignment_hash, rebalancing_since=since)
    events = [
        *(gone for gone in left if not _was_reported(gone, memory.reported_departures)),
        *_departed_members(
            memory, observed, announced=after.reported_departures.keys() | memory.reported_departures.keys()
        ),
        *_joined_events(memory, observed),
        *_group_events(memory, observed, now_seconds),
        *lost,
        *ghosts,
    ]
    return events, after


def _group_events(before: SensorMemory, seen: GroupSnapshot, now_seconds: float) -> list[GroupEvent]:
    """Return the events of the group as a whole."""
    members = seen.size
    if seen.state is GroupState.REBALANCING:
        return [RebalanceStarted(members)] if before.rebalancing_since is None else []
    events: list[GroupEvent] = []
    if members and before.rebalancing_since is not None:
        events.append(RebalanceCompleted(members, now_seconds - before.rebalancing_since))
    elif members and seen.assignment_hash != before.assignment_hash:
        events.append(RebalanceCompleted(members, None))
    if seen.state is not before.group_state and seen.state in _WITHOUT_MEMBERS:
        events.append(_WITHOUT_MEMBERS[seen.state])
    return events


def _joined_events(before: SensorMemory, seen: GroupSnapshot) -> list[GroupEvent]:
    if len(before.members) >= MAX_REMEMBERED:
        return []  # a new member looks like one that was not remembered
    return [
        MemberJoined(
            member.name,
            member.partitions,
            member.is_foreign,
            is_of_other_instance=member.is_of_other_instance,
        )
        for member in seen.named_members[:MAX_REMEMBERED]
        if member.key not in before.members
    ]


def _departed_members(
    before: SensorMemory, seen: GroupSnapshot, announced: Container[str]
) -> list[MemberLeft]:
    """Return the departed members that no owner state in the commits shows.

    They are external members, runs that are back, and those whose partitions others took.

    Args:
        before: the memory of the last tick.
        seen: the group now.
        announced: runs whose departures the commits show.
    """
    present = {member.key for member in seen.named_members}
    # A successor has the membership under which the dead run was listed before
    heirs = {member.name for member in seen.named_members if member.is_successor}
    missing = [was for key, was in before.members.items() if key not in present and was.name not in heirs]
    return [
        _departure_without_commit(was, seen) for was in missing if was.is_foreign or was.name not in announced
    ]


def _departure_without_commit(was: SeenMember, seen: GroupSnapshot) -> MemberLeft:
    """Return the departure of a member that no owner state in the commits shows."""
    if was.is_foreign:
        return MemberLeft(was.name, LeaveReason.EXTERNAL_CLIENT, ())
    is_back = was.name in seen.member_run_ids
    if was.is_of_other_instance:
        return MemberLeft(was.name, LeaveReason.OTHER_INSTANCE, (), is_back=is_back)
    run = seen.runs.get(was.name, Run(RunFate.UNKNOWN))
    return MemberLeft(was.name, reason_without_commit(run, is_back=is_back), (), is_back=is_back)


def _forgotten_events(
    before: SensorMemory | None, seen: GroupSnapshot
) -> tuple[list[GroupEvent], tuple[str, ...]]:
    """Return events for newly forgotten ranges, and all forgotten ranges that are not done yet.

    Reported ranges stay in the memory until they are done, so that each is reported once.
    """
    announced = [OffsetRange.parse(key) for key in before.forgotten_ranges] if before else []
    waiting = {p.topic_partition: p.outstanding for p in seen.partitions}
    still = [one for one in announced if intersection((one.span,), waiting.get(one.topic_partition, ()))]
    foreign = tuple(member.name for member in seen.members if member.is_foreign)
    new = [
        OffsetRange(*p.topic_partition, *span)
        for p in seen.partitions
        for span in difference(
            p.forgotten_pending, [one.span for one in still if one.topic_partition == p.topic_partition]
        )
    ]
    events: list[GroupEvent] = [CrashLagForgotten(str(one), one.size, foreign) for one in new]
    return events, tuple(map(str, [*still, *new][:MAX_REMEMBERED]))


def _update_absent(
    before: SensorMemory | None, seen: GroupSnapshot, now_seconds: float, ghost_after_seconds: float
) -> tuple[dict[str, Absence], list[GhostFound]]:
    """Return the runs in progress that are no members, and since when; and the ghosts among them."""
    runs = seen.runs_of_both_lanes
    unseen = (
        max(0.0, now_seconds - before.last_tick_at - _MAX_BLINK_SECONDS)
        if before and before.last_tick_at
        else 0.0
    )
    absent = update_absences(
        before.absent_runs if before else {}, runs, seen.member_run_ids, now=now_seconds, unlisted=unseen
    )
    return find_orphaned(absent, runs, now_seconds, ghost_after_seconds=ghost_after_seconds)


def _was_reported(gone: MemberLeft, announced: Mapping[str, LeaveReason]) -> bool:
    """Return whether the departure was reported, with the same reason or another orderly one.

    A change from one orderly reason to another needs no second event.
    """
    before = announced.get(gone.run)
    return before is gone.reason or (
        before is not None and before.in_good_order and gone.reason.in_good_order
    )
