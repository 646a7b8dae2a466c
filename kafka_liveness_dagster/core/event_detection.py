"""What has happened to a group since the last look? Two looks and a memory in; events and a new memory out.

The same look and the same memory give the same events, so a look that is repeated tells nothing new by itself: who
repeats it with the old memory repeats the events. Never asks Kafka or Dagster.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.departures import GroupState, Run, RunFate, reason_without_marks
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
from kafka_liveness_dagster.core.orphaned_runs import absences, found

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from kafka_liveness_dagster.core.departures import GroupSnapshot
    from kafka_liveness_dagster.core.events import GhostFound, GroupEvent
    from kafka_liveness_dagster.core.orphaned_runs import Absence

MAX_REMEMBERED = 20  # members by name; a larger group is told by its numbers
MAX_ABSENT = 10  # runs that are away, and for how long
MAX_TOLD = 60  # departures that stand in the commit log at the same time
_LONGEST_BLINK_SECONDS = 60.0  # between two looks; in more than that the machine may have slept, and its runs with it
_WITHOUT_MEMBERS: dict[GroupState, GroupEvent] = {GroupState.EMPTY: GroupEmptied(), GroupState.DEAD: GroupDied()}


@dataclass(frozen=True)
class Remembered:
    """A member of the last look; what its fields mean is ``MemberSeen``'s to say."""

    name: str
    is_foreign: bool = False
    is_elsewhere: bool = False


@dataclass(frozen=True)
class Memory:
    """What was told, so that it is told once.

    Attributes:
        state: of the group at the last look.
        members: those it had, by their keys, at most ``MAX_REMEMBERED``.
        announced: departures that were told and still stand in the commit log, by their runs.
        dealt: who had which partitions when the group was last stable.
        rebalancing_since: seconds, None while it is not.
        absent: runs in progress that were no members, and since when; the newest first.
        forgotten: ranges that were forgotten, ``orders:3:70-120``, and are not proven done yet.
        looked_at: seconds, 0 when that is not known.
    """

    state: GroupState
    members: Mapping[str, Remembered]
    announced: Mapping[str, LeaveReason]
    dealt: str
    rebalancing_since: float | None = None
    absent: Mapping[str, Absence] = field(default_factory=dict)
    forgotten: tuple[str, ...] = ()
    looked_at: float = 0.0


def changes(
    before: Memory | None, seen: GroupSnapshot, now_seconds: float, ghost_after_seconds: float
) -> tuple[list[GroupEvent], Memory]:
    """What is new since ``before``; at the first look only what someone must act on.

    Args:
        before: what the last look left behind, None for the first one.
        seen: the group now.
        now_seconds: on the clock of ``before``.
        ghost_after_seconds: a run that gives no sign of life is no ghost before that.
    """
    left = seen.left[:MAX_TOLD]
    absent, ghosts = _absent(before, seen, now_seconds, ghost_after_seconds)
    lost, forgotten = _forgotten(before, seen)
    after = Memory(
        seen.state,
        {m.key: Remembered(m.name, m.is_foreign, m.is_elsewhere) for m in seen.known[:MAX_REMEMBERED]},
        {gone.run: gone.reason for gone in left},
        seen.dealt,
        absent=absent,
        forgotten=forgotten,
        looked_at=now_seconds,
    )
    if before is None:
        return [*(gone for gone in left if not gone.reason.in_good_order), *lost, *ghosts], after
    if seen.state is GroupState.REBALANCING:
        since = now_seconds if before.rebalancing_since is None else before.rebalancing_since
        after = replace(after, dealt=before.dealt, rebalancing_since=since)
    events = [
        *(gone for gone in left if not _is_announced(gone, before.announced)),
        *_gone(before, seen, announced=after.announced.keys() | before.announced.keys()),
        *_joined(before, seen),
        *_of_the_group(before, seen, now_seconds),
        *lost,
        *ghosts,
    ]
    return events, after


