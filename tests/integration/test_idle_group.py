"""A group's own sensor on a real broker: a tick without a change reads no commits, and misses none."""

from __future__ import annotations

import dagster as dg
import pytest
from confluent_kafka import TopicPartition as KafkaTopicPartition

import kafka_liveness_dagster as kl
from benchmarks.left_behind import commit
from kafka_liveness_dagster.core.idle_groups import SETTLE_SECONDS
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.runs.tags import lane_tags
from tests.integration.kafka_group import NO_SPARK, KafkaGroup
from tests.integration.sensor_ticks import SensorClock, evaluate


class IdleGroup:
    """A group that has processed all records, with its sensor and the sensor's clock."""

    def __init__(self, world, instance, monkeypatch):
        self.world = world
        self.instance = instance
        self.cursor = None
        self.read = []
        self.clock = SensorClock(monkeypatch)
        read_commits = Cluster.commits

        def counted(cluster, group_id, *args, **settings):
            self.read.append(group_id)
            return read_commits(cluster, group_id, *args, **settings)

        monkeypatch.setattr(Cluster, "commits", counted)

        @kl.kafka_asset(
            topics=[world.topic], group_id=world.group, table="lake.shop.idle", enable_parallel_rebalance=True
        )
        def orders(batch):
            return batch

        self.asset = orders
        self.defs = dg.Definitions.merge(
            orders.definitions, dg.Definitions(resources={"kafka": world.kafka, "spark": NO_SPARK})
        )
        world.grow_to(10)
        with world.live() as consumer:
            world.process(consumer, 10)

    def tick(self):
        """Evaluate the sensor once; ``read`` lists the groups whose commits it read."""
        self.read.clear()
        result = evaluate(self.asset.sensor, self.defs, self.instance, self.cursor, self.world.kafka)
        self.cursor = result.cursor
        return result

    def settle(self):
        """Tick until nothing has changed for a while; return the last tick."""
        self.tick()
        self.clock.ahead += SETTLE_SECONDS
        found = self.tick()
        assert self.read, "a change may be in progress until now"
        return found

    def requested(self):
        """The jobs that one tick requests."""
        return [one.job_name for one in self.tick().run_requests]

    def requested_within_a_minute(self):
        """The jobs that the first of the minute's ticks requests that requests one."""
        for _ in range(12):
            self.clock.ahead += 5
            if found := self.requested():
                return found
        return []

    def run(self):
        """A live run in Dagster that has just been requested."""
        job = self.defs.resolve_job_def("orders_job")
        return self.instance.create_run_for_job(job, tags=lane_tags(self.world.group, "live"))


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as found:
        yield found


@pytest.fixture
def idle(services, make_topic, produce, instance, monkeypatch):
    return IdleGroup(KafkaGroup(services, make_topic(4), produce), instance, monkeypatch)


def test_a_tick_without_a_change_reads_no_commits_and_says_the_same(idle):
    settled = idle.settle()
    quiet = idle.tick()
    assert idle.read == []
    assert quiet.skip_message == settled.skip_message
    assert quiet.skip_message.startswith("Nothing to start")
    assert quiet.cursor == settled.cursor
    assert not quiet.asset_events


def test_each_change_is_found_by_the_next_tick(idle):
    idle.settle()
    run = idle.run()
    idle.tick()
    assert idle.read, "a run was added"
    idle.instance.report_run_canceled(run)
    idle.settle()
    idle.world.grow_to(15)
    assert idle.requested() == ["orders_job"]
    with idle.world.live() as consumer:
        idle.world.process(consumer, 15)
    idle.settle()
    idle.tick()
    assert idle.read == []
    with idle.world.live() as consumer:
        assert consumer.poll(0.0) is None
        idle.tick()
        assert idle.read, "a member joined"


def test_the_topics_are_observed_each_minute(idle):
    idle.settle()
    observed = []
    for _ in range(24):
        idle.clock.ahead += 5
        observed.append(bool(idle.tick().asset_events))
    assert sum(observed) == 2


def test_a_commit_of_another_client_is_found_within_a_minute(idle, services):
    """Nothing else changes: no member joins, and no record arrives."""
    idle.settle()
    world = idle.world
    commit(services.bootstrap_servers, world.group, [KafkaTopicPartition(*world.tp, 4, "kcat")])
    assert idle.requested() == []
    assert idle.requested_within_a_minute() == ["orders_job"], "the offsets 4-10 are lag again"


def test_a_topic_recreated_with_as_many_records_is_found_within_a_minute(idle):
    """Its log bounds are what they were, and the broker deleted the group's commits with the old topic."""
    idle.settle()
    idle.world.recreate_topic(10)
    idle.requested()
    assert idle.requested_within_a_minute() == ["orders_job"], "its records are the group's lag"


def test_after_a_tick_that_failed_the_next_one_reads_all(idle, monkeypatch):
    """It may have stored that the freshness is unknown."""
    idle.settle()

    def refused(*_):
        raise kl.BrokerUnreachableError("no broker responded")

    with monkeypatch.context() as failing:
        failing.setattr(Cluster, "group", refused)
        with pytest.raises(kl.BrokerUnreachableError):
            idle.tick()
    idle.tick()
    assert idle.read


@pytest.mark.parametrize("stored", [None, "{}"])
def test_a_cursor_that_was_not_stored_is_not_trusted(idle, stored):
    """The daemon died after the tick, or a person reset the cursor."""
    idle.settle()
    idle.cursor = stored
    assert idle.tick().asset_events, "observed, as at a first tick"
    assert idle.read
