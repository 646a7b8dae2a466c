"""The code location of `partitions`: an asset on a topic of many partitions. Not for users."""

from __future__ import annotations

import os

import dagster as dg

import kafka_liveness_dagster as kl
from benchmarks.lake import to_rows

TOPIC, TABLE = "KAFKA_LIVENESS_BENCH_TOPIC", "KAFKA_LIVENESS_BENCH_TABLE"
BATCH = 50_000


def asset_of(topic: str, table: str) -> kl.KafkaAsset:
    """The asset of one topic; its group has the topic's name."""
    return kl.kafka_asset(
        topics=[topic],
        group_id=topic,
        name=topic.replace("-", "_"),
        table=table,
        max_poll_records=BATCH,
        max_batch_seconds=600,
        idle_seconds=0.5,
        enable_parallel_rebalance=True,
    )(to_rows)


if TOPIC in os.environ:
    defs = dg.Definitions.merge(
        asset_of(os.environ[TOPIC], os.environ[TABLE]).definitions,
        dg.Definitions(resources={"kafka": kl.KafkaLivenessResource(), "spark": kl.SparkConnectResource()}),
    )
