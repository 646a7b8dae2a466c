"""What does a run ask the table that it writes? What is in it, and what readers see of it; both in bounded time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kafka_liveness_dagster.spark.sink import SinkWitness

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafka_liveness_dagster.resources.spark import SparkConnectResource
    from kafka_liveness_dagster.settings.declarations import KafkaAssetSettings
    from kafka_liveness_dagster.spark.described import TableNow
    from kafka_liveness_dagster.spark.ledger import TableLedger


def witness_of(
    asset: KafkaAssetSettings, spark: SparkConnectResource, budget_seconds: float
) -> TableLedger | SinkWitness | None:
    """Who says what is there, in a batch's time at most: the table's ledger, or a sink that has ``covered``."""
    if asset.sink is not None:
        return SinkWitness.of(asset.sink)
    from kafka_liveness_dagster.spark.ledger import TableLedger  # noqa: PLC0415 - pyspark stays lazy
    from kafka_liveness_dagster.spark.table import IcebergTable  # noqa: PLC0415

    session = lambda: spark.session()  # noqa: E731, PLW0108 - when it is needed
    return TableLedger(
        IcebergTable(asset.table or ""), session, answer_seconds(budget_seconds), group_id=asset.group_id
    )


def answer_seconds(budget_seconds: float) -> float:
    """How long the table may take to say what is in it: a batch's time, which may be too short for any question."""
    from kafka_liveness_dagster.spark.ledger import ANSWER_SECONDS  # noqa: PLC0415 - pyspark stays lazy

    return max(budget_seconds, ANSWER_SECONDS)


def table_now(
    asset: KafkaAssetSettings, spark: SparkConnectResource, budget_seconds: float
) -> Callable[[], TableNow | None]:
    """What tells, in any thread, the table as readers see it; None for a sink of the user's own.

    Spark may be at work on batches meanwhile: each of them may take all its time before there is an answer.
    """
    if asset.table is None:
        return lambda: None
    from kafka_liveness_dagster.spark.described import described  # noqa: PLC0415 - pyspark stays lazy
    from kafka_liveness_dagster.spark.ledger import ANSWER_SECONDS  # noqa: PLC0415
    from kafka_liveness_dagster.spark.table import IcebergTable  # noqa: PLC0415

    seconds = asset.most_in_flight * budget_seconds + ANSWER_SECONDS
    return partial(described, spark.session(), IcebergTable(asset.table), seconds)
