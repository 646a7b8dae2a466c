"""The client around the table of a member's states.

Each call does what the table says, wherever the member stands.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kafka_liveness_dagster.core.fencing import FenceReason, RunState
from kafka_liveness_dagster.core.member_state import (
    ALLOWED_ACTIONS,
    CommitAction,
    LeaveAction,
    PollAction,
    State,
)
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.core.resume import OwnedPartition
from kafka_liveness_dagster.core.timeouts import BrokerLimits, RunBudget, derive_timeouts
from kafka_liveness_dagster.kafka.errors import CommitRefusedError
from kafka_liveness_dagster.kafka.live import assignment as kafka_assignment
from kafka_liveness_dagster.kafka.live import member as of_member
from kafka_liveness_dagster.kafka.live.member import Member
from kafka_liveness_dagster.kafka.run_context import RunContext
from kafka_liveness_dagster.kafka.settings import KafkaSettings, LiveSettings

KEPT, GOES = (TopicPartition("orders", p) for p in range(2))
STATES = pytest.mark.parametrize("state", State, ids=lambda state: state.name.lower())


def kafkas(partitions):
    """As the client library has them."""
    return [KafkaTopicPartition(*tp) for tp in partitions]


class Client:
    """What a member asks of the client library, written down; it calls back what it is told to."""

    def __init__(self):
        self.asked, self.to_call_back, self.refuses = [], [], None

    def subscribe(self, _topics, **callbacks):
        self.callbacks = callbacks

    def poll(self, _seconds):
        self.asked.append(PollAction.POLL)
        while self.to_call_back:
            name, partitions = self.to_call_back.pop(0)
            self.callbacks[name](self, kafkas(partitions))

    def commit(self, offsets, asynchronous):
        here = threading.current_thread() is threading.main_thread()
        self.asked.append(CommitAction.IN_CALLBACK if here else CommitAction.NORMAL)
        if self.refuses is not None:
            raise KafkaException(KafkaError(self.refuses))
        return offsets

    def close(self):
        self.asked.append(LeaveAction.NOW)

    def unsubscribe(self):
        self.poll = lambda _seconds: None

    def assignment(self):
        return []

    def incremental_assign(self, partitions):
        pass

    pause = incremental_unassign = incremental_assign


@pytest.fixture
def made(monkeypatch):
    """A member and its client."""
    client = Client()
    monkeypatch.setattr(of_member, "create_client", lambda *_: client)
    limits = BrokerLimits(1_000, 60_000)
    timeouts = derive_timeouts(
        RunBudget(60, "argument"), session_seconds=None, heartbeat_seconds=None, limits=limits
    )
    run = RunContext("0badcafe", "dagster/job/0badcafe/step", lambda: RunState.IN_PROGRESS)
    return Member(KafkaSettings("127.0.0.1:1"), LiveSettings(("orders",), "g", 20), timeouts, run), client


def commit(member):
    """What is committed already, of what was assigned first."""
    return member.commit({KEPT: Span(70, 70)}, {KEPT: 1})


def be_refused(member, client):
    """The group has given the member's partitions to others, and says so when it commits."""
    client.refuses = KafkaError.UNKNOWN_MEMBER_ID
    with pytest.raises(CommitRefusedError, match="no longer a member"):
        commit(member)
    client.refuses = None


def in_a_callback(member, client, then):
    """Do this while partitions are about to go."""
    client.to_call_back.append(("on_revoke", [GOES]))
    member.poll(0, lambda _may_wait: then())


