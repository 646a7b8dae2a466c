"""KIP-62 on a real broker, with both group protocols: alive while at work, out of the group when stalled."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.kafka.errors import FencedError
from tests.timeouts import seconds, set_timeouts
from tests.waiting import seconds_until, wait_for

PATIENCE = 120.0  # seconds, of a poll that ends with the first batch
SESSION, HEARTBEAT = seconds(3.0), 0.5  # a busy broker answers a heartbeat a second late
SHORT, MIDDLE, LONG = seconds(4.0), seconds(8.0), seconds(30.0)  # budgets
SLACK = seconds(2.0)  # from a process timeout until the coordinator lists the member no longer
STATIC, PROGRESS = kl.Membership(group_instance_id="etl-0"), kl.Membership(liveness="progress")


class Group:
    """A topic of four partitions with 50 records each, and members of one group on it."""

    def __init__(self, services, topic, group_id, protocol):
        self.topic, self.group_id, self.protocol = topic, group_id, protocol
        classic = {"session_timeout_seconds": SESSION, "heartbeat_interval_seconds": HEARTBEAT}
        self.kafka = kl.KafkaLivenessResource(
            bootstrap_servers=services.bootstrap_servers,
            group_protocol=protocol,
            **(classic if protocol == "classic" else {}),
        )

    def have_session(self, session):
        """Let its members have another session timeout."""
        if self.protocol == "consumer":
            set_timeouts(self.kafka.bootstrap_servers, self.group_id, session, HEARTBEAT)
        else:
            self.kafka = self.kafka.model_copy(update={"session_timeout_seconds": session})

    def consumer(self, max_batch_seconds=LONG, **settings):
        return self.kafka.consumer(
            topics=[self.topic], group_id=self.group_id, max_batch_seconds=max_batch_seconds, **settings
        )

    def members(self):
        return self.kafka.cluster().members(self.group_id)

    def live_log(self):
        commits = self.kafka.cluster().commits(
            self.group_id, [TopicPartition(self.topic, p) for p in range(4)]
        )
        return {
            tp.partition: (commit.offset, LiveCommitMetadata.decode(commit.metadata).owner_state)
            for tp, commit in commits.items()
        }


@pytest.fixture(params=["classic", "consumer"])
def group(request, services, make_topic, make_group, produce):
    """The same laws for the classic protocol and KIP-848's; there the session is the broker's to set."""
    found = Group(services, make_topic(4), make_group(SESSION, HEARTBEAT), request.param)
    found.feed = lambda: [
        produce(services.bootstrap_servers, found.topic, p, map(str, range(50))) for p in range(4)
    ]
    found.feed()
    return found


def work(for_seconds):
    """What a batch does that takes so long: the time is the input of these tests."""
    threading.Event().wait(for_seconds)


class ProcessTimeoutWindow:
    """A process timeout that begins within a call: no sooner than the call, no later than its return."""

    def __init__(self, call):
        self._called_at = time.monotonic()
        call()
        self._returned_at = time.monotonic()

    def ends_in_time(self, group, budget):
        """Check that the group empties not before the budget from the call, and soon after the return's."""
        wait_for(lambda: not group.members())
        gone_at = time.monotonic()
        assert gone_at - self._called_at >= budget
        assert gone_at - self._returned_at <= budget + SLACK


def whole_topic(consumer):
    """Poll until every partition is owned, and give the batch."""
    batch = consumer.poll(PATIENCE)
    assert len(consumer.assignment()) == 4
    return batch


def step(consumer):
    """One record polled and committed, when there is one."""
    batch = consumer.poll(0.1, 1)
    if batch is not None:
        consumer.commit(batch)
    return batch


@contextmanager
def stepping(consumer):
    """Step on a thread of its own: another member's commit may wait for this one's polls."""
    done = threading.Event()

    def steps():
        while not done.wait(0.05):
            step(consumer)

    with ThreadPoolExecutor(1) as pool:
        stepped = pool.submit(steps)
        try:
            yield
        finally:
            done.set()
        stepped.result()


