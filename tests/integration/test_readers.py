"""docs/readers.md.

Each reader that can run here reads each row once, in an environment that has nothing of ours.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from uuid import uuid4

import dagster as dg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PySparkException

from kafka_liveness_dagster.core.table_layout import DEFAULT_LAYOUT, TableLayout
from kafka_liveness_dagster.spark.connect.session import close
from tests.integration import external_reader
from tests.integration.old_group import BACKFILLED, BEFORE, NOW, PARTITIONS, OldGroup, written_twice
from tests.integration.reader_environment import ReaderEnvironment
from tests.timeouts import connect

DOCS = Path(__file__).parents[2] / "docs"
SHOWN = (
    DOCS / "examples" / "read_table.py",
    DOCS / "examples" / "read_spark.py",
    DOCS / "examples" / "read_polars.py",
    DOCS / "examples" / "read_duckdb.py",
    DOCS / "examples" / "time_travel.py",
)
READERS = (
    "pyiceberg",
    "pandas",
    "polars",
    "polars without its plugin",
    "duckdb",
    "duckdb by pyiceberg",
    "spark",
)
TABLES = {  # how what was replaced is marked
    "position deletes": None,
    "deletion vectors": TableLayout("append", (), table_properties={"format-version": "3"}),
    "whole files": DEFAULT_LAYOUT,
}


@pytest.fixture(scope="module")
def past(services, warm_spark, produce):
    """All that happened to one group."""
    topic = f"orders-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": services.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, len(PARTITIONS), 1)])[topic].result()
    with dg.DagsterInstance.ephemeral() as instance:
        past = OldGroup(services, topic, produce, instance)
        past.create_history()
    return past


@pytest.fixture(scope="module")
def tables(past, warm_spark):
    """``{kind: (name, what is in it)}``."""
    made = {"position deletes": (past.table, NOW)}
    for kind in ("deletion vectors", "whole files"):
        name = f"{past.table.rpartition('.')[0]}.{kind.replace(' ', '_')}"
        made[kind] = (name, written_twice(warm_spark, name, TABLES[kind]))
    return made


@pytest.fixture(scope="module")
def read(past, tables):
    """What all readers have read, in one process that has nothing of ours."""
    names = [name.partition(".")[2] for name, _ in tables.values()]
    shown = {file.stem: str(file) for file in SHOWN}
    asked = {"shown": shown, "tables": names, "backfilled": [past.topic, 0, *BACKFILLED]}
    answer = ReaderEnvironment().run_program(external_reader.__file__, json.dumps(asked))
    return json.loads(answer.splitlines()[-1])


def rows(found):
    """Without the times."""
    return [tuple(row[:3]) for row in found]


def test_the_readers_have_nothing_of_ours(read):
    """Neither this package nor what it needs, Spark's client aside."""
    assert read["ours"] == []


def test_the_page_names_the_versions(read):
    """Those of each reader stand in its row."""
    page = (DOCS / "readers.md").read_text(encoding="utf-8")
    versions = {
        told.partition(" | ")[0]: told.split(" | ")[1]
        for told in re.findall(r"^\| (\w.*)$", page, re.MULTILINE)
    }
    for reader, names in {
        "Spark": ["pyspark-client"],
        "pyiceberg, pandas": ["pyiceberg"],
        "Polars": ["polars", "polars_iceberg"],
        "DuckDB": ["duckdb"],
    }.items():
        assert [name for name in names if read["versions"][name] not in versions[reader]] == []


