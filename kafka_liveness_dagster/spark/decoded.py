"""What do records in the wire format of a schema registry say? A column of bytes becomes one of values, in Spark.

The format is Confluent's: a zero byte, the schema's id in four bytes, and what was written by that schema. Each record
is read by the schema that it was written by, and comes out as the reader's has it. Asks no registry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql.avro.functions import from_avro

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.registered import SchemaUnusableError
from kafka_liveness_dagster.spark.avro import check
from kafka_liveness_dagster.spark.json_schema import type_of
from kafka_liveness_dagster.spark.protobuf import reader_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from kafka_liveness_dagster.core.registered import Registered

FAIL = {"mode": "FAILFAST"}
_FRAME = 5  # bytes: zero, and the id
_PLACE = ("topic", "partition", "offset")


def writers(batch: DataFrame, column: str) -> dict[int, str]:
    """By which schemas the records of a batch were written: each id with one of its records. Reads the batch, once.

    Raises:
        InvalidSettingError: the column is not there, or holds no bytes.
    """
    found = dict(batch.dtypes).get(column)
    if found != "binary":
        is_what = f"of type {found}" if found else "not in the batch"
        raise InvalidSettingError(
            f"column {column!r} to decode is {is_what}: wanted one of bytes, as Kafka's key and value are"
        )
    framed = batch.where(_is_framed(column)).select(_id(column).alias("id"), _place(batch).alias("place"))
    return {
        int(row["id"]): str(row["place"]) for row in framed.groupBy("id").agg(F.min("place").alias("place")).collect()
    }


def decoded(
    batch: DataFrame, column: str, written_by: Sequence[Registered], reader: Registered, message: str | None = None
) -> DataFrame:
    """The batch with the column decoded: null where it was null, and a failing row where it is not in the wire format.

    Args:
        batch: any frame with the column.
        column: of bytes.
        written_by: every schema that :func:`writers` found and the registry has; a row of another one fails.
        reader: which says what columns there are.
        message: of Protobuf, the full name of the message; the first of the file unless told.

    Raises:
        SchemaUnusableError: the schemas are of several kinds, or of one that Spark cannot read by.
    """
    if strange := [one for one in written_by if one.kind != reader.kind]:
        raise SchemaUnusableError(
            f"records of the batch were written by schema {strange[0].id}, of {strange[0].kind}, and the reader's is "
            f"{reader.id}, of {reader.kind}: nothing was written; decode each kind from its own part of the batch"
        )
    value = _bytes(column)
    found = F.when(value.isNull(), F.lit(None))
    for ids, read in _readings(column, written_by, reader, message):
        found = found.when(_is_framed(column) & _id(column).isin(ids), read)
    strange = F.lit(
        f" is not in the wire format of a schema registry (0x00, the schema's id): its {column} begins with 0x"
    )
    unknown = F.concat(
        F.lit(" was written by schema "), _id(column), F.lit(", which the schema registry does not have")
    )
    why = F.when(_is_framed(column), unknown).otherwise(F.concat(strange, F.hex(F.substring(value, 1, _FRAME))))
    return batch.withColumn(column, found.otherwise(F.raise_error(F.concat(_place(batch), why))))


def _readings(
    column: str, written_by: Sequence[Registered], reader: Registered, message: str | None
) -> Iterator[tuple[list[int], Column]]:
    """Which ids are read in which way; the reader's own is among them, or there would be no type without records."""
    schemas: Mapping[int, Registered] = {one.id: one for one in (*written_by, reader)}
    value = _bytes(column)
    payload = F.substring(value, _FRAME + 1, 2**31 - 1)
    if reader.kind == "AVRO":
        for one in schemas.values():
            check(one)
            yield [one.id], from_avro(payload, one.text, {"avroSchema": reader.text, **FAIL})
    elif reader.kind == "JSON":
        yield [*schemas], F.from_json(payload.cast("string"), type_of(reader), FAIL)
    elif reader.kind == "PROTOBUF":
        yield [*schemas], reader_of([*schemas.values()], reader, message)(value)
    else:
        raise SchemaUnusableError(
            f"schema {reader.id} is of {reader.kind}: nothing was written; wanted AVRO, PROTOBUF or JSON"
        )


def _bytes(column: str) -> Column:
    return F.col("`" + column.replace("`", "``") + "`")


def _is_framed(column: str) -> Column:
    value = _bytes(column)
    return (F.octet_length(value) >= _FRAME) & (F.hex(F.substring(value, 1, 1)) == "00")


def _id(column: str) -> Column:
    return F.conv(F.hex(F.substring(_bytes(column), 2, _FRAME - 1)), 16, 10).cast("long")


def _place(batch: DataFrame) -> Column:
    """Where a record is, while its columns are there."""
    if not set(_PLACE) <= set(batch.columns):
        return F.lit("a record")
    return F.concat(F.lit("the record at offset "), F.col("offset"), F.lit(" of "), F.concat_ws(":", *_PLACE[:2]))
