"""The code location of `crash_to_fresh`, and the asset of `idle` and `steady_commits`, as a user has it.

Its sensor is on.
Not for users. It imports no more than a user's would, so neither pyspark nor confluent_kafka, nor the other
files of the benchmarks.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import dagster as dg

import kafka_liveness_dagster as kl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC, TABLE, IDLE, INTERVAL = (
    f"KAFKA_LIVENESS_BENCH_{name}" for name in ("TOPIC", "TABLE", "IDLE", "INTERVAL")
)
_topic = os.environ.get(TOPIC, "orders")


@kl.kafka_asset(
    topics=[_topic],
    group_id=_topic,
    table=os.environ.get(TABLE, "lake.bench.orders"),
    max_poll_records=500_000,
    max_batch_seconds=120,
    enable_parallel_rebalance=True,
    idle_seconds=float(os.environ.get(IDLE, "600")),
    batching=kl.Batching(commit_interval_seconds=float(os.environ.get(INTERVAL, "0"))),
    sensor=kl.Sensor(default_status=dg.DefaultSensorStatus.RUNNING),
)
def orders(batch: DataFrame) -> DataFrame:
    """The rows of every benchmark."""
    return batch.selectExpr("topic", "partition", "offset", "CAST(value AS string) AS order_json")


RESOURCES = {"kafka": kl.KafkaLivenessResource(), "spark": kl.SparkConnectResource()}
defs = dg.Definitions.merge(orders.definitions, dg.Definitions(resources=RESOURCES))
