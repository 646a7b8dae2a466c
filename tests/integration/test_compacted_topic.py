"""A compacted topic: offsets without records, which no lane waits for and no batch is larger for."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition

from tests.integration.both_lanes import Tables, records
from tests.integration.kafka_group import SECONDS, KafkaGroup, join
from tests.waiting import wait_for

KEYS = 10
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "1000"}
HOUR_MS = 3_600_000


def now_ms():
    return round(time.time() * 1000)


def produce_keyed(bootstrap, topic, partition, values, stamp_ms=None):
    """Values under ten keys in turn, an hour old unless said otherwise.

    The first newer one begins a segment.
    """
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        stamp = now_ms() - HOUR_MS if stamp_ms is None else stamp_ms
        producer.produce(topic, value.encode(), f"{int(value) % KEYS}", partition, timestamp=stamp)
    assert producer.flush(SECONDS) == 0


def offsets_left(w):
    """The offsets that have a record still."""
    settings = {"group.id": "looks", "enable.partition.eof": True, "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": w.kafka.bootstrap_servers, **settings})
    consumer.assign([KafkaTopicPartition(w.topic, 3, 0)])
    found = []
    try:
        while True:
            message = consumer.poll(SECONDS)
            if message.error() is None:
                found.append(message.offset())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return found
    finally:
        consumer.close()


@pytest.fixture
def compacted(services, make_topic):
    """Committed 70, crashed at 100; of 0-121 only the last ten and the one in the open segment are left."""
    w = KafkaGroup(services, make_topic(4, COMPACTED), produce_keyed)
    w.crash()
    w.grow_to(120)
    produce_keyed(services.bootstrap_servers, w.topic, 3, ["120"], now_ms())
    w.log_end = 121
    expected = list(range(110, 121))
    wait_for(lambda: offsets_left(w) == expected, details=lambda: f"offsets with a record: {offsets_left(w)}")
    return w


def test_both_lanes_read_the_same_of_a_compacted_topic(compacted, services, spark, table, rows):
    """Ranges whose records are gone drain with 0 rows; batches are bounded by offsets.

    What is left is read once.
    """
    w, expected = compacted, [(n, str(n)) for n in range(110, 121)]
    with w.live() as consumer:
        join(w, consumer)
        assert w.spans(consumer.pending(w.topic, 3)) == [(70, 121)], (
            "the log end is the same as without compaction"
        )
        tables = Tables(w, spark)
        assert tables.catch_up(table, (70, 110), max_poll_records=30) == [((70, 100), 0), ((100, 110), 0)]
        assert w.spans(consumer.pending(w.topic, 3)) == [(110, 121)]
        assert tables.catch_up(table, (110, 121), max_poll_records=30) == [((110, 121), 11)]
        assert consumer.committed(w.topic, 3) == 121
    assert records(rows(table)) == expected

    in_order, live_table = KafkaGroup(services, w.topic, produce_keyed), f"{table}_live"
    with in_order.live(max_poll_records=50) as consumer:
        batches = Tables(in_order, spark).live(live_table, consumer, 121)
    assert batches == [((0, 50), 0), ((50, 100), 0), ((100, 121), 11)], (
        "offsets count, not what is left of them"
    )
    assert records(rows(live_table)) == expected

    by_the_run = KafkaGroup(services, w.topic, produce_keyed)
    with by_the_run.live() as consumer:
        found = consumer.records_within(consumer.poll(SECONDS), max_bytes=10_000, seconds=SECONDS)
    assert [(record.offset, record.value.decode()) for record in found] == expected
