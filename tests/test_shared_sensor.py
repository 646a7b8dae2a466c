"""How one sensor for several assets is declared, and which cursor it stores."""

from __future__ import annotations

import json

import dagster as dg
import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.sensor.cursor import decode_group_cursors, encode_group_cursors


def asset(name, **settings):
    @kl.kafka_asset(topics=[name], group_id=f"{name}-etl", table=f"lake.shop.{name}", name=name, **settings)
    def declared(batch):
        return batch

    return declared


@dg.job
def page():
    """A user's own, for what happens to a group."""


def test_it_takes_the_place_of_the_assets_own_sensors():
    orders, payments = asset("orders_s"), asset("payments_s", crash_lag=kl.CrashLag(auto_catch_up=True))
    other = asset("other_s")
    sensor = kl.build_shared_sensor([orders, payments], name="groups_sensor", minimum_interval_seconds=7)
    defs = dg.Definitions.merge(
        orders.definitions,
        payments.definitions,
        other.definitions,
        dg.Definitions(
            sensors=[sensor],
            resources={"kafka": kl.KafkaLivenessResource(), "spark": kl.SparkConnectResource()},
        ),
    )
    assert sorted(one.name for one in defs.get_repository_def().sensor_defs) == [
        "groups_sensor",
        "other_s_sensor",
    ]
    assert sensor.minimum_interval_seconds == 7
    assert sorted(job.name for job in sensor.jobs) == [
        "orders_s_job",
        "payments_s_crash_lag_job",
        "payments_s_job",
    ]
    assert sensor.required_resource_keys == {"kafka", "spark"}
    assert "`groups_sensor`" in orders.crash_lag.descriptions_by_key[orders.crash_lag.key]


def test_an_event_job_of_two_assets_is_listed_once():
    hook = kl.Sensor(on_event=lambda _: None, event_jobs=[page])
    both = [asset("orders_e", sensor=hook), asset("payments_e", sensor=hook)]
    sensor = kl.build_shared_sensor(both, name="groups_sensor")
    assert [job.name for job in sensor.jobs].count("page") == 1


def test_two_sensors_of_one_group_are_refused():
    orders = asset("orders_t")
    _ = orders.definitions
    with pytest.raises(kl.InvalidSettingError, match=r"orders_t has a sensor of its own already.* Fix: call"):
        kl.build_shared_sensor([asset("fine_t"), orders], name="groups_sensor")
    payments, free = asset("payments_t"), asset("free_t")
    kl.build_shared_sensor([payments], name="groups_sensor")
    with pytest.raises(kl.InvalidSettingError, match="has no sensor of its own: shared sensor groups_sensor"):
        _ = payments.sensor
    with pytest.raises(kl.InvalidSettingError, match="belongs to shared sensor groups_sensor, and cannot"):
        kl.build_shared_sensor([free, payments], name="others_sensor")
    assert free.sensor.name == "free_t_sensor", "a refused sensor reserves no asset"


def test_what_one_sensor_cannot_watch_is_refused():
    orders = asset("orders_r")
    elsewhere = asset("elsewhere_r", resources=kl.ResourceKeys(kafka="other_kafka"))
    with pytest.raises(kl.InvalidSettingError, match="2 Kafka resources, kafka, other_kafka"):
        kl.build_shared_sensor([orders, elsewhere], name="groups_sensor")
    with pytest.raises(kl.InvalidSettingError, match="orders_r twice"):
        kl.build_shared_sensor([orders, orders], name="groups_sensor")
    with pytest.raises(kl.InvalidSettingError, match="at least one asset"):
        kl.build_shared_sensor([], name="groups_sensor")
    with pytest.raises(kl.InvalidSettingError, match="wanted at least one asset of kafka_asset"):
        kl.build_shared_sensor([orders.live], name="groups_sensor")
    running = asset("running_r", sensor=kl.Sensor(default_status=dg.DefaultSensorStatus.RUNNING))
    with pytest.raises(
        kl.InvalidSettingError, match="default_status of sensor has no effect on asset running"
    ):
        kl.build_shared_sensor([running], name="groups_sensor")


def test_the_cursor_has_the_cursor_of_each_group():
    each = {"orders-etl": '{"event_count":7}', 'pay"ments': "{}"}
    stored = encode_group_cursors(each)
    assert json.loads(stored) == {"orders-etl": {"event_count": 7}, 'pay"ments': {}}
    assert {name: json.loads(one) for name, one in decode_group_cursors(stored).items()} == json.loads(stored)


@pytest.mark.parametrize("cursor", [None, "", "{", "[1]", '{"orders-etl": 7}'])
def test_a_cursor_of_another_version_is_none(cursor):
    assert decode_group_cursors(cursor) == {}
