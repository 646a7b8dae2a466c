"""A table as its users want it: read as a stream, partitioned and sorted their way, made by somebody else."""

from __future__ import annotations

import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count

import pytest
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.table_layout import BY_KAFKA_PARTITION, TableLayout
from kafka_liveness_dagster.spark.connect.session import close
from kafka_liveness_dagster.spark.errors import TableSchemaError
from kafka_liveness_dagster.spark.table.ledger import TableLedger
from kafka_liveness_dagster.spark.table.table import IcebergTable
from kafka_liveness_dagster.spark.table.write import write_table
from tests.timeouts import connect
from tests.waiting import PATIENCE, wait_for

LAYOUTS = {
    "by Kafka's partitions": TableLayout(snapshots="append"),
    "by day": TableLayout("append", ("days(placed_at)",)),
    "by nothing": TableLayout("append", ()),
    "by bucket, overwritten": TableLayout(partition_by=("bucket(3, offset)",)),
}
GATE = ("by Kafka's partitions", "by bucket, overwritten")
"""The layouts of the gate; the others are left to ``make certify``."""
EACH_LAYOUT = [pytest.param(name, marks=() if name in GATE else pytest.mark.certify) for name in LAYOUTS]
APPENDED = [one for one in EACH_LAYOUT if LAYOUTS[one.values[0]].snapshots == "append"]


METRICS = "write.metadata.metrics"


def make(session, table, partition_by, properties):
    """A table of somebody else's, for the rows of ``frame``."""
    session.sql(f"CREATE NAMESPACE {table.rpartition('.')[0]}")
    fields = f"PARTITIONED BY ({', '.join(partition_by)})" if partition_by else ""
    settings = ", ".join(f"'{name}'='{value}'" for name, value in properties.items())
    session.sql(
        f"CREATE TABLE {table} (topic string, partition int, offset bigint, written_by string, placed_at "
        f"timestamp) USING iceberg {fields} TBLPROPERTIES ({settings})"
    )


def orders(start, end, partition=0):
    """A range of one topic."""
    return OffsetRange("orders", partition, start, end)


def frame(session, *ranges, by, keep="true", tasks=2):
    """A row for each offset, ten hours apart, that says who wrote it.

    Several partitions in each task's file.
    """
    whole = None
    for r in ranges:
        part = session.range(r.start, r.end, 1, tasks).selectExpr(
            f"'{r.topic}' AS topic", f"{r.partition} AS partition", "id AS offset", f"'{by}' AS written_by",
            "timestamp_seconds(id * 36000) AS placed_at",
        )  # fmt: skip
        whole = part if whole is None else whole.unionByName(part)
    return whole.coalesce(1).where(keep)


def put(session, table, *ranges, by, layout, keep="true", **options):
    """Write these ranges."""
    return write_table(
        session, table, ranges, lambda: frame(session, *ranges, by=by, keep=keep), layout=layout, **options
    )


def held(session, table):
    """``{(partition, offset): {who wrote it: how many rows}}``, as Spark reads it.

    Pyiceberg for one keeps no order.
    """
    out: dict[tuple[int, int], Counter[str]] = {}
    for row in session.table(table).collect():
        out.setdefault((row["partition"], row["offset"]), Counter())[row["written_by"]] += 1
    return out


def once(by, *ranges):
    """What is held when ``by`` wrote these offsets, one row each."""
    return {(r.partition, offset): {by: 1} for r in ranges for offset in range(r.start, r.end)}


def operations(session, table):
    """What the table's snapshots are, the oldest first."""
    return [
        row[0]
        for row in session.sql(f"SELECT operation FROM {table}.snapshots ORDER BY committed_at").collect()
    ]


@pytest.fixture
def streamed(spark, tmp_path):
    """What a stream reads of a table up to now, and goes on with when it is called again."""
    names = (f"stream_{n}" for n in count())
    running = []

    def start(table, into, **trigger):
        query = (
            spark.readStream.format("iceberg").load(table)
            .writeStream.format("iceberg")
            .option("checkpointLocation", str(tmp_path / into.replace(".", "_")))
            .trigger(**trigger).toTable(into)
        )  # fmt: skip
        running.append(query)
        return query

    def read(table, into=None):
        into = into or f"{table.rpartition('.')[0]}.{next(names)}"
        query = start(table, into, availableNow=True)
        assert query.awaitTermination(PATIENCE), "the stream has read what there was"
        assert query.exception() is None
        return held(spark, into), into

    read.start = start
    yield read
    for query in running:
        if query.isActive:
            query.stop()