class Other:
    """A second member on a thread of its own, polling and committing all the time."""

    def __init__(self, group, **settings):
        self.got_after, self.failed = None, None
        self._joined, self._done = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(group, settings))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()

    def _run(self, group, settings):
        try:
            with group.consumer(**settings) as consumer:
                while not self._done.is_set():
                    if (batch := consumer.poll(0.1)) is not None:
                        consumer.commit(batch)
                    if self.got_after is None and consumer.assignment():
                        self.got_after = time.monotonic() - self._joined
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            self.failed = error


def test_a_stalled_member_leaves_at_its_process_timeout(group):
    """No later than a second after it, the coordinator no longer lists the member.

    LeaveGroup, on both protocols.
    """
    with group.consumer(max_batch_seconds=SHORT) as consumer:
        stall = ProcessTimeoutWindow(lambda: whole_topic(consumer))
        assert len(group.members()) == 1
        stall.ends_in_time(group, SHORT)


def test_a_process_that_can_start_no_thread_leaves_its_group_and_cancels_its_work(group, no_threads):
    """Its user's limit or its container's is reached.

    What the watchdog does beside the leave is done after it.
    """
    done, names = [], []
    with group.consumer(max_batch_seconds=SHORT) as consumer:
        consumer.on_fence(lambda: done.append(len(group.members())))
        stall = ProcessTimeoutWindow(lambda: whole_topic(consumer))
        with no_threads(names):
            stall.ends_in_time(group, SHORT)
            wait_for(lambda: done)
        assert done == [0], (
            "cancelled while it was in the group: a Spark that does not answer would keep it there"
        )
        assert {"kafka-liveness-tell", "kafka-liveness-cancel"} <= set(names)


def test_a_batch_may_take_longer_than_the_session(group):
    """Heartbeats go on while the op works: a batch three times as long as the session commits."""
    with group.consumer() as consumer:
        batch = whole_topic(consumer)
        work(3 * SESSION + 0.2)
        consumer.commit(batch)
        assert len(group.members()) == 1
        assert {offset for offset, _ in group.live_log().values()} == {50}


def test_after_expiry_a_commit_raises_and_the_next_poll_rejoins(group):
    """Nothing of the late batch is committed, not even by the new member that has the same offsets again."""
    with group.consumer(max_batch_seconds=SHORT) as consumer:
        batch = whole_topic(consumer)
        before = group.members()
        work(SHORT + 0.3)
        late = rf"longer than its process timeout \(.* of {SHORT:g} s\); nothing was committed"
        with pytest.raises(FencedError, match=late):
            consumer.commit(batch)
        again = whole_topic(consumer)
        assert again.ranges == batch.ranges
        with pytest.raises(FencedError, match="planned before the consumer rejoined"):
            consumer.commit(batch)
        assert {offset for offset, _ in group.live_log().values()} == {0}
        consumer.commit(again)
        assert {offset for offset, _ in group.live_log().values()} == {50}
        assert {m.member_id for m in before}.isdisjoint(m.member_id for m in group.members())


def test_the_process_timeout_is_kept_during_a_rebalance(group):
    """A member that stalls while another joins is out at its process timeout; the other gets all."""
    with group.consumer(max_batch_seconds=MIDDLE) as stalled:
        called_at = time.monotonic()
        whole_topic(stalled)
        returned_at = time.monotonic()
        with Other(group) as other:
            wait_for(lambda: len(group.members()) == 2)
            wait_for(lambda: len(group.members()) == 1)
            gone_at = time.monotonic()
            assert gone_at - called_at >= MIDDLE
            assert gone_at - returned_at <= MIDDLE + SLACK
            wait_for(lambda: [len(m.partitions) for m in group.members()] == [4])
        assert other.failed is None


