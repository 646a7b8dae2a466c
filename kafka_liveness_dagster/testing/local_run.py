"""Run a transform on one batch, with the checks and errors of a run. Never writes its rows to a table."""

from __future__ import annotations

import uuid
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import dagster as dg
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType, _parse_datatype_string

from kafka_liveness_dagster.assets.definitions import KafkaAsset
from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.lanes.dead_letters import DeadLetterHandler, find_failing_offsets
from kafka_liveness_dagster.settings.groups import Batching
from kafka_liveness_dagster.settings.transform import signature_of
from kafka_liveness_dagster.spark.decode.lax_mode import lax_decoder_warnings
from kafka_liveness_dagster.spark.errors import SparkFailedError, TransformError
from kafka_liveness_dagster.spark.ranges import ranges_condition
from kafka_liveness_dagster.spark.row_guard import require_rows_in_ranges
from kafka_liveness_dagster.spark.sink import SinkWrite
from kafka_liveness_dagster.spark.table import schema as table_schema
from kafka_liveness_dagster.spark.table.schema_check import (
    column_ddl,
    diff_schema,
    require_row_columns,
    require_supported_types,
)
from kafka_liveness_dagster.spark.table.table import IcebergTable, TableShape
from kafka_liveness_dagster.spark.table.write import TableWrite, WriteAttempt
from kafka_liveness_dagster.spark.transform import TransformedBatch
from kafka_liveness_dagster.testing.local_spark import session
from kafka_liveness_dagster.testing.records import frame_of, ranges_of, with_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.spark.sink import Replacement

_TABLE = "lake.test.rows"


class DeadLetter(NamedTuple):
    """A record that the run would set aside.

    Attributes:
        error: the reason, as the table of dead letters has it.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    error: str


@dataclass(frozen=True)
class Result:
    """The result of one batch.

    Attributes:
        rows: the rows that the batch would write, sorted by topic, partition and offset.
        dead_letters: the records that it would set aside, sorted in the same way.
        schema: names and types of the rows' columns.
    """

    rows: list[Row]
    dead_letters: list[DeadLetter] = field(default_factory=list)
    schema: StructType = field(default_factory=StructType)


def run(
    transform: KafkaAsset | Callable[..., Any],
    records: Iterable[Any],
    *,
    table_columns: str | StructType | None = None,
    on_bad_record: Literal["raise", "dead_letter"] | None = None,
    context: Any = None,
    **arguments: Any,
) -> Result:
    """Process these records as one batch, with the checks and errors of a run, and return its rows.

    Like a run it checks that the rows keep topic, partition and offset, and that they belong to the batch. It
    checks that a table can take their columns, and warns (``UserWarning``) if the transform turns bad values
    into NULLs. It cannot check the table's own properties, other writers, or timeouts.

    Args:
        transform: what ``@kl.kafka_asset`` decorates; or the function alone, with default settings.
        records: see :func:`batch`.
        table_columns: columns of the table, if it exists already: DDL, or a ``StructType``. Rows have to fit
            them. Default: the batch creates the table.
        on_bad_record: default: the asset's setting.
        context: given to a transform that takes ``context``; default: ``dg.build_asset_context()``.
        **arguments: further arguments of the transform, such as its resources, by name.

    Raises:
        TransformError: the transform raised, or returned no DataFrame.
        TableSchemaError: the rows lack topic, partition or offset, or do not fit the table.
        RowsOutsideBatchError: a row's offset is not in the batch.
        SparkFailedError: Spark could not compute a row.
        BadRecordError: more records fail than ``max_dead_letters``.
        InvalidSettingError: a record has another form, or an argument is missing.
        JavaNotFoundError: there is no Java 17 or newer.

    Example::

        result = testing.run(orders, ['{"id": 1}', "no JSON"])
        assert [row.id for row in result.rows] == [1]
        assert result.dead_letters[0].offset == 1
    """
    asset = transform.settings if isinstance(transform, KafkaAsset) else None
    function = transform.settings.transform if isinstance(transform, KafkaAsset) else transform
    inputs = () if asset is None else tuple(asset.arguments.get("ins", ()))
    all_records = with_offsets(records, "orders" if asset is None else asset.topics[0])
    if not all_records:
        raise InvalidSettingError("A batch has at least one record. Fix: give testing.run some records.")
    decoders: set[str] = set()
    frame = _LocalBatch(
        _bound(function, inputs, context, arguments),
        session(),
        ranges_of(all_records),
        options={},
        passthrough_errors=(dg.Failure, dg.RetryRequested),  # as in a run, which they end
        records=frame_of(all_records, include_headers=asset is not None and asset.include_headers),
        on_rows=lambda rows: decoders.update(lax_decoder_warnings(rows)),
    )
    name = _TABLE if asset is None else asset.target
    if asset is not None and asset.sink is not None:
        write: _LocalWrite | _LocalSinkWrite = _LocalSinkWrite(asset.sink, frame)
    else:
        write = _LocalWrite.of(name, frame, _as_columns(table_columns))
    batching = Batching() if asset is None else asset.batching
    chosen = on_bad_record or batching.on_bad_record
    try:
        result = write.collect()
    except (TransformError, SparkFailedError) as failed:
        if chosen == "raise" or isinstance(write, _LocalSinkWrite):
            raise
        result = _without_bad_records(write, failed, batching.max_dead_letters)
    for warning in sorted(decoders):
        warnings.warn(warning, UserWarning, stacklevel=2)
    return result


def _bound(
    function: Callable[..., Any], inputs: Sequence[str], context: Any, arguments: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return the transform as a function of its batch alone, as a run gives it its arguments."""
    wanted = signature_of(function, inputs)
    names = {one.name for one in wanted.parameters}
    if names != {*arguments}:
        missing = ", ".join(sorted(names - {*arguments}))
        problem = f"lacks {missing}" if missing else f"has no {', '.join(sorted({*arguments} - names))}"
        raise InvalidSettingError(
            f"The call of transform {getattr(function, '__qualname__', function)!s} {problem}. Fix: give "
            "testing.run each further argument of the transform by its name."
        )
    if wanted.context and context is None:
        context = dg.build_asset_context()
    return wanted.bind(function, context, arguments)


