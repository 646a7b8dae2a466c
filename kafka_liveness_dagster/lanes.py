"""How does a batch get from a lane through Spark into the table, and only then into the commit log?

The same steps for both lanes: read exactly the batch, transform, replace its range in the table, commit its
offsets. A crash between any two of them repeats the batch, and the table absorbs the repetition.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import dagster as dg

from kafka_liveness_dagster.metadata import Tally, range_metadata, range_table
from kafka_liveness_dagster.partitions import range_of
from kafka_liveness_dagster.runs import lane_tags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame

    from kafka_liveness_dagster.assets import KafkaAsset
    from kafka_liveness_dagster.core.fairness import Batch
    from kafka_liveness_dagster.kafka.consumer import LivenessConsumer
    from kafka_liveness_dagster.resources import KafkaLivenessResource, SparkConnectResource
    from kafka_liveness_dagster.spark.iceberg import Written


def run_live(asset: KafkaAsset, context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """One run of the live lane: batches until no new data comes, or the run's own budget is nearly spent."""
    context.instance.add_run_tags(context.run.run_id, lane_tags(asset.group_id, "live"))
    pipeline = Pipeline.of(asset, context)
    with pipeline.kafka.consumer(
        topics=asset.topics,
        group_id=asset.group_id,
        context=context,
        max_poll_records=asset.max_poll_records,
        enable_parallel_rebalance=asset.enable_parallel_rebalance,
        min_crash_lag=asset.min_crash_lag,
        auto_offset_reset=asset.auto_offset_reset,
    ) as consumer:
        context.log.info("%s", consumer.timeouts)
        tally = pipeline.run(consumer, _until_idle(consumer, asset.idle_seconds), context.log)
    return dg.MaterializeResult(
        metadata={
            **tally.metadata(),
            "timeouts": str(consumer.timeouts),
            "crash_lag_found": range_table(consumer.jumped),
            "group": asset.group_id,
        }
    )


def run_catch_up(asset: KafkaAsset, context: dg.AssetExecutionContext) -> None:
    """One run of the catch-up lane: what is still owed of the run's partitions, oldest first."""
    context.instance.add_run_tags(context.run.run_id, lane_tags(asset.group_id, "catch-up"))
    pipeline = Pipeline.of(asset, context)
    asked = {key: range_of(key) for key in context.partition_keys}
    with pipeline.kafka.catch_up(
        group_id=asset.group_id,
        ranges=list(asked.values()),
        context=context,
        max_poll_records=asset.max_poll_records,
    ) as lane:
        owed = lane.outstanding_ranges()
        context.log.info("%d partitions; still owed of them: %s", len(asked), ", ".join(map(str, owed)) or "nothing")
        tally = pipeline.run(lane, iter(lane.poll, None), context.log)
    context.log.info("%s rows in %d batches written", f"{tally.rows:,}", tally.batches)
    for key, one in asked.items():
        context.add_asset_metadata(range_metadata(asset.group_id, one, owed), partition_key=key)


def _until_idle(consumer: LivenessConsumer, idle_seconds: float) -> Iterator[Batch]:
    """Batches until none came for so long; the wait for a rebalance to let us in does not count as idle."""
    while consumer.has_time_for_a_batch():
        batch = consumer.poll(idle_seconds)
        if batch is not None:
            yield batch
        elif consumer.joined:
            return


class Lane(Protocol):
    """What both lanes can do with a batch: ``LivenessConsumer`` and ``CatchUpConsumer``."""

    def commit(self, batch: Batch) -> None: ...  # noqa: D102 - the two classes document it
    def check(self) -> None: ...  # noqa: D102
    def on_fence(self, cancel: Callable[[], None]) -> None: ...  # noqa: D102


@dataclass(frozen=True)
class Pipeline:
    """Kafka, a transform and a table.

    Attributes:
        transform: from a DataFrame of exactly one batch to the rows to keep; none, one or many an offset.
        table: ``catalog.namespace.table`` of the Iceberg table.
    """

    kafka: KafkaLivenessResource
    spark: SparkConnectResource
    transform: Callable[[DataFrame], DataFrame]
    table: str

    @classmethod
    def of(cls, asset: KafkaAsset, context: dg.AssetExecutionContext) -> Pipeline:
        """The asset's pipeline with the resources of this run."""
        kafka, spark = (getattr(context.resources, k) for k in (asset.kafka_resource_key, asset.spark_resource_key))
        return cls(kafka, spark, asset.transform, asset.table)

    def run(self, lane: Lane, batches: Iterable[Batch], log: dg.DagsterLogManager) -> Tally:
        """Process and commit every batch.

        Raises:
            FencedError: this process may not commit any more; Spark was cancelled.
            KafkaLivenessError: Kafka, Spark or the table refused; what is not committed comes again.
        """
        tally, under_way = Tally(), _UnderWay()
        lane.on_fence(under_way.cancel)
        for batch in batches:
            started = time.monotonic()
            log.debug("processing %s", batch)
            written = self._write(batch, lane, under_way)
            if written.attempts > 1:
                again = "its files" if written.rewritten else "the same offsets"
                log.info("another writer had touched %s: written at attempt %d", again, written.attempts)
            lane.commit(batch)
            tally.add(batch, written.rows, time.monotonic() - started)
            log.info("committed %s: %s rows in %.2f s", batch, f"{written.rows:,}", time.monotonic() - started)
        return tally

    def _write(self, batch: Batch, lane: Lane, under_way: _UnderWay) -> Written:
        from kafka_liveness_dagster.spark.iceberg import write  # noqa: PLC0415 - pyspark stays lazy
        from kafka_liveness_dagster.spark.job import SparkJob  # noqa: PLC0415
        from kafka_liveness_dagster.spark.source import read  # noqa: PLC0415

        session, options = self.spark.session(), self.kafka.settings().spark()

        def frame() -> DataFrame:
            return self.transform(read(session, batch.ranges, options))

        with SparkJob(session) as job:
            under_way.job = job

            def may_go_on() -> None:
                lane.check()
                job.check()

            return write(session, self.table, batch.ranges, frame, may_go_on=may_go_on)


class _UnderWay:
    """The Spark job to cancel when the fence goes up, None between batches."""

    job: Any = None

    def cancel(self) -> None:
        """Caller: the watchdog's thread. Affects: the Spark job of the batch under way; does not wait for it."""
        if self.job is not None:
            self.job.cancel(timeout_seconds=0.0)
