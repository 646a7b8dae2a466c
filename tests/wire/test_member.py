"""The real client against librdkafka's mock cluster: what goes over the wire, without a JVM.

The mock knows groups and commits with metadata; it waits 3 s before a group's first assignment, and cannot describe
a group: that nobody joined is seen by a stranger's commit, which a group with members would refuse.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kafka_liveness_dagster.core.commit_log import ForeignCommitError, LiveMark, Mark
from kafka_liveness_dagster.core.errors import InvalidSettingError, KafkaLivenessError
from kafka_liveness_dagster.core.heartbeat import FenceReason, PollTimer, RunState
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.core.resume import Owned
from kafka_liveness_dagster.core.timeouts import BrokerLimits, Budget, derive
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.config import KafkaSettings, LiveSettings
from kafka_liveness_dagster.kafka.consumer import LivenessConsumer
from kafka_liveness_dagster.kafka.errors import (
    BrokerUnreachableError,
    CommitRefusedError,
    FencedError,
    TopicNotFoundError,
)
from kafka_liveness_dagster.kafka.link import RunLink, now_ms
from kafka_liveness_dagster.kafka.member import Member
from kafka_liveness_dagster.kafka.watchdog import Watchdog

ORDERS = tuple(TopicPartition("orders", p) for p in range(4))  # the mock gives a new topic four partitions
P0, P1 = ORDERS[:2]
RUN = "0badcafe"
PATIENCE = 60.0
GROUPS = (f"group-{n}" for n in itertools.count())


@pytest.fixture(scope="module")
def kafka():
    """A mock cluster with 50 records in each partition of ``orders``; lives as long as its producer."""
    silent = logging.getLogger("tests.wire.silent")
    silent.propagate = False
    producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1}, logger=silent)
    for n in range(200):
        producer.produce("orders", b"record", partition=n % len(ORDERS))
    assert producer.flush(10) == 0
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    yield KafkaSettings(f"{broker.host}:{broker.port}")
    del producer


@pytest.fixture
def group():
    """A group nobody used before."""
    return next(GROUPS)


def timeouts(seconds=30.0):
    """What a budget of so many seconds means to a broker that allows short sessions."""
    return derive(
        Budget(seconds, "argument"), session_seconds=None, heartbeat_seconds=0.3, limits=BrokerLimits(1_000, 60_000)
    )


def link(run_id=RUN, state=lambda: RunState.IN_PROGRESS):
    """A run that goes on, unless told otherwise."""
    return RunLink(run_id, f"dagster/job/{run_id}/step", state)


@pytest.fixture
def join(kafka, group):
    """Subscribe as another member; a client that is not closed would hang in its destructor, so all leave."""
    members = []

    def subscribe(run):
        members.append(Member(kafka, LiveSettings(("orders",), group), timeouts(), link(run)))
        return members[-1]

    yield subscribe
    for member in members:
        member.leave(release=False)


def serve_until(reached, *members):
    """Serve all members until a condition holds; a condition, not a clock, ends the wait."""
    give_up_at = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < give_up_at, "the mock cluster did not get there"
        for member in members:
            member.serve(0.05)


def committed(kafka, group):
    """What the broker stores for ``orders``, as a stranger reads it: offset and metadata of each partition."""
    stranger = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    try:
        found = stranger.committed([KafkaTopicPartition(*tp) for tp in ORDERS], timeout=10)
    finally:
        stranger.close()
    return {tp.partition: (tp.offset, tp.metadata) for tp in found if tp.offset >= 0}


@pytest.fixture
def member(join):
    """A member that owns all partitions from 70 on and owes 20-70 of partition 0."""
    member = join(RUN)
    serve_until(lambda: member.arrived == set(ORDERS), member)
    member.adopt({tp: Owned(70, 100, (Span(20, 70),) if tp == P0 else ()) for tp in ORDERS})
    return member


@pytest.fixture
def consumer(kafka, group):
    """A live lane with a budget of 30 s, not joined yet."""
    with LivenessConsumer(kafka, LiveSettings(("orders",), group, 20), timeouts(), link()) as consumer:
        yield consumer


# --- what is committed ----------------------------------------------------------------------------------------------


def test_adopting_is_one_commit_of_position_mark_and_debt(kafka, group, member):
    """The jump and its token are one OffsetCommit: who dies right after it has forgotten nothing."""
    found = committed(kafka, group)
    assert found == {0: (70, f"kl1 running {RUN} 20-70"), **dict.fromkeys((1, 2, 3), (70, f"kl1 running {RUN}"))}
    assert LiveMark.decode(found[0][1]) == LiveMark(Mark.RUNNING, RUN, (Span(20, 70),))
    assert not member.arrived


def test_a_commit_carries_the_debt_along(kafka, group, member):
    """Every later commit repeats the owed ranges: the last commit alone tells everything."""
    assert member.commit({P0: Span(70, 90)}) == ()
    assert committed(kafka, group)[0] == (90, f"kl1 running {RUN} 20-70")
    assert member.owned[P0].committed == 90


@pytest.mark.parametrize(
    "span",
    [
        pytest.param(Span(90, 95), id="80-90 is still open"),
        pytest.param(Span(70, 80), id="70-80 was committed already"),
    ],
)
def test_a_commit_out_of_order_is_refused_and_changes_nothing(kafka, group, member, span):
    """A gap or an overlap names the committed offset; neither partition of the batch moves."""
    member.commit({P0: Span(70, 80)})
    with pytest.raises(CommitRefusedError, match=f"orders:0:{span} is out of order: 80 is committed"):
        member.commit({P1: Span(70, 90), P0: span})
    assert {p: offset for p, (offset, _) in committed(kafka, group).items()} == {0: 80, 1: 70, 2: 70, 3: 70}


def test_what_is_not_owned_is_not_committed(kafka, group, member):
    """The broker would accept a partition that belongs to another member: it is left to its owner."""
    stranger = TopicPartition("orders", 9)
    assert member.commit({P0: Span(70, 80), stranger: Span(0, 10)}) == (stranger,)
    assert committed(kafka, group)[0][0] == 80


@pytest.mark.parametrize(
    ("release", "mark"),
    [
        pytest.param(True, "released", id="in good order: the next owner resumes in order"),
        pytest.param(False, "running", id="as a crash: the next owner may jump"),
    ],
)
def test_how_a_member_leaves_is_written_in_its_last_commit(kafka, group, member, release, mark):
    """The mark, at the last committed position, tells the next owner how this one went; leaving twice is leaving."""
    member.commit({P0: Span(70, 90)})
    member.leave(release=release)
    member.leave(release=not release)
    found = committed(kafka, group)
    assert found == {0: (90, f"kl1 {mark} {RUN} 20-70"), **dict.fromkeys((1, 2, 3), (70, f"kl1 {mark} {RUN}"))}
    assert (member.owned, member.arrived) == ({}, set())


def test_a_member_that_left_commits_nothing(kafka, group, member):
    """After leaving, a commit touches neither the broker nor another owner's partition."""
    member.leave(release=False)
    assert member.commit({P0: Span(70, 90)}) == (P0,)
    assert committed(kafka, group)[0][0] == 70


