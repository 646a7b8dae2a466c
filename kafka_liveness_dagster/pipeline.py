"""How does a batch get from a lane through Spark into the table, and only then into the commit log?

The same steps for both lanes: read exactly the batch, transform, replace its range in the table, commit its
offsets. A crash between any two of them repeats the batch, and the table absorbs the repetition. A batch that
is too slow is repeated at half its size.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.heartbeat import FenceReason
from kafka_liveness_dagster.core.pace import Pace, PoisonedOffsetError
from kafka_liveness_dagster.core.progress import TELL_EVERY_SECONDS, ProgressLog
from kafka_liveness_dagster.failpoints import Failpoint, reach
from kafka_liveness_dagster.metadata import Tally, counted

if TYPE_CHECKING:
    from collections.abc import Callable

    import dagster as dg
    from pyspark.sql import DataFrame

    from kafka_liveness_dagster.core.fairness import Batch
    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.resources import KafkaLivenessResource, SparkConnectResource
    from kafka_liveness_dagster.settings import KafkaAssetSettings
    from kafka_liveness_dagster.spark.iceberg import Written
    from kafka_liveness_dagster.spark.sink import Sink


class Lane(Protocol):
    """What both lanes can do with a batch: ``LivenessConsumer`` and ``CatchUpConsumer``."""

    def commit(self, batch: Batch) -> None: ...  # noqa: D102 - the two classes document it
    def confirm(self, batch: Batch) -> None: ...  # noqa: D102
    def check(self) -> None: ...  # noqa: D102
    def heartbeat(self) -> None: ...  # noqa: D102
    def quarantine(self, poison: OffsetRange) -> None: ...  # noqa: D102
    def on_fence(self, cancel: Callable[[], None]) -> None: ...  # noqa: D102


@dataclass(frozen=True)
class Pipeline:
    """Kafka, a transform, and a table or a sink of the user's own.

    Attributes:
        transform: from a DataFrame of exactly one batch to the rows to keep; none, one or many an offset.
        table: ``catalog.namespace.table`` of the Iceberg table; empty where there is a sink.
        sink: what is called with each batch instead.
        most_records: at most so many offsets in a batch.
        auto: the size of batches follows what they take.
        liveness: with ``progress`` every finished Spark task is a heartbeat of the batch.
        on_poison: an offset that is too slow alone ends the run (``raise``) or is owed (``quarantine``).
    """

    kafka: KafkaLivenessResource
    spark: SparkConnectResource
    transform: Callable[[DataFrame], DataFrame]
    table: str
    sink: Sink | None
    most_records: int
    auto: bool
    liveness: Literal["poll", "progress"]
    on_poison: Literal["raise", "quarantine"]

    @classmethod
    def of(cls, asset: KafkaAssetSettings, context: dg.AssetExecutionContext) -> Pipeline:
        """The asset's pipeline with the resources of this run."""
        kafka, spark = (getattr(context.resources, k) for k in (asset.kafka_resource_key, asset.spark_resource_key))
        to = (asset.table or "", asset.sink)
        size = (asset.most_records, asset.max_poll_records == "auto")
        return cls(kafka, spark, asset.transform, *to, *size, asset.liveness, asset.on_poison)

    def run(
        self,
        lane: Lane,
        next_batch: Callable[[int], Batch | None],
        log: dg.DagsterLogManager,
        on_quarantine: Callable[[OffsetRange, str], None],
    ) -> Tally:
        """Process and commit every batch; one that is too slow, or was lost to another member, comes again.

        Args:
            lane: where the batches are committed.
            next_batch: gives a batch of at most so many offsets, None at the end.
            log: the run's.
            on_quarantine: told an offset that was passed, and why.

        Raises:
            FencedError: this process is finished with the group; Spark was cancelled.
            PoisonedOffsetError: an offset is too slow in a batch of its own.
            KafkaLivenessError: Kafka, Spark or the table refused; what is not committed comes again.
        """
        from kafka_liveness_dagster.kafka.errors import FencedError  # noqa: PLC0415 - confluent_kafka stays lazy

        tally, under_way, pace = Tally(), _UnderWay(), Pace(self.most_records, auto=self.auto)
        lane.on_fence(under_way.cancel)
        while (batch := next_batch(pace.bound)) is not None:
            reach(Failpoint.AFTER_PLAN)
            try:
                pace.in_time(batch, self._process(batch, lane, under_way, tally, log))
            except FencedError as fenced:
                if not fenced.reason.may_rejoin:
                    raise
                if fenced.reason is FenceReason.POLL_TIMEOUT and (poison := pace.too_slow(batch)) is not None:
                    on_quarantine(poison, self._passed(poison, batch, lane, fenced))
                log.warning("%s: %s. At most %d offsets next", batch, fenced, pace.bound)
        return tally

    def _process(
        self, batch: Batch, lane: Lane, under_way: _UnderWay, tally: Tally, log: dg.DagsterLogManager
    ) -> float:
        """Take a batch from Kafka to the commit; gives the seconds it took."""
        started = time.monotonic()
        log.debug("processing %s, %.1f s at most", batch, batch.deadline_seconds)
        try:
            written = self._write(batch, lane, under_way, log)
        except Exception:
            lane.check()  # what was cancelled by the fence failed because of it
            raise
        if written.attempts > 1:
            again = "its files" if written.rewritten else "the same offsets"
            log.info("another writer had touched %s: written at attempt %d", again, written.attempts)
        lane.commit(batch)
        reach(Failpoint.AFTER_OFFSET_COMMIT)
        seconds = time.monotonic() - started
        tally.add(batch, written.rows, seconds)
        log.info("committed %s: %s in %.2f s", batch, counted(written.rows), seconds)
        return seconds

    def _passed(self, poison: OffsetRange, batch: Batch, lane: Lane, fenced: Exception) -> str:
        """Let the lane pass an offset, and say so; or end the run."""
        if self.on_poison == "raise":
            outcome = "Nothing of it was committed; on_poison='quarantine' would let the others pass"
            raise PoisonedOffsetError([poison], batch.deadline_seconds, outcome) from fenced
        lane.quarantine(poison)
        return str(PoisonedOffsetError([poison], batch.deadline_seconds, "It stays owed, the others go on"))

    def _write(self, batch: Batch, lane: Lane, under_way: _UnderWay, log: dg.DagsterLogManager) -> Written:
        from kafka_liveness_dagster.spark.iceberg import write  # noqa: PLC0415 - pyspark stays lazy
        from kafka_liveness_dagster.spark.job import SparkJob  # noqa: PLC0415
        from kafka_liveness_dagster.spark.sink import replace  # noqa: PLC0415
        from kafka_liveness_dagster.spark.source import read  # noqa: PLC0415

        session, options = self.spark.session(), self.kafka.settings().spark()

        def frame() -> DataFrame:
            rows = self.transform(read(session, batch.ranges, options))
            if rows is None:
                name = getattr(self.transform, "__qualname__", "the transform")
                raise InvalidSettingError(f"{name} returned None instead of a DataFrame: is its `return` missing?")
            return rows

        def progressed(_completed: int, _total: int) -> None:
            with suppress(Exception):  # a fence is raised where the batch is committed, not inside Spark's client
                lane.heartbeat()

        told = ProgressLog(_named(batch), time.monotonic(), TELL_EVERY_SECONDS)

        def reported(completed: int, total: int) -> None:
            line = told.report(completed, total, time.monotonic())
            if line is not None:  # on Spark's turn: a line now and then, after the heartbeat, and no reason to fail
                with suppress(Exception):
                    log.info("%s", line)

        with SparkJob(session, progressed if self.liveness == "progress" else None, reported) as job:
            under_way.job = job

            def may_go_on() -> None:
                lane.check()
                job.check()

            def may_replace() -> None:
                lane.confirm(batch)
                job.check()

            if self.sink is not None:
                return replace(self.sink, batch.ranges, frame, may_go_on=may_replace)
            return write(session, self.table, batch.ranges, frame, may_go_on=may_go_on, may_replace=may_replace)


def _named(batch: Batch) -> str:
    """A batch by its first range: it may have hundreds."""
    more = len(batch.ranges) - 1
    return f"{batch.ranges[0]}" + (f" and {more} more" if more else "")


class _UnderWay:
    """The Spark job to cancel when the fence goes up, None between batches."""

    job: Any = None

    def cancel(self) -> None:
        """Caller: the watchdog's thread. Affects: the Spark job of the batch under way; does not wait for it."""
        if self.job is not None:
            self.job.cancel(timeout_seconds=0.0)
