"""Take a batch from a lane through Spark into the table, and only then into the commit log.

The same steps for both lanes: read exactly the batch, transform, replace its range in the table, commit its
offsets. A crash between any two of them repeats the batch, and the table absorbs the repetition. A batch that
is too slow is repeated at half its size. Where there is plenty to do two batches are in flight, committed in
order.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

import dagster as dg

from kafka_liveness_dagster.core.batch_size import BatchSizer, SlowRecordError
from kafka_liveness_dagster.core.fencing import FenceReason
from kafka_liveness_dagster.core.sink_ledger import LaneLedger
from kafka_liveness_dagster.core.table_layout import DEFAULT_LAYOUT, TableLayout
from kafka_liveness_dagster.failpoints import Failpoint, failpoint
from kafka_liveness_dagster.lanes.batch_reporting import BatchLog, BatchMetrics, progress_listeners
from kafka_liveness_dagster.lanes.dead_letters import DeadLetterHandler, WriteOutcome
from kafka_liveness_dagster.lanes.in_flight import InFlightWrite, InFlightWrites
from kafka_liveness_dagster.lanes.late_records import LateRecords
from kafka_liveness_dagster.lanes.quotas import ThrottlingWatch
from kafka_liveness_dagster.runs.tags import budget_of
from kafka_liveness_dagster.spark.errors import (
    KafkaSourceError,
    SparkFailedError,
    SparkNotRespondingError,
    TransformError,
)
from kafka_liveness_dagster.spark.sink import SinkLedgerAdapter
from kafka_liveness_dagster.telemetry.metrics import SLOW_RECORD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from logging import Logger

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
    from kafka_liveness_dagster.lanes.protocols import BatchCounter, BatchSource, Lane, OnSkipped, Transform
    from kafka_liveness_dagster.resources.kafka import KafkaLivenessResource
    from kafka_liveness_dagster.resources.spark import SparkConnectResource
    from kafka_liveness_dagster.settings.asset import KafkaAssetSettings
    from kafka_liveness_dagster.spark.sink import Sink
    from kafka_liveness_dagster.spark.table.table import TableInfo
    from kafka_liveness_dagster.spark.transform import TransformedBatch


def ledger_for(
    asset: KafkaAssetSettings, spark: SparkConnectResource, budget_seconds: float
) -> LaneLedger | None:
    """Return the ledger of the table, or of a sink that has one, for one lane.

    Its reads take a batch's time at most.
    """
    if asset.sink is not None:
        return LaneLedger.of(SinkLedgerAdapter.from_sink(asset.sink, asset.group_id))
    from kafka_liveness_dagster.spark.table.ledger import TableLedger  # noqa: PLC0415 - pyspark stays lazy
    from kafka_liveness_dagster.spark.table.table import IcebergTable  # noqa: PLC0415

    session = lambda: spark.session()  # noqa: E731, PLW0108 - when it is needed
    return LaneLedger(
        TableLedger(
            IcebergTable(asset.table or ""),
            session,
            table_timeout_seconds(budget_seconds),
            group_id=asset.group_id,
        )
    )


def table_timeout_seconds(budget_seconds: float) -> float:
    """How long the table may take to say what is in it.

    A batch's time, which may be too short for any question.
    """
    from kafka_liveness_dagster.spark.table.ledger import READ_TIMEOUT_SECONDS  # noqa: PLC0415 - pyspark stays lazy

    return max(budget_seconds, READ_TIMEOUT_SECONDS)


def table_info_reader(
    asset: KafkaAssetSettings, spark: SparkConnectResource, budget_seconds: float
) -> Callable[[], TableInfo | None]:
    """What tells, in any thread, the table as readers see it; None for a sink of the user's own.

    Spark may be at work on batches meanwhile: each of them may take all its time before there is an answer.
    """
    if asset.table is None:
        return lambda: None
    from kafka_liveness_dagster.spark.table.ledger import READ_TIMEOUT_SECONDS  # noqa: PLC0415
    from kafka_liveness_dagster.spark.table.table import IcebergTable, describe_table  # noqa: PLC0415 - pyspark stays lazy

    seconds = asset.max_in_flight * budget_seconds + READ_TIMEOUT_SECONDS
    return partial(describe_table, spark.session(), IcebergTable(asset.table), seconds)


_MAX_REPLANS = 3
"""So often in a row, with nothing committed in between.

