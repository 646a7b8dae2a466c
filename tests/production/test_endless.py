"""A transform that never returns, in Python and not in Spark.

What the sensor does, and what a person does.
"""

from __future__ import annotations

import dagster as dg
import pytest

from kafka_liveness_dagster.core.run_ids import short_run_id
from tests.waiting import wait_for

pytestmark = pytest.mark.certify
AFTER, BUDGET = 20, 8  # seconds; the session of orders.py is 6 s


@pytest.fixture(scope="module")
def production(start, warm_spark):
    """Two pipelines with short timeouts, of which ``ghost_after_seconds`` is the longest."""
    quick = {"max_batch_seconds": BUDGET, "sensor": {"ghost_after_seconds": AFTER}}
    return start([quick, quick])


def hang(pipeline, where):
    """Let a transform hang in a live run.

    Return the run, and its successor, which the sensor starts meanwhile.
    """
    endless = pipeline.production.controls / f"{pipeline.name}-endless"
    endless.write_text(where)
    pipeline.produce(60)
    [hung] = wait_for(lambda: pipeline.runs(dg.DagsterRunStatus.STARTED), details=pipeline.shown)
    wait_for(lambda: pipeline.cluster().members(pipeline.group), details=pipeline.shown)
    wait_for(lambda: not pipeline.cluster().members(pipeline.group), details=pipeline.shown)
    endless.unlink()
    pipeline.produce(20)
    pipeline.becomes_exact()
    assert pipeline.run(hung.run_id).status is dg.DagsterRunStatus.STARTED
    *_, successor, first = pipeline.runs()
    assert first.run_id == hung.run_id
    assert (
        f"run {short_run_id(hung.run_id)} is in progress, but has shown no activity for "
        in pipeline.observed()
    )
    return hung, successor


def test_in_python(production):
    """The run leaves its group at its deadline, a successor starts, a termination reaches the transform."""
    orders, _ = production.pipelines.values()
    hung, successor = hang(orders, "Python")
    assert (
        successor.tags["kafka_liveness/started_because"]
        == f"run {short_run_id(hung.run_id)} left by poll timeout"
    )
    worker = orders.worker(hung.run_id)
    assert orders.terminate(hung.run_id)["__typename"] == "TerminateRunSuccess"
    assert orders.ends(hung.run_id) is dg.DagsterRunStatus.CANCELED
    wait_for(lambda: not worker.is_running(), details=orders.shown)
    assert orders.is_exact()


def test_in_a_call_of_c(production):
    """The client's own thread leaves the group.

    Dagster gives the run up, a person ends the process, and reloads.
    """
    _, orders = production.pipelines.values()
    hung, _ = hang(orders, "C")
    worker = orders.worker(hung.run_id)
    orders.terminate(hung.run_id)  # the request times out: the code server waits for the worker to hear of it
    assert orders.ends(hung.run_id) is dg.DagsterRunStatus.CANCELED
    assert worker.is_running()
    worker.kill()
    # Dagster's code server has waited for the process, and starts no run any more
    production.reload(orders.name)
    orders.is_at_work()
    orders.becomes_exact()
    assert orders.run(hung.run_id).status is dg.DagsterRunStatus.CANCELED
