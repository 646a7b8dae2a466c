"""Define the events of a consumer group: a closed set of frozen classes, each with a text for people.

An event has facts only, and never decides what follows from them.

>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> gone = MemberLeft("0badcafe", LeaveReason.CRASHED, (TopicPartition("orders", 3),))
>>> print(gone)
run 0badcafe crashed; it had orders:3
>>> print(CrashLagFound("p3:orders:70-120", 50))
crash lag p3:orders:70-120, 50 offsets, is pending
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from kafka_liveness_dagster.core.names import StoredByName, join_some

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.core.offsets import TopicPartition


class LeaveReason(StoredByName):
    """Reason why a member left, or stopped working; the value is the text for people."""

    GRACEFUL = "left gracefully"
    CANCELED = "left because its run was canceled"
    POLL_TIMEOUT = "left by poll timeout"
    CRASHED = "crashed"
    UNRESPONSIVE = "stopped sending heartbeats"
    """Its run is in progress, but the group lost the member, which reported no reason.

    The process is frozen, cut off from the network, or was killed unnoticed.
    """
    PARTITIONS_LOST = "lost its partitions"
    BROKERS_UNAVAILABLE = "got no response from a broker for longer than its session timeout"
    INTERRUPTED = "was ended by a signal to its process"
    """SIGTERM or Ctrl-C without a cancellation of the run; it released its partitions.

    The host shut down, the pod was moved, or the service was stopped.
    """
    UNRELEASED = "was ended by a signal to its process, and could not release its partitions"
    STATIC = "ended, and holds its partitions as a static member until its session times out"
    MAX_RUNTIME_REACHED = "left because it reached its dagster/max_runtime"
    REPLACED = "was replaced by another consumer with the same group.instance.id"
    UNEXPLAINED = "left for no known reason"
    """It is back and reported no reason, or it is no Dagster run."""
    EXTERNAL_CLIENT = "left"
    """An external client; its reason is unknown."""
    OTHER_INSTANCE = "of another Dagster instance left"
    """A run of another Dagster instance, whose sensor reports the reason; others have its partitions."""

    @property
    def in_good_order(self) -> bool:
        """Whether the member gave its partitions up in good order, so no action is needed."""
        return self in (
            LeaveReason.GRACEFUL,
            LeaveReason.CANCELED,
            LeaveReason.STATIC,
            LeaveReason.OTHER_INSTANCE,
            LeaveReason.INTERRUPTED,
        )

    @property
    def needs_successor(self) -> bool:
        """Whether the sensor requests a live run even without lag.

        The partitions of such a member have no other owner before its session times out.
        """
        return self in (LeaveReason.CRASHED, LeaveReason.UNRELEASED)


@dataclass(frozen=True)
class MemberJoined:
    """The first observation of a member.

    Attributes:
        name: the run's 8 hex digits; ``<client id> at <host>`` for an external client.
        is_foreign: whether it is no run of this package: a Java consumer, kcat.
        is_of_other_instance: whether it is a run of another Dagster instance with the same group.
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
    """A member that left, or that holds partitions without working on them any more."""

    run: str
    reason: LeaveReason
    partitions: tuple[TopicPartition, ...]
    """Partitions whose last commit is its own; none if others had taken them before the sensor tick."""
    is_back: bool = False
    """Whether the same run was a member again by then."""

    def __str__(self) -> str:
        who = _describe_member(self.run, foreign=self.reason is LeaveReason.EXTERNAL_CLIENT)
        had = f"; it had {_describe_partitions(self.partitions)}" if self.partitions else ""
        back = " and rejoined between two sensor ticks" if self.is_back else ""
        return f"{who} {self.reason.value}{back}{had}"


def _count_members(count: int) -> str:
    return f"{count} member" if count == 1 else f"{count} members"


@dataclass(frozen=True)
class RebalanceStarted:
    """A rebalance in progress: the coordinator reassigns the partitions."""

    members: int

    def __str__(self) -> str:
        return f"a rebalance began, with {_count_members(self.members)}"


@dataclass(frozen=True)
class RebalanceCompleted:
    """A completed rebalance: the partitions are assigned.

    ``seconds`` is None for a rebalance that began and ended between two sensor ticks.
    """

    members: int
    seconds: float | None

    def __str__(self) -> str:
        took = "" if self.seconds is None else f", which took about {self.seconds:.0f} s"
        return f"the partitions were reassigned among {_count_members(self.members)}{took}"


@dataclass(frozen=True)
class GroupEmptied:
    """A group without members, which keeps its commits."""

    def __str__(self) -> str:
        return "the group has no member any more"


@dataclass(frozen=True)
class GroupDied:
    """A group that the coordinator does not list any more: it was deleted, or its commits expired."""

    def __str__(self) -> str:
        return "the group does not exist any more"


@dataclass(frozen=True)
class GhostFound:
    """A run in progress for which no process works; another run may replace it.

    Attributes:
        seconds: time without membership in the group; time without a heartbeat for a catch-up run, which is
            never a member.
        gone: whether its process is certainly gone.
    """

    run: str
    seconds: float
    gone: bool = False

    def __str__(self) -> str:
        if self.gone:
            return f"run {self.run} is in progress, but its process is gone"
        return f"run {self.run} is in progress, but has shown no activity for {self.seconds:.0f} s"


@dataclass(frozen=True)
class CrashLagFound:
    """A pending range that had no Dagster partition yet; ``key`` is the partition's."""

    key: str
    offsets: int

    def __str__(self) -> str:
        return f"crash lag {self.key}, {self.offsets:,} offsets, is pending"


@dataclass(frozen=True)
class CrashLagForgotten:
    """A range whose pending record an external commit replaced: it is neither in the table nor pending.

    Attributes:
        replaced_by: external members of the group at that moment; empty if none was there any more.
    """

    key: str
    offsets: int
    replaced_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        who = join_some(self.replaced_by) or "a client that is not in the group now"
        return (
            f"{self.key}, {self.offsets:,} offsets, is neither in the table nor pending: {who} replaced "
            "the commit that listed it"
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
"""Any of these events: the argument of ``on_event``."""


def crashed_runs(events: Sequence[GroupEvent]) -> list[str]:
    """Return the runs, as 8 hex digits, that crashed by these events and are not members again.

    >>> crashed_runs([GhostFound("0badcafe", 61.3, gone=True), GhostFound("fdeff1df", 61.3), GroupEmptied()])
    ['0badcafe']
    """
    return [
        event.run
        for event in events
        if (isinstance(event, GhostFound) and event.gone)
        or (isinstance(event, MemberLeft) and event.reason is LeaveReason.CRASHED and not event.is_back)
    ]


def event_identity(event: GroupEvent) -> str:
    """Return a text that identifies an event across observations, without numbers and partitions.

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
