"""Handover on a real broker, with both group protocols.

A rebalance waits for open batches, and never too long.
"""

from __future__ import annotations

import logging
import threading
from contextlib import nullcontext

import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata
from kafka_liveness_dagster.core.fencing import FenceReason
from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.kafka.errors import FencedError
from kafka_liveness_dagster.lanes.in_flight import InFlightWrite, InFlightWrites
from tests.timeouts import seconds
from tests.waiting import wait_for

PATIENCE = 180.0  # seconds
BUDGET, SHORT_BUDGET = seconds(6.0), seconds(2.5)
SESSION, HEARTBEAT = seconds(1.5), 0.5


class Job(nullcontext):
    """Work that nobody has to cancel."""

    is_abandoned = False
    tag = "job"

    def cancel(self, timeout_seconds=2.0):
        return True


class Write:
    """A write that takes so many seconds: the time is the input of these tests."""

    def __init__(self, seconds):
        self.seconds = seconds

    def prepare(self):
        return lambda: threading.Event().wait(self.seconds)

    def execute_with_retries(self, execute):
        return execute()


class Group:
    """Two partitions with 50 records each, and members of one group on them."""

    def __init__(self, services, topic, group_id, protocol, strategy):
        self.topic, self.group_id = topic, group_id
        classic = {"session_timeout_seconds": SESSION, "heartbeat_interval_seconds": HEARTBEAT}
        self.kafka = kl.KafkaLivenessResource(
            bootstrap_servers=services.bootstrap_servers,
            group_protocol=protocol,
            extra={"partition.assignment.strategy": strategy} if strategy else {},
            **(classic if protocol == "classic" else {}),
        )

    def consumer(self, max_batch_seconds=BUDGET, **settings):
        return self.kafka.consumer(
            topics=[self.topic],
            group_id=self.group_id,
            max_batch_seconds=max_batch_seconds,
            **{"enable_parallel_rebalance": True, **settings},
        )

    def marks(self):
        commits = self.kafka.cluster().commits(
            self.group_id, [TopicPartition(self.topic, p) for p in range(2)]
        )
        return {(LiveCommitMetadata.decode(commit.metadata).owner_state) for commit in commits.values()}

    def member_ids(self):
        return {member.member_id for member in self.kafka.cluster().members(self.group_id)}


@pytest.fixture(params=["cooperative", "eager", "consumer"])
def group(request, services, make_topic, make_group, produce):
    """The same laws for both assignors' protocols of the classic group, and for KIP-848's."""
    protocol = "consumer" if request.param == "consumer" else "classic"
    strategy = "range" if request.param == "eager" else ""
    found = Group(services, make_topic(2), make_group(SESSION, HEARTBEAT), protocol, strategy)
    for partition in range(2):
        produce(services.bootstrap_servers, found.topic, partition, map(str, range(50)))
    return found


class Successor(threading.Thread):
    """A second member that takes what it is given, and commits it."""

    def __init__(self, group):
        super().__init__(daemon=True)
        self.group, self.began, self.jumped, self.failed = group, {}, None, None
        self.stopped = threading.Event()
        self.start()

    def run(self):
        try:
            with self.group.consumer(max_batch_seconds=60) as consumer:
                while not self.stopped.is_set():
                    if (batch := consumer.poll(0.1)) is not None:
                        for part in batch.ranges:
                            self.began.setdefault(part.partition, part.start)
                        consumer.commit(batch)
                    self.jumped = list(consumer.crash_lag)
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            self.failed = error

    def end(self):
        self.stopped.set()
        wait_for(lambda: not self.is_alive(), what="the successor has left")
        assert self.failed is None


def owning_all(consumer, size):
    """The first batch of both partitions."""
    wait_for(lambda: consumer.poll(0.1, 1, min_records=1_000) is not None or len(consumer.assignment()) == 2)
    return consumer.poll(PATIENCE, size)


def test_a_rebalance_does_not_wait_beyond_what_the_group_grants(group):
    """Two in flight take longer than that.

    What landed is committed, the rest released, and nothing is crash lag.
    """
    with group.consumer() as first, InFlightWrites() as in_flight:

        def land():
            in_flight[0].finish()
            first.commit(in_flight[0].batch)
            in_flight.pop_committed()

        first.before_revoke(lambda may_wait: in_flight.commit_finished(may_wait, land))
        in_flight.append(InFlightWrite(owning_all(first, 20), Job(), Write(0.8 * BUDGET)))
        in_flight.append(InFlightWrite(first.poll(0, 20), Job(), Write(1.8 * BUDGET)))
        for one in in_flight:
            one.begin()
        before = group.member_ids()
        successor = Successor(group)
        wait_for(lambda: len(group.member_ids()) == 2)
        land()
        try:
            wait_for(lambda: (first.poll(0.1), successor.began or successor.failed)[1])
            assert before <= group.member_ids(), "the first one was thrown out"
            assert successor.jumped == []
            assert set(successor.began.values()) == {10}, "what had landed was committed, and nothing else"
            assert first.crash_lag == []
        finally:
            successor.end()


def test_a_fence_in_the_middle_of_a_revoke_leaves_after_it(group):
    """What finishes the open batch takes longer than its process timeout.

    The member is out, its process goes on.
    """
    with group.consumer(max_batch_seconds=SHORT_BUDGET) as first:
        owning_all(first, 20)

        def finish(_may_wait):
            while True:
                first.check()

        first.before_revoke(finish)
        before = group.member_ids()
        successor, met = Successor(group), []

        def polls():
            try:
                while True:
                    first.poll(0.1)
            except FencedError as fenced:
                met.append(fenced.reason)

        # A hang of the client can be seen, and left behind
        thread = threading.Thread(target=polls, daemon=True)
        thread.start()
        wait_for(lambda: met, what="the member is fenced")
        assert met == [FenceReason.POLL_TIMEOUT]
        wait_for(lambda: not before & group.member_ids())
        successor.end()


def test_a_fence_closes_the_member_it_was_raised_for(group):
    """Somebody reads the log slowly.

    By the time the watchdog goes on, its consumer is a new member, and stays one.
    """
    rejoined, held_up = threading.Event(), threading.Event()

    class Slow(logging.Handler):
        def emit(self, record):
            if threading.current_thread().name in ("kafka-liveness-watchdog", "kafka-liveness-tell"):
                held_up.set()
                rejoined.wait(seconds(5.0))  # a KIP-848 member keeps its partitions until it leaves

    handler, log = Slow(), logging.getLogger("kafka_liveness_dagster")
    with group.consumer(max_batch_seconds=SHORT_BUDGET, enable_parallel_rebalance=False) as consumer:
        batch = owning_all(consumer, 20)
        log.addHandler(handler)
        try:
            wait_for(held_up.is_set)
            with pytest.raises(FencedError):
                consumer.commit(batch)
            again = owning_all(consumer, 20)
            rejoined.set()
            wait_for(lambda: "kafka-liveness-watchdog" in {thread.name for thread in threading.enumerate()})
            assert again.ranges == batch.ranges
            consumer.commit(again)
            wait_for(lambda: len(group.member_ids()) == 1)
        finally:
            rejoined.set()
            log.removeHandler(handler)