def _as_columns(columns: str | StructType | None) -> StructType | None:
    if isinstance(columns, str):
        session()  # which parses it
        with suppress(PySparkException):  # it stays text, which is refused
            columns = cast("StructType", _parse_datatype_string(columns))
    if columns is not None and not isinstance(columns, StructType):
        raise InvalidSettingError(
            f"table_columns is {columns!r}. Fix: give DDL like 'topic STRING, partition INT, offset "
            "BIGINT', or a StructType."
        )
    return columns


@dataclass(frozen=True)
class _LocalBatch(TransformedBatch):
    """A batch whose records come from a test.

    Attributes:
        records: all of them.
    """

    records: DataFrame = field(kw_only=True)

    def _read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        return self.records.where(ranges_condition(ranges))


class _LocalTable(IcebergTable):
    """A table that exists in a test's arguments only, or not yet."""

    columns: StructType | None = None
    local_name = ""

    @property
    def quoted(self) -> str:
        return f"`{self.local_name}`"

    def shape(self, session: SparkSession) -> TableShape | None:  # noqa: ARG002 - the session has no catalog
        return None if self.columns is None else TableShape(self.columns, is_by_kafka_partition=True)

    def refresh(self, session: SparkSession, *, keep_shape: bool = False) -> None:
        pass

    def unsupported_types_error(self, why: str) -> Any:
        shown = why.replace(f"`spark_catalog`.`default`.{self.quoted}", f"`{self.name}`")
        return super().unsupported_types_error(shown)


