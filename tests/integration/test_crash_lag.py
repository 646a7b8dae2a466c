"""KIP-333's two lanes and two commit logs on a real broker, offset by offset."""

from __future__ import annotations

import threading

import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.commit_metadata import ExternalCommitError, OwnerState
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import Span
from kafka_liveness_dagster.core.partition_state import TopicRecreatedError
from kafka_liveness_dagster.kafka.catch_up.commit_log import NotPendingError
from kafka_liveness_dagster.kafka.errors import (
    BrokerUnreachableError,
    CommitRefusedError,
    FencedError,
    TopicNotFoundError,
)
from tests.integration.kafka_group import SECONDS, SESSION, join
from tests.waiting import seconds_until, wait_for


def test_after_a_crash_the_live_lane_goes_on_at_the_log_end(crashed):
    """Committed 70, crashed at 100, log end 120 on return: live resumes at 120 and owes 70-120, durably."""
    with crashed.live() as consumer:
        join(crashed, consumer)
        assert consumer.position(crashed.topic, 3) == 120
        offset, mark = crashed.live_log()
        assert (offset, mark.owner_state, mark.pending) == (120, OwnerState.RUNNING, (Span(70, 120),))
        assert crashed.spans(consumer.crash_lag) == [(70, 120)]
        assert consumer.committed(crashed.topic, 3) == 70, (
            "KIP-333: offsets before committed() are all processed"
        )


def test_a_second_crash_adds_its_range_while_the_first_is_open(crashed):
    """Committed 140, crashed at 170, log end 190: owed 70-120 and 140-190.

    The newer one may be done first.
    """
    w = crashed
    with pytest.raises(ZeroDivisionError), w.live() as consumer:
        join(w, consumer)
        w.grow_to(140)
        w.process(consumer, 140)
        w.grow_to(170)
        assert w.spans(consumer.poll(SECONDS).ranges) == [(140, 170)]
        raise ZeroDivisionError
    w.grow_to(190)
    with w.live() as consumer:
        join(w, consumer)
        assert consumer.position(w.topic, 3) == 190
        assert w.spans(consumer.pending(w.topic, 3)) == [(70, 120), (140, 190)]
        with w.catch_up((140, 190)) as lane:
            batch = lane.poll()
            assert w.spans(batch.ranges) == [(140, 190)]
            lane.commit(batch)
            assert lane.poll() is None
        assert w.spans(consumer.pending(w.topic, 3)) == [(70, 120)]
        assert consumer.committed(w.topic, 3) == 70
        with w.catch_up((70, 120), max_poll_records=30) as lane:
            lane.commit(lane.poll())
            assert consumer.committed(w.topic, 3) == 100, "the child's last commit, while it is not done"
        with w.catch_up((70, 120), max_poll_records=30) as lane:
            batch = lane.poll()
            assert w.spans(batch.ranges) == [(100, 120)], "a killed backfill resumes where it was"
            lane.commit(batch)
        assert consumer.pending(w.topic, 3) == ()
        assert consumer.committed(w.topic, 3) == 190


def test_a_release_is_not_a_crash(world):
    """A consumer that leaves in good order hands over: the next one resumes in order, with the mode on."""
    world.grow_to(100)
    with world.live() as consumer:
        world.process(consumer, 70)
        consumer.poll(SECONDS)
    assert world.live_log()[1].owner_state is OwnerState.RELEASED
    world.grow_to(120)
    with world.live() as consumer:
        assert world.spans(consumer.poll(SECONDS).ranges) == [(70, 120)]
        assert consumer.crash_lag == []


def test_the_mode_is_off_unless_it_is_chosen(crashed):
    """Without enable_parallel_rebalance a crash is resumed in order and nothing is owed."""
    with crashed.live(enable_parallel_rebalance=False) as consumer:
        assert crashed.spans(consumer.poll(SECONDS).ranges) == [(70, 120)]
        assert consumer.pending(crashed.topic, 3) == ()


def test_a_range_that_is_not_owed_is_refused(crashed):
    """A mistyped key is an error with what is owed, before anything is processed."""
    with crashed.live() as consumer:
        join(crashed, consumer)
        with (
            pytest.raises(NotPendingError, match=r"lane is at 120, and the pending ranges of .* are 70-120"),
            crashed.catch_up((70, 130)),
        ):
            pass
        with crashed.catch_up((60, 80)) as lane:
            assert crashed.spans(lane.poll().ranges) == [(70, 80)]  # 60-70 is in the table: nothing to do


def test_a_batch_beyond_its_deadline_is_fenced_and_the_next_poll_rejoins(world):
    """KIP-62.

    At the process timeout the member leaves, its commit is refused, the next poll makes a new member.
    """
    world.grow_to(100)
    with world.live(max_batch_seconds=SESSION) as consumer:
        batch = consumer.poll(SECONDS)
        left = threading.Event()
        consumer.on_fence(left.set)
        wait_for(left.is_set, what="the watchdog raises the fence")
        with pytest.raises(
            FencedError, match=r"becomes crash lag.*skips ahead to the log end\. Fix: lower"
        ) as late:
            consumer.commit(batch)
        assert "again" not in str(late.value), "the live lane does not read it again"
        took = seconds_until(lambda: not world.members())  # the fence goes up first, then it leaves
        assert took < SESSION / 2, "LeaveGroup was sent, no session timeout waited for"
        join(world, consumer)
        assert world.spans(consumer.crash_lag) == [(0, 100)]
        with pytest.raises(FencedError, match=r"before the consumer rejoined.*becomes crash lag"):
            consumer.commit(batch)


