"""Records in a registry's wire format become columns.

Avro, Protobuf, JSON Schema, old and new, by a real one.
"""

from __future__ import annotations

import json
import sys
import threading
from datetime import datetime, timezone
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from subprocess import run as run_program
from uuid import uuid4

import dagster as dg
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaReference
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.kafka import schema_registry_settings
from kafka_liveness_dagster.spark.connect.session import close, connect
from kafka_liveness_dagster.spark.decode import protobuf_udf as message_reader
from kafka_liveness_dagster.spark.source import read_ranges
from kafka_liveness_dagster.spark.table.write import write_table
from kafka_liveness_dagster.spark.transform import TransformedBatch
from tests.integration.dead_letter_group import DeadLetterGroup
from tests.integration.schema_registry import PASSWORD, USER, started

V1 = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "item", "type": "string"}],
}
V2 = {**V1, "fields": [*V1["fields"], {"name": "price", "type": ["null", "double"], "default": None}]}
PROTO = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Refund { int64 id = 1; }
message Order {
  message Line { string item = 1; uint64 amount = 2; }
  enum State { OPEN = 0; PAID = 1; }
  int64 id = 1;
  repeated Line lines = 2;
  map<string, int32> labels = 3;
  State state = 4;
  google.protobuf.Timestamp at = 5;
  optional string note = 6;
  Order before = 7;
  bytes raw = 8;
}
"""
DRAFT = "http://json-schema.org/draft-07/schema#"
VALUE = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture(scope="session")
def registry(tmp_path_factory):
    with started(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture(autouse=True)
def patient_registry(monkeypatch):
    """Let a cold registry on a busy machine take its time."""
    monkeypatch.setitem(schema_registry_settings.RETRY_SETTINGS, "timeout", 60)


@pytest.fixture
def subject():
    return f"orders-{uuid4().hex[:8]}-value"


@pytest.fixture
def resource(registry):
    """As a user has it; without a run, so the password is no variable's."""
    made = kl.SchemaRegistryResource(
        url=registry.url, username=USER, password=PASSWORD, ssl_ca_location=registry.authority
    )
    yield made
    made.teardown_after_execution(None)


@pytest.fixture
def send(services, make_topic):
    """A topic with these values, or more of them: ``send(values, topic=None) -> topic``."""
    producer = Producer({"bootstrap.servers": services.bootstrap_servers, "log_level": 0})

    def produce(values, topic=None):
        topic = topic or make_topic()
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(120) == 0
        return topic

    return produce


@pytest.fixture
def batch(services, warm_spark, send):
    """A batch of these values: ``batch(values, session=None) -> DataFrame``."""

    def of(values, session=None):
        ranges = [kl.OffsetRange(send(values), 0, 0, len(values))]
        return read_ranges(
            session or warm_spark, ranges, {"kafka.bootstrap.servers": services.bootstrap_servers}
        )

    return of


@pytest.fixture
def session_without_package(services, warm_spark, tmp_path):
    """A session whose Python workers cannot import this package, as on a cluster of the user's.

    The workers of a session are its own, and find the modules that are sent with it before those that are
    installed.
    """
    module = tmp_path / f"{kl.__name__}.py"
    module.write_text('raise ImportError("hidden from Spark")\n')
    session = connect(services.spark_remote, timeout_seconds=120)
    session.addArtifacts(str(module), pyfile=True)
    name = message_reader.__name__

    def import_error(_):
        try:
            import_module(name)
        except ImportError as error:
            return str(error)
        return "it is importable"

    [[found]] = session.range(1).select(F.udf(import_error)("id")).collect()
    assert found == "hidden from Spark"
    yield session
    close(session)


def serialized(kind, registry, subject, schema, **settings):
    """A serializer of Confluent's, which registers the schema with the first record."""
    conf = {"subject.name.strategy": lambda *_: subject, **settings}
    if kind is ProtobufSerializer:
        return lambda value: kind(schema, registry.client(), conf)(value, VALUE)
    if kind is JSONSerializer:
        return lambda value: kind(json.dumps(schema), registry.client(), conf=conf)(value, VALUE)
    return lambda value: kind(registry.client(), json.dumps(schema), conf=conf)(value, VALUE)


