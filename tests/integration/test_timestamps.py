"""How far behind a lane is in time, by the records' own timestamps."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.settings import KafkaSettings
from kafka_liveness_dagster.kafka.timestamps import event_times, seconds_behind, timestamps_at
from tests.waiting import wait_for

THEN = 1_700_000_000_000


@pytest.fixture
def behind(services, make_topic):
    """Seconds behind of a topic with a record every second on the first partition, and one on the second."""
    topic = make_topic(3)
    producer = Producer({"bootstrap.servers": services.bootstrap_servers})
    for second in range(10):
        producer.produce(topic, b"", partition=0, timestamp=THEN + 1_000 * second)
    producer.produce(topic, b"", partition=1, timestamp=THEN)
    assert producer.flush(120) == 0
    cluster = Cluster(KafkaSettings(services.bootstrap_servers))

    def ask(*positions):
        at = {TopicPartition(topic, number): offset for number, offset in enumerate(positions)}
        return seconds_behind(
            cluster, "etl", at, {tp: end for tp, (_, end) in cluster.log_bounds(at).items()}
        )

    return ask


@pytest.mark.parametrize(
    ("positions", "seconds"),
    [
        pytest.param((4, 1, 0), 6.0, id="of the partition that is worst off"),
        pytest.param((0, 1, 0), 9.0, id="where nothing is processed yet, from the first"),
        pytest.param((10, 0, 0), 0.0, id="one record waits, and none is older"),
        pytest.param((10, 1, 0), 0.0, id="nothing waits"),
        pytest.param((), 0.0, id="no partition"),
    ],
)
def test_from_the_newest_processed_to_the_newest_there_is(behind, positions, seconds):
    assert behind(*positions) == seconds


@pytest.mark.parametrize("worst", [0, 3, 7])
def test_each_partition_is_heard_though_the_brokers_answers_are_full(services, make_topic, worst):
    """A broker returns a whole batch of the producer's for one partition, and for the others what fits."""
    topic = make_topic(8)
    batches = {"batch.size": 900_000, "batch.num.messages": 10_000, "linger.ms": 1_000}
    producer = Producer({"bootstrap.servers": services.bootstrap_servers, **batches})
    for second in range(1_000):
        for partition in range(8):
            at = THEN + 1_000 * (0 if (second, partition) == (0, worst) else 1 + second)
            producer.produce(topic, bytes(2_000), partition=partition, timestamp=at)
    assert producer.flush(120) == 0
    cluster = Cluster(KafkaSettings(services.bootstrap_servers))
    at = {TopicPartition(topic, partition): 1 for partition in range(8)}
    assert seconds_behind(cluster, "etl", at, dict.fromkeys(at, 1_000)) == 1_000.0


def test_event_times_of_ranges(services, make_topic):
    """The times of the first and the last record, also of two ranges of one partition; none past the log."""
    topic = make_topic(2)
    producer = Producer({"bootstrap.servers": services.bootstrap_servers})
    for second in range(20):
        producer.produce(topic, b"", partition=0, timestamp=THEN + 1_000 * second)
    producer.produce(topic, b"", partition=1, timestamp=THEN + 500)
    assert producer.flush(120) == 0
    cluster = Cluster(KafkaSettings(services.bootstrap_servers))
    early, late, alone = (OffsetRange(topic, *span) for span in ((0, 2, 10), (0, 15, 20), (1, 0, 1)))
    behind_the_log = OffsetRange(topic, 1, 5, 8)
    found = event_times(cluster, "etl", [early, behind_the_log, late, alone])
    begin = THEN / 1_000
    assert found == {
        early: (begin + 2, begin + 9), late: (begin + 15, begin + 19), alone: (begin + 0.5, begin + 0.5),
    }  # fmt: skip


def test_each_of_many_offsets_of_a_partition_is_read(services, make_topic):
    """One client reads them one after the other, and none is lost between two reads."""
    topic = make_topic(4)
    producer = Producer({"bootstrap.servers": services.bootstrap_servers})
    for second in range(1_000):
        for partition in range(4):
            producer.produce(topic, b"", partition=partition, timestamp=THEN + 1_000 * second)
        producer.poll(0)
    assert producer.flush(120) == 0
    cluster = Cluster(KafkaSettings(services.bootstrap_servers))
    wanted = {TopicPartition(topic, partition): list(range(0, 1_000, 20)) for partition in range(4)}
    found = {(tp, offset): at_ms for tp, offset, at_ms in timestamps_at(cluster, "etl", wanted)}
    assert found == {(tp, n): THEN + 1_000 * n for tp, offsets in wanted.items() for n in offsets}


def test_a_transactions_marker_has_no_time(services, make_topic):
    """The record behind it stands for it."""
    topic = make_topic(1)
    producer = Producer({"bootstrap.servers": services.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(120)
    for second in (0, 5, 9):
        producer.begin_transaction()
        producer.produce(topic, b"", partition=0, timestamp=THEN + 1_000 * second)
        producer.commit_transaction(120)
    cluster, at = Cluster(KafkaSettings(services.bootstrap_servers)), TopicPartition(topic, 0)
    # The broker answers a commit before it writes the last marker
    wait_for(lambda: cluster.log_bounds([at])[at] == (0, 6), what="the last transaction's marker")
    first, marker, done = (seconds_behind(cluster, "etl", {at: position}, {at: 6}) for position in (1, 2, 6))
    assert (first - marker, done) == (5.0, 0.0)
