"""Dagster as production runs it.

A run worker is killed while PostgreSQL restarts, and nothing is lost or doubled.
"""

from __future__ import annotations

import dagster as dg
import pytest

from kafka_liveness_dagster.core.run_ids import short_run_id
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def production(start, warm_spark):
    """Two code servers; one pipeline has work."""
    return start([{}, {}])


def test_a_run_worker_is_killed_while_postgres_restarts(production):
    """The sensor starts a successor, the dead run is failed, and each record is in the table once."""
    orders, idle = production.pipelines.values()
    dead = orders.is_at_work()
    worker = orders.worker(dead.run_id)
    production.postgres.stop()
    worker.kill()
    production.postgres.start()
    orders.becomes_exact()
    assert orders.ends(dead.run_id) is dg.DagsterRunStatus.FAILURE
    successor = wait_for(lambda: [run for run in orders.runs() if run.run_id != dead.run_id])[-1]
    assert successor.tags["kafka_liveness/started_because"] == f"run {short_run_id(dead.run_id)} crashed"
    assert idle.runs() == []
