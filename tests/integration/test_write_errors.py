"""What cannot be written is refused by name, with the remedy, and the whole catalog is as it was before."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.table_layout import TableLayout
from kafka_liveness_dagster.spark.errors import (
    RowsOutsideBatchError,
    SparkFailedError,
    StorageError,
    TableSchemaError,
)
from kafka_liveness_dagster.spark.table.table import IcebergTable
from kafka_liveness_dagster.spark.table.write import write_table
from tests.timeouts import connect

BATCH = (OffsetRange("orders", 3, 0, 5),)
KEY = ("'orders' AS topic", "3 AS partition", "id AS offset")
ODD_NAMES = (
    "a.b",
    "net `price`",
    " ",
    "two\nlines",
    "größe",
    "partition.topic",
    "it's",
    'a"b',
    "1",
    "x" * 200,
)
OF_ICEBERG = (
    "_file",
    "_pos",
    "_deleted",
    "_spec_id",
    "_partition",
    "_row_id",
    "_last_updated_sequence_number",
)


@pytest.fixture
def everything(services, table):
    """Each table and view of the test's namespace in the catalog, with its version, and the namespace.

    Other workers create tables in the same catalog, each test in a namespace of its own.
    """
    database = services.catalog_uri.removeprefix("sqlite:///")

    def read():
        with closing(sqlite3.connect(database)) as found:
            own = (table.split(".")[1],)
            columns = "table_namespace, table_name, metadata_location"
            tables = found.execute(f"SELECT {columns} FROM iceberg_tables WHERE table_namespace = ?", own)
            of_namespaces = "SELECT DISTINCT namespace FROM iceberg_namespace_properties WHERE namespace = ?"
            namespaces = found.execute(of_namespaces, own)
            return {*tables.fetchall(), *namespaces.fetchall()}

    return read


@pytest.fixture
def made(warm_spark, table):
    """Make the table: ``made("v int") -> its name``."""

    def make(
        columns, key="topic string, partition int, offset bigint", by="PARTITIONED BY (topic, partition)"
    ):
        warm_spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {table.rpartition('.')[0]}")
        warm_spark.sql(f"CREATE TABLE {table} ({key}, {columns}) USING iceberg {by}")
        return table

    return make


@pytest.fixture
def refused(warm_spark, everything):
    """The error of a batch, which has changed nothing: ``refused(kind, match, table, column, ...)``."""

    def refuse(kind, match, table, *columns, make=None, end=5):
        def rows():
            frame = warm_spark.range(0, end, 1, 1).selectExpr(*KEY, *columns)
            return frame if make is None else make(frame)

        before = everything()
        with pytest.raises(kind, match=match) as told:
            write_table(warm_spark, table, BATCH, rows)
        assert everything() == before
        return told.value

    return refuse


@pytest.mark.parametrize(
    ("column", "match"),
    [
        pytest.param("null AS v", "cannot have `v` of type void", id="void"),
        pytest.param("interval '1' day AS v", "cannot have `v` of type interval day", id="interval"),
        pytest.param(
            "named_struct('a', array(null)) AS v", r"cannot have `v`\.`a`\.element of type void", id="nested"
        ),
        pytest.param(
            "map('k', interval '1' month) AS v", r"cannot have `v`\.value of type interval month", id="map"
        ),
        pytest.param("struct() AS v", "cannot have `v` of type struct<>", id="a struct of nothing"),
    ],
)
def test_a_type_that_iceberg_has_not_is_refused(refused, table, made, column, match):
    """For a table that is still to be made, and for one that would get the column beside a good one."""
    refused(TableSchemaError, match, table, column)
    refused(
        TableSchemaError, match.replace("`v`", "`w`"), made("v int"), "1 AS n", column.replace("AS v", "AS w")
    )


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        pytest.param(("1 AS v", "2 AS v"), "cannot distinguish: `v`", id="twice"),
        pytest.param(("1 AS v", "2 AS V"), "cannot distinguish: `v`, `V`", id="by case"),
        pytest.param(("id AS Offset",), "cannot distinguish: `offset`, `Offset`", id="the key by case"),
    ],
)
def test_two_columns_of_one_name_are_refused(refused, table, columns, match):
    """Spark could not say which of the two is meant."""
    refused(TableSchemaError, match, table, *columns)


def test_a_column_without_a_name_is_refused(refused, table):
    """Some formats have them, Parquet has not."""
    refused(
        TableSchemaError,
        "a column without a name",
        table,
        "1 AS v",
        make=lambda f: f.withColumnRenamed("v", ""),
    )


@pytest.mark.parametrize("name", [*OF_ICEBERG, "_Partition"])
def test_a_name_of_icebergs_own_columns_is_refused(refused, table, name):
    """Such a table is written once, and refuses the second run or the first rewrite: so it is never made."""
    refused(TableSchemaError, f"have `{name}`, a name of Iceberg's own", table, f"1 AS {name}")


@pytest.mark.parametrize("name", ["_file", "_partition"])
def test_a_table_that_has_such_a_name_says_how_to_mend_it(warm_spark, refused, made, name):
    """Made by others, or by the former version: what the error asks for is what helps."""
    table = made(f"{name} int")
    refused(TableSchemaError, f"have `{name}`.*ALTER TABLE {table} RENAME COLUMN", table, f"1 AS {name}")
    warm_spark.sql(f"ALTER TABLE {table} RENAME COLUMN {name} TO v")
    assert (
        write_table(warm_spark, table, BATCH, lambda: warm_spark.range(5).selectExpr(*KEY, "1 AS v")).rows
        == 5
    )


@pytest.mark.parametrize(
    ("has", "column", "kind", "match"),
    [
        pytest.param(
            "v int", "'a' AS v", TableSchemaError, 'safely cast `v` "STRING" to "INT"', id="text for int"
        ),
        pytest.param(
            "v array<int>", "array('a') AS v", TableSchemaError, r"safely cast `v`\.`element`", id="array"
        ),
        pytest.param(
            "v struct<a: int, b: int not null>",
            "named_struct('a', 1) AS v",
            TableSchemaError,
            "lack `v`.`b`, which the table requires",
            id="required inside",
        ),
        pytest.param(
            "v map<struct<a: int>, int>",
            "map(named_struct('a', 1, 'b', 2), 1) AS v",
            TableSchemaError,
            "extra fields `b`",
            id="key of a map",
        ),
        pytest.param(
            "v struct<a: int>",
            "named_struct('a', 1, 'b', INTERVAL '1' YEAR) AS v",
            TableSchemaError,
            r"cannot have `v`\.`b` of type interval",
            id="interval inside",
        ),
        pytest.param(
            "v array<struct<a: int>>",
            "array(named_struct('a', 'x', 'b', 1)) AS v",
            TableSchemaError,
            r"safely cast `v`\.`element`\.`a`",
            id="text inside",
        ),
        pytest.param(
            "v struct<a: decimal(4, 2)>",
            "named_struct('a', CAST(id + 9999 AS decimal(9, 0)), 'b', 1) AS v",
            SparkFailedError,
            "(?i)overflow|cannot be represented",
            id="too large inside",
        ),
        pytest.param("v int", "1 AS V", TableSchemaError, "differ by case only: `v`, `V`", id="case"),
        pytest.param(
            "v int not null", "1 AS w", TableSchemaError, "lack v, which the table requires", id="required"
        ),
        pytest.param(
            "v bigint not null",
            "nullif(id, 2) AS v",
            SparkFailedError,
            "null|NULL",
            id="a null where none may be",
        ),
        pytest.param(
            "v decimal(4, 2)",
            "CAST(id + 9999 AS decimal(9, 0)) AS v",
            SparkFailedError,
            "(?i)overflow|cannot be represented",
            id="too large",
        ),
        pytest.param("v int", "raise_error('no price') AS v", SparkFailedError, "no price", id="a row fails"),
        pytest.param(
            "v map<bigint, int>", "map(nullif(id, 2), 1) AS v", SparkFailedError, "NULL_MAP_KEY", id="key"
        ),
    ],
)
def test_rows_that_do_not_fit_a_table_leave_its_schema_alone(refused, made, has, column, kind, match):  # noqa: PLR0917
    """With and without a new column beside: it is added with the rows, or not at all."""
    table = made(has)
    refused(kind, match, table, column)
    error = refused(kind, match, table, column, "1 AS n")
    assert isinstance(error.__cause__, PySparkException) or kind is TableSchemaError


@pytest.mark.parametrize(
    ("column", "kind", "match"),
    [
        pytest.param(
            "CAST(raise_error('no price') AS int) AS v",
            SparkFailedError,
            "no price.*No offsets were committed",
            id="a row fails",
        ),
        pytest.param("map(nullif(id, 2), 1) AS v", SparkFailedError, "NULL_MAP_KEY", id="a null for a key"),
        pytest.param(
            "parse_json('1') AS v", SparkFailedError, "variant is not supported until v3", id="variant"
        ),
    ],
)
def test_a_first_batch_that_fails_makes_no_table(refused, table, column, kind, match):
    """Neither the table nor its namespace is there when the rows are not."""
    refused(kind, match, table, column)


def test_a_row_of_another_batch_makes_no_table_and_no_column(refused, table, made):
    """What is refused while Spark computes it has not been prepared for either."""
    refused(RowsOutsideBatchError, "orders:3:5, which is not in the batch", table, end=6)
    refused(RowsOutsideBatchError, "orders:3:5, which is not in the batch", made("v int"), "1 AS n", end=6)


@pytest.mark.parametrize(
    "part", ["branch_b", "tag_t", "branch_none", "tag_none", "at_timestamp_1", "changes", "files"]
)
def test_a_part_of_a_table_is_no_table(warm_spark, refused, made, part):
    """Iceberg would write to the branch: the run is green, and no row is in the table."""
    table = made("v int")
    write_table(warm_spark, table, BATCH, lambda: warm_spark.range(5).selectExpr(*KEY, "1 AS v"))
    warm_spark.sql(f"ALTER TABLE {table} CREATE BRANCH b")
    warm_spark.sql(f"ALTER TABLE {table} CREATE TAG t")
    refused(
        TableSchemaError, "is a branch, a tag or metadata of|must have topic", f"{table}.{part}", "1 AS v"
    )


def test_a_table_may_be_called_like_a_branch(warm_spark, table):
    """Only a name inside of a table means a part of it."""
    name = f"{table.rpartition('.')[0]}.branch_offices"
    for _ in range(2):
        assert (
            write_table(warm_spark, name, BATCH, lambda: warm_spark.range(5).selectExpr(*KEY)).attempts == 1
        )


@pytest.mark.parametrize("broken", [False, True])
def test_a_view_is_no_table(warm_spark, refused, made, broken):
    """Also one of a table that is gone: it is no table that is missing."""
    view = f"{made('v int')}_view"
    warm_spark.sql(f"CREATE VIEW {view} AS SELECT * FROM {view.removesuffix('_view')}")
    if broken:
        warm_spark.sql(f"DROP TABLE {view.removesuffix('_view')}")
    refused(TableSchemaError, f"{view} is a view, not an Iceberg table", view, "1 AS v")


def rows_of_five(session, *columns):
    """One row for each offset of the batch."""
    return session.range(0, 5, 1, 1).selectExpr(*KEY, *columns)


@pytest.fixture
def own_session(warm_spark, services):
    """A session whose settings no other test has."""
    session = connect(services.spark_remote)
    yield session
    session.stop()


@pytest.mark.parametrize("snapshots", ["overwrite", "append"])
@pytest.mark.parametrize("setting", ["spark.wap.branch", "spark.wap.id"])
def test_settings_that_put_rows_aside_are_named(own_session, made, rows, everything, setting, snapshots):  # noqa: PLR0917
    """Iceberg would write to a branch, or stage the rows: the run is green, and no row is in the table.

    The server has the setting, the transform sets it, or another writer of the session does.
    """
    table, other = (
        made("v int", by="TBLPROPERTIES ('write.wap.enabled'='true')"),
        (OffsetRange("orders", 3, 5, 10),),
    )
    layout = TableLayout(snapshots=snapshots)
    write_table(own_session, table, BATCH, lambda: rows_of_five(own_session, "1 AS v"), layout=layout)

    def sets():
        own_session.sql(f"SET {setting} = audit")
        return own_session.range(5, 10).selectExpr(*KEY, "2 AS v")

    before = everything()
    for _ in range(2):
        with pytest.raises(
            TableSchemaError, match=f"{setting}.*write.wap.enabled.*othing was written"
        ) as told:
            write_table(own_session, table, other, sets, layout=layout)
    assert f"ALTER TABLE {table} UNSET TBLPROPERTIES ('write.wap.enabled')" in str(told.value)
    assert everything() == before
    own_session.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('write.wap.enabled')")
    assert write_table(own_session, table, other, sets, layout=layout).rows == 5
    assert [(row["offset"], row["v"]) for row in rows(table)] == [(n, n // 5 + 1) for n in range(10)]


def test_a_table_that_its_catalog_would_create_for_an_audit_is_not_created(own_session, tmp_path):
    """The first batch would be staged, and the table would be empty.

    Without the setting it is in the table.
    """
    own = "spark.sql.catalog.own"
    for name, value in {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".warehouse": str(tmp_path / "warehouse"),
        ".table-default.write.wap.enabled": "true",
    }.items():
        own_session.conf.set(own + name, value)
    own_session.conf.set("spark.wap.branch", "audit")
    with pytest.raises(
        TableSchemaError, match=r"own\.shop\.orders .*spark\.wap\.branch='audit'.*othing was written"
    ):
        write_table(own_session, "own.shop.orders", BATCH, lambda: rows_of_five(own_session))
    assert not list(tmp_path.rglob("*.json"))
    own_session.conf.unset("spark.wap.branch")
    write_table(own_session, "own.shop.orders", BATCH, lambda: rows_of_five(own_session))
    assert own_session.table("own.shop.orders").count() == 5


@pytest.mark.parametrize("snapshots", ["overwrite", "append"])
def test_a_table_that_is_replaced_by_a_view_is_named(warm_spark, made, snapshots):
    """While the batch is written, and before the next one; also a view that shows Iceberg's own columns."""
    table = made("v int")
    aside, layout = f"{table}_aside", TableLayout(snapshots=snapshots)

    def replaces():
        if not warm_spark.catalog.tableExists(aside):
            warm_spark.sql(f"ALTER TABLE {table} RENAME TO {aside.partition('.')[2]}")
            warm_spark.sql(f"CREATE VIEW {table} AS SELECT *, _partition FROM {aside}")
        return rows_of_five(warm_spark, "1 AS v")

    for _ in range(2):
        with pytest.raises(TableSchemaError, match=f"{table} is a view, not an Iceberg table"):
            write_table(warm_spark, table, BATCH, replaces, layout=layout)
    assert warm_spark.table(aside).count() == 0


