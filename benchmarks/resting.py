"""The code location of `idle`: an asset with its sensor on, or a sensor that does nothing. Not for users."""

from __future__ import annotations

import os

import dagster as dg

from benchmarks import crashing
from benchmarks.crashing import orders

EMPTY = "KAFKA_LIVENESS_BENCH_EMPTY"
JOB, SENSOR = "orders_job", "orders_sensor"


@dg.sensor(
    name=SENSOR,
    jobs=[orders.live_job],
    minimum_interval_seconds=3,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def nothing() -> dg.SkipReason:
    """The least a sensor can do, as often as the group's."""
    return dg.SkipReason("nothing to do")


defs = (
    dg.Definitions.merge(
        dg.Definitions(jobs=[orders.live_job], assets=[orders.live], sensors=[nothing]),
        dg.Definitions(resources=crashing.RESOURCES),
    )
    if os.environ.get(EMPTY)
    else crashing.defs
)
