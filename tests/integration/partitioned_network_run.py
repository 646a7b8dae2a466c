"""A live run in a process of its own, as a run worker has it.

Run as ``python -m tests.integration.partitioned_network_run '{…}'``.

What it tells on its standard output, a word a line, it does when it has read a line; the last line is how it
ended.
"""

from __future__ import annotations

import json
import sys

import dagster as dg

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.spark.connect import session
from tests.integration.declared_settings import made
from tests.spark_addresses import spark_at
from tests.timeouts import be_patient

SLOW = "java_method('java.lang.Thread', 'sleep', 100L)"


def say(word):
    """Tell the test, and wait until it has done what it has to."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()
    sys.stdin.readline()


def busy(name):
    """An SQL expression that tells, on the Spark server, that a row of this run was reached."""
    return f"java_method('java.lang.System', 'setProperty', '{name}', 'yes')"


def with_settings(settings):
    """Each session of this process has these settings."""
    connect = session.connect

    def connected(*args, **kwargs):
        found = connect(*args, **kwargs)
        for name, value in settings.items():
            found.conf.set(name, value)
        return found

    session.connect = connected


def main(told):
    """Run the job; how it ended."""
    if told["is_patient"]:
        be_patient()
    with_settings(told["settings"])
    if told["pauses_in"] == "start":
        say("start")

    def transform(batch):
        if told["pauses_in"] == "transform":
            say("transform")
        slow = f"concat({busy(told['busy'])}, {SLOW})" if told["busy"] else "'awake'"
        return batch.selectExpr("topic", "partition", "offset", f"concat({slow}, '') AS nap")

    asset = kl.kafka_asset(**made(told["asset"]))(transform)
    waits = {} if told["is_patient"] else {"connect_timeout_seconds": told["asset"]["max_batch_seconds"]}
    kafka, spark = kl.KafkaLivenessResource(**told["kafka"]), spark_at(told["spark"], **waits)
    job = dg.Definitions.merge(asset.definitions, dg.Definitions(resources={"kafka": kafka, "spark": spark}))
    run = job.resolve_job_def("orders_job").execute_in_process(
        instance=dg.DagsterInstance.get(), raise_on_error=False, run_id=told["run_id"]
    )
    if run.success:
        return {"success": True}
    error = run.failure_data_for_node("orders").error
    error = error.cause or error  # the first is Dagster's own
    return {"success": False, "error": error.cls_name, "message": error.message}


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(main(json.loads(sys.argv[1])))}\n")
    sys.stdout.flush()  # what follows is the end of the process, which the test times
