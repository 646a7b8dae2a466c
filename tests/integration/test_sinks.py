"""The sinks that docs/sinks.md shows, as they stand there, and the built-in one: the same laws for all."""

from __future__ import annotations

import itertools
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
from pyspark.errors import AnalysisException

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.embedded.jars import jars_folder
from kafka_liveness_dagster.spark.errors import RowsOutsideBatchError, TableSchemaError
from kafka_liveness_dagster.spark.row_guard import OUTSIDE_BATCH
from kafka_liveness_dagster.spark.sink import replace_rows
from kafka_liveness_dagster.spark.source import read_ranges
from kafka_liveness_dagster.spark.table.write import write_table
from tests.spark_addresses import spark_at
from tests.timeouts import connect
from tests.waiting import wait_for

PAGE = (Path(__file__).parents[2] / "docs" / "sinks.md").read_text()
SECONDS = 300


HALF_A_MODULE = """<project><modelVersion>4.0.0</modelVersion>
<groupId>org.slf4j</groupId><artifactId>slf4j-api</artifactId><version>2.0.13</version></project>"""


@pytest.fixture(scope="module")
def delta_remote(services, tmp_path_factory):
    """The address of an embedded Spark with the page's settings.

    Delta's jars are kept with the other jars.
    """
    from kafka_liveness_dagster.embedded import services as embedded  # noqa: PLC0415

    home, settings = (
        tmp_path_factory.mktemp("delta") / "home",
        tmp_path_factory.mktemp("settings") / "spark.conf",
    )
    maven = tmp_path_factory.mktemp("maven") / ".m2" / "repository" / "org" / "slf4j" / "slf4j-api" / "2.0.13"
    maven.mkdir(parents=True)  # as a build leaves it that needed the pom alone: half of a module
    (maven / "slf4j-api-2.0.13.pom").write_text(HALF_A_MODULE)
    # A server of a minute: less compiling
    options = f"-Duser.home={maven.parents[5]} -XX:TieredStopAtLevel=1"
    kept = {
        "spark.jars.ivy": str(jars_folder() / "delta-ivy"),
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.driver.defaultJavaOptions": options,
    }
    shown = re.findall(r"^```properties\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    settings.write_text("\n".join([*shown, *(f"{name} {value}" for name, value in kept.items())]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAFKA_LIVENESS_SPARK_CONF", str(settings))
        try:
            yield embedded.ensure_services(which=("spark",), home=home).spark_remote
        finally:
            embedded.stop_services(home)


def orders(start, end, partition=3):
    """A range of one topic."""
    return kl.OffsetRange("orders", partition, start, end)


def lines(session, *ranges, by, columns=()):
    """Offset n gives n % 3 rows, which say who wrote them."""
    parts = [
        session.range(r.start, r.end, 1, 1).selectExpr(
            f"'{r.topic}' AS topic",
            f"{r.partition} AS partition",
            "id AS offset",
            "explode(slice(array(0, 1), 1, int(id % 3))) AS line",
            f"'{by}' AS written_by",
            *columns,
        )
        for r in ranges
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part)
    return whole


def expected(by, start, end, partition=3, extra=None):
    """What is held when ``by`` wrote these offsets."""
    return [(partition, n, line, by, extra) for n in range(start, end) for line in range(n % 3)]


def shown_rows(frame):
    """A store's rows as tuples, sorted, with None where there is no such column."""
    extra = "extra" if "extra" in frame.columns else "NULL"
    rows = frame.selectExpr("partition", "offset", "line", "written_by", extra).collect()
    return sorted(map(tuple, rows), key=lambda row: row[:4])


@pytest.fixture
def parquet(example, spark, tmp_path):
    """The Parquet sink on the shared Spark: ``put(ranges, make_frame)``, ``rows()`` and the session."""
    sink = example("parquet").ParquetSink(str(tmp_path / "orders"))
    return SimpleNamespace(
        sink=sink,
        spark=spark,
        put=lambda ranges, make, **options: replace_rows(sink, ranges, make, **options),
        rows=lambda: shown_rows(sink.read(spark)),
    )