def framed(number, payload):
    """Confluent's wire format by hand."""
    return b"\0" + number.to_bytes(4, "big") + payload


def values(frame):
    return [row["value"] for row in frame.orderBy("offset").collect()]


def test_what_is_new_in_a_schema_is_a_column_of_the_table(  # noqa: PLR0917 - fixtures
    example, registry, like, send, table, rows, monkeypatch
):
    """Records of the old schema and of the new one in one batch.

    The docs' asset, with its variables, in runs.
    """
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", registry.url)
    monkeypatch.setenv("SCHEMA_REGISTRY_USERNAME", USER)
    monkeypatch.setenv("SCHEMA_REGISTRY_PASSWORD", PASSWORD)
    monkeypatch.setenv("SCHEMA_REGISTRY_CA", registry.authority)
    old, new = (serialized(AvroSerializer, registry, "orders-value", schema) for schema in (V1, V2))
    topic = send([old({"id": 1, "item": "tea"})])
    shown = example("decoded")
    asset = like(shown.orders, topics=[topic], group_id=f"etl-{topic}", table=table, idle_seconds=0.5)
    defs = dg.Definitions.merge(asset.definitions, dg.Definitions(resources=shown.defs.resources))

    def run():
        with dg.DagsterInstance.ephemeral() as instance:
            assert (
                defs.resolve_job_def(f"{asset.identifier}_job").execute_in_process(instance=instance).success
            )
        return [{name: row.get(name, "no column") for name in ("id", "item", "price")} for row in rows(table)]

    first = {"id": 1, "item": "tea"}
    assert run() == [{**first, "price": "no column"}]
    send([new({"id": 2, "item": "mate", "price": 1.5}), old({"id": 3, "item": "tea"}), None], topic)
    nothing = dict.fromkeys(("id", "item", "price"))
    second = {"id": 2, "item": "mate", "price": 1.5}
    assert run() == [{**first, "price": None}, second, {"id": 3, "item": "tea", "price": None}, nothing]


def test_a_value_that_is_kept_whole_follows_its_schema(  # noqa: PLR0917 - fixtures
    services, warm_spark, registry, resource, send, subject, table, rows
):
    """What is new in a schema is a field of the struct, and what was removed is null in new rows."""
    versions = [{**V1, "fields": [*V1["fields"], {"name": "note", "type": "string", "default": ""}]}, V2]
    records = [{"id": 1, "item": "tea", "note": "hot"}, {"id": 2, "item": "mate", "price": 1.5}]
    for schema, record in zip(versions, records, strict=True):
        ranges = [
            kl.OffsetRange(send([serialized(AvroSerializer, registry, subject, schema)(record)]), 0, 0, 1)
        ]
        batch = read_ranges(warm_spark, ranges, {"kafka.bootstrap.servers": services.bootstrap_servers})
        whole = resource.decode(batch, subject).select("topic", "partition", "offset", "value")
        assert write_table(warm_spark, table, ranges, lambda whole=whole: whole).rows == 1
    found = sorted((row["value"] for row in rows(table)), key=lambda value: value["id"])
    assert found == [{**records[0], "price": None}, {**records[1], "note": None}]


