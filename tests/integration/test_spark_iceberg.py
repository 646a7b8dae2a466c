"""Writing the same range again leaves the same rows, whoever else writes at the same time."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.types import LongType

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.table_layout import TableLayout
from kafka_liveness_dagster.spark.connect.connection import SparkConnection
from kafka_liveness_dagster.spark.error_classification import is_table_missing
from kafka_liveness_dagster.spark.errors import RowsOutsideBatchError, TableSchemaError, WriteConflictError
from kafka_liveness_dagster.spark.row_count import RowSums
from kafka_liveness_dagster.spark.row_guard import require_rows_in_ranges
from kafka_liveness_dagster.spark.source import read_ranges
from kafka_liveness_dagster.spark.table.ledger import TableLedger
from kafka_liveness_dagster.spark.table.table import IcebergTable
from kafka_liveness_dagster.spark.table.write import write_table
from tests.timeouts import connect


def orders(start, end, partition=3):
    """A range of one topic."""
    return OffsetRange("orders", partition, start, end)


def frame(session, *ranges, by="first", tasks=2):
    """Rows of ranges that say who wrote them."""
    parts = [
        session.range(r.start, r.end, 1, tasks).selectExpr(
            f"'{r.topic}' AS topic", f"{r.partition} AS partition", "id AS offset", f"'{by}' AS written_by"
        )
        for r in ranges
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part)
    return whole


def put(session, table, *ranges, by="first", **options):
    """Write one row for each offset of the ranges."""
    return write_table(session, table, ranges, lambda: frame(session, *ranges, by=by), **options)


def held(found):
    """``{(partition, offset): {who wrote it: how many rows}}``."""
    out: dict[tuple[int, int], Counter[str]] = {}
    for row in found:
        out.setdefault((row["partition"], row["offset"]), Counter())[row["written_by"]] += 1
    return out


def once(by, start, end, partition=3):
    """What is held when ``by`` wrote these offsets, one row each."""
    return {(partition, offset): {by: 1} for offset in range(start, end)}


@pytest.fixture
def topic(services, make_topic, produce):
    """A topic of 120 records."""
    name = make_topic()
    produce(services.bootstrap_servers, name, 0, (f"order {n}" for n in range(120)))
    return name


@pytest.fixture
def asked(monkeypatch):
    """What Spark was asked so far.

    How often each of its calls was made, but for those that free what was answered.
    """
    calls: Counter[str] = Counter()

    def counted(way):
        def intercepted(line, continuation, details, request):
            calls[details.method.rpartition("/")[2]] += 1
            return way(line, continuation, details, request)

        return intercepted

    for name in ("intercept_unary_unary", "intercept_unary_stream"):
        monkeypatch.setattr(SparkConnection, name, counted(getattr(SparkConnection, name)))
    return lambda: {name: calls[name] for name in calls if name != "ReleaseExecute"}


@pytest.fixture
def plans_tell(spark):
    """Whether plans of this server's Iceberg name snapshots; Spark 4.0's last runtime, 1.11, names none."""
    return not spark.version.startswith("4.0.")


def requests_since(before, now):
    """How many requests of each kind were made in between."""
    found = {name: count - before.get(name, 0) for name, count in now.items()}
    return {name: count for name, count in found.items() if count}


def test_a_batch_is_two_analyses_and_one_execution(spark, table, asked, plans_tell):
    """Of the snapshot and of the rows; then they are written. More requests would cost each batch."""
    put(spark, table, orders(0, 5))
    put(spark, table, orders(5, 9))  # which reads the table's columns and properties, for a minute
    before = asked()
    put(spark, table, orders(9, 13))
    assert requests_since(before, asked()) == {"AnalyzePlan": 2, "ExecutePlan": 1 if plans_tell else 3}


@pytest.mark.parametrize("rows", [False, True], ids=["without rows", "with rows"])
def test_a_table_is_checked_again_only_at_another_snapshot(spark, table, asked, plans_tell, rows):
    """A refresh and a plan show that it is the same one. Another one is described before it is believed."""
    its, first = IcebergTable(table), orders(0, 5)
    before = TableLedger(its, lambda: spark)
    put(spark, table, first, ledger=before)
    before.read([first.topic_partition])
    again = TableLedger(its, lambda: spark, last=before.snapshot)
    its.forget_shape(spark)  # as after a minute
    counts = asked()
    assert again.read([first.topic_partition]) == before.read([first.topic_partition])
    its.forget_shape(spark)
    assert requests_since(counts, asked()) == {"AnalyzePlan": 2, "ExecutePlan": 2 if plans_tell else 4}

    spark.sql(f"CREATE OR REPLACE TABLE {table} (n int) USING iceberg")
    if rows:
        spark.sql(f"INSERT INTO {table} VALUES (1)")
    its.forget_shape(spark)
    with pytest.raises(TableSchemaError, match="must have topic string"):
        again.read([first.topic_partition])


def test_the_snapshot_is_the_tables_own(spark, table, asked, plans_tell):
    """None of a table without one, then the newest, the old one after a rollback, and never a branch's.

    A plan that names none may be one of an Iceberg that names none in any plan: that is asked for.
    """

    def main():
        told = spark.sql(f"SELECT snapshot_id FROM {table}.refs WHERE name = 'main'").first()
        return told and told[0]

    spark.sql(
        f"CREATE TABLE {table} (topic string, partition int, offset bigint, written_by string) USING iceberg"
    )
    seen, its = [], IcebergTable(table)
    changes = (
        "INSERT INTO {} VALUES ('orders', 3, 0, 'first')",
        "INSERT INTO {} VALUES ('orders', 3, 1, 'first')",
        "ALTER TABLE {} CREATE BRANCH aside",
        "INSERT INTO {}.branch_aside VALUES ('orders', 3, 2, 'aside')",
        "CALL lake.system.rollback_to_snapshot('{}', {})",
    )
    for change in ("SELECT 1", *changes):
        spark.sql(change.format(table, seen[1] if seen[1:] else None)).collect()
        before = asked()["ExecutePlan"]
        seen.append(its.snapshot_id(spark))
        executed = asked()["ExecutePlan"] - before
        assert seen[-1] == main()
        assert (executed == 0) == (plans_tell and main() is not None), "a plan that names one is enough"
    assert (seen[0], seen[5], len(set(seen))) == (None, seen[1], 3)


def test_an_iceberg_whose_plans_tell_no_snapshot_is_asked_for_it(spark, table, monkeypatch):
    """The same one; and who has no table learns that by the table's own name."""
    put(spark, table, orders(0, 5))
    its, gone = IcebergTable(table), IcebergTable(f"{table}_gone")
    told = its.snapshot_id(spark)
    with pytest.raises(AnalysisException) as missing:
        gone.snapshot_id(spark)
    assert is_table_missing(missing.value, gone.quoted)
    monkeypatch.setattr(
        "pyspark.sql.connect.dataframe.DataFrame._explain_string", lambda *_, **__: "IcebergScan()"
    )
    assert its.snapshot_id(spark) == told is not None