def bring(member, client, state, probe):
    """Let the member come to stand there, and do this then; gives what the client was asked for by it."""
    seen = []

    def look():
        assert member._state.state is state
        del client.asked[:]
        probe()
        seen.append(list(client.asked))

    if state is not State.JOINING:
        client.to_call_back.append(("on_assign", [KEPT, GOES]))
        member.poll(0)
        arrived = member.pending.items()
        member.commit_start_positions(
            {tp: OwnedPartition(70, 70, assignment_id=number) for tp, number in arrived}
        )
    ways = {
        State.JOINING: look,
        State.ASSIGNED: look,
        State.REVOKING: lambda: in_a_callback(member, client, look),
        State.LOSING: lambda: in_a_callback(member, client, lambda: (be_refused(member, client), look())),
        State.FENCED: lambda: (be_refused(member, client), look()),
        State.LEAVING: lambda: in_a_callback(member, client, lambda: (member.leave(release=False), look())),
        State.LEFT: lambda: (member.leave(release=False), look()),
    }
    ways[state]()
    return seen.pop()


@STATES
def test_serve_polls_waits_or_does_nothing(made, state):
    """Who waits was called back by a poll, and may not begin another one."""
    member, client = made
    asked = bring(member, client, state, lambda: member.poll(0))
    assert asked == ([PollAction.POLL] if ALLOWED_ACTIONS[state].poll is PollAction.POLL else [])


@STATES
def test_commit_asks_the_broker_by_the_right_thread_or_not_at_all(made, state):
    """In a callback by the thread that runs it; else by one that can be left behind."""
    member, client = made
    handed_over = []
    asked = bring(member, client, state, lambda: handed_over.extend(commit(member)))
    does = ALLOWED_ACTIONS[state].commit
    assert asked == ([] if does is CommitAction.NOTHING else [does])
    assert handed_over == ([KEPT] if does is CommitAction.NOTHING else [])


@STATES
def test_leave_closes_at_once_or_when_the_poll_ends_and_once(made, state):
    """Never inside of a callback; and who has left does not leave again."""
    member, client = made
    asked = bring(member, client, state, lambda: member.leave(release=False))
    assert asked == ([LeaveAction.NOW] if ALLOWED_ACTIONS[state].leave is LeaveAction.NOW else [])
    assert client.asked.count(LeaveAction.NOW) == (ALLOWED_ACTIONS[state].leave is not LeaveAction.NOTHING)
    assert (member._state.state, member.owned, member.pending) == (State.LEFT, {}, {})


@pytest.mark.parametrize("release", [True, False], ids=["released", "as after a crash"])
def test_a_leave_that_was_put_off_releases_as_it_was_asked_to(made, release):
    """The marks are committed after the poll, so by a thread that can be left behind."""
    member, client = made
    asked = bring(member, client, State.REVOKING, lambda: member.leave(release=release))
    assert asked == []
    assert client.asked == [
        CommitAction.IN_CALLBACK,
        *([CommitAction.NORMAL] if release else []),
        LeaveAction.NOW,
    ]


@pytest.mark.parametrize("state", [State.FENCED, State.LOSING], ids=lambda state: state.name.lower())
def test_who_is_refused_knows_why_it_is_out(made, state):
    """In the middle of a callback too; outside of it nothing is lost by that: the watchdog has it leave."""
    member, client = made
    assert member.fenced_by is None
    bring(member, client, state, lambda: None)
    assert (member.fenced_by, member._state.state) == (FenceReason.PARTITIONS_LOST, State.FENCED)


def test_a_rebalance_is_as_old_as_the_last_poll_that_found_nothing(made, monkeypatch):
    """One that called back may have left another, behind a message: it waits since before that poll."""
    member, client = made
    now, granted = [0.0], []
    monkeypatch.setattr(kafka_assignment, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def waits(may_wait):
        granted.append(False)
        may_wait()
        granted[-1] = True
        now[0] += member._rebalance._handover_seconds

    def polls(*called_back):
        client.to_call_back += called_back
        member.poll(0, waits)

    polls()
    polls(("on_assign", [KEPT, GOES]))
    polls(("on_revoke", [GOES]))
    polls(("on_revoke", [KEPT]))
    polls()
    polls(("on_revoke", []))
    assert granted == [True, False, True]