@pytest.mark.parametrize("name", EACH_LAYOUT)
def test_a_replay_replaces_what_was_there_wherever_it_lies(warm_spark, table, name):
    """Within a file, across files, beyond the end, and by no rows; in files that have several partitions."""
    layout = LAYOUTS[name]
    whole, more = (orders(0, 100), orders(0, 100, 1)), (orders(100, 150), orders(100, 120, 1))
    put(warm_spark, table, *whole, by="first", layout=layout)
    put(warm_spark, table, *more, by="second", layout=layout)
    again = (orders(40, 60), orders(90, 110, 1))
    put(warm_spark, table, *again, by="again", layout=layout)
    put(warm_spark, table, orders(145, 200), by="beyond", layout=layout)
    put(warm_spark, table, orders(10, 20), by="nobody", keep="false", layout=layout)
    expected = (
        once("first", *whole)
        | once("second", *more)
        | once("again", *again)
        | once("beyond", orders(145, 200))
    )
    for offset in range(10, 20):
        del expected[0, offset]
    assert held(warm_spark, table) == expected


@pytest.mark.parametrize("snapshots", ["overwrite", "append"])
def test_types_of_every_kind_go_in_and_come_out(warm_spark, table, snapshots):
    """Nested ones and a variant too.

    A column grows with the rows' type, one they lack is null, a new one is added.
    """
    layout = TableLayout(snapshots, table_properties={"format-version": "3"})
    first = (
        "CAST(offset AS int) AS n", "CAST(1.5 AS float) AS f", "CAST(2.25 AS decimal(4, 2)) AS d",
        "DATE'2026-01-02' AS day",
        "TIMESTAMP'2026-01-02 03:04:05' AS at", "TIMESTAMP_NTZ'2026-01-02 03:04:05' AS local",
        "X'00ff' AS raw", "named_struct('a', 1, 'b', array('x')) AS nested",
        "map('k', named_struct('c', 2)) AS by_key", "parse_json('{\"a\": [1, 2]}') AS anything",
    )  # fmt: skip
    wide = (
        "offset + 5000000000 AS n",
        "CAST(0.1 AS double) AS f",
        "CAST(12345.25 AS decimal(9, 2)) AS d",
        "'b' AS new",
    )

    def rows(start, columns):
        whole = warm_spark.range(start, start + 5, 1, 1).selectExpr("id AS offset")
        return whole.selectExpr("'orders' AS topic", "0 AS partition", "offset", *columns)

    for start, columns in ((0, first), (5, first), (10, wide), (0, first)):
        frame = partial(rows, start, columns)
        write_table(warm_spark, table, [orders(start, start + 5)], frame, layout=layout)
    shown = warm_spark.table(table).withColumn("text", F.expr("to_json(anything)")).drop("anything")
    found = {row["offset"]: row for row in shown.collect()}
    assert sorted(found) == list(range(15))
    old, new = found[3], found[12]
    assert (old["n"], old["f"], str(old["d"]), old["text"]) == (3, 1.5, "2.25", '{"a":[1,2]}')
    assert (old["nested"].asDict(recursive=True), old["by_key"]["k"]["c"]) == ({"a": 1, "b": ["x"]}, 2)
    assert (bytes(old["raw"]), str(old["day"]), old["new"]) == (b"\x00\xff", "2026-01-02", None)
    assert (new["n"], new["f"], str(new["d"]), new["nested"], new["new"]) == (
        5000000012,
        0.1,
        "12345.25",
        None,
        "b",
    )
    kinds = dict(warm_spark.table(table).select("n", "f", "d").dtypes)
    assert kinds == {"n": "bigint", "f": "double", "d": "decimal(9,2)"}


