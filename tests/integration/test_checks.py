"""The asset checks on a real broker.

Each passes and fails for its own reason, told by the sensor and by a run.
"""

from __future__ import annotations

import asyncio

import dagster as dg
import pytest
from dagster._core.loader import LoadingContextForTest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.sensor.cursor import GroupCursor
from tests.integration.kafka_group import join
from tests.spark_addresses import spark_at
from tests.waiting import wait_for

NAMES = ("group_alive", "lag", "retention", "no_missing_rows", "crash_lag_age")
WARN, ERROR = dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.ERROR


class Checked:
    """An asset on the world's group, and its checks in a Dagster of its own."""

    def __init__(self, world, instance, spark):
        self.world, self.instance, self.spark, self.cursor = world, instance, spark, None

    def asset(self, **settings):
        bounds = {"sensor": kl.Sensor(max_lag=40), "crash_lag": kl.CrashLag(max_age_seconds=3600)}
        settings = {**bounds, "max_poll_records": 50, **settings}
        make = kl.kafka_asset(
            name="orders",
            topics=[self.world.topic],
            group_id=self.world.group,
            table="lake.shop.orders",
            **settings,
        )
        return make(lambda batch: batch)

    def run(self, *names, **settings):
        """Name -> evaluation, by a run of these checks."""
        keys = [
            dg.AssetCheckKey(dg.AssetKey("orders_crash_lag" if name == "crash_lag_age" else "orders"), name)
            for name in names or NAMES
        ]
        run = dg.materialize(
            [self.asset(**settings).checks],
            selection=dg.AssetSelection.checks(*keys),
            resources={"kafka": self.world.kafka, "spark": self.spark},
            instance=self.instance,
        )
        return {one.check_name: one for one in run.get_asset_check_evaluations()}

    def tick(self):
        """Name -> evaluation, of those that a tick of the sensor stores."""
        context = dg.build_sensor_context(
            self.instance,
            cursor=self.cursor,
            resources={"kafka": self.world.kafka, "spark": self.spark},
            sensor_name="orders_sensor",
        )
        with context:
            tick = self.asset().sensor.evaluate_tick(context)
        self.cursor = tick.cursor
        for request in tick.dynamic_partitions_requests:
            self.instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        for event in tick.asset_events:
            self.instance.report_runless_asset_event(event)
        return {e.check_name: e for e in tick.asset_events if isinstance(e, dg.AssetCheckEvaluation)}

    def is_materialized(self):
        """A run of the asset, which Dagster takes for its newest version."""
        dg.materialize([dg.asset(name="orders")(lambda: None)], instance=self.instance)

    def seconds_later(self, seconds):
        """By the memory of the sensor."""
        cursor = GroupCursor.decode(self.cursor)
        self.cursor = cursor.model_copy(
            update={"checks_stored_at": cursor.checks_stored_at - seconds}
        ).encode()

    def shown(self, name):
        """Whether Dagster's pages show an evaluation of the check."""
        key = dg.AssetCheckKey(dg.AssetKey("orders"), name)
        [record] = self.instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
        return asyncio.run(record.targets_latest_materialization(LoadingContextForTest(self.instance)))

    def fails(self, evaluated, name, severity, says):
        """One check fails as it is said, and no other of them does."""
        assert {n for n, one in evaluated.items() if not one.passed} == {name}
        assert (evaluated[name].severity, says in evaluated[name].description) == (severity, True), evaluated[
            name
        ]


@pytest.fixture
def checked(crashed, services):
    """Committed 70, crashed at 100, log end 120."""
    with dg.DagsterInstance.local_temp(overrides={"telemetry": {"enabled": False}}) as instance:
        yield Checked(crashed, instance, spark_at(services.spark_remote))


def test_the_sla_is_judged_by_the_records(checked):
    """50 unread records: their age is read from the broker; a broker that is away makes it unknown."""
    one = checked.run("freshness_sla", sla=kl.Sla(fresh_seconds=3600))["freshness_sla"]
    assert one.passed
    assert 0 < one.metadata["seconds_behind"].value < 3600
    one = checked.run("freshness_sla", sla=kl.Sla(complete_minutes=1e-6))["freshness_sla"]
    assert (one.passed, one.severity) == (False, ERROR)
    assert f"it is at {checked.world.topic}:3:70" in one.description
    sensor = checked.asset(sla=kl.Sla(fresh_seconds=3600)).sensor
    key = dg.AssetCheckKey(dg.AssetKey("orders"), "freshness_sla")
    checked.run("freshness_sla", sla=kl.Sla(fresh_seconds=3600))
    away = kl.KafkaLivenessResource(bootstrap_servers="127.0.0.1:1")
    resources = {"kafka": away, "spark": checked.spark}
    for _ in range(2):
        with (
            dg.build_sensor_context(
                checked.instance, resources=resources, sensor_name="orders_sensor"
            ) as context,
            pytest.raises(kl.BrokerUnreachableError),
        ):
            sensor.evaluate_tick(context)
    stored = checked.instance.event_log_storage.get_asset_check_execution_history(key, limit=9)
    told = [record.event.dagster_event.asset_check_evaluation_data for record in stored]
    assert [(one.passed, one.severity) for one in told][:1] == [(False, WARN)]
    assert told[0].description.startswith("unknown: ")
    assert told[1].passed, "it is stored once"


