"""Wrong values that were once accepted, or met a bare error.

Each is refused by name, before anything is made.
"""

from __future__ import annotations

import functools
from inspect import signature

import dagster as dg
import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.kafka.catch_up.commit_log import CatchUpCommitLog
from kafka_liveness_dagster.sensor.settings import SensorSettings
from kafka_liveness_dagster.settings.asset import (
    KafkaAssetSettings,
    KafkaResourceSettings,
    SparkResourceSettings,
)
from kafka_liveness_dagster.settings.consumers import CatchUpSettings, ConsumerSettings
from kafka_liveness_dagster.settings.registry import SchemaRegistrySettings
from kafka_liveness_dagster.spark.table.table import IcebergTable

INF, NAN = float("inf"), float("nan")
AMOUNTS = ["5", True, NAN, INF, -INF, -1, [5], 10**400]  # where None is a value too
NUMBERS = [*AMOUNTS, None]
TABLES = [
    7,
    "orders",
    "lake.orders",
    "lake.shop.a;b",
    "lake.shop.`a`",
    "lake.shop.a\nb",
    "lake.shop.ä",
    "lake..a",
    "",
]
TOPICS = [[], [""], ["a", "a"], ["a", "a.b...c"], ["."], [".."], ["a b"], ["a:b"], ["a\n"], ["^a.*"], ["ä"],
          ["\ud800"], ["x" * 250], [7], 7, None, "", "a b", {"a": 1}, b"orders"]  # fmt: skip
GROUPS = [5, None, "", " ", "\t", "\0", " etl", "etl ", "a\0b", "a\nb", "\ud800", "x" * 250, "etl.catch-up",
          ["etl"], dg.EnvVar("GROUP")]  # fmt: skip
