"""KIP-333's "Effects on Current API And Behavior", law by law, on a real broker."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import dagster as dg
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.core.partition_state import DataExpiredError
from kafka_liveness_dagster.kafka.catch_up.consumer import PausedPartitionError
from kafka_liveness_dagster.kafka.errors import CommitRefusedError, FencedError
from kafka_liveness_dagster.kafka.live import planner
from kafka_liveness_dagster.runs.tags import lane_tags
from tests.integration.kafka_group import NO_SPARK, SECONDS, join
from tests.waiting import wait_for


@pytest.fixture
def at_work(crashed):
    """The live lane is back at 120 and owes 70-120."""
    with crashed.live() as consumer:
        join(crashed, consumer)
        yield crashed, consumer


def catch_up_log(w):
    """Watermark and metadata as the broker has them, but for the topic's id.

    None while nothing is committed.
    """
    commit = w.kafka.cluster().commits(f"{w.group}.catch-up", [w.tp]).get(w.tp)
    return commit and (commit.offset, re.sub(r" \S*@0", "", commit.metadata))


def both_logs(w):
    """All that a commit may change."""
    return w.live_log(), catch_up_log(w)


# --- committed(), position(), commit() ----------------------------------------------------------------------


def test_committed_follows_the_lane_that_is_behind(crashed):
    """Before it everything is processed.

    70, through the child's steps, to the live lane's own when nothing is owed.
    """
    w = crashed

    def seen(consumer):
        owed = w.spans(consumer.pending(w.topic, 3))
        return consumer.committed(w.topic, 3), consumer.position(w.topic, 3), owed

    with pytest.raises(ZeroDivisionError), w.live() as consumer:
        join(w, consumer)
        assert seen(consumer) == (70, 120, [(70, 120)])
        w.grow_to(140)
        w.process(consumer, 140)
        assert seen(consumer) == (70, 140, [(70, 120)])
        w.grow_to(170)
        consumer.poll(SECONDS)
        assert seen(consumer) == (70, 170, [(70, 120)])
        raise ZeroDivisionError
    w.grow_to(190)
    with w.live() as consumer:
        join(w, consumer)
        assert seen(consumer) == (70, 190, [(70, 120), (140, 190)])
        steps = []
        with w.catch_up((70, 120), (140, 190), max_poll_records=30) as child:
            while (batch := child.poll()) is not None:
                child.commit(batch)
                steps.append((w.spans(batch.ranges), *seen(consumer)))
    assert steps == [
        ([(70, 100)], 100, 190, [(100, 120), (140, 190)]),
        ([(100, 120), (140, 150)], 150, 190, [(150, 190)]),  # 120-140 was the live lane's, and is committed
        ([(150, 180)], 180, 190, [(180, 190)]),
        ([(180, 190)], 190, 190, []),
    ]


def test_position_is_the_live_lanes(at_work):
    """KIP-333: the second consumer will not take any part in this call.

    Nor has one a position it does not own.
    """
    w, consumer = at_work
    with w.catch_up((70, 120), max_poll_records=10) as child:
        child.commit(child.poll())
    assert consumer.position(w.topic, 3) == 120
    assert consumer.position("another", 0) is None


def test_commit_splits_offsets_into_both_logs(at_work):
    """KIP-333.

    What is within a lag created by a crash goes to the catch-up commit log, the remaining ones to the first.
    """
    w, consumer = at_work
    other = TopicPartition(w.topic, 0)
    w._produce(w.kafka.bootstrap_servers, w.topic, 0, map(str, range(10)))
    wait_for(lambda: (consumer.poll(0.2), consumer.position(*other))[1] == 10)
    consumer.commit({w.tp: 100, other: 10})
    assert catch_up_log(w) == (100, "kl1 done")
    assert w.live_log() == (
        120,
        LiveCommitMetadata(OwnerState.RUNNING, consumer._run_context.short_run_id, (Span(70, 120),)),
    )
    assert w.kafka.cluster().commits(w.group, [other])[other].offset == 10
    assert consumer.committed(*other) == 10


def test_the_usual_commit_of_the_position_loses_no_crash_lag(at_work):
    """commit({tp: position}) right after the jump changes nothing.

    70-120 is pending until a lane has read it.
    """
    w, consumer = at_work
    before = both_logs(w)
    consumer.commit({w.tp: consumer.position(w.topic, 3)})
    assert (both_logs(w), w.spans(consumer.pending(w.topic, 3))) == (before, [(70, 120)])
    w.grow_to(150)
    w.process(consumer, 150)
    before = both_logs(w)
    with pytest.raises(CommitRefusedError, match=r"120 of .*:3 ends the pending range 70-120"):
        consumer.commit({w.tp: 120})
    assert (both_logs(w), w.spans(consumer.pending(w.topic, 3))) == (before, [(70, 120)])


def test_commit_counts_each_range_for_itself(crashed):
    """An offset in the newer of two owed ranges says nothing of the older one."""
    w = crashed
    with pytest.raises(ZeroDivisionError), w.live() as consumer:
        join(w, consumer)
        w.grow_to(140)
        w.process(consumer, 140)
        raise ZeroDivisionError
    w.grow_to(190)
    with w.live() as consumer:
        join(w, consumer)
        consumer.commit({w.tp: 170})
        assert w.spans(consumer.pending(w.topic, 3)) == [(70, 120), (170, 190)]
        assert catch_up_log(w) == (70, "kl1 done 140-170")


@pytest.mark.parametrize("offset", [60, 70, 119 + 12, 10_000])
def test_a_commit_of_what_is_not_in_hand_changes_nothing(at_work, offset):
    """Beyond the position or below the commit it is refused, with all else that the same call commits."""
    w, consumer = at_work
    w.grow_to(130)
    other = TopicPartition(w.topic, 0)
    assert consumer.poll(SECONDS).ranges == (kl.OffsetRange(w.topic, 3, 120, 130),)
    before = both_logs(w)
    with pytest.raises(
        CommitRefusedError, match=f"commit of offset {offset} .*position is 130 and its commit 120"
    ):
        consumer.commit({other: 0, w.tp: offset})
    assert both_logs(w) == before
    consumer.commit({w.tp: 125})
    assert w.live_log()[0] == 125


def test_an_owed_commit_does_not_pass_beside_a_refused_one(at_work):
    """The catch-up commit log is not written either when the first may not be."""
    w, consumer = at_work
    before = both_logs(w)
    with pytest.raises(CommitRefusedError, match="Nothing was committed, in either log"):
        consumer.commit({w.tp: 100, TopicPartition(w.topic, 0): 5})
    assert both_logs(w) == before


def test_beginning_and_end_are_what_there_is_to_read(at_work):
    """KIP-333: both lanes are looked at; they read one log, from its start to its last stable offset."""
    w, consumer = at_work
    assert (consumer.beginning_offsets(w.topic, 3), consumer.end_offsets(w.topic, 3)) == (0, 120)
    w.expire(80)
    w.grow_to(130)
    assert (consumer.beginning_offsets(w.topic, 3), consumer.end_offsets(w.topic, 3)) == (80, 130)


# --- childConsumerIsAlive() ---------------------------------------------------------------------------------


def test_the_child_is_alive_while_a_catch_up_run_has_started(crashed):
    """KIP-333, childConsumerIsAlive(): "if the secondary thread created has started or not".

    A queued run has not.
    """
    w = crashed
    seen = []

    @dg.op
    def look(context):
        with w.kafka.consumer(topics=[w.topic], group_id=w.group, context=context) as consumer:
            seen.append(consumer.child_consumer_is_alive())
            for group, lane, status in (
                (w.group, "live", "STARTED"),
                ("another", "catch-up", "STARTED"),
                (w.group, "catch-up", "STARTING"),
                (w.group, "catch-up", "STARTED"),
            ):
                context.instance.add_run(
                    dg.DagsterRun(
                        job_name="any", status=dg.DagsterRunStatus(status), tags=lane_tags(group, lane)
                    )
                )
                seen.append(consumer.child_consumer_is_alive())

    @dg.job
    def one():
        look()

    with dg.DagsterInstance.ephemeral() as instance:
        assert one.execute_in_process(instance=instance).success
    assert seen == [False] * 4 + [True]


def test_the_child_is_alive_while_it_is_open_in_this_process(at_work):
    """Without Dagster too."""
    w, consumer = at_work
    seen = [consumer.child_consumer_is_alive()]
    with w.catch_up((70, 120)) as child:
        seen.append(consumer.child_consumer_is_alive())
        child.commit(child.poll())
    assert [*seen, consumer.child_consumer_is_alive()] == [False, True, False]


# --- pause() and resume() -----------------------------------------------------------------------------------


def test_pause_holds_both_lanes(at_work):
    """KIP-333: "both consumer threads will stop or restart processing on partitions accordingly"."""
    w, consumer = at_work
    consumer.pause(w.topic, 3)
    w.grow_to(140)
    assert consumer.poll(1.0) is None
    with (
        w.catch_up((70, 120)) as child,
        pytest.raises(PausedPartitionError, match=r":3 of group .* is paused"),
    ):
        child.poll()
    assert w.live_log() == (
        120,
        LiveCommitMetadata(OwnerState.PAUSED, consumer._run_context.short_run_id, (Span(70, 120),)),
    )
    consumer.resume(w.topic, 3)
    assert w.spans(consumer.poll(SECONDS).ranges) == [(120, 140)]
    with w.catch_up((70, 120)) as child:
        child.commit(child.poll())
        assert child.poll() is None


def test_pause_lets_the_batch_under_way_pass(world):
    """What was planned before is committed, under the mark; what comes after is held."""
    w = world
    w.grow_to(70)
    with w.live() as consumer:
        batch = consumer.poll(SECONDS)
        consumer.pause(w.topic, 3)
        assert w.live_log()[0] == 0
        consumer.commit(batch)
        w.grow_to(100)
        assert consumer.poll(0.5) is None
        assert (w.live_log()[0], w.live_log()[1].owner_state) == (70, OwnerState.PAUSED)


def test_other_partitions_go_on_beside_a_paused_one(at_work):
    """Only the paused partition is held."""
    w, consumer = at_work
    consumer.pause(w.topic, 3)
    w.grow_to(140)
    w._produce(w.kafka.bootstrap_servers, w.topic, 1, map(str, range(10)))
    batch = consumer.poll(SECONDS)
    assert batch.ranges == (kl.OffsetRange(w.topic, 1, 0, 10),)
    consumer.commit(batch)
    assert w.live_log()[0] == 120


@pytest.mark.parametrize("failure", [None, ZeroDivisionError])
def test_a_pause_survives_restart_and_crash(world, failure):
    """The mark stands in the live commit log.

    The next owner holds too, makes no crash lag of it, and resumes in order.
    """
    w = world
    w.grow_to(100)
    with pytest.raises(ZeroDivisionError), w.live() as consumer:
        w.process(consumer, 70)
        consumer.pause(w.topic, 3)
        if failure:
            raise failure
        consumer.close()
        raise ZeroDivisionError  # after it left in good order
    assert (w.live_log()[0], w.live_log()[1].owner_state) == (70, OwnerState.PAUSED)
    w.grow_to(120)
    with w.live() as consumer:
        join(w, consumer)
        assert (consumer.position(w.topic, 3), consumer.crash_lag, consumer.pending(w.topic, 3)) == (
            70,
            [],
            (),
        )
        assert w.live_log()[1].owner_state is OwnerState.PAUSED
        consumer.resume(w.topic, 3)
        assert w.spans(consumer.poll(SECONDS).ranges) == [(70, 120)]
        assert w.live_log()[1].owner_state is OwnerState.RUNNING


def test_a_partition_of_others_cannot_be_paused(world):
    """Nobody holds what it does not own: it is told where to ask."""
    with world.live() as consumer, pytest.raises(CommitRefusedError, match="not owned by this consumer"):
        consumer.pause(world.topic, 3)


def test_the_sensor_asks_for_no_run_because_of_a_paused_partition(world):
    """Lag of a partition that nobody may process starts nothing; resumed, it does."""
    w = world
    w.grow_to(100)

    @kl.kafka_asset(
        topics=[w.topic], group_id=w.group, table="lake.shop.orders", enable_parallel_rebalance=True
    )
    def orders(batch):
        return batch

    def requested():
        resources = {"kafka": w.kafka, "spark": NO_SPARK}
        with (
            dg.DagsterInstance.ephemeral() as instance,
            dg.build_sensor_context(instance, resources=resources, sensor_name="orders_sensor") as context,
        ):
            return len(orders.sensor.evaluate_tick(context).run_requests)

    with w.live() as consumer:
        w.process(consumer, 70)
        consumer.pause(w.topic, 3)
    assert requested() == 0
    with w.live() as consumer:
        join(w, consumer)
        consumer.resume(w.topic, 3)
    assert requested() == 1


# --- data that moved ----------------------------------------------------------------------------------------


def test_data_that_expired_below_the_commit_is_an_error(world):
    """on_data_loss is raise, the default: both numbers, before joining; nothing was changed."""
    w = world
    w.crash()
    w.expire(90)
    before = w.live_log()
    with (
        w.live() as consumer,
        pytest.raises(DataExpiredError, match="committed at 70 but its log starts at 90: 20 off"),
    ):
        consumer.poll(SECONDS)
    assert w.live_log() == before


@pytest.mark.parametrize("parallel", [True, False])
def test_data_that_expired_below_the_commit_may_be_skipped(world, parallel):
    """on_data_loss is skip: what is gone is reported, only what still exists is owed or read."""
    w = world
    w.crash()
    w.expire(90)
    with w.live(offsets=kl.Offsets(on_data_loss="write_off"), enable_parallel_rebalance=parallel) as consumer:
        if parallel:
            join(w, consumer)
            assert w.spans(consumer.crash_lag) == [(90, 100)]
        else:
            batch = consumer.poll(SECONDS)
            assert w.spans(batch.ranges) == [(90, 100)]
            consumer.commit(batch)
        assert w.spans(consumer.lost) == [(70, 90)]
        assert w.live_log()[0] == 100


def test_owed_data_that_expired_is_an_error_in_the_catch_up_lane(at_work):
    """The backfill names what is gone and both ways on; it stays owed, and the live lane is not disturbed."""
    w, consumer = at_work
    w.expire(100)
    with (
        w.catch_up((70, 120)) as child,
        pytest.raises(DataExpiredError, match=rf"p3:{w.topic}:70-100: 30 pending offsets"),
    ):
        child.poll()
    assert w.spans(consumer.pending(w.topic, 3)) == [(70, 120)]
    w.grow_to(130)
    assert w.spans(consumer.poll(SECONDS).ranges) == [(120, 130)]


def test_owed_data_that_expired_may_be_skipped(at_work):
    """on_data_loss is skip in the catch-up lane: recorded as done, reported as lost.

    The rest is processed.
    """
    w, consumer = at_work
    w.expire(100)
    with w.catch_up((70, 120), offsets=kl.Offsets(on_data_loss="write_off")) as child:
        batch = child.poll()
        assert w.spans(batch.ranges) == [(100, 120)]
        child.commit(batch)
        assert child.poll() is None
        assert w.spans(child.lost) == [(70, 100)]
    assert consumer.pending(w.topic, 3) == ()


def test_what_the_live_lane_skips_leaves_owed_ranges_to_their_partition(at_work):
    """A live lane that may skip does not make a partition's expired range one that was never owed."""
    w, consumer = at_work
    consumer.close()
    w.expire(120)
    with w.live(offsets=kl.Offsets(on_data_loss="write_off")) as consumer:
        join(w, consumer)
        assert (consumer.lost, w.spans(consumer.pending(w.topic, 3))) == ([], [(70, 120)])
        with w.catch_up((70, 120), offsets=kl.Offsets(on_data_loss="write_off")) as child:
            assert child.poll() is None
            assert w.spans(child.lost) == [(70, 120)]
        assert consumer.pending(w.topic, 3) == ()