def test_rows_are_counted_also_where_spark_does_not_say(spark, table, monkeypatch):
    """A busy server sends no count of what it wrote: five rows are not none."""
    monkeypatch.setattr(RowSums, "report", lambda *_: None)
    assert [put(spark, table, orders(start, start + 5)).rows for start in (0, 5, 0)] == [5, 5, 5]


def test_exactly_the_records_of_the_range_are_in_the_table(services, spark, topic, table, rows):
    """From Kafka to a table that did not exist: each offset of the batch once, with its value."""
    ranges = [OffsetRange(topic, 0, 70, 120)]
    kafka = {"kafka.bootstrap.servers": services.bootstrap_servers}
    done = write_table(
        spark,
        table,
        ranges,
        lambda: read_ranges(spark, ranges, kafka).selectExpr(
            "topic", "partition", "offset", "cast(value AS string) AS value"
        ),
    )
    assert [(row["offset"], row["value"]) for row in rows(table)] == [
        (n, f"order {n}") for n in range(70, 120)
    ]
    assert (done.rows, done.attempts, done.rewrote_files) == (50, 1, False)
    told = spark.sql(f"SELECT summary['kafka-liveness.ranges'] FROM {table}.snapshots").first()[0]
    assert told == f"p0:{topic}:70-120"


