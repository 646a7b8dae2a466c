"""Take a batch from a lane through Spark into the table, and only then into the commit log.

Both lanes use the same steps: read exactly the batch, transform, replace its range in the table, commit its
offsets. After a crash between any two steps the batch is retried, and replaces its rows. A batch that is too
slow is retried at half its size. With enough data two batches are in flight, committed in order. Never
commits an offset before its rows.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

import dagster as dg

from kafka_liveness_dagster.concurrency import run_in_daemon_thread
from kafka_liveness_dagster.core.batch_size import BatchSizer, SlowRecordError
from kafka_liveness_dagster.core.fencing import FenceReason
from kafka_liveness_dagster.core.sink_ledger import READ_TIMEOUT_SECONDS, LaneLedger
from kafka_liveness_dagster.core.table_layout import DEFAULT_LAYOUT, TableLayout
from kafka_liveness_dagster.failpoints import Failpoint, failpoint
from kafka_liveness_dagster.lanes.batch_reporting import BatchLog, BatchMetrics, progress_listeners
from kafka_liveness_dagster.lanes.dead_letters import DeadLetterHandler, WriteOutcome
from kafka_liveness_dagster.lanes.decoder_warnings import DecoderWarnings
from kafka_liveness_dagster.lanes.in_flight import InFlightWrite, InFlightWrites
from kafka_liveness_dagster.lanes.late_records import LateRecords
from kafka_liveness_dagster.lanes.quotas import ThrottlingWatch
from kafka_liveness_dagster.lanes.small_batches import SmallBatches
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

    from pyspark.sql import DataFrame

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
    from kafka_liveness_dagster.core.record_reader import KafkaRecord
    from kafka_liveness_dagster.lanes.protocols import BatchCounter, BatchSource, Lane, OnSkipped, Transform
    from kafka_liveness_dagster.resources.kafka import KafkaLivenessResource
    from kafka_liveness_dagster.resources.spark import SparkConnectResource
    from kafka_liveness_dagster.settings.asset import KafkaAssetSettings
    from kafka_liveness_dagster.spark.sink import Sink
    from kafka_liveness_dagster.spark.table.ledger import TableLedger
    from kafka_liveness_dagster.spark.table.table import TableInfo
    from kafka_liveness_dagster.spark.transform import TransformedBatch


def ledger_for(
    asset: KafkaAssetSettings, spark: SparkConnectResource, budget_seconds: float
) -> LaneLedger | None:
    """Return the ledger of the table, or of a sink that has one, for one lane.

    A read takes at most the time of a batch.
    """
    if asset.sink is not None:
        adapter = SinkLedgerAdapter.from_sink(asset.sink, asset.group_id)
        if adapter is None:
            return None

        def open_adapter() -> SinkLedgerAdapter:
            spark.session()  # before the sink's own code, which may import PySpark
            return adapter

        return LaneLedger(adapter.target, open_adapter)
    target = asset.table or ""

    def open_ledger() -> TableLedger:
        session = spark.session()  # before the first import of PySpark
        from kafka_liveness_dagster.spark.table.ledger import TableLedger  # noqa: PLC0415 - pyspark stays lazy
        from kafka_liveness_dagster.spark.table.table import IcebergTable  # noqa: PLC0415

        table = IcebergTable(target)
        # While the ledger is read, so that the first batch finds it kept; that batch has the error, if any
        run_in_daemon_thread(partial(table.writable_shape, session), "kafka-liveness-table")
        return TableLedger(
            table,
            lambda: spark.session(),  # noqa: PLW0108 - when it is needed
            table_timeout_seconds(budget_seconds),
            group_id=asset.group_id,
        )

    return LaneLedger(target, open_ledger)


def table_timeout_seconds(budget_seconds: float) -> float:
    """Return the longest time of a read of the table's state.

    It is the time of a batch, with a minimum, because that may be too short for any query.
    """
    return max(budget_seconds, READ_TIMEOUT_SECONDS)


def table_info_reader(
    asset: KafkaAssetSettings, spark: SparkConnectResource, budget_seconds: float
) -> Callable[[], TableInfo | None]:
    """Return a function that reads, in any thread, the table as its readers see it.

    It returns None for a custom sink. Spark may work on batches meanwhile, so each of them may take its whole
    time before there is a response.
    """
    if asset.table is None:
        return lambda: None
    from kafka_liveness_dagster.spark.table.table import IcebergTable, describe_table  # noqa: PLC0415 - pyspark stays lazy

    seconds = asset.max_in_flight * budget_seconds + READ_TIMEOUT_SECONDS
    return partial(describe_table, spark.session(), IcebergTable(asset.table), seconds)


_MAX_REPLANS = 3
"""Largest number of replans in a row without a commit.