@pytest.fixture
def delta(example, delta_remote, tmp_path):
    """The Delta sink on its own Spark."""
    sink, spark = example("delta").DeltaSink(str(tmp_path / "orders")), connect(delta_remote)
    yield SimpleNamespace(
        remote=delta_remote,
        spark=spark,
        put=lambda ranges, make, **options: replace_rows(sink, ranges, make, **options),
        rows=lambda: shown_rows(spark.read.format("delta").load(sink.path)),
    )
    spark.stop()


@pytest.fixture
def iceberg(spark, table):
    """The built-in sink."""
    return SimpleNamespace(
        spark=spark,
        put=lambda ranges, make, **options: write_table(spark, table, ranges, make, **options),
        rows=lambda: shown_rows(spark.table(table)),
    )


@pytest.mark.parametrize("sink", ["iceberg", "parquet", pytest.param("delta", marks=pytest.mark.certify)])
def test_each_offset_has_its_rows_once(sink, request):
    """Replays with other boundaries; none, one and many rows an offset; a new column; a backfill without."""
    store = request.getfixturevalue(sink)

    def put(*ranges, by, columns=(), where="true"):
        store.put(list(ranges), lambda: lines(store.spark, *ranges, by=by, columns=columns).where(where))

    put(orders(70, 100), orders(0, 9, partition=1), by="old")
    put(orders(90, 120), by="new", columns=["1.5D AS extra"])
    put(orders(60, 75), orders(80, 84), orders(8, 12, partition=1), by="backfill")
    put(orders(81, 83), by="nobody", where="false")
    assert store.rows() == [
        *expected("old", 0, 8, 1),
        *expected("backfill", 8, 12, 1),
        *expected("backfill", 60, 75),
        *expected("old", 75, 80),
        *expected("backfill", 80, 81),
        *expected("backfill", 83, 84),
        *expected("old", 84, 90),
        *expected("new", 90, 120, extra=1.5),
    ]


def raise_at(call):
    """A ``may_go_on`` that refuses from its n-th call on; two are made before the sink is asked."""
    calls = itertools.count(1)

    def may_go_on():
        if next(calls) >= call:
            raise PermissionError("fenced")

    return may_go_on


def test_parquet_shows_what_is_listed_and_the_newest_of_it(parquet):
    """A write that is not listed is not there; a zombie that is listed late does not hide its successor."""

    def put(start, end, by, **options):
        parquet.put([orders(start, end)], lambda: lines(parquet.spark, orders(start, end), by=by), **options)

    parquet.put([orders(0, 9)], lambda: lines(parquet.spark, orders(0, 9), by="nobody").where("false"))
    with pytest.raises(PermissionError):
        put(70, 100, "fenced", may_go_on=raise_at(3))
    with pytest.raises(
        RowsOutsideBatchError, match=r"orders:3:100, which is not in the batch p3:orders:70-100"
    ):
        parquet.put([orders(70, 100)], lambda: lines(parquet.spark, orders(70, 101), by="stray"))
    assert parquet.rows() == []

    calls = itertools.count(1)

    def successor_is_quicker():
        if next(calls) == 3:
            put(75, 130, "successor")

    put(70, 100, "zombie", may_go_on=successor_is_quicker)
    assert parquet.rows() == expected("zombie", 70, 75) + expected("successor", 75, 130)


