"""Keep records that cannot be processed in a second table, next to the asset's own.

They are stored as in Kafka, with the error. A dead letter counts while its offset is pending. The two commit
logs record that, not this table. So a letter may be written before the commit, and removed after it. A letter
that a crash leaves behind is not pending, so ``pending`` does not return it. Never commits offsets.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 (the usual name)
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from kafka_liveness_dagster.core.bad_records import PendingDeadLetters
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.spark.error_classification import is_server_error, summarize
from kafka_liveness_dagster.spark.errors import SparkFailedError, TableSchemaError
from kafka_liveness_dagster.spark.source import read_ranges
from kafka_liveness_dagster.spark.table.schema_check import KEY_COLUMNS
from kafka_liveness_dagster.spark.table.table import IcebergTable
from kafka_liveness_dagster.spark.table.write import write_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

SUFFIX = "_dead_letters"
_RECORD_COLUMNS = ("key", "value", "headers", "timestamp")
_ERROR = ("error", "run_id")
_OFFSET = StructType().add("topic", StringType()).add("partition", IntegerType())
_ERRORS = (
    StructType([*_OFFSET]).add("offset", LongType()).add("error", StringType()).add("run_id", StringType())
)
_RANGES = StructType([*_OFFSET]).add("start", LongType()).add("end", LongType())
_NAMED = 5  # largest number of letters in a message


@dataclass(frozen=True)
class DeadLetterTable:
    """The dead letters of one table."""

    session: SparkSession
    table: IcebergTable

    @classmethod
    def of_table(cls, session: SparkSession, table: str) -> DeadLetterTable:
        """Return the dead letter table of ``catalog.namespace.table``; the first letter creates it."""
        return cls(session, IcebergTable(table + SUFFIX))

    def count(self, ranges: Sequence[OffsetRange]) -> int:
        """Return the number of letters of these offsets, pending or not."""
        with self._translated_errors():
            return self.table.count_rows(self.session, ranges) if self._exists() else 0

    def replace(
        self,
        ranges: Sequence[OffsetRange],
        errors: Mapping[OffsetRange, str],
        run: str,
        options: Mapping[str, str],
        *,
        may_go_on: Callable[[], None],
        may_replace: Callable[[], None],
    ) -> None:
        """Replace the letters of a batch by these, so that a repeated write changes nothing.

        Args:
            ranges: ranges of the batch.
            errors: error of each offset that fails.
            run: id of the Dagster run.
            options: options of Spark's Kafka source.
            may_go_on: called before each operation; raises if this process must not write any more.
            may_replace: called after the table's state is read; raises if another member owns the ranges now.

        Raises:
            TableSchemaError: the table with this name has no dead letters.
            KafkaLivenessError: as in ``write_table``.
        """
        with self._translated_errors():
            self._exists()
        rows = [(r.topic, r.partition, r.start, error, run) for r, error in errors.items()]

        def letters() -> DataFrame:
            records = read_ranges(self.session, ranges, {**options, "includeHeaders": "true"})
            why = F.broadcast(self.session.createDataFrame(rows, _ERRORS))
            return records.join(why, list(KEY_COLUMNS)).select(*KEY_COLUMNS, *_RECORD_COLUMNS, *_ERROR)

        write_table(
            self.session, self.table, ranges, make_frame=letters, may_go_on=may_go_on, may_replace=may_replace
        )

    def remove(self, ranges: Sequence[OffsetRange]) -> None:
        """Remove the letters of offsets that are processed now, if there are any."""
        if ranges and self.count(ranges):
            write_table(
                self.session,
                self.table,
                ranges,
                make_frame=lambda: self.session.table(self.table.quoted).where("false"),
            )

    def pending(self, ranges: Iterable[OffsetRange]) -> PendingDeadLetters:
        """Return the letters of these pending offsets."""
        told = [(r.topic, r.partition, r.start, r.end) for r in ranges]
        with self._translated_errors():
            if not told or not self._exists():
                return PendingDeadLetters()
            letters = self.session.table(self.table.quoted)
            pending = self.session.createDataFrame(told, _RANGES)
            is_owed = (letters["offset"] >= pending["start"]) & (letters["offset"] < pending["end"])
            same = (letters["topic"] == pending["topic"]) & (letters["partition"] == pending["partition"])
            found = letters.join(F.broadcast(pending), same & is_owed, "left_semi")
            first = (
                found.selectExpr(*KEY_COLUMNS, "error", "count(*) OVER () AS letters")
                .orderBy(*KEY_COLUMNS)
                .limit(_NAMED)
                .collect()
            )
        named = tuple(
            OffsetRange(row["topic"], row["partition"], row["offset"], end=row["offset"] + 1) for row in first
        )
        return (
            PendingDeadLetters(first[0]["letters"], named, first[0]["error"])
            if first
            else PendingDeadLetters()
        )

    def _exists(self) -> bool:
        """Return whether the table exists; raise if a table with other columns has its name."""
        shape = self.table.shape(self.session)
        if shape is not None and (
            lacks := [name for name in (*_RECORD_COLUMNS, *_ERROR) if name not in shape.columns.names]
        ):
            raise TableSchemaError(
                f"Table {self.table.name} is no table of dead letters: it lacks {', '.join(lacks)}. Nothing "
                "was written or committed. Fix: rename one of the tables, or set on_bad_record='raise'"
            )
        return shape is not None

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except PySparkException as error:
            if is_server_error(error):
                raise
            raise SparkFailedError(
                f"Dead letters in {self.table.name} could not be read ({summarize(error)}). Nothing was "
                "committed. Fix: remove the cause in this message; Spark's log has the whole error"
            ) from error
