"""The YAML of docs/component.md runs on a real broker and a real Spark; its SELECT is the batch's alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox

from kafka_liveness_dagster.spark.sql_transform import run_select

PAGE = Path(__file__).parents[2] / "docs" / "component.md"
PARTITIONS, OFFSETS = 2, 30

pytestmark = [
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
    pytest.mark.filterwarnings("ignore:.parse_obj_as.:DeprecationWarning"),
]


def test_the_yaml_of_the_page_runs(services, make_topic, produce, rows, monkeypatch):
    """Every record is in the table once, in batches.

    The addresses are read from the environment by the run.
    """
    topic = make_topic(PARTITIONS)
    table = f"lake.shop.{topic.replace('-', '_')}"
    for partition in range(PARTITIONS):
        values = [json.dumps({"good": "tea", "kilos": kilos}) for kilos in range(OFFSETS)]
        produce(services.bootstrap_servers, topic, partition, values)
    shown = re.search(
        r"^```yaml\n(type:.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )[1]
    here = {"[orders]": f"[{topic}]", "orders-etl": f"etl-{topic}", "lake.shop.orders": table, "500000": "40"}
    for theirs, ours in here.items():
        assert shown.count(theirs) == 1
        shown = shown.replace(theirs, ours)
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.defs_folder_path / "orders"
        folder.mkdir()
        (folder / "defs.yaml").write_text(shown.replace("  sql:", "  idle_seconds: 0.5\n  sql:"))
        with sandbox.build_all_defs() as defs:
            monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", services.bootstrap_servers)
            monkeypatch.setenv("SPARK_REMOTE", services.spark_remote)
            with dg.DagsterInstance.local_temp(overrides={"telemetry": {"enabled": False}}) as instance:
                run = defs.resolve_job_def("orders_job").execute_in_process(instance=instance)
    told = run.asset_materializations_for_node("orders")
    assert [one.metadata["batches"].value for one in told] == [1, 1], "the first at once, the rest at the end"
    found = [(row["partition"], row["offset"], json.loads(row["order_json"])["kilos"]) for row in rows(table)]
    assert found == [(partition, at, at) for partition in range(PARTITIONS) for at in range(OFFSETS)]


def test_a_select_is_of_its_own_batch(spark):
    """Another batch in the same session, before Spark has run the first, changes nothing of it."""
    sql = """
    WITH odd AS (SELECT * FROM batch WHERE id % 2 = 1 AND string(id) RLIKE '^[0-9]{1}$')
    SELECT id AS offset FROM odd ORDER BY id -- as it came
    """
    first, second = (
        run_select(spark.range(4), sql),
        run_select(spark.range(100, 104), sql.replace("{1}", "{3}")),
    )
    assert [row.offset for row in second.collect()] == [101, 103]
    assert [row.offset for row in first.collect()] == [1, 3]
    assert not spark.catalog.listTables()