NOT_CALLED = [7, "orders.py", []]
WORDS = ["", "RAISE", None, 1, True]
FLAGS = ["no", "yes", 0, 1, None]
NAMES = ["", "a-b", "a b", "ä", "class", "int", "a\n", 7, "x" * 300]
KEYS = ["", "a-b", "_a", "class", "io_manager", 7, None]
NOT_MADE = [7, None, True, [], {}, {"in_flight": 1}, print, dg.EnvVar("GROUP"), kl.InvalidSettingError]
BATCHING = {
    "allocation": WORDS,
    "in_flight": [True, 0, 3, 1.0, "2"],
    "on_slow_record": WORDS,
    "on_bad_record": WORDS,
    "max_dead_letters": [0, 1.5, *AMOUNTS],
    "commit_interval_seconds": NUMBERS,
    "max_batch_bytes": [0, 1.5, 2**63, *AMOUNTS],
}
CRASH_LAG = {
    "min_offsets": [0, 1.0, *NUMBERS],
    "max_ranges": [0, 2.5, *AMOUNTS],
    "auto_catch_up": FLAGS,
    "max_age_seconds": AMOUNTS,
    "backfill_policy": [7, "single_run"],
}
OFFSETS = {
    "auto_offset_reset": WORDS,
    "on_data_loss": WORDS,
    "on_missing_rows": WORDS,
}
MEMBERSHIP = {
    "liveness": WORDS,
    "group_instance_id": ["", " ", 5, "a\0", "\ud800", "x" * 250],
}
WATCH = {
    "max_live_runs": [0, 2.5, *NUMBERS],
    "minimum_interval_seconds": [0, 1.5, 2**40, *NUMBERS],
    "default_status": ["RUNNING", True, None],
    "on_event": NOT_CALLED,
    "event_jobs": [7, [7], ["job"], None, "job", [dg.AssetKey("a")]],
    "max_lag": [1.0, *AMOUNTS],
    "ghost_after_seconds": NUMBERS,
    "fail_ghost_runs": FLAGS,
}
SLA = {
    "fresh_seconds": [0, -1.0, float("nan"), float("inf"), *AMOUNTS],
    "complete_minutes": [0, -1.0, float("nan"), float("inf"), *AMOUNTS],
}
MAINTENANCE = {
    "cron_schedule": ["", "hourly", "* * * *", "61 * * * *", 5, None, True],
    "default_status": ["RUNNING", True, None, dg.DefaultSensorStatus.RUNNING],
    "min_files": [0, 1, 2.5, *NUMBERS],
    "max_snapshot_age_seconds": NUMBERS,
    "max_snapshots": [0, 1.5, *NUMBERS],
    "orphan_file_age_seconds": [0, 3600, 86_399, *AMOUNTS],
}
ICEBERG = {
    "snapshots": WORDS,
    "partition_by": [7, None, {"a": 1}, [""], ["days()"], ["days(a, b)"], ["truncate(4, a)"],
                     ["bucket(0, a)"], [7], ["a; b"], ["a`"], ["bucket(a)"], "days(a"],
    "sort_by": [7, None, [""], ["a b"], ["a DESC,"], ["a; DROP TABLE b"], [7]],
    "table_properties": [7, None, [], {"a": 1}, {1: "a"}, "a=b"],
}  # fmt: skip
COMPLETENESS = {
    "start": ["", "now", "2026-11-31", "2026-11-1", "2026-11-01T05:00", "2026-11-01-25:00", 7],
    "timezone": ["", "CET+1", "Mars/Olympus", "../etc", 7, None],
    "allowed_lateness_seconds": NUMBERS,
    "reopen_on_late": FLAGS,
    "mark_empty": FLAGS,
}
RESOURCES = {"kafka": KEYS, "spark": KEYS}
GROUPS_OF_SETTINGS = {  # as a section, made, and the wrong values
    "batching": (kl.Batching, BATCHING),
    "crash_lag": (kl.CrashLag, CRASH_LAG),
    "offsets": (kl.Offsets, OFFSETS),
    "membership": (kl.Membership, MEMBERSHIP),
    "sensor": (kl.Sensor, WATCH),
    "sla": (kl.Sla, SLA),
    "iceberg": (kl.Iceberg, ICEBERG),
    "maintenance": (kl.Maintenance, MAINTENANCE),
    "completeness": (kl.Completeness, COMPLETENESS),
    "resources": (kl.ResourceKeys, RESOURCES),
}
ASSET = {
    "name": [name for name in NAMES if name is not None],
    "topics": TOPICS,
    "group_id": GROUPS,
    "table": TABLES,
    "sink": NOT_CALLED,
    "max_poll_records": [*NUMBERS, 0, 1.5, "many"],
    "max_batch_seconds": [0, 86_401, *AMOUNTS],
    "enable_parallel_rebalance": FLAGS,
    "idle_seconds": NUMBERS,
    "include_headers": FLAGS,
    "materialize_interval_seconds": NUMBERS,
    "complete_every": ["", "2h", "1H", 3600, True],
    "completeness": [*NOT_MADE, kl.Batching()],
    "batching": [*NOT_MADE, kl.Sensor(), *WORDS],
    "crash_lag": [*NOT_MADE, kl.Batching()],
    "offsets": [*NOT_MADE, kl.Batching()],
    "membership": [*NOT_MADE, kl.Batching()],
    "iceberg": [*NOT_MADE, kl.Batching()],
    "maintenance": [*NOT_MADE, kl.Batching()],
    "sensor": [*NOT_MADE, kl.Sensor(event_jobs=[dg.GraphDefinition(name="orders_job").to_job()])],
    "sla": [*NOT_MADE, kl.Batching()],
    "resources": [*NOT_MADE, kl.ResourceKeys(spark="kafka"), "kafka"],
    "group_name": ["", "a-b", "a\n", 7],
}
SENSOR = {
    "name": [*NAMES, None],
    "topics": TOPICS,
    "group_id": GROUPS,
    "live_job": [7, "job", None],
    "crash_lag": [7, None, "asset", dg.AssetSpec("a"), kl.CrashLag()],
    "crash_lag_job": [7, "job"],
    "sensor": [*NOT_MADE, kl.Batching()],
    "checks": [7, "checks"],
    "table": TABLES,
    "windows": [7, "1h", kl.Completeness()],
    "resources": [*NOT_MADE, kl.Batching()],
}
CONSUMER = {
    # No topic of these becomes a partition
    "topics": [topics for topics in TOPICS if topics != ["a", "a.b...c"]],
    "group_id": GROUPS,
    "max_poll_records": [0, 1.5, *AMOUNTS, "auto"],
    "max_batch_seconds": [0, 86_401, *AMOUNTS],
    "enable_parallel_rebalance": FLAGS,
    "batching": [*NOT_MADE, kl.Sensor(), *WORDS],
    "crash_lag": [*NOT_MADE, kl.Batching()],
    "offsets": [*NOT_MADE, kl.Batching()],
    "membership": [*NOT_MADE, kl.Batching()],
}
CATCH_UP = {
    "group_id": GROUPS,
    "ranges": [
        7,
        "p0:orders:0-1",
        ["p0:orders:0-1"],
        [OffsetRange("\ud800", 0, 0, 1)],
        [OffsetRange("x" * 600, 0, 0, 1)],
        None,
    ],
    "reprocess": [7, ["p0:orders:0-1"], [OffsetRange("\ud800", 0, 0, 1)], None],
    "max_poll_records": [0, 1.5, *NUMBERS],
    "max_batch_seconds": [0, 86_401, *AMOUNTS],
    "offsets": [*NOT_MADE, kl.Batching()],
}
KAFKA = {
    "bootstrap_servers": [
        "",
        " ",
        "host",
        "host:",
        "host:0",
        "host:99999",
        "host:a",
        "h:1;h:2",
        "a b:1",
        "\0",
        "h:1\0",
        7,
        "\ud800:1",
        "ä:1",
        "http//h:1",
        None,
        ["h:1"],
    ],
    "session_timeout_seconds": [0, 86_401, *AMOUNTS, dg.EnvVar.int("SESSION"), dg.EnvVar("SESSION")],
    "heartbeat_interval_seconds": [0, *AMOUNTS],
    "group_protocol": [*WORDS, "Classic"],
    "default_max_batch_seconds": [0, 86_401, *AMOUNTS],
    "extra": [
        7,
        [],
        {"client.rack": 1},
        {1: "a"},
        {"client.rack": "a\0b"},
        {"client.rack": "\ud800"},
        {"a\0": "b"},
        {"internal.termination.signal": "9"},
        {"test.mock.num.brokers": "1"},
        {"error_cb": "x"},
        {"on_commit": "x"},
        {"default.topic.config": "x"},
    ],
    "security_protocol": ["", "TLS", "ssl", 7, None],
    "sasl_mechanism": ["GSSAPI", 7],
    "sasl_username": [7, "a\0", "\ud800", " etl"],
    "sasl_password": [7, "hunter2\0", ["hunter2"], " hunter2"],
    "ssl_ca_location": [7, "a\0"],
    "ssl_certificate_location": [7, "a\0"],
    "ssl_key_location": [7, "a\0"],
    "ssl_key_password": [7, "hunter2\0"],
    "ssl_endpoint_identification_algorithm": ["", "HTTPS", 7, None],
    "sasl_oauthbearer_client_id": [7, "a\0", " etl"],
    "sasl_oauthbearer_client_secret": [7, "hunter2\0", ["hunter2"], " hunter2"],
    "sasl_oauthbearer_token_endpoint_url": [7, "a\0"],
    "sasl_oauthbearer_scope": [7, "a\0"],
    "sasl_oauthbearer_extensions": [7, "a\0"],
    "https_ca_location": [7, "a\0"],
}
SPARK = {
    "remote": ["", "spark:1", "sc://", "sc://h:0", "sc://h:99999", "sc://h:x", "sc://[::1", "sc://h:1/x",
               "sc://h:1/;token", "sc://h:1/;session_id=x", "sc://h:1/;token=hunter2\0",
               "sc://h:1/;token=hunterü", "sc://h:1 ", " sc://h:1", "SC://h:1", "sc://\ud800:1", 7, None],
    "ui_url": ["", "driver:4040", "sc://h:1", "http://\ud800", 7],
    "connect_timeout_seconds": [0, -1, 86_401, float("nan"), float("inf"), "120", True, None],
}  # fmt: skip
REGISTRY = {
    "url": ["", "registry:8081", "https://", "https://h:0", "https://h:x", "https://[::1",
            "https://a:hunter2@h", "https://h?a", "https://h,", "https://h, https://i", "https://hü",
            "https://h\n", "https://\ud800", None, 7],
    "username": [7, "a\0", "\ud800", " etl"],
    "password": [7, "hunter2\0", ["hunter2"], " hunter2"],
    "ssl_ca_location": [7, "a\0"],
}  # fmt: skip
FINE = {"topics": ["orders"], "group_id": "orders-etl"}


