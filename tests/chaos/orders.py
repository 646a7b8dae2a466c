"""The code location that is harassed: the README's pipeline with two live runs and short times.

The times leave room for many faults. ``dagster dev -f`` gets a copy of it. The environment sets the group
protocol, who does the crash lag, and whether new offsets are appended. The table is maintained every minute.
"""

from __future__ import annotations

import os

import dagster as dg

import kafka_liveness_dagster as kl

GROUP, TABLE = "orders-etl", "lake.shop.orders"
# Seconds; the first two are the group's own, on the broker, under KIP-848
SESSION, HEARTBEAT, BUDGET = 6.0, 1.5, 30.0
CLASSIC = {"session_timeout_seconds": SESSION, "heartbeat_interval_seconds": HEARTBEAT}
PROTOCOL = os.environ.get("CHAOS_PROTOCOL", "classic")


@kl.kafka_asset(
    topics=["orders"],
    group_id=GROUP,
    table=TABLE,
    max_poll_records=5_000,
    max_batch_seconds=BUDGET,
    enable_parallel_rebalance=True,
    offsets=kl.Offsets(on_missing_rows="crash_lag"),
    crash_lag=kl.CrashLag(auto_catch_up=os.environ.get("CHAOS_CATCH_UP") == "sensor"),
    iceberg=kl.Iceberg(snapshots=os.environ.get("CHAOS_SNAPSHOTS", "overwrite")),
    maintenance=kl.Maintenance(
        cron_schedule="* * * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        min_files=2,
        max_snapshot_age_seconds=60.0,
    ),
    sensor=kl.Sensor(max_live_runs=2, default_status=dg.DefaultSensorStatus.RUNNING),
)
def orders(batch):
    """Every order as JSON, beside the offset it came from."""
    return batch.selectExpr("topic", "partition", "offset", "cast(value AS string) AS order_json")


resources = {
    "kafka": kl.KafkaLivenessResource(
        bootstrap_servers=dg.EnvVar("KAFKA_BOOTSTRAP_SERVERS"),
        group_protocol=PROTOCOL,
        **(CLASSIC if PROTOCOL == "classic" else {}),
    ),
    "spark": kl.SparkConnectResource(remote=dg.EnvVar("SPARK_REMOTE")),
}
defs = dg.Definitions.merge(orders.definitions, dg.Definitions(resources=resources))
