"""Crash lag partitions that an earlier version added, with keys such as ``orders:3:70-120``."""

from __future__ import annotations

import json

import dagster as dg
import pytest
from click.testing import CliRunner

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.cli.main import main
from tests.integration.group_with_table import GroupWithTable, written_rows

FORMER = "{}:0:{}-{}"


@pytest.fixture
def world(services, produce, rows, warm_spark, tmp_path, monkeypatch):  # noqa: PLR0917 - fixtures
    """A group on the real components, in a Dagster instance that the commands read."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    one = GroupWithTable(services, produce, rows, warm_spark)
    with dg.DagsterInstance.from_config(str(tmp_path)) as one.instance:
        yield one


def partitions(world):
    """All keys of the crash lag asset, and the materialized ones."""
    name = f"{world.name}_crash_lag"
    keys = world.instance.get_dynamic_partitions(name)
    return list(keys), world.instance.get_materialized_partitions(dg.AssetKey(name))


def status_of(world, key):
    """The status of a partition as Dagster shows it."""
    asset = dg.AssetKey(f"{world.name}_crash_lag")
    definition = dg.DynamicPartitionsDefinition(name=f"{world.name}_crash_lag")
    return world.instance.get_status_by_partition(asset, [key], definition)[key].value


def run(world, *words, exit_code=0):
    """A command: what it printed."""
    told = CliRunner().invoke(main, [*words, "--bootstrap-servers", world.servers])
    assert told.exit_code == exit_code, told.output
    return told.stdout


def tick_of_daemon(world):
    """A look of the sensor that may request runs of partitions."""
    asset, defs = world.definitions()
    context = dg.build_sensor_context(
        world.instance,
        definitions=defs,
        resources={"kafka": world.kafka, "spark": world._connect},
        sensor_name=asset.sensor.name,
    )
    with context, dg.partition_loading_context(dynamic_partitions_store=world.instance):
        return asset.sensor.evaluate_tick(context)


def test_a_pending_range_with_an_earlier_key_gets_no_second_partition(world):
    """The sensor requests the run of the earlier key, its run drains the range, and nothing is added."""
    world.settings["crash_lag"] = kl.CrashLag(auto_catch_up=True)
    world.crash_and_resume_at_120()
    key = FORMER.format(world.topic, 70, 120)
    world.instance.add_dynamic_partitions(f"{world.name}_crash_lag", [key])
    tick = tick_of_daemon(world)
    assert list(tick.dynamic_partitions_requests or ()) == []
    [requested] = [request for request in tick.run_requests if request.partition_key]
    assert requested.partition_key == key
    [age] = [one for one in tick.asset_events if getattr(one, "check_name", "") == "crash_lag_age"]
    assert "no partition in Dagster" not in age.description
    assert world.catch_up((70, 120), form=FORMER, tags=requested.tags) is None
    assert world.offsets() == written_rows(0, 120)
    tick = tick_of_daemon(world)
    assert (list(tick.dynamic_partitions_requests or ()), tick.run_requests) == ([], [])
    assert partitions(world) == ([key], {key})


def test_the_rest_of_an_earlier_key_gets_a_key_of_today(world):
    """Both partitions are backfilled at once, and each offset is in the table once."""
    world.crash_and_resume_at_120()
    former, today = FORMER.format(world.topic, 70, 100), f"p0:{world.topic}:100-120"
    world.instance.add_dynamic_partitions(f"{world.name}_crash_lag", [former])
    world.tick()
    assert partitions(world)[0] == [former, today]
    assert world.catch_up((0, 1), form=FORMER) is None  # commands find the asset by its materializations
    told = json.loads(run(world, "status", world.group, "--json", exit_code=1))
    assert told["next_steps"] == [f"launch a backfill of 2 partitions of {world.name}_crash_lag"]
    assert world.catch_up((70, 100), form=FORMER) is None
    assert world.catch_up((100, 120)) is None
    assert world.offsets() == written_rows(0, 120)
    keys, done = partitions(world)
    assert done == set(keys) >= {former, today}


@pytest.mark.parametrize("again", ["", "@replay-20261122T100000Z"])
def test_a_partition_with_an_earlier_key_is_closed_by_either_text(world, again):
    """Its former rows stay. The commands print today's text of the range, and Dagster has the earlier one."""
    world.crash_and_resume_at_120()
    assert world.catch_up((70, 120), form=FORMER) is None
    assert world.catch_up((70, 120), form=FORMER, again=again, between=lambda _: 1 / 0) is not None
    key = FORMER.format(world.topic, 70, 120) + again
    assert status_of(world, key) == "FAILED"
    typed = f"p0:{world.topic}:70-120{again}"
    told = run(world, "write-off", world.group, typed, "--reason", "kept", "--yes")
    assert f"closed {key}" in told
    assert status_of(world, key) == "MATERIALIZED"
    assert (world.offsets(), typed in partitions(world)[0]) == (written_rows(0, 120), False)


def test_a_range_with_an_earlier_key_is_written_off_by_todays_text(world):
    """The event is on the partition that Dagster has."""
    world.crash_and_resume_at_120()
    assert world.catch_up((0, 1), form=FORMER) is None  # commands find the asset by its materializations
    key = FORMER.format(world.topic, 70, 120)
    world.instance.add_dynamic_partitions(f"{world.name}_crash_lag", [key])
    run(world, "write-off", world.group, f"p0:{world.topic}:70-120", "--reason", "expired", "--yes")
    found = world.instance.fetch_observations(dg.AssetKey(f"{world.name}_crash_lag"), limit=10).records
    assert key in {one.partition_key for one in found}
    assert not world.tick().dynamic_partitions_requests