def test_in_poll_mode_a_rebalance_waits_for_the_batch(group):
    """KIP-62.

    The second member gets its partitions when the batch is over, and the batch is committed whole.
    """
    with group.consumer() as first:
        batch = whole_topic(first)
        with Other(group) as other:
            work(2.5 * SESSION)
            assert other.got_after is None
            first.commit(batch)
            wait_for(lambda: first.poll(0.1) is not None or other.got_after is not None)
            assert other.got_after > 2.5 * SESSION
            assert first.crash_lag == []
        assert other.failed is None
    assert {offset for offset, _ in group.live_log().values()} == {50}


def test_a_commit_waits_for_a_rebalance_that_another_member_holds_up(group):
    """Its own JoinGroup is answered when the slowest has come.

    The commit behind it passes then, and is no stall.
    """
    # Between its polls a third member joins, which takes seconds on a busy machine
    ready_seconds = seconds(14.0)
    with group.consumer() as busy, group.consumer(max_batch_seconds=ready_seconds) as ready:
        with stepping(busy):
            wait_for(lambda: (step(ready), len(busy.assignment()) == len(ready.assignment()) == 2)[1])
        group.feed()  # they may have processed it all meanwhile
        with Other(group, max_poll_records=1) as third:
            wait_for(lambda: len(group.members()) == 3)
            busy_until_then = threading.Timer(1.4 * ready_seconds, step, args=[busy])
            busy_until_then.start()
            wait_for(lambda: step(ready))
            busy_until_then.join()
            assert ready.crash_lag == busy.crash_lag == []
        assert third.failed is None


def test_in_progress_mode_a_rebalance_does_not_wait(group):
    """The second member has its partitions in the middle of the first's batch."""
    with group.consumer(membership=PROGRESS) as first:
        batch = whole_topic(first)
        with Other(group) as other:
            wait_for(lambda: other.got_after is not None)
            first.commit(batch)  # what it still owns; the rest is processed again by the other
            wait_for(lambda: {offset for offset, _ in group.live_log().values()} == {50})
            assert first.crash_lag == []
        assert other.failed is None


def test_in_progress_mode_a_batch_without_progress_is_thrown_out(group):
    """That the watchdog answers rebalances keeps no stalled batch in the group; heartbeats of the op do."""
    with group.consumer(max_batch_seconds=SHORT, membership=PROGRESS) as consumer:
        batch = whole_topic(consumer)
        for _ in range(12):
            work(0.15 * SHORT)
            stall = ProcessTimeoutWindow(consumer.heartbeat)
        assert len(group.members()) == 1
        stall.ends_in_time(group, SHORT)
        for refused in (consumer.heartbeat, lambda: consumer.commit(batch)):
            with pytest.raises(FencedError, match="longer than its process timeout"):
                refused()


def test_the_group_waits_for_the_larger_poll_interval(group):
    """KIP-62's test plan: with conflicting poll intervals nobody is thrown out before its own has passed."""
    with group.consumer(max_batch_seconds=MIDDLE) as quick, group.consumer() as slow:
        whole_topic(quick)
        wait_for(
            lambda: (slow.poll(0.1), quick.poll(0.1)) and len(slow.assignment()) == len(quick.assignment())
        )
        before = {m.member_id for m in group.members()}
        with Other(group) as third:
            # Longer than the quick one's interval since the third came, shorter than the slow one's.
            # Much less between its polls, because a busy machine adds to it
            for _ in range(3):
                work(0.4 * MIDDLE)
                quick.poll(0.0)
            assert before <= {m.member_id for m in group.members()}
            wait_for(lambda: (slow.poll(0.1), quick.poll(0.1)) and third.got_after is not None)
            assert before <= {m.member_id for m in group.members()}
        assert third.failed is None


