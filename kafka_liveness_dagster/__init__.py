"""Live, fair and crash-proof Kafka consumption for Dagster assets processed by Spark.

Names are loaded when they are first used: importing the package imports neither dagster, pyspark nor
confluent_kafka, and a machine that only shows the UI needs neither Java nor a broker. It tells pyspark, though, that
Spark is reached through Spark Connect in this process.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_liveness_dagster.core.errors import InvalidSettingError, KafkaLivenessError
    from kafka_liveness_dagster.core.events import (
        CrashLagFound,
        GhostFound,
        GroupDied,
        GroupEmptied,
        LeaveReason,
        MemberJoined,
        MemberLeft,
        OwedForgotten,
        RebalanceCompleted,
        RebalanceStarted,
    )
    from kafka_liveness_dagster.core.fairness import Batch
    from kafka_liveness_dagster.core.heartbeat import FenceReason
    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.declare.asset import kafka_asset
    from kafka_liveness_dagster.declare.component import KafkaAssetComponent
    from kafka_liveness_dagster.declare.definitions import KafkaAsset
    from kafka_liveness_dagster.resources.kafka import KafkaLivenessResource
    from kafka_liveness_dagster.resources.spark import SparkConnectResource
    from kafka_liveness_dagster.sensor.sensor import build_group_sensor
    from kafka_liveness_dagster.settings.groups import Batching, CrashLag, Membership, Offsets, ResourceKeys, Watch
    from kafka_liveness_dagster.spark.sink import Replacement, Sink

__all__ = [
    "Batch",
    "Batching",
    "CrashLag",
    "CrashLagFound",
    "FenceReason",
    "GhostFound",
    "GroupDied",
    "GroupEmptied",
    "InvalidSettingError",
    "KafkaAsset",
    "KafkaAssetComponent",
    "KafkaLivenessError",
    "KafkaLivenessResource",
    "LeaveReason",
    "MemberJoined",
    "MemberLeft",
    "Membership",
    "OffsetRange",
    "Offsets",
    "OwedForgotten",
    "RebalanceCompleted",
    "RebalanceStarted",
    "Replacement",
    "ResourceKeys",
    "Sink",
    "SparkConnectResource",
    "Watch",
    "build_group_sensor",
    "kafka_asset",
]

_HOMES = {
    "Batch": "core.fairness",
    "Batching": "settings.groups",
    "CrashLag": "settings.groups",
    "CrashLagFound": "core.events",
    "FenceReason": "core.heartbeat",
    "GhostFound": "core.events",
    "GroupDied": "core.events",
    "GroupEmptied": "core.events",
    "InvalidSettingError": "core.errors",
    "KafkaAsset": "declare.definitions",
    "KafkaAssetComponent": "declare.component",
    "KafkaLivenessError": "core.errors",
    "KafkaLivenessResource": "resources.kafka",
    "LeaveReason": "core.events",
    "MemberJoined": "core.events",
    "MemberLeft": "core.events",
    "Membership": "settings.groups",
    "OffsetRange": "core.offsets",
    "Offsets": "settings.groups",
    "OwedForgotten": "core.events",
    "RebalanceCompleted": "core.events",
    "RebalanceStarted": "core.events",
    "Replacement": "spark.sink",
    "ResourceKeys": "settings.groups",
    "Sink": "spark.sink",
    "SparkConnectResource": "resources.spark",
    "Watch": "settings.groups",
    "build_group_sensor": "sensor.sensor",
    "kafka_asset": "declare.asset",
}

# As pyspark's own ``remote(…)`` does, which is not used here; pyspark asks for it where a function of the user's is
# defined (@udf, @pandas_udf), before any Spark is there
os.environ.setdefault("SPARK_CONNECT_MODE_ENABLED", "1")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - costs more than the package itself

        return version("kafka-liveness-dagster")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted((*__all__, "__version__", "__doc__", "__name__", "__file__", "__path__"))