class _LocalWrite(TableWrite):
    """A write of a batch to a table, without the write."""

    result: Result

    @classmethod
    def of(cls, name: str, frame: _LocalBatch, columns: StructType | None) -> _LocalWrite:
        table = _LocalTable(name)
        object.__setattr__(table, "columns", columns)
        return cls(
            frame.session,
            table,
            frame.ranges,
            make_frame=frame,
            may_go_on=lambda: None,
            may_replace=lambda: None,
            max_attempts=1,
        )

    def collect(self) -> Result:
        """Return the rows; raises the errors of a write."""
        self.execute_with_retries(self.prepare())
        return self.result

    def _next_attempt(self) -> Callable[[], int]:
        self._attempt = WriteAttempt(self)
        rows = self.make_frame()
        require_row_columns(rows, f"the rows for {self.table.name}")
        schema = rows.schema
        shape = self.table.shape(self.session)
        if shape is None:
            require_supported_types(schema.fields, self.table.name)
        else:
            self._check_columns(rows, shape.columns)
        guarded = require_rows_in_ranges(rows, self.ranges)

        def collect() -> int:
            self.result = Result(_sorted(guarded.collect()), schema=schema)
            return len(self.result.rows)

        return collect

    def _check_columns(self, rows: DataFrame, columns: StructType) -> None:
        """Check the rows against the columns of the table, as a batch with new columns is checked."""
        found = diff_schema(rows, columns, self.table.name)
        local = f"kafka_liveness_{uuid.uuid4().hex[:8]}"
        object.__setattr__(self.table, "local_name", local)
        self.session.sql(f"CREATE TABLE `{local}` ({', '.join(map(column_ddl, columns))}) USING parquet")
        try:
            complete = table_schema.with_missing_columns(rows, found)
            table_schema.dry_run_write(self.table, complete, found, columns)
        finally:
            self.session.sql(f"DROP TABLE `{local}`")


class _LocalSinkWrite:
    """A write of a batch to a custom sink, without the sink."""

    def __init__(self, sink: Any, frame: _LocalBatch) -> None:
        self._sink = sink
        self._frame = frame

    def collect(self) -> Result:
        """Return the rows; raises the errors of a write."""
        found: list[Result] = []

        def sink(replacement: Replacement, /) -> int:
            found.append(Result(_sorted(replacement.rows.collect()), schema=replacement.rows.schema))
            return len(found[0].rows)

        sink.__qualname__ = getattr(self._sink, "__qualname__", type(self._sink).__name__)
        write = SinkWrite(sink, self._frame.ranges, self._frame, may_go_on=lambda: None)
        write.execute_with_retries(write.prepare())
        return found[0]


def _without_bad_records(write: _LocalWrite, failed: Exception, max_dead_letters: int) -> Result:
    """Return the rows without the records that fail alone, which a run would set aside."""
    frame = cast("_LocalBatch", write.make_frame)
    why = find_failing_offsets(write, frame, write.ranges, max_offsets=max_dead_letters)
    if not why:
        raise failed
    if len(why) > max_dead_letters:
        handler = DeadLetterHandler(max_dead_letters, run="")
        raise handler.too_many_error(Batch(tuple(write.ranges), deadline_seconds=0.0), why) from failed
    bad = frame._read([*why]).collect()  # noqa: SLF001 - of this module
    by_offset = {(part.topic, part.partition, part.start): reason for part, reason in why.items()}
    letters = []
    for row in _sorted(bad):
        offset = (row["topic"], row["partition"], row["offset"])
        letters.append(DeadLetter(*offset, _bytes(row["key"]), _bytes(row["value"]), by_offset[offset]))
    left = Batch(tuple(write.ranges), deadline_seconds=0.0, skipped=tuple(why)).processed
    if not left:
        return Result([], letters)
    columns = cast("_LocalTable", write.table).columns
    rest = _LocalWrite.of(write.table.name, cast("_LocalBatch", frame.for_ranges(left)), columns).collect()
    return Result(rest.rows, letters, rest.schema)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _sorted(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))
