"""Tables with a past.

Appends, a crash, its backfill, and offsets that came again when others stood in their files.
"""

from __future__ import annotations

from contextlib import suppress

import dagster as dg
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from pyspark.sql import functions as F  # noqa: N812 - as everybody does

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.spark.table.write import write_table
from tests.spark_addresses import spark_at
from tests.waiting import wait_for

PARTITIONS = (0, 1)
BACKFILLED = (100, 120)
BEFORE = [(p, o, "live") for p in PARTITIONS for o in (*range(100), *range(120, 160))]
NOW = sorted(
    [(0, o, "live" if o < 50 else "replay") for o in range(190)]
    + [
        (1, o, "live" if o < 100 else "backfill" if o < 120 else "live" if o < 160 else "replay")
        for o in range(190)
    ]
)


class CrashError(Exception):
    """What ended a life of the group."""


class OldGroup:
    """A group, its two partitions and its table, whose files have rows of both.

    What comes again cuts through them.
    """

    def __init__(self, services, topic, produce, instance):
        self.topic, self.group = topic, f"etl-{topic}"
        self.table = f"lake.{topic.replace('-', '_')}.orders"
        self._servers, self._produce, self._log_end, self._instance = (
            services.bootstrap_servers,
            produce,
            0,
            instance,
        )
        self._kafka = kl.KafkaLivenessResource(
            bootstrap_servers=self._servers, session_timeout_seconds=30, heartbeat_interval_seconds=0.5
        )

        def orders(batch):
            kept = batch.selectExpr("topic", "partition", "offset", "timestamp AS placed_at")
            return kept.withColumn("written_by", F.lit(self._word)).coalesce(1)

        asset = kl.kafka_asset(
            name=topic.replace("-", "_"), topics=[topic], group_id=self.group, table=self.table,
            idle_seconds=0.3, enable_parallel_rebalance=True,
            iceberg=kl.Iceberg(snapshots="append", partition_by=["days(placed_at)"]),
        )(orders)  # fmt: skip
        spark = spark_at(services.spark_remote)
        resources = dg.Definitions(resources={"kafka": self._kafka, "spark": spark})
        defs = dg.Definitions.merge(asset.definitions, resources)
        self._keys_of = asset.crash_lag.key.path[-1]
        self._live, self._catch_up = (
            defs.resolve_job_def(job.name) for job in (asset.live_job, asset.crash_lag_job)
        )

    def create_history(self):
        """All of it."""
        self._grow(100)
        self._runs(self._live, "live")
        self._grow(120)
        self._crash()
        self._jump()
        self._grow(160)
        self._runs(self._live, "live")
        keys = [f"p{partition}:{self.topic}:{BACKFILLED[0]}-{BACKFILLED[1]}" for partition in PARTITIONS]
        self._instance.add_dynamic_partitions(self._keys_of, keys)
        both = {ASSET_PARTITION_RANGE_START_TAG: keys[0], ASSET_PARTITION_RANGE_END_TAG: keys[-1]}
        self._runs(self._catch_up, "backfill", tags=both)
        self._reset_offsets(50)
        self._grow(190)
        self._runs(self._live, "replay")

    def _grow(self, log_end):
        for partition in PARTITIONS:
            self._produce(self._servers, self.topic, partition, map(str, range(self._log_end, log_end)))
        self._log_end = log_end

    def _runs(self, job, word, **options):
        self._word = word
        assert job.execute_in_process(instance=self._instance, **options).success

    def _member(self):
        return self._kafka.consumer(topics=[self.topic], group_id=self.group, enable_parallel_rebalance=True)

    def _crash(self):
        with suppress(CrashError), self._member() as consumer:
            wait_for(
                lambda: (batch := consumer.poll(1)) is not None and sum(r.size for r in batch.ranges) >= 40
            )
            raise CrashError

    def _jump(self):
        with self._member() as consumer:
            wait_for(lambda: consumer.poll(0.2) is None and len(consumer.crash_lag) == len(PARTITIONS))

    def _reset_offsets(self, offset):
        """What a reset tool does to partition 0."""
        admin = AdminClient({"bootstrap.servers": self._servers, "log_level": 0})
        to = ConsumerGroupTopicPartitions(self.group, [KafkaTopicPartition(self.topic, 0, offset)])
        admin.alter_consumer_group_offsets([to])[self.group].result()


def written_twice(session, table, layout):
    """100 offsets of both partitions, of which 40-60 of one come again; gives what is there then."""
    for word, ranges in (
        ("live", [kl.OffsetRange("orders", partition, 0, 100) for partition in PARTITIONS]),
        ("replay", [kl.OffsetRange("orders", 0, 40, 60)]),
    ):
        rows = " UNION ALL ".join(
            f"SELECT 'orders' AS topic, {r.partition} AS partition, id AS offset, '{word}' AS written_by "
            f"FROM range({r.start}, {r.end}, 1, 1)" for r in ranges
        )  # fmt: skip
        write_table(session, table, ranges, lambda rows=rows: session.sql(rows).coalesce(1), layout=layout)
    return [(p, o, "replay" if p == 0 and 40 <= o < 60 else "live") for p in PARTITIONS for o in range(100)]
