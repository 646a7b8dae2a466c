"""The code location of this tier: the README's pipeline with small, slow batches.

Each code server has a copy of it. The environment holds the asset's settings, and a folder for files by which
a test changes what the transform does.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import dagster as dg

import kafka_liveness_dagster as kl

VERSION = "first"
SETTINGS = {"name": "orders", "topics": ["orders"], "group_id": "orders-etl", "table": "lake.shop.orders"}
SETTINGS |= json.loads(os.environ.get("PRODUCTION_ASSET", "{}"))
CONTROLS = Path(os.environ.get("PRODUCTION_CONTROLS", ""))
NAME, CATCHES_UP = SETTINGS["name"], SETTINGS.pop("auto_catch_up", False)
SENSOR = kl.Sensor(default_status=dg.DefaultSensorStatus.RUNNING, **SETTINGS.pop("sensor", {}))
CRASH_LAG = kl.CrashLag(auto_catch_up=CATCHES_UP, backfill_policy=dg.BackfillPolicy.multi_run(1))


@kl.kafka_asset(**SETTINGS, enable_parallel_rebalance=True, crash_lag=CRASH_LAG, sensor=SENSOR)
def orders(batch):
    """Write the version of this file, the run and a batch's offsets; 20 of them take a second."""
    if (CONTROLS / f"{NAME}-broken").exists():
        raise ValueError("this transform is broken")
    endless = CONTROLS / f"{NAME}-endless"
    if endless.exists():
        if endless.read_text() == "C":
            # One call of C, which no signal interrupts and no other thread runs beside
            sum(itertools.repeat(0))
        while True:
            pass
    nap = "java_method('java.lang.Thread', 'sleep', 50L)"
    return batch.selectExpr(
        "topic", "partition", "offset", f"'{VERSION}' AS version", f"concat({nap}, '') AS nap"
    )


resources = {
    "kafka": kl.KafkaLivenessResource(
        bootstrap_servers=dg.EnvVar("KAFKA_BOOTSTRAP_SERVERS"),
        session_timeout_seconds=6,
        heartbeat_interval_seconds=1,
    ),
    "spark": kl.SparkConnectResource(remote=dg.EnvVar("SPARK_REMOTE")),
}
every_minute = dg.ScheduleDefinition(
    name=f"{NAME}_every_minute", job=orders.live_job, cron_schedule="* * * * *"
)
defs = dg.Definitions.merge(
    orders.definitions,
    dg.Definitions(schedules=[every_minute], executor=dg.in_process_executor, resources=resources),
)