def test_a_replay_replaces_itself(spark, table, rows):
    """The same range again: the same offsets, each once, by the later writer; the neighbours stay."""
    put(spark, table, orders(70, 100))
    put(spark, table, orders(100, 120))
    done = put(spark, table, orders(70, 100), by="replay")
    assert held(rows(table)) == once("replay", 70, 100) | once("first", 100, 120)
    assert (done.attempts, done.rewrote_files) == (1, False)


def test_no_rows_still_clear_the_range(spark, table, rows):
    """A transform that gives nothing for a range replaces what was there by nothing."""
    put(spark, table, orders(70, 100), orders(100, 120))
    done = write_table(
        spark, table, [orders(70, 120)], lambda: frame(spark, orders(70, 120)).where("offset < 0")
    )
    assert (rows(table), done.rows) == ([], 0)
    empty = spark.createDataFrame([], frame(spark, orders(0, 1)).schema)
    assert write_table(spark, table, [orders(70, 120)], lambda: empty).rows == 0


def test_disjoint_ranges_of_one_partition_commit_side_by_side(spark, table, rows):
    """The live lane and a catch-up lane do not meet: both commits pass at the first attempt."""
    put(spark, table, orders(0, 10))

    def while_the_other_commits():
        assert put(spark, table, orders(120, 190), by="live").attempts == 1
        return frame(spark, orders(70, 120), by="catch-up")

    assert write_table(spark, table, [orders(70, 120)], while_the_other_commits).attempts == 1
    assert held(rows(table)) == once("first", 0, 10) | once("catch-up", 70, 120) | once("live", 120, 190)


@pytest.mark.parametrize(
    ("begun", "other", "rewritten"),
    [
        (True, (70, 120), False),
        (True, (80, 90), False),
        (True, (60, 130), True),
        (False, (70, 120), False),
        (False, (60, 130), True),
    ],
)
def test_a_range_written_meanwhile_is_replaced(spark, table, rows, begun, other, rewritten):  # noqa: PLR0917
    """What somebody commits to our offsets after our snapshot is seen, and replaced at the second attempt.

    ``begun`` is False where the table does not exist when we look.
    """
    if begun:
        put(spark, table, orders(0, 10))
    others = [orders(*other)]

    def make():
        while others:
            put(spark, table, others.pop(), by="other")
        return frame(spark, orders(70, 120), by="ours")

    done = write_table(spark, table, [orders(70, 120)], make)
    expected = (once("first", 0, 10) if begun else {}) | once("other", *other) | once("ours", 70, 120)
    assert held(rows(table)) == expected
    assert done.attempts == 2 + rewritten
    assert done.rewrote_files == rewritten


def test_who_may_not_go_on_writes_nothing_after_a_conflict(spark, table, rows):
    """A fenced owner that loses the race does not begin again: its successor's rows stay."""
    put(spark, table, orders(0, 10))
    fenced = threading.Event()

    def may_go_on():
        if fenced.is_set():
            raise PermissionError("fenced")

    def make():
        put(spark, table, orders(70, 120), by="new owner")
        spark.sql("SELECT 1").collect()
        return frame(spark, orders(70, 100), by="old owner")

    calls = iter(range(100))

    def fence_at_the_second_attempt():
        if next(calls) == 4:
            fenced.set()
        may_go_on()

    with pytest.raises(PermissionError):
        write_table(spark, table, [orders(70, 100)], make, may_go_on=fence_at_the_second_attempt)
    assert held(rows(table)) == once("first", 0, 10) | once("new owner", 70, 120)