def test_rows_are_marked_as_deleted_in_each_way(tables, warm_spark):
    """So that it is tried whether readers honour the marks."""
    found = {}
    for kind, (name, _) in tables.items():
        last = warm_spark.sql(f"SELECT summary FROM {name}.snapshots ORDER BY committed_at DESC").first()
        found[kind] = (last.summary["total-position-deletes"], "added-dvs" in last.summary)
    assert found == {
        "position deletes": ("110", False),
        "deletion vectors": ("20", True),
        "whole files": ("0", False),
    }


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("reader", READERS)
def test_each_row_is_read_once(tables, read, warm_spark, kind, reader):
    """As it was written, and as Spark reads it in a session of ours, to the microsecond."""
    name, expected = tables[kind]
    found = read["read"][name.partition(".")[2]][reader]
    assert rows(found) == expected
    ours = warm_spark.table(name).orderBy("topic", "partition", "offset").toArrow()
    assert found == external_reader.told(ours)


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("how", ["from 45", "from 45 without its plugin"])
def test_a_filter_of_polars_passes_over_what_was_replaced(tables, read, kind, how):
    """It is applied to the files, whose marked rows count by their places."""
    name, expected = tables[kind]
    assert rows(read["read"][name.partition(".")[2]][how]) == [row for row in expected if row[1] >= 45]


@pytest.mark.parametrize("reader", ["spark", "pyiceberg", "polars", "duckdb"])
def test_before_the_backfill(read, reader):
    """What the live lane had written by then, on both sides of the gap."""
    assert rows(read["before"][reader]) == BEFORE


def test_what_came_from_which_batch(past, read, warm_spark):
    """The backfill wrote these offsets first, and the replay again; Spark and pyiceberg tell the same."""
    assert read["writers"]["spark"] == read["writers"]["pyiceberg"]
    backfill, replay = (one for one, _, _ in read["writers"]["spark"])

    def of_the_range(snapshot_id):
        found = warm_spark.sql(f"SELECT * FROM {past.table} VERSION AS OF {snapshot_id}")
        of_it = found.where(f"partition = 0 AND offset >= {BACKFILLED[0]} AND offset < {BACKFILLED[1]}")
        return {row["written_by"]: row["count"] for row in of_it.groupBy("written_by").count().collect()}

    assert (of_the_range(backfill), of_the_range(replay)) == ({"backfill": 20}, {"replay": 20})


def test_incremental_scans_pass_over_what_came_again(past, tables, read, warm_spark):
    """Spark's and pyiceberg's give what was appended, in silence.

    The view of changes refuses marked rows alone.
    """
    (backfill, since, _), _ = read["writers"]["spark"]
    appended = [(p, o, "backfill") for p in PARTITIONS for o in range(*BACKFILLED)]
    assert rows(read["appended since"]) == appended
    after = warm_spark.read.format("iceberg").option("start-snapshot-id", str(since))
    assert (
        sorted((r["partition"], r["offset"], r["written_by"]) for r in after.load(past.table).collect())
        == appended
    )
    with pytest.raises(PySparkException, match="Delete files are currently not supported"):
        after.load(f"{past.table}.changes").collect()
    changed = after.option("end-snapshot-id", str(backfill)).load(f"{past.table}.changes")
    assert [r["_change_type"] for r in changed.collect()] == ["INSERT"] * len(appended)
    name, _ = tables["whole files"]
    first = warm_spark.sql(f"SELECT snapshot_id FROM {name}.snapshots ORDER BY committed_at").first()[0]
    later = warm_spark.read.format("iceberg").option("start-snapshot-id", str(first))
    assert later.load(name).count() == 0
    changes = later.load(f"{name}.changes").collect()
    assert {row["written_by"] for row in changes if row["_change_type"] == "INSERT"} >= {"replay"}


def test_a_catalog_of_another_name_is_empty(services, past):
    """In Spark too: the tables of a catalog are those of its name."""
    session, found = connect(services.spark_remote), {}
    try:
        for name in ("mine", services.catalog_name):
            for key, value in {
                "": "org.apache.iceberg.spark.SparkCatalog",
                ".type": "jdbc",
                ".jdbc.schema-version": "V1",
                ".uri": f"jdbc:sqlite:{services.catalog_uri.removeprefix('sqlite:///')}",
                ".warehouse": services.warehouse,
            }.items():
                session.conf.set(f"spark.sql.catalog.{name}{key}", value)
            found[name] = {row[0] for row in session.sql(f"SHOW NAMESPACES IN {name}").collect()}
    finally:
        close(session)
    assert found["mine"] == set()
    assert past.table.split(".")[1] in found[services.catalog_name]
