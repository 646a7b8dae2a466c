"""What does a Protobuf message become in Spark? A struct; it is read by Protobuf's own library, in Spark's Python.

Not by Spark's ``from_protobuf``: it knows nothing of the indexes by which a record names its message, a zero is null to
it, and no registry of packages has its jar for Spark 4.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from pyspark import cloudpickle
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kafka_liveness_dagster.core.registered import Registered, SchemaUnusableError
from kafka_liveness_dagster.spark import messages
from kafka_liveness_dagster.spark.descriptors import files_of, messages_of
from kafka_liveness_dagster.spark.messages import MessageReader
from kafka_liveness_dagster.spark.room import Room

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from google.protobuf.descriptor import Descriptor
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

    from kafka_liveness_dagster.spark.messages import How

cloudpickle.register_pickle_by_value(messages)  # it travels with the function
_PLAIN: dict[int, DataType] = {
    FieldDescriptor.CPPTYPE_INT32: IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: LongType(),
    FieldDescriptor.CPPTYPE_UINT32: LongType(),
    FieldDescriptor.CPPTYPE_UINT64: DecimalType(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: DoubleType(),
    FieldDescriptor.CPPTYPE_FLOAT: FloatType(),
    FieldDescriptor.CPPTYPE_BOOL: BooleanType(),
    FieldDescriptor.CPPTYPE_ENUM: StringType(),
}
_TIMESTAMP = "google.protobuf.Timestamp"
_AS_IT_IS = ("as it is", None)


def reader_of(
    written_by: Sequence[Registered], reader: Registered, message: str | None = None
) -> Callable[[Column], Column]:
    """A function of Spark's from records to structs of the reader's message, the first of its file unless told.

    Null, and what is not in the wire format or of another schema, gives null: Spark calls it for every row.

    Raises:
        SchemaUnusableError: the reader has no such message, or a schema is none.
    """
    names = messages_of(reader)
    wanted = message or names.get((0,), "")
    if wanted not in names.values():
        raise SchemaUnusableError(
            f"schema {reader.id} has no message {wanted!r}: nothing was written; it has {', '.join(names.values())}"
        )
    files, pool = files_of(reader), DescriptorPool()
    for file in files.file:
        pool.Add(file)
    kind, how = _struct(pool.FindMessageTypeByName(wanted), (), Room(reader))
    written = {one.id: messages_of(one) for one in written_by}
    read: Callable[[Column], Column] = F.udf(returnType=kind, useArrow=False)(
        MessageReader(files.SerializeToString(), wanted, written, how)
    )
    return read


def _struct(message: Descriptor, within: tuple[str, ...], room: Room) -> tuple[DataType, How]:
    fields, above = [], (*within, message.full_name)
    how = []
    for field in message.fields:
        with room.field():
            kind, shape, of_one = _field(field, above, room)
        fields.append(StructField(field.name, kind))
        how.append((field.name, shape, of_one))
    return StructType(fields), ("struct", how)


def _field(field: FieldDescriptor, within: tuple[str, ...], room: Room) -> tuple[DataType, str, Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (_one(part, within, room) for part in field.message_type.fields)
        return MapType(key[0], value[0]), "map", (key[1], value[1])
    kind, how = _one(field, within, room)
    if field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED:  # since Protobuf 7
        return ArrayType(kind), "list", how
    return kind, "optional" if field.has_presence else "always", how


def _one(field: FieldDescriptor, within: tuple[str, ...], room: Room) -> tuple[DataType, How]:
    if (message := field.message_type) is not None:
        if message.full_name == _TIMESTAMP:
            return TimestampType(), ("timestamp", None)
        if _is_endless(message, within):
            return StringType(), ("json", None)
        return _struct(message, within, room)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return BinaryType(), _AS_IT_IS
    if field.enum_type is not None:
        return StringType(), ("enum", {number: one.name for number, one in field.enum_type.values_by_number.items()})
    kind = _PLAIN.get(field.cpp_type, StringType())
    return kind, ("decimal", None) if isinstance(kind, DecimalType) else _AS_IT_IS


def _is_endless(message: Descriptor, within: tuple[str, ...]) -> bool:
    """Whether a message is within itself, directly or over others: no struct holds it, so it is JSON, as text."""
    waiting, seen = [message], set(within)
    while waiting:
        inner = [field.message_type for field in waiting.pop().fields if field.message_type is not None]
        if message.full_name in seen or any(one.full_name == message.full_name for one in inner):
            return True
        waiting += [one for one in inner if one.full_name not in seen]
        seen |= {one.full_name for one in inner}
    return False