@pytest.mark.parametrize("name", APPENDED)
def test_a_stream_reads_each_row_once(services, warm_spark, table, streamed, name):
    """Of two lanes that write at the same time, of batches without rows, and of a reader that pauses."""
    layout, other = LAYOUTS[name], connect(services.spark_remote)
    try:
        put(warm_spark, table, orders(0, 10), orders(0, 10, 1), by="made", layout=layout)
        first, into = streamed(table)
        assert first == once("made", orders(0, 10), orders(0, 10, 1))
        live = [orders(n, n + 20, p) for n in range(100, 160, 20) for p in (0, 1)]
        owed = [orders(n, n + 20) for n in range(20, 100, 20)]

        def lane(session, ranges, by):
            for r in ranges:
                done = put(session, table, r, by=by, layout=layout)
                assert (done.rows, done.attempts) == (r.size, 1)
                filtered = OffsetRange("orders", r.partition + 2, r.start, r.end)
                assert put(session, table, filtered, by="nobody", keep="false", layout=layout).rows == 0

        with ThreadPoolExecutor() as both:
            for done in [
                both.submit(lane, warm_spark, live, "live"),
                both.submit(lane, other, owed, "catch-up"),
            ]:
                done.result()
        expected = first | once("live", *live) | once("catch-up", *owed)
        assert held(warm_spark, table) == expected
        assert streamed(table, into)[0] == expected
        assert set(operations(warm_spark, table)) == {"append"}
    finally:
        close(other)


def test_what_is_read_since_a_snapshot_is_each_row_once(catalog, warm_spark, table):
    """As Spark's and pyiceberg's incremental scans read it.

    What was appended after a snapshot, and nothing else.
    """
    layout = LAYOUTS["by day"]
    put(warm_spark, table, orders(0, 10), by="first", layout=layout)
    since = IcebergTable(table).snapshot_id(warm_spark)
    put(warm_spark, table, orders(10, 30), by="second", layout=layout)
    found = warm_spark.read.option("start-snapshot-id", str(since)).format("iceberg").load(table)
    assert sorted(row["offset"] for row in found.collect()) == list(range(10, 30))
    appended = catalog.load_table(table.partition(".")[2]).incremental_append_scan(
        from_snapshot_id_exclusive=since
    )
    assert sorted(appended.to_arrow()["offset"].to_pylist()) == list(range(10, 30))


def test_a_stream_that_goes_on_meets_a_replay_and_says_so(warm_spark, table, streamed):
    """A replay takes rows back that were read: no stream may pass that in silence."""
    layout = LAYOUTS["by Kafka's partitions"]
    put(warm_spark, table, orders(0, 10), by="first", layout=layout)
    into = f"{table.rpartition('.')[0]}.copy"
    query = streamed.start(table, into, processingTime="0 seconds")
    put(warm_spark, table, orders(10, 20), by="second", layout=layout)
    expected = once("first", orders(0, 10)) | once("second", orders(10, 20))
    wait_for(lambda: held(warm_spark, into) == expected or query.exception())
    assert query.exception() is None
    put(warm_spark, table, orders(15, 25), by="again", layout=layout)
    with pytest.raises(Exception, match="overwrite snapshot"):
        query.awaitTermination(PATIENCE)


@pytest.mark.parametrize("name", EACH_LAYOUT)
def test_of_two_writers_of_the_same_offsets_one_lands_and_the_other_replaces_it(
    services, warm_spark, table, name
):
    """Both began when nobody had written them: a zombie, or a second owner."""
    layout, barrier = LAYOUTS[name], threading.Barrier(2)
    put(warm_spark, table, orders(0, 10), by="before", layout=layout)
    sessions = [connect(services.spark_remote) for _ in range(2)]

    def race(session, by, *ranges):
        waits = iter([barrier])

        def make():
            for at in waits:
                at.wait(PATIENCE)
            return frame(session, *ranges, by=by)

        return write_table(session, table, ranges, make, layout=layout)

    try:
        with ThreadPoolExecutor() as both:
            one = both.submit(race, sessions[0], "one", orders(10, 300))
            two = both.submit(race, sessions[1], "two", orders(200, 400))
            attempts = [one.result().attempts, two.result().attempts]
    finally:
        for session in sessions:
            close(session)
    found = held(warm_spark, table)
    assert all(sum(rows.values()) == 1 for rows in found.values())
    assert sorted(offset for _, offset in found) == list(range(400))
    assert len({tuple(found[0, offset]) for offset in range(200, 300)}) == 1
    assert sum(attempts) > 2


def test_each_snapshot_says_what_it_wrote_however_it_is_committed(warm_spark, table):
    """Appended, appended without rows, replaced, and merged where files have two partitions.

    The ledger has it all.
    """
    layout, session = LAYOUTS["by nothing"], warm_spark
    ledger = TableLedger(IcebergTable(table), lambda: session)
    batches = [(orders(0, 50), orders(0, 50, 1)), (orders(50, 60),), (orders(20, 30),)]
    for ranges in batches:
        put(session, table, *ranges, by="first", layout=layout, ledger=ledger)
    put(session, table, orders(60, 70), by="nobody", keep="false", layout=layout, ledger=ledger)
    fresh = TableLedger(IcebergTable(table), lambda: session).read({orders(0, 1).topic_partition})
    assert [account.written for account in fresh.values()] == [((0, 70),)]
    told = session.sql(
        f"SELECT operation, summary['kafka-liveness.written'] FROM {table}.snapshots ORDER BY committed_at"
    )
    assert [row[0] for row in told.collect()] == ["append", "append", "overwrite", "append"]
    assert all(row[1] for row in told.collect())


