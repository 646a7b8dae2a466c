"""Turn a JSON Schema into the Spark type of ``kl.from_json``, and refuse keywords that Spark cannot check.

Reads no record. A schema of a registry has rules of its own, in ``decode``.

>>> schema = {"type": "object", "required": ["id"], "properties": {
...     "id": {"type": "integer"}, "placed_at": {"type": "string", "format": "date-time"}}}
>>> [(f.name, f.dataType.simpleString(), f.nullable) for f in spark_type(schema)]
[('id', 'bigint', False), ('placed_at', 'timestamp', True)]
>>> spark_type({"type": "object", "properties": {"price": {"type": "number", "minimum": 0}}})
Traceback (most recent call last):
kafka_liveness_dagster.core.errors.InvalidSettingError: The JSON Schema has minimum at #/properties/price...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kafka_liveness_dagster.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import DataType

MAX_DEPTH = 64
"""Levels of types in types."""
_ANNOTATIONS = frozenset(
    {"$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples"}
    | {"deprecated", "readOnly", "writeOnly", "format"}
)
_OF_TYPE = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items"}),
}
_TYPES: Mapping[str, DataType] = {
    "string": StringType(),
    "integer": LongType(),
    "number": DoubleType(),
    "boolean": BooleanType(),
}
_FORMATS: Mapping[str, DataType] = {"date-time": TimestampType(), "date": DateType()}


def spark_type(schema: Mapping[str, Any]) -> DataType:
    """Return the Spark type of the whole document; a required property is NOT NULL.

    Raises:
        InvalidSettingError: the schema has a keyword, a type or a reference that is not supported.
    """
    found, is_nullable = _Reader(schema).read(schema, "#")
    if is_nullable:
        raise _error(
            "#", "allows null", "Remove null from its types: a record is an object, an array or a map"
        )
    if not isinstance(found, (StructType, ArrayType, MapType)):
        raise _error("#", "describes no object and no array", "Describe the whole record")
    return found


def _error(where: str, problem: str, remedy: str) -> InvalidSettingError:
    return InvalidSettingError(f"The JSON Schema {problem} at {where}. No record was read. Fix: {remedy}.")


class _Reader:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def read(self, schema: Any, where: str, depth: int = 0) -> tuple[DataType, bool]:
        """Return the type of a part, and whether the part may be null."""
        if depth > MAX_DEPTH:
            raise _error(where, f"has more than {MAX_DEPTH} levels", "Keep recursive parts as text")
        if not isinstance(schema, dict):
            raise _error(where, f"has {schema!r} instead of a schema", "Write an object with a type")
        if "$ref" in schema:
            _require_known(schema, where, "$ref")
            return self.read(self._referenced(str(schema["$ref"]), where), str(schema["$ref"]), depth + 1)
        if "anyOf" in schema:
            return self._read_any_of(schema, where, depth)
        name, is_nullable = _type_of(schema, where)
        _require_known(schema, where, "type", *_OF_TYPE.get(name, ()))
        if name == "object":
            return self._read_object(schema, where, depth), is_nullable
        if name == "array":
            return self._read_array(schema, where, depth), is_nullable
        default = _TYPES[name]
        is_text = name == "string"
        return _FORMATS.get(str(schema.get("format")), default) if is_text else default, is_nullable

    def _read_array(self, schema: dict[str, Any], where: str, depth: int) -> DataType:
        if "items" not in schema:
            raise _error(where, "has an array without items", "Give items a schema")
        element, may_be_null = self.read(schema["items"], f"{where}/items", depth + 1)
        return ArrayType(element, may_be_null)

    def _read_any_of(self, schema: dict[str, Any], where: str, depth: int) -> tuple[DataType, bool]:
        """Read ``anyOf`` of one schema and null, as generators write an optional field."""
        _require_known(schema, where, "anyOf")
        parts = schema["anyOf"] if isinstance(schema["anyOf"], list) else []
        other = [number for number, part in enumerate(parts) if part != {"type": "null"}]
        if len(other) != 1:
            raise _error(where, "has anyOf of several types", "Use one type, and null if it may be null")
        found, is_nullable = self.read(parts[other[0]], f"{where}/anyOf/{other[0]}", depth + 1)
        return found, is_nullable or len(parts) > 1

    def _read_object(self, schema: dict[str, Any], where: str, depth: int) -> DataType:
        properties = schema.get("properties") or {}
        others = schema.get("additionalProperties", True)
        required = schema.get("required") or []
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise _error(where, "has properties or required of another form", "Write an object, and a list")
        if isinstance(others, dict) and others and not properties and not required:
            value, may_be_null = self.read(others, f"{where}/additionalProperties", depth + 1)
            return MapType(StringType(), value, may_be_null)
        if others not in (True, {}):
            raise _error(
                where,
                f"has additionalProperties {others!r} next to properties",
                "Remove it: fields that the schema lacks are ignored",
            )
        if not properties:
            raise _error(where, "has an object without properties", "Give properties or additionalProperties")
        if unknown := [name for name in required if name not in properties]:
            raise _error(
                where, f"requires {unknown[0]!r}, which properties lacks", "Describe it in properties"
            )
        fields = []
        for name, part in properties.items():
            found, may_be_null = self.read(part, f"{where}/properties/{name}", depth + 1)
            fields.append(StructField(name, found, may_be_null or name not in required))
        return StructType(fields)

    def _referenced(self, name: str, where: str) -> Any:
        first, *path = name.split("/")
        found: Any = self._root if first == "#" else None
        for step in path:
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        if found is None:
            raise _error(where, f"refers to {name}, which it lacks", "Copy that part into $defs")
        return found


def _type_of(schema: dict[str, Any], where: str) -> tuple[str, bool]:
    """Return the single type of a part, and whether the part may be null."""
    names = schema.get("type", "object" if "properties" in schema else None)
    types = {*map(str, names)} if isinstance(names, list) else {str(names)}
    only = types - {"null"}
    if only == {"integer", "number"}:
        only = {"number"}
    if len(only) != 1 or not only <= {*_TYPES, *_OF_TYPE}:
        raise _error(
            where,
            f"has type {names!r}",
            "Write string, integer, number, boolean, object or array, and null if it may be null",
        )
    return only.pop(), "null" in types


def _require_known(schema: dict[str, Any], where: str, *known: str) -> None:
    if unknown := sorted({*schema} - _ANNOTATIONS - {*known}):
        raise _error(
            where,
            f"has {', '.join(unknown)}",
            "Remove it, and check the values in the transform; Spark checks types and required fields only",
        )