PAGE = dg.GraphDefinition(name="page").to_job()
RUNNING = dg.DefaultSensorStatus.RUNNING


def asset(**settings):
    """An asset that is fine but for these settings."""
    fine = {**FINE, "table": "lake.shop.orders", "name": "orders"}
    return kl.kafka_asset(**{**fine, **settings})(lambda batch: batch)


def component(**settings):
    """A component that is fine but for these settings."""
    fine = {**FINE, "table": "lake.shop.orders", "name": "orders", "sql": "SELECT * FROM batch"}
    return kl.KafkaAssetComponent(**{**fine, **settings})


@functools.cache
def declared_once():
    """An asset whose jobs a sensor may start."""
    return asset()


def sensor(**settings):
    """A sensor that is fine but for these settings."""
    orders = declared_once()
    fine = {**FINE, "name": "orders_sensor", "live_job": orders.live_job, "crash_lag": orders.crash_lag}
    return kl.build_group_sensor(**{**fine, **settings})


def consumer(**settings):
    """A consumer that is fine but for these settings, on a broker that is not there."""
    return kl.KafkaLivenessResource(bootstrap_servers="127.0.0.1:1").consumer(**{**FINE, **settings})


def catch_up(**settings):
    """A catch-up that is fine but for these settings."""
    fine = {"group_id": "orders-etl", "ranges": [OffsetRange("orders", 0, 0, 1)]}
    return kl.KafkaLivenessResource(bootstrap_servers="127.0.0.1:1").catch_up(**{**fine, **settings})