def test_data_that_expires_under_a_live_member_is_an_error(world):
    """Between two batches: nothing is skipped silently."""
    w = world
    w.grow_to(100)
    with (
        pytest.raises(DataExpiredError, match="committed at 70 but its log starts at 90"),
        w.live() as consumer,
    ):
        w.process(consumer, 70)
        w.expire(90)
        consumer.poll(SECONDS)


@pytest.mark.parametrize("by_offset", [True, False])
def test_data_that_expires_under_a_live_member_may_be_skipped(world, by_offset):
    """It goes on at the log start, reports what is gone, and then commits what it reads, in either form."""
    w = world
    w.grow_to(100)
    with w.live(offsets=kl.Offsets(on_data_loss="write_off")) as consumer:
        w.process(consumer, 70)
        w.expire(90)
        batch = consumer.poll(SECONDS)
        assert w.spans(batch.ranges) == [(90, 100)]
        assert w.spans(consumer.lost) == [(70, 90)]
        consumer.commit({w.tp: 100} if by_offset else batch)
        assert w.live_log()[0] == 100


# --- how much may be owed -----------------------------------------------------------------------------------


def test_no_more_ranges_are_owed_than_chosen(crashed, caplog):
    """max_ranges is 1: the second crash is resumed in order, and the log says why."""
    w = crashed
    with pytest.raises(ZeroDivisionError), w.live(crash_lag=kl.CrashLag(max_ranges=1)) as consumer:
        join(w, consumer)
        w.grow_to(140)
        w.process(consumer, 140)
        raise ZeroDivisionError
    w.grow_to(190)
    with w.live(crash_lag=kl.CrashLag(max_ranges=1)) as consumer:
        assert w.spans(consumer.poll(SECONDS).ranges) == [(140, 190)]
        assert (consumer.crash_lag, w.spans(consumer.pending(w.topic, 3))) == ([], [(70, 120)])
    assert planner.IN_ORDER_LINE % f"{w.tp} at 140" in caplog.text


