"""What docs/downstream.md says of automation behind a backfill, by Dagster's own evaluation."""

from __future__ import annotations

import dagster as dg
import pytest

import kafka_liveness_dagster as kl

KEYS = ["p3:orders:70-120", "p3:orders:140-150"]
WITH_MISSING = (
    dg.AutomationCondition.eager()
    .without(~dg.AutomationCondition.any_deps_missing())
    .with_label("eager_with_missing_deps")
)


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("orders_crash_lag", KEYS)
        yield instance


def requested(instance, condition, *materialized, deps=("orders_crash_lag",)):
    """How many runs of a downstream asset each evaluation requests: at first, then after each event."""

    @kl.kafka_asset(topics=["orders"], group_id="orders-etl", table="lake.shop.orders")
    def orders(batch):
        return batch

    @dg.asset(deps=list(deps), automation_condition=condition)
    def repaired():
        return None

    resources = {"kafka": kl.KafkaLivenessResource(), "spark": kl.SparkConnectResource()}
    defs = dg.Definitions.merge(orders.definitions, dg.Definitions(assets=[repaired], resources=resources))
    instance.report_runless_asset_event(dg.AssetMaterialization("repaired"))
    found, cursor = [], None
    for event in (None, *materialized):
        if event is not None:
            instance.report_runless_asset_event(event)
        done = dg.evaluate_automation_conditions(defs, instance, cursor=cursor)
        cursor = done.cursor
        found.append(done.get_num_requested(dg.AssetKey("repaired")))
    return found


def filled(key):
    return dg.AssetMaterialization("orders_crash_lag", partition=key)


def test_eager_waits_until_no_crash_lag_partition_is_missing(instance):
    assert requested(instance, dg.AutomationCondition.eager(), *map(filled, KEYS)) == [0, 0, 1]


def test_a_condition_without_missing_dependencies_runs_after_each_backfill(instance):
    first, second = map(filled, KEYS)
    events = first, dg.AssetMaterialization("repaired"), second
    assert requested(instance, WITH_MISSING, *events) == [0, 1, 0, 1]


def test_an_asset_of_the_live_asset_alone_does_not_run_after_a_backfill(instance):
    instance.report_runless_asset_event(dg.AssetMaterialization("orders"))
    assert requested(instance, dg.AutomationCondition.eager(), *map(filled, KEYS), deps=["orders"])[1:] == [
        0,
        0,
    ]
