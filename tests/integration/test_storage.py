"""Dagster's storage fails while real batches go from a real broker into a real table.

Nothing is lost, or twice.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import dagster as dg
import pytest
from sqlalchemy.exc import OperationalError

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.runs import storage
from tests.broken_storage import AWAY, broken
from tests.integration.group_with_table import GroupWithTable, written_rows
from tests.waiting import wait_for


@pytest.fixture
def world(services, produce, rows, warm_spark, monkeypatch):
    """A group whose runs Dagster keeps in files."""
    monkeypatch.setattr(storage, "RETRY_PAUSE_SECONDS", 0.1)
    with dg.instance_for_test() as instance:
        found = GroupWithTable(services, produce, rows, warm_spark)
        found.instance = instance
        yield found


def breaks_at(world, stack, offset):
    """What breaks the storage in the batch that has this offset; the stack mends it."""

    def between(batch):
        if batch.selectExpr("max(offset)").first()[0] >= offset and not stack.is_broken:
            stack.is_broken = True
            stack.enter_context(broken(world.instance, AWAY))

    stack.is_broken = False
    return between


def mended_when(find, stack):
    """Repair the storage when this is true.

    Or when that takes too long, since a live run waits for the storage.
    """
    try:
        wait_for(find, pause=0.5)
    finally:
        stack.close()


def test_a_live_run_outlives_a_storage_that_fails(world):
    """It reads on, commits, and leaves in good order.

    What Dagster had to hear it hears when the storage is back.
    """
    world.grow_to(100)
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        mend = pool.submit(mended_when, lambda: world.committed() == 130, stack)
        grown = []

        def between(batch):
            breaks(batch)
            if stack.is_broken and not grown and batch.selectExpr("max(offset)").first()[0] >= 99:
                # Comes while nothing else is left to do but to wait for the storage
                grown.append(world.grow_to(130))

        breaks = breaks_at(world, stack, 30)
        assert world.live(between, max_poll_records=30, materialize_interval_seconds=0.5) is None
        mend.result()
    records = world.instance.fetch_materializations(dg.AssetKey(world.name), limit=100).records
    told = [record.asset_materialization.metadata for record in records]
    assert sum(one["offsets"].value for one in told) == 130
    assert len(told) < sum(one["batches"].value for one in told), "one tells of several batches"
    assert world.offsets() == written_rows(0, 130)
    [run] = world.instance.get_runs()
    assert (run.status, run.tags[".dagster/kafka_liveness.leave_reason"]) == (
        dg.DagsterRunStatus.SUCCESS,
        "closed",
    )


def test_a_catch_up_run_waits_at_its_end_for_a_storage_that_fails(world):
    """Its partition is materialized when the storage is back, by the same run."""
    world.crash_and_resume_at_120()
    before = world.catch_up_log()
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        mend = pool.submit(mended_when, lambda: world.catch_up_log() != before, stack)
        assert world.catch_up((70, 120), between=breaks_at(world, stack, 70)) is None
        mend.result()
    assert (world.materialized_ranges(), world.offsets()) == ([(70, 120)], written_rows(0, 120))


def test_a_run_whose_end_nobody_could_store_is_finished_by_the_next(world, monkeypatch, caplog):
    """Its error says that all is done; Dagster cannot store its failure. The next run reads nothing again."""
    monkeypatch.setattr(storage, "SETTLE_SECONDS", 0.5)
    world.crash_and_resume_at_120()
    with ExitStack() as stack, pytest.raises(OperationalError):
        world.catch_up((70, 120), between=breaks_at(world, stack, 70))
    assert "each batch that this run committed is in the table once" in caplog.text
    assert (world.materialized_ranges(), world.offsets()) == ([], written_rows(0, 120))
    # In one process Dagster's next run must not begin while a line of this one is stored. It configures
    # logging: it holds logging's lock and waits for the handler, whose thread waits for that lock
    wait_for(lambda: "kafka-liveness-storage" not in {thread.name for thread in threading.enumerate()})
    assert world.catch_up((70, 120), between=lambda _batch: pytest.fail("read again")) is None
    assert (world.materialized_ranges(), world.offsets()) == ([(70, 120)], written_rows(0, 120))


def test_a_tick_of_the_sensor_fails_with_one_error_and_the_next_goes_on(world):
    """Nothing was requested by it."""
    world.crash_at_70()
    world.grow_to(120)
    with broken(world.instance, AWAY), pytest.raises(kl.DagsterStorageError) as raised:
        world.tick()
    assert "This tick started no run and added no partition" in str(raised.value)
    assert raised.value.__suppress_context__
    assert [one.job_name for one in world.tick().run_requests] == [f"{world.name}_job"]
