"""Batches in flight.

They land in the order of their plan, and what fails is told where it would have landed.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import nullcontext, suppress

import pytest

from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.lanes.in_flight import InFlightWrite, InFlightWrites
from kafka_liveness_dagster.lanes.pipeline import Pipeline
from kafka_liveness_dagster.metadata import Tally
from kafka_liveness_dagster.spark.table.write import WriteResult
from tests.pipelines import pipeline_without_services

PATIENCE = 180.0  # seconds


class Job(nullcontext):
    """Spark work that can be cancelled."""

    tag = "kafka-liveness-job"
    cancelled = False

    is_abandoned = False

    def cancel(self, timeout_seconds=2.0):
        self.cancelled = True
        return True


class Write:
    """A write that waits for its gate in the thread it is executed in."""

    def __init__(self, fails_at=""):
        self.gate, self.fails_at, self.threads = threading.Event(), fails_at, {}

    def _at(self, step):
        self.threads[step] = threading.current_thread()
        if step == self.fails_at:
            raise ValueError(step)

    def prepare(self):
        self._at("begin")

        def execute():
            assert self.gate.wait(PATIENCE)
            self._at("execute")
            return 7

        return execute

    def execute_with_retries(self, execute):
        return execute()


class StopWaitingError(Exception):
    """The fence is up."""


def may_wait():
    """As long as it takes."""


def in_flight(*writes, epochs=None):
    """Batches of these writes, begun."""
    found = InFlightWrites()
    for number, write in enumerate(writes):
        ranges = (OffsetRange("orders", 0, number * 10, number * 10 + 10),)
        found.append(
            InFlightWrite(Batch(ranges, 60.0, membership_epoch=(epochs or [1] * 9)[number]), Job(), write)
        )
        found[-1].begin()
    return found


def test_spark_works_in_a_thread_of_its_own_and_the_transform_does_not():
    """The run's thread begins and finishes; what takes long does not hold it up."""
    write = Write()
    with in_flight(write) as found:
        assert not found[0].has_failed
        write.gate.set()
        assert found[0].finish() == 7
    here = threading.current_thread()
    assert write.threads["begin"] is here
    assert write.threads["execute"] is not here


@pytest.mark.parametrize("step", ["begin", "execute"])
def test_a_failure_is_told_where_the_batch_would_have_landed(step):
    """Not where it happens: the batch before it lands first."""
    first, second = Write(), Write(fails_at=step)
    with in_flight(first, second) as found:
        for one in (first, second):
            one.gate.set()
        assert found[0].finish() == 7
        with pytest.raises(ValueError, match=step):
            found[1].finish()
        assert found[1].has_failed


def test_before_partitions_go_everything_lands_that_can():
    """Oldest first, until one fails: that one stays, and is told later."""
    writes = [Write(), Write(), Write(fails_at="execute"), Write()]
    with in_flight(*writes) as found:
        for one in writes:
            one.gate.set()
        landed = []
        found.commit_finished(may_wait, lambda: landed.append(found.popleft().batch.ranges[0].start))
        assert landed == [0, 10]
        assert len(found) == 2


def test_a_fence_ends_the_wait_of_a_rebalance():
    """The partitions go at once when the process timeout has passed; nothing is raised into the client."""
    looks = []

    def fenced_after_two_looks():
        looks.append(1)
        if len(looks) > 2:
            raise StopWaitingError

    write = Write()
    with in_flight(write) as found:
        found.commit_finished(fenced_after_two_looks, pytest.fail)
        assert len(found) == 1
        write.gate.set()


def test_a_commit_that_is_refused_stays_in_flight():
    """It is refused again where the run lands it: nothing raises into the client's callback."""

    def refused():
        raise StopWaitingError

    write = Write()
    write.gate.set()
    with in_flight(write) as found:
        found.commit_finished(may_wait, refused)
        assert len(found) == 1


def test_what_a_former_membership_planned_is_given_up():
    """Its Spark work is cancelled; what was planned since is not touched."""
    old, new = Write(), Write()
    with in_flight(old, new, epochs=[1, 2]) as found:
        jobs = [one.job for one in found]
        found.abandon(1)
        assert [job.cancelled for job in jobs] == [True, False]
        assert [one.batch.membership_epoch for one in found] == [2]
        for one in (old, new):
            one.gate.set()


