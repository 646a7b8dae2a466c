"""What does the user's transform make of a batch? Rows, or an error that says whose it is.

Called in the run's thread, once for each attempt at a batch. Reads nothing by itself, unless a record has to
be found that Spark cannot read.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

from kafka_liveness_dagster.core.bad_records import split_in_half
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.hidden_values import error_kind, is_enabled
from kafka_liveness_dagster.core.names import join_some
from kafka_liveness_dagster.spark.connect.connection import connection_of
from kafka_liveness_dagster.spark.connect.session import as_active_session
from kafka_liveness_dagster.spark.decode.json_column import describe_bad_json
from kafka_liveness_dagster.spark.error_classification import (
    disk_full_error,
    is_data_deleted,
    is_read_failure,
    is_server_error,
    is_source_options_error,
    is_timestamp_error,
    summarize,
)
from kafka_liveness_dagster.spark.errors import (
    KafkaSourceError,
    StorageError,
    TransformError,
    UnreadableRecordError,
)
from kafka_liveness_dagster.spark.row_count import RowSums, with_sums
from kafka_liveness_dagster.spark.source import read_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.core.offsets import OffsetRange

_METHOD_AS_COLUMN = re.compile(r"\b(method|function)\b|NOT_LIST_OF_COLUMN")
_BYTES_SUM = ("sum(coalesce(octet_length(`key`), 0) + coalesce(octet_length(`value`), 0)) AS bytes",)
_OLDEST_MIN = ("min(unix_millis(`timestamp`)) AS oldest",)
_OBSERVED_TWICE = "dict() got multiple values for keyword argument"
_QUARTER_HOUR_SECONDS = 900  # seconds: windows of time begin at quarters of an hour, in whatever time zone
_LAST_MS = (2**63 - 1) // 1000
"""Spark counts microseconds: a later timestamp, of the year 294247, overflows."""


@dataclass(frozen=True)
class TransformedBatch:
    """The rows of one batch, created again with each call.

    Attributes:
        transform: the user's, from the batch's records to the rows to keep.
        ranges: the batch.
        options: of Spark's Kafka source.
        passthrough_errors: exceptions of the transform that are orders to whoever runs it.
        measures_bytes: Spark sums up what keys and values weigh while it reads them.
        measures_oldest: it finds the oldest timestamp while it does.
        on_rows: called with the rows that a call returns, before Spark computes them.
    """

    transform: Callable[[DataFrame], DataFrame]
    session: SparkSession
    ranges: Sequence[OffsetRange]
    _: KW_ONLY
    options: Mapping[str, str]
    passthrough_errors: tuple[type[Exception], ...] = ()
    measures_bytes: bool = False
    measures_oldest: bool = False
    on_rows: Callable[[DataFrame], None] = lambda _: None
    _sums: list[RowSums] = field(default_factory=list)

    def __call__(self) -> DataFrame:
        """Call the transform.

        Raises:
            TransformError: it raised, or gave something else than rows of this session.
            UnreadableRecordError: it looked at records of which Spark cannot read one.
            KafkaSourceError: the server cannot read from Kafka.
        """
        batch = self._read(self.ranges)
        if wanted := [
            *(_BYTES_SUM if self.measures_bytes else ()),
            *(_OLDEST_MIN if self.measures_oldest else ()),
        ]:
            batch, sums = with_sums(batch, *map(F.expr, wanted))
            self._sums[:] = [sums]
        rows = self._rows_of(batch)
        self.on_rows(rows)
        return rows

    def for_ranges(self, ranges: Sequence[OffsetRange]) -> TransformedBatch:
        """The same of some of its offsets."""
        return replace(self, ranges=tuple(ranges))

    def on_empty_batch(self) -> DataFrame:
        """What the transform makes of a batch without records; raises as a call does."""
        return self._rows_of(self._read(self.ranges).where("false"))

    def failure_of(self, ranges: Sequence[OffsetRange]) -> str:
        """Return why some of its records cannot be processed, in short; empty when they can.

        Computes all and keeps none.

        Raises:
            KafkaLivenessError: whatever it is, it is no fault of the transform's.
            pyspark.errors.PySparkException: Spark is away, or was told to stop.
        """
        rows = replace(self, ranges=tuple(ranges), measures_bytes=False, measures_oldest=False)
        try:
            rows().write.format("noop").mode("overwrite").save()
        except TransformError as error:
            cause = error.__cause__
            return rows.failure_reason(cause) if isinstance(cause, Exception) else str(error)
        except PySparkException as error:
            if is_server_error(error):
                raise
            if unreadable := rows.unreadable_record(error):
                raise unreadable from error
            return rows.failure_reason(error)
        return ""

    def bad_json(self, error: BaseException, *, with_offset: bool = True) -> str:
        """Return the record and field that ``kl.from_json`` refused; empty for any other error.

        Reads the batch again to find the record.
        """
        return describe_bad_json(error, lambda: self._read(self.ranges), with_offset=with_offset)

    def failure_reason(self, error: Exception) -> str:
        """Return an error of some records in short; of a single record the field that is not JSON, too."""
        is_single = sum(part.size for part in self.ranges) == 1
        return (is_single and self.bad_json(error, with_offset=False)) or _error_name(error)

    def _read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        return read_ranges(self.session, ranges, self.options)

    def _rows_of(self, batch: DataFrame) -> DataFrame:
        try:
            rows = self._call_transform(batch)
        except Exception as error:
            if isinstance(error, (KafkaLivenessError, *self.passthrough_errors)):
                raise
            if connection_of(self.session).is_released:
                raise self._stopped_error() from error
            if isinstance(error, PySparkException):
                self._raise_if_not_transform(error, batch)  # met by a query of the transform itself
            raise self._source_options_error(
                f"raised {self.bad_json(error) or _error_name(error)}", _remedy(error, self.transform)
            ) from error
        if not isinstance(rows, DataFrame):
            raise self._source_options_error(
                f"returned {_type_name(rows)} instead of a DataFrame", _hint(rows)
            )
        if rows.sparkSession is not self.session:
            raise self._source_options_error(
                "returned a DataFrame of another Spark session", "make it of the batch it is given"
            )
        return rows

    def _call_transform(self, batch: DataFrame) -> Any:
        with as_active_session(self.session):
            rows = self.transform(batch)
        if connection_of(self.session).is_released:
            raise self._stopped_error()
        if isinstance(rows, DataFrame):
            # Spark tells an unknown column or table only now; it is kept for those who ask again
            _ = rows.schema
            _ = rows._plan.observations  # noqa: SLF001 - the write would raise what it raises, and name no batch
        return rows

    def mean_bytes(self) -> float | None:
        """Key and value of a record, in bytes; None while none was read, or where they are not weighed."""
        sums = self._read_sums
        return sums.get("bytes") / sums.rows_read if sums and sums.rows_read and self.measures_bytes else None

    def oldest_ms(self) -> int | None:
        """The oldest timestamp of its records, since the epoch; None where an older one may be among them.

        Spark reads fewer records than there are offsets where the transform takes a part of them, as by a
        LIMIT; and where some offsets have no record, as in a topic with transactions or a compacted one.
        """
        sums = self._read_sums
        if sums is None or sums.rows_read < sum(r.size for r in self.ranges):
            return None
        oldest: int | None = sums.get("oldest")
        return oldest

    def count_by_time(self, since: float, until: float) -> list[tuple[str, int, float, int]]:
        """Count records with a timestamp from ``since`` to before ``until``, in seconds.

        Reads the batch again.

        Returns:
            Topic, partition, beginning of a quarter of an hour, and how many of it, for each that has some.
        """
        at = F.expr("unix_millis(`timestamp`)")
        of_time = (at >= round(1000 * since)) & (at < round(1000 * until))
        quarter = F.floor(at / (1000 * _QUARTER_HOUR_SECONDS)).alias("quarter")
        records = read_ranges(self.session, self.ranges, self.options).where(of_time)
        counted = records.groupBy("topic", "partition", quarter).count().collect()
        return [
            (row["topic"], row["partition"], row["quarter"] * float(_QUARTER_HOUR_SECONDS), row["count"])
            for row in counted
        ]

    @property
    def _read_sums(self) -> RowSums | None:
        return self._sums[0] if self._sums else None

    def unreadable_record(
        self, error: PySparkException
    ) -> UnreadableRecordError | KafkaSourceError | StorageError | None:
        """Return why an error is not the transform's: a record by name, the source, or a disk.

        None for other errors. Reads the batch again to find the record.
        """
        if is_source_options_error(error):
            return self._source_error(error)
        if is_data_deleted(error):
            return self._data_deleted_error(error)
        if is_read_failure(error):
            return self._read_error(error)
        if full := disk_full_error(error, join_some(self.ranges, max_items=1)):
            return full
        if not is_timestamp_error(error):
            return None
        where: Sequence[OffsetRange] = self.ranges
        while sum(part.size for part in where) > 1:
            first, second = split_in_half(where)
            where = first if self._has_failure(first) else second
        return UnreadableRecordError(
            f"the record at offset {where[0].start} of {where[0].topic_partition} has a timestamp above "
            f"{_LAST_MS:,} ms (year 294247), which Spark cannot hold. Its batch fails in any "
            "transform. Nothing of it was written or committed. Fix: skip the record. With "
            "enable_parallel_rebalance the next live run does; otherwise run kafka-consumer-groups "
            f"--reset-offsets --to-offset {where[0].end}. It is crash lag then: "
            f"`kafka-liveness write-off GROUP {where[0]} --reason …` closes it, and a backfill "
            "processes the rest of its range. "
            "message.timestamp.after.max.ms on the topic keeps such records out."
        )

    def _has_failure(self, ranges: Sequence[OffsetRange]) -> bool:
        try:
            self._read(ranges).count()
        except PySparkException as error:
            if is_timestamp_error(error):
                return True
            raise
        return False

    def _raise_if_not_transform(self, error: PySparkException, batch: DataFrame) -> None:
        """Raise what is no fault of the transform's: the batch itself may be the problem."""
        if is_server_error(error):
            raise error
        if unreadable := self.unreadable_record(error):
            raise unreadable from error
        try:
            _ = batch.schema
        except PySparkException as of_batch:
            raise self._source_error(of_batch) from of_batch

    def _data_deleted_error(self, error: PySparkException) -> KafkaSourceError:
        is_topic = not (error.getCondition() or "").startswith("KAFKA_DATA_LOSS")
        what = (
            "their topic or partition is no longer there"
            if is_topic
            else "the broker deleted records of them"
        )
        return KafkaSourceError(
            f"Spark could not read {join_some(self.ranges, max_items=1)}: {what} since they were planned "
            f"({summarize(error)}). Nothing of the batch was written or committed. Fix: raise the topic's "
            "retention.",
            is_lost=True,
        )

    def _read_error(self, error: PySparkException) -> KafkaSourceError:
        servers = self.options.get("kafka.bootstrap.servers")
        return KafkaSourceError(
            f"Spark's machines got no response, or a refusal, from Kafka at {servers} for "
            f"{join_some(self.ranges, max_items=1)} ({summarize(error)}). Nothing of the batch was written "
            "or committed, and it is retried. Fix: make the brokers' advertised.listeners reachable from "
            "Spark's machines too, and grant the login READ on the topic."
        )

    def _stopped_error(self) -> TransformError:
        return self._source_options_error(
            "stopped the Spark session of its batch", "leave out `spark.stop()`: the run ends it"
        )

    def _source_error(self, error: PySparkException) -> KafkaSourceError:
        return KafkaSourceError(
            f"the Spark server cannot read from Kafka ({summarize(error)}). Nothing was read or written. "
            "Fix: add Spark's Kafka connector, org.apache.spark:spark-sql-kafka-0-10 of the server's "
            "version, and leave out options of the Kafka resource that it does not have."
        )

    def _source_options_error(self, what: str, remedy: str) -> TransformError:
        name = getattr(self.transform, "__qualname__", type(self.transform).__name__)
        return TransformError(
            f"{name} {what} for {join_some(self.ranges, max_items=1)}: nothing of the batch was written or "
            f"committed; {remedy}"
        )