def test_each_check_fails_for_its_own_reason(checked, monkeypatch):
    """Nobody reads, far behind, owed for too long, about to expire, expired.

    One after the other, then never two.
    """
    # Ticks may be slow here
    monkeypatch.setattr("kafka_liveness_dagster.sensor.checks.REEVALUATE_AFTER_SECONDS", 300.0)
    w = checked.world
    found = checked.run()
    assert {name for name, one in found.items() if not one.passed} == {"group_alive", "lag"}
    assert "lag 50 and no member" in found["group_alive"].description
    assert "lag 50 is above max_lag=40" in found["lag"].description
    assert (found["group_alive"].severity, found["lag"].severity) == (ERROR, WARN)
    assert found["lag"].metadata["lag"].value == 50
    with w.live() as consumer:
        join(w, consumer)
        assert set(checked.run("lag")) == {"lag"}, "any of them may be run alone"
        checked.fails(
            *(checked.run(), "crash_lag_age", WARN),
            f"p3:{w.topic}:70-120 of 50 pending offsets: no partition in Dagster",
        )
        told = checked.tick()
        assert {name: one.passed for name, one in told.items()} == dict.fromkeys(NAMES, True)
        assert checked.tick() == {}, "what stays as it is, is not stored with every tick"
        checked.is_materialized()
        assert not checked.shown("lag"), "Dagster shows evaluations of the last materialization alone"
        assert checked.tick() == {}, "run after run may end: not with each of them"
        checked.seconds_later(300)
        assert set(wait_for(checked.tick)) == set(NAMES)
        assert checked.shown("lag")
        checked.seconds_later(300)
        assert checked.tick() == {}
        found = checked.run()
        assert all(one.passed for one in found.values()), found
        assert 0 < found["crash_lag_age"].metadata["oldest_seconds"].value < 3600
        checked.fails(
            checked.run(crash_lag=kl.CrashLag(max_age_seconds=0)), "crash_lag_age", WARN, "longer than 0 s"
        )
        w.grow_to(1_000)
        w.process(consumer, 1_000)
        w.expire(60)
        checked.fails(checked.run(), "retention", WARN, f"p3:{w.topic}:70-120, 50 offsets, are about")
        w.expire(100)
        checked.fails(checked.run(), "retention", ERROR, f"p3:{w.topic}:70-100, 30 offsets")
    checked.cursor = None  # a minute later
    checked.fails(checked.tick(), "retention", ERROR, "expired before they were processed")
    key = dg.AssetCheckKey(dg.AssetKey("orders"), "retention")
    stored = checked.instance.event_log_storage.get_asset_check_execution_history(key, limit=1)[0]
    assert not stored.event.dagster_event.asset_check_evaluation_data.passed, (
        "Dagster keeps what the sensor tells"
    )


def test_the_sensor_replaces_outdated_results_within_a_minute(checked):
    """More pending offsets under the same warning, and results of the checks job, which has an end."""
    w = checked.world
    key = dg.AssetCheckKey(dg.AssetKey("orders_crash_lag"), "crash_lag_age")

    def shown():
        records = checked.instance.event_log_storage.get_latest_asset_check_execution_by_key([key])
        event = records[key].event.dagster_event
        return (
            event.asset_check_evaluation_data
            if event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION
            else None
        )

    def a_minute_later():
        cursor = GroupCursor.decode(checked.cursor)
        times = ("observed_at", "checks_stored_at", "check_facts_stored_at")
        checked.cursor = cursor.model_copy(
            update={name: getattr(cursor, name) - 60 for name in times}
        ).encode()
        return checked.tick()

    with w.live() as consumer:
        join(w, consumer)
        assert set(checked.tick()) == set(NAMES)
        assert shown().description.startswith("50 offsets in 1 range are pending")
        assert a_minute_later() == {}, "nothing has changed but the age"
        with w.catch_up((70, 90)) as lane:
            lane.commit(lane.poll())
        assert set(a_minute_later()) >= {"crash_lag_age"}
        assert shown().description.startswith("30 offsets in 1 range are pending")
        assert not checked.run(crash_lag=kl.CrashLag(max_age_seconds=0))["crash_lag_age"].passed
        assert not shown().passed
        assert set(a_minute_later()) == set(NAMES)
        assert shown().passed
        away = kl.KafkaLivenessResource(bootstrap_servers="127.0.0.1:1")
        failed = dg.materialize(
            [checked.asset().checks],
            selection=dg.AssetSelection.checks(key),
            resources={"kafka": away, "spark": checked.spark},
            instance=checked.instance,
            raise_on_error=False,
        )
        assert not failed.success
        assert shown() is None
        assert set(a_minute_later()) == set(NAMES)
        assert shown().passed