class Registry(kl.SchemaRegistryResource):
    """One that is fine but for its settings: the only resource with a field that has to be told."""

    url: str = "http://127.0.0.1:1"


MADE = {  # what is declared, and its wrong values
    asset: (KafkaAssetSettings, ASSET),
    sensor: (SensorSettings, SENSOR),
    consumer: (ConsumerSettings, CONSUMER),
    catch_up: (CatchUpSettings, CATCH_UP),
    kl.KafkaLivenessResource: (KafkaResourceSettings, KAFKA),
    kl.SparkConnectResource: (SparkResourceSettings, SPARK),
    Registry: (SchemaRegistrySettings, REGISTRY),
    **{group: (group, told) for group, told in GROUPS_OF_SETTINGS.values()},
}


@pytest.mark.parametrize(
    ("make", "name"),
    [
        pytest.param(make, name, id=f"{make.__name__} {name}")
        for make, (_, told) in MADE.items()
        for name in told
    ],
)
def test_it_is_refused_by_name(make, name):
    """When it is declared, before a broker is asked.

    With the setting and what was wanted, and without a secret.
    """
    beside = {"table": None} if (make, name) == (asset, "sink") else {}
    for value in MADE[make][1][name]:
        with pytest.raises(InvalidSettingError) as refusal:
            make(**beside, **{name: value})
            pytest.fail(f"{value!a} was accepted")
        said = str(refusal.value)
        assert said.startswith((name, f"{name}[", "extra setting")), f"{value!a}: {said}"
        told = ("wanted", "is refused: ", "Fix: ")
        assert any(words in said for words in told), f"{value!a}: {said}"
        assert "hunter" not in said
        assert len(said) < 600, f"{value!a}"


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
def test_no_setting_is_without_a_wrong_value(make):
    """A new one has to be here too, and in the declaration."""
    declared, told = MADE[make]
    assert set(told) == set(declared.model_fields) - {"transform", "arguments"}
    checked = {"checked_by", "context", "ledger", "self"}
    if isinstance(make, type):
        assert set(told) == set(make.model_fields)
        assert getattr(make, "settings_class", make) is declared
    elif make is not asset:
        there = {sensor: kl.build_group_sensor, consumer: kl.KafkaLivenessResource.consumer}
        there = there.get(make, kl.KafkaLivenessResource.catch_up)
        assert set(told) == set(signature(there).parameters) - checked