def test_a_table_of_another_format_is_named(warm_spark, refused, table):
    """The catalog of the session has tables too."""
    name = table.replace("lake.", "spark_catalog.")
    warm_spark.sql(f"CREATE DATABASE {name.rpartition('.')[0]}")
    warm_spark.sql(f"CREATE TABLE {name} USING csv AS SELECT {', '.join(KEY)} FROM range(1)")
    refused(TableSchemaError, "is a table of format csv, not an Iceberg table.*custom sink", name)


@pytest.mark.parametrize(
    ("key", "match"),
    [
        ("topic string, partition int, Offset bigint", "must have offset bigint"),
        ("topic string, partition bigint, offset bigint", r"must have partition int \(is bigint\)"),
        (
            "topic binary, partition int, offset int",
            r"must have topic string \(is binary\), offset bigint \(is int\)",
        ),
    ],
)
def test_a_table_with_another_key_is_refused(refused, made, key, match):
    """By the type it has, and by its case."""
    refused(TableSchemaError, match, made("v int", key), "1 AS v")


def test_a_warehouse_that_cannot_be_written_leaves_no_namespace(services, refused, table):
    """No rights, or something else in the folder's place.

    The catalog has neither the table nor its namespace.
    """
    (Path(services.warehouse) / table.split(".")[1]).write_text("a file where the folder should be")
    says = (
        f"p3:orders:0-5 could not be written to {table}: its store does not accept or return files "
        ".*Parent path is not"
    )
    refused(StorageError, says, table, "1 AS v")


