"""The code location of `run_overhead`: one Kafka asset, and an op that does nothing.

A file requests a run of either. Not for users: the resources tell the run's log when they are asked for
something and when they have it. It imports no more than a user's would, so neither pyspark nor
confluent_kafka, nor the other files of the benchmarks.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import psutil

import kafka_liveness_dagster as kl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from kafka_liveness_dagster.kafka.live.consumer import LivenessConsumer

TOPIC, WANTED = "KAFKA_LIVENESS_BENCH_TOPIC", "KAFKA_LIVENESS_BENCH_WANTED"
TABLE, GROUP = "lake.bench.run_overhead", "run-overhead"
TOLD = "benchmark: "
LOADED_AT = time.time()


def tell(what: str, at: float | None = None) -> None:
    """A line in the run's log: what happened, and when."""
    dg.get_dagster_logger().info("%s%s at %.3f", TOLD, what, time.time() if at is None else at)


@contextmanager
def told(before: str, after: str) -> Iterator[None]:
    """Both ends of something."""
    tell(before)
    yield
    tell(after)


def tell_of_the_process() -> None:
    """When this process began, and when it had imported this module, at which Dagster and the package are."""
    # The kernel's count since the boot; its hour of the boot is in whole seconds
    since_boot = psutil.Process().create_time() - psutil.boot_time()
    tell("process began", time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot)
    tell("code location imported", LOADED_AT)


class Kafka(kl.KafkaLivenessResource):
    """Tells when it gave the consumer."""

    def consumer(self, **settings: Any) -> LivenessConsumer:
        """As the package's."""
        tell_of_the_process()
        with told("consumer requested", "consumer created"):
            return super().consumer(**settings)


class Spark(kl.SparkConnectResource):
    """Tells when it gave the session."""

    def session(self) -> SparkSession:
        """As the package's."""
        with told("Spark session requested", "Spark session open"):
            return super().session()


@kl.kafka_asset(
    topics=[os.environ.get(TOPIC, "orders")],
    group_id=GROUP,
    table=TABLE,
    max_poll_records=10_000,
    idle_seconds=0.1,
)
def orders(batch: DataFrame) -> DataFrame:
    """The rows of every benchmark."""
    tell("table's columns and snapshot known")  # the transform is called next
    return batch.selectExpr("topic", "partition", "offset", "CAST(value AS string) AS order_json")


@dg.op
def op_that_does_nothing() -> None:
    """The least a run can do."""
    tell_of_the_process()
    tell("op ended")


@dg.job(executor_def=dg.in_process_executor)
def nothing() -> None:
    """A run of one op, as the asset's: in the run worker's process."""
    op_that_does_nothing()


@dg.sensor(
    jobs=[orders.live_job, nothing], minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING
)
def wanted() -> list[dg.RunRequest]:
    """A run for each file, whose name is the job's and a number."""
    names = sorted(file.name for file in Path(os.environ[WANTED]).iterdir())
    return [dg.RunRequest(run_key=name, job_name=name.rpartition("-")[0]) for name in names]


defs = dg.Definitions.merge(
    dg.Definitions(assets=[orders.live], jobs=[orders.live_job, nothing], sensors=[wanted]),
    dg.Definitions(resources={"kafka": Kafka(), "spark": Spark()}),
)
