"""Fork a run from a process that has imported everything, to be killed: an import takes 2 s each time.

What is imported here must start no thread. This package is imported after the fork: it reads the failpoint
then.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import confluent_kafka.admin  # noqa: F401 - only to have it
import dagster as dg
import pyspark.sql.connect.session  # noqa: F401 - only to have it
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator as Responses

from tests.integration.declared_settings import made
from tests.spark_addresses import spark_at

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def work(told: dict[str, Any], env: dict[str, str], says: Connection) -> None:
    """Run the job as told.

    It ends by SIGKILL: at the failpoint of ``env``, or in the midst of what Spark does.
    """
    os.environ.update(env)
    import kafka_liveness_dagster as kl  # noqa: PLC0415
    from tests.timeouts import be_patient  # noqa: PLC0415

    be_patient()

    Responses._release_until = lambda *_: None  # the server keeps them all: the test attaches to what is left
    seen, reports_alone = set(), Counter()

    def progressed(stages, inflight_tasks, operation_id, done):
        if sum(stage.num_tasks for stage in stages or ()) and not done:
            seen.add(operation_id)
        if told["killed_while"] == "Spark reads":
            now = inflight_tasks and len(seen) == told["asset"]["batching"]["in_flight"]
        else:  # no task is at work any more, by five reports in a row, three of which may come at once
            alone = any(stage.num_completed_tasks for stage in stages or ()) and not inflight_tasks
            reports_alone[operation_id] = reports_alone[operation_id] + 1 if alone else 0
            now = reports_alone[operation_id] > 4
        if not done and now:
            says.send(seen if told["killed_while"] == "Spark reads" else {operation_id})
            os.kill(os.getpid(), signal.SIGKILL)

    @kl.kafka_asset(max_poll_records=told["max_poll_records"], **made(told["asset"]))
    def orders(batch):
        if told["killed_while"]:
            batch.sparkSession.registerProgressHandler(progressed)
        nap = (
            "java_method('java.lang.Thread', 'sleep', 75L)" if told["killed_while"] == "Spark reads" else "''"
        )
        return batch.selectExpr(
            "topic", "partition", "offset", f"if({nap} = 'awake', 'awake', 'dead') AS written_by"
        )

    kafka = kl.KafkaLivenessResource(**told["kafka"])
    resources = {"kafka": kafka, "spark": spark_at(told["spark"])}
    defs = dg.Definitions.merge(orders.definitions, dg.Definitions(resources=resources))
    defs.resolve_job_def(told["job"]).execute_in_process(
        instance=dg.DagsterInstance.get(), partition_key=told["partition_key"]
    )
