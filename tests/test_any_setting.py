"""Any value of any setting is accepted and works, or is refused by name before a join or a creation.

The settings are those of the declarations, so a new one is among them.
"""

from __future__ import annotations

import typing
from datetime import timedelta
from types import SimpleNamespace

import dagster as dg
from confluent_kafka import Consumer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.assets import owners
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.timeouts import BrokerLimits, ConsumerGroupConfig
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.clients import create_client
from kafka_liveness_dagster.sensor.settings import SensorSettings
from kafka_liveness_dagster.settings.asset import (
    KafkaAssetSettings,
    KafkaResourceSettings,
    SparkResourceSettings,
)
from kafka_liveness_dagster.settings.consumers import CatchUpSettings, ConsumerSettings
from kafka_liveness_dagster.settings.groups import SettingsGroup
from kafka_liveness_dagster.settings.registry import SchemaRegistrySettings

NOWHERE = "127.0.0.1:1"
FINE = {"topics": ["orders"], "group_id": "orders-etl"}
ASSET = kl.kafka_asset(**FINE, name="orders", table="lake.shop.orders")(lambda batch: batch)
HOURLY = kl.kafka_asset(
    **FINE,
    name="hourly",
    table="lake.a.b",
    complete_every="1h",
    completeness=kl.Completeness(start="2026-11-01"),
)(lambda batch: batch)
PAGE = dg.GraphDefinition(name="page").to_job()
CHARACTERS = st.characters(codec=None, exclude_categories=())  # with halves of characters, NUL and line ends
ODD = st.text(st.sampled_from("ab.:/- _,;`'\"\0\n\udcff9"), max_size=8)
WORDS = [
    "orders",
    "lake.shop.orders",
    "h:9092",
    "sc://h:1",
    "auto",
    "raise",
    "embedded",
    "5",
    "no",
    "class",
    "x" * 300,
]
TEXTS = st.one_of(st.text(CHARACTERS, max_size=12), ODD, st.sampled_from(WORDS))
NUMBERS = st.one_of(
    st.integers(), st.integers(-2, 3), st.floats(), st.sampled_from([10**400, 2**31, 2**63, 0.5, True])
)
PLAIN = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
OBJECTS = [
    object(), print, int, dg.EnvVar("NOT_SET"), dg.EnvVar.int("NOT_SET"), PAGE, [ASSET.live_job], ASSET.live,
    ASSET.crash_lag, dg.BackfillPolicy.multi_run(2), dg.DefaultSensorStatus.RUNNING,
    OffsetRange("orders", 0, 0, 1),
]  # fmt: skip
LISTS = st.one_of(
    st.lists(PLAIN, max_size=3), st.dictionaries(TEXTS, PLAIN, max_size=2), st.binary(max_size=3)
)
ANYTHING = st.one_of(PLAIN, LISTS, st.sampled_from(OBJECTS))
NAME = st.text("ab9_", min_size=1, max_size=6)
EXTRA = [
    "client.rack",
    "fetch.wait.max.ms",
    "fetch.max.bytes",
    "debug",
    "partition.assignment.strategy",
    "group.id",
]
LIKELY = {  # what may fit where a type alone does not say it
    "topics": st.lists(NAME, max_size=3),
    "ranges": st.lists(
        st.builds(OffsetRange, NAME, st.integers(0, 2), st.just(0), st.integers(1, 9)), max_size=2
    ),
    "table": st.sampled_from(["lake.shop.orders", "a-b.c.d.e_1", "lake.orders"]),
    "bootstrap_servers": st.sampled_from(["h:1", "a:1,b:2", "[::1]:9092", "h"]),
    "remote": st.sampled_from(["sc://h", "sc://h:1/;token=a;user_id=b", "sc://h:0"]),
    "url": st.sampled_from(["http://h:4040", "https://h,http://i/api", "h:8081"]),
    "ui_url": st.sampled_from(["http://h:4040", "https://h/ui", "h:4040"]),
    "connect_timeout_seconds": st.floats(1, 600),
    "extra": st.dictionaries(st.sampled_from(EXTRA), TEXTS | st.integers(0, 9_999_999).map(str), max_size=2),
    "default_status": st.sampled_from(dg.DefaultSensorStatus),
    "backfill_policy": st.just(dg.BackfillPolicy.multi_run(2)),
    "event_jobs": st.lists(st.just(PAGE), max_size=2),
    "live_job": st.just(ASSET.crash_lag_job),
    "crash_lag_job": st.just(ASSET.crash_lag_job),
    "crash_lag": st.just(ASSET.crash_lag),
    "on_event": st.just(print),
    "sink": st.just(print),
    "start": st.sampled_from(["2026-11-01", "2026-11-01-05:00", "2026-11"]),
    "timezone": st.sampled_from(["UTC", "Europe/Amsterdam", "Europe"]),
    "windows": st.just(HOURLY.settings.windows),
}
OF_DAGSTER = {
    "key_prefix": NAME | st.lists(NAME, max_size=2),
    "description": TEXTS,
    "owners": st.lists(st.sampled_from(["team:shop", "a@shop.nl"]), max_size=2),
    "tags": st.dictionaries(NAME, NAME, max_size=2),
    "metadata": st.dictionaries(NAME, PLAIN, max_size=2),
    "kinds": st.sets(NAME, max_size=3),
    "deps": st.lists(NAME, max_size=2),
    "ins": st.dictionaries(NAME, st.just(dg.AssetIn()), max_size=2),
    "automation_condition": st.just(dg.AutomationCondition.eager()),
    "freshness_policy": st.just(dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=1))),
    "code_version": TEXTS,
    "retry_policy": st.just(dg.RetryPolicy()),
    "op_tags": st.dictionaries(NAME, PLAIN, max_size=2),
    "pool": NAME,
    "hooks": st.just(set()),
    "run_tags": st.dictionaries(NAME, NAME, max_size=2),
}
QUICK = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)


