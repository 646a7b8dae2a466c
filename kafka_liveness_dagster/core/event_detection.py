"""What has happened to a group since the last look? Two looks and a memory in; events and a new memory out.

The same look and the same memory give the same events, so a look that is repeated tells nothing new by
itself: who repeats it with the old memory repeats the events. Never asks Kafka or Dagster.
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

MAX_REMEMBERED = 20  # members by name; a larger group is told by its numbers
MAX_ABSENT = 10  # runs that are away, and for how long
MAX_REPORTED = 60  # departures that stand in the commit log at the same time
# Longest time between two looks; in more the machine may have slept, and its runs with it
_MAX_BLINK_SECONDS = 60.0
_WITHOUT_MEMBERS: dict[GroupState, GroupEvent] = {
    GroupState.EMPTY: GroupEmptied(),
    GroupState.DEAD: GroupDied(),
}


@dataclass(frozen=True)
class SeenMember:
    """A member of the last look; what its fields mean is ``MemberSnapshot``'s to say."""

    name: str
    is_foreign: bool = False
    is_of_other_instance: bool = False


@dataclass(frozen=True)
class SensorMemory:
    """What was told, so that it is told once.

    Attributes:
        group_state: of the group at the last look.
        members: those it had, by their keys, at most ``MAX_REMEMBERED``.
        reported_departures: departures that were told and still stand in the commit log, by their runs.
        assignment_hash: who had which partitions when the group was last stable.
        rebalancing_since: seconds, None while it is not.
        absent_runs: runs in progress that were no members, and since when; the newest first.
        forgotten_ranges: ranges that were forgotten, ``orders:3:70-120``, and are not proven done yet.
        last_tick_at: seconds, 0 when that is not known.
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
    """What is new since ``memory``; at the first look only what someone must act on.

    Args:
        memory: what the last look left behind, None for the first one.
        observed: the group now.
        now_seconds: on the clock of ``memory``.
        ghost_after_seconds: a run that gives no sign of life is no ghost before that.
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
    """What happened to the group as a whole."""
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
        return []  # who is new cannot be told from who was not remembered
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
    """Return the departed members whose marks record no reason.

    They are external members, runs that are back, and those whose partitions others took.

    Args:
        before: who was there.
        seen: who is there.
        announced: runs whose departures are told by their marks.
    """
    present = {member.key for member in seen.named_members}
    # The dead run may have been seen under the name of these
    heirs = {member.name for member in seen.named_members if member.is_successor}
    missing = [was for key, was in before.members.items() if key not in present and was.name not in heirs]
    return [
        _departure_without_commit(was, seen) for was in missing if was.is_foreign or was.name not in announced
    ]


def _departure_without_commit(was: SeenMember, seen: GroupSnapshot) -> MemberLeft:
    """Why one that left no marks is gone."""
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
    """What nobody remembers any more; what of it was told before, and is not done yet, is remembered here."""
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
    """Runs that are at work and no members, and since when; those for which nobody works."""
    runs = {**seen.runs, **seen.catch_up}
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
    """Whether it was told, or that its run left in good order.

    By which name is seen later matters to nobody.
    """
    before = announced.get(gone.run)
    return before is gone.reason or (
        before is not None and before.in_good_order and gone.reason.in_good_order
    )
