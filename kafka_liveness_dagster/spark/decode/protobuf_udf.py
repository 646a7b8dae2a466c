"""Decode a record in Protobuf's wire format in Spark's Python workers, which may lack this package.

Spark gets the whole module as it is. Imports are therefore inside the functions. It may import only Python's
own modules and ``protobuf``, which PySpark's client installs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    How = tuple[str, Any]
    """Conversion of a Protobuf value: a kind, and its parameters."""

_FRAME_BYTES = 5  # a zero byte and four bytes of the schema's id
_CONTINUATION_BIT = 128  # a byte below it is the last one of a number
_MAX_VARINT_BYTES = 5  # maximum bytes of an index, which has 32 bits


class ProtobufUdf:
    """A function from a record to a row.

    Attributes:
        files: descriptors of the reader, serialized.
        wanted: full name of the reader's message.
        names: full names of the messages of each schema, by schema id and message indexes.
        how: conversion of the message to a row.
    """

    def __init__(
        self, files: bytes, wanted: str, names: Mapping[int, Mapping[tuple[int, ...], str]], how: How
    ) -> None:
        self.files = files
        self.wanted = wanted
        self.names = names
        self.how = how
        self._class: Any = None

    def __call__(self, data: Any) -> Any:
        """Return the row; None for null, for bytes that are not in the wire format, and for another schema.

        Raises:
            ValueError: the record has another message, or no valid one.
        """
        if data is None or len(data) <= _FRAME_BYTES or data[0] != 0:
            return None
        schema = int.from_bytes(data[1:_FRAME_BYTES], "big")
        if schema not in self.names:
            return None
        try:
            path, at = read_message_indexes(data, _FRAME_BYTES, max(map(len, self.names[schema]), default=1))
            name = self.names[schema].get(path)
            found = self._message().FromString(bytes(data[at:])) if name == self.wanted else None
        except Exception as error:  # noqa: BLE001 - the version of Protobuf there decides the class
            raise ValueError(f"a record of schema {schema} is not a valid {self.wanted}: {error}") from None
        if found is None:
            raise ValueError(
                f"a record of schema {schema} has the message {name}, not {self.wanted}. Fix: set the "
                "message with decode(…, message=…), or filter other messages out with where(…)."
            )
        return to_spark_value(found, *self.how)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_class": None}  # created again in the worker

    def _message(self) -> Any:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415 - the worker's versions

        if self._class is None:
            pool = descriptor_pool.DescriptorPool()
            for file in descriptor_pb2.FileDescriptorSet.FromString(self.files).file:
                pool.Add(file)
            self._class = message_factory.GetMessageClass(pool.FindMessageTypeByName(self.wanted))
        return self._class


def read_message_indexes(data: bytes, at: int, deepest: int) -> tuple[tuple[int, ...], int]:
    """Return the indexes that name the message, and the position where the message begins.

    A message may have ``deepest`` indexes at most.

    Raises:
        ValueError: the bytes are no valid list of indexes.

    >>> read_message_indexes(bytes([0, 8, 1]), 0, 1), read_message_indexes(bytes([4, 2, 0, 8, 1]), 0, 2)
    (((0,), 1), ((1, 0), 3))
    """
    count, at = _read_varint(data, at)
    if not 0 <= count <= deepest:
        raise ValueError(
            f"the message index has {count} numbers, and messages of this schema have {deepest} at most"
        )
    path = []
    for _ in range(count):
        index, at = _read_varint(data, at)
        path.append(index)
    return tuple(path) or (0,), at  # an index of one zero byte is the first message


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag varint: the sign is the lowest bit; all bytes but the last are above 127."""
    found = 0
    for shift, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        found |= (byte % _CONTINUATION_BIT) << 7 * shift
        if byte < _CONTINUATION_BIT:
            return (found >> 1) ^ -(found & 1), at + shift + 1
    raise ValueError("the message index has no end")


def to_spark_value(value: Any, kind: str, told: Any) -> Any:
    """Return the Spark value of a Protobuf value."""
    if kind == "struct":
        return tuple(_cell_value(value, *field) for field in told)
    if kind == "timestamp":
        from datetime import datetime, timedelta, timezone  # noqa: PLC0415

        since = timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
        return datetime(1970, 1, 1, tzinfo=timezone.utc) + since
    if kind == "json":
        from google.protobuf import json_format  # noqa: PLC0415

        return json_format.MessageToJson(value, indent=None, preserving_proto_field_name=True)
    if kind == "decimal":
        from decimal import Decimal  # noqa: PLC0415

        return Decimal(value)
    return told.get(value, str(value)) if kind == "enum" else value


def _cell_value(message: Any, name: str, shape: str, how: Any) -> Any:
    value = getattr(message, name)
    if shape == "map":
        return {to_spark_value(key, *how[0]): to_spark_value(value[key], *how[1]) for key in value}
    if shape == "list":
        return [to_spark_value(item, *how) for item in value]
    return None if shape == "optional" and not message.HasField(name) else to_spark_value(value, *how)
