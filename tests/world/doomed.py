"""A run in a process that is about to be killed; a fork of one that has imported everything: that takes 2 s each time.

What is imported here must start no thread. This package is imported after the fork: it reads the failpoint then.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import confluent_kafka.admin  # noqa: F401 - only to have it
import dagster as dg
import pyspark.sql.connect.session  # noqa: F401 - only to have it
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator as Responses

from tests.world.declared import made

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def work(told: dict[str, Any], env: dict[str, str], says: Connection) -> None:
    """Run the job as told. It ends by SIGKILL: at the failpoint of ``env``, or in the midst of what Spark does."""
    os.environ.update(env)
    import kafka_liveness_dagster as kl  # noqa: PLC0415

    Responses._release_until = lambda *_: None  # the server keeps them all: the test attaches to what is left
    seen = set()

    def progressed(stages, inflight_tasks, operation_id, done):
        if sum(stage.num_tasks for stage in stages or ()) and not done:
            seen.add(operation_id)
        completed, total = (sum(getattr(s, f"num{n}_tasks") for s in stages or ()) for n in ("_completed", ""))
        committing = total > 0 and completed == total and not inflight_tasks  # the driver is alone with the catalog
        now = inflight_tasks if told["killed_while"] == "Spark reads" else committing
        if not done and now and len(seen) == told["asset"]["batching"]["in_flight"]:
            says.send(seen)
            os.kill(os.getpid(), signal.SIGKILL)

    @kl.kafka_asset(max_poll_records=told["max_poll_records"], **made(told["asset"]))
    def orders(batch):
        if told["killed_while"]:
            batch.sparkSession.registerProgressHandler(progressed)
        nap = "java_method('java.lang.Thread', 'sleep', 75L)" if told["killed_while"] == "Spark reads" else "''"
        return batch.selectExpr("topic", "partition", "offset", f"if({nap} = 'awake', 'awake', 'dead') AS written_by")

    kafka = kl.KafkaLivenessResource(**told["kafka"])
    resources = {"kafka": kafka, "spark": kl.SparkConnectResource(remote=told["spark"])}
    defs = dg.Definitions.merge(orders.definitions, dg.Definitions(resources=resources))
    defs.resolve_job_def(told["job"]).execute_in_process(
        instance=dg.DagsterInstance.get(), partition_key=told["partition_key"]
    )
