"""The code location of `idle`: an asset with its sensor on, or a sensor that does nothing. Not for users.

It imports no more than a user's would, so neither pyspark nor confluent_kafka, nor the other files of the benchmarks.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import dagster as dg

import kafka_liveness_dagster as kl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC, TABLE, IDLE, EMPTY = (f"KAFKA_LIVENESS_BENCH_{name}" for name in ("TOPIC", "TABLE", "IDLE", "EMPTY"))
JOB, SENSOR = "orders_job", "orders_group"
_topic = os.environ.get(TOPIC, "orders")


@kl.kafka_asset(
    topics=[_topic],
    group_id=_topic,
    table=os.environ.get(TABLE, "lake.bench.orders"),
    max_poll_records=500_000,
    max_batch_seconds=120,
    idle_seconds=float(os.environ.get(IDLE, "10")),
    watch=kl.Watch(default_status=dg.DefaultSensorStatus.RUNNING),
)
def orders(batch: DataFrame) -> DataFrame:
    """The rows of every benchmark."""
    return batch.selectExpr("topic", "partition", "offset", "CAST(value AS string) AS order_json")


@dg.sensor(
    name=SENSOR, jobs=[orders.live_job], minimum_interval_seconds=3, default_status=dg.DefaultSensorStatus.RUNNING
)
def nothing() -> dg.SkipReason:
    """The least a sensor can do, as often as the group's."""
    return dg.SkipReason("nothing to do")


defs = dg.Definitions.merge(
    dg.Definitions(jobs=[orders.live_job], assets=[orders.live], sensors=[nothing])
    if os.environ.get(EMPTY)
    else orders.definitions,
    dg.Definitions(resources={"kafka": kl.KafkaLivenessResource(), "spark": kl.SparkConnectResource()}),
)
