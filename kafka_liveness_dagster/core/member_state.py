"""Define the states of a group member, and what each call does in each state, in two tables.

An event moves a ``MemberState`` as ``TRANSITIONS`` defines. An impossible event raises and changes nothing.
``kafka.live.member`` owns the client: before each call it reads ``ALLOWED_ACTIONS``. This module calls no
client.

A member that joins, and is fenced while it gives a partition up:

>>> member = MemberState()
>>> member.apply(Event.PARTITIONS_ASSIGNED)
>>> member.apply(Event.REVOCATION_BEGAN)
>>> member.state.name, member.allowed.leave.name
('REVOKING', 'AFTER_POLL')
>>> member.apply(Event.GROUP_LEFT)
Traceback (most recent call last):
kafka_liveness_dagster.core.member_state.IllegalEventError: GROUP_LEFT cannot happen to a member that is...
>>> member.apply(Event.LEAVE_DEFERRED)
>>> member.apply(Event.POLL_ENDED)
>>> member.state.name, member.allowed.leave.name
('FENCED', 'NOW')
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafka_liveness_dagster.core.fencing import FenceReason


class State(Enum):
    """A state of a member; the value is the sentence in DESIGN.md.

    JOINING is the first state and LEFT the last. A FENCED member never goes back: a rejoin creates a new
    member. REVOKING, LOSING and LEAVING only occur during a poll, after a callback of librdkafka.
    """

    JOINING = (
        "subscribed, without an assignment: it waits for the JoinGroup of the others (KIP-62), or for "
        "the response to a heartbeat with epoch 0 (KIP-848)"
    )
    ASSIGNED = (
        "a member with an assignment, which may have no partition; librdkafka's thread sends the heartbeats"
    )
    REVOKING = (
        "a rebalance takes partitions and waits for this member: for its next JoinGroup (KIP-62), or for "
        "the heartbeat that no longer names them (KIP-848)"
    )
    LOSING = "fenced while it revokes; the callback has not returned yet"
    FENCED = (
        "no longer a member (`UNKNOWN_MEMBER_ID`; KIP-848: `FENCED_MEMBER_EPOCH`; KIP-345: "
        "`FENCED_INSTANCE_ID`), or about to leave"
    )
    LEAVING = "about to leave, but inside a callback, where `close()` never returns"
    LEFT = (
        "closed by LeaveGroup (KIP-62), epoch -1 (KIP-848), or without a request (static, KIP-345); or "
        "abandoned, because no broker responded"
    )


class Event(Enum):
    """An event of a member; the value names its source."""

    PARTITIONS_ASSIGNED = "`on_assign` in a poll, perhaps without a partition"
    REVOCATION_BEGAN = "`on_revoke` in a poll, or while the client closes"
    FENCED = "`on_lost`, or an error that ends the membership"
    POLL_ENDED = "`poll` returned or raised"
    LEAVE_DEFERRED = "`leave` inside a callback"
    GROUP_LEFT = "`leave` outside of a callback: the client is about to close"
    COMMIT_TIMED_OUT = "a commit without a response: the client must not be used any more"


class PollAction(Enum):
    """The action of ``poll`` in a state."""

    POLL = "poll the client, which also serves rebalances"
    WAIT = "wait for a moment, if the rebalance timeout allows it: a client has one poll at a time"
    NOTHING = "there is no member"


class CommitAction(Enum):
    """The action of ``commit_start_positions``, ``commit`` and ``verify_ownership`` in a state."""

    NORMAL = "commit the owned partitions, in a thread that can be abandoned"
    IN_CALLBACK = "the same in this thread: in a callback no other thread may use the client"
    NOTHING = "no partition is owned"


class LeaveAction(Enum):
    """The action of ``leave`` in a state."""

    NOW = "mark the owned partitions as released if requested, and close the client"
    AFTER_POLL = "the same, later"
    NOTHING = "there is no member"


@dataclass(frozen=True)
class AllowedActions:
    """The action of each call in one state.

    ``commit_start_positions`` and ``verify_ownership`` act as ``commit`` does.
    """

    poll: PollAction
    commit: CommitAction
    leave: LeaveAction


class IllegalEventError(RuntimeError):
    """An event that is impossible in the member's state.

    It shows a defect, in this package or in the client library.
    """


_IN_CALLBACK = AllowedActions(PollAction.WAIT, CommitAction.IN_CALLBACK, LeaveAction.AFTER_POLL)

ALLOWED_ACTIONS: Mapping[State, AllowedActions] = MappingProxyType(
    {
        State.JOINING: AllowedActions(PollAction.POLL, CommitAction.NOTHING, LeaveAction.NOW),
        State.ASSIGNED: AllowedActions(PollAction.POLL, CommitAction.NORMAL, LeaveAction.NOW),
        State.REVOKING: _IN_CALLBACK,
        State.LOSING: _IN_CALLBACK,
        # The broker refuses commits of partitions that the member has lost
        State.FENCED: AllowedActions(PollAction.POLL, CommitAction.NORMAL, LeaveAction.NOW),
        State.LEAVING: _IN_CALLBACK,
        State.LEFT: AllowedActions(PollAction.NOTHING, CommitAction.NOTHING, LeaveAction.NOTHING),
    }
)

TRANSITIONS: Mapping[State, Mapping[Event, State]] = MappingProxyType(
    {
        State.JOINING: {
            Event.PARTITIONS_ASSIGNED: State.ASSIGNED,
            Event.FENCED: State.FENCED,
            Event.POLL_ENDED: State.JOINING,
            Event.GROUP_LEFT: State.LEFT,
        },
        State.ASSIGNED: {
            Event.PARTITIONS_ASSIGNED: State.ASSIGNED,
            Event.REVOCATION_BEGAN: State.REVOKING,
            Event.FENCED: State.FENCED,
            Event.POLL_ENDED: State.ASSIGNED,
            Event.GROUP_LEFT: State.LEFT,
            Event.COMMIT_TIMED_OUT: State.LEFT,
        },
        State.REVOKING: {  # until the poll ends; one poll may call back more than once
            Event.PARTITIONS_ASSIGNED: State.REVOKING,
            Event.REVOCATION_BEGAN: State.REVOKING,
            Event.FENCED: State.LOSING,
            Event.POLL_ENDED: State.ASSIGNED,
            Event.LEAVE_DEFERRED: State.LEAVING,
        },
        State.LOSING: {
            Event.PARTITIONS_ASSIGNED: State.LOSING,
            Event.REVOCATION_BEGAN: State.LOSING,
            Event.FENCED: State.LOSING,
            Event.POLL_ENDED: State.FENCED,
            Event.LEAVE_DEFERRED: State.LEAVING,
        },
        # librdkafka rejoins by itself, and sometimes revokes partitions that were lost (#5604)
        State.FENCED: {
            Event.PARTITIONS_ASSIGNED: State.FENCED,
            Event.REVOCATION_BEGAN: State.LOSING,
            Event.FENCED: State.FENCED,
            Event.POLL_ENDED: State.FENCED,
            Event.GROUP_LEFT: State.LEFT,
            Event.COMMIT_TIMED_OUT: State.LEFT,
        },
        State.LEAVING: {
            Event.PARTITIONS_ASSIGNED: State.LEAVING,
            Event.REVOCATION_BEGAN: State.LEAVING,
            Event.FENCED: State.LEAVING,
            Event.POLL_ENDED: State.FENCED,
            Event.LEAVE_DEFERRED: State.LEAVING,
        },
        State.LEFT: {  # the client may call back once more while it closes
            Event.PARTITIONS_ASSIGNED: State.LEFT,
            Event.REVOCATION_BEGAN: State.LEFT,
            Event.FENCED: State.LEFT,
        },
    }
)


@dataclass
class MemberState:
    """The current state of one member.

    Attributes:
        fenced_by: reason why the membership has ended; None while no end was detected.
    """

    state: State = field(default=State.JOINING, init=False)
    fenced_by: FenceReason | None = field(default=None, init=False)

    @property
    def allowed(self) -> AllowedActions:
        """The action of each call in the current state."""
        return ALLOWED_ACTIONS[self.state]

    def apply(self, event: Event) -> None:
        """Move to the state that this event leads to.

        Raises:
            IllegalEventError: the event is impossible in the current state. Nothing has changed.
        """
        if event not in TRANSITIONS[self.state]:
            raise IllegalEventError(f"{event.name} cannot happen to a member that is {self.state.name}")
        self.state = TRANSITIONS[self.state][event]

    def fence(self, reason: FenceReason) -> None:
        """Record that the membership has ended for this reason."""
        self.apply(Event.FENCED)
        self.fenced_by = reason
