"""Ways of records from Kafka into an Iceberg table: plain Spark, Structured Streaming, and this package.

All read with the same options of Spark's Kafka source and write to tables with the same properties, on one
warm server. Each way gives the seconds it took, and leaves looking at the table to others.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from benchmarks.lake import cpu_seconds, to_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    import kafka_liveness_dagster as kl
    from benchmarks.lake import Lake
    from kafka_liveness_dagster.assets.definitions import KafkaAsset
    from kafka_liveness_dagster.kafka.settings import KafkaSettings
    from kafka_liveness_dagster.spark.table.table import IcebergTable

FLIGHTS = (1, 2)
"""``batches_in_flight``: what is compared."""
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def in_words(in_flight: int) -> str:
    """How many batches were in flight, as part of a row's name."""
    return {1: ", one at a time", 2: ", two in flight"}[in_flight]


def one_pass(frame: DataFrame, table: IcebergTable) -> float:
    """Write everything at once with plain Spark: the bound of Spark in batches, since each batch has a cost.

    No bound of others: Flink 2.1 was measured at 0.97 to 1.41 times its speed. It reads ahead while it
    writes.
    """
    began = time.perf_counter()
    to_rows(frame).writeTo(table.quoted).option("fanout-enabled", "true").append()
    return time.perf_counter() - began


def everything(lake: Lake, topic: str) -> DataFrame:
    """All records of a topic, as plain Spark reads them."""
    source = lake.session.read.format("kafka").options(**lake.options())
    return source.options(subscribe=topic, startingOffsets="earliest", endingOffsets="latest").load()


def start_stream(
    lake: Lake, topic: str, table: IcebergTable, per_trigger: int, checkpoint: str, **trigger: Any
) -> StreamingQuery:
    """Start Structured Streaming from its checkpoint or the beginning; limit the offsets of a micro-batch."""
    source = lake.session.readStream.format("kafka").options(**lake.options(reader="-stream"))
    limits = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(per_trigger)}
    writer = to_rows(source.options(**limits).load()).writeStream.format("iceberg").outputMode("append")
    writer = writer.trigger(**trigger) if trigger else writer
    return writer.options(checkpointLocation=checkpoint, **{"fanout-enabled": "true"}).toTable(table.name)


def stream(lake: Lake, topic: str, table: IcebergTable, per_trigger: int) -> float:
    """Structured Streaming over what there is, from the start of the query to its end."""
    began = time.perf_counter()
    query = start_stream(lake, topic, table, per_trigger, f"{lake.home}/{table.name}", availableNow=True)
    query.awaitTermination()
    return time.perf_counter() - began


class Runs:
    """Runs of the package's own jobs in this process, in a Dagster instance on disk.

    What users get, with Dagster's log and the watchdog's looks at the run, but without the start of a
    process: the clock runs from the moment a run asks for its consumer to its last commit. The Spark session
    is open before.
    """

    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    def live(self, asset: KafkaAsset, committed: Callable[[kl.Batch], None] = lambda _: None) -> Stopwatch:
        """A run of the live job; ``committed`` is told each batch."""
        return self._run(asset, asset.live_job, {}, committed)

    def catch_up(self, asset: KafkaAsset, keys: Sequence[str]) -> Stopwatch:
        """One run of the crash lag job for all these partitions, as a backfill of a single run starts it."""
        self.lake.instance.add_dynamic_partitions(f"{asset.name}_crash_lag", list(keys))
        tags = {ASSET_PARTITION_RANGE_START_TAG: keys[0], ASSET_PARTITION_RANGE_END_TAG: keys[-1]}
        return self._run(asset, asset.crash_lag_job, tags, lambda _: None)

    def _run(
        self, asset: KafkaAsset, job: Any, tags: dict[str, str], committed: Callable[[kl.Batch], None]
    ) -> Stopwatch:
        watch = Stopwatch(self.lake, committed)
        resources = {"kafka": watch, "spark": _Open(self.lake.session)}
        defs = dg.Definitions.merge(asset.definitions, dg.Definitions(resources=resources))
        found = defs.resolve_job_def(job.name)
        # As in a run's own process (runs.garbage_collection). Else a run has two or three full collections
        # of 0.15 s before its first commit
        gc.collect()
        gc.freeze()
        try:
            found.execute_in_process(instance=self.lake.instance, tags=tags, run_config=_QUIET)
        finally:
            gc.unfreeze()
        return watch


class Stopwatch:
    """The Kafka resource of one run, with the times of its request for a consumer and of its last commit."""

    def __init__(self, lake: Lake, committed: Callable[[kl.Batch], None]) -> None:
        self._kafka, self._tell = lake.kafka, committed
        self._processes = lake.processes
        self.began = self.ended = 0.0
        self._cpu_began = self._cpu_ended = 0.0

    @property
    def seconds(self) -> float:
        """From the consumer to the last commit."""
        return self.ended - self.began

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of Spark, Kafka and the run meanwhile."""
        return self._cpu_ended - self._cpu_began

    def consumer(self, **settings: Any) -> Any:
        """As the resource's."""
        self._begin()
        return self._watched(self._kafka.consumer(**settings))

    def catch_up(self, **settings: Any) -> Any:
        """As the resource's."""
        self._begin()
        return self._watched(self._kafka.catch_up(**settings))

    @property
    def default_max_batch_seconds(self) -> float | None:
        """As the resource's."""
        return self._kafka.default_max_batch_seconds

    def settings(self) -> KafkaSettings:
        """As the resource's."""
        return self._kafka.settings()

    def _begin(self) -> None:
        self._cpu_began = cpu_seconds(self._processes)
        self.began = time.time()

    def _watched(self, lane: Any) -> Any:
        commit = lane.commit

        def timed(batch: kl.Batch) -> Any:
            handed_over = commit(batch)
            self.ended = time.time()
            self._cpu_ended = cpu_seconds(self._processes)
            self._tell(batch)
            return handed_over

        lane.commit = timed
        return lane


@dataclass(frozen=True)
class _Open:
    """The Spark resource of a run whose session is open, and stays so."""

    opened: SparkSession
    next_session_id = ""

    def links(self) -> dict[str, Any]:
        """None: nobody looks at the run's page."""
        return {}

    def open_ahead(self) -> None:
        """It is."""

    def session(self) -> SparkSession:
        """As the resource's."""
        return self.opened
