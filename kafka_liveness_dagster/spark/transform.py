"""What does the user's transform make of a batch? Rows, or an error that says whose it is.

Called in the run's thread, once for each attempt at a batch. Reads nothing by itself, unless a record has to be found
that Spark cannot read.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

from kafka_liveness_dagster.core.bad_records import halves
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.hidden_values import is_asked, kind_of
from kafka_liveness_dagster.core.names import listed
from kafka_liveness_dagster.spark.connect.connection import line_of
from kafka_liveness_dagster.spark.connect.session import active
from kafka_liveness_dagster.spark.error_classification import (
    in_short,
    is_gone,
    is_of_source,
    is_the_servers,
    is_timestamp,
    is_unread,
    uncomputed,
)
from kafka_liveness_dagster.spark.errors import KafkaSourceError, StorageError, TransformError, UnreadableRecordError
from kafka_liveness_dagster.spark.row_count import RowSums, summed
from kafka_liveness_dagster.spark.source import read

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.core.offsets import OffsetRange

_A_METHOD = re.compile(r"\b(method|function)\b|NOT_LIST_OF_COLUMN")
_WEIGHT = ("sum(coalesce(octet_length(`key`), 0) + coalesce(octet_length(`value`), 0)) AS bytes",)
_AGE = ("min(unix_millis(`timestamp`)) AS oldest",)
_OBSERVED_TWICE = "dict() got multiple values for keyword argument"
_QUARTER = 900  # seconds: windows of time begin at quarters of an hour, in whatever time zone
_LAST_MS = (2**63 - 1) // 1000
"""Spark counts microseconds: a later timestamp, of the year 294247, overflows."""


@dataclass(frozen=True)
class Transformed:
    """The rows of one batch, made anew with each call.

    Attributes:
        transform: the user's, from the batch's records to the rows to keep.
        ranges: the batch.
        options: of Spark's Kafka source.
        let_pass: exceptions of the transform that are orders to whoever runs it.
        weighs: Spark sums up what keys and values weigh while it reads them.
        dates: it finds the oldest timestamp while it does.
    """

    transform: Callable[[DataFrame], DataFrame]
    session: SparkSession
    ranges: Sequence[OffsetRange]
    options: Mapping[str, str]
    let_pass: tuple[type[Exception], ...] = ()
    weighs: bool = False
    dates: bool = False
    _sums: list[RowSums] = field(default_factory=list)

    def __call__(self) -> DataFrame:
        """Call the transform.

        Raises:
            TransformError: it raised, or gave something else than rows of this session.
            UnreadableRecordError: it looked at records of which Spark cannot read one.
            KafkaSourceError: the server cannot read from Kafka.
        """
        batch = self._read(self.ranges)
        if wanted := [*(_WEIGHT if self.weighs else ()), *(_AGE if self.dates else ())]:
            batch, sums = summed(batch, *map(F.expr, wanted))
            self._sums[:] = [sums]
        return self._of(batch)

    def only(self, ranges: Sequence[OffsetRange]) -> Transformed:
        """The same of some of its offsets."""
        return replace(self, ranges=tuple(ranges))

    def of_nothing(self) -> DataFrame:
        """What the transform makes of a batch without records; raises as a call does."""
        return self._of(self._read(self.ranges).where("false"))

    def failure(self, ranges: Sequence[OffsetRange]) -> str:
        """Why some of its records cannot be processed, in short; empty when they can. Computes all and keeps none.

        Raises:
            KafkaLivenessError: whatever it is, it is no fault of the transform's.
            pyspark.errors.PySparkException: Spark is away, or was told to stop.
        """
        rows = replace(self, ranges=tuple(ranges), weighs=False, dates=False)
        try:
            rows().write.format("noop").mode("overwrite").save()
        except TransformError as error:
            return _named(error.__cause__) if isinstance(error.__cause__, Exception) else str(error)
        except PySparkException as error:
            if is_the_servers(error):
                raise
            if unreadable := rows.unreadable(error):
                raise unreadable from error
            return _named(error)
        return ""

    def _read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        return read(self.session, ranges, self.options)

    def _of(self, batch: DataFrame) -> DataFrame:
        try:
            rows = self._called(batch)
        except Exception as error:
            if isinstance(error, (KafkaLivenessError, *self.let_pass)):
                raise
            if line_of(self.session).is_released:
                raise self._stopped() from error
            if isinstance(error, PySparkException):
                self._check_whose(error, batch)  # met by a query of the transform itself
            raise self._refused(f"raised {_named(error)}", _remedy(error, self.transform)) from error
        if not isinstance(rows, DataFrame):
            raise self._refused(f"returned {_kind(rows)} instead of a DataFrame", _hint(rows))
        if rows.sparkSession is not self.session:
            raise self._refused("returned a DataFrame of another Spark session", "make it of the batch it is given")
        return rows

    def _called(self, batch: DataFrame) -> Any:
        with active(self.session):
            rows = self.transform(batch)
        if line_of(self.session).is_released:
            raise self._stopped()
        if isinstance(rows, DataFrame):
            _ = rows.schema  # Spark tells an unknown column or table only now; it is kept for those who ask again
            _ = rows._plan.observations  # noqa: SLF001 - the write would raise what it raises, and name no batch
        return rows

    def mean_bytes(self) -> float | None:
        """Key and value of a record, in bytes; None while none was read, or where they are not weighed."""
        sums = self._read_sums
        return sums.get("bytes") / sums.rows_read if sums and sums.rows_read and self.weighs else None

    def oldest_ms(self) -> int | None:
        """The oldest timestamp of its records, since the epoch; None where an older one may be among them.

        Spark reads fewer records than there are offsets where the transform takes a part of them, as by a LIMIT; and
        where some offsets have no record, as in a topic with transactions or a compacted one.
        """
        sums = self._read_sums
        if sums is None or sums.rows_read < sum(r.size for r in self.ranges):
            return None
        oldest: int | None = sums.get("oldest")
        return oldest

    def counted_by_time(self, since: float, until: float) -> list[tuple[str, int, float, int]]:
        """How many records have a timestamp from ``since`` to before ``until``, in seconds; reads the batch again.

        Returns:
            Topic, partition, beginning of a quarter of an hour, and how many of it, for each that has some.
        """
        at = F.expr("unix_millis(`timestamp`)")
        of_time = (at >= round(1000 * since)) & (at < round(1000 * until))
        quarter = F.floor(at / (1000 * _QUARTER)).alias("quarter")
        records = read(self.session, self.ranges, self.options).where(of_time)
        counted = records.groupBy("topic", "partition", quarter).count().collect()
        return [(row["topic"], row["partition"], row["quarter"] * float(_QUARTER), row["count"]) for row in counted]

    @property
    def _read_sums(self) -> RowSums | None:
        return self._sums[0] if self._sums else None

    def unreadable(self, error: PySparkException) -> UnreadableRecordError | KafkaSourceError | StorageError | None:
        """Why it is no fault of the transform's: a record by name, the source, or a disk; None for other errors.

        Reads the batch again to find the record.
        """
        if is_of_source(error):
            return self._no_source(error)
        if is_gone(error):
            return self._gone(error)
        if is_unread(error):
            return self._unread(error)
        if full := uncomputed(error, listed(self.ranges, most=1)):
            return full
        if not is_timestamp(error):
            return None
        where: Sequence[OffsetRange] = self.ranges
        while sum(part.size for part in where) > 1:
            first, second = halves(where)
            where = first if self._fails(first) else second
        return UnreadableRecordError(
            f"the record at offset {where[0].start} of {where[0].topic_partition} has a timestamp above "
            f"{_LAST_MS:,} ms (year 294247), which Spark cannot hold: its batch fails whatever the transform does, and "
            f"nothing of it was written or committed. Let the group pass it (enable_parallel_rebalance does with the "
            f"next live run, kafka-consumer-groups --reset-offsets --to-offset {where[0].end} without): it is crash "
            f"lag then. `kafka-liveness write-off GROUP {where[0]} --reason …` closes it, a backfill processes what "
            "else was passed. message.timestamp.after.max.ms on the topic keeps others out"
        )

    def _fails(self, ranges: Sequence[OffsetRange]) -> bool:
        try:
            self._read(ranges).count()
        except PySparkException as error:
            if is_timestamp(error):
                return True
            raise
        return False

    def _check_whose(self, error: PySparkException, batch: DataFrame) -> None:
        """Raise what is no fault of the transform's: the batch itself may be the problem."""
        if is_the_servers(error):
            raise error
        if unreadable := self.unreadable(error):
            raise unreadable from error
        try:
            _ = batch.schema
        except PySparkException as of_batch:
            raise self._no_source(of_batch) from of_batch

    def _gone(self, error: PySparkException) -> KafkaSourceError:
        is_topic = not (error.getCondition() or "").startswith("KAFKA_DATA_LOSS")
        what = "their topic or partition is no longer there" if is_topic else "the broker deleted records of them"
        return KafkaSourceError(
            f"Spark could not read {listed(self.ranges, most=1)}: {what} since they were planned "
            f"({in_short(error)}): nothing of the batch was written or committed; raise the topic's retention",
            is_lost=True,
        )

    def _unread(self, error: PySparkException) -> KafkaSourceError:
        servers = self.options.get("kafka.bootstrap.servers")
        return KafkaSourceError(
            f"the Spark server got no answer, or a refusal, from Kafka at {servers} for {listed(self.ranges, most=1)} "
            f"({in_short(error)}): nothing of the batch was written or committed, and it comes again; the brokers' "
            "advertised.listeners have to be reached from Spark's machines too, and the login needs READ on the topic"
        )

    def _stopped(self) -> TransformError:
        return self._refused("stopped the Spark session of its batch", "leave out `spark.stop()`: the run ends it")

    def _no_source(self, error: PySparkException) -> KafkaSourceError:
        return KafkaSourceError(
            f"the Spark server cannot read from Kafka ({in_short(error)}): nothing was read or written; it needs "
            "Spark's Kafka connector, org.apache.spark:spark-sql-kafka-0-10 of its own version, and options of the "
            "Kafka resource that this one knows"
        )

    def _refused(self, what: str, remedy: str) -> TransformError:
        name = getattr(self.transform, "__qualname__", type(self.transform).__name__)
        return TransformError(
            f"{name} {what} for {listed(self.ranges, most=1)}: nothing of the batch was written or committed; {remedy}"
        )


