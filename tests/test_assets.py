"""What ``kafka_asset`` makes, and what it refuses when the code location is loaded."""

from __future__ import annotations

import re
from pathlib import Path

import dagster as dg
import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.errors import InvalidSettingError

RESOURCES = dg.Definitions(
    resources={"kafka": kl.KafkaLivenessResource(), "spark": kl.SparkConnectResource()}
)
TOPIC = "orders.v1-raw"


def make(name="orders", **settings):
    """An asset with settings that are fine unless a test says otherwise."""
    settings = {"topics": [TOPIC], "group_id": f"{name}-etl", "table": f"lake.shop.{name}", **settings}
    return kl.kafka_asset(name=name, **settings)(lambda batch: batch)


def test_two_groups_may_read_one_topic():
    """Their definitions merge: the topic's asset is the same for both."""
    merged = dg.Definitions.merge(make("orders").definitions, make("audit").definitions, RESOURCES)
    dg.Definitions.validate_loadable(merged)
    assert sorted(sensor.name for sensor in merged.get_repository_def().sensor_defs) == [
        "audit_sensor",
        "orders_sensor",
    ]


def test_two_groups_may_not_write_one_topic_to_one_table():
    """Each batch of one group would delete rows of the other one.

    Other topics, or another table, are fine.
    """
    first = make("orders").definitions
    for other in ({"topics": ["paid"], "table": "lake.shop.orders"}, {"table": "lake.shop.audit"}):
        dg.Definitions.validate_loadable(
            dg.Definitions.merge(first, make("audit", **other).definitions, RESOURCES)
        )
    with pytest.raises(InvalidSettingError) as refused:
        make("copies", topics=["paid", TOPIC], table="lake.shop.orders").definitions  # noqa: B018
    assert str(refused.value).startswith(
        f"Assets copies and orders both write topic {TOPIC} to lake.shop.orders, as groups copies-etl and "
        "orders-etl. "
    )


def test_two_groups_may_not_write_one_topic_to_one_sink():
    """Two sinks of one class are two sinks unless they are equal."""

    def sink(replacement):
        """Write nothing."""

    def another(replacement):
        """Write nothing either."""

    first = make("orders", table=None, sink=sink).definitions
    with pytest.raises(InvalidSettingError, match="both write topic"):
        make("copies", table=None, sink=sink).definitions  # noqa: B018
    make("audit", table=None, sink=another).definitions  # noqa: B018
    assert first is not None


def test_the_budget_is_asset_metadata_of_both_lanes():
    """A backfill's run carries no op tags, so the budget travels with the assets."""
    asset = make(max_batch_seconds=120)
    for lane in (asset.live, asset.crash_lag):
        assert lane.metadata_by_key[lane.key]["kafka_liveness/max_batch_seconds"] == 120


def test_runs_of_the_jobs_are_one_process():
    """The multiprocess executor would leave a step at work when its run worker is killed."""
    loaded = dg.Definitions.merge(make().definitions, RESOURCES)
    for name in ("orders_job", "orders_crash_lag_job"):
        assert loaded.resolve_job_def(name).executor_def is dg.in_process_executor


def test_a_backfill_is_one_run_unless_many_are_chosen():
    """Ranges of many partitions are one Spark job by default; large ones may be given a run each."""
    many = dg.BackfillPolicy.multi_run(max_partitions_per_run=1)
    assert make().crash_lag.backfill_policy == dg.BackfillPolicy.single_run()
    assert make(crash_lag=kl.CrashLag(backfill_policy=many)).crash_lag.backfill_policy == many


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"topics": []}, "topics of asset orders is .*: wanted at least one topic"),
        ({"group_id": ""}, "group_id of asset orders is '': wanted 1 to 249 printable characters"),
        ({"group_id": "etl.catch-up"}, "catch-up commit log"),
        ({"table": "orders"}, "catalog.namespace.table"),
        ({"table": None}, "neither of table and sink"),
        ({"sink": print}, "both of table and sink"),
        (
            {"table": None, "sink": "lake.shop.orders"},
            "is 'lake.shop.orders': wanted a callable; docs/sinks.md",
        ),
        ({"max_poll_records": 0}, "max_poll_records of asset orders is 0: wanted a whole number from 1"),
        ({"max_poll_records": "many"}, "is 'many': wanted a whole number .*, or 'auto'"),
        (
            {"max_batch_seconds": -1},
            "max_batch_seconds of asset orders is -1: wanted a number of seconds above 0",
        ),
        (
            {"table": None, "sink": print, "batching": kl.Batching(in_flight=2)},
            "called with one batch at a time",
        ),
        (
            {"table": None, "sink": print, "batching": kl.Batching(on_bad_record="dead_letter")},
            "dead letters need a table. Fix: leave on_bad_record='dead_letter' of batching out",
        ),
    ],
)
def test_what_no_run_could_work_with_is_refused_when_it_is_declared(settings, says):
    """Before anything runs: the code location does not load, and says why."""
    with pytest.raises(InvalidSettingError, match=says):
        make(**settings)