A broker that deletes records while they are read may do it again.
"""


@dataclass(frozen=True)
class Pipeline:
    """Kafka, a transform from the DataFrame of a batch to the rows to keep, and a table or custom sink.

    Attributes:
        table: ``catalog.namespace.table`` of the Iceberg table; empty if ``sink`` is called with each batch.
        max_records: largest number of offsets in a batch; ``is_auto_sized``: whether their number follows the
            time of batches.
        liveness: with ``progress`` every finished Spark task is a heartbeat of the batch.
        on_slow_record: whether an offset that is too slow alone ends the run (``raise``) or is quarantined.
        max_in_flight: largest number of batches that are written to the table at the same time.
        ledger: ledger of the target's offsets; None for a sink without a ledger.
        layout: layout of the table, and how batches are committed to it.
        max_bytes: largest size of a batch's records, estimated from earlier batches.
        source_options: options of Spark's Kafka source, in addition to those of the Kafka resource.
        dead_letters: handler of records that fail alone; None if they end the run.
        late_records: reports records of windows that were marked complete; None without windows.
        metrics: metrics of finished batches.
        decoder_warnings: warns in the run's log if the transform turns bad values into NULLs.
        small_batches: reads small batches in the run.
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
    decoder_warnings: DecoderWarnings = field(default_factory=DecoderWarnings)
    small_batches: SmallBatches = field(default_factory=SmallBatches)

    @classmethod
    def from_asset(
        cls,
        asset: KafkaAssetSettings,
        context: dg.AssetExecutionContext,
        transform: Transform,
        lane: Literal["live", "catch-up"],
        reprocess: Sequence[OffsetRange] = (),
    ) -> Pipeline:
        """Return the asset's pipeline with the resources of this run.

        Records in ``reprocess`` do not count as late, because they were in time when they were new.
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

        A batch that is too slow, or was lost to another member, is retried, or becomes pending.

        Args:
            lane: lane that commits the batches.
            next_batch: returns a batch of at most the given number of offsets; None at the end.
            log: log of the run.
            on_skipped: called with offsets that were passed, and the reason.
            counter: counts each committed batch.

        Raises:
            FencedError: this process may not rejoin the group; Spark was canceled.
            SlowRecordError: an offset is too slow in a batch of its own.
            BadRecordError: too many records fail alone.
            KafkaLivenessError: Kafka, Spark or the table refused; uncommitted ranges are retried, or pending.
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
                self.small_batches.last_seconds = seconds

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
                    if timed_out:
                        self.small_batches.last_seconds = batch.deadline_seconds
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
                    lane.replan()  # the next poll raises for offsets that the broker lost, or passes them
                    log.warning("%s: %s. Planning it again", batch, gone)
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
        """Repeat the side effects that a dead writer of these ranges may lack: late records and metrics."""
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
        """Begin as many batches as may be in flight; return False if there is none and none comes."""
        # A batch that may be too slow has Spark alone: else another batch could be the cause
        most = 1 if sizer.retry_alone else self.max_in_flight
        while len(in_flight) < most and not any(one.has_failed for one in in_flight):
            ahead = bool(in_flight)
            try:
                batch = next_batch(sizer.bound, ahead=ahead)
            except Exception as error:
                if not in_flight:
                    raise
                # If the error persists, it is raised when no batch is in flight any more
                lines.log.warning("Planned no batch ahead: %s", error)
                break
            if batch is None and ahead and not in_flight:
                continue  # a rebalance has committed the batch in flight, so poll again without ahead
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
        """Wait until the oldest batch is in the table, then commit its offsets; return the seconds."""
        one = in_flight[0]
        try:
            landed = self._finish_write(one, lane)
        except SparkNotRespondingError:
            raise  # more specific than the fence that made it give up
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
        """Wait until a batch is in the table, without its bad records if it has some."""
        try:
            return WriteOutcome(one.finish() if self.max_in_flight > 1 else one.run(), one.batch)
        except (TransformError, SparkFailedError) as failed:
            if self.dead_letters is None:
                raise
            with one.phases("dead letters"):
                return self.dead_letters.write_without_bad_records(one, lane, failed)

    def _skip_slow_record(self, poison: OffsetRange, batch: Batch, lane: Lane, fenced: Exception) -> str:
        """Quarantine an offset and return the message, or end the run."""
        if self.on_slow_record == "raise":
            outcome = (
                "Nothing of it was committed. Batching(on_slow_record='quarantine') would quarantine "
                "the offset and process the others"
            )
            raise SlowRecordError([poison], batch.deadline_seconds, outcome) from fenced
        lane.quarantine(poison)
        return str(
            SlowRecordError(
                [poison],
                batch.deadline_seconds,
                "It is quarantined and stays pending; the others are processed",
            )
        )

    def _new_write(self, batch: Batch, lane: Lane, log: Logger) -> InFlightWrite:
        from kafka_liveness_dagster.spark.connect.job import SparkJob  # noqa: PLC0415
        from kafka_liveness_dagster.spark.sink import SinkWrite  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.table import IcebergTable  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.write import TableWrite  # noqa: PLC0415 - pyspark stays lazy

        frame = self._transformed_batch(
            batch.ranges,
            on_rows=partial(self.decoder_warnings.log_once, log),
            read_in_run=self.small_batches.read(lane, batch),
            is_slow=self.small_batches.are_slow,
        )
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

    def _transformed_batch(
        self,
        ranges: Sequence[OffsetRange],
        *,
        on_rows: Callable[[DataFrame], None] = lambda _: None,
        read_in_run: Callable[[], Sequence[KafkaRecord] | None] = lambda: None,
        is_slow: bool = False,
    ) -> TransformedBatch:
        from kafka_liveness_dagster.spark.transform import TransformedBatch  # noqa: PLC0415 - pyspark stays lazy

        session = self.spark.session()
        options = {**self.kafka.settings().spark_options(), **self.source_options}
        passed = (dg.Failure, dg.RetryRequested)  # a transform may end its run by these, like any op
        return TransformedBatch(
            self.transform,
            session,
            tuple(ranges),
            options=options,
            passthrough_errors=passed,
            measures_bytes=self.max_bytes is not None,
            measures_oldest=self.late_records is not None,
            on_rows=on_rows,
            read_in_run=read_in_run,
            is_slow=is_slow,
        )