def test_a_member_that_was_fenced_while_it_settled_adopts_nothing(member):
    """The watchdog may leave between the look at the logs and adopt: that is no crash of its own."""
    member.leave(release=False)
    member.adopt({P0: Owned(70, 70)})
    assert not member.owned


def test_a_handover_leaves_the_rest_as_it_was(kafka, group, member, join):
    """Cooperative: what is given up stays at its last commit, what is kept is committed as before.

    The mock refuses every commit until the rebalance is over, the mark of the release among them; a real broker
    takes it, and tests/world/test_crash_lag.py proves that members who come and go owe nothing.
    """
    other = join("b0b0b0b0")
    serve_until(lambda: other.arrived, member, other)
    given = set(other.arrived)
    assert given | set(member.owned) == set(ORDERS)
    assert set(member.commit(dict.fromkeys(ORDERS, Span(70, 90)))) == given
    assert {p: offset for p, (offset, _) in committed(kafka, group).items()} == {
        tp.partition: 70 if tp in given else 90 for tp in ORDERS
    }


def test_a_partition_that_went_and_came_back_does_not_block_the_others(kafka, group, member, join):
    """Planned ahead, handed over, committed by another, handed back: that part is replayed, the rest committed."""
    other = join("b0b0b0b0")
    serve_until(lambda: other.arrived, member, other)
    given, kept = set(other.arrived), set(member.owned)
    other.adopt({tp: Owned(70, 100) for tp in given})
    other.commit(dict.fromkeys(given, Span(70, 80)))
    other.leave(release=True)
    serve_until(lambda: member.arrived >= given, member)
    member.adopt({tp: Owned(80, 80) for tp in given})
    assert set(member.commit(dict.fromkeys(ORDERS, Span(70, 90)))) == given
    assert {committed(kafka, group)[p][0] for _, p in kept} == {90}


