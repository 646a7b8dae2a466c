"""Spark reads exactly the planned ranges."""

from __future__ import annotations

import re
import subprocess

import pytest

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.embedded import services as embedded
from kafka_liveness_dagster.embedded.jars import find_java
from kafka_liveness_dagster.spark.connect.session import connect
from kafka_liveness_dagster.spark.source import (
    OFFSETS_PER_TASK,
    RANGES_PER_TASK,
    SMALL_BATCH_OFFSETS,
    core_count,
    read_ranges,
)
from tests.conftest import SPARK_SLOTS
from tests.waiting import wait_for


def _offsets(frame):
    return sorted((row["partition"], row["offset"]) for row in frame.select("partition", "offset").collect())


@pytest.fixture
def orders(services, make_topic, produce):
    """A topic of two partitions with 120 and 50 records."""
    topic = make_topic(2)
    for partition, count in ((0, 120), (1, 50)):
        produce(services.bootstrap_servers, topic, partition, map(str, range(count)))
    return topic, {"kafka.bootstrap.servers": services.bootstrap_servers}


def test_exactly_the_ranges_are_read(spark, orders):
    """Ends are exclusive, partitions that were not asked for are left alone."""
    topic, kafka = orders
    assert _offsets(read_ranges(spark, [OffsetRange(topic, 0, 70, 120)], kafka)) == [
        (0, n) for n in range(70, 120)
    ]


def test_records_are_read_as_structured_streaming_reads_them(spark, orders, capsys):
    """Not by Spark's first interface, which makes an object of each record, and rows of these."""
    topic, kafka = orders
    read_ranges(spark, [OffsetRange(topic, 0, 70, 120)], kafka).explain()
    plan = capsys.readouterr().out
    assert "BatchScan" in plan
    assert "KafkaRelation" not in plan


def test_several_ranges_of_one_partition_are_read_once(spark, orders):
    """Ranges apart, touching and overlapping, beside another partition's, give each offset once."""
    topic, kafka = orders
    ranges = [
        OffsetRange(topic, 0, 5, 10),
        OffsetRange(topic, 1, 0, 3),
        OffsetRange(topic, 0, 70, 100),
        OffsetRange(topic, 0, 90, 120),
        OffsetRange(topic, 0, 10, 12),
    ]
    expected = [(0, n) for n in (*range(5, 12), *range(70, 120))] + [(1, n) for n in range(3)]
    assert _offsets(read_ranges(spark, ranges, kafka)) == expected
    assert _offsets(read_ranges(spark, ranges, kafka, min_partitions=6)) == expected


def _tasks(frame):
    return frame.selectExpr("spark_partition_id() AS task").distinct().count()


def test_min_partitions_splits_a_range_into_tasks(spark, orders):
    """One big range of one partition can be read by several tasks."""
    topic, kafka = orders
    assert _tasks(read_ranges(spark, [OffsetRange(topic, 0, 0, 120)], kafka, min_partitions=4)) == 4


def test_a_large_batch_is_read_by_all_cores_and_a_small_one_is_not_cut(spark, services, make_topic, produce):
    """However few Kafka partitions it is of.

    A task that read only a few offsets would cost more than it saves.
    """
    topic, kafka = make_topic(), {"kafka.bootstrap.servers": services.bootstrap_servers}
    large = 2 * OFFSETS_PER_TASK
    produce(services.bootstrap_servers, topic, 0, map(str, range(large)))
    assert core_count(spark) == SPARK_SLOTS, "the task slots that the server was started with"
    assert _tasks(read_ranges(spark, [OffsetRange(topic, 0, 0, large)], kafka)) == 2
    assert _tasks(read_ranges(spark, [OffsetRange(topic, 0, 0, large - 1)], kafka)) == 1
    assert _tasks(read_ranges(spark, [OffsetRange(topic, 0, 0, large)], kafka, min_partitions=1)) == 1


