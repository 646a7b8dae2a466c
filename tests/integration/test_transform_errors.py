"""Whatever a transform does, the error says that it was the transform, on which batch, and what to do."""

from __future__ import annotations

import time

import dagster as dg
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.table_layout import TableLayout
from kafka_liveness_dagster.spark.connect.job import SparkJob
from kafka_liveness_dagster.spark.errors import (
    KafkaSourceError,
    RowsOutsideBatchError,
    SparkCancelledError,
    SparkFailedError,
    TransformError,
    UnreadableRecordError,
)
from kafka_liveness_dagster.spark.sink import replace_rows
from kafka_liveness_dagster.spark.sql_transform import run_select
from kafka_liveness_dagster.spark.table.write import write_table
from kafka_liveness_dagster.spark.transform import TransformedBatch
from tests.timeouts import connect

LONG_MAX = 2**63 - 1
LAST_OF_SPARK = LONG_MAX // 1000  # milliseconds; Spark counts microseconds


@pytest.fixture
def made(warm_spark, services, make_topic):
    """What a transform makes of a batch of 50 offsets: ``made(transform) -> TransformedBatch``."""
    ranges = (OffsetRange("orders", 3, 70, 120), OffsetRange("orders", 4, 0, 9))
    options = {"kafka.bootstrap.servers": services.bootstrap_servers}
    return lambda transform: TransformedBatch(
        transform, warm_spark, ranges, options=options, passthrough_errors=(dg.RetryRequested,)
    )


async def asynchronous(batch):
    return batch


def looks_for_nothing(batch):
    return {}["price"]


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        pytest.param(
            lambda batch: None, r"returned None instead of a DataFrame .*add the missing `return`", id="None"
        ),
        pytest.param(
            lambda batch: [batch],
            r"returned a list instead .*return a DataFrame made from the batch",
            id="a list",
        ),
        pytest.param(
            lambda batch: batch.write, r"returned a pyspark\.sql.*DataFrameWriter instead", id="a writer"
        ),
        pytest.param(
            asynchronous,
            r"asynchronous returned a coroutine instead .*define the transform without async",
            id="async",
        ),
        pytest.param(
            looks_for_nothing,
            r"looks_for_nothing raised KeyError: 'price' .*correct the transform",
            id="KeyError",
        ),
        pytest.param(
            lambda batch: batch.select("price"), "raised AnalysisException: .*`price`", id="unknown column"
        ),
        pytest.param(lambda batch: batch.count("x"), "raised TypeError: ", id="TypeError"),
        *(
            pytest.param(
                transform,
                r"raised .*write batch\['offset'\] for the column; batch\.offset is a method",
                id=f"offset {n}",
            )
            for n, transform in enumerate(
                (
                    lambda batch: batch.select(batch.offset),
                    lambda batch: batch.where(batch.offset > 7),
                    lambda batch: batch.withColumn("next", batch.offset + 1),
                    lambda batch: batch.select(batch.offset.cast("string")),
                )
            )
        ),
        pytest.param(
            lambda batch: batch.sparkSession.table("lake.no.prices"),
            "raised .*`lake`.`no`.`prices`",
            id="unknown table",
        ),
    ],
)
def test_what_a_transform_did_is_told_by_its_name(made, table, transform, message):
    """The batch is named too, and the user's own error is the cause."""
    with pytest.raises(TransformError, match=message) as told:
        made(transform)()
    assert "for p3:orders:70-120 and 1 more. Nothing of the batch was written or committed" in str(told.value)
    assert (told.value.__cause__ is None) == ("returned" in str(told.value))


def test_a_frame_of_another_session_is_refused(made, services):
    """It would run where nobody watches it or could cancel it."""
    other = connect(services.spark_remote)
    try:
        with pytest.raises(
            TransformError,
            match=r"returned a DataFrame of another Spark session .*make the DataFrame from the batch",
        ):
            made(lambda batch: other.range(5))()
    finally:
        other.stop()


@pytest.mark.parametrize("error", [dg.RetryRequested(), InvalidSettingError("mine"), KeyboardInterrupt()])
def test_an_order_to_the_run_stays_one(made, error):
    """A transform may ask Dagster for a retry, raise an error of this package, or be interrupted."""

    def transform(batch):
        raise error

    with pytest.raises(type(error)) as told:
        made(transform)()
    assert told.value is error


def test_a_cancelled_transform_is_cancelled_and_not_to_blame(made, warm_spark):
    """Spark is asked by the transform itself when the fence comes.

    Its question ends by itself within seconds: an interrupt that meets an operation while it is planned
    leaves its first job to the cluster, where nobody can cancel it any more (Spark 4.1.3).
    """

    def transform(batch):
        job.cancel(timeout_seconds=0.0)
        return batch.sparkSession.range(2 * 10**8).selectExpr("sum(hash(id))").collect()

    job = SparkJob(warm_spark)
    with pytest.raises(SparkCancelledError), job:
        made(transform)()