class UnvalidatedGroup(dict):
    """What is told of a group, which is not made of it yet."""

    def __init__(self, group, told):
        super().__init__(told)
        self.group = group


def with_groups(told):
    """The settings with each group made: which may refuse."""
    return {
        name: one.group(**one) if isinstance(one, UnvalidatedGroup) else one for name, one in told.items()
    }


def likely(name, field):
    """Values that may fit, by the words and types of a setting's kind; of a group, some of its settings."""
    if (
        isinstance(field.annotation, type)
        and not typing.get_origin(field.annotation)
        and issubclass(field.annotation, SettingsGroup)
    ):
        return some(field.annotation).map(lambda told: UnvalidatedGroup(field.annotation, told))
    parts = list(_parts(field.annotation))
    words = [word for part in parts if typing.get_origin(part) is typing.Literal for word in part.__args__]
    kinds = {
        bool: st.booleans(),
        int: st.integers(1, 9),
        float: st.floats(0.1, 99),
        str: NAME,
        type(None): st.none(),
    }
    found = [kinds[part] for part in parts if part in kinds] if name not in LIKELY else [LIKELY[name]]
    return st.one_of(*found, *([st.sampled_from(words)] if words else [])) if found or words else ANYTHING


def _parts(annotation):
    yield annotation
    for part in typing.get_args(annotation):
        yield from _parts(part)


def some(declared, *, but=()):
    """One to three settings, each with a value that may fit, or with any.

    ``arguments`` are each for itself.
    """
    fields = {name: field for name, field in declared.model_fields.items() if name not in (*but, "arguments")}
    known = {name: st.booleans().flatmap(_one_or_any(likely(name, field))) for name, field in fields.items()}
    if "arguments" in declared.model_fields:
        known |= {
            name: st.booleans().flatmap(_one_or_any(one))
            for name, one in OF_DAGSTER.items()
            if name not in but
        }
    return st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: known[name] for name in names})
    )


def _one_or_any(fitting):
    return lambda fits: fitting if fits else ANYTHING


def declare(make, told):
    """What is made of these settings, None when they are refused; no other exception is."""
    try:
        return make(with_groups(told) if isinstance(told, dict) else told)
    except InvalidSettingError:
        return None


class Offline(kl.KafkaLivenessResource):
    """A resource that has asked its broker for the limits of a broker."""

    def cluster(self):
        limits = BrokerLimits(6_000, 1_800_000)
        return SimpleNamespace(
            broker_limits=lambda: limits, consumer_group_config=lambda _: ConsumerGroupConfig(45_000, 5_000)
        )

    def create_missing_topics(self, topics, report):
        """The embedded broker, which this one would be, has them."""