def test_a_writer_that_never_wins_says_so(spark, table, rows):
    """The attempts are bounded, the error says how many, and the winner's rows stay."""

    def make():
        put(spark, table, orders(70, 100), by="other")
        return frame(spark, orders(70, 100), by="ours")

    with pytest.raises(WriteConflictError, match=r"p3:orders:70-100 of .* was refused 2 times in"):
        write_table(spark, table, [orders(70, 100)], make, max_attempts=2)
    assert held(rows(table)) == once("other", 70, 100)


def test_two_writers_at_the_same_moment(services, table, rows):
    """Namespace, table and range made by two sessions at once.

    Nobody fails, and one of them is what is held.
    """
    ready = threading.Barrier(2)

    def go(by):
        session = connect(services.spark_remote)
        ready.wait(180)
        done = [put(session, table, orders(100 * n, 100 * n + 50), by=by) for n in range(3)]
        session.stop()
        return done

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(go, ["one", "two"]))
    found = held(rows(table))
    assert sorted(found) == [(3, n) for n in range(250) if n % 100 < 50]
    assert all(sum(by.values()) == 1 for by in found.values())
    for n in range(3):
        assert len({tuple(found[3, 100 * n + k]) for k in range(50)}) == 1
    assert all(not one.rewrote_files for lane in done for one in lane)


def test_a_range_that_cuts_through_files_is_rewritten_exactly(spark, table, rows):
    """The example: 70-100 written, crash, 70-120 again; then 80-90 is replayed out of the middle."""
    put(spark, table, orders(0, 70))
    put(spark, table, orders(70, 100))
    whole = put(spark, table, orders(70, 120), by="second")
    assert (whole.attempts, whole.rewrote_files) == (1, False)
    done = put(spark, table, orders(80, 90), by="third")
    assert held(rows(table)) == once("first", 0, 70) | once("second", 70, 120) | once("third", 80, 90)
    assert (done.rows, done.attempts, done.rewrote_files) == (10, 2, True)
    # Its rows are files of their own now
    assert not put(spark, table, orders(80, 90), by="fourth").rewrote_files
    assert held(rows(table)) == once("first", 0, 70) | once("second", 70, 120) | once("fourth", 80, 90)


def test_a_rewrite_keeps_none_one_and_many_rows_an_offset(spark, table, rows):
    """Survivors are whole rows, not keys: duplicates, gaps, nulls and nested values stay as they are."""

    def lines(start, end, by):
        # offset n gives n % 3 rows
        return frame(spark, orders(start, end), by=by).selectExpr(
            "*",
            "explode(slice(array(0, 1), 1, int(offset % 3))) AS line",
            "named_struct('a', nullif(offset, 72)) AS s",
        )

    def expected(by, *offsets):
        return {(n, line, by, None if n == 72 else n) for n in offsets for line in range(n % 3)}

    write_table(spark, table, [orders(70, 120)], lambda: lines(70, 120, "first"))
    done = write_table(spark, table, [orders(80, 90)], lambda: lines(80, 90, "second"))
    found = rows(table)
    got = {(row["offset"], row["line"], row["written_by"], row["s"]["a"]) for row in found}
    assert got == expected("first", *range(70, 80), *range(90, 120)) | expected("second", *range(80, 90))
    assert len(found) == len(got)
    assert done.rewrote_files


def test_only_the_partition_that_is_cut_is_widened(spark, table, rows):
    """Several partitions in one batch: the aligned one and the unknown one are written as they are."""
    put(spark, table, orders(0, 100, 0), orders(0, 100, 1))
    done = put(spark, table, orders(40, 60, 0), orders(0, 100, 1), orders(0, 10, 2), by="second")
    expected = once("first", 0, 40, 0) | once("second", 40, 60, 0) | once("first", 60, 100, 0)
    assert held(rows(table)) == expected | once("second", 0, 100, 1) | once("second", 0, 10, 2)
    assert done.rewrote_files