def test_owed_ranges_that_would_not_fit_a_commit_are_resumed_in_order(world, caplog):
    """4,095 bytes of metadata.

    The crash that would exceed them is resumed in order, nothing owed is dropped.
    """
    from confluent_kafka import Consumer  # noqa: PLC0415
    from confluent_kafka import TopicPartition as KafkaTopicPartition  # noqa: PLC0415

    w = world
    owed = tuple(Span(n, n + 1) for n in range(1_000, 1_000 + 2 * 407, 2))
    mark = LiveCommitMetadata(OwnerState.RUNNING, "0badcafe", owed)
    assert len(mark.encode()) > 4_080
    w.grow_to(2_100)
    before = Consumer({"bootstrap.servers": w.kafka.bootstrap_servers, "group.id": w.group})
    before.commit(offsets=[KafkaTopicPartition(w.topic, 3, 2_000, mark.encode())], asynchronous=False)
    before.close()
    with w.live() as consumer:
        batch = consumer.poll(SECONDS)
        assert w.spans(batch.ranges) == [(2_000, 2_100)]
        consumer.commit(batch)
        assert consumer.crash_lag == []
        assert w.live_log()[1].pending == owed
    assert planner.IN_ORDER_LINE % f"{w.tp} at 2000" in caplog.text