def test_many_small_ranges_share_tasks(spark, services, make_topic, produce):
    """What a thousand partitions have a little of is no thousand tasks and files.

    What one has much of is its own.
    """
    partitions, each = 10 * SPARK_SLOTS, 3
    topic, kafka = make_topic(partitions), {"kafka.bootstrap.servers": services.bootstrap_servers}
    for partition in range(partitions):
        produce(services.bootstrap_servers, topic, partition, map(str, range(SMALL_BATCH_OFFSETS + 1)))
    ranges = [OffsetRange(topic, partition, 0, each) for partition in range(partitions)]
    shared = read_ranges(spark, ranges, kafka)
    assert _offsets(shared) == [
        (partition, offset) for partition in range(partitions) for offset in range(each)
    ]
    assert _tasks(shared) == 4 * core_count(spark)
    assert _tasks(read_ranges(spark, ranges, kafka, min_partitions=5 * SPARK_SLOTS)) == 5 * SPARK_SLOTS
    assert _tasks(read_ranges(spark, ranges, kafka, min_partitions=partitions)) == partitions
    assert _tasks(read_ranges(spark, ranges[:RANGES_PER_TASK], kafka)) == RANGES_PER_TASK
    large = [OffsetRange(topic, partition, 0, SMALL_BATCH_OFFSETS + 1) for partition in range(partitions)]
    assert _tasks(read_ranges(spark, large, kafka)) == partitions


def test_expired_data_is_an_error_and_never_a_gap(spark, services, orders):
    """A range that starts below the log start fails: what is gone is not taken for nothing."""
    from confluent_kafka import TopicPartition  # noqa: PLC0415
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    topic, kafka = orders
    admin = AdminClient({"bootstrap.servers": services.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, 0, 80)]).values():
        future.result()
    with pytest.raises(Exception, match=r"(?i)fail.*data|data.*lost|out of range"):
        read_ranges(spark, [OffsetRange(topic, 0, 70, 120)], kafka).collect()


def test_aborted_records_are_not_read(spark, services, make_topic):
    """What a producer took back is not part of a range, and the holes that leaves do not hang the reader."""
    from confluent_kafka import Producer  # noqa: PLC0415

    topic = make_topic()
    producer = Producer({"bootstrap.servers": services.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(120)
    for keep in (True, False):
        producer.begin_transaction()
        producer.produce(topic, b"kept" if keep else b"aborted", partition=0)
        producer.flush(120)
        (producer.commit_transaction if keep else producer.abort_transaction)(120)
    frame = read_ranges(
        spark, [OffsetRange(topic, 0, 0, 4)], {"kafka.bootstrap.servers": services.bootstrap_servers}
    )
    assert [row["value"] for row in frame.collect()] == [b"kept"]


def test_nothing_to_read_and_nowhere_to_read_from_are_refused(spark):
    """An empty batch or missing brokers are wrong settings, said before Spark is asked."""
    with pytest.raises(InvalidSettingError, match="no offset ranges"):
        read_ranges(spark, [], {"kafka.bootstrap.servers": "localhost:9092"})
    with pytest.raises(InvalidSettingError, match=r"kafka\.bootstrap\.servers"):
        read_ranges(spark, [OffsetRange("orders", 0, 70, 120)], {})


def _records_held(spark):
    """How many records Spark's server holds, by a histogram of its heap."""
    [(pid,)] = spark.sql("SELECT java_method('java.lang.ProcessHandle', 'current')").collect()
    jmap = find_java().with_name("jmap")
    told = subprocess.run([jmap, "-histo:live", pid], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+) +\d+ +org\.apache\.kafka\.clients\.consumer\.ConsumerRecord\b", told)
    return int(found[1]) if found else 0


@pytest.fixture
def own_spark(tmp_path):
    """A server whose heap contains the records of one test only."""
    try:
        session = connect(
            embedded.ensure_services(which=("spark",), home=tmp_path).spark_remote, timeout_seconds=120
        )
        yield session
        session.stop()
    finally:
        embedded.stop_services(tmp_path)


@pytest.mark.certify
def test_what_was_fetched_and_not_read_is_not_kept(own_spark, services, make_topic, produce):
    """A batch that is only looked into leaves the rest of what was fetched.

    By default for 5 min, without a bound.
    """
    spark = own_spark
    topic, kafka = make_topic(1), {"kafka.bootstrap.servers": services.bootstrap_servers}
    produce(services.bootstrap_servers, topic, 0, map(str, range(2_000)))
    for _ in range(20):
        assert not read_ranges(spark, [OffsetRange(topic, 0, 0, 2_000)], kafka).isEmpty()
    assert _records_held(spark) > 20 * 1_000, "they are held for the next read"
    wait_for(lambda: _records_held(spark) < 2_000)