def _remedy(error: Exception, transform: Callable[[DataFrame], DataFrame]) -> str:
    if _is_method(error, transform):
        return "the column is batch['offset']: batch.offset is a method of DataFrame"
    if isinstance(error, TypeError) and _OBSERVED_TWICE in str(error):
        return (
            "where an Observation is in a frame that is used twice PySpark fails (SPARK-56322): observe by a name, "
            "frame.observe('name', ...), or after the union or join"
        )
    return "mend the transform; the batch comes again"


def _is_method(error: Exception, transform: Callable[[DataFrame], DataFrame]) -> bool:
    """Whether a method was taken for a column: of a batch's columns ``offset`` alone is the name of one, too."""
    names = getattr(getattr(transform, "__code__", None), "co_names", ())
    return isinstance(error, (TypeError, AttributeError)) and "offset" in names and bool(_A_METHOD.search(str(error)))


def _named(error: Exception) -> str:
    if is_asked():
        return kind_of(error)
    said = in_short(error) if isinstance(error, PySparkException) else str(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _kind(given: Any) -> str:
    return (
        "None" if given is None else f"a {type(given).__module__}.{type(given).__qualname__}".replace("builtins.", "")
    )


def _hint(given: Any) -> str:
    if given is None:
        return "is its `return` missing?"
    if inspect.isawaitable(given):
        given.close() if inspect.iscoroutine(given) else None
        return "a transform is called, not awaited: define it without async"
    return "return what Spark shall compute, or batch.sparkSession.createDataFrame(…) of what you have"