def test_every_type_of_avro_comes_out_as_sparks(registry, resource, batch, subject):
    """The jar of Spark's Avro is older than Spark; its types are those of Spark all the same."""
    types = {
        "b": "bytes", "f": "float", "d": "double", "i": "int", "t": "boolean", "n": ["null", "string"],
        "e": {"type": "enum", "name": "State", "symbols": ["OPEN", "PAID"]},
        "x": {"type": "fixed", "name": "Two", "size": 2},
        "l": {"type": "array", "items": "long"}, "m": {"type": "map", "values": "string"},
        "r": {"type": "record", "name": "Line", "fields": [{"name": "item", "type": "string"}]},
        "at": {"type": "long", "logicalType": "timestamp-micros"},
        "day": {"type": "int", "logicalType": "date"},
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    }  # fmt: skip
    schema = {
        "type": "record",
        "name": "All",
        "fields": [{"name": name, "type": it} for name, it in types.items()],
    }
    at = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=timezone.utc)
    told = {
        "b": b"\1", "f": 0.5, "d": 0.1, "i": -7, "t": True, "n": None, "e": "PAID", "x": b"ab", "l": [1, 2],
        "m": {"a": "b"}, "r": {"item": "tea"}, "at": at, "day": at.date(), "price": Decimal("12.50"),
    }  # fmt: skip
    found = resource.decode(batch([serialized(AvroSerializer, registry, subject, schema)(told)]), subject)
    [row] = found.selectExpr("value.*", "unix_micros(value.at) AS micros").collect()
    assert row["micros"] == int(at.timestamp() * 1_000_000)
    assert {name: row[name] for name in told if name not in ("at", "r")} == {
        name: it for name, it in told.items() if name not in ("at", "r")
    }
    assert row["r"]["item"] == "tea"


@pytest.fixture(scope="session")
def messages(tmp_path_factory):
    """The classes of ``PROTO``, as protoc makes them."""
    folder = tmp_path_factory.mktemp("proto")
    name = f"orders_{uuid4().hex[:8]}"
    (folder / f"{name}.proto").write_text(PROTO)
    protoc = ["-m", "grpc_tools.protoc", "-I", str(folder), "--python_out", str(folder), f"{name}.proto"]
    run_program([sys.executable, *protoc], check=True, cwd=folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        return import_module(f"{name}_pb2")


def test_messages_of_protobuf(  # noqa: PLR0917 - fixtures
    registry, resource, batch, subject, messages, session_without_package
):
    """A descriptor as Confluent's serializer registers it, its second message, and each kind of field.

    Spark's Python workers decode them without this package: the code of the reader travels with the function.

    Then the same subject as a .proto file with one field more, and a record that names its message by one
    byte.
    """
    at = datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=timezone.utc)
    order = messages.Order(id=7, labels={"a": 1}, state="PAID", raw=b"\1", before={"id": 6})
    order.lines.add(item="tea", amount=2**64 - 1)
    order.at.FromDatetime(at)
    write_order = serialized(
        ProtobufSerializer, registry, subject, messages.Order, **{"use.deprecated.format": False}
    )
    records = [write_order(order), write_order(messages.Order()), None]
    found = resource.decode(batch(records, session_without_package), subject, message="shop.Order")
    full, empty, nothing = values(found.withColumn("value", found["value"].dropFields("at")))
    assert full.asDict(recursive=True) == {
        "id": 7, "lines": [{"item": "tea", "amount": Decimal(2**64 - 1)}], "labels": {"a": 1},
        "state": "PAID", "note": None, "before": '{"id": "6"}', "raw": b"\1",
    }  # fmt: skip
    assert (empty["id"], empty["lines"], empty["state"], empty["note"], nothing) == (
        0,
        [],
        "OPEN",
        None,
        None,
    )
    micros = found.selectExpr("unix_micros(value.at) AS at", "offset").orderBy("offset").collect()
    assert [row["at"] for row in micros] == [int(at.timestamp()) * 1_000_000 + 678_900, None, None]

    newer = PROTO.replace(
        "message Refund { int64 id = 1; }", "message Refund { int64 id = 1; string why = 2; }"
    )
    number = registry.register(subject, newer, "PROTOBUF")
    refunds = [framed(number, b"\0\x08\x05\x12\x04late"), framed(number, b"\2\0\x08\x06")]
    found = resource.decode(batch(refunds, session_without_package), subject)
    assert [tuple(row) for row in values(found)] == [(5, "late"), (6, "")]
    mixed = resource.decode(batch([*refunds, write_order(order)], session_without_package), subject)
    with pytest.raises(PySparkException, match=r"has the message shop\.Order, not shop\.Refund\. .*message="):
        values(mixed)
    with pytest.raises(
        kl.SchemaUnusableError,
        match=r"no message 'shop\.Other'.*shop\.Refund, shop\.Order, shop\.Order\.Line",
    ):
        resource.decode(batch(refunds), subject, message="shop.Other")
    with pytest.raises(PySparkException, match=rf"a record of schema {number} is not a valid shop\.Refund: "):
        values(resource.decode(batch([framed(number, b"\0\xff")]), subject))


