"""Materializations of written rows if the table has not answered, cannot, or the run is interrupted."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from unittest.mock import Mock

import dagster as dg
import pytest

from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.lanes.materializations import Materializations
from kafka_liveness_dagster.spark.errors import SparkNotRespondingError


@pytest.fixture
def told():
    """Rows of each materialization that was logged, in order."""
    return []


@pytest.fixture
def made(told):
    """Materializations of a run whose table is asked like this."""

    def make(ask):
        def store(event, _what):
            told.append(event.metadata["rows_written"].value)
            return made.stored

        storage = SimpleNamespace(store_event=store, log=Mock())
        made = Materializations(
            storage, dg.AssetKey("orders"), "etl", 60.0, read_table_info=ask, extra_metadata=dict
        )
        made.storage, made.stored = storage, Future()
        made.stored.set_result(None)
        return made

    return make


def batch(start):
    """Ten offsets."""
    return Batch((OffsetRange("orders", 0, start, start + 10),), 60.0)


def test_what_was_asked_is_told_before_the_run_ends(made, told):
    """While the table is asked batches are committed; those are told by the run's last materialization."""
    answers = threading.Event()
    run = made(lambda: lambda: answers.wait(600) and None)
    run.add(batch(0), 10, 1.0)
    run.emit_if_due(may_wait=False)
    run.add(batch(10), 7, 1.0)
    run.emit_if_due(may_wait=False)
    assert told == []
    answers.set()
    last = run.final_result()
    assert (told, last.metadata["rows_written"].value) == ([10], 7)


@pytest.mark.parametrize("where", ["at once", "in its thread"])
def test_a_table_that_cannot_tell_ends_no_run(made, told, where):
    """What was written was committed."""

    def silent():
        raise SparkNotRespondingError("has said nothing for 25 s")

    run = made(silent if where == "at once" else lambda: silent)
    run.add(batch(0), 10, 1.0)
    run.emit_if_due(may_wait=True)
    assert told == [10]
    assert "has said nothing" in str(run.storage.log.warning.call_args)


def test_who_is_interrupted_in_the_wait_tells_it_all_the_same(made, told):
    """In few words, each since the one before, and once."""

    def interrupted():
        raise KeyboardInterrupt

    run = made(lambda: interrupted)
    run.add(batch(0), 10, 1.0)
    with pytest.raises(KeyboardInterrupt):
        run.final_result()
    run.add(batch(10), 7, 1.0)
    run.emit_on_failure()
    assert told == [10, 7]
    assert run.final_result() is None
