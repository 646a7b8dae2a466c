"""Keep the few records by which a batch fails as dead letters, and write the others.

Dead letters are pending. Letters first, then the table, and then, by the lane, the commit: whichever of them
is the last one that happened, the same batch comes again and replaces what is there. Never commits an offset.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from kafka_liveness_dagster.core.bad_records import BadRecordError, bisect_failing_offsets
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
    """A batch that is in the table, but for what it leaves out.

    ``reasons`` says of each such offset why it fails.
    """

    written: WriteResult
    batch: Batch
    reasons: Mapping[OffsetRange, str] = {}
    dead_letter_table: str = ""

    def skipped(self, handed_over: Collection[TopicPartition]) -> Iterator[tuple[OffsetRange, str, str]]:
        """What is pending from now on, neighbours together: what to say of it, and the cause in short.

        Args:
            handed_over: partitions that are another's by now: it does all of the batch again.
        """
        outcome = "A dead letter from now on; the others go on"  # pending, or with former rows
        for part in merge_ranges(self.reasons):
            if part.topic_partition not in handed_over:
                bad = [one for one in self.reasons if one.overlaps(part)]
                yield (
                    part,
                    str(
                        BadRecordError(
                            bad, self.reasons[bad[0]], f"{outcome}; the record is in {self.dead_letter_table}"
                        )
                    ),
                    BAD_RECORD,
                )


@dataclass(frozen=True)
class DeadLetterHandler:
    """How one run of an asset deals with records that fail alone.

    Attributes:
        max_dead_letters: so many in one batch are the records' fault, more are the transform's.
        run: the id of Dagster's run.
    """

    max_dead_letters: int
    run: str

    @classmethod
    def from_asset(
        cls, asset: KafkaAssetSettings, context: dg.AssetExecutionContext
    ) -> DeadLetterHandler | None:
        """Those of this run; None where such a record ends it."""
        batching = asset.batching
        return (
            cls(batching.max_dead_letters, context.run.run_id)
            if batching.on_bad_record == "dead_letter"
            else None
        )

    def write_without_bad_records(self, one: InFlightWrite, lane: Lane, failed: Exception) -> WriteOutcome:
        """Find the records by which a batch failed, keep them as letters, and write the others.

        Args:
            one: the batch, whose Spark work has ended.
            lane: is asked between any two steps whether this process may go on.
            failed: how it failed.

        Raises:
            Exception: ``failed`` itself, when no single record is to blame for it.
            BadRecordError: there are too many, for one batch or for a commit. Nothing was written.
            FencedError: the batch is not this process's any more, or took too long.
            KafkaLivenessError: letters or rows could not be written.
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
            raise failed  # what the brokers or the table's keepers refuse is no record's fault
        frame = write.make_frame
        ranges = one.batch.ranges
        with one.job:
            letters = DeadLetterTable.of_table(write.session, write.table.name)
            most = self.max_dead_letters + letters.count(ranges)
            why = _find_failing_offsets(write, frame, ranges, max_offsets=most)
            if not why:
                raise failed
            if len(why) > most:
                raise self._too_many_error(one.batch, why) from failed
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

    def _too_many_error(self, batch: Batch, why: Mapping[OffsetRange, str]) -> BadRecordError:
        outcome = (
            f"More than max_dead_letters={self.max_dead_letters} of {batch}: that is the transform, or what "
            "it reads besides. Nothing of the batch was passed, written or committed, and it comes again: "
            "mend the transform, or raise max_dead_letters"
        )
        return BadRecordError(why, next(iter(why.values())), outcome)


def _find_failing_offsets(
    write: TableWrite, frame: TransformedBatch, ranges: Sequence[OffsetRange], max_offsets: int
) -> dict[OffsetRange, str]:
    """Which single offsets fail, and why; none where it fails without any record, too, or only as a whole."""
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
    """Remove the letters of processed records; those of pending or written off ones stay.

    Whether there can be letters is nobody's setting: it may have been another one when they were written.
    """
    from kafka_liveness_dagster.spark.connect.connection import connection_of  # noqa: PLC0415
    from kafka_liveness_dagster.spark.table.dead_letters import DeadLetterTable  # noqa: PLC0415 - pyspark stays lazy
    from kafka_liveness_dagster.spark.table.ledger import READ_TIMEOUT_SECONDS  # noqa: PLC0415

    session = spark.session()
    seconds = max(budget_seconds, READ_TIMEOUT_SECONDS)
    with connection_of(session).abort_after(
        seconds, f"dead letters of {table} were removed that are processed"
    ):
        DeadLetterTable.of_table(session, table).remove(done)
