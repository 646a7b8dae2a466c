"""What becomes of a batch that fails because of a few of its records? They are kept and owed, the others are written.

Letters first, then the table, and then, by the lane, the commit: whichever of them is the last one that happened, the
same batch comes again and replaces what is there. Never commits an offset.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from kafka_liveness_dagster.core.bad_records import BadRecordError, failing_alone
from kafka_liveness_dagster.metadata import merged
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
    from kafka_liveness_dagster.spark.table.write import TableWrite, Written
    from kafka_liveness_dagster.spark.transform import Transformed


class Landed(NamedTuple):
    """A batch that is in the table, but for what it leaves out; ``why`` says of each such offset why it fails."""

    written: Written
    batch: Batch
    why: Mapping[OffsetRange, str] = {}
    kept_in: str = ""

    def left_out(self, handed_over: Collection[TopicPartition]) -> Iterator[tuple[OffsetRange, str, str]]:
        """What is owed from now on, neighbours together: what to say of it, and the cause in short.

        Args:
            handed_over: partitions that are another's by now: it does all of the batch again.
        """
        outcome = "A dead letter from now on; the others go on"  # owed, or a replay's, whose former rows stay
        for part in merged(self.why):
            if part.topic_partition not in handed_over:
                bad = [one for one in self.why if one.overlaps(part)]
                yield (
                    part,
                    str(BadRecordError(bad, self.why[bad[0]], f"{outcome}; the record is in {self.kept_in}")),
                    BAD_RECORD,
                )


@dataclass(frozen=True)
class DeadLetters:
    """How one run of an asset deals with records that fail alone.

    Attributes:
        most: so many in one batch are the records' fault, more are the transform's.
        run: the id of Dagster's run.
    """

    most: int
    run: str

    @classmethod
    def of(cls, asset: KafkaAssetSettings, context: dg.AssetExecutionContext) -> DeadLetters | None:
        """Those of this run; None where such a record ends it."""
        batching = asset.batching
        return cls(batching.max_dead_letters, context.run.run_id) if batching.on_bad_record == "dead_letter" else None

    def without_bad_records(self, one: InFlightWrite, lane: Lane, failed: Exception) -> Landed:
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
        from kafka_liveness_dagster.spark.table.write import TableWrite, Written  # noqa: PLC0415
        from kafka_liveness_dagster.spark.transform import Transformed  # noqa: PLC0415

        lane.check_open(one.batch)
        write = one.write
        if not (isinstance(write, TableWrite) and isinstance(write.make_frame, Transformed)):
            raise failed
        if isinstance(failed, (KafkaSourceError, StorageError)):
            raise failed  # what the brokers or the table's keepers refuse is no record's fault
        frame, ranges = write.make_frame, one.batch.ranges
        with one.job:
            letters = DeadLetterTable.beside(write.session, write.table.name)
            most = self.most + letters.count(ranges)
            why = _why(write, frame, ranges, most)
            if not why:
                raise failed
            if len(why) > most:
                raise self._too_many(one.batch, why) from failed
            batch = replace(one.batch, left_out=tuple(why))
            lane.check_room(batch)
            may = {"may_go_on": write.may_go_on, "may_replace": write.may_replace}
            letters.keep(ranges, why, self.run, frame.options, **may)
            if not batch.done:
                return Landed(Written(0, 1, rewritten=False), batch, why, letters.table.name)
            rest = replace(write, ranges=batch.done, make_frame=frame.only(batch.done))
            return Landed(rest.finish(rest.begin()), batch, why, letters.table.name)

    def _too_many(self, batch: Batch, why: Mapping[OffsetRange, str]) -> BadRecordError:
        outcome = (
            f"More than max_dead_letters={self.most} of {batch}: that is the transform, or what it reads besides. "
            "Nothing of the batch was passed, written or committed, and it comes again: mend the transform, or raise "
            "max_dead_letters"
        )
        return BadRecordError(why, next(iter(why.values())), outcome)


def _why(write: TableWrite, frame: Transformed, ranges: Sequence[OffsetRange], most: int) -> dict[OffsetRange, str]:
    """Which single offsets fail, and why; none where it fails without any record, too, or only as a whole."""
    from kafka_liveness_dagster.spark.errors import SparkFailedError, TransformError  # noqa: PLC0415

    why: dict[OffsetRange, str] = {}

    def fails(part: Sequence[OffsetRange]) -> bool:
        write.may_go_on()
        said = frame.failure(part)
        if said and sum(r.size for r in part) == 1:
            why[part[0]] = said
        return bool(said)

    write.may_go_on()
    try:
        frame.of_nothing()
    except (TransformError, SparkFailedError):
        return {}
    return {one: why[one] for one in failing_alone(ranges, fails, most)}


def remove_processed(
    spark: SparkConnectResource, table: str, done: Sequence[OffsetRange], budget_seconds: float
) -> None:
    """Remove the letters of what is processed by now; those of what was forgiven, or is still owed, stay.

    Whether there can be letters is nobody's setting: it may have been another one when they were written.
    """
    from kafka_liveness_dagster.spark.connect.connection import line_of  # noqa: PLC0415
    from kafka_liveness_dagster.spark.table.dead_letters import DeadLetterTable  # noqa: PLC0415 - pyspark stays lazy
    from kafka_liveness_dagster.spark.table.ledger import ANSWER_SECONDS  # noqa: PLC0415

    session, seconds = spark.session(), max(budget_seconds, ANSWER_SECONDS)
    with line_of(session).within(seconds, f"dead letters of {table} were removed that are processed"):
        DeadLetterTable.beside(session, table).remove(done)
