"""How often is committed, and how much at a time? As often as asked for, without a longer process timeout."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import kafka_liveness_dagster as kl
from tests.integration.live_runs import LiveRuns
from tests.waiting import wait_for

AN_HOUR = 3600.0


@pytest.fixture
def world(services, make_topic, produce, table, warm_spark):
    """Make a world whose topic holds these values."""

    def make(values, **settings):
        topic = make_topic(1)
        found = LiveRuns(services, topic, table, "classic", **settings)
        found.produce = lambda more: produce(services.bootstrap_servers, topic, 0, more)
        found.produce(values)
        return found

    return make


def as_they_are(batch):
    """Values and offsets."""
    return batch.selectExpr("topic", "partition", "offset", "CAST(value AS string) AS value")


def batches(said):
    """How many offsets each commit had."""
    found = [re.search(r"p0:[^:]+:(\d+)-(\d+)", line) for line in said if line.startswith("Committed ")]
    return [int(one[2]) - int(one[1]) for one in found]


def test_what_waits_for_its_batch_is_neither_committed_nor_forgotten(world, rows):
    """The run outlives its idle time with three records in sight; six are a batch at once."""
    rare = kl.Batching(commit_interval_seconds=AN_HOUR)
    found = world("abc", batching=rare, max_poll_records=6, idle_seconds=0.2)
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:

        def more():
            wait_for(lambda: found.kafka.cluster().members(found.group))
            waits_since = time.monotonic()
            wait_for(lambda: ended.is_set() or time.monotonic() > waits_since + 1.0)
            state = ended.is_set(), found.committed()
            found.produce("def")
            return state

        seen = pool.submit(more)
        run, said = found.run(lambda batch: ended.set() or as_they_are(batch))
        assert seen.result() == (False, 0)
    assert run.success
    assert batches(said) == [6]
    assert [row["value"] for row in rows(found.table)] == list("abcdef")


def test_what_has_waited_long_enough_is_a_batch(world, rows):
    """Also where it is far from full, and where the run is idle otherwise."""
    found = world(
        "abc", batching=kl.Batching(commit_interval_seconds=0.5), max_poll_records=6, idle_seconds=0.1
    )
    run, said = found.run(as_they_are)
    assert run.success
    assert batches(said) == [3]
    assert [row["value"] for row in rows(found.table)] == list("abc")


@pytest.mark.parametrize("in_flight", [1, 2])
def test_batches_weigh_no_more_than_asked_for(world, rows, in_flight):
    """The first one is small, since nobody knows yet what a record weighs.

    Those of two in flight are planned early.
    """
    heavy = kl.Batching(max_batch_bytes=10_000, in_flight=in_flight)
    found = world(["x" * 1_000] * 40, batching=heavy, max_poll_records=1_000)
    run, said = found.run(as_they_are)
    assert run.success
    sizes = batches(said)
    assert sizes == [1] * in_flight + [10] * 3 + [10 - in_flight]
    assert len(rows(found.table)) == 40


def test_batches_of_a_sink_are_weighed_too(world):
    """As soon as it has Spark do something."""
    held = {}

    def sink(replacement):
        found = as_they_are(replacement.rows).collect()
        replacement.raise_if_fenced()
        held.update({row["offset"]: row["value"] for row in found})

    found = world(["x" * 1_000] * 25, batching=kl.Batching(max_batch_bytes=10_000), max_poll_records=1_000)
    found.settings |= {"table": None, "sink": sink}
    run, said = found.run(lambda batch: batch)
    assert run.success
    assert batches(said) == [1, 10, 10, 4]
    assert len(held) == 25
