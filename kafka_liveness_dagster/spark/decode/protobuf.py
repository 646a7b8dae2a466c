"""Decode Protobuf messages into Spark structs, with Protobuf's own library in Spark's Python workers.

The protoc of ``grpcio-tools`` compiles a .proto file, once for each schema.

Never uses Spark's ``from_protobuf``. It does not read the indexes by which a record names its message. It
turns a zero into null. And no package registry has its jar for Spark 4.1.
"""

from __future__ import annotations

import base64
import binascii
import functools
import importlib
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from pyspark import cloudpickle
from pyspark.sql import functions as F  # noqa: N812 (PySpark's usual alias)
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

from kafka_liveness_dagster.core.names import escape
from kafka_liveness_dagster.core.schemas import SchemaUnusableError, SchemaWithId
from kafka_liveness_dagster.spark.decode import protobuf_udf
from kafka_liveness_dagster.spark.decode.protobuf_udf import ProtobufUdf
from kafka_liveness_dagster.spark.decode.schema_size import SchemaSize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from google.protobuf.descriptor import Descriptor
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

    from kafka_liveness_dagster.spark.decode.protobuf_udf import How


_FILE_NAME = "schema.proto"
_GOOGLE_PREFIX = "google/protobuf/"
PROTOC_TIMEOUT_SECONDS = 60.0
"""Time limit for compiling one schema with protoc."""
_LETTERS = 300  # maximum characters of protoc's message, which quotes the schema


@functools.lru_cache(maxsize=256)
def descriptor_files(schema: SchemaWithId) -> FileDescriptorSet:
    """Return the schema's file and all its imports; its own file is the last one.

    Raises:
        SchemaUnusableError: the schema is no Protobuf, or imports a file that is not part of Protobuf itself.
    """
    try:
        own = FileDescriptorProto.FromString(base64.b64decode(schema.text, validate=True))
    except (DecodeError, binascii.Error):
        return _compile(schema)
    found: dict[str, FileDescriptorProto] = {}
    _add_file(own, found, schema)
    return FileDescriptorSet(file=found.values())


def message_names(schema: SchemaWithId) -> dict[tuple[int, ...], str]:
    """The full names of its messages, by the indexes with which the wire format names them."""
    own = descriptor_files(schema).file[-1]
    return dict(_walk_messages(own.message_type, (), f"{own.package}." if own.package else ""))


def _walk_messages(
    messages: Iterable[object], path: tuple[int, ...], before: str
) -> Iterator[tuple[tuple[int, ...], str]]:
    for index, one in enumerate(messages):
        name = f"{before}{one.name}"  # type: ignore[attr-defined]
        yield (*path, index), name
        yield from _walk_messages(one.nested_type, (*path, index), f"{name}.")  # type: ignore[attr-defined]


def _add_file(file: FileDescriptorProto, found: dict[str, FileDescriptorProto], schema: SchemaWithId) -> None:
    for name in file.dependency:
        if name not in found:
            _add_file(_well_known_file(name, schema), found, schema)
    found[file.name] = file


def _well_known_file(name: str, schema: SchemaWithId) -> FileDescriptorProto:
    """Return a file that is part of Protobuf, like ``google/protobuf/timestamp.proto``."""
    file = FileDescriptorProto()
    if name.startswith(_GOOGLE_PREFIX):
        with suppress(ImportError):
            importlib.import_module(
                name.removesuffix(".proto").replace("/", ".") + "_pb2"
            ).DESCRIPTOR.CopyToProto(file)
    if not file.name:
        raise SchemaUnusableError(
            f"schema {schema.id} imports {name}, which is not part of Protobuf. Nothing was written. Fix: "
            "register it as one file, or decode the column with your own function."
        )
    return file


