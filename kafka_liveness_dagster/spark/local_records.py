"""Make the frame of a small batch from records that the run has read.

It is the frame that Spark's Kafka source would make. The records are part of the plan: Spark starts no
consumer and sends no request to Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.connect.plan import LocalRelation

from kafka_liveness_dagster.core.record_reader import KafkaRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame as AnyDataFrame
    from pyspark.sql import SparkSession

MAX_PLAN_BYTES = 32 * 2**20
"""Largest size of a plan with records. Spark's limit for a request is 128 MiB, and a proxy's may be lower."""
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(_HEADER)),
    ]
)
_NO_TIMESTAMP = -1
_FIRST_TIMESTAMP_MS = -2_208_988_800_000
"""Start of 1900. Spark converts an earlier time by the zone's local mean time."""


class PlanTooLargeError(Exception):
    """A plan that refers to the batch many times, and has the records each time."""


def frame_of(
    session: SparkSession, records: Sequence[KafkaRecord], *, include_headers: bool, tasks: int
) -> AnyDataFrame | None:
    """Return a frame of these records; None if Spark's source has to read them.

    It has to if there are no records. A record may also have no timestamp, or one of before 1900 or that
    Spark cannot hold.

    Args:
        session: session of the run.
        records: records, in any order.
        include_headers: whether the frame has the column ``headers``.
        tasks: number of tasks that process them.
    """
    by_place = sorted(records, key=_place)
    if not by_place or any(
        record.timestamp_type == _NO_TIMESTAMP or record.timestamp_ms < _FIRST_TIMESTAMP_MS
        for record in by_place
    ):
        return None
    columns = dict(zip(KafkaRecord._fields, map(list, zip(*by_place, strict=True)), strict=True))
    columns["timestamp_ms"] = [1000 * record.timestamp_ms for record in by_place]
    columns["headers"] = [_headers(record) for record in by_place] if include_headers else []
    every = zip(columns.values(), _SCHEMA, strict=True)
    wanted = [one for one in every if include_headers or one[1].name != "headers"]
    try:
        arrays = [pa.array(values, field.type) for values, field in wanted]
    except (OverflowError, pa.ArrowException):
        return None
    table = pa.Table.from_arrays(arrays, schema=pa.schema([field for _, field in wanted]))
    # Without the sample, which keeps every row, Spark's optimizer computes the transform in a thread of the
    # server, where no cancel reaches it (rule ConvertToLocalRelation). Filters pass a coalesce
    return DataFrame(LocalRelation(table), session).sample(1.0, seed=0).coalesce(tasks)


def require_small_plan(rows: AnyDataFrame) -> None:
    """Check the size of the plan of these rows, before it is sent to Spark.

    Raises:
        PlanTooLargeError: it is larger than ``MAX_PLAN_BYTES``.
    """
    plan = rows._plan.to_proto(rows.sparkSession.client)  # noqa: SLF001 - pyspark has no public form of it
    if plan.ByteSize() > MAX_PLAN_BYTES:
        raise PlanTooLargeError


def _place(record: KafkaRecord) -> tuple[str, int, int]:
    return record.topic, record.partition, record.offset


def _headers(record: KafkaRecord) -> list[dict[str, object]] | None:
    return [{"key": key, "value": value} for key, value in record.headers] if record.headers else None
