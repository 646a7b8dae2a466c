"""One member on a real broker, with both group protocols: what it commits, hands over, and is refused."""

from __future__ import annotations

import inspect
import threading
from dataclasses import replace

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.fencing import FenceReason, RunState
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.core.resume import OwnedPartition
from kafka_liveness_dagster.core.run_ids import instance_id_for_run, run_id_of_instance
from kafka_liveness_dagster.core.timeouts import BrokerLimits, ConsumerGroupConfig, RunBudget, derive_timeouts
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.errors import (
    CommitRefusedError,
    FencedError,
    KafkaRefusedError,
    TopicNotFoundError,
)
from kafka_liveness_dagster.kafka.live import member as of_member
from kafka_liveness_dagster.kafka.live.assignment import drain_callbacks
from kafka_liveness_dagster.kafka.live.consumer import LivenessConsumer
from kafka_liveness_dagster.kafka.live.member import Member
from kafka_liveness_dagster.kafka.run_context import RunContext
from kafka_liveness_dagster.kafka.settings import KafkaSettings, LiveSettings
from tests.waiting import wait_for

PARTITIONS = range(4)
RUN, OTHER_RUN = "0badcafe", "b0b0b0b0"
SESSION, HEARTBEAT = 60.0, 0.5  # seconds, the longest that the broker takes
SECONDS = 120.0  # of a poll that ends with the first batch


class Group:
    """A topic of four partitions with 100 records each, and a group on it that nobody used before."""

    def __init__(self, kafka, topic, group_id, protocol):
        self.kafka, self.topic, self.group_id = kafka, topic, group_id
        self.all = tuple(TopicPartition(topic, p) for p in PARTITIONS)
        self.protocol = protocol
        own, brokers = (
            (SESSION, HEARTBEAT),
            ConsumerGroupConfig(round(SESSION * 1000), round(HEARTBEAT * 1000)),
        )
        session, heartbeat = own if protocol == "classic" else (None, None)
        self.timeouts = derive_timeouts(
            RunBudget(60, "argument"),
            session_seconds=session,
            heartbeat_seconds=heartbeat,
            limits=BrokerLimits(1_000, 60_000),
            group=brokers if protocol == "consumer" else None,
        )
        self.live = LiveSettings((topic,), group_id, 20)

    def consumer(self, state=lambda: RunState.IN_PROGRESS, run=RUN, take_over=None, **settings):
        """A live lane of a run that goes on unless told otherwise, not joined yet."""
        of = replace(link(run, state), claim_instance_id=take_over)
        return LivenessConsumer(self.kafka, replace(self.live, **settings), self.timeouts, of)

    def members(self):
        """Who is in the group, as the coordinator sees it."""
        return Cluster(self.kafka).members(self.group_id)

    def committed(self):
        """What the broker stores, as a stranger reads it.

        Offset and metadata of each partition that has them.
        """
        stranger = Consumer(self.kafka.committer_config(self.group_id, "stranger"))
        try:
            found = stranger.committed([KafkaTopicPartition(*tp) for tp in self.all], timeout=60)
        finally:
            stranger.close()
        return {tp.partition: (tp.offset, tp.metadata) for tp in found if tp.offset >= 0}

    def offsets(self):
        """The offsets of these commits."""
        return {partition: offset for partition, (offset, _) in self.committed().items()}


def link(run_id, state=lambda: RunState.IN_PROGRESS):
    """A run that goes on, unless told otherwise."""
    return RunContext(run_id, f"dagster/job/{run_id}/step", state)


@pytest.fixture(params=["classic", "consumer"])
def group(request, services, make_topic, make_group, produce):
    """The same laws for the classic protocol and KIP-848's."""
    topic = make_topic(len(PARTITIONS))
    for partition in PARTITIONS:
        produce(services.bootstrap_servers, topic, partition, map(str, range(100)))
    kafka = KafkaSettings(services.bootstrap_servers)
    return Group(kafka, topic, make_group(SESSION, HEARTBEAT), request.param)