@pytest.mark.parametrize(
    ("section", "name"),
    [
        pytest.param(one, name, id=f"{one} {name}")
        for one, (_, told) in GROUPS_OF_SETTINGS.items()
        for name in told
    ],
)
def test_in_a_section_it_is_refused_by_its_path(section, name):
    """Where a group is not made yet, as in YAML, the error says whose it is."""
    for value in GROUPS_OF_SETTINGS[section][1][name]:
        with pytest.raises(InvalidSettingError) as refusal:
            component(**{section: {name: value}})
            pytest.fail(f"{value!a} was accepted")
        said = str(refusal.value)
        assert said.startswith((f"{section}.{name} of asset orders is ", f"{section}.{name}[")), (
            f"{value!a}: {said}"
        )
        assert "wanted" in said
        assert len(said) < 600, f"{value!a}"


def test_all_that_is_wrong_is_told_at_once():
    """Each in a line of its own, with asset, setting, value and what was wanted."""
    with pytest.raises(InvalidSettingError) as refusal:
        component(
            name="sales",
            sensor={"max_lag": "5"},
            topics=["orders", "a b"],
            enable_parallel_rebalance="no",
            batching={"on_slow_record": "skip", "in_fligth": 2},
        )
    first, *others = str(refusal.value).splitlines()
    assert first.startswith("topics[1] of asset sales is 'a b': wanted a Kafka topic: 1 to 249 letters")
    assert others == [
        "enable_parallel_rebalance of asset sales is 'no': wanted True or False",
        "batching.on_slow_record of asset sales is 'skip': wanted 'raise' or 'quarantine'",
        "'in_fligth' is no setting of batching of asset sales: did you mean in_flight?",
        "sensor.max_lag of asset sales is '5': wanted a whole number of offsets, 0 or more",
    ]
    with pytest.raises(InvalidSettingError) as refusal:
        asset(name="sales", topics=["orders", "a b"], enable_parallel_rebalance="no", max_pol_records=1)
    assert (
        str(refusal.value) == "'max_pol_records' is no setting of asset sales: did you mean max_poll_records?"
    )
    with pytest.raises(InvalidSettingError) as refusal:
        asset(name="sales", topics=["orders", "a b"], enable_parallel_rebalance="no", offsets=kl.Batching())
    assert [line.partition(" ")[0] for line in str(refusal.value).splitlines()] == [
        "topics[1]",
        "enable_parallel_rebalance",
        "offsets",
    ]
    with pytest.raises(InvalidSettingError) as refusal:
        kl.Batching(in_flight=3, on_slow_record="skip", in_fligth=2)
    assert str(refusal.value).splitlines() == [
        (
            "in_flight of Batching is 3: wanted 1 or 2; more would not make Spark faster, and a crash would "
            "repeat all of them"
        ),
        "on_slow_record of Batching is 'skip': wanted 'raise' or 'quarantine'",
        "'in_fligth' is no setting of Batching: did you mean in_flight?",
    ]


def test_what_contradicts_itself_is_told_at_once_too():
    """Several rules may be broken by settings of which each alone is fine."""
    with pytest.raises(InvalidSettingError) as refusal:
        asset(
            sink=print,
            batching=kl.Batching(in_flight=2),
            membership=kl.Membership(group_instance_id="one"),
            sensor=kl.Sensor(max_live_runs=2),
            resources=kl.ResourceKeys(spark="kafka"),
        )
    said = str(refusal.value)
    assert len(said.splitlines()) == 4
    for words in (
        "both of table and sink",
        "one batch at a time",
        "for 2 live runs",
        "are both 'kafka'",
    ):
        assert words in said