# --- the fence ------------------------------------------------------------------------------------------------------


def test_a_batch_older_than_its_membership_is_refused(kafka, group):
    """KIP-62: past the deadline the member has left, its batch is void; the next poll rejoins and plans it again."""
    fenced = threading.Event()
    with LivenessConsumer(kafka, LiveSettings(("orders",), group, 20), timeouts(4), link()) as consumer:
        consumer.on_fence(fenced.set)
        late = consumer.poll(PATIENCE)
        assert fenced.wait(PATIENCE)
        with pytest.raises(FencedError, match=r"longer than its process timeout \(.* of 4 s\); nothing was committed"):
            consumer.commit(late)
        assert consumer.poll(PATIENCE).ranges == late.ranges
        with pytest.raises(FencedError, match="planned before the consumer rejoined"):
            consumer.commit(late)
    assert {offset for offset, _ in committed(kafka, group).values()} == {0}


def test_an_ended_run_leaves_the_group_for_good(kafka, group):
    """A run that ended owns nothing: commits and polls are refused with the reason, and it does not rejoin."""
    state, fenced = [RunState.IN_PROGRESS], threading.Event()
    with LivenessConsumer(
        kafka, LiveSettings(("orders",), group, 20), timeouts(), link(state=lambda: state[0])
    ) as consumer:
        consumer.on_fence(fenced.set)
        batch = consumer.poll(PATIENCE)
        state[0] = RunState.ENDED
        assert fenced.wait(PATIENCE)
        for refused in (lambda: consumer.commit(batch), consumer.poll, consumer.check):
            with pytest.raises(FencedError, match="no longer in progress") as caught:
                refused()
            assert caught.value.reason is FenceReason.RUN_ENDED
    assert {offset for offset, _ in committed(kafka, group).values()} == {0}


def test_a_closed_consumer_says_so(kafka, group, consumer):
    """After close() a commit raises: returning would tell the caller that the batch is safe."""
    batch = consumer.poll(PATIENCE)
    consumer.close()
    with pytest.raises(FencedError, match="closed"):
        consumer.commit(batch)
    with pytest.raises(FencedError, match="closed"):
        consumer.poll(0)


@pytest.fixture
def watch():
    """A watchdog of a batch that is late at once; stopped at the end."""
    dogs = []

    def start(leave, state=lambda: RunState.IN_PROGRESS, process_ms=1):
        dogs.append(Watchdog(PollTimer(process_ms, now_ms()), link(state=state), leave))
        dogs[-1].start()
        return dogs[-1]

    yield start
    for dog in dogs:
        dog.stop()


def test_the_deadline_holds_while_dagster_cannot_be_asked(watch):
    """Dagster's database may be down; a hung batch leaves the group at its deadline all the same."""

    def unreachable():
        raise ConnectionError

    left = threading.Event()
    watch(lambda _: left.set(), state=unreachable, process_ms=600)
    assert left.wait(3)


def test_the_deadline_holds_while_dagster_does_not_answer(watch):
    """A question to Dagster that hangs for minutes delays no deadline."""
    left, answer = threading.Event(), threading.Event()
    watch(lambda _: left.set(), state=lambda: answer.wait(PATIENCE) and RunState.IN_PROGRESS, process_ms=600)
    in_time = left.wait(3)
    answer.set()
    assert in_time