@pytest.fixture
def join(group):
    """Subscribe as another member; a client that is not closed would hang in its destructor, so all leave."""
    members = []

    def subscribe(run):
        members.append(Member(group.kafka, group.live, group.timeouts, link(run)))
        return members[-1]

    yield subscribe
    for member in members:
        member.leave(release=False)


def serve_until(reached, *members):
    """Serve all members until a condition holds; a condition, not a clock, ends the wait.

    Patience is shorter than a session: a member that is gone by then has left by itself.
    """

    def look():
        found = reached()
        for member in members if not found else ():
            member.poll(0.02)
        return found

    wait_for(look, 0.9 * SESSION, what=inspect.getsource(reached).strip(), pause=0.0 if members else 0.02)


def settle(member, owned, *others):
    """Adopt what arrived; a rebalance under way may ask for patience."""

    def adopted():
        member.commit_start_positions(
            {tp: replace(o, assignment_id=member.pending.get(tp, 0)) for tp, o in owned.items()}
        )
        return set(owned) <= set(member.owned)

    serve_until(adopted, member, *others)


def arrivals(member):
    """By which ownership a batch is planned now."""
    return {tp: owned.assignment_id for tp, owned in member.owned.items()}


def commit(member, spans):
    """Commit what was planned by the ownerships of now."""
    return member.commit(spans, arrivals(member))


@pytest.fixture
def newcomer(group, join):
    """A member to which all partitions were assigned, and who has not looked at them yet."""
    member = join(RUN)
    serve_until(lambda: member.pending.keys() == set(group.all), member)
    return member


@pytest.fixture
def member(group, newcomer):
    """A member that owns all partitions from 70 on, has planned up to 100, and owes 20-70 of partition 0."""
    settle(
        newcomer,
        {tp: OwnedPartition(70, 100, (Span(20, 70),) if tp.partition == 0 else ()) for tp in group.all},
    )
    return newcomer


@pytest.fixture
def planned(group, member):
    """A batch of 70-90 of every partition, and by which ownerships it was planned."""
    return dict.fromkeys(group.all, Span(70, 90)), arrivals(member)


@pytest.fixture
def handed_over(group, member, planned, join):
    """A second member, and the half of the partitions that the first one gave it.

    It has not settled them yet.
    """
    other = join(OTHER_RUN)
    serve_until(lambda: len(other.pending) == len(member.owned) == 2, member, other)
    assert other.pending.keys() | member.owned.keys() == set(group.all)
    return other, set(other.pending)


# --- what is committed --------------------------------------------------------------------------------------


def test_adopting_is_one_commit_of_position_mark_and_debt(group, member):
    """The jump and its token are one OffsetCommit: who dies right after it has forgotten nothing."""
    found = group.committed()
    assert found == {
        0: (70, f"kl1 running {RUN} @- 20-70"),
        **dict.fromkeys((1, 2, 3), (70, f"kl1 running {RUN} @-")),
    }
    assert LiveCommitMetadata.decode(found[0][1]) == LiveCommitMetadata(
        OwnerState.RUNNING, RUN, (Span(20, 70),)
    )
    assert not member.pending


def test_a_commit_carries_the_debt_along(group, member):
    """Every later commit repeats the owed ranges: the last commit alone tells everything."""
    assert commit(member, {group.all[0]: Span(70, 90)}) == ()
    assert group.committed()[0] == (90, f"kl1 running {RUN} @- 20-70")
    assert member.owned[group.all[0]].committed == 90


@pytest.mark.parametrize(
    "span",
    [
        pytest.param(Span(90, 95), id="80-90 is still open"),
        pytest.param(Span(70, 80), id="70-80 was committed already"),
    ],
)
def test_a_commit_out_of_order_is_refused_and_changes_nothing(group, member, span):
    """A gap or an overlap names the committed offset; neither partition of the batch moves."""
    first, second = group.all[:2]
    commit(member, {first: Span(70, 80)})
    with pytest.raises(CommitRefusedError, match=f"{group.topic}:0:{span} is out of order: 80 is committed"):
        commit(member, {second: Span(70, 90), first: span})
    assert group.offsets() == {0: 80, 1: 70, 2: 70, 3: 70}


