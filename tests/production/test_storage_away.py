"""PostgreSQL goes away under a live run and a backfill, for a moment and for a minute."""

from __future__ import annotations

import signal

import pytest

from tests.waiting import wait_for
from tests.world.stories import pause

pytestmark = pytest.mark.certify


@pytest.fixture(scope="module")
def production(start, warm_spark):
    """A pipeline that is at work, and one whose crash lag waits for a person."""
    return start([{}, {"auto_catch_up": False, "partitions": 3}])


@pytest.mark.parametrize(("how", "seconds"), [(signal.SIGKILL, 0), (signal.SIGINT, 60)])
def test_under_a_live_run_and_a_backfill(production, how, seconds):
    """Whatever of them fails: the lane goes on by itself, a second backfill does what the first did not."""
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
    print("live", orders.ends(live.run_id), "backfill", by_hand.backfill_ends(backfill))
    print(orders.said(live.run_id)[-6:])
    if missing := by_hand.missing():
        print("again", missing)
        by_hand.backfill_ends(by_hand.backfill(missing))
    by_hand.becomes_exact()
    assert by_hand.missing() == []
    assert all(run.is_finished for run in production.instance.get_runs())
