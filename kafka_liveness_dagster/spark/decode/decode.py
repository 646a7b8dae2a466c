"""Decode a column of records in the wire format of a schema registry, in Spark.

For an Avro schema this module checks only the size; Spark itself rejects an invalid one.

>>> fields = '{"id": {"type": "integer"}, "price": {"type": ["number", "null"]}, "to": {"oneOf": []}}'
>>> spark_type_of_json_schema(SchemaWithId(1, "JSON", f'{{"properties": {fields}}}')).simpleString()
'struct<id:bigint,price:double,to:string>'

The format is Confluent's: a zero byte, the schema's id in four bytes, and the encoded value. Spark decodes
each record by its writer schema, and converts it to the reader schema. Never queries a registry.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 (PySpark's usual alias)
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
    """Check that Spark's type for the schema stays within the limits of fields and levels.

    Counts each use of a named type, as Spark writes out each use.

    Raises:
        SchemaUnusableError: the type has too many fields or levels.
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
        """Count the fields of a schema; a type inside itself is counted once, because Spark rejects it."""
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
    """Return the Spark type of the whole document: an object, a map or an array.

    Raises:
        SchemaUnusableError: the text is no JSON Schema, or describes another type.
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
            f"schema {schema.id} describes no object with properties, no map and no array. Nothing was "
            "written. Fix: read such a value as text, with cast(substring(value, 6) as string)."
        )
    return found


def _spark_type(schema: Any, root: Any, within: tuple[str, ...], room: SchemaSize) -> DataType:
    """Return the Spark type of a schema; JSON text for a schema that is true, empty, or has several types.

    Args:
        schema: part of the document.
        root: the whole document.
        within: references on the path to this part.
        room: the count of fields and levels.
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
    """Return the type of another part of the document; a part that contains itself is JSON text."""
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
    """Return the type names; an entry that is no text becomes text that matches no type."""
    if isinstance(types, list):
        return [str(one) for one in types]
    return [str(types)] if types else []


def _resolve_reference(name: str, root: Any) -> Any:
    """Return the target of a reference like ``#/definitions/line``; None for a target in another document."""
    first, *path = name.split("/")
    found = root if first == "#" else None
    for step in path:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


FAIL = {"mode": "FAILFAST"}
_FRAME_BYTES = 5  # a zero byte and four bytes of the id
_LOCATION_COLUMN = ("topic", "partition", "offset")


def writer_schema_ids(batch: DataFrame, column: str) -> dict[int, str]:
    """Return the schema ids of the batch's records, each with the location of one record.

    Reads the batch once.

    Raises:
        InvalidSettingError: the column is missing, or has no bytes.
    """
    found = dict(batch.dtypes).get(column)
    if found != "binary":
        is_what = f"of type {found}" if found else "not in the batch"
        raise InvalidSettingError(
            f"column {column!r} to decode is {is_what}. Nothing was written. Fix: name a column of type "
            "binary, as Kafka's key and value are."
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
    """Return the batch with the column decoded; null stays null.

    A row that is not in the wire format fails when Spark computes it.

    Args:
        batch: any frame with the column.
        column: name of a column of bytes.
        writer_schemas: all schemas of :func:`writer_schema_ids` that the registry has; a row of another
            schema fails.
        reader: schema that defines the fields of the result.
        message: full name of a Protobuf message; the first message of the file by default.

    Raises:
        SchemaUnusableError: the schemas have several kinds, or a kind that Spark cannot decode.
    """
    if strange := [one for one in writer_schemas if one.schema_type != reader.schema_type]:
        raise SchemaUnusableError(
            f"records of the batch were written by schema {strange[0].id}, of {strange[0].schema_type}, and "
            f"the reader's is {reader.id}, of {reader.schema_type}. Nothing was written. Fix: decode each "
            "kind from its own part of the batch, selected with where(…)."
        )
    value = _quoted_column(column)
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
    """Yield schema ids with the column expression that decodes them.

    The reader's own id is included: without records the column would otherwise have no type.
    """
    schemas: Mapping[int, SchemaWithId] = {one.id: one for one in (*written_by, reader)}
    value = _quoted_column(column)
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
            f"schema {reader.id} is of {reader.schema_type}. Nothing was written. Fix: register it as AVRO, "
            "PROTOBUF or JSON."
        )


def _quoted_column(column: str) -> Column:
    return F.col("`" + column.replace("`", "``") + "`")


def _is_framed(column: str) -> Column:
    value = _quoted_column(column)
    return (F.octet_length(value) >= _FRAME_BYTES) & (F.hex(F.substring(value, 1, 1)) == "00")


def _schema_id(column: str) -> Column:
    return F.conv(F.hex(F.substring(_quoted_column(column), 2, _FRAME_BYTES - 1)), 16, 10).cast("long")


def _record_location(batch: DataFrame) -> Column:
    """Return text with offset, topic and partition of a record, if the batch still has these columns."""
    if not set(_LOCATION_COLUMN) <= set(batch.columns):
        return F.lit("a record")
    return F.concat(
        F.lit("the record at offset "),
        F.col("offset"),
        F.lit(" of "),
        F.concat_ws(":", *_LOCATION_COLUMN[:2]),
    )