def test_what_is_not_owned_is_not_committed(group, member):
    """The broker would accept a partition that belongs to another member: it is left to its owner."""
    stranger = TopicPartition(group.topic, 9)
    assert commit(member, {group.all[0]: Span(70, 80), stranger: Span(0, 10)}) == (stranger,)
    assert group.offsets()[0] == 80


@pytest.mark.parametrize(
    ("release", "mark"),
    [
        pytest.param(True, "released", id="in good order: the next owner resumes in order"),
        pytest.param(False, "running", id="as a crash: the next owner may jump"),
    ],
)
def test_how_a_member_leaves_is_written_in_its_last_commit(group, member, release, mark):
    """The mark, at the last committed position, tells the next owner how this one went.

    Leaving twice is leaving.
    """
    commit(member, {group.all[0]: Span(70, 90)})
    member.leave(release=release)
    member.leave(release=not release)
    found = group.committed()
    assert found == {
        0: (90, f"kl1 {mark} {RUN} @- 20-70"),
        **dict.fromkeys((1, 2, 3), (70, f"kl1 {mark} {RUN} @-")),
    }
    assert (member.owned, member.pending) == ({}, {})


def test_whoever_leaves_in_the_middle_of_a_rebalance_closes_with_nothing_left_to_answer(
    group, join, monkeypatch
):
    """A client that closes takes the first answer for the last.

    A second one may never return, nor its process.
    """
    answered = []

    class Closing(Consumer):
        is_closing = False

        def close(self):
            self.is_closing = True
            super().close()

        def incremental_unassign(self, partitions):
            answered.append(self.is_closing)
            super().incremental_unassign(partitions)

    with monkeypatch.context() as patch:
        patch.setattr(of_member, "Consumer", Closing)
        leaver = join(RUN)
    serve_until(lambda: leaver.pending.keys() == set(group.all), leaver)
    other = join(OTHER_RUN)
    serve_until(lambda: len(group.members()) == 2, other)  # a rebalance, and the leaver polls no more
    leaver.leave(release=False)
    assert answered
    assert not any(answered)
    serve_until(lambda: other.pending.keys() == set(group.all), other)


def test_debts_of_many_partitions_need_several_requests(services, make_topic):
    """300 partitions that owe almost all that a commit can hold are more than the broker takes at once."""
    topic, partitions = make_topic(300), range(300)
    kafka, owed = (
        KafkaSettings(services.bootstrap_servers),
        tuple(Span(n, n + 1) for n in range(1000, 1800, 2)),
    )
    timeouts = derive_timeouts(
        RunBudget(60, "argument"),
        session_seconds=SESSION,
        heartbeat_seconds=HEARTBEAT,
        limits=BrokerLimits(1_000, 60_000),
    )
    alone = Member(kafka, LiveSettings((topic,), f"etl-{topic}", 20), timeouts, link(RUN))
    try:
        serve_until(lambda: len(alone.pending) == len(partitions), alone)
        settle(alone, {TopicPartition(topic, p): OwnedPartition(2000, 2000, owed) for p in partitions})
    finally:
        alone.leave(release=False)
    found = Cluster(kafka).commits(f"etl-{topic}", [TopicPartition(topic, p) for p in partitions])
    size = sum(len(commit.metadata) for commit in found.values())
    assert size > 1_000_000
    assert {LiveCommitMetadata.decode(commit.metadata).pending for commit in found.values()} == {owed}
    assert len(found) == len(partitions)


def test_a_member_that_left_commits_nothing(group, member, planned):
    """After leaving, a commit touches neither the broker nor another owner's partition."""
    member.leave(release=False)
    assert member.commit(*planned) == group.all
    assert set(group.offsets().values()) == {70}


def test_a_member_that_was_fenced_while_it_settled_adopts_nothing(group, newcomer):
    """The watchdog may leave between the look at the logs and adopt: that is no crash of its own."""
    looked_at = {
        tp: OwnedPartition(70, 70, assignment_id=arrival) for tp, arrival in newcomer.pending.items()
    }
    newcomer.leave(release=False)
    newcomer.commit_start_positions(looked_at)
    assert not newcomer.owned
    assert group.committed() == {}