def test_survivors_deleted_meanwhile_do_not_come_back(spark, table, rows):
    """A row that somebody deletes between our snapshot and our rewrite stays deleted."""
    put(spark, table, orders(70, 120))
    calls = []

    def make():
        calls.append(1)
        if len(calls) == 2:  # the attempt that rewrites
            spark.sql(f"DELETE FROM {table} WHERE offset = 75").collect()
        return frame(spark, orders(80, 90), by="second")

    done = write_table(spark, table, [orders(80, 90)], make)
    assert held(rows(table)) == {
        key: by for key, by in (once("first", 70, 120) | once("second", 80, 90)).items() if key != (3, 75)
    }
    assert (done.attempts, done.rewrote_files) == (3, True)


def test_compaction_in_between_changes_nothing(spark, table, rows):
    """Files merged across batches while a batch is written: their rows are not lost and not doubled."""
    for start in range(0, 100, 10):
        put(spark, table, orders(start, start + 10))
    calls = []

    def make():
        if not calls:
            catalog, _, name = table.partition(".")
            calls.append(spark.sql(f"CALL {catalog}.system.rewrite_data_files('{name}')").collect())
        return frame(spark, orders(30, 40), by="second")

    write_table(spark, table, [orders(30, 40)], make)
    assert held(rows(table)) == once("first", 0, 100) | once("second", 30, 40)


def test_any_sequence_of_batches_holds_each_offset_once(spark, table, rows):
    """Batches with random boundaries in random order: the table is always what a dictionary would be."""
    seed = random.randrange(10**6)  # noqa: S311
    dice = random.Random(seed)  # noqa: S311
    expected: dict[tuple[int, int], dict[str, int]] = {}
    for number in range(8):
        batch = []
        for partition in dice.sample(range(3), dice.randint(1, 2)):
            start = dice.randrange(80)
            batch.append(orders(start, start + dice.randint(1, 40), partition))
        put(spark, table, *batch, by=str(number))
        for r in batch:
            expected |= once(str(number), r.start, r.end, r.partition)
        assert held(rows(table)) == expected, f"seed {seed}, batch {number}: {batch}"


def test_rows_without_their_offsets_are_refused(spark, table):
    """Rows that could not be replaced later are never written; nor is a table made for them."""
    for broken in ("topic", "partition", "offset"):
        with pytest.raises(TableSchemaError, match=f"must have {broken} "):
            write_table(
                spark, table, [orders(70, 100)], lambda name=broken: frame(spark, orders(70, 100)).drop(name)
            )
    text = frame(spark, orders(70, 100)).selectExpr("topic", "string(partition)", "offset")
    with pytest.raises(TableSchemaError, match=r"partition int \(is string\)"):
        write_table(spark, table, [orders(70, 100)], lambda: text)
    assert not spark.catalog.tableExists(table)


def test_a_table_that_does_not_fit_is_refused(spark, table, rows):
    """A table of somebody else's making without the three columns: named, and left alone."""
    spark.sql(f"CREATE NAMESPACE {table.rpartition('.')[0]}")
    spark.sql(
        f"CREATE TABLE {table} (topic string, partition int) USING iceberg PARTITIONED BY (topic, partition)"
    )
    with pytest.raises(TableSchemaError, match="must have offset bigint"):
        put(spark, table, orders(70, 100))
    assert rows(table) == []


def test_a_row_of_another_batch_is_refused(spark, table, rows):
    """A row outside of the ranges would survive every replay, so it is never written."""
    put(spark, table, orders(70, 100))
    with pytest.raises(RowsOutsideBatchError, match="orders:3:100, which is not in the batch"):
        write_table(
            spark, table, [orders(70, 100)], lambda: frame(spark, orders(70, 101), by="second", tasks=1)
        )
    assert held(rows(table)) == once("first", 70, 100)


