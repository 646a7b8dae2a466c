"""Python functions in a transform, in a run of its own.

Defined with the module, or inside, with types or with text.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

RUN = """
import json, sys
import kafka_liveness_dagster as kl
from tests.spark_addresses import spark_at
from tests.timeouts import be_patient
from tests.integration import user_functions as functions
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.spark.transform import TransformedBatch
be_patient()
servers, remote, topic, which = sys.argv[1:]
kafka, spark = kl.KafkaLivenessResource(bootstrap_servers=servers), spark_at(remote)
ranges = [OffsetRange(topic, 0, 0, 2)]
transform, options = getattr(functions, which), kafka.settings().spark_options()
rows = TransformedBatch(transform, spark.session(), ranges, options=options)()
print(json.dumps(sorted((row.a, row.b) for row in rows.collect())))
spark.teardown_after_execution(None)
"""


@pytest.mark.parametrize("which", ["by_module", "by_itself"])
def test_python_functions_work_wherever_they_are_written(services, make_topic, produce, warm_spark, which):
    """In a process that has no Spark but ours, as a run is."""
    topic = make_topic()
    produce(services.bootstrap_servers, topic, 0, ["tea", "mate"])
    words = [services.bootstrap_servers, services.spark_remote, topic, which]
    alone = {name: value for name, value in os.environ.items() if name != "SPARK_CONNECT_MODE_ENABLED"}
    told = subprocess.run(
        [sys.executable, "-c", RUN, *words], env=alone, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr[-3000:]
    assert json.loads(told.stdout.splitlines()[-1]) == [["MATE", "matemate"], ["TEA", "teatea"]]
