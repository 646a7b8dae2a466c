"""Which messages does a Protobuf schema define? As descriptors, whether the registry gave them or a .proto file.

A .proto file is compiled by the protoc of ``grpcio-tools``, once for each schema.
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
from typing import TYPE_CHECKING

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from kafka_liveness_dagster.core.names import printable
from kafka_liveness_dagster.core.registered import Registered, SchemaUnusableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_FILE = "schema.proto"
_GOOGLES = "google/protobuf/"
_PROTOC_SECONDS = 60.0
_LETTERS = 300  # of what protoc says, which quotes the schema


@functools.lru_cache(maxsize=256)
def files_of(schema: Registered) -> FileDescriptorSet:
    """The schema's own file, as the last, behind all that it imports.

    Raises:
        SchemaUnusableError: it is no Protobuf, or imports what is not part of Protobuf itself.
    """
    try:
        own = FileDescriptorProto.FromString(base64.b64decode(schema.text, validate=True))
    except (DecodeError, binascii.Error):
        return _compiled(schema)
    found: dict[str, FileDescriptorProto] = {}
    _add(own, found, schema)
    return FileDescriptorSet(file=found.values())


def messages_of(schema: Registered) -> dict[tuple[int, ...], str]:
    """The full names of its messages, by the indexes with which the wire format names them."""
    own = files_of(schema).file[-1]
    return dict(_walk(own.message_type, (), f"{own.package}." if own.package else ""))


def _walk(messages: Iterable[object], path: tuple[int, ...], before: str) -> Iterator[tuple[tuple[int, ...], str]]:
    for index, one in enumerate(messages):
        name = f"{before}{one.name}"  # type: ignore[attr-defined]
        yield (*path, index), name
        yield from _walk(one.nested_type, (*path, index), f"{name}.")  # type: ignore[attr-defined]


def _add(file: FileDescriptorProto, found: dict[str, FileDescriptorProto], schema: Registered) -> None:
    for name in file.dependency:
        if name not in found:
            _add(_of_protobuf(name, schema), found, schema)
    found[file.name] = file


def _of_protobuf(name: str, schema: Registered) -> FileDescriptorProto:
    """A file that comes with Protobuf, like ``google/protobuf/timestamp.proto``."""
    file = FileDescriptorProto()
    if name.startswith(_GOOGLES):
        with suppress(ImportError):
            importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2").DESCRIPTOR.CopyToProto(file)
    if not file.name:
        raise SchemaUnusableError(
            f"schema {schema.id} imports {name}, which is not part of Protobuf: nothing was written; register it as "
            "one file, or decode the column by a function of your own"
        )
    return file


def _compiled(schema: Registered) -> FileDescriptorSet:
    with tempfile.TemporaryDirectory(prefix="kafka-liveness-") as folder:
        (Path(folder) / _FILE).write_text(schema.text, encoding="utf-8")
        out = Path(folder) / "descriptors"
        options = ("-I", folder, "--include_imports", f"--descriptor_set_out={out}", _FILE)
        try:
            protoc = subprocess.run(
                [sys.executable, "-m", "grpc_tools.protoc", *options],
                cwd=folder,
                check=False,
                capture_output=True,
                text=True,
                timeout=_PROTOC_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise SchemaUnusableError(
                f"schema {schema.id} is a .proto file, and protoc did not compile it in {_PROTOC_SECONDS:.0f} s: "
                "nothing was written; look at the schema in the registry, and whether this machine is busy"
            ) from None
        if protoc.returncode:
            raise SchemaUnusableError(_why(schema, protoc.stderr.replace(f"{folder}/", "").strip()))
        return FileDescriptorSet.FromString(out.read_bytes())


def _why(schema: Registered, said: str) -> str:
    if "No module named" in said:
        return (
            f"schema {schema.id} is a .proto file, and there is no protoc to compile it: nothing was written; "
            "pip install 'kafka-liveness-dagster[registry]'"
        )
    line = printable(said.splitlines()[0])[:_LETTERS] if said else "it said nothing"
    return f"schema {schema.id} is none that protoc compiles ({line}): nothing was written; correct it in the registry"
