"""Ticks of a sensor by hand, and the clock of the group sensors."""

from __future__ import annotations

import time

import dagster as dg

from kafka_liveness_dagster.sensor import sensor as group_sensor
from kafka_liveness_dagster.sensor import shared
from tests.integration.kafka_group import NO_SPARK


class SensorClock:
    """The clock of the group sensors, which is set ahead instead of waiting."""

    def __init__(self, monkeypatch):
        self.ahead = 0.0
        for module in (group_sensor, shared):
            monkeypatch.setattr(module, "time", self)

    def time(self):
        return time.time() + self.ahead

    def monotonic(self):
        return time.monotonic() + self.ahead


def evaluate(sensor, defs, instance, cursor, kafka):
    """Evaluate one tick, without Spark."""
    context = dg.build_sensor_context(
        instance,
        cursor,
        definitions=defs,
        resources={"kafka": kafka, "spark": NO_SPARK},
        sensor_name=sensor.name,
    )
    with context, dg.partition_loading_context(dynamic_partitions_store=instance):
        return sensor.evaluate_tick(context)
