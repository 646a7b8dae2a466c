"""The run reads a small batch itself; its frame is the one that Spark's Kafka source would have made."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import Producer

from kafka_liveness_dagster.lanes import small_batches
from kafka_liveness_dagster.spark import local_records, source, transform
from tests.integration.group_with_table import GroupWithTable, written_rows
from tests.integration.kafka_group import SECONDS, KafkaGroup

HEADERS = [("trace", b"1"), ("trace", None), ("trace", b""), ("\u00fc", b"\xff")]
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


def test_a_filter_is_no_work_of_the_optimizer(batch_of, warm_spark, capsys):
    """It would compute the filter in the server, where no cancel and no deadline of a batch reaches it."""
    _, consumer, batch = batch_of
    records = consumer.records_within(batch, max_bytes=10_000, seconds=SECONDS)
    frame = local_records.frame_of(warm_spark, records, include_headers=False, tasks=1)
    frame.where("cast(value AS string) RLIKE '^(p+)+$'").selectExpr("length(value)").explain()
    plan = capsys.readouterr().out
    assert "Filter" in plan
    assert "RLIKE" in plan


def produce_header(servers, topic, name):
    """Produce a record with a header of any name, in bytes: Python's client takes only text."""
    [library] = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka-*.so*")
    kafka = ctypes.CDLL(str(library))
    kafka.rd_kafka_conf_new.restype = kafka.rd_kafka_new.restype = ctypes.c_void_p
    config = ctypes.c_void_p(kafka.rd_kafka_conf_new())
    assert kafka.rd_kafka_conf_set(config, b"bootstrap.servers", servers.encode(), None, 0) == 0
    producer = ctypes.c_void_p(kafka.rd_kafka_new(0, config, None, 0))
    size = ctypes.c_size_t(1)
    # Each argument follows its type, a number of rd_kafka_vtype_t
    place = 1, topic.encode(), 3, 3  # topic and partition
    content = 4, b"v", size, 9, name, b"h", size, 0  # value, header, end
    try:
        assert kafka.rd_kafka_producev(producer, *place, *content) == 0
        assert kafka.rd_kafka_flush(producer, round(1000 * SECONDS)) == 0
    finally:
        kafka.rd_kafka_destroy(producer)


def test_a_header_name_that_is_not_utf_8_is_left_to_spark(services, make_topic, produce):
    world = KafkaGroup(services, make_topic(4), produce)
    produce_header(services.bootstrap_servers, world.topic, b"\xff")
    with world.live() as consumer:
        assert consumer.records_within(consumer.poll(SECONDS), max_bytes=10_000, seconds=SECONDS) is None


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


def test_a_plan_that_is_too_large_is_left_to_spark(group, monkeypatch):
    """A transform may refer to the batch many times, each time with its records; here a literal is long."""
    monkeypatch.setattr(local_records, "MAX_PLAN_BYTES", 20_000)
    group.grow_to(20)
    assert group.live() is None
    assert group.reads == []
    group.grow_to(30)
    group.value = f"cast(value AS string) || left('{'x' * 30_000}', 0)"
    assert group.live() is None
    assert group.reads == [10]
    assert group.offsets() == written_rows(0, 30)


def test_a_timestamp_before_1900_is_left_to_spark(batch_of, warm_spark):
    """Spark converts it by the zone's local mean time."""
    _, consumer, batch = batch_of
    records = consumer.records_within(batch, max_bytes=10_000, seconds=SECONDS)
    old = records[0]._replace(timestamp_ms=-2_208_988_800_001)
    assert local_records.frame_of(warm_spark, [old], include_headers=False, tasks=1) is None


def test_a_slow_transform_of_few_records_has_all_cores(group):
    """The first batch has one task. It was slow, so the next one has a task for each core."""
    group.grow_to(100)
    tasks = []

    def between(batch):
        tasks.append(batch.selectExpr("spark_partition_id()").distinct().count())
        if len(tasks) == 1:
            time.sleep(1.1)  # a slow transform

    assert group.live(between, max_poll_records=50) is None
    assert tasks == [1, source.core_count(group.spark)]


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