# --- partitions that are added ------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def added(services, produce):
    """What two live members make of an added partition.

    Librdkafka looks every 30 s, the tests above run meanwhile.
    """
    topic, nobody_asks = f"orders-{uuid4().hex[:8]}", threading.Event()
    new = TopicPartition(topic, 1)
    kafka = kl.KafkaLivenessResource(bootstrap_servers=services.bootstrap_servers)
    admin = AdminClient({"bootstrap.servers": services.bootstrap_servers, "log_level": 0})

    def member(reset):
        offsets = kl.Offsets(auto_offset_reset=reset)
        return kafka.consumer(topics=[topic], group_id=f"etl-{topic}-{reset}", offsets=offsets)

    def see():
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
        wait_for(lambda: topic in admin.list_topics(timeout=60).topics)
        with member("earliest") as earliest, member("latest") as latest:

            def polled():
                for one in (earliest, latest):
                    one.poll(0.1)
                assert not nobody_asks.is_set()
                return earliest, latest

            wait_for(lambda: all(one.assignment() for one in polled()))
            admin.create_partitions([NewPartitions(topic, 2)])[topic].result()
            produce(services.bootstrap_servers, *new, map(str, range(10)))
            wait_for(lambda: all(new in one.assignment() for one in polled()))
            committed = earliest.committed(*new), latest.committed(*new)
            produce(services.bootstrap_servers, *new, map(str, range(5)))
            wait_for(lambda: [one.position(*new) for one in polled()] == [15, 15])
            return committed

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(see)
        nobody_asks.set()