@pytest.mark.parametrize(
    ("group", "settings", "says"),
    [
        (kl.Batching, {"in_flight": 0}, "in_flight of Batching is 0: wanted 1 or 2"),
        (kl.Batching, {"in_flight": 3}, "in_flight of Batching is 3: wanted 1 or 2"),
        (
            kl.Offsets,
            {"on_data_loss": "ignore"},
            "on_data_loss of Offsets is 'ignore': wanted 'raise' or 'write_off'",
        ),
        (kl.Batching, {"on_slow_record": "skip"}, "'skip': wanted 'raise' or 'quarantine'"),
        (kl.Membership, {"liveness": "polling"}, "wanted 'poll' or 'progress'"),
        (kl.Offsets, {"auto_offset_reset": "newest"}, "wanted 'earliest', 'latest' or 'error'"),
        (kl.Sensor, {"max_live_runs": 0}, "max_live_runs of Sensor is 0: wanted a whole number from 1"),
        (kl.CrashLag, {"min_offsets": 0}, "min_offsets of CrashLag is 0: wanted .* at least 1"),
    ],
)
def test_a_group_of_settings_is_refused_where_it_is_made(group, settings, says):
    """In the line that is wrong."""
    with pytest.raises(InvalidSettingError, match=says):
        group(**settings)


def test_two_assets_of_one_group_are_refused_where_they_are_loaded():
    """With both names; the same asset loaded again, another cluster's group and one that is gone are not."""
    first = make(name="first_of_two", group_id="shared")
    assert first.definitions
    second = make(name="second", group_id="shared", table="lake.shop.second")
    with pytest.raises(
        InvalidSettingError, match=r"asset second is 'shared'.*first_of_two has too.*lake\.shop\.second"
    ):
        _ = second.definitions
    assert make(name="first_of_two", group_id="shared").definitions
    assert make(name="second", group_id="shared", resources=kl.ResourceKeys(kafka="other_kafka")).definitions
    del first
    assert second.definitions


def test_the_decorator_without_brackets_says_what_is_missing():
    """Not Python's own words about positional arguments."""

    def orders(batch):
        return batch

    with pytest.raises(
        InvalidSettingError,
        match=r"needs settings in parentheses before it decorates orders\. Fix: @kafka_asset\(topics",
    ):
        kl.kafka_asset(orders)


def test_the_assets_say_where_the_rows_go():
    """A table by its name, and kind Iceberg.

    A sink by the name of its class or of the function that made it.
    """

    def made():
        return lambda _: None

    class Sink:
        """A sink with settings."""

        def __call__(self, _):
            pass

    told = {}
    for settings in ({}, {"table": None, "sink": made()}, {"table": None, "sink": Sink()}):
        asset = make(**settings)
        live = asset.live
        dg.Definitions.validate_loadable(dg.Definitions.merge(asset.definitions, RESOURCES))
        assert f"not in `{asset.target}`, " in asset.crash_lag.descriptions_by_key[asset.crash_lag.key]
        told[asset.target] = (live.metadata_by_key[live.key], "iceberg" in live.specs_by_key[live.key].kinds)
    here, table = test_the_assets_say_where_the_rows_go.__name__, "lake.shop.orders"
    both = {
        "group": "orders-etl",
        f"topic {TOPIC}": dg.MetadataValue.asset(dg.AssetKey(["kafka", f"{TOPIC}_topic"])),
    }
    assert told == {
        table: ({**both, "table": table, "dagster/table_name": table}, True),
        here: ({**both, "sink": here}, False),
        "Sink": ({**both, "sink": "Sink"}, False),
    }


def test_forgotten_resources_are_explained():
    """What Dagster says of them, which this package cannot change, is on the page of errors.

    And its remedy loads.
    """
    page = (Path(__file__).parents[1] / "docs" / "errors.md").read_text(encoding="utf-8")
    with pytest.raises(dg.DagsterInvalidDefinitionError) as told:
        dg.Definitions.validate_loadable(make().definitions)
    assert str(told.value).partition(". ")[0].replace("'spark'", "'kafka'") in page
    [remedy] = re.findall(r"`(dg\.Definitions\.merge\(.*?)`", page)
    dg.Definitions.validate_loadable(eval(remedy, {"dg": dg, "kl": kl, "orders": make()}))  # noqa: S307


def test_no_two_assets_look_alike_in_the_lineage():
    """It shows the last part of each key."""
    defs = dg.Definitions.merge(make(topics=["orders"]).definitions, RESOURCES)
    keys = defs.resolve_asset_graph().get_all_asset_keys()
    assert sorted(key.path[-1] for key in keys) == ["orders", "orders_crash_lag", "orders_topic"]


@pytest.mark.parametrize(
    ("resource", "misspelt"),
    [(kl.KafkaLivenessResource, "bootstrap_server"), (kl.SparkConnectResource, "remotes")],
)
def test_a_misspelt_setting_is_refused(resource, misspelt):
    """A typo must not quietly mean the embedded services."""
    with pytest.raises(ValueError, match=misspelt):
        resource(**{misspelt: "example.com"})


def test_one_instance_id_is_for_one_run():
    """Two live runs with one ``group_instance_id`` would put each other out of the group for ever."""
    with pytest.raises(InvalidSettingError, match="for 2 live runs"):
        make(membership=kl.Membership(group_instance_id="etl-0"), sensor=kl.Sensor(max_live_runs=2))
    assert (
        make(membership=kl.Membership(group_instance_id="etl-0")).settings.membership.group_instance_id
        == "etl-0"
    )
