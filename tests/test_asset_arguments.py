"""What ``dg.asset`` takes, a Kafka asset takes too: for both lanes, and refused in Dagster's words."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg
import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.settings.transform import signature_of

if TYPE_CHECKING:
    from decimal import Decimal

RESOURCES = dg.Definitions(
    resources={"kafka": kl.KafkaLivenessResource(), "spark": kl.SparkConnectResource()}
)
EAGER = dg.AutomationCondition.eager()
FRESH = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=1))
RETRY = dg.RetryPolicy(max_retries=2)


@dg.success_hook
def told(_context) -> None:
    """Whom it may concern."""


class Geo(dg.ConfigurableResource):
    """Where customers live."""

    country: str = "NL"


def same(batch):
    """The orders."""
    return batch


def make(transform=same, name="orders", **arguments):
    """An asset with these arguments of Dagster's."""
    settings = {"topics": ["orders"], "group_id": f"{name}-etl", "table": "lake.shop.orders"}
    return kl.kafka_asset(name=name, **settings, **arguments)(transform)


def specs(asset):
    """Of the live asset and of the crash lag asset."""
    return [lane.get_asset_spec(lane.key) for lane in (asset.live, asset.crash_lag)]


def test_both_assets_have_what_was_said():
    """And keep what is theirs: kinds, upstream topics, metadata."""
    asset = make(
        owners=["team:shop"], tags={"tier": "1"}, metadata={"since": 2026, "group": "theirs"},
        kinds={"python"}, deps=["customers"], code_version="7", retry_policy=RETRY,
        op_tags={"dagster-k8s/config": {}}, hooks={told},
    )  # fmt: skip
    for lane, spec in zip((asset.live, asset.crash_lag), specs(asset), strict=True):
        assert (spec.owners, spec.tags["tier"], spec.code_version) == (["team:shop"], "1", "7")
        assert (spec.metadata["since"], spec.metadata["group"]) == (2026, "orders-etl")
        assert spec.kinds == {"kafka", "spark", "iceberg", "python"}
        assert {dep.asset_key.path[-1] for dep in spec.deps} == {"orders_topic", "customers"}
        assert lane.op.retry_policy == RETRY
        assert "dagster-k8s/config" in lane.op.tags
        assert told in lane.hook_defs
    dg.Definitions.validate_loadable(dg.Definitions.merge(asset.definitions, RESOURCES))


def test_what_only_the_live_asset_can_have():
    """The crash lag asset explains itself, has its own pool, and nothing is wanted of it by the hour."""
    arguments = {
        "description": "Orders.",
        "automation_condition": EAGER,
        "freshness_policy": FRESH,
        "pool": "etl",
    }
    live, crash_lag = specs(asset := make(**arguments))
    assert (live.description, live.automation_condition, live.freshness_policy) == ("Orders.", EAGER, FRESH)
    assert (crash_lag.automation_condition, crash_lag.freshness_policy) == (None, None)
    assert "left pending when it skipped ahead to the log end after a crash" in crash_lag.description
    assert [lane.op.pool for lane in (asset.live, asset.crash_lag)] == ["etl", "orders_crash_lag"]
    assert specs(make())[0].description == "The orders."


def test_the_runs_of_its_jobs_carry_tags():
    """Beside those that tell the lanes apart, which nobody changes by accident."""
    asset = make(run_tags={"team": "shop", "kafka_liveness/lane": "none"})
    defs = dg.Definitions.merge(asset.definitions, RESOURCES)
    for name, lane in (("orders_job", "live"), ("orders_crash_lag_job", "catch-up")):
        tags = defs.resolve_job_def(name).tags
        assert (tags["team"], tags["kafka_liveness/lane"]) == ("shop", lane)


