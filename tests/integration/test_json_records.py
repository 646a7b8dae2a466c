"""A value that does not fit the schema of ``kl.from_json`` is bad; its dead letter names the field."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.hidden_values import VARIABLE
from kafka_liveness_dagster.spark.connect.session import as_active_session
from kafka_liveness_dagster.spark.decode.json_column import describe_bad_json
from tests.integration.dead_letter_group import DeadLetterGroup

ORDER = "a BIGINT NOT NULL, b DOUBLE, c DECIMAL(10,2), s STRING, n INT, f BOOLEAN"
NESTED = (
    "o STRUCT<x: INT NOT NULL, y: STRING>, items ARRAY<STRUCT<sku: STRING, price: DOUBLE NOT NULL>>, "
    "m MAP<STRING, STRUCT<k: INT NOT NULL>>, t TIMESTAMP, d DATE, bin BINARY, aa ARRAY<ARRAY<INT>>"
)
WITH_JSON_SCHEMA = {
    "type": "object",
    "required": ["id", "items"],
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": ["string", "null"]},
        "placed_at": {"type": "string", "format": "date-time"},
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
    },
    "$defs": {
        "item": {
            "type": "object",
            "required": ["price"],
            "properties": {
                "price": {"type": "number"},
                "sku": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
        }
    },
}


@pytest.fixture(scope="module")
def decode(spark):
    """Decode one value: ``decode(value, schema)``.

    Returns a dict, or the reason why it is bad.
    """

    def run(value, schema):
        batch = spark.createDataFrame(
            [("orders", 0, 7, None, value.encode() if isinstance(value, str) else value)],
            "topic string, partition int, offset long, key binary, value binary",
        )
        with as_active_session(spark):
            decoded = batch.select(kl.from_json(batch.value, schema).alias("o"))
        try:
            [row] = decoded.collect()
        except PySparkException as error:
            return describe_bad_json(error, lambda: batch, with_offset=False)
        return row["o"] and {
            name: value for name, value in row["o"].asDict(recursive=True).items() if value is not None
        }

    return run


@pytest.mark.parametrize(
    ("value", "found"),
    [
        pytest.param('{"a": 1}', {"a": 1}, id="good"),
        pytest.param(' {"a": 1, "z": [{}]}\n', {"a": 1}, id="an unknown field, and spaces"),
        pytest.param('{"a": 1, "b": null}', {"a": 1}, id="null"),
        pytest.param('{"a": 1, "s": {"x": 1}}', {"a": 1, "s": '{"x":1}'}, id="a string takes all"),
        pytest.param(None, None, id="a tombstone"),
        pytest.param("", "empty value: expected JSON", id="empty"),
        pytest.param(" \n", "empty value: expected JSON", id="spaces"),
        pytest.param("null", "the whole value: expected STRUCT, got null", id="JSON's null"),
        pytest.param("no JSON", "not JSON: Expecting value, at character 1", id="no JSON"),
        pytest.param('{"a": 1', "not JSON: Expecting ',' delimiter, at character 8", id="cut off"),
        pytest.param("{'a': 1}", "not JSON: Expecting property name", id="single quotes"),
        pytest.param('{"a": 1, "b": NaN}', "not JSON: NaN is no JSON number", id="NaN"),
        pytest.param(b'{"a": 1, "s": "\xff"}', "not UTF-8, at byte 16", id="no UTF-8"),
        pytest.param('{"a": 1} more', "text after the JSON value, at character 10", id="text behind"),
        pytest.param('{"a": 1}{"a": 2}', "text after the JSON value, at character 9", id="two documents"),
        pytest.param('{"a": 1}, {"a": 2}', "text after the JSON value", id="two, and a comma"),
        pytest.param('{"a": 1}]}', "text after the JSON value", id="brackets"),
        pytest.param('{"a": 1}], "x": [{"a": 2}', "text after the JSON value", id="what closes the wrapper"),
        pytest.param('[{"a": 1}]', 'the whole value: expected STRUCT, got [{"a": 1}]', id="an array"),
        pytest.param('{"b": 1}', "field a: required, but missing", id="missing"),
        pytest.param('{"a": null}', "field a: required, but null", id="required and null"),
        pytest.param('{"a": "1"}', 'field a: expected BIGINT, got "1"', id="text for a number"),
        pytest.param('{"a": 1.5}', "field a: expected BIGINT, got 1.5", id="a fraction"),
        pytest.param('{"a": 1, "n": 3000000000}', "field n: expected INT, got 3000000000", id="too large"),
        pytest.param('{"a": 1, "b": "NaN"}', 'field b: expected DOUBLE, got "NaN"', id="NaN as text"),
        pytest.param('{"a": 1, "c": "x"}', 'field c: expected DECIMAL(10,2), got "x"', id="a decimal"),
        pytest.param('{"a": 1, "c": 123456789}', "field c: expected DECIMAL(10,2)", id="too many digits"),
        pytest.param('{"a": 1, "f": 1}', "field f: expected BOOLEAN, got 1", id="a boolean"),
    ],
)
def test_a_value_fits_or_is_bad(decode, value, found):
    """No value that does not fit becomes NULL."""
    got = decode(value, ORDER)
    assert got.startswith(found) if isinstance(found, str) else got == found


@pytest.mark.parametrize(
    ("value", "found"),
    [
        pytest.param({}, {}, id="nothing is required"),
        pytest.param(
            {"o": None, "items": [None], "m": {"a": None}}, {"items": [None], "m": {"a": None}}, id="null"
        ),
        pytest.param({"o": {}}, "field o.x: required, but missing", id="inside a struct"),
        pytest.param({"o": {"x": "1"}}, 'field o.x: expected INT, got "1"', id="its type"),
        pytest.param({"o": [1]}, "field o: expected STRUCT, got [1]", id="an array for a struct"),
        pytest.param(
            {"items": [{"price": 1}, {"price": 2}, {"price": "abc"}]},
            'field items[2].price: expected DOUBLE, got "abc"',
            id="inside an array",
        ),
        pytest.param(
            {"items": [{"sku": "tea"}]}, "field items[0].price: required, but missing", id="required"
        ),
        pytest.param({"items": {"price": 1}}, 'field items: expected ARRAY, got {"price": 1}', id="no array"),
        pytest.param(
            {"m": {"a b": {"k": "x"}}}, 'field m["a b"].k: expected INT, got "x"', id="inside a map"
        ),
        pytest.param({"m": {"a": {}}}, 'field m["a"].k: required, but missing', id="required in a map"),
        pytest.param({"aa": [[1], [2, "x"]]}, 'field aa[1][1]: expected INT, got "x"', id="arrays in arrays"),
        pytest.param({"t": "junk"}, 'field t: expected TIMESTAMP, got "junk"', id="no timestamp"),
        pytest.param({"t": "2026-11-26T25:00:00Z"}, "field t: expected TIMESTAMP", id="hour 25"),
        pytest.param({"t": ""}, 'field t: expected TIMESTAMP, got ""', id="an empty timestamp"),
        pytest.param({"d": "2026-02-30"}, 'field d: expected DATE, got "2026-02-30"', id="no such day"),
        pytest.param({"bin": "%"}, 'field bin: expected BINARY, got "%"', id="no base64"),
        pytest.param({"bin": "YWJj"}, {"bin": b"abc"}, id="base64"),
        pytest.param({"d": "2026-11-26"}, {"d": dt.date(2026, 11, 26)}, id="a date"),
    ],
)
def test_the_field_is_named_however_deep_it_is(decode, value, found):
    assert decode(json.dumps(value), NESTED) == found or decode(json.dumps(value), NESTED).startswith(found)


@pytest.mark.parametrize("text", ["2026-11-26T10:00:00Z", "2026-11-26T11:00:00.000+01:00", 1795687200])
def test_timestamps_are_sparks(spark, text):
    """ISO 8601 with its zone, and whole seconds."""
    batch = spark.createDataFrame([(json.dumps({"t": text}),)], "value string")
    when = F.unix_seconds(kl.from_json("value", StructType().add("t", "timestamp"))["t"])
    assert batch.select(when.alias("t")).first()["t"] == 1795687200


def test_a_schema_may_be_an_object_or_json_schema(decode):
    """As a dict and as text; references, optional fields and formats of generators are known."""
    good = {"id": 1, "note": None, "placed_at": "2026-11-26T10:00:00Z", "items": [{"price": 2}]}
    for schema in (WITH_JSON_SCHEMA, json.dumps(WITH_JSON_SCHEMA)):
        assert decode(json.dumps(good), schema)["items"] == [{"price": 2.0, "sku": None}]
        assert decode('{"id": 1}', schema) == "field items: required, but missing"
        assert decode('{"id": 1, "items": [{}]}', schema) == "field items[0].price: required, but missing"
    kind = StructType().add("id", LongType(), nullable=False)
    assert decode("{}", kind) == "field id: required, but missing"
    assert decode('{"id": "x"}', kind) == 'field id: expected BIGINT, got "x"'


def test_a_record_may_be_an_array(spark):
    """Its elements are checked as those of a field."""
    batch = spark.createDataFrame([('["a", "b"]',)], "value string")
    assert batch.select(kl.from_json("value", ArrayType(StringType())).alias("o")).first()["o"] == ["a", "b"]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        pytest.param(
            {"properties": {"p": {"type": "number", "minimum": 0}}},
            "has minimum at #/properties/p",
            id="a limit",
        ),
        pytest.param({"properties": {"p": {"enum": [1]}}}, "has type None at #/properties/p", id="no type"),
        pytest.param({"properties": {"p": {"type": ["string", "integer"]}}}, "has type", id="two types"),
        pytest.param(
            {"properties": {"p": {"type": "array"}}}, "array without items", id="an array of anything"
        ),
        pytest.param({"oneOf": []}, "has type None", id="oneOf"),
        pytest.param(
            {"properties": {"p": {"$ref": "other.json"}}}, "refers to other.json", id="another document"
        ),
        pytest.param({"properties": {"p": {"$ref": "#"}}}, "more than 64 levels", id="itself"),
        pytest.param({"properties": {"p": {"type": "null"}}}, "has type 'null'", id="only null"),
        pytest.param(
            {"properties": {"p": {"type": "string"}}, "additionalProperties": False},
            "has additionalProperties False",
            id="no other fields",
        ),
        pytest.param(
            {"properties": {"p": {"type": "string"}}, "required": ["q"]}, "requires 'q'", id="unknown"
        ),
        pytest.param({"type": "string"}, "describes no object", id="no object"),
        pytest.param(
            {"type": ["object", "null"], "properties": {"p": {"type": "string"}}}, "allows null", id="null"
        ),
        pytest.param('{"type": ', "is not JSON", id="no JSON"),
        pytest.param("id LONGISH", "cannot parse the DDL", id="no DDL"),
        pytest.param("string", "is no schema of a JSON record", id="DDL of a scalar"),
        pytest.param(7, "is no schema of a JSON record", id="a number"),
    ],
)
def test_a_schema_that_cannot_be_checked_is_refused_before_anything_is_read(spark, schema, why):
    with (
        as_active_session(spark),
        pytest.raises(kl.InvalidSettingError, match="No record was read") as raised,
    ):
        kl.from_json("value", schema)
    assert why in str(raised.value)


def test_values_can_be_kept_out_of_the_reason(decode, monkeypatch):
    monkeypatch.setenv(VARIABLE, "1")
    assert decode('{"a": "hunter2"}', ORDER) == "field a: expected BIGINT, got text"


def decoding(schema, column="value"):
    """A transform that decodes the values."""

    def orders(batch):
        decoded = batch.select("topic", "partition", "offset", kl.from_json(batch[column], schema).alias("o"))
        return decoded.selectExpr("topic", "partition", "offset", "o.*")

    return orders


@pytest.fixture
def make(services, produce, rows, warm_spark):
    """Make a group: ``make(**settings)``."""
    return lambda **settings: DeadLetterGroup(services, produce, rows, warm_spark, **settings)


BAD_RECORDS = '{"id":1} no-JSON {"id":3} {"id":4,"items":[{"price":1},{"price":"abc"}]} {"id":5} {}'


def test_a_dead_letter_names_the_field(make):
    """The bad ones are set aside with their reason, and are processed when the schema is fixed."""
    world = make()
    world.value = decoding("id BIGINT NOT NULL, items ARRAY<STRUCT<price: DOUBLE>>")
    world.produce(BAD_RECORDS)
    assert world.live() is None
    assert (world.offsets_in_table(), world.letters()) == ([0, 2, 4], [1, 3, 5])
    assert [row["error"] for row in world.letter_rows()] == [
        "not JSON: Expecting value, at character 1",
        'field items[1].price: expected DOUBLE, got "abc"',
        "field id: required, but missing",
    ]
    told = world.reported(3)
    assert 'with field items[1].price: expected DOUBLE, got "abc". ' in told.description

    price = "transform(items, i -> named_struct('price', try_cast(i.price AS DOUBLE))) AS items"
    lenient = decoding("id BIGINT, items ARRAY<STRUCT<price: STRING>>")
    world.value = lambda batch: lenient(batch).selectExpr("topic", "partition", "offset", "id", price)
    assert world.catch_up((3, 4), (5, 6)) is None
    assert (world.offsets_in_table(), world.letters(), world.pending()) == ([0, 2, 3, 4, 5], [1], [(1, 2)])


def test_without_dead_letters_the_run_names_offset_and_field(make):
    """It fails with both, and nothing is written or committed."""
    world = make(batching={"on_bad_record": "raise"})
    world.value = decoding("id BIGINT")
    world.produce('{"id":1} {"id":"x"}')
    error = world.live()
    assert isinstance(error, kl.SparkFailedError)
    assert f'(offset 1 of {world.topic}:0: field id: expected BIGINT, got "x")' in str(error)
    assert (world.offsets_in_table(), bool(world.committed_offset())) == ([], False)


def test_a_transform_that_collects_names_them_too(make):
    """Its error is a TransformError, and its dead letters have the field."""

    def in_python(batch):
        found = decoding("id BIGINT")(batch).collect()
        return batch.sparkSession.createDataFrame(found, "topic string, partition int, offset long, id long")

    world = make(batching={"on_bad_record": "raise"})
    world.value = in_python
    world.produce('{"id":1} {"id":"x"}')
    error = world.live()
    assert isinstance(error, kl.TransformError)
    assert f'raised offset 1 of {world.topic}:0: field id: expected BIGINT, got "x"' in str(error)


def test_a_sink_of_ones_own_names_them_too(make):
    world = make(table=None, sink=lambda replacement: len(replacement.rows.collect()), batching={})
    world.value = decoding("id BIGINT")
    world.produce('{"id":"x"}')
    error = world.live()
    assert isinstance(error, kl.SparkFailedError)
    assert f'offset 0 of {world.topic}:0: field id: expected BIGINT, got "x"' in str(error)


@pytest.mark.parametrize(
    ("options", "warns"),
    [
        pytest.param("", True, id="no mode"),
        pytest.param(", map('mode', 'PERMISSIVE')", False, id="chosen"),
        pytest.param(", map('mode', 'FAILFAST')", False, id="strict"),
    ],
)
def test_a_transform_that_turns_records_into_nulls_is_named_in_the_log(make, capfd, options, warns):
    """Spark's default mode made bad records NULL in a green run, whatever ``on_bad_record`` was."""
    world = make()
    world.value = f"from_json(cast(value AS string), 'id BIGINT'{options})"
    world.produce('{"id":1} no-JSON')
    assert world.live() is None
    assert world.offsets_in_table() == ([0] if "FAILFAST" in options else [0, 1])
    written = capfd.readouterr().err
    assert written.count("The transform uses from_json in Spark's default mode, PERMISSIVE") == int(warns)
