"""Jobs that have other assets beside those of one group.

What follows the live asset, and what cannot go with it.
"""

from __future__ import annotations

import dagster as dg
import pytest

import kafka_liveness_dagster as kl
from tests.integration.test_sensor_requests import NO_SPARK
from tests.spark_addresses import spark_at

ORDERS = dg.AssetKey("orders")


class MixedJobs:
    """One topic, its asset with a sink, and jobs that select more than its live asset."""

    def __init__(self, services, topic, produce, instance):
        self.topic, self.instance, self.services = topic, instance, services
        self.produce = lambda *values: produce(services.bootstrap_servers, topic, 0, values)
        kafka = kl.KafkaLivenessResource(bootstrap_servers=services.bootstrap_servers)
        spark = spark_at(services.spark_remote)
        self.resources = {"kafka": kafka, "spark": spark}
        self.batches = []

        @kl.kafka_asset(
            topics=[topic],
            group_id=f"etl-{topic}",
            sink=lambda batch: self.batches.append(batch.ranges),
            idle_seconds=0.5,
            enable_parallel_rebalance=True,
            sensor=kl.Sensor(fail_ghost_runs=True),
        )
        def orders(batch):
            return batch

        self.asset = orders

    def run(self, *others, selection=None, **launch):
        """Run a job of the live asset and these."""
        given = dg.Definitions(
            assets=[one for one in others if isinstance(one, dg.AssetsDefinition) and not is_check(one)],
            asset_checks=[one for one in others if is_check(one)],
            jobs=[dg.define_asset_job("mixed", selection or ["orders", *names(others)])],
            resources=self.resources,
            executor=dg.in_process_executor,
        )
        self.defs = dg.Definitions.merge(self.asset.definitions, given)
        job = self.defs.resolve_job_def("mixed")
        return job.execute_in_process(instance=self.instance, raise_on_error=False, **launch)

    def tick(self):
        """One tick of the group's sensor."""
        context = dg.build_sensor_context(
            self.instance,
            definitions=self.defs,
            resources={**self.resources, "spark": NO_SPARK},
            sensor_name="orders_sensor",
        )
        with context:
            return self.asset.sensor.evaluate_tick(context)


def is_check(one):
    return isinstance(one, dg.AssetChecksDefinition)


def names(others):
    return [key.to_user_string() for one in others if not is_check(one) for key in one.keys]


@pytest.fixture
def jobs(services, make_topic, produce):
    with dg.instance_for_test() as instance:
        yield MixedJobs(services, make_topic(1), produce, instance)


def test_what_depends_on_the_live_asset_runs_in_the_job_of_a_run_that_wrote(jobs):
    """All is materialized in mid-run and nothing is new at the end; without a batch the steps are skipped."""

    @dg.asset(deps=[ORDERS])
    def report() -> None:
        """Of the table."""

    @dg.asset_check(asset=ORDERS)
    def plausible():
        return dg.AssetCheckResult(passed=True)

    jobs.produce("a", "b")
    first = jobs.run(report, plausible)
    assert first.success
    assert len(jobs.batches) == 1
    assert "plausible" in {one.check_name for one in first.get_asset_check_evaluations()}
    assert len(first.asset_materializations_for_node("report")) == 1
    told = [one.metadata["offsets"].value for one in first.asset_materializations_for_node("orders")]
    assert told == [2, 0], "the second one is what the steps depend on"
    again = jobs.run(report, plausible)
    assert again.success
    assert again.asset_materializations_for_node("orders") == []
    assert again.asset_materializations_for_node("report") == []
    said = [entry.user_message for entry in jobs.instance.all_logs(again.run_id)]
    assert [
        line
        for line in said
        if line.startswith("No batch was committed: steps that depend on orders are skipped")
    ]
    of_backfill = jobs.run(report, tags={"dagster/backfill": "all"})
    [empty] = of_backfill.asset_materializations_for_node("orders")
    assert empty.metadata["offsets"].value == 0, "the backfill waits for it"


def test_steps_that_follow_keep_no_place_in_the_live_lane(jobs):
    """The sensor starts the next live run during these steps, for hours if need be; the run is no ghost."""
    seen = []

    @dg.asset(deps=[ORDERS])
    def report() -> None:
        jobs.produce("c")
        asked = jobs.tick().run_requests
        [run] = jobs.instance.get_runs()
        seen.append(([one.job_name for one in asked], run.status))

    jobs.produce("a", "b")
    assert jobs.run(report).success
    assert seen == [(["orders_job"], dg.DagsterRunStatus.STARTED)]


def test_both_lanes_without_a_partition_are_refused_before_anything_is_read(jobs):
    """Else the live lane would run to its end, and then the run would fail in Dagster's words."""
    jobs.produce("a", "b")
    run = jobs.run(selection=["orders", "orders_crash_lag"])
    assert not run.success
    [live] = [event for event in run.get_step_failure_events() if event.step_key == "orders"]
    assert "PartitionRequiredError" in live.step_failure_data.error.to_string()
    assert jobs.batches == []