@pytest.mark.parametrize("key_prefix", ["eu", ["lake", "eu"]])
def test_a_prefix_tells_namesakes_apart(key_prefix):
    """They go into one code location: all that is theirs is named after the whole key."""
    ours = make(key_prefix=key_prefix)
    other = kl.kafka_asset(
        name="orders", topics=["orders"], group_id="us", table="lake.us.orders", key_prefix="us"
    )(same)
    parts = [key_prefix] if isinstance(key_prefix, str) else key_prefix
    assert ours.live.key == dg.AssetKey([*parts, "orders"])
    assert ours.crash_lag.key == dg.AssetKey([*parts, "orders_crash_lag"])
    assert (ours.name, ours.identifier) == ("orders", "__".join([*parts, "orders"]))
    loaded = dg.Definitions.merge(ours.definitions, other.definitions, RESOURCES)
    dg.Definitions.validate_loadable(loaded)
    names = {job.name for job in loaded.get_repository_def().get_all_jobs()}
    assert {
        f"{one.identifier}{ending}" for one in (ours, other) for ending in ("_job", "_crash_lag_job")
    } <= names
    assert ours.crash_lag.partitions_def.name == f"{ours.identifier}_crash_lag" == ours.crash_lag.op.pool


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"owners": ["x y"]}, "owners of asset orders is ['x y']. Dagster refuses it: "),
        ({"owners": 5}, "owners of asset orders is 5. Dagster refuses it: "),
        ({"tags": {"a b!": "1"}}, "tags of asset orders is {'a b!': '1'}. Dagster refuses it: "),
        ({"key_prefix": 5}, "key_prefix of asset orders is 5. Dagster refuses it: "),
        ({"key_prefix": "e u"}, "key_prefix of asset orders is 'e u'. Dagster refuses it: "),
        (
            {"automation_condition": "eager"},
            "automation_condition of asset orders is 'eager'. Dagster refuses it: ",
        ),
        ({"freshness_policy": "1h"}, "freshness_policy of asset orders is '1h'. Dagster refuses it: "),
        ({"retry_policy": 3}, "retry_policy of asset orders is 3. Dagster refuses it: "),
        ({"code_version": 7}, "code_version of asset orders is 7. Dagster refuses it: "),
        ({"hooks": [print]}, "hooks of asset orders is "),
        ({"deps": [5]}, "deps of asset orders is [5]. Dagster refuses it: "),
        ({"kinds": {"a b"}}, "kinds of asset orders is {'a b'}. Dagster refuses it: "),
        ({"pool": 5}, "pool of asset orders is 5. Dagster refuses it: "),
        ({"op_tags": 5}, "op_tags of asset orders is 5. Dagster refuses it: "),
        ({"metadata": 5}, "metadata of asset orders is 5. Dagster refuses it: "),
        ({"description": 5}, "description of asset orders is 5. Dagster refuses it: "),
        ({"run_tags": 5}, "run_tags of asset orders is 5. Dagster refuses it: "),
        (
            {"ins": {"customers": "customers"}},
            "ins of asset orders is {'customers': 'customers'}. Dagster refuses it: ",
        ),
        (
            {"ins": {"customers": dg.AssetIn()}},
            "asset orders: ins has customers, but transform same has no such parameter. ",
        ),
        ({"owner": ["team:shop"]}, "'owner' is no setting of asset orders: did you mean owners?"),
    ],
)
def test_what_dagster_refuses_is_refused_by_name(arguments, says):
    """When the code location is loaded, before anything is joined."""
    with pytest.raises(InvalidSettingError) as refused:
        make(**arguments)
    assert str(refused.value).startswith(says)


def test_a_transform_asks_as_an_asset_does():
    """The context first, resources by their annotation, other assets by their name.

    What has a default is its own.
    """

    def orders(context, batch, geo: Geo, customers, rate=1.0):
        return context, batch, geo, customers, rate

    asked = signature_of(orders)
    assert (asked.context, [one.name for one in asked.parameters]) == (True, ["geo", "customers"])
    assert asked.bind(orders, "run", {"geo": "g", "customers": "c"})("batch") == (
        "run",
        "batch",
        "g",
        "c",
        1.0,
    )
    asset = make(orders)
    for lane in (asset.live, asset.crash_lag):
        assert "geo" in lane.required_resource_keys
        assert dg.AssetKey("customers") in lane.keys_by_input_name.values()
    (nothing_is_stored,) = asset.crash_lag.op.output_defs
    assert nothing_is_stored.dagster_type.is_nothing, (
        "or a run of several partitions would fail in its IO manager"
    )
    assert [one.name for one in signature_of(orders, ["rate"]).parameters] == ["geo", "customers", "rate"]


def test_a_transform_of_its_batch_alone_is_called_as_it_is():
    """An object, a partial, a function in C: nothing is wrapped."""

    class Called:
        def __call__(self, batch):
            return batch

    for transform in (same, Called(), print):
        asked = signature_of(transform)
        assert (asked.context, asked.parameters) == (False, ())
        assert asked.bind(transform, None, {}) is transform


def nothing():
    """Takes no batch."""


def only(context):
    """Takes no batch either."""


def typed(batch, price: Decimal):
    """Of a name that is there for type checkers alone."""


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (nothing, "transform nothing takes no batch. Fix: define it as def nothing(batch)"),
        (only, "transform only takes no batch after its context. Fix: define it as def only(context, batch)"),
        (
            typed,
            "price of transform typed is annotated with Decimal, which is unknown at run time. Dagster must ",
        ),
    ],
)
def test_a_transform_that_nobody_could_call_is_refused(transform, says):
    """When it is declared."""
    with pytest.raises(InvalidSettingError, match="asset orders: ") as refused:
        make(transform)
    assert says in str(refused.value)


def test_an_input_may_be_of_any_type():
    """It is Dagster that knows where it comes from."""
    assert [one.name for one in signature_of(typed, ["price"]).parameters] == ["price"]