def test_manual_assignment_has_no_member_and_no_group_thread(group, services, produce):
    """The catch-up lane is in no group: nobody rebalances for it, its deadline is the watchdog's."""
    with pytest.raises(ZeroDivisionError), group.consumer(enable_parallel_rebalance=True) as consumer:
        whole_topic(consumer)
        raise ZeroDivisionError
    produce(services.bootstrap_servers, group.topic, 0, ["new"])
    with group.consumer(enable_parallel_rebalance=True) as live:
        wait_for(lambda: live.poll(0.1) or len(live.assignment()) == 4)
        owed = live.pending(group.topic, 0)
    with group.kafka.catch_up(group_id=group.group_id, ranges=owed, max_batch_seconds=SHORT) as lane:
        batch = lane.poll()
        cluster = group.kafka.cluster()
        assert cluster.members(group.group_id) == cluster.members(f"{group.group_id}.catch-up") == ()
        assert "kafka-liveness-heartbeat" not in {thread.name for thread in threading.enumerate()}
        work(SHORT + 0.3)
        with pytest.raises(FencedError, match="longer than its process timeout"):
            lane.commit(batch)
        again = lane.poll()
        assert again.ranges == batch.ranges
        lane.commit(again)
        assert lane.poll() is None


def test_a_static_member_that_comes_back_in_time_moves_no_partitions(group):
    """KIP-345: a restart within the session keeps the partitions where they were; nothing is owed."""
    with group.consumer(membership=STATIC, max_poll_records=100) as first:
        first.commit(first.poll(PATIENCE))
        wait_for(lambda: len(first.assignment()) == 4)
    with group.consumer(membership=STATIC, enable_parallel_rebalance=True) as again:
        assert sum(r.size for r in again.poll(PATIENCE).ranges) == 100
        assert again.crash_lag == []


def test_a_static_member_that_stays_away_is_replaced_after_its_session(group):
    """It does not leave the group when it closes.

    Others get its partitions at the session timeout, released.
    """
    with group.consumer(membership=STATIC) as static:
        static.commit(whole_topic(static))
    assert {mark for _, mark in group.live_log().values()} == {OwnerState.RELEASED}
    assert len(group.members()) == 1
    with group.consumer() as other:
        assert seconds_until(lambda: other.poll(0.1) or len(other.assignment()) == 4) < SESSION + 3 * SLACK


def test_a_stalled_static_member_keeps_its_partitions_for_one_session_more(group):
    """Its process timeout ends the heartbeats and refuses its commit.

    The coordinator waits for the session.
    """
    group.have_session(MIDDLE)
    with group.consumer(max_batch_seconds=MIDDLE, membership=STATIC) as static:
        batch = whole_topic(static)
        work(MIDDLE + 0.3)
        assert len(group.members()) == 1
        assert seconds_until(lambda: not group.members()) <= MIDDLE + SLACK
        with pytest.raises(FencedError, match="longer than its process timeout"):
            static.commit(batch)
        assert whole_topic(static).ranges == batch.ranges


def test_two_consumers_with_one_instance_id_end_with_a_named_error(group):
    """The group keeps one of them (classic: the new one, KIP-848: the old one).

    The other hears why and is out.
    """
    with (
        group.consumer(membership=STATIC) as first,
        group.consumer(membership=STATIC) as second,
    ):
        batch = whole_topic(first)
        out, stays = (first, second) if group.protocol == "classic" else (second, first)

        def both_poll():
            for one in (second, out):
                one.poll(0.1)

        with pytest.raises(FencedError, match=r"same group\.instance\.id.*set another group_instance_id"):
            wait_for(both_poll, what="one of them is refused")
        wait_for(lambda: stays.poll(0.1) or len(stays.assignment()) == 4)
        if stays is first:
            first.commit(batch)
        else:
            with pytest.raises(FencedError, match=r"same group\.instance\.id"):
                first.commit(batch)


def test_the_brokers_session_is_not_a_members_to_set(group):
    """KIP-848 keeps session and heartbeat on the broker.

    Setting them is refused with the group's own numbers.
    """
    if group.protocol == "classic":
        assert group.consumer().timeouts.session_timeout_ms == SESSION * 1000
        return
    assert group.consumer().timeouts.session_timeout_ms == SESSION * 1000
    theirs = group.kafka.model_copy(update={"session_timeout_seconds": 10.0})
    with pytest.raises(InvalidSettingError, match=rf"{SESSION * 1000:,.0f}.*kafka-configs"):
        theirs.consumer(topics=[group.topic], group_id=group.group_id)
