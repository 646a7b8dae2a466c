"""Make the frame of a small batch from records that the run has read, as Spark's Kafka source would make it.

The records are part of the plan: Spark starts no consumer and sends no request to Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE
from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.connect.plan import LocalRelation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import Message
    from pyspark.sql import DataFrame as AnyDataFrame
    from pyspark.sql import SparkSession

MAX_PLAN_BYTES = 8 * 2**20
"""Largest size of the records in a plan, with keys and headers. Spark's limit for a request is 128 MiB."""
_COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)
_HEADERS = pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))


def frame_of(
    session: SparkSession, records: Sequence[Message], *, include_headers: bool, tasks: int
) -> AnyDataFrame | None:
    """Return a frame of these records; None if Spark's source has to read them.

    That is a batch without records or above ``MAX_PLAN_BYTES``, a record without a timestamp, one whose
    timestamp Spark cannot hold, or headers that are not UTF-8.

    Args:
        session: session of the run.
        records: records, in any order.
        include_headers: whether the frame has the column ``headers``.
        tasks: number of tasks that process them.
    """
    ordered = sorted(records, key=_place)
    stamps = [record.timestamp() for record in ordered]
    if not ordered or any(kind == TIMESTAMP_NOT_AVAILABLE for kind, _ in stamps):
        return None
    columns: list[list[object]] = [
        [record.key() for record in ordered],
        [record.value() for record in ordered],
        [record.topic() for record in ordered],
        [record.partition() for record in ordered],
        [record.offset() for record in ordered],
        [1000 * ms for _, ms in stamps],
        [kind - 1 for kind, _ in stamps],  # Java counts from -1, librdkafka from 0
    ]
    schema = _COLUMNS
    try:
        if include_headers:
            columns.append([_headers(record) for record in ordered])
            schema = schema.append(_HEADERS)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    except (OverflowError, UnicodeError, pa.ArrowException):
        return None
    table = pa.Table.from_arrays(arrays, schema=schema)
    if table.nbytes > MAX_PLAN_BYTES:
        return None
    # Without the coalesce the optimizer computes the transform in the server's own thread, where no cancel
    # reaches it (rule ConvertToLocalRelation)
    return DataFrame(LocalRelation(table), session).coalesce(tasks)


def _place(record: Message) -> tuple[str, int, int]:
    return record.topic() or "", record.partition() or 0, record.offset() or 0


def _headers(record: Message) -> list[dict[str, object]] | None:
    found: Any = record.headers()
    return [{"key": key, "value": value} for key, value in found] if found else None