def _remedy(error: Exception, transform: Callable[[DataFrame], DataFrame]) -> str:
    if _took_method_for_column(error, transform):
        return "the column is batch['offset']: batch.offset is a method of DataFrame"
    if isinstance(error, TypeError) and _OBSERVED_TWICE in str(error):
        return (
            "where an Observation is in a frame that is used twice PySpark fails (SPARK-56322): observe by "
            "a name, frame.observe('name', ...), or after the union or join"
        )
    return "mend the transform; the batch comes again"


def _took_method_for_column(error: Exception, transform: Callable[[DataFrame], DataFrame]) -> bool:
    """Whether a method was taken for a column.

    Of a batch's columns ``offset`` alone is the name of one, too.
    """
    names = getattr(getattr(transform, "__code__", None), "co_names", ())
    return (
        isinstance(error, (TypeError, AttributeError))
        and "offset" in names
        and bool(_METHOD_AS_COLUMN.search(str(error)))
    )


def _error_name(error: Exception) -> str:
    if is_enabled():
        return error_kind(error)
    said = summarize(error) if isinstance(error, PySparkException) else str(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _type_name(given: Any) -> str:
    return (
        "None"
        if given is None
        else f"a {type(given).__module__}.{type(given).__qualname__}".replace("builtins.", "")
    )


def _hint(given: Any) -> str:
    if given is None:
        return "is its `return` missing?"
    if inspect.isawaitable(given):
        given.close() if inspect.iscoroutine(given) else None
        return "a transform is called, not awaited: define it without async"
    return "return what Spark shall compute, or batch.sparkSession.createDataFrame(…) of what you have"
