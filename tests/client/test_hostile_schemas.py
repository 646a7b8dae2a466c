"""Schemas and records that anybody with the right to write them may send.

Refused by name, before they cost much.
"""

from __future__ import annotations

import base64
import json

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from kafka_liveness_dagster.core.schemas import SchemaUnusableError, SchemaWithId
from kafka_liveness_dagster.spark.decode import protobuf
from kafka_liveness_dagster.spark.decode.decode import check_avro_size, spark_type_of_json_schema
from kafka_liveness_dagster.spark.decode.protobuf import protobuf_reader
from kafka_liveness_dagster.spark.decode.protobuf_udf import ProtobufUdf

DOUBLINGS = 40  # a schema of 3 kB; expanded it has 2 ** 40 fields, which no machine lives to see


def doubled(of):
    """Names of which each but the last has the next one twice: ``of(name, next or None)``."""
    names = [f"D{number}" for number in range(DOUBLINGS)]
    return [of(name, after) for name, after in zip(names, [*names[1:], None], strict=True)]


def json_schema():
    def one(_, after):
        two = {"$ref": f"#/definitions/{after}"} if after else {"type": "integer"}
        return {"type": "object", "properties": {"a": two, "b": two}}

    definitions = {f"D{number}": found for number, found in enumerate(doubled(one))}
    return json.dumps({"definitions": definitions, "$ref": "#/definitions/D0"})


def avro_schema():
    inner = {"type": "int"}
    for name in reversed([name for name, _ in doubled(lambda *names: names)]):
        again = inner.get("name", "int")
        inner = {
            "type": "record",
            "name": name,
            "fields": [{"name": "a", "type": inner}, {"name": "b", "type": again}],
        }
    return json.dumps(inner)


def protobuf_schema():
    file = FileDescriptorProto(name="schema.proto", syntax="proto3")
    for name, after in doubled(lambda *names: names):
        message = file.message_type.add(name=name)
        for number, field in enumerate("ab", start=1):
            kind = FieldDescriptorProto.TYPE_MESSAGE if after else FieldDescriptorProto.TYPE_INT64
            message.field.add(name=field, number=number, label=1, type=kind, type_name=after and f".{after}")
    return base64.b64encode(file.SerializeToString()).decode()


@pytest.mark.parametrize(
    ("kind", "text", "read"),
    [
        pytest.param("JSON", json_schema, spark_type_of_json_schema, id="JSON Schema"),
        pytest.param("AVRO", avro_schema, check_avro_size, id="Avro"),
        pytest.param(
            "PROTOBUF", protobuf_schema, lambda schema: protobuf_reader([schema], schema), id="Protobuf"
        ),
    ],
)
def test_a_schema_that_doubles_with_each_name_is_refused(kind, text, read):
    """Spark's types have no names: each use of one is written out, and 3 kB would fill the memory."""
    with pytest.raises(SchemaUnusableError, match=r"schema 7 .* 10,000 fields .* nothing was written"):
        read(SchemaWithId(7, kind, text()))


@pytest.mark.parametrize(
    ("kind", "text", "read"),
    [
        pytest.param(
            "JSON",
            '{"type":"array","items":' * 900 + "{}" + "}" * 900,
            spark_type_of_json_schema,
            id="JSON Schema",
        ),
        pytest.param("JSON", "[" * 100_000, spark_type_of_json_schema, id="JSON that Python does not read"),
        pytest.param(
            "AVRO", '{"type":"array","items":' * 900 + '"int"' + "}" * 900, check_avro_size, id="Avro"
        ),
    ],
)
def test_a_schema_within_schemas_without_end_is_refused(kind, text, read):
    """Neither Python nor Spark reads it; Python would raise a RecursionError."""
    with pytest.raises(SchemaUnusableError, match=r"schema 7 .* nothing was written"):
        read(SchemaWithId(7, kind, text))


@pytest.mark.parametrize(
    "text", ['{"type":[{}]}', '{"properties":[1]}', '{"$ref":7}', '{"type":{"a":1}}', "7"]
)
def test_what_is_no_json_schema_is_refused_by_name(text):
    """By no TypeError out of the middle of it."""
    with pytest.raises(SchemaUnusableError, match="schema 7 describes no object"):
        spark_type_of_json_schema(SchemaWithId(7, "JSON", text))


def test_what_spark_reads_is_not_refused():
    """Records in records, unions, names with a namespace, and a record within itself, which Spark refuses."""
    address = {
        "type": "record",
        "name": "Address",
        "namespace": "shop",
        "fields": [{"name": "zip", "type": "string"}],
    }
    order = {
        "type": "record", "name": "Order", "namespace": "shop",
        "fields": [
            {"name": "to", "type": ["null", address]},
            {"name": "bill", "type": {"type": "map", "values": "Address"}},
            {"name": "from", "type": {"type": "array", "items": "shop.Address"}},
            {"name": "before", "type": ["null", "Order"]},
        ],
    }  # fmt: skip
    check_avro_size(SchemaWithId(7, "AVRO", json.dumps(order)))
    check_avro_size(SchemaWithId(7, "AVRO", '"string"'))
    check_avro_size(SchemaWithId(7, "AVRO", "what Spark refuses in words of its own"))


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(b"\xff" * 200_000 + b"\0", id="a number without end"),
        pytest.param(b"\xfe\xff\xff\xff\x0f" + b"\0" * 200_000, id="more indexes than messages"),
        pytest.param(b"\x01" + b"\0" * 9, id="fewer than none"),
        pytest.param(b"\xff", id="cut off"),
    ],
)
def test_a_record_that_names_no_message_is_refused_at_once(index):
    """Its indexes are as deep as messages are in messages.

    A number without end took 4 s of each task's time.
    """
    reader = ProtobufUdf(
        b"", "shop.Order", {7: {(0,): "shop.Order", (0, 1): "shop.Order.Line"}}, ("struct", [])
    )
    with pytest.raises(
        ValueError, match=r"a record of schema 7 is not a valid shop\.Order: the message index"
    ):
        reader(b"\0\0\0\0\7" + index + b"\0")


def test_a_protoc_that_does_not_end_is_stopped(monkeypatch):
    """By the name of the schema that it was to compile."""
    monkeypatch.setattr(protobuf, "PROTOC_TIMEOUT_SECONDS", 0.0)
    with pytest.raises(
        SchemaUnusableError, match=r"schema 7 .* protoc did not compile it in 0 s\. Nothing was written"
    ):
        protobuf.descriptor_files(SchemaWithId(7, "PROTOBUF", 'syntax = "proto3"; message A {}'))
