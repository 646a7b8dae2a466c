"""Orders: a topic, a transform and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

import kafka_liveness_dagster as kl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@kl.kafka_asset(
    topics=["orders"],
    group_id="orders-etl",
    table="lake.shop.orders",
    max_poll_records=20_000,
    max_batch_seconds=60,
    enable_parallel_rebalance=True,
    sensor=kl.Sensor(default_status=dg.DefaultSensorStatus.RUNNING),
)
def orders(batch: DataFrame) -> DataFrame:
    """Every order as JSON, beside the offset it came from."""
    return batch.selectExpr("topic", "partition", "offset", "cast(value AS string) AS order_json")