def test_a_cancel_that_hangs_does_not_hold_the_partitions(watch):
    """Spark may not answer its interrupt; the group is left all the same."""
    left, answer = threading.Event(), threading.Event()
    dog = Watchdog(PollTimer(1, now_ms()), link(), lambda _: left.set())
    dog.on_fence(lambda: answer.wait(PATIENCE))
    dog.start()
    in_time = left.wait(3)
    answer.set()
    dog.stop()
    assert in_time


def test_what_is_registered_after_the_fence_is_cancelled_at_once(watch):
    """Work begun in the moment of the fence is cancelled too."""
    left, cancelled = threading.Event(), threading.Event()
    dog = watch(lambda _: left.set())
    assert left.wait(3)
    dog.on_fence(cancelled.set)
    assert cancelled.wait(1)


def test_the_fence_is_up_before_anything_slow_happens(watch):
    """Cancelling and leaving take time; commits are refused from the first moment."""
    seen = []
    dog = Watchdog(PollTimer(1, now_ms()), link(), lambda _: None)
    left = threading.Event()
    dog.on_fence(lambda: (seen.append(dog.reason), left.set()))
    dog.start()
    assert left.wait(3)
    dog.stop()
    assert seen == [FenceReason.POLL_TIMEOUT]


def test_a_cancel_that_fails_does_not_keep_the_member_in_the_group():
    """One failing cancel stops neither the next one nor the leave."""
    left, next_one = [], threading.Event()
    dog = Watchdog(PollTimer(0, now_ms()), link(), left.append)
    dog.on_fence(lambda: 1 / 0)
    dog.on_fence(next_one.set)
    with pytest.raises(FencedError):
        dog.check()
    assert left == [FenceReason.POLL_TIMEOUT]
    assert next_one.wait(3)


def test_a_late_commit_is_refused_even_if_the_watchdog_slept():
    """Stopped and continued (SIGSTOP), the process asks the clock itself before it commits."""
    left = []
    dog = Watchdog(PollTimer(1_000, now_ms() - 3_600_000), link(), left.append)
    with pytest.raises(FencedError, match=r"3600\.\d s of 1 s"):
        dog.check()
    assert left == [FenceReason.POLL_TIMEOUT]


# --- what is refused before anything is joined ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        pytest.param("enable.auto.commit", "true", "call commit", id="acknowledges what was not processed"),
        pytest.param("enable.auto.offset.store", "true", "call commit", id="the same by another name"),
        pytest.param("max.poll.records", "500", "pass max_poll_records", id="librdkafka ignores it"),
        pytest.param("max.poll.interval.ms", "1000", "set max_batch_seconds", id="comes from the budget"),
        pytest.param("session.timeout.ms", "1000", "set session_timeout_seconds", id="unchecked otherwise"),
        pytest.param("heartbeat.interval.ms", "1000", "set heartbeat_interval_seconds", id="unchecked otherwise"),
        pytest.param("auto.offset.reset", "latest", "set auto_offset_reset", id="would decide elsewhere too"),
        pytest.param("isolation.level", "read_uncommitted", "read_committed", id="two log ends lose records"),
        pytest.param("group.id", "other", "field of its own", id="said elsewhere"),
        pytest.param("client.id", "other", "Dagster runs", id="the sensor reads it"),
        pytest.param("bootstrap.servers", "other", "field of its own", id="said elsewhere"),
        pytest.param("group.protocol", "consumer", "classic", id="KIP-848 is not supported so far"),
        pytest.param(
            "group.instance.id",
            "one",
            "LeaveGroup",
            id="a static member never leaves",
        ),
    ],
)
def test_a_setting_that_breaks_a_promise_is_refused_with_its_remedy(name, value, remedy):
    """Each refusal names the setting and where to say it instead."""
    with pytest.raises(InvalidSettingError, match=f"{name}={value} is refused: .*{remedy}"):
        KafkaSettings("localhost:9092", {name: value})


