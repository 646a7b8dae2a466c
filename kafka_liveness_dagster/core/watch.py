"""What has happened to a group since the last look? Two looks and a memory in; events and a new memory out.

The same look and the same memory give the same events, so a look that is repeated tells nothing new by itself: who
repeats it with the old memory repeats the events. Never asks Kafka or Dagster.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING
from zlib import crc32

from kafka_liveness_dagster.core.commit_log import Mark
from kafka_liveness_dagster.core.events import (
    GroupDied,
    GroupEmptied,
    LeaveReason,
    MemberJoined,
    MemberLeft,
    OwedForgotten,
    RebalanceCompleted,
    RebalanceStarted,
)
from kafka_liveness_dagster.core.ghosts import absences, found
from kafka_liveness_dagster.core.membership import PartitionSnapshot, Run, RunFate, departures, reason_without_marks
from kafka_liveness_dagster.core.offsets import OffsetRange, difference, intersection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafka_liveness_dagster.core.events import GhostFound, GroupEvent
    from kafka_liveness_dagster.core.ghosts import Absence
    from kafka_liveness_dagster.core.offsets import TopicPartition

MAX_REMEMBERED = 20  # members by name; a larger group is told by its numbers
MAX_ABSENT = 10  # runs that are away, and for how long
MAX_TOLD = 60  # departures that stand in the commit log at the same time
_REASONS = list(LeaveReason)
_ELSEWHERE = "*"  # behind the name of a run of another Dagster instance
_LONGEST_BLINK_SECONDS = 60.0  # between two looks; in more than that the machine may have slept, and its runs with it


class GroupState(Enum):
    """What the coordinator says of a group; the classic protocol's and KIP-848's states come to these four."""

    STABLE = "stable"
    REBALANCING = "rebalancing"
    EMPTY = "empty"
    DEAD = "dead"


_WITHOUT_MEMBERS: dict[GroupState, GroupEvent] = {GroupState.EMPTY: GroupEmptied(), GroupState.DEAD: GroupDied()}


@dataclass(frozen=True)
class MemberSeen:
    """One member as the coordinator lists it.

    Attributes:
        name: the run's 8 hex digits; of a foreign member ``<client id> at <host>``.
        is_static: it has a ``group.instance.id``.
        is_elsewhere: a Dagster run that this instance does not have.
    """

    member_id: str
    name: str
    partitions: tuple[TopicPartition, ...]
    is_foreign: bool = False
    is_static: bool = False
    is_elsewhere: bool = False

    @property
    def key(self) -> str:
        """Enough of the member id to know it again."""
        return f"{crc32(self.member_id.encode()):08x}"


@dataclass(frozen=True)
class GroupSnapshot:
    """A group at one look: the coordinator's, the commit logs' and Dagster's word.

    Attributes:
        runs: of the live lane, the newest first.
        catch_up: runs of the other lane, those in progress.
    """

    state: GroupState
    members: tuple[MemberSeen, ...]
    partitions: tuple[PartitionSnapshot, ...]
    runs: Mapping[str, Run] = field(default_factory=dict)
    catch_up: Mapping[str, Run] = field(default_factory=dict)

    @cached_property
    def known(self) -> tuple[MemberSeen, ...]:
        """The members in a lasting order, each under the run that it is.

        Of a static member the coordinator shows the client id that joined first: who commits its partitions is it.
        """
        marks = {seen.topic_partition: seen.mark for seen in self.partitions if seen.mark is not None}
        members = []
        for member in sorted(self.members, key=lambda member: member.member_id):
            own = [marks[tp] for tp in member.partitions if tp in marks] if member.is_static else []
            run = min(((mark.mark is not Mark.RUNNING, mark.run) for mark in own), default=(True, member.name))[1]
            members.append(replace(member, name=run))
        return tuple(members)

    @property
    def left(self) -> list[MemberLeft]:
        """Who stands in the commit log and does not work any more."""
        return departures(self.partitions, {m.name: m.is_static for m in self.known}, self.runs)

    @property
    def dealt(self) -> str:
        """Who has which partitions, in 8 digits."""
        shares = sorted((member.member_id, *map(str, sorted(member.partitions))) for member in self.members)
        return f"{crc32(repr(shares).encode()):08x}"


@dataclass(frozen=True)
class Memory:
    """What was told, so that it is told once.

    Attributes:
        state: of the group at the last look.
        members: key -> name of those it had, at most ``MAX_REMEMBERED``; with ``*`` of another Dagster instance.
        told: departures that were told and still stand in the commit log.
        dealt: who had which partitions when the group was last stable.
        rebalancing_since: seconds, None while it is not.
        absent: runs in progress that were no members, and since when; the newest first.
        forgotten: ranges that were forgotten, ``orders:3:70-120``, and are not proven done yet.
        looked_at: seconds, 0 when that is not known.
    """

    state: GroupState
    members: Mapping[str, str]
    told: tuple[str, ...]
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
    members = {member.key: member.name + _ELSEWHERE * member.is_elsewhere for member in seen.known[:MAX_REMEMBERED]}
    events, forgotten = _forgotten(before, seen)
    told = tuple(map(_name, left))
    after = Memory(seen.state, members, told, seen.dealt, None, absent, forgotten, looked_at=now_seconds)
    if before is None:
        return [*(gone for gone in left if not gone.reason.in_good_order), *events, *ghosts], after
    if seen.state is GroupState.REBALANCING:
        since = now_seconds if before.rebalancing_since is None else before.rebalancing_since
        after = replace(after, dealt=before.dealt, rebalancing_since=since)
    news = [gone for gone in left if not _is_told(gone, before.told)]
    out = _gone(before, seen, {gone.run for gone in left})
    return [*news, *out, *_joined(before, seen), *_of_the_group(before, seen, now_seconds), *events, *ghosts], after


def _of_the_group(before: Memory, seen: GroupSnapshot, now_seconds: float) -> list[GroupEvent]:
    """What happened to the group as a whole."""
    members = len(seen.members)
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


def _gone(before: Memory, seen: GroupSnapshot, left: set[str]) -> list[GroupEvent]:
    """Members whose marks tell nothing: foreign ones, runs that are back, and those whose partitions others took."""
    now, names = ({getattr(member, of) for member in seen.known} for of in ("key", "name"))
    told = left | {name[:-1] for name in before.told}
    out: list[GroupEvent] = []
    for key, whose in before.members.items():
        name = whose.removesuffix(_ELSEWHERE)
        if key in now or name in told:
            continue
        if " at " in name:
            out.append(MemberLeft(name, LeaveReason.UNKNOWN, ()))
        elif name != whose:
            out.append(MemberLeft(name, LeaveReason.ELSEWHERE, (), name in names))
        else:
            run, is_back = seen.runs.get(name, Run(RunFate.UNKNOWN)), name in names
            out.append(MemberLeft(name, reason_without_marks(run, is_back=is_back), (), is_back))
    return out


def _forgotten(before: Memory | None, seen: GroupSnapshot) -> tuple[list[GroupEvent], tuple[str, ...]]:
    """What nobody remembers any more; what of it was told before, and is not done yet, is remembered here."""
    told = [OffsetRange.parse(key) for key in before.forgotten] if before else []
    waiting = {p.topic_partition: p.outstanding for p in seen.partitions}
    still = [one for one in told if intersection((one.span,), waiting.get(one.topic_partition, ()))]
    foreign = tuple(member.name for member in seen.members if member.is_foreign)
    new = [
        OffsetRange(*p.topic_partition, *span)
        for p in seen.partitions
        for span in difference(p.forgotten, [one.span for one in still if one.topic_partition == p.topic_partition])
    ]
    events: list[GroupEvent] = [OwedForgotten(str(one), one.size, foreign) for one in new]
    return events, tuple(map(str, [*still, *new][:MAX_REMEMBERED]))


def _absent(
    before: Memory | None, seen: GroupSnapshot, now_seconds: float, ghost_after_seconds: float
) -> tuple[dict[str, Absence], list[GhostFound]]:
    """Runs that are at work and no members, and since when; those for which nobody works."""
    members, runs = {member.name for member in seen.known}, {**seen.runs, **seen.catch_up}
    unseen = max(0.0, now_seconds - before.looked_at - _LONGEST_BLINK_SECONDS) if before and before.looked_at else 0.0
    absent = absences(before.absent if before else {}, runs, members, now_seconds, unseen)
    return found(absent, runs, now_seconds, ghost_after_seconds)


def _is_told(gone: MemberLeft, told: Sequence[str]) -> bool:
    """Whether it was told, or that its run left in good order: by which name is seen later matters to nobody."""
    good = {name[:-1] for name in told if _REASONS[int(name[-1], 16)].in_good_order}
    return _name(gone) in told or (gone.reason.in_good_order and gone.run in good)


def _name(gone: MemberLeft) -> str:
    """A departure in 9 letters: the memory is small."""
    return f"{gone.run}{_REASONS.index(gone.reason):x}"
