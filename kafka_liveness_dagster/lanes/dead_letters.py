"""Keep the few records that make a batch fail as dead letters, and write the others.

Dead letters are pending. The order is dead letters, table, and then the lane's commit. After a crash between
any two of them the same batch is retried, and replaces both. Never commits an offset.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from kafka_liveness_dagster.core.bad_records import BadRecordError, bisect_failing_offsets, join_reasons
from kafka_liveness_dagster.core.sink_ledger import READ_TIMEOUT_SECONDS
from kafka_liveness_dagster.metadata import merge_ranges
from kafka_liveness_dagster.telemetry.metrics import BAD_RECORD

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import dagster as dg

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
    from kafka_liveness_dagster.lanes.in_flight import InFlightWrite
    from kafka_liveness_dagster.lanes.protocols import Lane
    from kafka_liveness_dagster.resources.spark import SparkConnectResource
    from kafka_liveness_dagster.settings.asset import KafkaAssetSettings
    from kafka_liveness_dagster.spark.table.write import TableWrite, WriteResult
    from kafka_liveness_dagster.spark.transform import TransformedBatch


class WriteOutcome(NamedTuple):
    """A batch that is in the table, without its skipped offsets.

    ``reasons`` has the error of each skipped offset.
    """

    written: WriteResult
    batch: Batch
    reasons: Mapping[OffsetRange, str] = {}
    dead_letter_table: str = ""

    def skipped(self, handed_over: Collection[TopicPartition]) -> Iterator[tuple[OffsetRange, str, str]]:
        """Yield the ranges that are pending from now on, each with a message and the cause in short.

        Adjacent offsets are one range.

        Args:
            handed_over: partitions that another member has now; it processes all of their batch again.
        """
        outcome = (
            "Recorded as a dead letter; the other records are processed; the record is",
            "Recorded as dead letters; the other records are processed; the records are",
        )
        for part in merge_ranges(self.reasons):
            if part.topic_partition not in handed_over:
                bad = [one for one in self.reasons if one.overlaps(part)]
                reasons = join_reasons(self.reasons[one] for one in bad)
                state = f"{outcome[len(bad) > 1]} in {self.dead_letter_table}"
                yield part, str(BadRecordError(bad, reasons, state)), BAD_RECORD


@dataclass(frozen=True)
class DeadLetterHandler:
    """The handling of records that fail alone, in one run of an asset.

    Attributes:
        max_dead_letters: largest number in one batch; with more the transform is considered the cause.
        run: id of the Dagster run.
    """

    max_dead_letters: int
    run: str

    @classmethod
    def from_asset(
        cls, asset: KafkaAssetSettings, context: dg.AssetExecutionContext
    ) -> DeadLetterHandler | None:
        """Return the handler of this run; None if a bad record ends the run."""
        batching = asset.batching
        return (
            cls(batching.max_dead_letters, context.run.run_id)
            if batching.on_bad_record == "dead_letter"
            else None
        )

    def write_without_bad_records(self, one: InFlightWrite, lane: Lane, failed: Exception) -> WriteOutcome:
        """Find the records that fail a batch, keep them as dead letters, and write the others.

        Args:
            one: batch whose Spark work has ended.
            lane: checks between any two steps whether this process may continue.
            failed: error of the batch.

        Raises:
            Exception: ``failed`` itself, if no single record is the cause.
            BadRecordError: there are too many for one batch or for a commit. Nothing was written.
            FencedError: this process may not commit the batch any more, or it took too long.
            KafkaLivenessError: dead letters or rows could not be written.
        """
        from kafka_liveness_dagster.spark.errors import KafkaSourceError, StorageError  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.dead_letters import DeadLetterTable  # noqa: PLC0415 - pyspark stays lazy
        from kafka_liveness_dagster.spark.table.write import TableWrite, WriteResult  # noqa: PLC0415
        from kafka_liveness_dagster.spark.transform import TransformedBatch  # noqa: PLC0415

        lane.check_batch(one.batch)
        write = one.write
        if not (isinstance(write, TableWrite) and isinstance(write.make_frame, TransformedBatch)):
            raise failed
        if isinstance(failed, (KafkaSourceError, StorageError)):
            raise failed  # a refusal by brokers, catalog or storage is not caused by a record
        frame = write.make_frame
        ranges = one.batch.ranges
        with one.job:
            letters = DeadLetterTable.of_table(write.session, write.table.name)
            most = self.max_dead_letters + letters.count(ranges)
            why = find_failing_offsets(write, frame, ranges, max_offsets=most)
            if not why:
                raise failed
            if len(why) > most:
                raise self.too_many_error(one.batch, why) from failed
            batch = replace(one.batch, skipped=tuple(why))
            lane.require_room(batch)
            may = {"may_go_on": write.may_go_on, "may_replace": write.may_replace}
            letters.replace(ranges, why, self.run, frame.options, **may)
            if not batch.processed:
                return WriteOutcome(
                    WriteResult(0, 1, rewrote_files=False), batch, why, dead_letter_table=letters.table.name
                )
            rest = replace(write, ranges=batch.processed, make_frame=frame.for_ranges(batch.processed))
            return WriteOutcome(
                rest.execute_with_retries(rest.prepare()), batch, why, dead_letter_table=letters.table.name
            )

    def too_many_error(self, batch: Batch, why: Mapping[OffsetRange, str]) -> BadRecordError:
        """Return the error for more records that fail alone than ``max_dead_letters``."""
        outcome = (
            f"More than max_dead_letters={self.max_dead_letters} of {batch}: the cause is the "
            "transform, or what it reads. Nothing of the batch was skipped, written or committed; it is "
            "retried. Fix: correct the transform, or raise max_dead_letters"
        )
        return BadRecordError(why, join_reasons(why.values()), outcome)


def find_failing_offsets(
    write: TableWrite, frame: TransformedBatch, ranges: Sequence[OffsetRange], max_offsets: int
) -> dict[OffsetRange, str]:
    """Return the offsets that fail alone, with their errors.

    Empty if the batch also fails without records, or only as a whole.
    """
    from kafka_liveness_dagster.spark.errors import SparkFailedError, TransformError  # noqa: PLC0415

    why: dict[OffsetRange, str] = {}

    def fails(part: Sequence[OffsetRange]) -> bool:
        write.may_go_on()
        said = frame.failure_of(part)
        if said and sum(r.size for r in part) == 1:
            why[part[0]] = said
        return bool(said)

    write.may_go_on()
    try:
        frame.on_empty_batch()
    except (TransformError, SparkFailedError):
        return {}
    return {one: why[one] for one in bisect_failing_offsets(ranges, fails, max_offsets)}


def remove_processed(
    spark: SparkConnectResource, table: str, done: Sequence[OffsetRange], budget_seconds: float
) -> None:
    """Remove the dead letters of processed records; those of pending or written-off records stay.

    The current setting does not matter, because it may have been another one when they were written.
    """
    from kafka_liveness_dagster.spark.connect.connection import connection_of  # noqa: PLC0415
    from kafka_liveness_dagster.spark.table.dead_letters import DeadLetterTable  # noqa: PLC0415 - pyspark stays lazy

    session = spark.session()
    seconds = max(budget_seconds, READ_TIMEOUT_SECONDS)
    with connection_of(session).abort_after(
        seconds, f"waiting for the removal of processed dead letters of {table}"
    ):
        DeadLetterTable.of_table(session, table).remove(done)