def test_a_source_that_cannot_be_read_is_not_the_transforms_fault(warm_spark, services, table):
    """A connector that is missing, or an option it refuses: neither the transform's nor a record's fault."""
    options = {"kafka.bootstrap.servers": services.bootstrap_servers, "kafka.auto.offset.reset": "latest"}
    ranges = (OffsetRange("orders", 3, 70, 120),)

    def looks(batch):
        batch.count()
        return batch

    kept, looked_at = (
        TransformedBatch(transform, warm_spark, ranges, options=options) for transform in (lambda b: b, looks)
    )
    for fails in (
        lambda: write_table(warm_spark, table, ranges, kept),
        lambda: kept.failure_of(ranges),
        looked_at,
    ):
        with pytest.raises(
            SparkFailedError, match=r"cannot read from Kafka \(.*auto.offset.reset.*connector"
        ) as told:
            fails()
        assert isinstance(told.value.__cause__, PySparkException)


@pytest.fixture
def timestamps(services, make_topic):
    """A topic of two partitions with a record for each of these: ``timestamps({(partition).

    [ms, ...]}) -> topic``.
    """

    def produce(by_partition):
        topic = make_topic(2, {"message.timestamp.after.max.ms": str(LONG_MAX)})  # as before Kafka 4
        producer = Producer({"bootstrap.servers": services.bootstrap_servers})
        for partition, times in by_partition.items():
            for ms in times:
                producer.produce(topic, b"x", partition=partition, timestamp=ms)
        assert producer.flush(120) == 0
        return topic

    return produce


def test_a_record_that_spark_cannot_read_is_named(services, warm_spark, timestamps, table):
    """Its batch fails in any transform, so the error names the record, and how the group gets past it.

    What it names is all there is: the batch without that offset is read, and so is the last time that Spark
    has.
    """
    times = [1_700_000_000_000] * 6 + [LAST_OF_SPARK + 1, LAST_OF_SPARK, 0]
    topic = timestamps({0: [LAST_OF_SPARK] * 5, 1: times})
    options = {"kafka.bootstrap.servers": services.bootstrap_servers}

    def transformed(*ranges):
        keep = ("topic", "partition", "offset", "timestamp")
        return TransformedBatch(lambda batch: batch.select(*keep), warm_spark, ranges, options=options)

    ranges = OffsetRange(topic, 0, 0, 5), OffsetRange(topic, 1, 0, 9)
    written: list[int] = []
    with pytest.raises(
        UnreadableRecordError, match=rf"record at offset 6 of {topic}:1 .*9,223,372,036,854,775 ms"
    ) as told:
        write_table(warm_spark, table, ranges, transformed(*ranges))
    assert f"write-off GROUP p1:{topic}:6-7" in str(told.value)
    assert isinstance(told.value.__cause__, PySparkException)
    with pytest.raises(UnreadableRecordError, match=rf"offset 6 of {topic}:1"):
        replace_rows(lambda r: written.append(r.rows.count()), ranges, transformed(*ranges))
    looks = TransformedBatch(lambda batch: batch.limit(batch.count()), warm_spark, ranges, options=options)
    with pytest.raises(UnreadableRecordError, match=rf"offset 6 of {topic}:1"):
        looks()
    assert (warm_spark.catalog.tableExists(table), written) == (False, [])
    ranges = OffsetRange(topic, 0, 0, 5), OffsetRange(topic, 1, 0, 6), OffsetRange(topic, 1, 7, 9)
    assert write_table(warm_spark, table, ranges, transformed(*ranges)).rows == 13


def by_view(batch):
    """A temporary view that a query reads twice."""
    batch.createOrReplaceTempView("orders_of_a_test")
    of_view = "SELECT * FROM orders_of_a_test WHERE offset <= (SELECT max(offset) FROM orders_of_a_test)"
    return batch.sparkSession.sql(of_view)


def kept(batch, keep):
    """What is kept, and read twice."""
    batch = keep(batch)
    return batch.where("offset % 2 = 0").unionByName(batch.where("offset % 2 = 1"))


def joined_with_itself(batch):
    """Each record beside the one before it."""
    before = batch.selectExpr("partition", "offset + 1 AS offset", "value AS before")
    return batch.join(before, ["partition", "offset"], "left")


