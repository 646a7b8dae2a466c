"""SIGKILL of each process of a production Dagster in the middle of batches.

A supervisor starts a service again.
"""

from __future__ import annotations

import dagster as dg
import pytest
from dagster._core.scheduler.instigation import TickStatus

from tests.waiting import wait_for

pytestmark = pytest.mark.certify


@pytest.fixture(scope="module")
def production(start, warm_spark):
    """Two pipelines, whose crash lag the sensor has processed."""
    return start([{}, {}])


def test_the_run_worker(production):
    """The run fails, its successor skips ahead, and the sensor has the crash lag processed."""
    orders, _ = production.pipelines.values()
    dead = orders.is_at_work()
    orders.worker(dead.run_id).kill()
    orders.becomes_exact()
    assert orders.ends(dead.run_id) is dg.DagsterRunStatus.FAILURE


@pytest.mark.parametrize("name", ["daemon", "webserver", "code server"])
def test_a_service(production, name):
    """No run notices: a run worker outlives the code server that started it."""
    orders, other = production.pipelines.values()
    run = orders.is_at_work()
    service = orders.name if name == "code server" else name
    production.kill(service)
    orders.produce(40)
    production.start_service(service)
    orders.becomes_exact()
    assert orders.ends(run.run_id) is dg.DagsterRunStatus.SUCCESS
    wait_for(production.are_loaded, details=production.logs)
    other.is_at_work()
    other.becomes_exact()


def test_the_process_in_which_a_code_server_has_the_code(production):
    """Dagster does not start it again: the sensor's ticks fail until somebody reloads the location.

    No run notices.
    """
    orders, _ = production.pipelines.values()
    run = orders.is_at_work()
    production.kill_inner(orders.name)
    wait_for(lambda: orders.last_tick().status is TickStatus.FAILURE, details=orders.shown)
    production.reload(orders.name)
    orders.produce(40)
    orders.becomes_exact()
    assert orders.ends(run.run_id) is dg.DagsterRunStatus.SUCCESS
    wait_for(lambda: orders.last_tick().status is not TickStatus.FAILURE, details=orders.shown)


def test_all_of_them_with_the_run_worker(production):
    """The sensor finds that the process is gone, and fails the run."""
    orders, _ = production.pipelines.values()
    dead = orders.is_at_work()
    worker = orders.worker(dead.run_id)
    services = [*production.pipelines, "daemon", "webserver"]
    for name in services:
        production.kill(name)
    worker.kill()
    assert orders.run(dead.run_id).status is dg.DagsterRunStatus.STARTED
    for name in services:
        production.start_service(name)
    orders.becomes_exact()
    assert orders.ends(dead.run_id) is dg.DagsterRunStatus.FAILURE
    wait_for(production.are_loaded, details=production.logs)


def test_a_code_server_before_its_run_is_terminated(production):
    """No code server knows the worker, and the UI shows an error.

    The run reads its status, and ends itself.
    """
    orders, _ = production.pipelines.values()
    run = orders.is_at_work(300)
    worker = orders.worker(run.run_id)
    production.kill(orders.name)
    production.start_service(orders.name)
    assert orders.terminate(run.run_id)["__typename"] != "TerminateRunSuccess"
    assert orders.ends(run.run_id) is dg.DagsterRunStatus.CANCELED
    wait_for(lambda: not worker.is_running(), details=orders.shown)
    orders.becomes_exact()