def test_a_cancel_that_raises_keeps_no_other_batch_from_being_given_up(caplog):
    """Spark's client may be closed already: each is cancelled, and none stays in flight."""

    class Broken(Job):
        def cancel(self, timeout_seconds=2.0):
            raise ConnectionError("closed")

    writes = [Write(), Write()]
    with in_flight(*writes) as found:
        last = found[1].job
        object.__setattr__(found[0], "job", Broken())
        found.abandon()
        assert last.cancelled
        assert not found
        assert "Could not cancel" in caplog.text
    for one in writes:
        one.gate.set()


def test_a_batch_is_written_in_the_thread_of_the_run_where_no_other_can_be_started(no_threads):
    """One batch at a time: the limit of threads of its user or its container is reached."""
    write = Write()
    write.gate.set()
    with no_threads(), in_flight(write) as found:
        assert found[0].finish() == 7
    assert write.threads["execute"] is threading.current_thread()


def test_no_second_is_counted_twice():
    """Two batches in flight together take the time from the first plan to the last commit."""
    first, second = Write(), Write()
    with in_flight(first, second) as found:
        planned = found[0].began_at
        first.gate.set()
        seconds = found.pop_committed()
        second.gate.set()
        until = time.monotonic()
        seconds += found.pop_committed()
        assert until - planned <= seconds <= time.monotonic() - planned
        assert not found


def test_nothing_is_left_behind():
    """However the run ends, what is in flight is cancelled."""
    write = Write()
    with suppress(StopWaitingError), in_flight(write) as found:
        job = found[0].job
        raise StopWaitingError
    assert job.cancelled
    write.gate.set()


def test_the_watchdog_cancels_all_of_them():
    """The fence stops whatever Spark does for this process."""
    writes = [Write(), Write()]
    with in_flight(*writes) as found:
        found.cancel_fenced(lambda _batch: False)
        assert all(one.job.cancelled for one in found)
        for one in writes:
            one.gate.set()


def test_a_fence_that_is_told_late_cancels_no_batch_of_the_next_membership():
    """The watchdog tells it in a thread of its own, which may be slow.

    The run has joined again and begun a batch.
    """
    writes = [Write(), Write()]
    with in_flight(*writes, epochs=[1, 2]) as found:
        found.cancel_fenced(lambda batch: batch.membership_epoch == 2)
        assert [one.job.cancelled for one in found] == [True, False]
        for one in writes:
            one.gate.set()


class Lane:
    """A lane that commits whatever it is told to."""

    def __init__(self):
        self.committed = []

    def commit(self, batch):
        self.committed.append(batch.ranges[0].start)

    def check(self):
        """No fence is up."""

    def check_batch(self, batch):
        """Nor was one."""

    def is_batch_current(self, batch):
        return True

    def on_fence(self, cancel):
        """There is none to come."""

    def on_recovered(self, repeat):
        """There is nothing to recover."""

    def before_revoke(self, finish):
        self.revoke = finish


class FakePipeline(Pipeline):
    """A pipeline whose writes are done at once."""

    def _new_write(self, batch, lane, log):
        write = Write()
        write.gate.set()
        write.execute_with_retries = lambda execute: WriteResult(execute(), attempts=1, rewrote_files=False)
        return InFlightWrite(batch, Job(), write)


def test_a_rebalance_that_landed_everything_is_no_end_of_data():
    """Asked for what is ahead of a batch, and that batch landed meanwhile.

    None says nothing of what waits.
    """
    lane, asked = Lane(), []

    def source(max_records, *, ahead):
        asked.append(ahead)
        if ahead:
            lane.revoke(may_wait)
            return None
        number = asked.count(False) - 1
        ranges = (OffsetRange("orders", 0, number * 10, number * 10 + 10),)
        return Batch(ranges, 60.0, membership_epoch=1) if number < 2 else None

    pipeline = pipeline_without_services(FakePipeline, max_in_flight=2)
    tally = Tally()
    pipeline.run(lane, source, logging.getLogger("kafka_liveness_dagster"), pytest.fail, tally)
    assert lane.committed == [0, 10]
    assert tally.batches == 2
    assert asked == [False, True, False, True, False]