@pytest.mark.certify
@pytest.mark.parametrize("zombie", [True, False])
def test_delta_refuses_who_began_before_another_committed(delta, services, make_topic, produce, zombie):
    """A zombie leaves its successor's rows alone, also if it began without a table; the other lane restarts.

    The first writer waits inside Spark for records that the test produces after the second has committed.
    """
    topic, session, at_work = make_topic(), connect(delta.remote), threading.Event()
    kafka = {"kafka.bootstrap.servers": services.bootstrap_servers}
    second, calls = kl.OffsetRange(topic, 0, 0 if zombie else 9, 20), itertools.count(1)
    may_go_on = raise_at(4) if zombie else lambda: next(calls)

    def progressed(inflight_tasks, **_):
        if inflight_tasks:
            at_work.set()

    def first():
        session.registerProgressHandler(progressed)
        columns = ("topic", "partition", "offset", "0 AS line", "'first' AS written_by")
        ours = [kl.OffsetRange(topic, 0, 0, 9)]
        delta.put(ours, lambda: read_ranges(session, ours, kafka).selectExpr(*columns), may_go_on=may_go_on)

    if not zombie:
        delta.put([orders(0, 3)], lambda: lines(delta.spark, orders(0, 3), by="before"))
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(first)
        try:
            wait_for(lambda: at_work.is_set() or done.done())
            delta.put([second], lambda: lines(delta.spark, second, by="second"))
        finally:
            produce(services.bootstrap_servers, topic, 0, map(str, range(9)))
        refused = done.exception(SECONDS)
    session.stop()
    if zombie:
        assert isinstance(refused, PermissionError), refused
        assert delta.rows() == expected("second", 0, 20, 0)
    else:
        assert refused is None
        assert next(calls) == 5, "it was refused once"
        once = [(0, n, 0, "first", None) for n in range(9)]
        assert delta.rows() == once + expected("second", 9, 20, 0) + expected("before", 0, 3)


def test_a_table_that_a_sink_misses_is_no_row_of_another_batch(spark, table):
    """Spark's complaint shows the whole plan, and the message that such a row would have is part of it."""
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND") as told:
        replace_rows(
            lambda replacement: replacement.rows.writeTo(table).append(),
            [orders(70, 100)],
            lambda: lines(spark, orders(70, 100), by="nobody"),
        )
    assert OUTSIDE_BATCH in str(told.value)


def test_rows_without_their_offsets_never_reach_a_sink(spark):
    """They could not be replaced later."""
    with pytest.raises(TableSchemaError, match="the rows for raise_at must have offset bigint"):
        replace_rows(
            raise_at(0), [orders(0, 3)], lambda: lines(spark, orders(0, 3), by="ours").drop("offset")
        )


def test_a_run_writes_through_the_sink(parquet, services, make_topic, produce):
    """A whole live run through Dagster.

    What was produced is what readers see, and the asset names its sink.
    """
    topic = make_topic()
    produce(services.bootstrap_servers, topic, 0, map(str, range(5)))
    kafka = kl.KafkaLivenessResource(bootstrap_servers=services.bootstrap_servers)
    asset = kl.kafka_asset(
        name="orders",
        topics=[topic],
        group_id=f"etl-{topic}",
        sink=parquet.sink,
        max_poll_records=3,
        idle_seconds=0.5,
    )(
        lambda batch: batch.selectExpr(
            "topic", "partition", "offset", "0 AS line", "string(value) AS written_by"
        )
    )
    resources = {"kafka": kafka, "spark": spark_at(services.spark_remote)}
    defs = dg.Definitions.merge(asset.definitions, dg.Definitions(resources=resources))
    with dg.DagsterInstance.local_temp(overrides={"telemetry": {"enabled": False}}) as instance:
        run = defs.resolve_job_def("orders_job").execute_in_process(instance=instance)
        told = [one.metadata for one in run.asset_materializations_for_node("orders")]
    assert parquet.rows() == [(0, n, 0, str(n), None) for n in range(5)]
    assert [one["batches"].value for one in told] == [1, 1], "the first at once, the rest at the end"
    assert not any("rows_written" in one or "dagster/row_count" in one for one in told), (
        "the sink does not tell"
    )
    assert asset.live.metadata_by_key[asset.live.key]["sink"] == "ParquetSink"
