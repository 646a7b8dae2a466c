"""``max_concurrent_runs: 1``: live lanes and catch-up wait for each other, and the sensor's checks say so."""

from __future__ import annotations

import re

import dagster as dg
import pytest

from kafka_liveness_dagster.core.run_ids import short_run_id
from tests.waiting import wait_for

pytestmark = pytest.mark.certify
AFTER = 20  # seconds


@pytest.fixture(scope="module")
def production(start, warm_spark):
    """Two groups, of which the queue lets one run."""
    quick = {"sensor": {"ghost_after_seconds": AFTER}}
    return start([quick, quick], max_concurrent_runs=1)


def test_nothing_stands_still_without_a_message(production):
    """A lane that is never idle holds the other group and its own crash lag back.

    When it is idle they go on.
    """
    busy, waits = production.pipelines.values()
    dead = busy.is_at_work()
    busy.worker(dead.run_id).kill()
    assert busy.ends(dead.run_id) is dg.DagsterRunStatus.FAILURE
    wait_for(lambda: busy.runs(dg.DagsterRunStatus.STARTED), details=busy.shown)
    waits.produce(20)

    def failed_check():
        """The check of the group that waits, while the other one has always something to read."""
        busy.produce(20 if busy.committed() > sum(busy.log_ends.values()) - 100 else 0)
        last = production.instance.event_log_storage.get_latest_asset_check_execution_by_key(
            [dg.AssetCheckKey(dg.AssetKey(waits.name), "group_alive")]
        )
        found = (
            next((one.evaluation for one in last.values() if one and one.evaluation), None) if last else None
        )
        return found if found is not None and not found.passed else None

    failed = wait_for(failed_check, pause=0.3, details=busy.shown)
    [queued] = waits.runs()
    [behind] = busy.runs(job=f"{busy.crash_lag}_job")
    assert (queued.status, behind.status) == (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.QUEUED)
    assert f"run {short_run_id(queued.run_id)}" in failed.description
    assert "Queued or hung: " in failed.description
    assert "the live run is in Dagster's queue" in waits.last_tick().skip_reason
    assert failed.severity is dg.AssetCheckSeverity.ERROR
    report = production.doctor(busy, code=1)
    assert re.search(r"FAIL +dagster limits +max_concurrent_runs is 1, groups here: 1", report), report
    for pipeline in (waits, busy):
        pipeline.becomes_exact()
    wait_for(lambda: all(run.is_finished for run in production.instance.get_runs()), details=busy.shown)
    assert {run.status for run in production.instance.get_runs() if run.run_id != dead.run_id} == {
        dg.DagsterRunStatus.SUCCESS
    }
