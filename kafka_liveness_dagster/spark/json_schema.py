"""Of which Spark type is what a JSON Schema describes? What has no one type there stays JSON, as text.

>>> told = '{"properties": {"id": {"type": "integer"}, "price": {"type": ["number", "null"]}, "to": {"oneOf": []}}}'
>>> type_of(Registered(1, "JSON", told)).simpleString()
'struct<id:bigint,price:double,to:string>'
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

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

from kafka_liveness_dagster.core.registered import Registered, SchemaUnusableError
from kafka_liveness_dagster.spark.room import Room, too_large

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_PLAIN: dict[str, DataType] = {"integer": LongType(), "number": DoubleType(), "boolean": BooleanType()}
_MANY = ("oneOf", "anyOf", "allOf", "not", "if")


def type_of(schema: Registered) -> DataType:
    """The type of the whole document, an object or an array.

    Raises:
        SchemaUnusableError: it is no JSON Schema, or of something else.
    """
    try:
        root = json.loads(schema.text)
    except RecursionError:
        raise too_large(schema) from None
    except ValueError:
        root = None
    found = _type(root, root, (), Room(schema))
    if isinstance(found, StringType):
        raise SchemaUnusableError(
            f"schema {schema.id} describes no object with properties, no map and no array: nothing was written; take "
            "such a value as text, cast(substring(value, 6) as string)"
        )
    return found


def _type(schema: Any, root: Any, within: tuple[str, ...], room: Room) -> DataType:
    """A schema that is true, empty, or has several types is JSON as text; ``within`` are the references on the way."""
    with room.field():
        return _one_type(schema, root, within, room)


def _one_type(schema: Any, root: Any, within: tuple[str, ...], room: Room) -> DataType:
    if not isinstance(schema, dict) or any(word in schema for word in _MANY):
        return StringType()
    if "$ref" in schema:
        name = str(schema["$ref"])
        return StringType() if name in within else _type(_referred(name, root), root, (*within, name), room)
    types = {*_several(schema.get("type"))} - {"null"}
    if types == {"object"} or (not types and "properties" in schema):
        return _object(schema, root, within, room)
    if types == {"array"} and isinstance(schema.get("items"), dict):
        return ArrayType(_type(schema["items"], root, within, room))
    if types == {"integer", "number"}:
        return DoubleType()
    return _PLAIN.get(types.pop(), StringType()) if len(types) == 1 else StringType()


def _object(schema: dict[str, Any], root: Any, within: tuple[str, ...], room: Room) -> DataType:
    properties = schema.get("properties")
    if properties and isinstance(properties, dict):
        return StructType([StructField(name, _type(one, root, within, room)) for name, one in properties.items()])
    others = schema.get("additionalProperties")
    return MapType(StringType(), _type(others, root, within, room)) if isinstance(others, dict) else StringType()


def _several(types: Any) -> list[str]:
    """The types by their names; what is no name is none that Spark has."""
    return [str(one) for one in types] if isinstance(types, list) else [str(types)] if types else []


def _referred(name: str, root: Any) -> Any:
    """What ``#/definitions/line`` points to in this document; nothing that is in another one."""
    first, *path = name.split("/")
    found = root if first == "#" else None
    for step in path:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found
