"""A transform in ``kafka_liveness_dagster.testing`` gets the batch of production, and meets its checks."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import time
import warnings

import dagster as dg
import psutil
import pytest
from pyspark.sql.types import IntegerType, StructType

import kafka_liveness_dagster as kl
from kafka_liveness_dagster import testing
from kafka_liveness_dagster.spark.source import read_ranges

KEYS = ("topic", "partition", "offset")
TABLE = "topic STRING, partition INT, offset BIGINT, id BIGINT"
NUMBER = "cast(cast(value AS string) AS bigint) AS id"


def numbers(batch):
    """Every value is a number, or its record is bad."""
    return batch.selectExpr(*KEYS, NUMBER)


def asset(transform=numbers, **settings):
    """An asset with some settings."""
    target = {} if "sink" in settings else {"table": "lake.shop.orders"}
    return kl.kafka_asset(topics=["orders"], group_id="etl", name="orders", **{**target, **settings})(
        transform
    )


@pytest.mark.parametrize("headers", [False, True])
def test_a_batch_has_the_columns_of_kafkas(services, make_topic, produce, warm_spark, headers):
    """Names, order, types and nullability; those of Spark's Kafka source are read from the broker."""
    topic = make_topic()
    produce(services.bootstrap_servers, topic, 0, ["x"])
    options = {"kafka.bootstrap.servers": services.bootstrap_servers, "includeHeaders": str(headers)}
    real = read_ranges(warm_spark, [kl.OffsetRange(topic, 0, 0, 1)], options)
    made = testing.batch(["x"], topic=topic, include_headers=headers)
    assert made.schema == real.schema
    assert type(made) is type(real)
    columns = [name for name in made.columns if name != "timestamp"]
    assert made.select(columns).collect() == real.select(columns).collect()


