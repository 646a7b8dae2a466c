"""What a run loses, and what it reports, when Dagster's storage fails: nothing, and one named error."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace

import dagster as dg
import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.lanes.late_records import LateRecords
from kafka_liveness_dagster.runs import storage
from kafka_liveness_dagster.runs.heartbeat import RunHeartbeat
from kafka_liveness_dagster.runs.storage import call_with_retries, storage_of
from tests.broken_storage import AWAY, FULL, LOCKED, READ_ONLY, broken
from tests.waiting import wait_for

ORDERS = dg.AssetKey("orders")


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """A disk of 8 MB; None where only root may mount one."""
    folder = tmp_path_factory.mktemp("disk")
    mount, umount = (
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)],
        ["umount", "-l", str(folder)],
    )
    done = subprocess.run(mount, capture_output=True, check=False)
    yield None if done.returncode else folder
    if not done.returncode:
        subprocess.run(umount, check=True)


@pytest.fixture(scope="module")
def instance(disk):
    with pytest.MonkeyPatch.context() as patch:
        events = "dagster._core.storage.event_log.sqlite.sqlite_event_log"
        patch.setattr(f"{events}.SQLITE_BUSY_TIMEOUT_SECONDS", 0.05)
        with dg.instance_for_test(temp_dir=disk and str(disk)) as found:
            yield found


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """Retry at once."""
    monkeypatch.setattr(storage, "RETRY_PAUSE_SECONDS", 0.01)


def run_of(instance, work):
    """A run whose step does this; its events, as type or text with the rows of a materialization."""

    @dg.asset
    def orders(context):
        work(context)

    done = dg.materialize([orders], instance=instance, raise_on_error=False)
    assert done.success, done.all_events[-2]
    return done.run_id


@pytest.mark.parametrize("how", [READ_ONLY, AWAY, LOCKED, FULL])
def test_what_a_failing_storage_does_not_take_is_stored_later_in_its_order(instance, disk, how, caplog):
    """Nothing raises in the run; the process's log says it once, in one line."""
    if how == FULL and disk is None:
        pytest.skip("only root may mount a small disk")

    def work(context):
        with RunHeartbeat(context, {"lane": "live"}):
            of_run = storage_of(context)
            of_run.log.info("before")
            with broken(instance, how):
                one = ["first"]
                of_run.log.info("lines: %s", one)
                one.append("changed after the call")
                stored = of_run.store_event(
                    dg.AssetMaterialization(ORDERS, metadata={"rows": 7}), "a materialization"
                )
                of_run.add_tags({"kafka_liveness/waiting_for": "partitions"})
                of_run.log.info("big: %s", "x" * 20_000)
                assert of_run.is_behind
                assert not stored.done()
            of_run.log.info("after")

    run_id = run_of(instance, work)
    texts = [entry.message for entry in instance.all_logs(run_id)]
    wanted = ("before", "lines: ['first']", "Materialized value orders", "big: xxx", "after")
    at = [next(place for place, text in enumerate(texts) if text.startswith(begin)) for begin in wanted]
    assert at == sorted(at)
    assert instance.get_run_by_id(run_id).tags["kafka_liveness/waiting_for"] == "partitions"
    said = [text for record in caplog.records if "Dagster's storage failed" in (text := record.getMessage())]
    assert len(said) == 1
    assert "The run continues" in said[0]
    assert "Fix: " in said[0]
    assert "\n" not in said[0]
    assert any(
        entry.user_message.startswith("Dagster's storage responds again")
        for entry in instance.all_logs(run_id)
    )


def test_a_process_that_can_start_no_thread_stores_in_its_own(instance, no_threads):
    """What a failing storage raises then is raised there."""

    def work(context):
        of_run = storage_of(context)
        with no_threads():
            of_run.add_tags({"kafka_liveness/waiting_for": "threads"})
            with broken(instance, AWAY), pytest.raises(Exception, match="unable to open database"):
                of_run.add_tags({"kafka_liveness/waiting_for": "nothing"})
        assert not of_run.is_behind

    assert instance.get_run_by_id(run_of(instance, work)).tags["kafka_liveness/waiting_for"] == "threads"


def test_a_run_whose_end_cannot_be_stored_ends_with_one_error(instance, monkeypatch):
    """It has what is committed, and what of the run Dagster does not have.

    Another error of the run is not hidden.
    """
    monkeypatch.setattr(storage, "SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(storage, "MAX_QUEUED_LINES", 3)
    texts = []

    def work(context):
        of_run = storage_of(context)
        with ExitStack() as away, pytest.raises(kl.DagsterStorageError) as raised, RunHeartbeat(context, {}):
            away.enter_context(broken(instance, AWAY))
            of_run.store_event(
                dg.AssetMaterialization(ORDERS), "the materialization of 3 batches, 70 offsets"
            )
            for number in range(5):
                of_run.log.info("line %d", number)
        assert raised.value.__context__ is None, "no trace of SQLAlchemy below it"
        texts.append(str(raised.value))
        wait_for(lambda: not of_run.is_behind)
        with ExitStack() as away, pytest.raises(ZeroDivisionError), RunHeartbeat(context, {}):
            away.enter_context(broken(instance, AWAY))
            raise ZeroDivisionError
        wait_for(lambda: not of_run.is_behind)

    lines = [entry.user_message for entry in instance.all_logs(run_of(instance, work))]
    assert "Rows and offsets are safe: each batch that this run committed is in the table once" in texts[0]
    assert "Not stored: the materialization of 3 batches, 70 offsets, tags, 5 log lines" in texts[0]
    assert "Fix: " in texts[0]
    assert "line 1" in lines
    assert any("3 log lines were dropped" in line for line in lines)


def test_a_call_that_a_run_needs_is_waited_for_and_then_named(instance):
    """An error that is none of the storage's is raised at once."""
    asked = []

    def heals():
        asked.append(1)
        with broken(instance, AWAY) if len(asked) < 3 else nullcontext():
            return instance.get_runs_count()

    assert isinstance(call_with_retries(heals, "the runs", "nothing was read"), int)
    assert len(asked) == 3
    with broken(instance, AWAY), pytest.raises(kl.DagsterStorageError) as raised:
        call_with_retries(instance.get_runs, "the runs", "nothing was read", 0.05)
    assert ", at the runs (OperationalError: " in str(raised.value)
    assert "Rows and offsets are safe: nothing was read. Fix: " in str(raised.value)
    assert raised.value.__suppress_context__
    with pytest.raises(ZeroDivisionError):
        call_with_retries(lambda: 1 / 0, "the runs", "nothing was read")


def test_a_batch_with_late_records_is_not_committed_before_they_are_counted(instance):
    """The batch's own deadline bounds the wait: it is no batch that is too slow."""
    batch = Batch((OffsetRange("orders", 0, 0, 10),), 0.2)
    windows = SimpleNamespace(
        begin=0.0,
        window_at=lambda _moment: SimpleNamespace(begin=2.0),
        materialized_until=lambda found: found.get_runs_count() and 0.0,
    )
    one = SimpleNamespace(frame=SimpleNamespace(oldest_ms=lambda: 1_000))

    def work(context):
        late = LateRecords(context, windows, "etl", again=[])
        with broken(instance, AWAY):
            with pytest.raises(kl.DagsterStorageError, match=f"{batch} is in the table and not committed"):
                late.report(one, batch)
            late.report_after_commit(one, batch, 0.0)
        assert late.report(one, batch) == 0.0

    run_id = run_of(instance, work)
    assert any("Could not count late records of" in entry.user_message for entry in instance.all_logs(run_id))
