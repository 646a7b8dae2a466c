"""Commits of one member, on a client that answers as the test says: owned partitions only, in order."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.fencing import FenceReason, RunState
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.core.resume import OwnedPartition
from kafka_liveness_dagster.core.timeouts import BrokerLimits, RunBudget, derive_timeouts
from kafka_liveness_dagster.kafka.errors import CommitRefusedError, KafkaRefusedError
from kafka_liveness_dagster.kafka.live import member as of_member
from kafka_liveness_dagster.kafka.live.member import Member
from kafka_liveness_dagster.kafka.run_context import RunContext
from kafka_liveness_dagster.kafka.settings import KafkaSettings, LiveSettings

KEPT, GOES = (TopicPartition("orders", p) for p in range(2))
ARRIVALS = {KEPT: 1, GOES: 2}


class Client:
    """A client of the library: it records each OffsetCommit, and calls back as the test says.

    Attributes:
        refusals: errors of the next commits, one each.
        refused_partition: an error that the next commit has for its first partition alone.
        to_call_back: callbacks of the next poll.
        accepted: ``{partition: (offset, mark)}`` of each commit that was not refused.
        requested: the same of every commit.
        fetched: partitions that are assigned and not paused.
    """

    def __init__(self):
        self.refusals, self.to_call_back = deque(), []
        self.refused_partition = None
        self.requested, self.accepted, self.fetched = [], [], set()

    def subscribe(self, _topics, **callbacks):
        self.callbacks = callbacks

    def poll(self, _seconds):
        while self.to_call_back:
            name, partitions = self.to_call_back.pop(0)
            self.callbacks[name](self, [KafkaTopicPartition(*tp) for tp in partitions])

    def commit(self, offsets, asynchronous):
        assert not asynchronous
        self.requested.append(
            {
                TopicPartition(o.topic, o.partition): (o.offset, LiveCommitMetadata.decode(o.metadata))
                for o in offsets
            }
        )
        if self.refusals:
            raise KafkaException(KafkaError(self.refusals.popleft()))
        if self.refused_partition is not None:
            first, *others = offsets
            return [SimpleNamespace(topic=first.topic, error=KafkaError(self.refused_partition)), *others]
        self.accepted.append(self.requested[-1])
        return offsets

    def incremental_assign(self, partitions):
        self.fetched |= {TopicPartition(tp.topic, tp.partition) for tp in partitions}

    def incremental_unassign(self, partitions):
        self.fetched -= {TopicPartition(tp.topic, tp.partition) for tp in partitions}

    pause = incremental_unassign

    def unsubscribe(self):
        pass

    def assignment(self):
        return []

    def close(self):
        pass


@pytest.fixture
def client():
    """The member's."""
    return Client()


@pytest.fixture
def member(monkeypatch, client):
    """A member that owns two partitions, both committed at 70."""
    monkeypatch.setattr(of_member, "create_client", lambda *_: client)
    limits = BrokerLimits(1_000, 60_000)
    timeouts = derive_timeouts(
        RunBudget(60, "argument"), session_seconds=None, heartbeat_seconds=None, limits=limits
    )
    run = RunContext("0badcafe", "dagster/job/0badcafe/step", lambda: RunState.IN_PROGRESS)
    made = Member(KafkaSettings("127.0.0.1:1"), LiveSettings(("orders",), "g", 20), timeouts, run)
    client.to_call_back.append(("on_assign", [KEPT, GOES]))
    made.poll(0)
    assert made.pending == ARRIVALS
    made.commit_start_positions(
        {tp: OwnedPartition(70, 70, assignment_id=number) for tp, number in made.pending.items()}
    )
    client.accepted.clear()
    return made


def offsets(committed):
    """``{partition: offset}`` of one commit."""
    return {tp: offset for tp, (offset, _) in committed.items()}


@pytest.mark.parametrize(
    "held_up_by",
    [KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION, KafkaError.STALE_MEMBER_EPOCH],
    ids=["between two JoinGroups", "between two generations", "between two epochs of KIP-848"],
)
def test_a_commit_after_a_rebalance_leaves_out_partitions_that_were_handed_over(member, client, held_up_by):
    """The broker fences members, not partitions: it would accept the offset over that of the new owner."""
    client.refusals.append(held_up_by)
    client.to_call_back.append(("on_revoke", [GOES]))
    handed_over = member.commit({KEPT: Span(70, 80), GOES: Span(70, 90)}, ARRIVALS)
    released, last = client.accepted
    assert released[GOES][1].owner_state is OwnerState.RELEASED
    assert offsets(last) == {KEPT: 80}, "only owned partitions may be committed"
    assert handed_over == (GOES,)