def test_records_are_given_in_short():
    """A value, a pair, a record; offsets go on from the one before, in each partition."""
    when = dt.datetime(2026, 11, 26, 10, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    made = testing.batch(
        [
            "text",
            b"bytes",
            None,
            {"a": 1},
            ("key", [1]),
            testing.Record("x", key=b"k", headers={"trace": "t"}, timestamp=when, partition=2, offset=70),
            testing.Record("y", headers=[("a", None), ("a", b"2")], partition=2, topic="other"),
            testing.Record("z", partition=2),
        ],
        include_headers=True,
    ).selectExpr("*", "unix_seconds(timestamp) AS seconds")
    rows = made.collect()
    assert [bytes(r.value) if r.value is not None else None for r in rows] == [
        b"text", b"bytes", None, b'{"a": 1}', b"[1]", b"x", b"y", b"z",
    ]  # fmt: skip
    assert [(r.topic, r.partition, r["offset"]) for r in rows] == [
        *(("orders", 0, n) for n in range(5)),
        ("orders", 2, 70),
        ("other", 2, 0),
        ("orders", 2, 71),
    ]
    assert rows[5]["seconds"] == when.timestamp()
    assert rows[0]["seconds"] == testing.FIRST_TIMESTAMP.timestamp()
    assert (bytes(rows[4].key), rows[0].headers) == (b"key", None)
    assert [(h.key, h.value) for h in rows[6].headers] == [("a", None), ("a", b"2")]


@pytest.mark.parametrize(
    ("records", "why"),
    [
        pytest.param([1], "1 is no value of a record", id="a number"),
        pytest.param([("a", "b", "c")], "is no record", id="three"),
        pytest.param(
            [testing.Record("x", offset=1), testing.Record("y", offset=1)], "occurs twice", id="twice"
        ),
        pytest.param([], "at least one record", id="none"),
    ],
)
def test_a_record_of_another_form_is_refused(records, why):
    with pytest.raises(kl.InvalidSettingError, match=why):
        testing.run(numbers, records)


def test_the_rows_come_back_in_their_order():
    """With their schema, from a function, and from an asset with its settings."""
    records = [testing.Record("2", partition=1), "1", testing.Record("7", offset=9)]
    for transform in (numbers, asset()):
        result = testing.run(transform, records)
        assert [(r.partition, r["offset"], r.id) for r in result.rows] == [(0, 0, 1), (0, 9, 7), (1, 0, 2)]
        assert result.schema["id"].dataType.simpleString() == "bigint"
        assert result.dead_letters == []


def test_dead_letters_are_those_of_a_run():
    """By the asset's setting, or by the argument; the others are rows."""
    records = ["1", ("k", "x"), "3"]
    of_asset = testing.run(asset(batching=kl.Batching(on_bad_record="dead_letter")), records)
    assert of_asset == testing.run(numbers, records, on_bad_record="dead_letter")
    assert [r.id for r in of_asset.rows] == [1, 3]
    [letter] = of_asset.dead_letters
    assert letter[:5] == ("orders", 0, 1, b"k", b"x")
    assert "'x'" in letter.error
    alone = testing.run(numbers, ["x"], on_bad_record="dead_letter")
    assert (alone.rows, len(alone.dead_letters)) == ([], 1)
    with pytest.raises(kl.SparkFailedError, match="Batch p0:orders:0-3 could not be written to lake"):
        testing.run(asset(), records)
    with pytest.raises(kl.BadRecordError, match="More than max_dead_letters=1"):
        testing.run(
            asset(batching=kl.Batching(on_bad_record="dead_letter", max_dead_letters=1)), ["x", "y", "3"]
        )


@pytest.mark.parametrize(
    ("transform", "error", "why"),
    [
        pytest.param(lambda _: None, kl.TransformError, "returned None instead of a DataFrame", id="None"),
        pytest.param(
            lambda batch: batch.select(batch.offset + 1), kl.TransformError, r"batch\['offset'\]", id="offset"
        ),
        pytest.param(
            lambda batch: batch.selectExpr("price"), kl.TransformError, "price", id="no such column"
        ),
        pytest.param(
            lambda batch: batch.selectExpr("topic", "partition"),
            kl.TableSchemaError,
            "must have offset bigint",
            id="lost",
        ),
        pytest.param(
            lambda batch: batch.selectExpr(*KEYS, "1 AS a", "2 AS A"),
            kl.TableSchemaError,
            "cannot distinguish",
            id="twins",
        ),
        pytest.param(
            lambda batch: batch.selectExpr(*KEYS, "null AS a"),
            kl.TableSchemaError,
            "of type void",
            id="no type",
        ),
        pytest.param(
            lambda batch: batch.selectExpr("topic", "partition", "offset + 1 AS offset"),
            kl.RowsOutsideBatchError,
            "a row of orders:0:1, which is not in the batch",
            id="another offset",
        ),
    ],
)
def test_errors_are_those_of_a_run(transform, error, why):
    with pytest.raises(error, match=why):
        testing.run(transform, ["1"])


def test_rows_are_checked_against_a_table_that_exists():
    """Columns are added, widened, or missing; what does not fit is refused as Spark refuses it."""
    assert testing.run(numbers, ["1"], table_columns=TABLE).rows[0].id == 1
    assert testing.run(numbers, ["1"], table_columns=f"{TABLE}, note STRING").rows[0].id == 1
    assert testing.run(numbers, ["1"], table_columns=TABLE.replace("id BIGINT", "id INT")).rows[0].id == 1
    with pytest.raises(kl.TableSchemaError, match=r"do not fit table lake.shop.orders .*`id`"):
        testing.run(asset(), ["1"], table_columns=TABLE.replace("id BIGINT", "id DATE"))
    with pytest.raises(kl.TableSchemaError, match="lack note, which the table requires"):
        testing.run(numbers, ["1"], table_columns=f"{TABLE}, note STRING NOT NULL")
    with pytest.raises(kl.InvalidSettingError, match="table_columns is 7"):
        testing.run(numbers, ["1"], table_columns=7)
    with pytest.raises(kl.InvalidSettingError, match="table_columns is 'id LONGISH'"):
        testing.run(numbers, ["1"], table_columns="id LONGISH")


class Rates(dg.ConfigurableResource):
    """A resource of a transform."""

    rate: int


def priced(context: dg.AssetExecutionContext, batch, rates: Rates):
    """Use the context and a resource."""
    context.log.info("a batch")
    return batch.selectExpr(*KEYS, f"{rates.rate} AS rate")


def forbidden(replacement):
    """A sink that must not be called."""
    raise AssertionError(replacement)


def test_a_transform_gets_its_other_arguments():
    """Its context and resources; what is missing or unknown is named."""
    assert testing.run(priced, ["1"], rates=Rates(rate=3)).rows[0].rate == 3
    assert testing.run(asset(priced), ["1"], rates=Rates(rate=4)).rows[0].rate == 4
    with pytest.raises(kl.InvalidSettingError, match="lacks rates"):
        testing.run(priced, ["1"])
    with pytest.raises(kl.InvalidSettingError, match="has no rate"):
        testing.run(numbers, ["1"], rate=1)


def test_an_error_that_dagster_acts_on_keeps_its_class():
    def failing(batch):
        raise dg.Failure(str(batch.columns))

    with pytest.raises(dg.Failure, match="timestampType"):
        testing.run(failing, ["1"])


def test_an_asset_with_a_sink_is_tested_without_the_sink():
    """The rows come back, and the sink is not called; errors name it."""
    assert testing.run(asset(sink=forbidden), ["1"]).rows[0].id == 1
    with pytest.raises(kl.RowsOutsideBatchError, match="forbidden"):
        testing.run(
            asset(lambda b: b.selectExpr("topic", "partition", "7L AS offset"), sink=forbidden), ["1"]
        )


def test_headers_are_there_if_the_asset_has_them():
    def traced(batch):
        return batch.selectExpr(*KEYS, "string(map_from_entries(headers)['trace']) AS trace")

    record = testing.Record("1", headers={"trace": "abc"})
    assert testing.run(asset(traced, include_headers=True), [record]).rows[0].trace == "abc"
    with pytest.raises(kl.TransformError, match="headers"):
        testing.run(asset(traced), [record])


def test_functions_of_the_users_own_run():
    """In Spark's Python, and with a type that is text."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    def shouted(batch):
        return batch.select(*KEYS, F.udf(lambda value: value.decode().upper(), "string")("value").alias("s"))

    assert testing.run(shouted, ["tea"]).rows[0].s == "TEA"


def test_values_that_become_null_are_named():
    """As in the log of a run; a mode that the transform chose is no mistake."""
    call = "from_json(cast(value AS string), 'a INT'{})"
    with pytest.warns(UserWarning, match="PERMISSIVE") as found:
        testing.run(lambda batch: batch.selectExpr(*KEYS, call.format("")), ["no JSON"])
    assert found[0].filename == __file__
    with (
        warnings.catch_warnings(action="error") if sys.version_info >= (3, 11) else warnings.catch_warnings()
    ):
        mode = ", map('mode', 'PERMISSIVE')"
        testing.run(lambda batch: batch.selectExpr(*KEYS, call.format(mode)), ["no JSON"])
        strict = testing.run(
            lambda batch: batch.select(
                *KEYS, kl.from_json("value", StructType().add("a", IntegerType())).alias("o")
            ),
            ['{"a": 1}'],
        )
    assert strict.rows[0].o.a == 1


def test_a_spark_that_does_not_start_shows_the_end_of_its_log(tmp_path):
    code = (
        "from kafka_liveness_dagster.testing import local_spark\n"
        "local_spark._SPARK_SETTINGS['spark.driver.memory'] = '1k'\n"
        "try: local_spark.session()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    printed = subprocess.check_output([sys.executable, "-c", code], env=env, text=True)
    assert printed.startswith("ServiceNotStartedError Spark for tests did not start. Its log ends with: ")
    assert "heap" in printed
    assert [*tmp_path.iterdir()] == []


def test_spark_ends_with_its_process_and_leaves_nothing(tmp_path):
    """However the process ends; a Spark of the user's own in it does not matter."""
    code = (
        "import os, sys, time\n"
        "from kafka_liveness_dagster import testing\n"
        "assert testing.batch(['x']).count() == 1\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path), "SPARK_REMOTE": "sc://localhost:1"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True
    ) as child:
        assert child.stdout.readline() == "ready\n"
        [java] = [one for one in psutil.Process(child.pid).children() if one.name() == "java"]
        child.kill()
    give_up_at = time.monotonic() + 60
    while java.is_running() and time.monotonic() < give_up_at:
        time.sleep(0.2)
    assert not java.is_running()
    folders = [*tmp_path.iterdir()]
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True
    ) as child:
        child.stdin.close()
        assert child.wait(120) == 0
    assert {*tmp_path.iterdir()} <= {*folders}
