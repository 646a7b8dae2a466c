"""A live run over records that cannot be processed, in a process that is about to be killed.

This package is imported after the fork: it reads the failpoint then.
"""

from __future__ import annotations

import os
from typing import Any

import dagster as dg

from tests.spark_addresses import spark_at


def work(told: dict[str, Any], env: dict[str, str]) -> None:
    """The run that dies; this package is imported when the failpoint is known."""
    os.environ.update(env)
    import kafka_liveness_dagster as kl  # noqa: PLC0415
    from tests.timeouts import be_patient, seconds  # noqa: PLC0415

    be_patient()

    @kl.kafka_asset(
        **told["asset"], batching=kl.Batching(**told["batching"]), idle_seconds=told["idle_seconds"]
    )
    def doomed(batch):
        return batch.selectExpr("topic", "partition", "offset", f"{told['value']} AS value")

    kafka = kl.KafkaLivenessResource(
        bootstrap_servers=told["servers"], default_max_batch_seconds=600, session_timeout_seconds=seconds(3)
    )
    resources = {"kafka": kafka, "spark": spark_at(told["remote"])}
    defs = dg.Definitions.merge(doomed.definitions, dg.Definitions(resources=resources))
    defs.resolve_job_def(doomed.live_job.name).execute_in_process(instance=dg.DagsterInstance.ephemeral())