def test_a_table_is_made_as_it_was_declared(warm_spark, table):
    """Partitions, order and properties; the rows are in it with the same commit."""
    layout = TableLayout(
        partition_by=("days(placed_at)", "bucket(4, offset)", "topic"),
        sort_by=("written_by", "offset DESC"),
        table_properties={"write.parquet.compression-codec": "zstd", "shop.owner": "orders team"},
    )
    put(warm_spark, table, orders(0, 10), by="first", layout=layout)
    partition = warm_spark.table(table).select("_partition").schema.fields[0].dataType.names
    assert partition == ["placed_at_day", "offset_bucket", "topic"]
    told = {row["key"]: row["value"] for row in warm_spark.sql(f"SHOW TBLPROPERTIES {table}").collect()}
    assert told["sort-order"] == "written_by ASC NULLS FIRST, offset DESC NULLS LAST"
    assert (told["shop.owner"], told["write.parquet.compression-codec"]) == ("orders team", "zstd")
    assert held(warm_spark, table) == once("first", orders(0, 10))


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_a_table_of_somebody_elses_with_more_columns_and_rows(warm_spark, table, mode):
    """Made before, by day, with rows of other topics and columns that the batches lack.

    Evolved while the lane runs.
    """
    namespace = table.rpartition(".")[0]
    warm_spark.sql(f"CREATE NAMESPACE {namespace}")
    warm_spark.sql(
        f"CREATE TABLE {table} (topic string, partition int, offset bigint, written_by string, placed_at "
        "timestamp, note string) USING iceberg PARTITIONED BY (days(placed_at)) TBLPROPERTIES "
        f"('write.merge.mode'='{mode}')"
    )
    theirs = "SELECT 'theirs', 7, id, 'them', timestamp_seconds(id * 60), 'kept' FROM range(100000)"
    warm_spark.sql(f"INSERT INTO {table} {theirs}")
    layout = TableLayout("append")
    put(warm_spark, table, orders(0, 50), by="first", layout=layout)
    warm_spark.sql(f"ALTER TABLE {table} ADD COLUMN added int")
    warm_spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD bucket(2, offset)")
    put(warm_spark, table, orders(50, 90), by="second", layout=layout)
    put(warm_spark, table, orders(40, 60), by="again", layout=layout)
    ours = f"{table} WHERE topic = 'orders'"
    found = {
        r["offset"]: r["written_by"]
        for r in warm_spark.sql(f"SELECT offset, written_by FROM {ours}").collect()
    }
    assert found == {o: "first" if o < 40 else "again" if o < 60 else "second" for o in range(90)}
    assert warm_spark.sql(f"SELECT count(*) FROM {ours}").first()[0] == 90
    kept = warm_spark.sql(
        f"SELECT count(*), count(note), count(added) FROM {table} WHERE topic = 'theirs'"
    ).first()
    assert tuple(kept) == (100_000, 100_000, 0)


def test_partitions_that_somebody_changed_since(warm_spark, table):
    """By day first, and by Kafka's partitions now.

    What comes again is replaced in the files of before too.
    """
    layout = LAYOUTS["by day"]
    put(warm_spark, table, orders(0, 50), orders(0, 50, 1), by="first", layout=layout)
    for change in (
        "ADD PARTITION FIELD topic",
        "ADD PARTITION FIELD partition",
        "DROP PARTITION FIELD placed_at_day",
    ):
        warm_spark.sql(f"ALTER TABLE {table} {change}")
    put(warm_spark, table, orders(50, 80), by="second", layout=layout)
    put(warm_spark, table, orders(40, 60), by="again", layout=layout)
    expected = once("first", orders(0, 40), orders(0, 50, 1)) | once("again", orders(40, 60))
    assert held(warm_spark, table) == expected | once("second", orders(60, 80))