def _compile(schema: SchemaWithId) -> FileDescriptorSet:
    with tempfile.TemporaryDirectory(prefix="kafka-liveness-") as folder:
        (Path(folder) / _FILE_NAME).write_text(schema.text, encoding="utf-8")
        out = Path(folder) / "descriptors"
        options = ("-I", folder, "--include_imports", f"--descriptor_set_out={out}", _FILE_NAME)
        try:
            protoc = subprocess.run(
                [sys.executable, "-m", "grpc_tools.protoc", *options],
                cwd=folder,
                check=False,
                capture_output=True,
                text=True,
                timeout=PROTOC_TIMEOUT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise SchemaUnusableError(
                f"schema {schema.id} is a .proto file, and protoc did not compile it in "
                f"{PROTOC_TIMEOUT_SECONDS:.0f} s. Nothing was written. Fix: correct the schema in the "
                "registry, or reduce the load on this machine."
            ) from None
        if protoc.returncode:
            raise SchemaUnusableError(
                _compile_error_message(schema, protoc.stderr.replace(f"{folder}/", "").strip())
            )
        return FileDescriptorSet.FromString(out.read_bytes())


def _compile_error_message(schema: SchemaWithId, said: str) -> str:
    if "No module named" in said:
        return (
            f"schema {schema.id} is a .proto file, and there is no protoc to compile it. Nothing was "
            "written. Fix: pip install 'kafka-liveness-dagster[registry]'"
        )
    line = escape(said.splitlines()[0])[:_LETTERS] if said else "no message"
    return (
        f"schema {schema.id} cannot be compiled by protoc ({line}). Nothing was written. Fix: correct it in "
        "the registry."
    )


# Spark's workers may lack this package, so the module is sent with the function
cloudpickle.register_pickle_by_value(protobuf_udf)
_PRIMITIVE_TYPES: dict[int, DataType] = {
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
_UNCONVERTED = ("as it is", None)


def protobuf_reader(
    writer_schemas: Sequence[SchemaWithId], reader: SchemaWithId, message: str | None = None
) -> Callable[[Column], Column]:
    """Return a Spark function from records to structs of the reader's message.

    The function returns null for null, for bytes that are not in the wire format, and for another schema.
    It must not fail there, because Spark calls it for every row.

    Args:
        writer_schemas: schemas of the records.
        reader: schema that defines the struct.
        message: full name of the message; the first message of the reader's file by default.

    Raises:
        SchemaUnusableError: the reader has no such message, or a schema cannot be compiled.
    """
    names = message_names(reader)
    wanted = message or names.get((0,), "")
    if wanted not in names.values():
        raise SchemaUnusableError(
            f"schema {reader.id} has no message {wanted!r}. Nothing was written. Fix: set message to one of "
            f"{', '.join(names.values())}."
        )
    files = descriptor_files(reader)
    pool = DescriptorPool()
    for file in files.file:
        pool.Add(file)
    kind, how = _struct_type(pool.FindMessageTypeByName(wanted), (), SchemaSize(reader))
    written = {one.id: message_names(one) for one in writer_schemas}
    read: Callable[[Column], Column] = F.udf(returnType=kind, useArrow=False)(
        ProtobufUdf(files.SerializeToString(), wanted, written, how=how)
    )
    return read


def _struct_type(message: Descriptor, within: tuple[str, ...], room: SchemaSize) -> tuple[DataType, How]:
    fields = []
    above = (*within, message.full_name)
    how = []
    for field in message.fields:
        with room.field():
            kind, shape, of_one = _struct_field(field, above, room)
        fields.append(StructField(field.name, kind))
        how.append((field.name, shape, of_one))
    return StructType(fields), ("struct", how)


def _struct_field(
    field: FieldDescriptor, within: tuple[str, ...], room: SchemaSize
) -> tuple[DataType, str, Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (_element_type(part, within, room) for part in field.message_type.fields)
        return MapType(key[0], value[0]), "map", (key[1], value[1])
    kind, how = _element_type(field, within, room)
    # Protobuf has `is_repeated` since version 7
    if field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED:
        return ArrayType(kind), "list", how
    return kind, "optional" if field.has_presence else "always", how


def _element_type(field: FieldDescriptor, within: tuple[str, ...], room: SchemaSize) -> tuple[DataType, How]:
    if (message := field.message_type) is not None:
        if message.full_name == _TIMESTAMP:
            return TimestampType(), ("timestamp", None)
        if _is_recursive(message, within):
            return StringType(), ("json", None)
        return _struct_type(message, within, room)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return BinaryType(), _UNCONVERTED
    if field.enum_type is not None:
        return StringType(), (
            "enum",
            {number: one.name for number, one in field.enum_type.values_by_number.items()},
        )
    kind = _PRIMITIVE_TYPES.get(field.cpp_type, StringType())
    return kind, ("decimal", None) if isinstance(kind, DecimalType) else _UNCONVERTED


def _is_recursive(message: Descriptor, within: tuple[str, ...]) -> bool:
    """Return whether a message contains itself, directly or through other messages.

    A struct cannot contain itself, so such a message becomes JSON text.
    """
    waiting = [message]
    seen = set(within)
    while waiting:
        inner = [field.message_type for field in waiting.pop().fields if field.message_type is not None]
        if message.full_name in seen or any(one.full_name == message.full_name for one in inner):
            return True
        waiting += [one for one in inner if one.full_name not in seen]
        seen |= {one.full_name for one in inner}
    return False
