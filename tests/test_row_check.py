"""The last step of a live run: no run is green without its rows, and none fails for a hiccup of Spark."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException

from kafka_liveness_dagster.core.fencing import FenceReason
from kafka_liveness_dagster.core.partition_state import RowsMissingError
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError, FencedError
from kafka_liveness_dagster.lanes import row_check
from kafka_liveness_dagster.spark.errors import (
    SparkNotRespondingError,
    SparkUnreachableError,
    TableUnreadableError,
)

LOG = logging.getLogger("kafka_liveness_dagster")


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def check(monkeypatch):
    """``check(*errors)`` with one error a look, the last one for all later looks; gives looks and seconds."""
    clock = Clock()
    monkeypatch.setattr(row_check, "time", clock)

    def run(*errors, limit_seconds=25.0, batches=1):
        looks = []

        def look():
            looks.append(clock.now)
            error = errors[min(len(looks), len(errors)) - 1]
            if error is not None:
                raise error

        row_check.check_rows(SimpleNamespace(check_rows=look), LOG, limit_seconds, batches)
        return len(looks), clock.now

    run.clock = clock
    return run


def test_rows_that_are_there_cost_one_look(check):
    """A run may end every few seconds."""
    assert check(None) == (1, 0.0)


@pytest.mark.parametrize(
    "error",
    [
        BrokerUnreachableError("no broker"),
        SparkNotRespondingError("silent"),
        SparkUnreachableError("away"),
        TableUnreadableError("its catalog does not answer"),
        PySparkException("[UNAVAILABLE] connection lost"),
        OSError("a custom sink's store is away"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_hiccup_ends_no_run_whose_batches_are_committed(check, error):
    """One that outlasts the limit does, by its name."""
    assert check(error, error, None) == (3, 1.5)
    named = TableUnreadableError if isinstance(error, PySparkException) else type(error)
    with pytest.raises(named):
        check(error)
    assert check.clock.now <= 1.5 + 25.0


@pytest.mark.parametrize(
    "error",
    [RowsMissingError("lacks p3:orders:70-120"), FencedError(FenceReason.RUN_CANCELED)],
    ids=["missing", "fenced"],
)
@pytest.mark.parametrize("batches", [0, 1])
def test_what_is_known_ends_the_run_at_once(check, error, batches):
    """A retry would find the same."""
    with pytest.raises(type(error)):
        check(error, None, batches=batches)
    assert check.clock.now == 0.0


def test_a_run_without_a_batch_may_end_unchecked(check, caplog):
    """It adds nothing that has to be proven, and says so."""
    check(SparkUnreachableError("away"), batches=0)
    assert "Did not check the table before the end of this run, which committed nothing: away" in caplog.text