def test_columns_come_and_go(spark, table, rows):
    """A new column is added to the table, one that is gone is null, and a rewrite keeps the old values."""
    put(spark, table, orders(70, 100))
    wider = (
        frame(spark, orders(80, 90), by="second").selectExpr("*", "1.5D AS `net price`").drop("written_by")
    )
    write_table(spark, table, [orders(80, 90)], lambda: wider)
    found = {row["offset"]: (row["written_by"], row["net price"]) for row in rows(table)}
    assert found == {n: (None, 1.5) if 80 <= n < 90 else ("first", None) for n in range(70, 100)}


@pytest.mark.parametrize("snapshots", ["overwrite", "append"])
def test_fields_inside_of_columns_come_and_go(spark, table, rows, snapshots):
    """In structs, also in arrays and maps: a new one is added, a missing one is null, one may grow.

    A file that is cut has the fields of its own time, and its other rows stay as they are.
    """

    def put(inner, *ranges):
        shown = (
            f"named_struct('it''s', 1, 'in', {inner}) AS s",
            f"array({inner}) AS l",
            f"map('k', {inner}) AS m",
        )
        made = [
            frame(spark, one, tasks=1).selectExpr("topic", "partition", "offset", *shown) for one in ranges
        ]
        return write_table(spark, table, ranges, lambda: made[0], layout=TableLayout(snapshots=snapshots))

    put("named_struct('a', 1, 'b', 2)", orders(0, 9))
    put("named_struct('c', named_struct('x', 3), 'a', 1L)", orders(9, 12))
    put("CAST(NULL AS struct<b: int>)", orders(12, 13))
    assert put(
        "named_struct('c', named_struct('y', array(named_struct('z', 4))))", orders(3, 5)
    ).rewrote_files
    put("named_struct('c', named_struct('y', array(named_struct('z', 4, 'w', 5))))", orders(13, 14))

    def inside(offset):
        none = {"a": None, "b": None, "c": None}
        if offset in {3, 4}:
            return {**none, "c": {"x": None, "y": [{"z": 4, "w": None}]}}
        if offset < 9:
            return {**none, "a": 1, "b": 2}
        if offset < 12:
            return {**none, "a": 1, "c": {"x": 3, "y": None}}
        return {**none, "c": {"x": None, "y": [{"z": 4, "w": 5}]}} if offset == 13 else None

    found = [(row["offset"], row["s"], row["l"], dict(row["m"])) for row in rows(table)]
    assert found == [(n, {"it's": 1, "in": inside(n)}, [inside(n)], {"k": inside(n)}) for n in range(14)]
    assert spark.table(table).select("s.in.a").schema[0].dataType == LongType()


def test_a_name_that_is_no_table_and_an_empty_batch_are_refused(spark):
    """Wrong settings are said before Spark is asked."""
    with pytest.raises(InvalidSettingError, match=r"Fix: write catalog\.namespace\.table"):
        put(spark, "orders; DROP TABLE x", orders(70, 100))
    with pytest.raises(InvalidSettingError, match="no offset ranges"):
        write_table(spark, "lake.shop.orders", [], lambda: frame(spark, orders(70, 100)))


def test_every_batch_runs_the_same_generated_code(spark, capsys):
    """Offsets are data, not code: else Spark would compile each batch anew, and run it cold."""
    codes = []
    for ranges in ([orders(70, 120), orders(0, 9, 1)], [orders(120, 190), orders(9, 70, 1)]):
        key = ("cast(id AS string) AS topic", "cast(id AS int) AS partition", "id AS offset")
        require_rows_in_ranges(spark.range(200).selectExpr(*key), ranges).explain(mode="codegen")
        codes.append(
            "\n".join(line for line in capsys.readouterr().out.splitlines() if line.startswith("/* "))
        )
    assert "getLong" in codes[0], "it is the code, and looks the numbers up"
    assert codes[0] == codes[1]