def test_a_partition_that_went_and_came_back_is_not_committed_by_its_former_ownership(member, client):
    """Another member may have committed it meanwhile."""
    client.refusals.append(KafkaError.REBALANCE_IN_PROGRESS)
    client.to_call_back += [("on_revoke", [GOES]), ("on_assign", [GOES])]
    assert member.commit({KEPT: Span(70, 80), GOES: Span(70, 90)}, ARRIVALS) == (GOES,)
    assert offsets(client.accepted[-1]) == {KEPT: 80}
    assert member.pending == {GOES: 3}


@pytest.mark.parametrize("span", [Span(80, 90), Span(60, 70)], ids=["behind a gap", "committed already"])
def test_a_span_that_does_not_follow_on_the_commit_is_refused(member, client, span):
    """Behind a gap it would pass unprocessed offsets; below the commit it would go back."""
    with pytest.raises(CommitRefusedError, match=r"out of order: 70 is committed"):
        member.commit({KEPT: span}, ARRIVALS)
    assert client.accepted == []


def test_after_a_refused_commit_planning_goes_back_to_the_commit(member, client):
    """The batch is retried, and so is the batch that was planned after it."""
    for tp in (KEPT, GOES):
        member.owned[tp].position = 90
    client.refusals.append(KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaRefusedError):
        member.commit({KEPT: Span(70, 80)}, ARRIVALS)
    positions = {tp: (one.committed, one.position) for tp, one in member.owned.items()}
    assert positions == {KEPT: (70, 70), GOES: (70, 70)}, "planning goes back to the commit"


def test_offsets_that_a_commit_leaves_out_are_crash_lag_from_that_commit_on(member, client):
    """The next commit carries them too."""
    left_out = {KEPT: (Span(75, 76),)}
    member.commit({KEPT: Span(70, 80)}, ARRIVALS, skipped=lambda tp: left_out.get(tp, ()))
    assert client.accepted[-1][KEPT] == (
        80,
        LiveCommitMetadata(OwnerState.RUNNING, "0badcafe", (Span(75, 76),)),
    )
    member.commit({KEPT: Span(80, 85)}, ARRIVALS)
    assert client.accepted[-1][KEPT] == (
        85,
        LiveCommitMetadata(OwnerState.RUNNING, "0badcafe", (Span(75, 76),)),
    )


def test_an_error_of_a_single_partition_refuses_the_commit(member, client):
    """The request itself succeeds then; the offset is not written."""
    client.refused_partition = KafkaError.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(KafkaRefusedError):
        member.commit({KEPT: Span(70, 80)}, ARRIVALS)
    assert member.owned[KEPT].committed == 70, "a partition that was refused is not committed"


def test_marks_of_a_release_are_repeated_while_a_rebalance_holds_them_up(member, client):
    """Without them the next owner would take an orderly end for a crash."""
    client.refusals.append(KafkaError.REBALANCE_IN_PROGRESS)
    member.leave(release=True)
    marks = {tp: mark.owner_state for committed in client.accepted for tp, (_, mark) in committed.items()}
    assert marks == {KEPT: OwnerState.RELEASED, GOES: OwnerState.RELEASED}, "released partitions are marked"


def test_a_member_does_not_fetch_its_partitions(member, client):
    """Spark reads the records: fetched ones would be dropped."""
    assert member.owned.keys() == {KEPT, GOES}
    assert client.fetched == set(), "assigned partitions are paused"


def test_partitions_that_were_lost_are_neither_owned_nor_marked(member, client):
    """Other members own them by then: a commit, even of a mark, would overwrite theirs."""
    client.to_call_back.append(("on_lost", [GOES]))
    member.poll(0)
    assert member.owned.keys() == {KEPT}, "lost partitions are not owned"
    assert client.accepted == [], "lost partitions are not marked"
    assert member.fenced_by is FenceReason.PARTITIONS_LOST


def test_revoked_partitions_are_given_up_after_an_error_too(member, client):
    """The group gives them to other members as soon as the callback has returned."""
    client.to_call_back.append(("on_revoke", [GOES]))
    with pytest.raises(ZeroDivisionError):
        member.poll(0, lambda _may_wait: 1 / 0)
    assert member.owned.keys() == {KEPT}, "revoked partitions are not owned"