@pytest.fixture
def small_disk(services, made):
    """Make a table whose data files are on a disk of 64 kB: ``small_disk(columns) -> its name``."""
    folders = []

    def make(columns):
        table = made(columns)
        folders.append(Path(services.warehouse, *table.split(".")[1:], "data"))
        folders[0].mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folders[0])]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            folders.clear()
            pytest.skip("only root may mount a small disk")
        return table

    yield make
    for folder in folders:
        umount = ["umount", "-l", str(folder)]
        subprocess.run(umount, check=True)


def test_a_store_that_is_full_is_the_storages_error(refused, small_disk):
    """No record is looked for, and no transform is to be mended."""
    table, large = (
        small_disk("v string"),
        "array_join(transform(sequence(1, 9999), x -> string(rand())), '') AS v",
    )
    error = refused(
        StorageError, f"{table}: its store is full .*No space left on device.*free space", table, large
    )
    assert isinstance(error.__cause__, PySparkException)


def test_a_column_that_another_writer_adds_meanwhile_is_its_column(warm_spark, made, rows):
    """Both lanes begin with the new transform at once.

    The second takes the column that the first has added.
    """
    table, others = made("v int"), ["ADD COLUMNS (n int)"]

    def make():
        if others:
            warm_spark.sql(f"ALTER TABLE {table} {others.pop()}")
        return warm_spark.range(5).selectExpr(*KEY, "1 AS n")

    assert write_table(warm_spark, table, BATCH, make).attempts == 2
    assert [(row["offset"], row["v"], row["n"]) for row in rows(table)] == [(n, None, 1) for n in range(5)]