@pytest.mark.parametrize(
    ("partition_by", "settings", "fix"),
    [
        (BY_KAFKA_PARTITION, {"write.format.default": "avro"}, "'write.format.default'='parquet'"),
        (BY_KAFKA_PARTITION, {f"{METRICS}.default": "counts"}, f"'{METRICS}.column.offset'='full'"),
        (
            BY_KAFKA_PARTITION,
            {f"{METRICS}.max-inferred-column-defaults": "0"},
            f"'{METRICS}.column.offset'='full'",
        ),
        ((), {"write.spark.accept-any-schema": "true"}, "'write.spark.accept-any-schema'='false'"),
        ((), {"write.merge.isolation-level": "snapshot"}, "'write.merge.isolation-level'='serializable'"),
        ((), {f"{METRICS}.column.topic": "none"}, f"'{METRICS}.column.topic'='full'"),
    ],
    ids=lambda one: next(iter(one.values()), "") if isinstance(one, dict) else None,
)
def test_a_table_that_could_refuse_a_later_batch_refuses_the_first(
    warm_spark, table, partition_by, settings, fix
):
    """With the statement that changes it; after that, batches are written, replaced and cut through."""
    make(warm_spark, table, partition_by, settings)
    with pytest.raises(
        TableSchemaError, match=re.escape(f"ALTER TABLE {table} SET TBLPROPERTIES ({fix})")
    ) as error:
        put(warm_spark, table, orders(0, 10), by="first", layout=TableLayout())
    assert held(warm_spark, table) == Counter()
    warm_spark.sql(str(error.value).partition("Fix: ")[2])
    for by, ranges in (("first", orders(0, 10)), ("second", orders(10, 20)), ("again", orders(5, 15))):
        put(warm_spark, table, ranges, by=by, layout=TableLayout())
    expected = once("first", orders(0, 5)) | once("again", orders(5, 15)) | once("second", orders(15, 20))
    assert held(warm_spark, table) == expected


def test_a_table_that_could_refuse_a_later_batch_is_not_created(services, table):
    """Also where the catalog's defaults are what it would be created with."""
    layout = TableLayout(table_properties={"write.format.default": "avro"})
    session = connect(services.spark_remote)
    try:
        with pytest.raises(TableSchemaError, match=r"'write\.format\.default'='parquet'"):
            put(session, table, orders(0, 10), by="first", layout=layout)
        session.conf.set("spark.sql.catalog.lake.table-override.write.merge.isolation-level", "snapshot")
        with pytest.raises(TableSchemaError, match=r"write\.merge\.isolation-level=snapshot .* not created"):
            put(session, table, orders(0, 10), by="first", layout=TableLayout(partition_by=()))
        assert not session.catalog.tableExists(table)
    finally:
        close(session)


@pytest.mark.parametrize(
    "partition_by", [BY_KAFKA_PARTITION, ()], ids=["by Kafka's partitions", "by nothing"]
)
def test_files_of_others_without_bounds_are_merged(warm_spark, table, partition_by):
    """In Avro, which has none: they may hold these offsets. No row is lost, and none is there twice."""
    make(warm_spark, table, partition_by, {"write.format.default": "avro"})
    frame(warm_spark, orders(0, 30), by="them").writeTo(table).append()
    warm_spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.format.default'='parquet')")
    put(warm_spark, table, orders(30, 40), by="new", layout=TableLayout())
    put(warm_spark, table, orders(20, 35), by="again", layout=TableLayout())
    expected = once("them", orders(0, 20)) | once("again", orders(20, 35)) | once("new", orders(35, 40))
    assert held(warm_spark, table) == expected


def test_a_transform_that_is_not_deterministic_is_merged_after_the_statement_of_its_refusal(
    warm_spark, table
):
    """Spark runs no MERGE of it by copy-on-write, Iceberg's default for a table that others created."""
    make(warm_spark, table, (), {"write.merge.mode": "copy-on-write"})

    def random_rows(ranges):
        return frame(warm_spark, ranges, by="us").withColumn("written_by", F.expr("uuid()"))

    write_table(warm_spark, table, [orders(0, 20)], lambda: random_rows(orders(0, 20)), layout=TableLayout())
    with pytest.raises(TableSchemaError, match="is not deterministic") as error:
        write_table(
            warm_spark, table, [orders(5, 10)], lambda: random_rows(orders(5, 10)), layout=TableLayout()
        )
    warm_spark.sql(str(error.value).partition("Fix: ")[2])
    write_table(warm_spark, table, [orders(5, 10)], lambda: random_rows(orders(5, 10)), layout=TableLayout())
    assert sorted(row["offset"] for row in warm_spark.table(table).collect()) == list(range(20))
