"""PostgreSQL goes away under a live run and a backfill, for a moment and for a minute."""

from __future__ import annotations

import signal

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus

from tests.integration.dagster_runs import pause
from tests.waiting import wait_for

pytestmark = pytest.mark.certify


@pytest.fixture(scope="module")
def production(start, warm_spark):
    """A pipeline that is at work, and one whose crash lag waits for a person."""
    return start([{}, {"auto_catch_up": False, "partitions": 3}])


@pytest.mark.parametrize(("how", "seconds"), [(signal.SIGKILL, 0), (signal.SIGINT, 60)])
def test_under_a_live_run_and_a_backfill(production, how, seconds):
    """The live run outlives it. A backfill may fail: a second one does what the first did not."""
    orders, by_hand = production.pipelines.values()
    keys = by_hand.crashes()
    live = orders.is_at_work()
    backfill = by_hand.backfill(keys)
    wait_for(lambda: any(run.tags.get("dagster/backfill") == backfill for run in by_hand.instance.get_runs()))
    production.postgres.stop(how)
    pause(seconds)
    orders.produce(20)
    production.postgres.start()
    orders.becomes_exact()
    assert orders.ends(live.run_id) is dg.DagsterRunStatus.SUCCESS, orders.error(live.run_id)
    if by_hand.backfill_ends(backfill) is not BulkActionStatus.COMPLETED_SUCCESS:
        assert (
            by_hand.backfill_ends(by_hand.backfill(by_hand.missing())) is BulkActionStatus.COMPLETED_SUCCESS
        )
    assert by_hand.missing() == []
    by_hand.becomes_exact()
    wait_for(lambda: all(run.is_finished for run in production.instance.get_runs()), details=orders.shown)
