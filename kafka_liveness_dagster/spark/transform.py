"""Call the user's transform on a batch: it returns rows, or an error that names its cause.

The run calls it in its own thread, once for each attempt at a batch. Reads no records by itself, except to
find a record that Spark cannot read.
"""

from __future__ import annotations

import inspect
import re
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (PySpark's usual alias)

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
from kafka_liveness_dagster.spark.local_records import PlanTooLargeError, frame_of, require_small_plan
from kafka_liveness_dagster.spark.row_count import RowSums, with_sums
from kafka_liveness_dagster.spark.source import read_ranges, small_batch_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.core.record_reader import KafkaRecord

_METHOD_AS_COLUMN = re.compile(r"\b(method|function)\b|NOT_LIST_OF_COLUMN")
_BYTES_SUM = ("sum(coalesce(octet_length(`key`), 0) + coalesce(octet_length(`value`), 0)) AS bytes",)
_OLDEST_MIN = ("min(unix_millis(`timestamp`)) AS oldest",)
_OBSERVED_TWICE = "dict() got multiple values for keyword argument"
_QUARTER_HOUR_SECONDS = 900  # seconds; in every time zone, windows begin at quarters of an hour
_LAST_MS = (2**63 - 1) // 1000
"""Spark counts microseconds: a later timestamp, of the year 294247, overflows."""


@dataclass(frozen=True)
class TransformedBatch:
    """The rows of one batch; each call creates a new frame.

    Attributes:
        transform: the user's function from the records of the batch to its rows.
        session: Spark session of the run.
        ranges: offset ranges of the batch.
        options: options of Spark's Kafka source.
        passthrough_errors: exceptions of the transform that keep their class, because Dagster acts on them.
        measures_bytes: whether Spark sums the bytes of keys and values while it reads them.
        measures_oldest: whether Spark finds the oldest timestamp while it reads.
        on_rows: called with the rows that a call returns, before Spark computes them.
        read_in_run: returns the records of a small batch, read by the run; None if Spark has to read them.
        is_slow: whether the last batch was slow, so that a small batch needs all cores.
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
    read_in_run: Callable[[], Sequence[KafkaRecord] | None] = lambda: None
    is_slow: bool = False
    _sums: list[RowSums] = field(default_factory=list)

    def __call__(self) -> DataFrame:
        """Call the transform and return its rows.

        Raises:
            TransformError: the transform raised, or returned something other than rows of this session.
            UnreadableRecordError: the transform queried its records, and Spark cannot read one of them.
            KafkaSourceError: the server cannot read from Kafka.
        """
        if (in_plan := self._frame_of_records()) is not None:
            with suppress(PlanTooLargeError):
                return self._checked_rows(in_plan, require_small_plan)
        return self._checked_rows(self._read(self.ranges))

    def for_ranges(self, ranges: Sequence[OffsetRange]) -> TransformedBatch:
        """Return the rows of some of its offsets, which Spark reads."""
        return replace(self, ranges=tuple(ranges), read_in_run=lambda: None)

    def on_empty_batch(self) -> DataFrame:
        """Return the rows of the transform for a batch without records; raises as a call does."""
        return self._rows_of(self._read(self.ranges).where("false"))

    def failure_of(self, ranges: Sequence[OffsetRange]) -> str:
        """Return a short reason why some of these records cannot be processed; empty if all can.

        Computes all rows and keeps none.

        Raises:
            KafkaLivenessError: the cause is not the transform.
            pyspark.errors.PySparkException: Spark is unavailable, or canceled the operation on request.
        """
        rows = replace(self.for_ranges(ranges), measures_bytes=False, measures_oldest=False)
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

    def _frame_of_records(self) -> DataFrame | None:
        records = self.read_in_run()
        if not records:
            return None
        with_headers = self.options.get("includeHeaders") == "true"
        tasks = small_batch_tasks(self.session, self.ranges, is_slow=self.is_slow)
        return frame_of(self.session, records, include_headers=with_headers, tasks=tasks)

    def _checked_rows(
        self, batch: DataFrame, check_plan: Callable[[DataFrame], None] = lambda _: None
    ) -> DataFrame:
        if wanted := [
            *(_BYTES_SUM if self.measures_bytes else ()),
            *(_OLDEST_MIN if self.measures_oldest else ()),
        ]:
            batch, sums = with_sums(batch, *map(F.expr, wanted))
            self._sums[:] = [sums]
        rows = self._rows_of(batch, check_plan)
        self.on_rows(rows)
        return rows

    def _read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        return read_ranges(self.session, ranges, self.options)

    def _rows_of(
        self, batch: DataFrame, check_plan: Callable[[DataFrame], None] = lambda _: None
    ) -> DataFrame:
        try:
            rows = self._call_transform(batch, check_plan)
        except Exception as error:
            if isinstance(error, (KafkaLivenessError, PlanTooLargeError, *self.passthrough_errors)):
                raise
            if connection_of(self.session).is_released:
                raise self._stopped_error() from error
            if isinstance(error, PySparkException):
                self._raise_if_not_transform(error, batch)  # raised by a query in the transform
            raise self._transform_error(
                f"raised {self.bad_json(error) or _error_name(error)}", _remedy(error, self.transform)
            ) from error
        if not isinstance(rows, DataFrame):
            raise self._transform_error(f"returned {_type_name(rows)} instead of a DataFrame", _hint(rows))
        if rows.sparkSession is not self.session:
            raise self._transform_error(
                "returned a DataFrame of another Spark session", "make the DataFrame from the batch"
            )
        return rows

    def _call_transform(self, batch: DataFrame, check_plan: Callable[[DataFrame], None]) -> Any:
        with as_active_session(self.session):
            rows = self.transform(batch)
        if connection_of(self.session).is_released:
            raise self._stopped_error()
        if isinstance(rows, DataFrame):
            check_plan(rows)
            # Spark reports an unknown column or table only now; PySpark caches the schema for later calls
            _ = rows.schema
            _ = rows._plan.observations  # noqa: SLF001 - the write would raise the same error without the batch
        return rows

    def mean_bytes(self) -> float | None:
        """Return the mean bytes of key and value per record; None if none was read, or without the sum."""
        sums = self._read_sums
        return sums.get("bytes") / sums.rows_read if sums and sums.rows_read and self.measures_bytes else None

    def oldest_ms(self) -> int | None:
        """Return the oldest timestamp of its records, in ms since the epoch; None if uncertain.

        The timestamp is certain only if Spark read a record for each offset. Spark reads fewer records if the
        transform reads a part of them, as with a LIMIT. It also reads fewer if some offsets have no record,
        as in a topic with transactions, or in a compacted topic.
        """
        sums = self._read_sums
        if sums is None or sums.rows_read < sum(r.size for r in self.ranges):
            return None
        oldest: int | None = sums.get("oldest")
        return oldest

    def count_by_time(self, since: float, until: float) -> list[tuple[str, int, float, int]]:
        """Count records with a timestamp from ``since`` to before ``until``, in seconds since the epoch.

        Reads the batch again.

        Returns:
            A tuple for each partition and quarter of an hour with records. It has the topic, the partition,
            the start of the quarter in seconds since the epoch, and the number of records.
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
        """Return the named error if the cause is a record, the Kafka source or a disk; None otherwise.

        Reads the batch again to find the record.
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
        """Raise the named error if the cause is the server or the batch, and not the transform."""
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
        return self._transform_error(
            "stopped the Spark session of its batch", "leave out `spark.stop()`; the run ends the session"
        )

    def _source_error(self, error: PySparkException) -> KafkaSourceError:
        return KafkaSourceError(
            f"the Spark server cannot read from Kafka ({summarize(error)}). Nothing was read or written. "
            "Fix: add Spark's Kafka connector, org.apache.spark:spark-sql-kafka-0-10 of the server's "
            "version, and leave out options of the Kafka resource that it does not have."
        )

    def _transform_error(self, what: str, remedy: str) -> TransformError:
        name = getattr(self.transform, "__qualname__", type(self.transform).__name__)
        return TransformError(
            f"{name} {what} for {join_some(self.ranges, max_items=1)}. Nothing of the batch was written or "
            f"committed. Fix: {remedy}."
        )


def _remedy(error: Exception, transform: Callable[[DataFrame], DataFrame]) -> str:
    if _took_method_for_column(error, transform):
        return "write batch['offset'] for the column; batch.offset is a method of DataFrame"
    if isinstance(error, TypeError) and _OBSERVED_TWICE in str(error):
        return (
            "observe by a name, frame.observe('name', ...), or after the union or join. PySpark fails if a "
            "plan contains a frame with an Observation twice (SPARK-56322)"
        )
    return "correct the transform; the batch is then retried"


def _took_method_for_column(error: Exception, transform: Callable[[DataFrame], DataFrame]) -> bool:
    """Return whether the transform used the method ``DataFrame.offset`` as a column.

    ``offset`` is the only column of a batch that is also the name of a method.
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
        return "add the missing `return`"
    if inspect.isawaitable(given):
        given.close() if inspect.iscoroutine(given) else None
        return "define the transform without async; the run calls it and does not await it"
    return "return a DataFrame made from the batch, or batch.sparkSession.createDataFrame(…) of your data"
