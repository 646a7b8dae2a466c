"""Decode a column of records in the wire format of a schema registry, in Spark.

Of an Avro schema only the size is checked; Spark itself says whether it is valid.

>>> fields = '{"id": {"type": "integer"}, "price": {"type": ["number", "null"]}, "to": {"oneOf": []}}'
>>> spark_type_of_json_schema(SchemaWithId(1, "JSON", f'{{"properties": {fields}}}')).simpleString()
'struct<id:bigint,price:double,to:string>'

The format is Confluent's: a zero byte, the schema's id in four bytes, and what was written by that schema.
Each record is read by the schema that it was written by, and comes out as the reader's has it. Asks no
registry.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.schemas import SchemaUnusableError, SchemaWithId
from kafka_liveness_dagster.spark.decode.protobuf import protobuf_reader
from kafka_liveness_dagster.spark.decode.schema_size import SchemaSize, too_large_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


def check_avro_size(schema: SchemaWithId) -> None:
    """Write out each use of a name, as Spark does, until the limit.

    Raises:
        SchemaUnusableError: it has too many fields or levels.
    """
    try:
        root = json.loads(schema.text)
    except RecursionError:
        raise too_large_error(schema) from None
    except ValueError:
        return
    _SchemaWalk(SchemaSize(schema)).visit(root, "")


class _SchemaWalk:
    def __init__(self, room: SchemaSize) -> None:
        self._size = room
        self._named_types: dict[str, tuple[Any, str]] = {}
        self._open_names: set[str] = set()

    def visit(self, schema: Any, namespace: str) -> None:
        """Count what a schema becomes; a name in itself is counted once, because Spark refuses it."""
        with self._size.field():
            if isinstance(schema, list):
                for one in schema:
                    self.visit(one, namespace)
            elif isinstance(schema, dict):
                self._visit_complex(schema, namespace)
            elif (
                isinstance(schema, str) and (name := self._resolve(schema, namespace)) not in self._open_names
            ):
                self._visit_record(name)

    def _visit_complex(self, schema: dict[str, Any], namespace: str) -> None:
        if isinstance(fields := schema.get("fields"), list):
            within = str(schema.get("namespace", namespace))
            name = _full_name(str(schema.get("name", "")), within)
            self._named_types[name] = fields, name.rpartition(".")[0]
            self._visit_record(name)
            return
        for word in ("items", "values", "type"):
            if word in schema:
                self.visit(schema[word], namespace)

    def _visit_record(self, name: str) -> None:
        fields, namespace = self._named_types.get(name, ((), ""))
        self._open_names.add(name)
        for one in fields:
            if isinstance(one, dict):
                self.visit(one.get("type"), namespace)
        self._open_names.discard(name)

    def _resolve(self, name: str, namespace: str) -> str:
        full = _full_name(name, namespace)
        return full if full in self._named_types else name


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


_PRIMITIVE_TYPES: dict[str, DataType] = {
    "integer": LongType(),
    "number": DoubleType(),
    "boolean": BooleanType(),
}
_COMBINING_KEYWORDS = ("oneOf", "anyOf", "allOf", "not", "if")


def spark_type_of_json_schema(schema: SchemaWithId) -> DataType:
    """The type of the whole document, an object or an array.

    Raises:
        SchemaUnusableError: it is no JSON Schema, or of something else.
    """
    try:
        root = json.loads(schema.text)
    except RecursionError:
        raise too_large_error(schema) from None
    except ValueError:
        root = None
    found = _spark_type(root, root, (), room=SchemaSize(schema))
    if isinstance(found, StringType):
        raise SchemaUnusableError(
            f"schema {schema.id} describes no object with properties, no map and no array: nothing was "
            "written; take such a value as text, cast(substring(value, 6) as string)"
        )
    return found


def _spark_type(schema: Any, root: Any, within: tuple[str, ...], room: SchemaSize) -> DataType:
    """A schema that is true, empty, or has several types is JSON as text.

    ``within`` are the references on the way.
    """
    with room.field():
        return _single_type(schema, root, within, room=room)


def _single_type(schema: Any, root: Any, within: tuple[str, ...], room: SchemaSize) -> DataType:
    if not isinstance(schema, dict) or any(word in schema for word in _COMBINING_KEYWORDS):
        return StringType()
    if "$ref" in schema:
        return _referenced_type(str(schema["$ref"]), root, within, room=room)
    types = {*_union_type(schema.get("type"))} - {"null"}
    if types == {"object"} or (not types and "properties" in schema):
        return _object_type(schema, root, within, room=room)
    if types == {"array"} and isinstance(schema.get("items"), dict):
        return ArrayType(_spark_type(schema["items"], root, within, room=room))
    if types == {"integer", "number"}:
        return DoubleType()
    return _PRIMITIVE_TYPES.get(types.pop(), StringType()) if len(types) == 1 else StringType()


def _referenced_type(name: str, root: Any, within: tuple[str, ...], room: SchemaSize) -> DataType:
    """The type of another part of the document; a part that holds itself is JSON as text."""
    if name in within:
        return StringType()
    return _spark_type(_resolve_reference(name, root), root, (*within, name), room=room)


def _object_type(schema: dict[str, Any], root: Any, within: tuple[str, ...], room: SchemaSize) -> DataType:
    properties = schema.get("properties")
    if properties and isinstance(properties, dict):
        return StructType(
            [StructField(name, _spark_type(one, root, within, room=room)) for name, one in properties.items()]
        )
    others = schema.get("additionalProperties")
    if isinstance(others, dict):
        return MapType(StringType(), _spark_type(others, root, within, room=room))
    return StringType()


def _union_type(types: Any) -> list[str]:
    """The types by their names; what is no name is none that Spark has."""
    if isinstance(types, list):
        return [str(one) for one in types]
    return [str(types)] if types else []


def _resolve_reference(name: str, root: Any) -> Any:
    """What ``#/definitions/line`` points to in this document; nothing that is in another one."""
    first, *path = name.split("/")
    found = root if first == "#" else None
    for step in path:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