def test_documents_of_json_schema(registry, resource, batch, subject):
    """What a newer version describes is there; what has no one type stays JSON."""
    old = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}}
    new = {**old, "properties": {**old["properties"], "price": {"type": ["number", "null"]}, "to": {}}}
    records = [
        serialized(JSONSerializer, registry, subject, old)({"id": 1}),
        serialized(JSONSerializer, registry, subject, new)({"id": 2, "price": 0.5, "to": {"city": "Delft"}}),
    ]
    found = resource.decode(batch(records), subject)
    assert [tuple(row) for row in values(found)] == [(1, None, None), (2, 0.5, '{"city":"Delft"}')]
    number = registry.client().get_latest_version(subject).schema_id
    with pytest.raises(PySparkException, match="MALFORMED_RECORD_IN_PARSING"):
        values(resource.decode(batch([framed(number, b'{"id": "no number"}')]), subject))


def test_a_batch_without_records_has_the_columns(registry, resource, batch, subject):
    """Aborted or compacted away: the reader's schema says which there are."""
    registry.register(subject, json.dumps(V1), "AVRO")
    found = resource.decode(batch([b"any"]).where("offset > 5"), subject).select("offset", "value.*")
    assert (found.columns, found.collect()) == (["offset", "id", "item"], [])


@pytest.mark.parametrize(
    ("value", "begins"),
    [(b'{"id": 1}', "7B22696422"), (b"\0\0\0", "000000"), (b"", ""), (b"\1\0\0\0\1\2", "0100000001")],
)
def test_what_is_not_in_the_wire_format_fails_by_its_place(  # noqa: PLR0917 - fixtures
    registry, resource, services, warm_spark, send, subject, table, value, begins
):
    """The row fails in Spark, so the batch is not written."""
    registry.register(subject, json.dumps(V1), "AVRO")
    good = serialized(AvroSerializer, registry, subject, V1)({"id": 1, "item": "tea"})
    topic = send([good, value])
    ranges, options = (
        [kl.OffsetRange(topic, 0, 0, 2)],
        {"kafka.bootstrap.servers": services.bootstrap_servers},
    )
    transform = lambda it: resource.decode(it, subject).select("topic", "partition", "offset", "value.*")  # noqa: E731
    message = rf"the record at offset 1 of {topic}:0 is not in the wire format .*begins with 0x{begins}\b"
    with pytest.raises(kl.SparkFailedError, match=message):
        write_table(
            warm_spark, table, ranges, TransformedBatch(transform, warm_spark, ranges, options=options)
        )
    assert not warm_spark.catalog.tableExists(table)


def test_a_payload_that_its_schema_does_not_describe_fails(registry, resource, batch, subject):
    """Cut off in the middle."""
    number = registry.register(subject, json.dumps(V1), "AVRO")
    with pytest.raises(PySparkException, match=r"MALFORMED_AVRO|[Mm]alformed"):
        values(resource.decode(batch([framed(number, b"\2\x50te")]), subject))


def test_what_the_registry_does_not_have_is_named(registry, resource, batch, subject):
    """A subject, before Spark decodes anything; a schema, where Spark meets its record."""
    registry.register(subject, json.dumps(V1), "AVRO")
    message = (
        r"the record at offset 0 of orders-\w+:0 was written by schema 99999, "
        "which the schema registry does not"
    )
    with pytest.raises(PySparkException, match=message):
        values(resource.decode(batch([framed(99_999, b"\2")]), subject))
    with pytest.raises(
        kl.SchemaNotFoundError, match=r"has no subject 'nobody-value'.*Nothing of the batch was written"
    ):
        resource.decode(batch([None]), "nobody-value")