@pytest.mark.parametrize("value", ["false", "False"])
def test_saying_what_is_done_anyway_is_fine(value):
    """Switching auto-commit off is what a careful user writes."""
    settings = KafkaSettings("localhost:9092", {"enable.auto.commit": value})
    assert settings.committer("g", "c")["enable.auto.commit"] is False


def test_secrets_are_not_shown():
    """The settings may be logged: extra holds passwords."""
    assert "hunter2" not in repr(KafkaSettings("localhost:9092", {"sasl.password": "hunter2"}))


def test_a_misspelt_setting_is_a_named_error(kafka):
    """A typo in extra settings is the user's, so the error is ours and says which."""
    with pytest.raises(KafkaLivenessError, match=r"sasl\.pasword"):
        Cluster(KafkaSettings(kafka.bootstrap_servers, {"sasl.pasword": "secret"}))


def test_no_broker_is_a_named_error_within_seconds():
    """A wrong address fails soon and says what to check; librdkafka would try for ever."""
    nowhere = KafkaSettings("127.0.0.1:1")
    started = time.monotonic()
    with (
        LivenessConsumer(nowhere, LiveSettings(("orders",), "g"), timeouts(), link()) as consumer,
        pytest.raises(BrokerUnreachableError, match=r"no Kafka broker answered at 127\.0\.0\.1:1 while"),
    ):
        consumer.poll(0)
    assert time.monotonic() - started < 8


def commit_as_a_stranger(kafka, group, metadata):
    """What another program does to a group without members."""
    stranger = Consumer(kafka.committer(group, "stranger"))
    try:
        offsets = [KafkaTopicPartition("orders", 0, 10, metadata)]
        return stranger.commit(offsets=offsets, asynchronous=False)
    finally:
        stranger.close()


def test_a_group_of_another_program_is_not_joined(kafka, group, consumer):
    """Foreign metadata is refused before the group has a member: the other program's commits still pass."""
    commit_as_a_stranger(kafka, group, "flink checkpoint 7")
    with pytest.raises(ForeignCommitError, match="'flink checkpoint 7' is not this package's"):
        consumer.poll(0)
    assert consumer.assignment() == ()
    assert commit_as_a_stranger(kafka, group, "flink checkpoint 8")[0].error is None
    assert committed(kafka, group) == {0: (10, "flink checkpoint 8")}


def test_an_unknown_topic_names_what_resembles_it(kafka, group):
    """A group that waits for a misspelt topic would look healthy: it is refused with a suggestion."""
    live = LiveSettings(("ordres",), group)
    with (
        LivenessConsumer(kafka, live, timeouts(), link()) as consumer,
        pytest.raises(TopicNotFoundError, match=r"topic 'ordres' does not exist at .*; did you mean orders"),
    ):
        consumer.poll(0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param({"topics": ()}, "at least one topic", id="nothing to consume"),
        pytest.param({"topics": "orders"}, "wanted a list", id="a string is a list of letters"),
        pytest.param({"max_poll_records": 0}, "max_poll_records is 0", id="a batch without room"),
        pytest.param({"group_id": ""}, "must not be empty", id="no group"),
        pytest.param({"group_id": "orders.catch-up"}, "second commit log", id="the name of a second log"),
    ],
)
def test_a_live_lane_that_cannot_work_is_refused(settings, words):
    """Each refusal says what was wanted."""
    with pytest.raises(InvalidSettingError, match=words):
        LiveSettings(**{"topics": ("orders",), "group_id": "g", **settings})


@pytest.mark.parametrize(
    "run_id",
    [
        pytest.param("0badcafe-1111-4222-8333-444455556666", id="as Dagster writes it"),
        pytest.param("nightly", id="a script's"),
        pytest.param("7", id="short"),
    ],
)
def test_every_run_can_read_its_own_mark(run_id):
    """Whatever a run is called, what it commits is read back: otherwise it locks itself out of its group."""
    mark = LiveMark(Mark.RUNNING, link(run_id).mark)
    assert LiveMark.decode(mark.encode()) == mark
