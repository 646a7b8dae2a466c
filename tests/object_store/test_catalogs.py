"""``kafka-liveness doctor --probe-catalog`` on each catalog that runs without a container (docs/table.md).

Run it alone for the table: ``.venv/bin/python -m pytest -s tests/object_store/test_catalogs.py``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kafka_liveness_dagster.doctor.catalog_probe import probe_catalog
from kafka_liveness_dagster.embedded import jars
from kafka_liveness_dagster.embedded import services as embedded
from kafka_liveness_dagster.spark.connect.session import close, connect
from tests.production.postgres import PASSWORD, USER, Postgres

PAGE = Path(__file__).parents[2] / "docs" / "table.md"
NAMES = {
    "lake": "JDBC, SQLite",
    "postgres": "JDBC, PostgreSQL",
    "hadoop": "Hadoop, local folder",
    "depot": "REST, Iceberg's test server",
    "hive": "Hive metastore 2.3.10",
}
"""The catalogs by their names in Spark, as the page calls them."""


def settings(folder, postgres, stores):
    """Spark's settings for all of them."""
    theirs = {
        "hadoop": {"type": "hadoop", "warehouse": folder / "hadoop"},
        "postgres": {
            "type": "jdbc",
            "uri": f"jdbc:{postgres.address}",
            "jdbc.user": USER,
            "jdbc.password": PASSWORD,
            "jdbc.schema-version": "V1",
            "warehouse": folder / "postgres",
        },
        "hive": {"type": "hive", "warehouse": folder / "hive"},
    }
    lines = {
        "spark.driver.memory": "2g",
        # Spark's own metastore, in the server's process, without its lock manager
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={folder}/metastore;create=true"
        ),
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.hadoop.hive.metastore.schema.verification": "false",
        "spark.hadoop.iceberg.engine.hive.lock-enabled": "false",
        **stores.spark_settings("depot"),
    }
    jars.MODULES.setdefault("postgresql", Path(__file__).parent / "ivy-postgresql.xml")
    [driver] = jars.resolve_jars("postgresql").glob("postgresql-*.jar")
    lines["spark.driver.extraClassPath"] = f"{stores.class_path()}:{driver}"
    for name, told in theirs.items():
        catalog = f"spark.sql.catalog.{name}"
        lines |= {catalog: "org.apache.iceberg.spark.SparkCatalog", f"{catalog}.cache-enabled": "false"}
        lines |= {f"{catalog}.{key}": str(value) for key, value in told.items()}
    return lines


@pytest.fixture(scope="module")
def session(stores, tmp_path_factory):
    """A Spark that knows all of them."""
    home = tmp_path_factory.mktemp("catalogs")
    with Postgres() as postgres, pytest.MonkeyPatch.context() as patch:
        conf = home / "catalogs.conf"
        conf.write_text(
            "".join(f"{name} {value}\n" for name, value in settings(home, postgres, stores).items())
        )
        patch.setenv("KAFKA_LIVENESS_SPARK_CONF", str(conf))
        try:
            found = connect(
                embedded.ensure_services(home=home, which=("spark",)).spark_remote, timeout_seconds=120
            )
            yield found
            close(found)
        finally:
            embedded.stop_services(home)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_what_the_probe_finds(session, name):
    """A row for each catalog: the outcome of each step."""
    findings = list(probe_catalog(session, name))
    for one in findings:
        print(f"{NAMES[name]:30}{one.outcome.value:5}{one.check:12}{one.message}")  # noqa: T201 - for who runs it alone
    [head] = re.findall(r"^\| catalog \|.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [one.strip() for one in head.split("|")[2:-1]] == [one.check for one in findings]
    [row] = re.findall(rf"^\| {re.escape(NAMES[name])} .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [one.strip() for one in row.split("|")[2:-1]] == [one.outcome.value for one in findings]
