"""Write records in short, and read them as a batch of Spark's Kafka source. Connects to no broker."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.testing.local_spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FIRST_TIMESTAMP = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
"""The timestamp of a record that has none: a constant, so that tests give the same rows each day."""
_KEY_AND_VALUE = 2
_HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
_COLUMNS = StructType(  # as Spark's Kafka source gives them, in its order
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)


@dataclass(frozen=True)
class Record:
    """A record as Kafka has it. All but the value has a default.

    Attributes:
        value: bytes, text, or a dict or list, which becomes JSON. None is a tombstone.
        key: the same forms.
        headers: a dict, or pairs if a name occurs twice: names, and bytes, text or None.
        timestamp: without a time zone it is UTC. Default: :data:`FIRST_TIMESTAMP`.
        partition: of its topic.
        offset: default: one more than the partition's record before it; the first is 0.
        topic: default: the asset's first topic, or the one that ``batch`` gets.
    """

    value: Any = None
    key: Any = None
    headers: Mapping[str, Any] | Sequence[tuple[str, Any]] = ()
    timestamp: dt.datetime = FIRST_TIMESTAMP
    partition: int = 0
    offset: int | None = None
    topic: str | None = None


def batch(records: Iterable[Any], *, topic: str = "orders", include_headers: bool = False) -> DataFrame:
    """Return a batch of these records, with the columns and types that a transform gets from Kafka.

    Args:
        records: each a :class:`Record`, a pair of key and value, or a value alone: bytes, text, None, or a
            dict or list, which becomes JSON.
        topic: the topic of records that name none.
        include_headers: whether the batch has the column ``headers``, as with the asset's setting.

    Raises:
        InvalidSettingError: a record has another form, or an offset occurs twice.
        JavaNotFoundError: there is no Java 17 or newer.

    Example::

        batch = testing.batch(['{"id": 1}', {"id": 2}, ("a key", b"no JSON")])
        assert batch.count() == 3
    """
    return frame_of(with_offsets(records, topic), include_headers=include_headers)


def with_offsets(records: Iterable[Any], topic: str) -> list[Record]:
    """Return the records, each with its topic and offset.

    Raises:
        InvalidSettingError: a record has another form, or an offset occurs twice.
    """
    found: dict[tuple[str, int, int], Record] = {}
    next_offset: dict[tuple[str, int], int] = {}
    for given in records:
        one = _as_record(given)
        name = one.topic or topic
        offset = next_offset.get((name, one.partition), 0) if one.offset is None else one.offset
        if (name, one.partition, offset) in found:
            raise InvalidSettingError(
                f"Offset {offset} of {name}:{one.partition} occurs twice. Fix: give each record its own "
                "offset, or leave the offsets out."
            )
        next_offset[name, one.partition] = offset + 1
        found[name, one.partition, offset] = replace(one, topic=name, offset=offset)
    return [*found.values()]


def _as_record(given: Any) -> Record:
    if isinstance(given, Record):
        return given
    if isinstance(given, tuple):
        if len(given) != _KEY_AND_VALUE:
            raise InvalidSettingError(
                f"{given!r} is no record. Fix: give a pair of key and value, or a testing.Record."
            )
        return Record(key=given[0], value=given[1])
    return Record(given)


def _as_bytes(given: Any) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, (dict, list)):
        return json.dumps(given).encode()
    raise InvalidSettingError(
        f"{given!r} is no value of a record. Fix: give bytes, text, None, or a dict or list for JSON."
    )


def frame_of(records: Sequence[Record], *, include_headers: bool) -> DataFrame:
    """Return the batch of these records, which have topics and offsets."""
    columns = StructType([*_COLUMNS, *([StructField("headers", _HEADERS)] if include_headers else [])])
    rows = []
    for one in records:
        when = one.timestamp if one.timestamp.tzinfo else one.timestamp.replace(tzinfo=dt.timezone.utc)
        row: tuple[Any, ...] = (
            _as_bytes(one.key),
            _as_bytes(one.value),
            one.topic,
            one.partition,
            one.offset,
            when,
            0,  # the producer's time
        )
        pairs = one.headers.items() if isinstance(one.headers, Mapping) else one.headers
        # Spark's source gives NULL, and no empty array, for a record without headers (4.1.3)
        headers = [(name, _as_bytes(value)) for name, value in pairs] or None
        rows.append((*row, headers) if include_headers else row)
    return session().createDataFrame(rows, columns)


def ranges_of(records: Sequence[Record]) -> tuple[OffsetRange, ...]:
    """Return one range for each partition, from its first offset to its last."""
    by_partition = sorted((str(one.topic), one.partition, int(one.offset or 0)) for one in records)
    ranges = []
    for (topic, partition), group in itertools.groupby(by_partition, key=lambda one: one[:2]):
        offsets = [offset for _, _, offset in group]
        ranges.append(OffsetRange(topic, partition, offsets[0], offsets[-1] + 1))
    return tuple(ranges)