def test_records_that_no_schema_decodes_are_dead_letters(  # noqa: PLR0917 - fixtures
    registry, resource, services, produce, rows, warm_spark, send, subject
):
    """Of another registry, or of none: the others are in the table."""
    world = DeadLetterGroup(services, produce, rows, warm_spark)
    good = serialized(AvroSerializer, registry, subject, V1)
    send(
        [good({"id": 1, "item": "tea"}), framed(99_999, b"\2"), b"{}", good({"id": 2, "item": "mate"})],
        world.topic,
    )
    world.value = lambda it: resource.decode(it, subject).select("topic", "partition", "offset", "value.*")
    assert world.live() is None
    assert (world.offsets(), world.pending_by_live_log()) == ([0, 3], [(1, 3)])
    told = [row["error"] for row in rows(f"{world.table}_dead_letters")]
    assert ["by schema 99999" in told[0], "not in the wire format" in told[1]] == [True, True]


def test_a_schema_that_cannot_be_decoded_by_is_named(registry, resource, batch, subject):
    """Of another kind than the reader's, or made of several."""
    number = registry.register(subject, json.dumps(V1), "AVRO")
    other = registry.register(f"other-{subject}", json.dumps({"$schema": DRAFT, "type": "object"}), "JSON")
    with pytest.raises(
        kl.SchemaUnusableError, match=rf"schema {other}, of JSON, and the reader's is {number}, of AVRO"
    ):
        resource.decode(batch([framed(other, b"{}")]), subject)
    with pytest.raises(kl.SchemaUnusableError, match=rf"schema {other} describes no object"):
        resource.decode(batch([None]), f"other-{subject}")
    basket = {"type": "record", "name": "Basket", "fields": [{"name": "order", "type": "Order"}]}
    registry.register(f"basket-{subject}", json.dumps(basket), "AVRO", [SchemaReference("Order", subject, 1)])
    with pytest.raises(kl.SchemaUnusableError, match=r"refers to others \(Order\)"):
        resource.decode(batch([None]), f"basket-{subject}")
    registry.register(
        f"broken-{subject}", 'syntax = "proto3"; message A { google.type.Date a = 1; }', "PROTOBUF"
    )
    with pytest.raises(
        kl.SchemaUnusableError, match=r"cannot be compiled by protoc \(schema\.proto:.*google\.type\.Date"
    ):
        resource.decode(batch([None]), f"broken-{subject}")


@pytest.mark.parametrize(
    ("column", "is_what"),
    [("id", "not in the batch"), ("topic", "of type string"), ("value", "of type struct<")],
)
def test_a_column_without_bytes_is_refused(registry, resource, batch, subject, column, is_what):  # noqa: PLR0917
    """One that is decoded already, too."""
    registry.register(subject, json.dumps(V1), "AVRO")
    frame = batch([None])
    with pytest.raises(kl.InvalidSettingError, match=f"column '{column}' to decode is {is_what}"):
        resource.decode(
            resource.decode(frame, subject) if column == "value" else frame, subject, column=column
        )