A broker that deletes what is read may do it again.
"""


@dataclass(frozen=True)
class Pipeline:
    """Kafka, a transform from the DataFrame of a batch to the rows to keep, and a table or sink.

    A sink is the user's own.

    Attributes:
        table: ``catalog.namespace.table`` of the Iceberg table; empty where ``sink`` is called with each
            batch.
        max_records: at most so many offsets in a batch; ``is_auto_sized``: their number follows what they
            take.
        liveness: with ``progress`` every finished Spark task is a heartbeat of the batch.
        on_slow_record: an offset that is too slow alone ends the run (``raise``) or is quarantined.
        max_in_flight: the largest number of batches that are written to the table at the same time.
        ledger: which offsets the target has; None for a sink without a ledger.
        layout: how the table is laid out and committed to.
        max_bytes: what a batch's records may weigh, as far as those before it tell.
        source_options: of Spark's Kafka source, beside those of the Kafka resource.
        dead_letters: what becomes of records that fail alone; None: they end the run.
        late_records: tells records of windows that were told complete; None where no windows are.
        metrics: told each batch that has ended.
    """

    kafka: KafkaLivenessResource
    spark: SparkConnectResource
    transform: Transform
    _: KW_ONLY
    table: str
    sink: Sink | None
    max_records: int
    is_auto_sized: bool
    liveness: Literal["poll", "progress"]
    on_slow_record: Literal["raise", "quarantine"]
    max_in_flight: int
    ledger: LaneLedger | None = None
    layout: TableLayout = DEFAULT_LAYOUT
    max_bytes: int | None = None
    source_options: Mapping[str, str] = field(default_factory=dict)
    dead_letters: DeadLetterHandler | None = None
    late_records: LateRecords | None = None
    metrics: BatchMetrics = field(default_factory=BatchMetrics)

    @classmethod
    def from_asset(
        cls,
        asset: KafkaAssetSettings,
        context: dg.AssetExecutionContext,
        transform: Transform,
        lane: Literal["live", "catch-up"],
        reprocess: Sequence[OffsetRange] = (),
    ) -> Pipeline:
        """The asset's pipeline with the resources of this run.

        Reprocessed records were in time when they were new.
        """
        kafka: KafkaLivenessResource = getattr(context.resources, asset.resources.kafka)
        spark: SparkConnectResource = getattr(context.resources, asset.resources.spark)
        budget = budget_of(context, argument=None, default=kafka.default_max_batch_seconds)
        late_records = None
        if asset.windows:
            late_records = LateRecords(
                context, asset.windows, asset.group_id, again=reprocess, recovery_seconds=budget.seconds
            )
        return cls(
            kafka,
            spark,
            transform,
            table=asset.table or "",
            sink=asset.sink,
            max_records=asset.max_records,
            is_auto_sized=asset.max_poll_records == "auto",
            liveness=asset.membership.liveness,
            on_slow_record=asset.batching.on_slow_record,
            max_in_flight=asset.max_in_flight,
            ledger=ledger_for(asset, spark, budget.seconds),
            layout=asset.layout,
            max_bytes=asset.batching.max_batch_bytes,
            source_options=asset.source_options,
            late_records=late_records,
            dead_letters=DeadLetterHandler.from_asset(asset, context),
            metrics=BatchMetrics(asset.group_id, lane, context.run.run_id),
        )

    def run(
        self, lane: Lane, next_batch: BatchSource, log: Logger, on_skipped: OnSkipped, counter: BatchCounter
    ) -> None:
        """Process and commit every batch.

        One that is too slow, or was lost to another member, is retried, or becomes pending.

        Args:
            lane: where the batches are committed.
            next_batch: gives a batch of at most so many offsets, None at the end.
            log: the run's.
            on_skipped: told offsets that were passed, and why.
            counter: told each batch that is committed.

        Raises:
            FencedError: this process is finished with the group; Spark was cancelled.
            SlowRecordError: an offset is too slow in a batch of its own.
            BadRecordError: too many records fail alone.
            KafkaLivenessError: Kafka, Spark or the table refused; what is not committed is retried, or
                pending.
        """
        from kafka_liveness_dagster.kafka.errors import FencedError  # noqa: PLC0415 - confluent_kafka stays lazy

        sizer = BatchSizer(self.max_records, self.is_auto_sized, self.max_bytes)
        planned_again = 0
        with (
            BatchLog(log) as lines,
            InFlightWrites() as in_flight,
            self._watch_throttling(in_flight, log) as throttling,
        ):

            def commit_first() -> None:
                one = in_flight[0]
                with self.metrics.trace(one):
                    seconds = self._commit_oldest(
                        in_flight, lane, counter, lines=lines, on_skipped=on_skipped
                    )
                sizer.record_success(one.batch, seconds, one.mean_bytes)

            lane.on_fence(lambda: in_flight.cancel_fenced(lane.is_batch_current))
            lane.on_recovered(self._recover)
            lane.before_revoke(lambda may_wait: in_flight.commit_finished(may_wait, commit_first))
            while self._fill(in_flight, next_batch, lane, sizer=sizer, lines=lines):
                batch = in_flight[0].batch
                try:
                    commit_first()
                except FencedError as fenced:
                    alone = len(in_flight) == 1
                    in_flight.abandon(batch.membership_epoch)
                    if not fenced.reason.may_rejoin:
                        raise
                    timed_out = fenced.reason is FenceReason.POLL_TIMEOUT
                    if timed_out and (poison := sizer.record_timeout(batch, alone=alone)) is not None:
                        on_skipped(
                            poison, self._skip_slow_record(poison, batch, lane, fenced=fenced), SLOW_RECORD
                        )
                    smaller = f". The next batch has at most {sizer.bound:,} offsets" if timed_out else ""
                    why = throttling.describe_for(batch) if timed_out else ""
                    log.warning("%s: %s%s%s", batch, fenced, smaller, f". {why}" if why else "")
                except KafkaSourceError as gone:
                    planned_again += 1
                    if not gone.is_lost or planned_again > _MAX_REPLANS:
                        raise
                    in_flight.abandon()
                    lane.replan()  # the next poll names what the broker has lost, or passes it
                    log.warning("%s: %s. It is planned again", batch, gone)
                else:
                    planned_again = 0

    def _watch_throttling(self, in_flight: InFlightWrites, log: Logger) -> ThrottlingWatch:
        of = self.metrics
        return ThrottlingWatch(self._throttle_seconds, in_flight, group_id=of.group_id, lane=of.lane, log=log)

    def _throttle_seconds(self, tp: TopicPartition) -> float:
        """Return the seconds by which a quota delays a fetch of this login now."""
        from kafka_liveness_dagster.kafka.quotas import measure_throttle_seconds  # noqa: PLC0415 - stays lazy

        return measure_throttle_seconds(self.kafka.settings(), tp)

    def _recover(self, ranges: Sequence[OffsetRange], deleted: Sequence[OffsetRange]) -> None:
        """Repeat what a dead run may have skipped after it wrote these ranges: late records and metrics."""
        if self.late_records is not None:
            self.late_records.report_recovered(self._transformed_batch(ranges), deleted)
        self.metrics.record_processed((*ranges, *deleted))

    def _fill(
        self,
        in_flight: InFlightWrites,
        next_batch: BatchSource,
        lane: Lane,
        sizer: BatchSizer,
        lines: BatchLog,
    ) -> bool:
        """Begin as many batches as may be in flight; False when there is none, and none comes."""
        # A batch that may be too slow shares Spark with nobody
        most = 1 if sizer.retry_alone else self.max_in_flight
        while len(in_flight) < most and not any(one.has_failed for one in in_flight):
            ahead = bool(in_flight)
            try:
                batch = next_batch(sizer.bound, ahead=ahead)
            except Exception as error:
                if not in_flight:
                    raise
                # Logged again when what is in flight is committed
                lines.log.warning("no batch was planned ahead: %s", error)
                break
            if batch is None and ahead and not in_flight:
                continue  # a rebalance has committed the batch in flight: this one is ahead of nothing
            if batch is None:
                break
            failpoint(Failpoint.AFTER_PLAN)
            in_flight.append(self._new_write(batch, lane, lines.log))
            in_flight[-1].phases.add_before("poll", batch.planning_seconds)
            if self.max_in_flight > 1:
                in_flight[-1].begin()
        return bool(in_flight)

    def _commit_oldest(
        self,
        in_flight: InFlightWrites,
        lane: Lane,
        tally: BatchCounter,
        lines: BatchLog,
        on_skipped: OnSkipped,
    ) -> float:
        """Wait for the oldest to be in the table, then commit its offsets; gives the seconds it took."""
        one = in_flight[0]
        try:
            landed = self._finish_write(one, lane)
        except SparkNotRespondingError:
            raise  # says more than the fence after which it was given up
        except Exception:
            # What was cancelled by the fence failed because of it, though we may be back
            lane.check_batch(one.batch)
            raise
        until = self.late_records.report(one, landed.batch) if self.late_records else 0.0
        with one.phases("commit"):
            handed_over = lane.commit(landed.batch)
        failpoint(Failpoint.AFTER_OFFSET_COMMIT)
        seconds = in_flight.pop_committed()
        tally.add(landed.batch, landed.written.rows, seconds)
        lines.log_committed(landed.batch, landed.written, seconds, handed_over=handed_over)
        self.metrics.record_committed(one, landed, seconds, handed_over=handed_over)
        for left_out in landed.skipped(handed_over):
            on_skipped(*left_out)
        if self.late_records:
            self.late_records.report_after_commit(one, landed.batch, until)
        return seconds

    def _finish_write(self, one: InFlightWrite, lane: Lane) -> WriteOutcome:
        """Wait for a batch to be in the table, without its bad records if there are some."""
        try:
            return WriteOutcome(one.finish() if self.max_in_flight > 1 else one.run(), one.batch)
        except (TransformError, SparkFailedError) as failed:
            if self.dead_letters is None:
                raise
            with one.phases("dead letters"):
                return self.dead_letters.write_without_bad_records(one, lane, failed)

    def _skip_slow_record(self, poison: OffsetRange, batch: Batch, lane: Lane, fenced: Exception) -> str:
        """Let the lane pass an offset, and say so; or end the run."""
        if self.on_slow_record == "raise":
            outcome = (
                "Nothing of it was committed; Batching(on_slow_record='quarantine') would let the others pass"
            )
            raise SlowRecordError([poison], batch.deadline_seconds, outcome) from fenced
        lane.quarantine(poison)
        return str(SlowRecordError([poison], batch.deadline_seconds, "It stays pending, the others go on"))

    def _new_write(self, batch: Batch, lane: Lane, log: Logger) -> InFlightWrite:
        from kafka_liveness_dagster.spark.connect.job import SparkJob  # noqa: PLC0415
        from kafka_liveness_dagster.spark.sink import SinkWrite  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.table import IcebergTable  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.write import TableWrite  # noqa: PLC0415 - pyspark stays lazy

        frame = self._transformed_batch(batch.ranges)
        session = frame.session
        job = SparkJob(session, *progress_listeners(batch, lane, log, liveness=self.liveness))

        def may_go_on() -> None:
            lane.check()
            job.check()

        def may_replace() -> None:
            lane.confirm(batch)
            job.check()

        if self.sink is not None:
            return InFlightWrite(
                batch,
                job,
                SinkWrite(self.sink, batch.ranges, frame, may_go_on=may_replace, ledger=self.ledger),
                frame=frame,
            )
        writing = TableWrite(
            session,
            IcebergTable(self.table),
            batch.ranges,
            make_frame=frame,
            may_go_on=may_go_on,
            may_replace=may_replace,
            ledger=self.ledger,
            layout=self.layout,
        )
        return InFlightWrite(batch, job, writing, frame=frame)

    def _transformed_batch(self, ranges: Sequence[OffsetRange]) -> TransformedBatch:
        from kafka_liveness_dagster.spark.transform import TransformedBatch  # noqa: PLC0415 - pyspark stays lazy

        session = self.spark.session()
        options = {**self.kafka.settings().spark_options(), **self.source_options}
        passed = (dg.Failure, dg.RetryRequested)  # a transform may end its run as any op
        return TransformedBatch(
            self.transform,
            session,
            tuple(ranges),
            options=options,
            passthrough_errors=passed,
            measures_bytes=self.max_bytes is not None,
            measures_oldest=self.late_records is not None,
        )
