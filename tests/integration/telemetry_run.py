"""Runs of both lanes and a look of the sensor in one process.

Run as ``python -m tests.integration.telemetry_run '{…}'``.

After the live run, and after the look, it says so, and goes on when it has read a line.
"""

from __future__ import annotations

import json
import sys

import dagster as dg

import kafka_liveness_dagster as kl
from tests.integration.declared_settings import made
from tests.integration.kafka_group import NO_SPARK
from tests.spark_addresses import spark_at
from tests.timeouts import be_patient

BAD = ["7"]


def transform(batch):
    """The batch as it is; a value that is bad fails alone."""
    bad = "', '".join(BAD)
    told = f"if(cast(value AS string) IN ('{bad}'), raise_error('a secret: ' || cast(value AS string)), 1)"
    return batch.selectExpr("topic", "partition", "offset", f"{told} AS one")


def say(word):
    """Tell the test, and wait until it has done what it has to."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()
    sys.stdin.readline()


def main(told):
    """A live run, a look at what it owes, and a run that catches up; the ids of both runs."""
    be_patient()
    asset = kl.kafka_asset(**made(told["asset"]))(transform)
    kafka, spark = kl.KafkaLivenessResource(**told["kafka"]), spark_at(told["spark"])
    defs = dg.Definitions.merge(asset.definitions, dg.Definitions(resources={"kafka": kafka, "spark": spark}))
    with dg.DagsterInstance.local_temp(overrides={"telemetry": {"enabled": False}}) as instance:
        live = defs.resolve_job_def("orders_job").execute_in_process(instance=instance)
        say("ran")
        keys = asset.settings.resources
        resources = {keys.kafka: kafka, keys.spark: NO_SPARK}
        with dg.build_sensor_context(instance, resources=resources, sensor_name="watch") as context:
            asset.sensor.evaluate_tick(context)
        say("looked")
        BAD[:] = ["none"]
        instance.add_dynamic_partitions(asset.crash_lag.partitions_def.name, [told["owed"]])
        caught_up = defs.resolve_job_def("orders_crash_lag_job").execute_in_process(
            instance=instance, partition_key=told["owed"]
        )
        return live.run_id, caught_up.run_id


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(main(json.loads(sys.argv[1])))}\n")
