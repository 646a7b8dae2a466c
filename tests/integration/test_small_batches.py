"""The run reads a small batch itself; its frame is the one that Spark's Kafka source would have made."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from kafka_liveness_dagster.lanes import small_batches
from kafka_liveness_dagster.spark import local_records, source, transform
from tests.integration.group_with_table import GroupWithTable, written_rows
from tests.integration.kafka_group import SECONDS, KafkaGroup

HEADERS = [("trace", b"1"), ("trace", None), ("\u00fc", b"\xff")]
RECORDS = [
    {"value": b"plain", "partition": 0},
    {"value": None, "key": b"\x00\xff", "partition": 0, "timestamp": 1},
    {"value": b"", "key": b"", "partition": 1, "headers": HEADERS, "timestamp": 1_700_000_000_123},
    {"value": "\u00fcml".encode(), "partition": 3, "headers": []},
]


@pytest.fixture
def batch_of(services, make_topic, produce):
    """A member with a batch of records of every kind, two of them in a transaction that was aborted."""
    world = KafkaGroup(services, make_topic(4), produce)
    config = {"bootstrap.servers": services.bootstrap_servers, "log_level": 0}
    producer = Producer(config)
    for record in RECORDS:
        producer.produce(world.topic, **record)
    assert producer.flush(SECONDS) == 0
    aborting = Producer({**config, "transactional.id": world.topic})
    aborting.init_transactions(SECONDS)
    aborting.begin_transaction()
    for partition in (2, 3):
        aborting.produce(world.topic, b"aborted", partition=partition)
    assert aborting.flush(SECONDS) == 0
    aborting.abort_transaction(SECONDS)
    with world.live() as consumer:
        batch = consumer.poll(SECONDS)
        assert sum(one.size for one in batch.ranges) == len(RECORDS) + 4, "and two of markers"
        yield world, consumer, batch


@pytest.mark.parametrize("include_headers", [False, True])
def test_the_frame_is_the_one_of_sparks_source(batch_of, warm_spark, include_headers):
    """Columns, types and values: no key, no value, empty ones, headers, timestamps, aborted records."""
    world, consumer, batch = batch_of
    options = {**world.kafka.settings().spark_options(), "includeHeaders": str(include_headers).lower()}
    theirs = source.read_ranges(warm_spark, batch.ranges, options)
    for _ in range(2):
        records = consumer.records_within(batch, max_bytes=10_000, seconds=SECONDS)
        ours = local_records.frame_of(warm_spark, records, include_headers=include_headers, tasks=1)
        assert ours.schema == theirs.schema
        key = "topic", "partition", "offset"
        assert ours.orderBy(*key).collect() == theirs.orderBy(*key).collect()
    assert len(records) == len(RECORDS)


@pytest.mark.parametrize(
    "limits",
    [{"max_bytes": 8, "seconds": SECONDS}, {"max_bytes": 10_000, "seconds": 0}],
    ids=["bytes", "time"],
)
def test_a_batch_beyond_a_limit_is_left_to_spark(batch_of, limits):
    """And the batch can be read afterwards."""
    _, consumer, batch = batch_of
    assert consumer.records_within(batch, **limits) is None
    assert len(list(consumer.records(batch))) == len(RECORDS)


@pytest.fixture
def group(services, produce, rows, warm_spark, monkeypatch):
    """A group with a table; ``reads`` has the number of offsets of each batch that Spark read."""
    found = GroupWithTable(services, produce, rows, warm_spark)
    found.reads = []
    read_ranges = source.read_ranges

    def counted(session, ranges, *args, **settings):
        found.reads.append(sum(one.size for one in ranges))
        return read_ranges(session, ranges, *args, **settings)

    monkeypatch.setattr(transform, "read_ranges", counted)
    return found


def test_a_plan_that_would_be_too_large_is_left_to_spark(batch_of, warm_spark, monkeypatch):
    """By keys or headers, which the limit of values does not count."""
    _, consumer, batch = batch_of
    records = consumer.records_within(batch, max_bytes=10_000, seconds=SECONDS)
    monkeypatch.setattr(local_records, "MAX_PLAN_BYTES", 10)
    assert local_records.frame_of(warm_spark, records, include_headers=True, tasks=1) is None


def test_spark_reads_large_batches_only(group, monkeypatch):
    monkeypatch.setattr(small_batches, "MAX_OFFSETS", 20)
    for log_end in (20, 41, 50):
        group.grow_to(log_end)
        assert group.live() is None
    assert group.reads == [21]
    assert group.offsets() == written_rows(0, 50)


def test_spark_reads_large_records_and_the_next_batches_of_the_run(group, monkeypatch):
    monkeypatch.setattr(small_batches, "MAX_BYTES", 15)
    group.grow_to(40)
    assert group.live(max_poll_records=10) is None
    assert group.reads == [10, 10, 10], "the first ten records have one byte each"
    assert group.offsets() == written_rows(0, 40)


def test_the_catch_up_lane_reads_a_small_range_too(group):
    group.crash_and_resume_at_120()
    group.reads.clear()
    assert group.catch_up((70, 120)) is None
    assert group.reads == []
    assert group.offsets() == written_rows(0, 120)