def test_partitions_added_under_a_live_member(added):
    """What was produced to them before the member noticed is read with earliest.

    With latest it is not, as in Kafka.
    """
    assert added.result() == (0, 10)


def test_what_was_closed_commits_nothing_and_does_not_come_back(at_work):
    """Neither lane does, nor after a deadline that would else let it begin again: its clients are closed."""
    w, consumer = at_work
    late = w.kafka.catch_up(group_id=w.group, ranges=consumer.pending(w.topic, 3), max_batch_seconds=0.2)
    with late:
        batch, fenced = late.poll(), threading.Event()
        late.on_fence(fenced.set)
        wait_for(fenced.is_set)
    before = both_logs(w)
    for refused in (late.poll, lambda: late.commit(batch)):
        with pytest.raises(FencedError, match="was closed"):
            refused()
    assert both_logs(w) == before
    consumer.commit({w.tp: 100})
    consumer.close()
    before = both_logs(w)
    for offset in (110, 120):  # within what is owed, and the live lane's own
        with pytest.raises(FencedError, match="was closed"):
            consumer.commit({w.tp: offset})
    assert both_logs(w) == before


# --- poll() -------------------------------------------------------------------------------------------------


def test_a_greedy_consumer_takes_one_partition_after_the_other(world, services, produce):
    """KIP-41: as much as possible from one, then from the next.

    It remembers where it left off between polls.
    """
    for partition in (1, 3):
        produce(services.bootstrap_servers, world.topic, partition, map(str, range(50)))
    with world.live(batching=kl.Batching(allocation="greedy"), max_poll_records=40) as consumer:
        batches = []
        while len(batches) < 3:
            batch = consumer.poll(SECONDS)
            batches.append([(r.partition, r.start, r.end) for r in batch.ranges])
            consumer.commit(batch)
    assert batches == [[(1, 0, 40)], [(3, 0, 40)], [(1, 40, 50), (3, 40, 50)]]
