"""Test a transform in seconds: a local Spark, no Kafka, and no Spark Connect server to start.

The first call starts a Java process for this Python process, which ends with it. A transform gets a
DataFrame of the same API, columns and types as in production, and its rows pass the checks of a batch. Never
joins a group, and never writes a table.
"""

from __future__ import annotations

from kafka_liveness_dagster.testing.local_run import DeadLetter, Result, run
from kafka_liveness_dagster.testing.local_spark import session
from kafka_liveness_dagster.testing.records import FIRST_TIMESTAMP, Record, batch

__all__ = ["FIRST_TIMESTAMP", "DeadLetter", "Record", "Result", "batch", "run", "session"]
