"""What docs/dagster-instance.md shows is loaded by Dagster as it stands there."""

from __future__ import annotations

import re

import dagster as dg
import pytest
import yaml
from dagster._core.instance.config import dagster_instance_config
from dagster._core.run_coordinator import QueuedRunCoordinator
from dagster._utils.tags import TagConcurrencyLimitsCounter

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.runs.tags import lane_tags
from tests.production.recipes import POOL, SETTINGS, dagster_yaml


@pytest.fixture
def instance(tmp_path):
    """An instance whose dagster.yaml is the page's."""
    (tmp_path / "dagster.yaml").write_text(SETTINGS)
    with dg.DagsterInstance.from_config(str(tmp_path)) as loaded:
        yield loaded


def run(tags):
    return dg.DagsterRun(job_name="orders_job", tags=tags)


def test_dagster_knows_every_setting_of_the_page(instance):
    """The file loads, and what it says is what Dagster then goes by."""
    told = yaml.safe_load(SETTINGS)
    assert instance.run_monitoring_enabled
    assert instance.run_monitoring_poll_interval_seconds == told["run_monitoring"]["poll_interval_seconds"]
    assert instance.run_monitoring_max_runtime_seconds == 0
    assert instance.get_sensor_settings() == told["sensors"]
    assert isinstance(instance.run_coordinator, QueuedRunCoordinator)
    assert instance.get_concurrency_config().run_queue_config.max_concurrent_runs == 50
    assert instance.get_concurrency_config().pool_config.pool_granularity.value == "run"


def test_catching_up_never_holds_a_live_run_back(instance):
    """With every slot for crash lag taken by one group, its live run starts; its next catch-up run waits."""
    limits = instance.get_concurrency_config().run_queue_config.tag_concurrency_limits
    at_work = [run(lane_tags("orders-etl", "catch-up")) for _ in range(10)]
    counter = TagConcurrencyLimitsCounter(limits, at_work)
    assert counter.is_blocked(run(lane_tags("orders-etl", "catch-up")))
    assert not counter.is_blocked(run(lane_tags("orders-etl", "live")))
    assert not counter.is_blocked(run({"dagster/backfill": "one"}))


def test_each_group_has_a_pool_for_its_catch_up_runs_and_none_for_its_live_ones():
    """The pool that the page's command limits is the crash lag asset's."""

    @kl.kafka_asset(topics=["orders"], group_id="orders-etl", table="lake.shop.orders")
    def orders(batch):
        return batch

    [pool] = re.findall(r"^dagster instance concurrency set (\S+) 2$", POOL)
    assert orders.crash_lag.op.pool == pool
    assert orders.live.op.pool is None


def test_both_parts_of_the_file_are_one(tmp_path):
    """Dagster's own schema takes them together; tests/production runs on them."""
    (tmp_path / "dagster.yaml").write_text(dagster_yaml())
    read, _ = dagster_instance_config(str(tmp_path))
    assert read["storage"] == {"postgres": {"postgres_url": {"env": "DAGSTER_PG_URL"}}}
    assert read["concurrency"] == yaml.safe_load(SETTINGS)["concurrency"]


def test_what_is_said_of_run_monitoring_is_so(tmp_path):
    """Off by default, late by default, and blind where Dagster's own launcher started the run."""
    (tmp_path / "dagster.yaml").touch()
    with dg.DagsterInstance.from_config(str(tmp_path)) as untold:
        assert not untold.run_monitoring_enabled
        assert not untold.run_launcher.supports_check_run_worker_health
        assert f"delay of both; {untold.run_monitoring_poll_interval_seconds} by default" in SETTINGS
