"""Python functions in a transform, in a run of its own: defined with the module, or inside, with types or with text."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

RUN = """
import json, sys
import kafka_liveness_dagster as kl
from tests.world import functions_of_the_users as functions
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.spark.transformed import Transformed
servers, remote, topic, which = sys.argv[1:]
kafka, spark = kl.KafkaLivenessResource(bootstrap_servers=servers), kl.SparkConnectResource(remote=remote)
ranges = [OffsetRange(topic, 0, 0, 2)]
rows = Transformed(getattr(functions, which), spark.session(), ranges, kafka.settings().spark())()
print(json.dumps(sorted((row.a, row.b) for row in rows.collect())))
spark.teardown_after_execution(None)
"""


def test_the_documented_example_gives_rows(services, make_topic, produce, table, rows, warm_spark):  # noqa: PLR0917
    """docs/transforms.md, as it is but for its names: a run of its live lane."""
    topic, text = make_topic(), (Path(__file__).parents[2] / "docs" / "transforms.md").read_text(encoding="utf-8")
    produce(services.bootstrap_servers, topic, 0, ["tea", "mate"])
    [code] = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for name, ours in {'["orders"]': f'["{topic}"]', "orders-etl": f"etl-{topic}", "lake.shop.orders": table}.items():
        assert name in code
        code = code.replace(name, ours)
    shown = {"__name__": "shown"}
    exec(compile(code.replace("table=", "idle_seconds=1, table="), "docs/transforms.md", "exec"), shown)  # noqa: S102
    with dg.DagsterInstance.ephemeral() as instance:
        assert shown["defs"].resolve_job_def("orders_job").execute_in_process(instance=instance).success
    assert [(row["order"], row["size"]) for row in rows(table)] == [("TEA", 3), ("MATE", 4)]


@pytest.mark.parametrize("which", ["by_module", "by_itself"])
def test_python_functions_work_wherever_they_are_written(services, make_topic, produce, warm_spark, which):
    """In a process that has no Spark but ours, as a run is."""
    topic = make_topic()
    produce(services.bootstrap_servers, topic, 0, ["tea", "mate"])
    words = [services.bootstrap_servers, services.spark_remote, topic, which]
    alone = {name: value for name, value in os.environ.items() if name != "SPARK_CONNECT_MODE_ENABLED"}
    told = subprocess.run([sys.executable, "-c", RUN, *words], env=alone, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr[-3000:]
    assert json.loads(told.stdout.splitlines()[-1]) == [["MATE", "matemate"], ["TEA", "teatea"]]