def test_table_properties_that_no_later_batch_could_be_written_with_are_refused():
    """With the values that are needed, where the asset is declared and not in its second batch."""
    properties = {"write.format.default": "avro", "write.metadata.metrics.column.offset": "none"}
    with pytest.raises(InvalidSettingError) as refusal:
        asset(iceberg=kl.Iceberg(table_properties=properties))
    said = str(refusal.value)
    assert "write.format.default=avro (its files have no column bounds" in said
    assert "{'write.format.default': 'parquet', 'write.metadata.metrics.column.offset': 'full'}" in said


def test_windows_of_time_need_a_beginning_and_a_table():
    """And what is said of them means nothing without them."""
    with pytest.raises(InvalidSettingError, match="has complete_every='1h', but no first window"):
        asset(complete_every="1h")
    with pytest.raises(InvalidSettingError, match="has start, reopen_on_late of completeness, but no"):
        asset(completeness=kl.Completeness(start="2026-11-01", reopen_on_late=True))
    with pytest.raises(InvalidSettingError, match="only a table can show that a window is complete"):
        asset(complete_every="1h", completeness=kl.Completeness(start="2026-11-01"), table=None, sink=print)
    windows = asset(
        complete_every="15min", completeness=kl.Completeness(start="2026-11-01-05:30")
    ).settings.windows
    with pytest.raises(InvalidSettingError, match="windows of sensor orders_sensor need the table"):
        sensor(windows=windows)


def test_each_unknown_setting_is_refused_with_the_nearest_name():
    """All of them at once; a setting of a group is none beside the groups."""
    with pytest.raises(InvalidSettingError) as refusal:
        asset(on_slow_record="quarantine", max_pol_records=1)
    assert str(refusal.value).splitlines() == [
        "'on_slow_record' is no setting of asset orders: did you mean max_poll_records?",
        "'max_pol_records' is no setting of asset orders: did you mean max_poll_records?",
    ]


@pytest.mark.parametrize(
    ("make", "settings", "says"),
    [
        (
            consumer,
            {"batching": kl.Batching(in_flight=2)},
            "in_flight of batching has no effect on the consumer of",
        ),
        (consumer, {"batching": kl.Batching(on_slow_record="quarantine")}, "on_slow_record='quarantine' out"),
        (
            consumer,
            {"crash_lag": kl.CrashLag(auto_catch_up=True)},
            "auto_catch_up of crash_lag has no effect on",
        ),
        (consumer, {"crash_lag": kl.CrashLag(max_age_seconds=1.0)}, "leave max_age_seconds=1.0 out"),
        (
            consumer,
            {"crash_lag": kl.CrashLag(backfill_policy=dg.BackfillPolicy.single_run())},
            "backfill_policy of",
        ),
        (
            catch_up,
            {"offsets": kl.Offsets(auto_offset_reset="latest")},
            "auto_offset_reset of offsets has no effect",
        ),
        (
            catch_up,
            {"offsets": kl.Offsets(on_missing_rows="crash_lag")},
            "leave on_missing_rows='crash_lag' out",
        ),
        (sensor, {"sensor": kl.Sensor(max_lag=5)}, "max_lag of sensor orders_sensor would not be used"),
    ],
)
def test_what_means_nothing_there_is_refused(make, settings, says):
    """A group may have settings that only the asset has a use for.

    Nobody is to believe that they do something.
    """
    with pytest.raises(InvalidSettingError, match=says):
        make(**settings)


@pytest.mark.parametrize("transform", [7, None, "orders", lambda batch: batch, functools.partial(print)])
def test_what_is_decorated_needs_a_name(transform):
    """A function has one; what has none, or one that Dagster refuses, is told to get it by ``name=``."""
    with pytest.raises(InvalidSettingError, match=r"^(name|transform) of asset"):
        kl.kafka_asset(**FINE, table="lake.shop.orders")(transform)


def test_one_topic_needs_no_list():
    """Nor does it matter which kind of collection several come in."""
    for told in ("orders", ["orders"], ("orders",), {"orders"}, {"orders": 0}.keys()):
        assert asset(topics=told).topics == ("orders",)
        assert sensor(topics=told).name == "orders_sensor"


