"""The record reader on librdkafka's mock cluster: little room, batches back and forth, no membership."""

from __future__ import annotations

from itertools import chain

import pytest
from confluent_kafka import Producer

from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.record_reader import Prefetch
from kafka_liveness_dagster.kafka.record_reader import BatchInterleavedError, RecordReader
from kafka_liveness_dagster.kafka.settings import KafkaSettings

PARTITIONS, RECORDS = 3, 200


@pytest.fixture(scope="module")
def cluster():
    """A mock cluster, which lives in its producer, with the records of one topic."""
    producer = Producer({"test.mock.num.brokers": 1, "linger.ms": 0})
    for n in range(PARTITIONS * RECORDS):
        producer.produce("orders", b"x", partition=n % PARTITIONS)
    assert producer.flush(60) == 0
    [broker] = producer.list_topics(timeout=60).brokers.values()
    yield KafkaSettings(f"{broker.host}:{broker.port}")
    producer.flush(0)


@pytest.fixture
def reader(cluster):
    """A reader that nobody used before."""
    reader = RecordReader(cluster, "etl", "reads")
    yield reader
    reader.close()


def read(reader, start, end, bound=None):
    """The offsets that come of the same range of all partitions, and the most that waited meanwhile."""
    ranges = [OffsetRange("orders", partition, start, end) for partition in range(PARTITIONS)]
    found, most = [], 0
    for record in chain.from_iterable(reader.read(ranges, bound or Prefetch(), lambda: None)):
        found.append((record.offset(), record.partition()))
        most = max(most, reader.buffered().records)
    return found, most


@pytest.mark.parametrize("by", ["partition", "total"])
def test_little_room_changes_nothing_but_the_memory(reader, by):
    """With room for 30 records partitions are paused and resumed again and again.

    None is lost, repeated or late.
    """
    found, most = read(reader, 0, RECORDS, Prefetch(max_records=30, limit_by=by))
    assert found == [(n, partition) for n in range(RECORDS) for partition in range(PARTITIONS)]
    assert most < 90


def test_batches_go_on_repeat_and_skip(reader):
    """Whichever offset the next batch begins at, it begins there.

    What was fetched for another never slips in.
    """
    for start, end in [(0, 50), (50, 60), (55, 70), (0, 5), (150, 160), (70, 71), (71, 200), (10, 190)] * 2:
        assert read(reader, start, end)[0] == [(n, p) for n in range(start, end) for p in range(PARTITIONS)]


def test_a_reader_is_no_member(reader, cluster):
    """Its settings name the group, for the broker's permissions.

    It subscribes to nothing and has nothing to commit.
    """
    read(reader, 0, 10)
    assert reader._client.memberid() in ("", None)
    assert cluster.reader_config("etl", "reads")["enable.auto.commit"] is False


def test_records_of_a_batch_end_when_those_of_another_are_asked_for(reader):
    """The reader has one position for each partition: the first batch would get records of the second one."""
    first, second = (
        reader.read([OffsetRange("orders", 0, *at)], Prefetch(), lambda: None) for at in ((0, 50), (50, 60))
    )
    begun = next(first)
    assert [record.offset() for record in next(second)]
    assert begun == []
    with pytest.raises(BatchInterleavedError, match="before all records of this batch were read"):
        next(first)
