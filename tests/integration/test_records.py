"""``consumer.records(batch)`` on a real broker: exactly the ranges, in turns, over holes, until the fence."""

from __future__ import annotations

import threading
from itertools import zip_longest

import pytest
from confluent_kafka import Producer

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.partition_state import DataExpiredError
from kafka_liveness_dagster.kafka.errors import FencedError
from kafka_liveness_dagster.kafka.record_reader import BatchInterleavedError
from tests.integration.both_lanes import await_log_end
from tests.integration.kafka_group import SECONDS, join
from tests.timeouts import seconds
from tests.waiting import wait_for

BYTES = 100_000
BUDGET = seconds(4)


@pytest.fixture
def two_topics(services, make_topic, produce):
    """Two topics of two partitions; each record says where it is."""
    topics = sorted([make_topic(2), make_topic(2)])
    for topic in topics:
        for partition in range(2):
            count = 40 + 20 * partition
            produce(
                services.bootstrap_servers,
                topic,
                partition,
                (f"{topic} {partition} {n}" for n in range(count)),
            )
    return topics


def places(records):
    """``[(topic, partition, offset)]``; the value must say the same."""
    found = [(r.topic(), r.partition(), r.offset()) for r in records]
    assert [r.value().decode() for r in records] == [f"{t} {p} {o}" for t, p, o in found]
    return found


def in_turns(ranges):
    """The first record of each partition, then the second of each, when there are no holes."""
    each = [[(r.topic, r.partition, n) for n in range(r.start, r.end)] for r in sorted(ranges)]
    return [place for one_round in zip_longest(*each) for place in one_round if place is not None]


def test_both_lanes_give_exactly_a_batch_in_turns(services, two_topics, make_group):
    """Batches that follow each other, one again from its middle, and crash lag.

    Each range exactly, in one order.
    """
    kafka, group = kl.KafkaLivenessResource(bootstrap_servers=services.bootstrap_servers), make_group(45, 5)
    seen, batches = [], 0
    with kafka.consumer(
        topics=two_topics, group_id=group, max_poll_records=100, max_batch_seconds=60
    ) as consumer:
        while len(seen) < 200:
            batch = consumer.poll(SECONDS)
            got = places(list(consumer.records(batch)))
            assert got == in_turns(batch.ranges)
            half = consumer.records(batch)
            assert places([next(half) for _ in range(5)]) == got[:5], "again, and in the same order"
            assert places(list(consumer.records(batch, prefetch="total", max_buffered_records=3))) == got
            with pytest.raises(BatchInterleavedError, match="one batch after the other"):
                next(half)
            consumer.commit(batch)
            seen, batches = seen + got, batches + 1
    assert sorted(seen) == [(topic, p, n) for topic in two_topics for p in (0, 1) for n in range(40 + 20 * p)]
    assert batches == 2


def test_a_range_ends_with_its_last_offset_even_when_nothing_is_there(services, world):
    """Aborted records at the end, and a range of nothing but aborted records and markers.

    Over without a wait.
    """
    settings = {"transactional.id": world.topic, "log_level": 0}
    producer = Producer({"bootstrap.servers": services.bootstrap_servers, **settings})
    producer.init_transactions(SECONDS)

    def transaction(count, end):
        producer.begin_transaction()
        for n in range(count):
            producer.produce(world.topic, str(n).encode(), partition=3)
        assert producer.flush(SECONDS) == 0
        end(SECONDS)

    world.grow_to(10)
    transaction(9, producer.abort_transaction)  # 10-19 and its marker
    await_log_end(world, 20)
    transaction(4, producer.commit_transaction)  # 20-24 and its marker, which is the log end
    await_log_end(world, 25)
    with world.live() as consumer:
        whole = consumer.poll(SECONDS)
        assert world.spans(whole.ranges) == [(0, 25)]

        def offsets(*span):
            ranges = (kl.OffsetRange(world.topic, 3, *span),)
            return [r.offset() for r in consumer.records(Batch(ranges, 60, whole.membership_epoch))]

        assert offsets(0, 25) == [*range(10), *range(20, 24)]
        assert offsets(5, 15) == [5, 6, 7, 8, 9], "the rest is a hole, and a record follows it"
        assert offsets(10, 20) == []
        assert offsets(24, 25) == [], "a marker at the log end: no record will ever tell"
        consumer.commit(whole)