BRANCHING = {
    "union": lambda batch: batch.where("offset % 2 = 0").unionByName(batch.where("offset % 2 = 1")),
    "join": lambda batch: batch.join(
        batch.groupBy("partition").agg(F.max("offset").alias("last")), "partition"
    ),
    "self_join": joined_with_itself,
    "cache": lambda batch: kept(batch, lambda one: one.cache()),
    "checkpoint": lambda batch: kept(batch, lambda one: one.localCheckpoint()),
    "scalar": lambda batch: batch.where(F.col("offset") <= batch.agg(F.max("offset")).scalar()),
    "sql": lambda batch: run_select(batch, "SELECT * FROM batch WHERE offset IN (SELECT offset FROM batch)"),
    "except": lambda batch: batch.exceptAll(batch.where("false")),
    "look": lambda batch: batch.limit(batch.count()).unionByName(batch.where("false")),
    "first": lambda batch: batch.crossJoin(batch.limit(1).selectExpr("value AS first")),
    "view": by_view,
}
UNKNOWN = {"view": (None, None), "first": (1.0, None)}
"""What is not known of a batch: of a view Spark reports nothing, and of a LIMIT what it read for that."""


@pytest.fixture
def orders_of_two_hours(services, timestamps):
    """What a transform makes of 11 records of one byte.

    ``of(transform) -> TransformedBatch``, the oldest's time.
    """
    oldest = round(time.time()) * 1000 - 7_200_000
    topic = timestamps({0: [oldest + 3_600_000 + n for n in range(7)], 1: [oldest + n for n in range(4)]})
    options = {"kafka.bootstrap.servers": services.bootstrap_servers}
    ranges = OffsetRange(topic, 0, 0, 7), OffsetRange(topic, 1, 0, 4)

    def of(session, transform):
        return TransformedBatch(
            transform, session, ranges, options=options, measures_bytes=True, measures_oldest=True
        )

    return of, oldest


@pytest.mark.parametrize(
    ("snapshots", "names"), [("overwrite", list(BRANCHING)), ("append", ["union", "self_join"])]
)
def test_a_transform_may_use_its_batch_twice(warm_spark, orders_of_two_hours, table, snapshots, names):
    """Also where Spark weighs and dates the records while it reads them.

    All rows land, and the sums are right.
    """
    of, oldest = orders_of_two_hours
    warm_spark.sql(
        f"CREATE TABLE {table} (topic string, partition int, offset bigint, extra string) USING iceberg"
    )
    for name in names:
        warm_spark.sql(f"DELETE FROM {table}")
        extra = {"join": "last", "self_join": "before", "first": "first"}.get(name, "value")
        columns = "topic", "partition", "offset", f"CAST({extra} AS string) AS extra"
        rows = of(warm_spark, lambda batch: BRANCHING[name](batch).selectExpr(*columns))  # noqa: B023 - called in here
        written = write_table(warm_spark, table, rows.ranges, rows, layout=TableLayout(snapshots=snapshots))
        weight, age = rows.mean_bytes(), rows.oldest_ms()
        assert (written.rows, written.attempts) == (11, 1), name
        assert (weight, age) == (1.0, oldest) or (weight, age) == UNKNOWN.get(name), name
        found = warm_spark.table(table).selectExpr("partition", "offset", "extra").collect()
        extras = {"join": lambda p, _: str(6 - 3 * p), "self_join": lambda _, n: "x" if n else None}
        extra_of = extras.get(name, lambda *_: "x")
        assert sorted(map(tuple, found)) == [
            (p, n, extra_of(p, n)) for p, end in enumerate((7, 4)) for n in range(end)
        ]


def test_a_sink_may_use_its_rows_twice(warm_spark, orders_of_two_hours):
    """Joined with themselves, and again for a look at some of them, which reads a part of the batch."""
    of, oldest = orders_of_two_hours
    rows = of(warm_spark, BRANCHING["union"])

    def sink(replacement):
        doubled = replacement.rows.unionByName(replacement.rows).join(
            replacement.rows, ["partition", "offset"]
        )
        doubled.write.format("noop").mode("overwrite").save()
        replacement.rows.limit(1).collect()
        return doubled.count()

    assert replace_rows(sink, rows.ranges, rows).rows == 22
    assert (rows.mean_bytes(), rows.oldest_ms()) == (1.0, oldest)


def test_an_observation_of_the_transform_that_is_used_twice_is_named(made):
    """PySpark fails at it when the rows are written (SPARK-56322), with nothing but its name."""

    def transform(batch):
        seen = batch.observe(Observation(), F.count(F.lit(1)).alias("seen"))
        return seen.unionByName(seen)

    with pytest.raises(TransformError, match=r"raised TypeError: .*by a name.*SPARK-56322"):
        made(transform)()