class _NoRegistry(BaseHTTPRequestHandler):
    def do_GET(self):
        status, body = self.server.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def answering():
    """A server that is no registry: ``answering(status, body) -> url``."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _NoRegistry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def answer(status, body):
            server.answer = status, body
            return f"http://127.0.0.1:{server.server_port}"

        yield answer
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"<html>", "no JSON of a schema registry"),
        (200, b"{}", "a response without a schema"),
        (200, b"[]", "no JSON of a schema registry"),
        (404, b"<html>", "HTTP 404 and no code of a schema registry"),
        (302, b"", "answered with HTTP 302"),
        (503, b'{"error_code": 503, "message": "s3cr3t"}', "answered with HTTP 503"),
    ],
)
def test_what_is_no_registry_is_named(answering, batch, status, body, said):
    """With the address, and what an address of a registry looks like."""
    url = answering(status, body)
    with pytest.raises(kl.RegistryUnreachableError, match=said) as told:
        kl.SchemaRegistryResource(url=url).decode(batch([None]), "orders-value")
    assert url in str(told.value)
    assert "s3cr3t" not in str(told.value)


def test_a_registry_that_is_away_or_refuses_is_named(registry, batch, tmp_path):
    """The address, what was asked for and what to do, never the password.

    An authority that did not sign, too.
    """
    told = {
        "url": registry.url,
        "username": USER,
        "password": "s3cr3t-but-wrong",
        "ssl_ca_location": registry.authority,
    }
    away = {**told, "url": "https://127.0.0.1:1"}
    unknown = {**told, "ssl_ca_location": None}
    for given, error, said in (
        (told, kl.AccessRefusedError, r"refused the login \(HTTP 401\), asked for subject 'orders-value'"),
        (
            away,
            kl.RegistryUnreachableError,
            r"no schema registry answered at https://127.0.0.1:1 in 3 .* of 60 s",
        ),
        (
            unknown,
            kl.AccessRefusedError,
            r"certificate of the schema registry at .* was refused .*ssl_ca_location",
        ),
    ):
        resource = kl.SchemaRegistryResource(**given)
        with pytest.raises(error, match=said) as refused:
            resource.decode(batch([None]), "orders-value")
        assert given["url"] in str(refused.value)
        assert "s3cr3t" not in f"{refused.value}{resource!r}{refused.value.__cause__}"


def test_a_registry_that_never_answers_ends_by_itself(batch, monkeypatch):
    """It takes the connection and is silent."""
    monkeypatch.setitem(schema_registry_settings.RETRY_SETTINGS, "timeout", 0.2)
    with ThreadingHTTPServer(("127.0.0.1", 0), _NoRegistry) as silent:  # nobody serves: the backlog accepts
        url = f"http://127.0.0.1:{silent.server_port}"
        with pytest.raises(kl.RegistryUnreachableError, match=r"in 3 attempts of 0\.2 s"):
            kl.SchemaRegistryResource(url=url).decode(batch([None]), "orders-value")


def test_wrong_settings_are_refused_before_anything_is_asked(registry, batch, tmp_path, monkeypatch):
    """What can be seen without a run is refused where it is declared; a variable's value in the run."""
    none = tmp_path / "none.pem"
    none.write_text("no certificate")
    fine = {"url": registry.url, "username": USER, "password": PASSWORD}
    for given, said in (
        ({"url": "registry:8081"}, "url of SchemaRegistryResource is refused: wanted a web address"),
        ({"url": "https://etl:s3cr3t@registry"}, "without a user or password"),
        ({**fine, "password": None}, "username and password belong together"),
        ({**fine, "username": "a:b"}, "username has a ':'"),
        ({"url": "http://registry:8081", "ssl_ca_location": "ca.pem"}, "ssl_ca_location would not be used"),
        ({**fine, "user": "etl"}, "'user' is no setting"),
    ):
        with pytest.raises(kl.InvalidSettingError, match=said) as refused:
            kl.SchemaRegistryResource(**given)
        assert "s3cr3t" not in str(refused.value)
    monkeypatch.setenv("OURS", "nowhere")
    for given, said in (
        ({**fine, "ssl_ca_location": str(none)}, "holds no PEM certificate"),
        ({**fine, "ssl_ca_location": str(Path("no-such.pem"))}, "cannot be read"),
        ({"url": dg.EnvVar("OURS")}, "url is refused: wanted a web address"),
        ({**fine, "password": dg.EnvVar("NOT_THERE")}, "NOT_THERE is not set"),
    ):
        with pytest.raises(kl.InvalidSettingError, match=said):
            kl.SchemaRegistryResource(**given).decode(batch([None]), "orders-value")
    with pytest.raises(kl.InvalidSettingError, match="password is given as its value"):
        kl.SchemaRegistryResource(**fine).get_resource_definition()