# --- what is handed over ------------------------------------------------------------------------------------


def test_a_handover_leaves_the_rest_as_it_was(group, member, planned, handed_over):
    """Cooperative: what is given up is released at its last commit, what is kept is committed as before."""
    _, given = handed_over
    assert set(member.commit(*planned)) == given
    debt = {0: " 20-70"}
    assert group.committed() == {
        tp.partition: (70, f"kl1 released {RUN} @-{debt.get(tp.partition, '')}")
        if tp in given
        else (90, f"kl1 running {RUN} @-{debt.get(tp.partition, '')}")
        for tp in group.all
    }


def test_a_partition_that_went_and_came_back_does_not_block_the_others(group, member, planned, handed_over):
    """Planned ahead, handed over, committed by another, handed back.

    That part is replayed, the rest committed.
    """
    other, given = handed_over
    settle(other, {tp: OwnedPartition(70, 100) for tp in given}, member)
    commit(other, dict.fromkeys(given, Span(70, 80)))
    other.leave(release=True)
    serve_until(lambda: member.pending.keys() >= given, member)
    settle(member, {tp: OwnedPartition(80, 80) for tp in given})
    assert set(member.commit(*planned)) == given
    assert group.offsets() == {tp.partition: 80 if tp in given else 90 for tp in group.all}


def test_a_look_from_before_a_partition_went_and_came_back_is_not_believed(group, newcomer, join):
    """Adopted on that look, it would go on where it was before another member committed it."""
    looked_at = {
        tp: OwnedPartition(70, 70, assignment_id=arrival) for tp, arrival in newcomer.pending.items()
    }
    other = join(OTHER_RUN)
    serve_until(lambda: len(other.pending) == len(newcomer.pending) == 2, newcomer, other)
    given = set(other.pending)
    other.leave(release=True)
    serve_until(lambda: newcomer.pending.keys() == set(group.all), newcomer)
    serve_until(lambda: newcomer.commit_start_positions(looked_at) or newcomer.owned, newcomer)
    assert newcomer.owned.keys() == set(group.all) - given
    assert group.offsets().keys() == {tp.partition for tp in newcomer.owned}


# --- places -------------------------------------------------------------------------------------------------


def nobody_is_gone(group_id, places):
    """What Dagster says while everybody works."""
    return


def all_are_gone(group_id, places):
    """What Dagster says, right or wrong, of all who had places."""
    return next(iter(places), None)


def test_who_is_put_out_of_its_place_joins_anew_under_another_name(group):
    """It was thought to be gone.

    What it commits is refused, and the two share the partitions from then on.
    """
    if group.protocol == "consumer":
        with group.consumer(take_over=nobody_is_gone) as dynamic:
            dynamic.poll(SECONDS)
            assert [member.group_instance_id for member in group.members()] == [None]
        return
    with (
        group.consumer(take_over=nobody_is_gone) as first,
        group.consumer(run=OTHER_RUN, take_over=all_are_gone) as second,
    ):
        batch = first.poll(SECONDS)
        (place,) = (member.group_instance_id for member in group.members())
        assert run_id_of_instance(place) == RUN
        serve_until(lambda: second.poll(0.05) and len(second.assignment()) == len(PARTITIONS))
        assert [member.group_instance_id for member in group.members()] == [place]
        with pytest.raises(FencedError, match="reassigned its partitions"):
            first.commit(batch)
        both = (first, second)
        serve_until(
            lambda: [one.poll(0.05) for one in both] and [len(one.assignment()) for one in both] == [2, 2]
        )
        assert {run_id_of_instance(member.group_instance_id) for member in group.members()} == {RUN}
        assert len({member.group_instance_id for member in group.members()}) == 2