@pytest.fixture
def expired(services, make_topic, produce):
    """A topic of 20 records of which the broker has deleted the first 10."""
    topic = make_topic()
    produce(services.bootstrap_servers, topic, 0, map(str, range(20)))
    admin, start = (
        AdminClient({"bootstrap.servers": services.bootstrap_servers}),
        KafkaTopicPartition(topic, 0, 10),
    )
    admin.delete_records([start])[KafkaTopicPartition(topic, 0)].result()
    return topic


def looks(batch):
    """Read the batch in the transform."""
    batch.count()
    return batch


@pytest.mark.parametrize("transform", [lambda batch: batch, looks], ids=["in the write", "in the transform"])
def test_records_that_are_gone_are_the_fault_of_no_transform(services, warm_spark, expired, table, transform):
    """The broker deleted them, or their partition: who planned the batch can look at the log again."""
    options = {"kafka.bootstrap.servers": services.bootstrap_servers}
    for where, says in (
        (OffsetRange(expired, 0, 0, 20), "deleted"),
        (OffsetRange(expired, 7, 0, 20), "no longer"),
        (OffsetRange(f"{expired}-gone", 0, 0, 20), "no longer"),
    ):
        rows = TransformedBatch(transform, warm_spark, [where], options=options)
        for fails in (
            lambda r=rows: write_table(warm_spark, table, r.ranges, r),
            lambda r=rows: r.failure_of(r.ranges),
        ):
            with pytest.raises(KafkaSourceError, match=f"{where}.*{says}") as told:
                fails()
            assert told.value.is_lost
            assert isinstance(told.value.__cause__, PySparkException)
    rows = TransformedBatch(transform, warm_spark, [OffsetRange(expired, 0, 10, 20)], options=options)
    assert rows.failure_of(rows.ranges) == ""


def test_brokers_that_spark_does_not_reach_are_the_fault_of_no_transform(warm_spark, table):
    """Nor of a record: nobody looks for one."""
    fast = {"kafka.default.api.timeout.ms": "1000", "kafka.request.timeout.ms": "1000"}
    ranges = (OffsetRange("orders", 0, 0, 20),)
    rows = TransformedBatch(
        looks, warm_spark, ranges, options={"kafka.bootstrap.servers": "127.0.0.1:1", **fast}
    )
    with pytest.raises(KafkaSourceError, match=r"127\.0\.0\.1:1.*advertised\.listeners") as told:
        write_table(warm_spark, table, ranges, rows)
    assert not told.value.is_lost


def test_a_transform_that_stops_its_session_is_told_so(services, make_topic, produce, table):
    """The server was not started anew; another session of the process does not matter."""
    topic, options = make_topic(), {"kafka.bootstrap.servers": services.bootstrap_servers}
    produce(services.bootstrap_servers, topic, 0, "abc")
    ranges = (OffsetRange(topic, 0, 0, 3),)

    def stops(batch):
        batch.sparkSession.stop()
        return batch

    def stops_and_looks(batch):
        return looks(stops(batch))

    for transform in (stops, stops_and_looks):
        session = connect(services.spark_remote)
        says = rf"{transform.__name__} stopped .*leave out `spark\.stop\(\)`"
        with pytest.raises(TransformError, match=says), SparkJob(session):
            write_table(session, table, ranges, TransformedBatch(transform, session, ranges, options=options))


def test_a_row_made_out_of_nothing_is_named(services, warm_spark, make_topic, produce, table):
    """An aggregate without grouping gives a row of no records: it has no topic, partition and offset."""
    topic, options = make_topic(), {"kafka.bootstrap.servers": services.bootstrap_servers}
    produce(services.bootstrap_servers, topic, 0, "abc")
    keys = [f"max({name}) AS {name}" for name in ("topic", "partition", "offset")]
    ranges = (OffsetRange(topic, 0, 0, 3),)
    totals = TransformedBatch(
        lambda batch: batch.where("value = 'z'").selectExpr(*keys), warm_spark, ranges, options=options
    )
    for fails in (
        lambda: write_table(warm_spark, table, ranges, totals),
        lambda: replace_rows(lambda r: r.rows.count(), ranges, totals),
    ):
        with pytest.raises(
            RowsOutsideBatchError, match=r"row of null:null:null, which is not.*GROUP BY topic"
        ):
            fails()
    half = TransformedBatch(
        lambda batch: batch.selectExpr("topic", "partition", "nullif(offset, 1) AS offset"),
        warm_spark,
        ranges,
        options=options,
    )
    with pytest.raises(RowsOutsideBatchError, match=f"row of {topic}:0:null, which is not"):
        write_table(warm_spark, table, ranges, half)
