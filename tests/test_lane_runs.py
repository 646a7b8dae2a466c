"""The partitions of a catch-up run, and the end of a live one."""

from __future__ import annotations

import math
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.partition_keys import parse_key
from kafka_liveness_dagster.lanes import runs as module
from kafka_liveness_dagster.lanes.runs import (
    _batches_until_idle,
    _ranges_to_reprocess,
    _report_skipped,
    _requested_ranges,
    _skipped_message,
)
from kafka_liveness_dagster.runs.tags import CAUSE_CRASH_LAG, CAUSE_TAG

DONE, MISSING, REPLAY = "p3:orders:0-70", "p3:orders:70-120@2", "p3:orders:120-190@replay-20261122T100000Z"
BACKFILL = "dagster/backfill"
SENSOR = "dagster/sensor_name"


@pytest.fixture(scope="module")
def asset():
    """The settings of an asset."""
    return kl.kafka_asset(name="orders", topics=["orders"], group_id="orders-etl", table="lake.shop.orders")(
        lambda batch: batch
    ).settings


@pytest.fixture
def context(asset, monkeypatch):
    """A run's, and its storage.

    One crash lag partition is materialized, and so is such a key of the live asset.
    """
    monkeypatch.setattr(module, "storage_of", lambda run: run)
    materialized = {asset.crash_lag_key: {DONE}, asset.key: {MISSING}}
    backfills = {"all": SimpleNamespace(asset_selection=[asset.key, asset.crash_lag_key])}
    instance = SimpleNamespace(
        get_materialized_partitions=materialized.__getitem__, get_backfill=backfills.get
    )

    def make(tags=None, selected=None):
        events, run = [], SimpleNamespace(tags=tags or {})
        job = SimpleNamespace(
            asset_layer=SimpleNamespace(selected_asset_keys=selected or {asset.crash_lag_key})
        )
        told = {"log": Mock(), "store_event": lambda event, _: events.append(event), "events": events}
        return SimpleNamespace(run=run, job_def=job, instance=instance, **told)

    return make


@pytest.mark.parametrize(
    ("tags", "again"),
    [
        ({}, [DONE, REPLAY]),
        ({SENSOR: "users_sensor"}, [DONE, REPLAY]),
        ({SENSOR: "groups_sensor", CAUSE_TAG: CAUSE_CRASH_LAG}, [REPLAY]),
    ],
    ids=["by hand", "the user's sensor", "a group sensor"],
)
def test_materialized_partitions_and_replays_are_replayed(asset, context, tags, again):
    """The sensor requests missing partitions.

    One that another run has materialized since needs no second pass.
    """
    ranges = {key: parse_key(key) for key in (DONE, MISSING, REPLAY)}
    assert _ranges_to_reprocess(asset, context(tags), ranges) == [parse_key(key) for key in again], (
        "these are replayed"
    )


@pytest.mark.parametrize(
    ("tags", "in_run"), [({BACKFILL: "all"}, False), ({BACKFILL: "gone"}, True), ({}, True)]
)
def test_who_materializes_the_live_asset_too_replays_no_materialized_partition(asset, context, tags, in_run):
    """*Materialize all* is a backfill of all assets; a replay that is missing is still to be done."""
    ranges = {key: parse_key(key) for key in (DONE, MISSING, REPLAY)}
    selected = {asset.key, asset.crash_lag_key} if in_run else {asset.crash_lag_key}
    assert _ranges_to_reprocess(asset, context(tags, selected), ranges) == [parse_key(REPLAY)], (
        "what is done is left alone"
    )


@pytest.mark.parametrize(
    ("keys", "reported"), [([DONE, REPLAY], REPLAY), ([DONE], "p3:orders:150-151"), ([], "p3:orders:150-151")]
)
def test_an_offset_that_was_passed_is_reported_on_the_partition_of_the_run(asset, context, keys, reported):
    """On its own key where no partition of the run holds it."""
    run = context()
    _report_skipped(asset, run, keys)(OffsetRange("orders", 3, 150, 151), "too slow", "slow-record")
    [event] = run.events
    found = (event.asset_key, event.partition)
    assert found == (asset.crash_lag_key, reported), "reported on a partition of the run"
    assert event.metadata["offsets"].value == 1


class IdleConsumer:
    """A run without data: its consumer, its materializations and its clock.

    Attributes:
        now: the time.
        due: how long until the next materialization, at each poll.
        polls: how long each poll was to wait.
    """

    def __init__(self, *due):
        self.now, self.due, self.polls = 0.0, list(due), []

    def has_time_for_batch(self):
        return True

    def poll(self, seconds, _max_records, **_):
        self.polls.append(seconds)
        self.now += seconds

    def emit_if_due(self, *, may_wait):
        assert may_wait

    @property
    def due_in_seconds(self):
        return self.due.pop(0)

    def should_continue(self):
        return False


def test_a_run_is_idle_after_its_whole_idle_time(monkeypatch):
    """A materialization that falls due meanwhile interrupts the wait, and does not end it."""
    run = IdleConsumer(10.0, math.inf)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: run.now))
    next_batch = _batches_until_idle(run, 30.0, 1.0, run, run)
    assert next_batch(500, ahead=False) is None
    assert run.polls == [10.0, 20.0], "the idle time has passed"


@pytest.mark.parametrize(
    ("owed", "kept", "keys", "state", "remedy"),
    [
        pytest.param(
            ["p3:orders:75-76", "p3:orders:76-77"],
            [],
            [MISSING],
            "The partitions stay failed until these offsets are done",
            'write the offsets off with `kafka-liveness write-off orders-etl p3:orders:75-77 --reason "…"`',
            id="owed",
        ),
        pytest.param(
            [],
            ["p3:orders:125-126"],
            [DONE, REPLAY],
            "The former rows of p3:orders:125-126 are still in the table",
            f'keep the former rows with `kafka-liveness write-off orders-etl {REPLAY} --reason "…"`',
            id="processed before",
        ),
        pytest.param(
            ["p3:orders:75-76"],
            ["p3:orders:125-126"],
            [MISSING, REPLAY],
            (
                "The partitions stay failed until these offsets are done; the former rows of "
                "p3:orders:125-126 are still in the table"
            ),
            "write the offsets off with "
            f'`kafka-liveness write-off orders-etl p3:orders:75-76 {REPLAY} --reason "…"`',
            id="both",
        ),
        pytest.param(
            [],
            ["p3:orders:125-126"],
            [],
            "The former rows of p3:orders:125-126 are still in the table",
            "keep the former rows with *Report materialization events*, in the menu next to Materialize",
            id="complete windows",
        ),
    ],
)
def test_what_a_run_leaves_behind_is_named_with_the_command_that_closes_it(owed, kept, keys, state, remedy):
    """Owed offsets by their ranges, done ones by the partitions that failed; windows are closed in the UI."""
    owed, kept = ([OffsetRange.parse(one) for one in several] for several in (owed, kept))
    told = _skipped_message("orders-etl", [*owed, *kept], kept, keys)
    assert told == (f"All other offsets of these partitions are done. {state}", remedy)


def test_a_partition_that_names_no_range_is_refused_with_the_menu_that_deletes_it():
    """A person can add any text as a partition; a command gets the first sentence alone."""
    assert list(_requested_ranges([MISSING, REPLAY])) == [MISSING, REPLAY]
    with pytest.raises(
        kl.InvalidSettingError, match=r"^'orders' is not a crash lag key: .*\. Fix: delete this"
    ):
        _requested_ranges([MISSING, "orders"])
