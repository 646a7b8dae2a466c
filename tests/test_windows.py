"""Windows of time are Dagster's own partitions, over summer time too."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import dagster as dg
import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.departures import GroupSnapshot, GroupState
from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
from kafka_liveness_dagster.kafka import timestamps
from kafka_liveness_dagster.sensor.asset_events import topic_key
from kafka_liveness_dagster.sensor.observation import GroupObservation
from kafka_liveness_dagster.sensor.windows import WindowMaterializer, WindowProgress
from kafka_liveness_dagster.settings.windows import Windows


def of(every, start="2026-10-24", zone="Europe/Amsterdam"):
    return Windows(
        dg.AssetKey(["shop", "orders"]),
        every,
        start,
        timezone=zone,
        allowed_lateness_seconds=60.0,
        reopen_on_late=False,
    )


def utc(*parts):
    return datetime(*parts, tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize(
    ("every", "name", "seconds"),
    [("15min", "orders_by_15min", 900), ("1h", "orders_by_hour", 3600), ("1d", "orders_by_day", 86_400)],
)
def test_an_asset_beside_the_live_one(every, name, seconds):
    """Under its prefix; a day in which summer ends has 25 hours."""
    windows = of(every)
    assert windows.key == dg.AssetKey(["shop", name])
    [first] = windows.ended_windows(0.0, utc(2026, 10, 26), 1)
    assert (first.begin, first.end - first.begin) == (utc(2026, 10, 23, 22), seconds)


def test_the_hour_that_comes_twice():
    """When summer ends, 02:00 is two hours, one after the other."""
    windows = of("1h")
    keys = [str(one) for one in windows.ended_windows(utc(2026, 10, 24, 23), utc(2026, 10, 25, 3), 9)]
    assert keys == ["2026-10-25-01:00", "2026-10-25-02:00", "2026-10-25-02:00+0100", "2026-10-25-03:00"]
    assert [str(windows.window_at(utc(2026, 10, 25, hour, 30))) for hour in (0, 1)] == keys[1:3]


@pytest.mark.parametrize(
    ("since", "until", "count"),
    [
        pytest.param(utc(2026, 11, 1), utc(2026, 11, 1, 0, 59), 0, id="none is over"),
        pytest.param(utc(2026, 11, 1), utc(2026, 11, 1, 1), 1, id="just over"),
        pytest.param(utc(2026, 11, 1, 0, 30), utc(2026, 11, 1, 2), 1, id="begun before that"),
        pytest.param(utc(2020, 1, 1), utc(2026, 10, 23, 23), 1, id="none before the first"),
        pytest.param(utc(2026, 11, 1), utc(2026, 11, 9), 3, id="as many as are asked for"),
        pytest.param(utc(2026, 11, 1, 1), utc(2026, 11, 1), 0, id="backwards"),
    ],
)
def test_which_are_over(since, until, count):
    assert len(of("1h").ended_windows(since, until, 3)) == count


def test_the_newest_that_was_told():
    """Also of those in the hour that comes twice, whose names are in no order."""
    windows = of("15min")
    with dg.DagsterInstance.ephemeral() as instance:
        assert windows.materialized_until(instance) == -float("inf")
        for window in windows.ended_windows(utc(2026, 10, 24, 22), utc(2026, 10, 25, 1, 15), 99):
            instance.report_runless_asset_event(dg.AssetMaterialization(windows.key, partition=window.key))
        assert windows.materialized_until(instance) == utc(2026, 10, 25, 1, 15)


def test_its_parts_are_in_the_definitions():
    """And none where no windows are told."""
    told = {"topics": ["orders"], "group_id": "orders-etl", "table": "lake.shop.orders", "name": "orders"}
    hourly = kl.kafka_asset(**told, complete_every="1h", completeness=kl.Completeness(start="2026-11-01"))(
        print
    )
    assert hourly.windows.key == dg.AssetKey("orders_by_hour")
    assert hourly.windows.partitions_def == dg.HourlyPartitionsDefinition("2026-11-01-00:00", timezone="UTC")
    assert hourly.windows.asset_deps == {hourly.windows.key: {topic_key("orders")}}, (
        "unsynced by no live run's news"
    )
    assert hourly.windows in hourly.definitions.assets
    assert kl.kafka_asset(**told)(print).windows is None


# --- marked complete ----------------------------------------------------------------------------------------

AT = TopicPartition("orders", 3)
HOUR = 3_600.0


@pytest.fixture
def complete(monkeypatch):
    """Judge the windows of a group that has committed 120; a new hour begins at each 50th offset."""
    begin = of("1h").begin

    def bounds(_cluster, _partitions, begin_ms, end_ms):
        first, last = (max(0, 50 * round((at / 1000 - begin) / HOUR)) for at in (begin_ms, end_ms))
        return {AT: first}, {AT: last}

    monkeypatch.setattr(timestamps, "window_bounds", bounds)

    def judge(hours, *, lateness=0.0, cannot_tell=""):
        windows = replace(of("1h"), allowed_lateness_seconds=lateness)
        watch = WindowMaterializer(windows=windows, group_id="orders-etl", target="lake.shop.orders")
        seen = PartitionSnapshot(AT, 120, None, log_end=190, origin=0)
        look = GroupObservation(GroupSnapshot(GroupState.STABLE, (), (seen,)), [])
        before = WindowProgress((), begin, begin, 0, windows.identity)
        with dg.DagsterInstance.ephemeral() as instance:
            found = watch.materialize_complete(
                None, instance, look, before, now=begin + hours * HOUR, unavailable_reason=cannot_tell
            )
        return [event.partition for event in found.events], (found.done_until - begin) / HOUR

    return judge


KEYS = ["2026-10-24-00:00", "2026-10-24-01:00"]


def test_windows_are_marked_complete_up_to_the_first_one_with_unprocessed_records(complete):
    """Two hours end below the committed offset; the third one does not."""
    assert complete(5) == (KEYS, 2.0)


def test_a_window_waits_for_records_that_may_come_late(complete):
    """It is due when its lateness is over, and not before."""
    assert complete(2, lateness=HOUR / 2) == (KEYS[:1], 1.0)


def test_no_window_is_marked_complete_while_the_table_cannot_be_queried(complete):
    """The commit logs alone do not say that the rows are there."""
    assert complete(5, cannot_tell="Spark is away") == ([], 0.0)