FAIL = {"mode": "FAILFAST"}
_FRAME_BYTES = 5  # bytes: zero, and the id
_LOCATION_COLUMN = ("topic", "partition", "offset")


def writer_schema_ids(batch: DataFrame, column: str) -> dict[int, str]:
    """Return the ids of the schemas that wrote the batch's records, each with one of the records.

    Reads the batch once.

    Raises:
        InvalidSettingError: the column is not there, or holds no bytes.
    """
    found = dict(batch.dtypes).get(column)
    if found != "binary":
        is_what = f"of type {found}" if found else "not in the batch"
        raise InvalidSettingError(
            f"column {column!r} to decode is {is_what}: wanted one of bytes, as Kafka's key and value are"
        )
    framed = batch.where(_is_framed(column)).select(
        _schema_id(column).alias("id"), _record_location(batch).alias("place")
    )
    return {
        int(row["id"]): str(row["place"])
        for row in framed.groupBy("id").agg(F.min("place").alias("place")).collect()
    }


def decode_column(
    batch: DataFrame,
    column: str,
    writer_schemas: Sequence[SchemaWithId],
    reader: SchemaWithId,
    message: str | None = None,
) -> DataFrame:
    """Return the batch with the column decoded: null where it was null.

    A row that is not in the wire format fails.

    Args:
        batch: any frame with the column.
        column: of bytes.
        writer_schemas: every schema that :func:`writers` found and the registry has; a row of another one
            fails.
        reader: which says what columns there are.
        message: of Protobuf, the full name of the message; the first of the file unless told.

    Raises:
        SchemaUnusableError: the schemas are of several kinds, or of one that Spark cannot read by.
    """
    if strange := [one for one in writer_schemas if one.schema_type != reader.schema_type]:
        raise SchemaUnusableError(
            f"records of the batch were written by schema {strange[0].id}, of {strange[0].schema_type}, and "
            f"the reader's is {reader.id}, of {reader.schema_type}: nothing was written; decode each kind "
            "from its own part of the batch"
        )
    value = _column_bytes(column)
    found = F.when(value.isNull(), F.lit(None))
    for ids, read in _readings_by_id(column, writer_schemas, reader, message=message):
        found = found.when(_is_framed(column) & _schema_id(column).isin(ids), read)
    strange = F.lit(
        f" is not in the wire format of a schema registry (0x00, the schema's id): its {column} begins with "
        "0x"
    )
    unknown = F.concat(
        F.lit(" was written by schema "),
        _schema_id(column),
        F.lit(", which the schema registry does not have"),
    )
    why = F.when(_is_framed(column), unknown).otherwise(
        F.concat(strange, F.hex(F.substring(value, 1, _FRAME_BYTES)))
    )
    return batch.withColumn(column, found.otherwise(F.raise_error(F.concat(_record_location(batch), why))))


def _readings_by_id(
    column: str, written_by: Sequence[SchemaWithId], reader: SchemaWithId, message: str | None
) -> Iterator[tuple[list[int], Column]]:
    """Which ids are read in which way.

    The reader's own is among them, or there would be no type without records.
    """
    schemas: Mapping[int, SchemaWithId] = {one.id: one for one in (*written_by, reader)}
    value = _column_bytes(column)
    payload = F.substring(value, _FRAME_BYTES + 1, 2**31 - 1)
    if reader.schema_type == "AVRO":
        for one in schemas.values():
            check_avro_size(one)
            yield [one.id], from_avro(payload, one.text, {"avroSchema": reader.text, **FAIL})
    elif reader.schema_type == "JSON":
        yield [*schemas], F.from_json(payload.cast("string"), spark_type_of_json_schema(reader), FAIL)
    elif reader.schema_type == "PROTOBUF":
        yield [*schemas], protobuf_reader([*schemas.values()], reader, message)(value)
    else:
        raise SchemaUnusableError(
            f"schema {reader.id} is of {reader.schema_type}: nothing was written; wanted AVRO, PROTOBUF or "
            "JSON"
        )


def _column_bytes(column: str) -> Column:
    return F.col("`" + column.replace("`", "``") + "`")


def _is_framed(column: str) -> Column:
    value = _column_bytes(column)
    return (F.octet_length(value) >= _FRAME_BYTES) & (F.hex(F.substring(value, 1, 1)) == "00")


def _schema_id(column: str) -> Column:
    return F.conv(F.hex(F.substring(_column_bytes(column), 2, _FRAME_BYTES - 1)), 16, 10).cast("long")


def _record_location(batch: DataFrame) -> Column:
    """Where a record is, while its columns are there."""
    if not set(_LOCATION_COLUMN) <= set(batch.columns):
        return F.lit("a record")
    return F.concat(
        F.lit("the record at offset "),
        F.col("offset"),
        F.lit(" of "),
        F.concat_ws(":", *_LOCATION_COLUMN[:2]),
    )