def test_numbers_stay_what_they_are():
    """A whole number of seconds is one; nothing else is turned into anything."""
    told = {"max_batch_seconds": 120, "idle_seconds": 0, "sensor": kl.Sensor(max_lag=0)}
    told |= {"crash_lag": kl.CrashLag(max_age_seconds=0.5)}
    assert {name: getattr(asset(**told).settings, name) for name in told} == told
    assert (told["sensor"].max_lag, told["crash_lag"].max_age_seconds) == (0, 0.5)


@pytest.mark.parametrize("name", ["orders.v1-raw", "a_b", "A" * 249, "a..b", "-"])
def test_what_kafka_takes_for_a_topic_is_taken(name):
    """Dots in twos are no range of Dagster's."""
    assert asset(topics=name).topics == (name,)


@pytest.mark.parametrize("table", ["lake.shop.orders", "a-b.c.d.e_1", f"lake.shop.{'x' * 255}"])
def test_a_table_that_is_taken_can_be_quoted(table):
    """The sink takes every name that passes here."""
    assert IcebergTable(asset(table=table).settings.table).quoted == "`" + table.replace(".", "`.`") + "`"


@pytest.mark.parametrize(
    "group_id", ["etl", "orders etl", "größe-日本-😀", "a:b/c", "x" * 249, ".catch-up.v2"]
)
def test_what_kafka_takes_for_a_group_is_taken(group_id):
    """Kafka takes any text; nobody means an unprintable one."""
    assert asset(group_id=group_id).group_id == group_id


@pytest.mark.parametrize(
    "servers",
    ["h:1", "a.example:9092,b:9093", "a:1, b:2,", "[::1]:9092", "SASL_SSL://h:9092", "127.0.0.1:65535"],
)
def test_what_kafka_takes_for_addresses_is_taken(servers):
    """As both of its clients read them."""
    assert kl.KafkaLivenessResource(bootstrap_servers=servers).settings().bootstrap_servers == servers


def test_a_resource_of_ones_own_may_have_more_fields():
    """What is made of ours is checked where it is ours."""

    class Ours(kl.KafkaLivenessResource):
        region: int = 1

    assert Ours(region=2, bootstrap_servers="h:1").region == 2
    with pytest.raises(InvalidSettingError, match=r"bootstrap_servers of KafkaLivenessResource is 'h'"):
        Ours(region=2, bootstrap_servers="h")


def test_what_a_variable_holds_is_checked_when_it_is_looked_up(monkeypatch):
    """In a script as in a run; of what may hold a token the value is not shown."""
    monkeypatch.setenv("OURS", "hunter2")
    with pytest.raises(InvalidSettingError, match="bootstrap_servers is 'hunter2': wanted host:port"):
        kl.KafkaLivenessResource(bootstrap_servers=dg.EnvVar("OURS")).settings()
    with pytest.raises(InvalidSettingError, match="remote of SparkConnectResource is invalid") as refusal:
        kl.SparkConnectResource(remote=dg.EnvVar("OURS")).running_address()
    assert "hunter2" not in str(refusal.value)
    monkeypatch.setenv("OURS", "1000000")
    rack = kl.KafkaLivenessResource(
        bootstrap_servers="h:1", extra={"client.rack": dg.EnvVar("OURS")}
    ).settings()
    assert rack.extra == {"client.rack": "1000000"}


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"fetch.maxx": "1"}, "No such configuration property"),
        ({"socket.timeout.ms": "soon"}, "Invalid value for configuration property"),
        # A consumer says so, an admin client does not
        ({"fetch.max.bytes": "1"}, "must be >= `message.max.bytes`"),
    ],
)
def test_what_librdkafka_refuses_is_refused_by_name(extra, says):
    """By whichever of our clients it is refused."""
    settings = kl.KafkaLivenessResource(bootstrap_servers="127.0.0.1:1", extra=extra).settings()
    with pytest.raises(InvalidSettingError, match=f"librdkafka refuses the settings: .*{says}"):
        CatchUpCommitLog(settings, "etl", "test")


def test_what_is_to_be_processed_again_has_to_be_asked_for():
    """Or it would be of a partition that the run never looks at."""
    with pytest.raises(InvalidSettingError, match="has p0:orders:1-2, which ranges lacks"):
        catch_up(reprocess=[OffsetRange("orders", 0, 1, 2)])