@QUICK
@given(some(KafkaAssetSettings, but=["transform"]))
def test_an_asset(told):
    """Its code location loads, with its sensor, its checks and its jobs."""
    sink = {"table": None} if callable(told.get("sink")) and "table" not in told else {}
    fine = {**FINE, "name": "orders", "table": "lake.shop.orders", **sink, **told}
    owners._claimed_assets.clear()
    asset = declare(lambda one: kl.kafka_asset(**one)(lambda batch: batch), fine)
    if asset is not None:
        keys = {
            asset.settings.resources.kafka: kl.KafkaLivenessResource(),
            asset.settings.resources.spark: kl.SparkConnectResource(),
        }
        loaded = dg.Definitions.merge(asset.definitions, dg.Definitions(resources=keys))
        dg.Definitions.validate_loadable(loaded)
        assert f"{asset.identifier}_sensor" in [
            sensor.name for sensor in loaded.get_repository_def().sensor_defs
        ]
        assert loaded.resolve_job_def(f"{asset.identifier}_job").executor_def is dg.in_process_executor


@QUICK
@given(some(SensorSettings))
def test_a_sensor(told):
    """It loads beside the jobs it starts."""
    fine = {**FINE, "name": "orders_sensor", "live_job": ASSET.live_job, "crash_lag": ASSET.crash_lag}
    sensor = declare(lambda one: kl.build_group_sensor(**one), {**fine, **told})
    if sensor is not None:
        assert sensor.minimum_interval_seconds >= 1
        assert ASSET.live_job in sensor.jobs or "live_job" in told


@QUICK
@given(some(ConsumerSettings))
def test_a_consumer(told):
    """It is made, and so is a client that may join its group with these names.

    None of them ends the process.
    """
    consumer = declare(lambda one: Offline(bootstrap_servers=NOWHERE).consumer(**one), {**FINE, **told})
    if consumer is not None:
        live = consumer.settings
        with consumer:
            client = create_client(Consumer, consumer._kafka.member_config(live, "test", consumer.timeouts))
            client.subscribe(list(live.topics))
            client.close()


@QUICK
@given(some(CatchUpSettings))
def test_a_catch_up(told):
    """It is made; what it owes is asked when it begins."""
    fine = {"group_id": "orders-etl", "ranges": [OffsetRange("orders", 0, 0, 1)]}
    lane = declare(lambda one: Offline(bootstrap_servers=NOWHERE).catch_up(**one), {**fine, **told})
    if lane is not None:
        lane.close()


@QUICK
@given(some(KafkaResourceSettings))
def test_a_kafka_resource(told):
    """It loads, and its clients are made.

    Librdkafka's refusals, and files that are not there, are told as ours.
    """
    kafka = declare(lambda one: kl.KafkaLivenessResource(**one), {"bootstrap_servers": NOWHERE, **told})
    if kafka is not None and kafka.bootstrap_servers != "embedded":
        declare(lambda one: dg.Definitions(resources={"kafka": one}).get_repository_def(), kafka)
        declare(lambda one: Cluster(one.settings()), kafka)


@QUICK
@given(some(SparkResourceSettings))
def test_a_spark_resource(told):
    """It loads; the server is another matter."""
    spark = declare(lambda one: kl.SparkConnectResource(**one), told)
    if spark is not None:
        declare(lambda one: dg.Definitions(resources={"spark": one}).get_repository_def(), spark)


@QUICK
@given(some(SchemaRegistrySettings))
def test_a_schema_registry(told):
    """It loads, and its client is made, or what a variable or a file holds is told."""
    registry = declare(lambda one: kl.SchemaRegistryResource(**one), {"url": f"http://{NOWHERE}", **told})
    if registry is not None:
        declare(lambda one: dg.Definitions(resources={"registry": one}).get_repository_def(), registry)
        declare(lambda one: one._client(), registry)


@QUICK
@given(some(KafkaAssetSettings, but=["transform", "sink", "ins", "hooks"]), st.booleans())
def test_a_component(told, as_sections):
    """In Python, and with groups as the sections that YAML has.

    What YAML makes of values is in ``test_component``.
    """
    these = {
        name: dict(one) if as_sections and isinstance(one, UnvalidatedGroup) else one
        for name, one in told.items()
    }
    component = declare(
        lambda one: kl.KafkaAssetComponent(sql="SELECT * FROM batch", **one), {**FINE, **these}
    )
    if component is not None:
        groups = {
            name: KafkaAssetSettings.group(name) for name, one in these.items() if isinstance(one, dict)
        }
        kinds = {name: group for name, group in groups.items() if group is not None}
        wanted = {**these, **{name: kind(**these[name]) for name, kind in kinds.items()}}
        assert all(getattr(component, name) == value for name, value in wanted.items())
