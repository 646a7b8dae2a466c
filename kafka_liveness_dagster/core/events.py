"""What can happen to a consumer group? A closed set of past-tense nouns, each told once and in words.

>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> gone = MemberLeft("0badcafe", LeaveReason.CRASHED, (TopicPartition("orders", 3),))
>>> print(gone)
run 0badcafe crashed; it had orders:3
>>> print(CrashLagFound("orders:3:70-120", 50))
crash lag orders:3:70-120, 50 offsets, is pending
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from kafka_liveness_dagster.core.names import StoredByName, join_some

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.core.offsets import TopicPartition


class LeaveReason(StoredByName):
    """Why a member is gone, or is as good as gone; the value is what people read."""

    GRACEFUL = "left gracefully"
    CANCELED = "left because its run was canceled"
    POLL_TIMEOUT = "left by poll timeout"
    CRASHED = "crashed"
    UNRESPONSIVE = "stopped sending heartbeats"
    """Its run is in progress, the group is without it and it did not say why.

    Frozen, cut off, or killed unnoticed.
    """
    PARTITIONS_LOST = "lost its partitions"
    BROKERS_UNAVAILABLE = "had no answer from a broker for longer than its session timeout"
    INTERRUPTED = "was ended by a signal to its process"
    """SIGTERM or Ctrl-C, and nobody canceled the run: a host that shuts down, a pod that is moved, a service
    that is stopped. It released its partitions."""
    UNRELEASED = "was ended by a signal to its process, and could not release its partitions"
    STATIC = "ended, and holds its partitions as a static member until its session times out"
    MAX_RUNTIME_REACHED = "left because it reached its dagster/max_runtime"
    REPLACED = "was replaced by another consumer with the same group.instance.id"
    UNEXPLAINED = "left for no known reason"
    """It is back and did not say why it was away, or it is no Dagster run."""
    EXTERNAL_CLIENT = "left"
    """Of an external member nobody knows why."""
    OTHER_INSTANCE = "of another Dagster instance left"
    """Its own instance's sensor knows why; what it gave up others have taken."""

    @property
    def in_good_order(self) -> bool:
        """Whether it gave its partitions up: nothing is to be done about it."""
        return self in (
            LeaveReason.GRACEFUL,
            LeaveReason.CANCELED,
            LeaveReason.STATIC,
            LeaveReason.OTHER_INSTANCE,
            LeaveReason.INTERRUPTED,
        )

    @property
    def needs_successor(self) -> bool:
        """Whether a live run is requested also without lag: its partitions wait for their owner's session."""
        return self in (LeaveReason.CRASHED, LeaveReason.UNRELEASED)


@dataclass(frozen=True)
class MemberJoined:
    """A member was seen for the first time.

    Attributes:
        name: the run's 8 hex digits; of an external member words for people, ``<client id> at <host>``.
        is_foreign: a consumer that is no run of this package: a Java consumer, kcat.
        is_of_other_instance: a run that this Dagster instance does not have: another one has the group too.
    """

    name: str
    partitions: tuple[TopicPartition, ...]
    is_foreign: bool = False
    is_of_other_instance: bool = False

    def __str__(self) -> str:
        of = " of another Dagster instance" if self.is_of_other_instance else ""
        member = _describe_member(self.name, foreign=self.is_foreign)
        return f"{member}{of} joined with {_describe_partitions(self.partitions)}"


@dataclass(frozen=True)
class MemberLeft:
    """A member is gone, or holds partitions that it does not work on any more."""

    run: str
    reason: LeaveReason
    partitions: tuple[TopicPartition, ...]
    """Those that carry its mark; none where others had taken them before anybody looked."""
    is_back: bool = False
    """The same run was a member again by then."""

    def __str__(self) -> str:
        who = _describe_member(self.run, foreign=self.reason is LeaveReason.EXTERNAL_CLIENT)
        had = f"; it had {_describe_partitions(self.partitions)}" if self.partitions else ""
        return f"{who} {self.reason.value}{' and came back between two looks' if self.is_back else ''}{had}"


def _count_members(count: int) -> str:
    return f"{count} member" if count == 1 else f"{count} members"


@dataclass(frozen=True)
class RebalanceStarted:
    """The coordinator was seen to deal the partitions again."""

    members: int

    def __str__(self) -> str:
        return f"a rebalance is under way, with {_count_members(self.members)}"


@dataclass(frozen=True)
class RebalanceCompleted:
    """The partitions are dealt.

    ``seconds`` is None for a rebalance that began and ended between two looks.
    """

    members: int
    seconds: float | None

    def __str__(self) -> str:
        took = "" if self.seconds is None else f", which took about {self.seconds:.0f} s"
        return f"the partitions were reassigned among {_count_members(self.members)}{took}"


@dataclass(frozen=True)
class GroupEmptied:
    """The group has no member any more, and keeps its commits."""

    def __str__(self) -> str:
        return "the group has no member any more"


@dataclass(frozen=True)
class GroupDied:
    """The coordinator knows no such group any more: it was deleted, or its commits expired."""

    def __str__(self) -> str:
        return "the group does not exist any more"


@dataclass(frozen=True)
class GhostFound:
    """A run is in progress, but nobody works for it: a successor may take its place.

    Attributes:
        seconds: for how long it has been no member of the group, or gave no sign of life if it never is one.
        gone: its process is gone for sure.
    """

    run: str
    seconds: float
    gone: bool = False

    def __str__(self) -> str:
        if self.gone:
            return f"run {self.run} is in progress, but its process is gone"
        return f"run {self.run} is in progress, but has not been seen at work for {self.seconds:.0f} s"


@dataclass(frozen=True)
class CrashLagFound:
    """A range is pending that had no partition yet; ``key`` is the partition's."""

    key: str
    offsets: int

    def __str__(self) -> str:
        return f"crash lag {self.key}, {self.offsets:,} offsets, is pending"


@dataclass(frozen=True)
class CrashLagForgotten:
    """Somebody's commit replaced what said that a range is pending: it is neither in the table nor pending.

    Attributes:
        replaced_by: external members of the group at that look; empty when none was there any more.
    """

    key: str
    offsets: int
    replaced_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        who = join_some(self.replaced_by) or "a client that is not in the group now"
        return (
            f"{self.key}, {self.offsets:,} offsets, is not in the table and was forgotten: {who} replaced "
            "its commit"
        )


GroupEvent = Union[  # noqa: UP007 - evaluated at run time, Python 3.10
    MemberJoined,
    MemberLeft,
    RebalanceStarted,
    RebalanceCompleted,
    GroupEmptied,
    GroupDied,
    GhostFound,
    CrashLagFound,
    CrashLagForgotten,
]
"""Any of them: what ``on_event`` is given."""


def event_identity(event: GroupEvent) -> str:
    """Identify an event across observations that repeat it: without numbers and partitions.

    >>> event_identity(GhostFound("0badcafe", 61.3)), event_identity(GroupEmptied())
    ('GhostFound 0badcafe', 'GroupEmptied')
    """
    parts = (getattr(event, name, "") for name in ("run", "name", "key"))
    reason = event.reason.name if isinstance(event, MemberLeft) else ""
    return " ".join(filter(None, (type(event).__name__, *parts, reason)))


def _describe_member(name: str, *, foreign: bool) -> str:
    return f"external member {name}" if foreign else f"run {name}"


def _describe_partitions(partitions: Sequence[TopicPartition]) -> str:
    return join_some(partitions) or "no partition"
