"""The steps of a batch: it is written, then committed; a batch that the fence canceled is retried."""

from __future__ import annotations

import logging
from contextlib import nullcontext

import pytest

from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.fencing import FenceReason
from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
from kafka_liveness_dagster.kafka.errors import FencedError
from kafka_liveness_dagster.lanes.dead_letters import WriteOutcome
from kafka_liveness_dagster.lanes.in_flight import InFlightWrite, InFlightWrites
from kafka_liveness_dagster.lanes.pipeline import Pipeline
from kafka_liveness_dagster.metadata import Tally
from kafka_liveness_dagster.spark.table.write import WriteResult
from tests.pipelines import pipeline_without_services
from tests.waiting import wait_for

LOG = logging.getLogger("kafka_liveness_dagster")
CANCELED = "Spark canceled the batch"


class Job(nullcontext):
    """Spark work that can be canceled."""

    tag, is_abandoned = "job", False

    def cancel(self, timeout_seconds=2.0):
        return True


class Write:
    """A write that succeeds, or raises this error."""

    def __init__(self, lane, batch, error):
        self.lane, self.batch, self.error = lane, batch, error

    def prepare(self):
        return lambda: 10

    def execute_with_retries(self, execute):
        if self.error is not None:
            raise self.error
        self.lane.steps.append(("written", self.batch))
        return WriteResult(execute(), attempts=1, rewrote_files=False)


class Lane:
    """A lane that records its steps.

    Attributes:
        errors: of the next writes, one each; None for a write that succeeds.
        fenced: batches that the fence has cut off, with the reason.
        steps: the writes and the commits.
    """

    def __init__(self, errors=()):
        self.errors, self.fenced, self.steps = list(errors), {}, []

    def commit(self, batch):
        self.steps.append(("committed", batch))
        return ()

    def check_batch(self, batch):
        if batch.membership_epoch in self.fenced:
            raise FencedError(self.fenced[batch.membership_epoch])

    def on_fence(self, _cancel):
        """None comes by itself."""

    before_revoke = on_recovered = on_fence


class FakePipeline(Pipeline):
    """A pipeline whose writes fail as its lane has it, on a broker with a quota."""

    def _throttle_seconds(self, tp):
        return 39.9

    def _new_write(self, batch, lane, log):
        error = lane.errors.pop(0) if lane.errors else None
        return InFlightWrite(batch, Job(), Write(lane, batch, error))


def batch(epoch, start=0):
    """Ten offsets, planned by this membership."""
    return Batch((OffsetRange("orders", 0, start, start + 10),), 60.0, membership_epoch=epoch)


def run(lane, *batches, most_in_flight=1):
    """Run these batches, each ahead of the one before where two may be in flight."""
    left = list(batches)
    pipeline = pipeline_without_services(FakePipeline, max_in_flight=most_in_flight)
    tally = Tally()
    pipeline.run(lane, lambda *_, ahead: left.pop(0) if left else None, LOG, pytest.fail, tally)
    return tally


@pytest.mark.parametrize("most_in_flight", [1, 2])
def test_a_batch_is_committed_after_it_was_written(most_in_flight):
    """A crash in between repeats the batch; the other order would lose it."""
    lane, first, second = Lane(), batch(1), batch(1, 10)
    assert run(lane, first, second, most_in_flight=most_in_flight).batches == 2
    steps = [(what, one) for one in (first, second) for what in ("written", "committed")]
    assert lane.steps == steps, "the write comes before the commit"


@pytest.mark.parametrize("most_in_flight", [1, 2])
def test_a_batch_that_the_fence_has_canceled_is_retried(most_in_flight):
    """Spark's error is the fence's doing, and the process may be a member by then."""
    lane = Lane([RuntimeError(CANCELED)])
    lane.fenced[1] = FenceReason.PARTITIONS_LOST
    assert run(lane, batch(1), batch(2), most_in_flight=most_in_flight).batches == 1
    assert lane.steps == [("written", batch(2)), ("committed", batch(2))]


@pytest.mark.parametrize(
    ("reason", "raised"),
    [(None, RuntimeError), (FenceReason.RUN_ENDED, FencedError)],
    ids=["it failed by itself", "the run has ended"],
)
def test_other_failures_end_the_run(reason, raised):
    """By the fence's error, where the fence is up; nothing is committed."""
    lane = Lane([RuntimeError(CANCELED)])
    if reason is not None:
        lane.fenced[1] = reason
    with pytest.raises(raised):
        run(lane, batch(1), batch(2))
    assert lane.steps == []


def test_a_quota_is_named_as_the_cause_of_a_slow_batch(monkeypatch, caplog):
    """While it is slow, and again when it is too slow: the advice about its size alone would help nothing."""
    for name in ("SLOW_SECONDS", "CHECK_EVERY_SECONDS"):
        monkeypatch.setattr(f"kafka_liveness_dagster.lanes.quotas.{name}", 0.0)
    lane = Lane([RuntimeError(CANCELED)])
    lane.fenced[1] = FenceReason.POLL_TIMEOUT

    def lines():
        return [line for record in caplog.records if "throttles" in (line := record.getMessage())]

    def canceled(write, execute, finish=Write.execute_with_retries):
        wait_for(lines, what="the run names the quota")
        return finish(write, execute)

    monkeypatch.setattr(Write, "execute_with_retries", canceled)
    run(lane, batch(1), batch(2))
    at_work, late = lines()
    assert at_work.startswith(
        f"{batch(1)} has run for 0 s. The broker throttles this login: a quota delayed a fetch"
    )
    assert late.startswith(f"{batch(1)}: the batch took longer")
    assert "by 39.90 s. Fix: raise the quota" in late


def test_dead_letters_of_a_partition_that_was_handed_over_are_not_reported():
    """Its new owner processes the whole batch; the commit of this run records none of it as crash lag."""
    why = {OffsetRange("orders", 0, 4, 5): "no price", OffsetRange("orders", 1, 7, 8): "no price"}
    landed = WriteOutcome(
        WriteResult(8, 1, rewrote_files=False), batch(1), why, "lake.shop.orders_dead_letters"
    )
    reported = list(landed.skipped([TopicPartition("orders", 1)]))
    assert [(part, cause) for part, _, cause in reported] == [(OffsetRange("orders", 0, 4, 5), "bad-record")]


def test_a_batch_that_is_judged_alone_shares_spark_with_no_other(monkeypatch):
    """The batch before was too slow: next to another batch the slow offset could not be found."""
    lane, in_flight_then = Lane([RuntimeError(CANCELED)]), []
    lane.fenced[1] = FenceReason.POLL_TIMEOUT
    append = InFlightWrites.append

    def counted(in_flight, one):
        append(in_flight, one)
        in_flight_then.append(len(in_flight))

    monkeypatch.setattr(InFlightWrites, "append", counted)
    run(lane, batch(1), batch(1, 10), batch(2), batch(2, 10), batch(2, 20), most_in_flight=2)
    assert in_flight_then == [1, 2, 1, 1, 2], "a batch is judged alone"
