"""Two batches on their way at a time.

Read and written side by side, committed in order, handed over in good order.
"""

from __future__ import annotations

import itertools
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.spark.errors import TransformError
from kafka_liveness_dagster.spark.table.table import describe_table
from tests.integration.live_runs import SIZE, LiveRuns
from tests.waiting import PATIENCE, wait_for


class SecondBatchError(Exception):
    """What is wrong with the second batch."""


@pytest.fixture
def world(services, make_topic, produce, table, warm_spark):
    """Make a world with so many batches of data."""

    def make(batches, *, partitions=1, protocol="classic", **settings):
        topic = make_topic(partitions)
        for partition in range(partitions):
            produce(services.bootstrap_servers, topic, partition, map(str, range(batches * SIZE)))
        return LiveRuns(services, topic, table, protocol, **settings)

    return make


def offsets(found):
    """The offsets of rows, as often as they are there."""
    return [row["offset"] for row in found]


def test_a_batch_may_overtake_in_the_table_but_not_in_the_commit_log(world, rows, spark):
    """The second batch is in the table while the first is read; nothing is committed before the first is.

    In a table that is there: the batch that makes it is waited for, so that nobody makes it twice.
    """
    found = world(3)
    found.make_table(spark)
    with ThreadPoolExecutor(1) as pool:

        def watch():
            try:
                wait_for(lambda: len(rows(found.table)) == SIZE)
                return offsets(rows(found.table)), found.committed()
            finally:
                found.open_gate(spark)

        seen = pool.submit(watch)
        run, said = found.run(found.rows_of)
        assert seen.result() == (list(range(SIZE, 2 * SIZE)), 0)
    assert run.success
    assert offsets(rows(found.table)) == list(range(3 * SIZE))
    told = [re.search(r"p0:[^:]+:(\d+)-", line)[1] for line in said if line.startswith("Committed ")]
    assert told == ["0", "20", "40"]


def test_one_setting_turns_it_off(world, rows):
    """With one batch in flight a transform is not called before the batch before is in the commit log."""
    found, seen = world(3, batching=kl.Batching(in_flight=1)), []

    def transform(batch):
        seen.append(found.committed())
        return found.rows_of(batch).drop("nap")

    assert found.run(transform)[0].success
    assert seen == [0, SIZE, 2 * SIZE]
    assert offsets(rows(found.table)) == list(range(3 * SIZE))


def test_a_batch_that_fails_does_not_take_the_one_before_with_it(world, rows, spark):
    """The second batch's transform raises while the first is written.

    The first is committed, then the run fails.
    """
    found, calls = world(3), []
    found.make_table(spark)

    def transform(batch):
        calls.append(batch)
        if len(calls) > 1:
            raise SecondBatchError
        return found.rows_of(batch).drop("nap")

    run, _ = found.run(transform)
    assert not run.success
    error = run.failure_data_for_node("orders").error.cause
    assert (error.cls_name, error.cause.cls_name) == (TransformError.__name__, SecondBatchError.__name__)
    assert found.committed() == SIZE
    assert offsets(rows(found.table)) == list(range(SIZE))


_HEARTBEAT_SECONDS = 5.0


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_rebalance_waits_for_all_that_is_in_flight(world, rows, protocol):
    """Poll mode: who gets a partition next begins where the run ended, and does nothing of it again."""
    found, joined, given = world(12, partitions=2, protocol=protocol), threading.Event(), threading.Event()

    def second_member():
        wait_for(found.committed)
        with found.kafka.consumer(topics=[found.topic], group_id=found.group, max_batch_seconds=600) as other:
            [first] = wait_for(lambda: other.poll(1.0)).ranges
            given.set()
            return first.start, len([row for row in rows(found.table) if row["partition"] == first.partition])

    def transform(batch):
        """What follows the first commit waits for the second member: else nothing would be left for it.

        It is told of its partition with a heartbeat, some seconds later, and this run of the rebalance in a
        poll.
        """
        if found.committed() and not joined.is_set():
            wait_for(lambda: given.is_set() or len(found.kafka.cluster().members(found.group)) == 2)
            joined.set()
        if joined.is_set():
            given.wait(_HEARTBEAT_SECONDS)
        return found.rows_of(batch).drop("nap")

    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(second_member)
        run, said = found.run(transform)
        began_at, written = seen.result()
    assert run.success
    assert [line for line in said if "handed over" in line] == []
    assert 0 < began_at == written < 12 * SIZE, "all that was written was committed before the partition went"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_run_that_waits_for_partitions_is_not_idle(world, rows, protocol):
    """It joins next to a member with a long batch, has no partition yet, and waits instead of ending."""
    found = world(1, partitions=2, protocol=protocol)
    with found.kafka.consumer(
        topics=[found.topic], group_id=found.group, max_batch_seconds=600, max_poll_records=1
    ) as holder:
        wait_for(lambda: holder.poll(0.1) is not None or len(holder.assignment()) == 2)
        ended, waits = threading.Event(), threading.Event()

        def finish(may_wait):
            """The open batch is finished when the other has waited for longer than what is idle."""
            while not ended.is_set() and not waits.is_set():
                may_wait()

        holder.before_revoke(finish)

        def hold():
            while not ended.is_set():
                holder.poll(0.1)

        def told():
            while not ended.is_set() and not found.said_in_progress("partitions: "):
                threading.Event().wait(0.05)
            waits.set()

        with ThreadPoolExecutor(2) as pool:
            held, heard = pool.submit(hold), pool.submit(told)
            try:
                run, said = found.run(lambda batch: found.rows_of(batch).drop("nap"))
            finally:
                ended.set()
            held.result()
            heard.result()
    assert run.success
    assert len([line for line in said if "Waiting for partitions" in line]) == 1
    assert found.tags["kafka_liveness/waiting_for"] == ""
    assert len(rows(found.table)) == SIZE, "one partition of two came to it"


def test_batches_go_on_while_the_table_is_asked_what_it_has(world, rows, spark):
    """For the first materialization.

    What is said of the table waits for one of Spark's cores, which batches have.
    """
    found, begun, third = world(4), itertools.count(1), threading.Event()
    found.make_table(spark)
    found.open_gate(spark)
    asked = []

    def transform(batch):
        if next(begun) == 3:
            third.set()
        return found.rows_of(batch)

    def describe(*known):
        asked.append(third.wait(PATIENCE))
        return describe_table(*known)

    with patch("kafka_liveness_dagster.spark.table.table.describe_table", describe):
        run, _ = found.run(transform)
    assert run.success
    assert asked[0], "the third batch was begun before the table had said what it has"
    told = [one.metadata for event in found.events if (one := event.asset_materialization)]
    assert [one["rows_written"].value for one in told] == [SIZE, 3 * SIZE]
    assert told[-1]["dagster/row_count"].value == 4 * SIZE
    assert offsets(rows(found.table)) == list(range(4 * SIZE))