def test_iterating_ends_with_the_fence(services, two_topics, make_group):
    """The deadline passes while the op has a record in hand.

    No other follows, and the batch is read after a rejoin.
    """
    kafka, group = kl.KafkaLivenessResource(bootstrap_servers=services.bootstrap_servers), make_group(45, 5)
    with kafka.consumer(
        topics=two_topics, group_id=group, max_poll_records=100, max_batch_seconds=BUDGET
    ) as consumer:
        batch = consumer.poll(SECONDS)
        records = consumer.records(batch)
        next(records)
        assert [member.client_id for member in kafka.cluster().members(group)], (
            "the member is one while the op reads"
        )
        fenced = threading.Event()
        consumer.on_fence(fenced.set)
        wait_for(fenced.is_set)
        with pytest.raises(FencedError, match=f"of {BUDGET:g} s"):
            next(records)
        again = consumer.poll(SECONDS)
        with pytest.raises(FencedError, match="before the consumer rejoined"):
            next(consumer.records(batch))
        assert places(list(consumer.records(again))) == in_turns(again.ranges)
        consumer.commit(again)


def test_a_fence_that_is_told_late_takes_nothing_from_the_next_batch(services, two_topics, make_group):
    """Something before it was slow.

    The consumer is a new member by then and reads again, and no record is missing.
    """
    kafka, group = kl.KafkaLivenessResource(bootstrap_servers=services.bootstrap_servers), make_group(45, 5)
    with kafka.consumer(
        topics=two_topics, group_id=group, max_poll_records=100, max_batch_seconds=BUDGET
    ) as consumer:
        batch, fenced, go_on, told = consumer.poll(SECONDS), *(threading.Event() for _ in range(3))
        consumer.on_fence(lambda: (fenced.set(), go_on.wait(300)))
        next(consumer.records(batch))
        consumer.on_fence(told.set)
        wait_for(fenced.is_set)
        again = consumer.poll(SECONDS)
        records = consumer.records(again)
        first = next(records)
        go_on.set()
        wait_for(told.is_set)
        assert places([first, *records]) == in_turns(again.ranges)


def test_a_slow_op_holds_little(services, make_topic, produce):
    """Large records, slowly read: never more than the bound wait, however much the log has."""
    topic = make_topic(1)
    produce(services.bootstrap_servers, topic, 0, ("x" * BYTES for _ in range(60)))
    kafka = kl.KafkaLivenessResource(bootstrap_servers=services.bootstrap_servers)
    with kafka.consumer(topics=[topic], group_id=f"of-{topic}", max_batch_seconds=60) as consumer:
        batch = consumer.poll(SECONDS)
        most = seen = 0
        for _ in consumer.records(batch, max_buffered_bytes=5 * BYTES):
            seen += 1
            most = max(most, consumer._reader.buffered().records + len(consumer._reader._last_records))
        assert (seen, batch.max_records) == (60, 60)
        assert most == 5


def test_crash_lag_is_read_the_same_way(crashed):
    """The catch-up lane's ranges; offsets that expire before they are read are a named error, not a wait."""
    with crashed.live() as consumer:
        join(crashed, consumer)
        assert crashed.spans(consumer.pending(crashed.topic, 3)) == [(70, 120)]
    with crashed.catch_up((70, 120), max_poll_records=25) as consumer:
        batch = consumer.poll()
        assert [r.offset() for r in consumer.records(batch)] == list(range(70, 95))
        crashed.expire(110)
        with pytest.raises(DataExpiredError, match="70 but its log starts at 110"):
            list(consumer.records(batch))