def unanswered():
    """What a run ends with when no broker came back."""
    return BrokerUnreachableError("nobody answered")


def test_an_error_says_where_the_next_run_goes_on(world):
    """After an error the partitions look like those of a crash.

    What the next run does is in the error itself.
    """
    world.grow_to(100)
    for mode, words in (
        (False, "resumes at the committed offsets"),
        (True, "skips ahead to the log end.*crash lag"),
    ):
        ended = pytest.raises(BrokerUnreachableError, match=rf"nobody answered\. The next live run {words}")
        with ended, world.live(enable_parallel_rebalance=mode) as consumer:
            wait_for(lambda live=consumer: live.poll(0.2) or live.pending(world.topic, 3))
            raise unanswered()
    with pytest.raises(BrokerUnreachableError, match=r"^nobody answered$"), world.live() as consumer:
        raise unanswered()  # it never was a member: nothing was changed
    with world.live() as consumer:
        join(world, consumer)
        assert world.spans(consumer.pending(world.topic, 3)) == [(0, 100)], "the second run had skipped them"


def test_a_commit_out_of_order_is_refused(world):
    """A batch may not be committed before the one in front of it."""
    world.grow_to(100)
    with world.live() as consumer:
        first = consumer.poll(SECONDS, 60)
        second = consumer.poll(SECONDS)
        with pytest.raises(CommitRefusedError, match="out of order"):
            consumer.commit(second)
        consumer.commit(first)
        consumer.commit(second)
        assert world.live_log()[0] == 100


def test_two_members_share_the_partitions_and_hand_over_without_crash_lag(world):
    """A second member gets partitions released by the first; both go on, nothing is owed."""
    world.grow_to(50)
    with world.live() as first:
        world.process(first, 50)
        with world.live() as second:

            def is_shared():
                assert [member.poll(0.2) for member in (second, first)] == [None, None]
                return len(first.assignment()) == len(second.assignment()) == 2

            wait_for(is_shared)
            assert set(first.assignment()).isdisjoint(second.assignment())
            assert first.crash_lag == second.crash_lag == []
    assert world.members() == ()


def test_another_programs_commits_are_not_touched(world):
    """Foreign metadata in the group is an error before joining.

    No member was seen, and its commits still pass.
    """
    from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415

    def commit(metadata):
        """What the other program does; a group with members would refuse it."""
        other = Consumer({"bootstrap.servers": world.kafka.bootstrap_servers, "group.id": world.group})
        try:
            return other.commit(offsets=[TopicPartition(world.topic, 3, 0, metadata)], asynchronous=False)
        finally:
            other.close()

    commit("flink checkpoint 7")
    with world.live() as consumer:
        with pytest.raises(ExternalCommitError, match="offset 0, metadata 'flink checkpoint 7'"):
            consumer.poll(0.0)
        assert consumer.assignment() == ()
        assert world.members() == ()
        assert commit("flink checkpoint 8")[0].error is None
    assert world.kafka.cluster().commits(world.group, [world.tp])[world.tp].metadata == "flink checkpoint 8"


@pytest.mark.parametrize(
    ("session_seconds", "budget", "says"),
    [
        (0.5, 60, "outside the broker's limits"),
        (3_600, 7_200, "outside the broker's limits"),
    ],
)
def test_timeouts_the_broker_refuses_end_before_joining(world, session_seconds, budget, says):
    """The broker's own limits are read and compared before anything is joined."""
    kafka = kl.KafkaLivenessResource(
        bootstrap_servers=world.kafka.bootstrap_servers, session_timeout_seconds=session_seconds
    )
    with pytest.raises(InvalidSettingError, match=says):
        kafka.consumer(topics=[world.topic], group_id=world.group, max_batch_seconds=budget)


def test_members_that_come_and_go_owe_nothing(world):
    """Handovers, however many, are no crashes.

    No commit fails, nothing is skipped, every offset is committed once.
    """
    world.grow_to(5_000)
    jumped, ranges, failed, left = [], [], [], []

    def consume(polls):
        try:
            with world.live(max_poll_records=20) as consumer:
                polled = 0
                while polled < polls:
                    if (batch := consumer.poll(0.1)) is not None:
                        consumer.commit(batch)
                        ranges.extend(world.spans(batch.ranges))
                    polled += consumer.is_joined
                jumped.extend(consumer.crash_lag)
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            failed.append(error)
        left.append(polls)

    def come_and_go(polls):
        while (len(left) < 20 or len(ranges) < 20) and not failed:  # each leaving is a rebalance or two
            consume(polls)

    members = [threading.Thread(target=come_and_go, args=(polls,)) for polls in (3, 5, 7)]
    for member in members:
        member.start()
    for member in members:
        member.join()
    assert (failed, jumped) == ([], [])
    assert sorted(ranges) == [(n, n + 20) for n in range(0, 20 * len(ranges), 20)]


def test_a_topic_made_anew_under_a_live_member_is_an_error(world):
    """Deleted and created again while a member is at work: the offsets are of another log, and it says so."""
    world.grow_to(30)
    gone = "committed at 30 but its log ends at|deleted, or is being recreated"  # as soon as either is seen
    with pytest.raises((TopicRecreatedError, TopicNotFoundError), match=gone), world.live() as consumer:
        world.process(consumer, 30)
        world.recreate_topic(0)
        wait_for(lambda: consumer.poll(0.2) and None, what="the member's poll raises")