def test_a_field_that_another_writer_adds_meanwhile_is_its_field(warm_spark, made, rows):
    """Both lanes begin with the new transform at once.

    Or somebody adds a field that the transform does not know.
    """
    table = made("v struct<a: int>")
    for batch, (fields, theirs) in enumerate(
        [("'a', 1, 'b', 2", "b"), ("'a', 1, 'b', 2", "c"), ("'d', 3", "e")]
    ):
        others = [f"ADD COLUMNS (v.{theirs} int)"]

        def make(fields=fields, others=others, batch=batch):
            if others:
                warm_spark.sql(f"ALTER TABLE {table} {others.pop()}")
            return warm_spark.range(batch, batch + 1).selectExpr(*KEY, f"named_struct({fields}) AS v")

        IcebergTable(table).forget_shape(warm_spark)  # as in the first batch of a run
        assert (
            write_table(warm_spark, table, (OffsetRange("orders", 3, batch, batch + 1),), make).attempts == 2
        )
    none = dict.fromkeys("abcde")
    expected = [{**none, "a": 1, "b": 2}, {**none, "a": 1, "b": 2}, {**none, "d": 3}]
    assert [row["v"] for row in rows(table)] == expected


def test_odd_names_are_columns_like_any_other(warm_spark, table, rows):
    """Made with the table, added to it, and kept when their file is rewritten.

    Dots, quotes, spaces, line ends.
    """

    def named(names, start, end):
        frame = warm_spark.range(start, end, 1, 1)
        for name in names:
            frame = frame.withColumn(name, frame["id"])
        return frame.selectExpr(*KEY, "*").drop("id")

    half = len(ODD_NAMES) // 2
    write_table(warm_spark, table, BATCH, lambda: named(ODD_NAMES[:half], 0, 5))
    cut = (OffsetRange("orders", 3, 1, 3),)
    assert write_table(warm_spark, table, cut, lambda: named(ODD_NAMES, 1, 3)).rewrote_files
    expected = [[n] * half + [n if n in {1, 2} else None] * (len(ODD_NAMES) - half) for n in range(5)]
    assert [[row[name] for name in ODD_NAMES] for row in rows(table)] == expected
