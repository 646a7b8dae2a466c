"""The code location of `soak`: an asset that commits about once a second, with a maintained table.

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

TOPIC, RUN_SECONDS = "KAFKA_LIVENESS_BENCH_TOPIC", "KAFKA_LIVENESS_BENCH_RUN_SECONDS"
TABLE, GROUP = "lake.bench.soak", "soak"
KEPT_SECONDS = 120.0
"""How old snapshots get: for the 5 days that they are kept unless set."""


@kl.kafka_asset(
    topics=[os.environ.get(TOPIC, "orders")],
    group_id=GROUP,
    table=TABLE,
    max_batch_seconds=30,
    enable_parallel_rebalance=True,
    materialize_interval_seconds=10,
    batching=kl.Batching(commit_interval_seconds=0.7),
    maintenance=kl.Maintenance(
        cron_schedule="*/2 * * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        max_snapshot_age_seconds=KEPT_SECONDS,
    ),
    sensor=kl.Sensor(default_status=dg.DefaultSensorStatus.RUNNING),
    run_tags={"dagster/max_runtime": os.environ.get(RUN_SECONDS, "360")},
)
def orders(batch: DataFrame) -> DataFrame:
    """The rows of every benchmark."""
    return batch.selectExpr("topic", "partition", "offset", "CAST(value AS string) AS order_json")


defs = dg.Definitions.merge(
    orders.definitions,
    dg.Definitions(resources={"kafka": kl.KafkaLivenessResource(), "spark": kl.SparkConnectResource()}),
)
