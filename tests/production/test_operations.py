"""What people and schedules do in a production Dagster while the sensor runs the live lane."""

from __future__ import annotations

import re

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus

from tests.production.recipes import POOL
from tests.waiting import wait_for

pytestmark = pytest.mark.certify


@pytest.fixture(scope="module")
def production(start, warm_spark):
    """A pipeline that the sensor runs, and one whose crash lag waits for a person."""
    return start([{}, {"auto_catch_up": False, "partitions": 3}])


@pytest.fixture
def orders(production):
    return next(iter(production.pipelines.values()))


@pytest.fixture
def by_hand(production):
    return list(production.pipelines.values())[1]


def test_a_reload_with_a_changed_definition(production, orders):
    """The run at work goes on with the old code; the next run has the new code."""
    run = orders.is_at_work()
    code = production.home / "code" / f"{orders.name}.py"
    code.write_text(code.read_text().replace('VERSION = "first"', 'VERSION = "second"'))
    production.reload(orders.name)
    orders.produce(20)
    orders.becomes_exact()
    assert orders.ends(run.run_id) is dg.DagsterRunStatus.SUCCESS
    by_the_first = len(orders.rows())
    assert {version for *_, version in orders.rows()} == {"first"}
    orders.produce(20)
    orders.becomes_exact()
    assert {version for *_, version in orders.rows()[by_the_first:]} == {"second"}


def test_a_backfill_that_is_canceled_half_way(by_hand):
    """Its run at work is canceled, and a second backfill processes the rest.

    Dagster cancels no run that is starting at that moment: it processes its partition.
    """
    keys = by_hand.crashes()
    backfill = by_hand.backfill(keys)
    wait_for(lambda: 0 < len(by_hand.missing()) < len(keys), pause=0.2, details=by_hand.shown)
    by_hand.cancel_backfill(backfill)
    assert by_hand.backfill_ends(backfill) is BulkActionStatus.CANCELED

    def ended():
        runs = by_hand.instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": backfill}))
        return all(run.is_finished for run in runs) and {run.status for run in runs}

    statuses = wait_for(ended, details=by_hand.shown)
    assert statuses == {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.CANCELED}
    left = by_hand.missing()
    assert left
    assert not by_hand.is_exact()
    assert by_hand.backfill_ends(by_hand.backfill(left)) is BulkActionStatus.COMPLETED_SUCCESS
    by_hand.becomes_exact()
    assert by_hand.missing() == []


def test_a_termination_while_spark_works(orders):
    """The run is canceled, leaves its group, and its successor goes on where it was.

    Nothing becomes crash lag.
    """
    run = orders.is_at_work()
    worker = orders.worker(run.run_id)
    assert orders.terminate(run.run_id)["__typename"] == "TerminateRunSuccess"
    assert orders.ends(run.run_id) is dg.DagsterRunStatus.CANCELED
    wait_for(lambda: not worker.is_running())
    orders.becomes_exact()


def test_a_schedule_beside_the_sensor(orders):
    """Both start live runs; the group shares the partitions, and no record is in the table twice."""
    orders.start_schedule()
    tag = "dagster/schedule_name"

    def by_schedule():
        orders.produce(20)
        return [run for run in orders.runs() if tag in run.tags and run.is_finished]

    wait_for(by_schedule, patience=300.0, pause=0.5, details=orders.shown)
    orders.stop_schedule()
    orders.becomes_exact()
    wait_for(lambda: all(run.is_finished for run in orders.runs()), patience=300.0)
    assert {run.status for run in orders.runs() if tag in run.tags} == {dg.DagsterRunStatus.SUCCESS}


def test_dagster_asset_materialize(production, orders, by_hand):
    """The command runs in a process of its own, beside the live run, and for a partition."""
    run = orders.is_at_work()
    code = str(production.home / "code" / f"{orders.name}.py")
    production.command(
        "dagster", "asset", "materialize", "--select", orders.name, "-f", code, pipeline=orders
    )
    orders.becomes_exact()
    assert orders.ends(run.run_id) is dg.DagsterRunStatus.SUCCESS
    key, *others = by_hand.crashes()
    words = (
        "--select",
        by_hand.crash_lag,
        "--partition",
        key,
        "-f",
        production.home / "code" / f"{by_hand.name}.py",
    )
    production.command("dagster", "asset", "materialize", *words, pipeline=by_hand)
    assert by_hand.missing() == others
    assert by_hand.backfill_ends(by_hand.backfill(others)) is BulkActionStatus.COMPLETED_SUCCESS
    by_hand.becomes_exact()


def test_a_re_execution_from_failure(production, orders):
    """A broken transform ends the run; the run that repeats it does what the first did not."""
    broken = production.controls / f"{orders.name}-broken"
    broken.touch()
    orders.produce(60)
    failed = wait_for(lambda: orders.runs(dg.DagsterRunStatus.FAILURE), details=orders.shown)[0]
    broken.unlink()
    again = orders.run_from_failure(failed.run_id)
    assert orders.ends(again) is dg.DagsterRunStatus.SUCCESS
    orders.becomes_exact()


def test_the_commands_of_the_page(production, orders):
    """The doctor finds no fault; a pool gets its limit; the pipeline goes on without what was deleted."""
    report = production.doctor(orders)
    judged = re.findall(r"^(\S+) +dagster (\w+)", report, re.MULTILINE)
    assert {outcome for outcome, _ in judged} == {"ok"}, report
    assert re.search(r"^ok +dagster storage +storage: postgres", report, re.MULTILINE), report
    production.command(*POOL.replace("orders_crash_lag", orders.crash_lag).split())
    assert production.instance.event_log_storage.get_concurrency_info(orders.crash_lag).slot_count == 2
    run = orders.runs(dg.DagsterRunStatus.SUCCESS)[-1]
    production.command("dagster", "run", "delete", "--force", run.run_id)
    assert orders.run(run.run_id) is None
    topic = ["kafka", f"{orders.topic}_topic"]
    observed = dg.AssetRecordsFilter(asset_key=dg.AssetKey(topic))
    assert production.instance.fetch_observations(observed, limit=1).records
    production.command("dagster", "asset", "wipe", "--noprompt", str(topic).replace("'", '"'))
    orders.is_at_work()
    orders.becomes_exact()