def _of_the_group(before: Memory, seen: GroupSnapshot, now_seconds: float) -> list[GroupEvent]:
    """What happened to the group as a whole."""
    members = seen.size
    if seen.state is GroupState.REBALANCING:
        return [RebalanceStarted(members)] if before.rebalancing_since is None else []
    events: list[GroupEvent] = []
    if members and before.rebalancing_since is not None:
        events.append(RebalanceCompleted(members, now_seconds - before.rebalancing_since))
    elif members and seen.dealt != before.dealt:
        events.append(RebalanceCompleted(members, None))
    if seen.state is not before.state and seen.state in _WITHOUT_MEMBERS:
        events.append(_WITHOUT_MEMBERS[seen.state])
    return events


def _joined(before: Memory, seen: GroupSnapshot) -> list[GroupEvent]:
    if len(before.members) >= MAX_REMEMBERED:
        return []  # who is new cannot be told from who was not remembered
    return [
        MemberJoined(member.name, member.partitions, member.is_foreign, member.is_elsewhere)
        for member in seen.known[:MAX_REMEMBERED]
        if member.key not in before.members
    ]


def _gone(before: Memory, seen: GroupSnapshot, announced: Container[str]) -> list[MemberLeft]:
    """Members whose marks tell nothing: foreign ones, runs that are back, and those whose partitions others took.

    Args:
        before: who was there.
        seen: who is there.
        announced: runs whose departures are told by their marks.
    """
    present = {member.key for member in seen.known}
    heirs = {member.name for member in seen.known if member.is_heir}  # the dead one may have been seen under their name
    missing = [was for key, was in before.members.items() if key not in present and was.name not in heirs]
    return [_departure(was, seen) for was in missing if was.is_foreign or was.name not in announced]


def _departure(was: Remembered, seen: GroupSnapshot) -> MemberLeft:
    """Why one that left no marks is gone."""
    if was.is_foreign:
        return MemberLeft(was.name, LeaveReason.EXTERNAL_CLIENT, ())
    is_back = was.name in seen.listed
    if was.is_elsewhere:
        return MemberLeft(was.name, LeaveReason.OTHER_INSTANCE, (), is_back)
    run = seen.runs.get(was.name, Run(RunFate.UNKNOWN))
    return MemberLeft(was.name, reason_without_marks(run, is_back=is_back), (), is_back)


def _forgotten(before: Memory | None, seen: GroupSnapshot) -> tuple[list[GroupEvent], tuple[str, ...]]:
    """What nobody remembers any more; what of it was told before, and is not done yet, is remembered here."""
    announced = [OffsetRange.parse(key) for key in before.forgotten] if before else []
    waiting = {p.topic_partition: p.outstanding for p in seen.partitions}
    still = [one for one in announced if intersection((one.span,), waiting.get(one.topic_partition, ()))]
    foreign = tuple(member.name for member in seen.members if member.is_foreign)
    new = [
        OffsetRange(*p.topic_partition, *span)
        for p in seen.partitions
        for span in difference(p.forgotten, [one.span for one in still if one.topic_partition == p.topic_partition])
    ]
    events: list[GroupEvent] = [CrashLagForgotten(str(one), one.size, foreign) for one in new]
    return events, tuple(map(str, [*still, *new][:MAX_REMEMBERED]))


def _absent(
    before: Memory | None, seen: GroupSnapshot, now_seconds: float, ghost_after_seconds: float
) -> tuple[dict[str, Absence], list[GhostFound]]:
    """Runs that are at work and no members, and since when; those for which nobody works."""
    runs = {**seen.runs, **seen.catch_up}
    unseen = max(0.0, now_seconds - before.looked_at - _LONGEST_BLINK_SECONDS) if before and before.looked_at else 0.0
    absent = absences(before.absent if before else {}, runs, seen.listed, now_seconds, unseen)
    return found(absent, runs, now_seconds, ghost_after_seconds)


def _is_announced(gone: MemberLeft, announced: Mapping[str, LeaveReason]) -> bool:
    """Whether it was told, or that its run left in good order: by which name is seen later matters to nobody."""
    before = announced.get(gone.run)
    return before is gone.reason or (before is not None and before.in_good_order and gone.reason.in_good_order)
