"""Settings that hold for a whole Dagster instance, and the runs of both lanes under them."""

from __future__ import annotations

import dagster as dg
import pytest
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.runs.tags import STEP_TAG, budget_of, is_active_in_lane, lane_tags

RETRIES = {"run_retries": {"enabled": True, "max_retries": 3}}


@pytest.fixture
def orders():
    """An asset whose broker does not answer."""

    @kl.kafka_asset(
        topics=["orders"], group_id="orders-etl", table="lake.shop.orders", run_tags={"team": "shop"}
    )
    def orders(batch):
        return batch

    return orders


@pytest.fixture
def defs(orders):
    """A code location with a job of the user's own for the live asset."""
    own = dg.define_asset_job("own", ["orders"], executor_def=dg.in_process_executor)
    resources = {
        "kafka": kl.KafkaLivenessResource(bootstrap_servers="localhost:1"),
        "spark": kl.SparkConnectResource(remote="sc://localhost:1"),
    }
    return dg.Definitions.merge(orders.definitions, dg.Definitions(jobs=[own], resources=resources))


@pytest.mark.parametrize(
    ("job", "partition", "will_retry"),
    [
        pytest.param("orders_job", None, "false", id="the sensor starts the next live run"),
        pytest.param("own", None, "false", id="so does a job of the user's own"),
        pytest.param(
            "orders_crash_lag_job", "p3:orders:70-120", "true", id="crash lag is left to the instance"
        ),
    ],
)
def test_run_retries_start_no_second_live_run(defs, job, partition, will_retry):
    """A retry would be one, next to the run that the sensor starts."""
    with dg.instance_for_test(overrides=RETRIES) as instance:
        if partition:
            instance.add_dynamic_partitions("orders_crash_lag", [partition])
        run = defs.resolve_job_def(job).execute_in_process(
            instance=instance, raise_on_error=False, partition_key=partition
        )
        assert not run.success
        assert instance.get_run_by_id(run.run_id).tags["dagster/will_retry"] == will_retry


def test_a_live_run_passes_the_queue_of_a_backfill(orders, defs):
    """A backfill of the UI has no priority, and neither has what depends on complete hours."""
    queued = [dg.DagsterRun(job_name="aggregate") for _ in range(25)]
    live = dg.DagsterRun(job_name="orders_job", tags=defs.resolve_job_def("orders_job").run_tags)
    crash_lag = dg.DagsterRun(job_name="c", tags=defs.resolve_job_def("orders_crash_lag_job").run_tags)
    found = QueuedRunCoordinatorDaemon(interval_seconds=1)._priority_sort([*queued, crash_lag, live])
    assert (found[0], found[-1]) == (live, crash_lag)


def test_run_tags_may_set_another_priority_but_no_retries():
    """Those of a live run would be a second one."""

    @kl.kafka_asset(
        topics=["clicks"],
        group_id="clicks-etl",
        table="lake.shop.clicks",
        run_tags={"dagster/priority": "-1", "dagster/max_retries": "2"},
    )
    def clicks(batch):
        return batch

    assert clicks.live_job.tags["dagster/priority"] == "-1"
    assert clicks.live_job.tags["dagster/max_retries"] == "0"
    assert clicks.crash_lag_job.tags["dagster/max_retries"] == "2"


@pytest.mark.parametrize(
    ("monitoring", "tags", "seconds"),
    [
        pytest.param({"enabled": True, "max_runtime_seconds": 200}, {}, 200, id="the instance's limit"),
        pytest.param({"enabled": False, "max_runtime_seconds": 200}, {}, 300, id="which nobody enforces"),
        pytest.param(
            {"enabled": True, "max_runtime_seconds": 200}, {"dagster/max_runtime": "100"}, 100, id="the tag"
        ),
        pytest.param(
            {"enabled": True, "max_runtime_seconds": 200}, {"dagster/max_runtime": "0"}, 300, id="no limit"
        ),
    ],
)
def test_batches_end_before_dagster_ends_the_run(monitoring, tags, seconds):
    """By the limit of the run or of the instance, as Dagster's run monitoring reads them."""
    found = []

    @dg.asset
    def asset(context):
        found.append(budget_of(context, argument=None, default=300).seconds)

    with dg.instance_for_test(overrides={"run_monitoring": monitoring}) as instance:
        assert dg.materialize([asset], instance=instance, tags=tags).success
    assert seconds - 60 < found[0] <= seconds


def test_a_run_that_repeats_only_later_steps_is_in_no_lane(defs):
    """Dagster gives it all tags of the run that it repeats from failure."""
    tags = {**lane_tags("orders-etl", "live"), STEP_TAG: "orders"}
    with dg.instance_for_test() as instance:
        job = defs.resolve_job_def("own")
        run = instance.create_run_for_job(job, tags=tags)
        assert is_active_in_lane(run)
        assert not is_active_in_lane(run._replace(step_keys_to_execute=["report"]))
        assert is_active_in_lane(run._replace(step_keys_to_execute=["orders", "report"]))