def test_partitions_that_came_after_the_last_deal_are_dealt_to_a_successor(group, services):
    """Who goes on under a known name is given what that name had, and nobody would ever read the others."""
    if group.protocol == "consumer":
        return  # the broker deals, and sees new partitions by itself
    place = instance_id_for_run(RUN, "00c0ffee")
    config = group.kafka.member_config(
        replace(group.live, claimed_instance_id=place), f"dagster/job/{RUN}/step", group.timeouts
    )
    # It notices nothing any more
    dead = Consumer({**config, "topic.metadata.refresh.interval.ms": 3_600_000})
    try:
        dead.subscribe([group.topic])
        serve_until(lambda: dead.poll(0.05) is None and len(dead.assignment()) == len(PARTITIONS))
        grown = len(PARTITIONS) + 2
        admin = AdminClient({"bootstrap.servers": services.bootstrap_servers})
        admin.create_partitions([NewPartitions(group.topic, grown)])[group.topic].result()
        serve_until(lambda: len(Cluster(group.kafka).partitions([group.topic])) == grown)
        with group.consumer(run=OTHER_RUN, take_over=all_are_gone) as successor:
            serve_until(
                lambda: (
                    [dead.poll(0.02), successor.poll(0.02)]
                    and len({tp for member in group.members() for tp in member.partitions}) == grown
                )
            )
    finally:
        drain_callbacks(dead, is_static=True)
        dead.close()


# --- what is refused ----------------------------------------------------------------------------------------


def test_an_ended_run_leaves_the_group_for_good(group):
    """A run that ended owns nothing.

    Commits and polls are refused with the reason, and it does not rejoin.
    """
    state, fenced = [RunState.IN_PROGRESS], threading.Event()
    with group.consumer(lambda: state[0]) as consumer:
        consumer.on_fence(fenced.set)
        batch = consumer.poll(SECONDS)
        state[0] = RunState.ENDED
        wait_for(fenced.is_set)
        for refused in (lambda: consumer.commit(batch), consumer.poll, consumer.check):
            with pytest.raises(FencedError, match="no longer in progress") as caught:
                refused()
            assert caught.value.reason is FenceReason.RUN_ENDED
        serve_until(lambda: not group.members())
    assert set(group.offsets().values()) == {0}


def test_a_closed_consumer_says_so(group):
    """After close() a commit raises: returning would tell the caller that the batch is safe."""
    with group.consumer() as consumer:
        batch = consumer.poll(SECONDS)
        consumer.close()
        with pytest.raises(FencedError, match="closed"):
            consumer.commit(batch)
        with pytest.raises(FencedError, match="closed"):
            consumer.poll(0)


def test_an_unknown_topic_names_what_resembles_it(group):
    """A group that waits for a misspelt topic would look healthy: it is refused with a suggestion."""
    misspelt = group.topic.replace("orders", "ordres")
    says = f"topic '{misspelt}' does not exist at .*; did you mean {group.topic}"
    with pytest.raises(TopicNotFoundError, match=says), group.consumer(topics=(misspelt,)) as consumer:
        consumer.poll(0)
    assert group.members() == ()


def test_a_group_of_another_assignor_is_named_with_the_ways_out(services, make_topic, make_group):
    """Another client's consumer is in the group by another assignor: the error names the fixes, none joins.

    And one of the ways out works: told the assignor of the others, it joins them.
    """
    group = Group(
        KafkaSettings(services.bootstrap_servers), make_topic(2), make_group(SESSION, HEARTBEAT), "classic"
    )
    ranged = KafkaSettings(services.bootstrap_servers, {"partition.assignment.strategy": "range"})
    stranger = Member(ranged, group.live, group.timeouts, link(OTHER_RUN))
    try:
        serve_until(lambda: len(stranger.pending) == 2, stranger)
        before = group.members()
        with group.consumer() as ours, pytest.raises(KafkaRefusedError, match=group.group_id) as refused:
            ours.poll(SECONDS)
        for told in (
            "INCONSISTENT_GROUP_PROTOCOL",
            "cooperative-sticky",
            "partition.assignment.strategy",
            "group_id",
        ):
            assert told in str(refused.value)
        assert (group.members(), group.committed()) == (before, {})
        companion = Member(ranged, group.live, group.timeouts, link(RUN))
        try:
            serve_until(lambda: companion.pending and len(stranger.pending) == 1, stranger, companion)
        finally:
            companion.leave(release=False)
    finally:
        stranger.leave(release=False)
