"""One sensor for several groups on a real broker: none disturbs another, and idle ones cost nothing."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from uuid import uuid4

import dagster as dg
import psutil
import pytest
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import kafka_liveness_dagster as kl
from benchmarks.left_behind import commit
from kafka_liveness_dagster.core.idle_groups import SETTLE_SECONDS
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.catch_up.commit_log import CatchUpCommitLog
from kafka_liveness_dagster.kafka.clients import close_readers
from kafka_liveness_dagster.runs.tags import lane_tags
from kafka_liveness_dagster.sensor import shared
from kafka_liveness_dagster.sensor.observation import GroupObservation
from tests.integration.kafka_group import NO_SPARK, KafkaGroup, join
from tests.integration.sensor_ticks import SensorClock, evaluate
from tests.waiting import wait_for


@pytest.fixture
def clock(monkeypatch):
    return SensorClock(monkeypatch)


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as found:
        yield found


@pytest.fixture
def worlds(services, make_topic, produce):
    """Two groups with a topic each."""
    return [KafkaGroup(services, make_topic(4), produce) for _ in range(2)]


class Desk:
    """A Dagster with one sensor for these groups: ticks by hand, runs that only Dagster knows."""

    def __init__(self, worlds, instance, clock, **settings):
        self.instance, self.clock, self.cursor, self.kafka = instance, clock, None, worlds[0].kafka
        self.assets = [self._declare(world, number, settings) for number, world in enumerate(worlds)]
        self.sensor = kl.build_shared_sensor(self.assets, name="groups_sensor")
        self.defs = dg.Definitions.merge(
            *(asset.definitions for asset in self.assets),
            dg.Definitions(
                sensors=[self.sensor], resources={"kafka": self.kafka, "spark": kl.SparkConnectResource()}
            ),
        )

    def _declare(self, world, number, settings):
        @kl.kafka_asset(
            topics=[world.topic],
            group_id=world.group,
            table=f"lake.shop.t{number}",
            name=f"asset_{number}",
            enable_parallel_rebalance=True,
            **settings,
        )
        def declared(batch):
            return batch

        return declared

    def tick(self):
        result = evaluate(self.sensor, self.defs, self.instance, self.cursor, self.kafka)
        for added in result.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(added.partitions_def_name, list(added.partition_keys))
        self.cursor = result.cursor
        return result

    def settle(self):
        """Tick until no group has had a change for a while; return the last tick."""
        self.tick()
        self.clock.ahead += SETTLE_SECONDS
        return self.tick()

    def run(self, number, lane="live"):
        """A run of a group in Dagster, for which no process works."""
        asset = self.assets[number]
        job = self.defs.resolve_job_def(f"asset_{number}{'' if lane == 'live' else '_crash_lag'}_job")
        run = self.instance.create_run_for_job(job, tags=lane_tags(asset.group_id, lane))
        for event in ("PIPELINE_STARTING", "PIPELINE_START"):
            self.instance.report_dagster_event(
                dg.DagsterEvent(event_type_value=event, job_name=run.job_name), run.run_id
            )
        return run


@pytest.fixture
def reads(monkeypatch):
    """The groups whose commits are read, in order."""
    read, seen = Cluster.commits, []

    def counted(self, group_id, *args, **settings):
        seen.append(group_id)
        return read(self, group_id, *args, **settings)

    monkeypatch.setattr(Cluster, "commits", counted)
    return seen


def texts(result, world):
    """The observations of a group in one tick."""
    found = [one for one in result.asset_events if isinstance(one, dg.AssetObservation)]
    return [one.description for one in found if world.topic in str(one.asset_key)]


def test_a_group_that_crashes_disturbs_no_other(worlds, instance, clock):
    """Both get their runs, and the partition of one crash."""
    crashed, other = worlds
    crashed.crash()
    crashed.grow_to(120)
    with crashed.live() as successor:
        join(crashed, successor)
    other.grow_to(10)
    desk = Desk(worlds, instance, clock)
    told = desk.tick()
    assert [one.job_name for one in told.run_requests] == ["asset_1_job"]
    (added,) = told.dynamic_partitions_requests
    assert list(added.partition_keys) == [f"p3:{crashed.topic}:70-120"]
    assert len(texts(told, crashed)) == len(texts(told, other)) == 1
    crashed.grow_to(130)
    desk.run(1)
    told = desk.tick()
    assert [one.job_name for one in told.run_requests] == ["asset_0_job"]
    assert told.run_requests[0].tags["kafka_liveness/group"] == crashed.group


def test_the_error_of_one_group_is_shown_and_the_other_goes_on(worlds, instance, clock, services, capfd):
    """Its topic is deleted: the tick succeeds, names it, and keeps the cursor of the group."""
    gone, other = worlds
    desk = Desk(worlds, instance, clock)
    before = desk.settle()
    assert before.skip_message == "Nothing to start in 2 groups, of which 2 idle"
    admin = AdminClient({"bootstrap.servers": services.bootstrap_servers})
    admin.delete_topics([gone.topic])[gone.topic].result()
    wait_for(lambda: gone.topic not in gone.kafka.cluster().topics())
    other.grow_to(10)
    told = desk.tick()
    assert [one.job_name for one in told.run_requests] == ["asset_1_job"]
    assert f"topic '{gone.topic}' does not exist" in capfd.readouterr().err
    desk.run(1)
    told = desk.tick()
    assert not told.run_requests
    assert f"{gone.group}: its tick failed: TopicNotFoundError: topic '{gone.topic}'" in told.skip_message
    assert f"{other.group}: the live run is in progress" in told.skip_message
    assert gone.group in told.cursor
    admin.create_topics([NewTopic(gone.topic, 1)])[gone.topic].result()
    wait_for(lambda: gone.group not in desk.tick().skip_message)


def test_the_tick_fails_if_every_group_fails(worlds, instance, clock):
    desk = Desk(worlds, instance, clock)
    for asset in worlds:
        asset.topic = "nowhere"
    with pytest.raises(kl.TopicNotFoundError, match="'nowhere' does not exist"):
        Desk(worlds, instance, clock).tick()
    assert desk.cursor is None


def test_a_group_without_a_change_is_not_read(worlds, instance, clock, reads):
    """New records, a new run, a member: each is a change of its group alone."""
    first, second = worlds
    desk = Desk(worlds, instance, clock)
    desk.settle()
    reads.clear()
    assert desk.tick().cursor == desk.cursor
    assert reads == []
    second.grow_to(5)
    assert [one.job_name for one in desk.tick().run_requests] == ["asset_1_job"]
    assert set(reads) == {second.group, f"{second.group}.catch-up"}
    run = desk.run(0)
    reads.clear()
    desk.tick()
    assert first.group in reads
    instance.report_run_failed(run)
    reads.clear()
    desk.tick()
    assert first.group in reads, "it ended since"


def test_a_broker_that_refuses_the_list_of_groups(worlds, instance, clock, monkeypatch, reads):
    """Each group is described instead."""

    def refused(cluster):
        raise kl.KafkaRefusedError("listing the groups")

    monkeypatch.setattr(Cluster, "group_states", refused)
    desk = Desk(worlds, instance, clock)
    assert desk.settle().skip_message == "Nothing to start in 2 groups, of which 2 idle"
    reads.clear()
    desk.tick()
    assert reads == []
    worlds[0].grow_to(3)
    assert [one.job_name for one in desk.tick().run_requests] == ["asset_0_job"]


def test_a_commit_of_another_client_is_found_within_a_minute(worlds, instance, clock, services, reads):
    """Nothing else changes: no member joins, and no record arrives."""
    first, _ = worlds
    first.grow_to(10)
    with first.live() as consumer:
        first.process(consumer, 10)
    desk = Desk(worlds, instance, clock)
    desk.settle()
    commit(services.bootstrap_servers, first.group, [KafkaTopicPartition(*first.tp, 4, "kcat")])
    reads.clear()
    for _ in range(12):
        clock.ahead += 5
        if (told := desk.tick()).run_requests:
            break
    assert [one.job_name for one in told.run_requests] == ["asset_0_job"], "the offsets 4-10 are lag again"
    assert reads.count(first.group) <= 2


def test_a_cursor_that_was_not_stored_is_not_trusted(worlds, instance, clock, reads):
    """The daemon died after the tick, or a person reset the cursor: every group is read again."""
    desk = Desk(worlds, instance, clock)
    desk.settle()
    for stored in (None, "{}"):
        desk.cursor = stored
        reads.clear()
        told = desk.tick()
        assert {world.group for world in worlds} <= set(reads)
        assert told.asset_events, "observed, as at a first tick"


def test_groups_that_are_left_out_by_a_long_tick_come_first_in_the_next_one(
    worlds, instance, clock, monkeypatch
):
    """Dagster ends a tick after 60 s, and would store nothing of it."""
    monkeypatch.setattr(shared, "MAX_TICKS_SECONDS", -1.0)
    for world in worlds:
        world.grow_to(10)
    desk = Desk(worlds, instance, clock)
    requested = [[one.job_name for one in desk.tick().run_requests] for _ in range(3)]
    assert requested == [["asset_0_job"], ["asset_1_job"], ["asset_0_job"]]
    assert {world.group for world in worlds} == set(json.loads(desk.cursor))


def test_a_group_that_fails_does_not_come_first_again(worlds, instance, clock, monkeypatch):
    """Otherwise a few that fail slowly would leave no time for the others."""
    monkeypatch.setattr(shared, "MAX_TICKS_SECONDS", -1.0)
    worlds[0].topic = "nowhere"
    worlds[1].grow_to(10)
    desk = Desk(worlds, instance, clock)
    first = desk.tick()
    assert f"{worlds[1].group}: its tick waits: those of other groups took" in first.skip_message
    assert [one.job_name for one in desk.tick().run_requests] == ["asset_1_job"]


def test_a_request_for_an_unknown_job_loses_no_other_groups_run(worlds, instance, clock):
    """Dagster would refuse the whole tick, again and again."""
    worlds[0].crash()
    worlds[1].grow_to(10)
    sensor = kl.Sensor(on_event=lambda _: dg.RunRequest(job_name="typo"))
    desk = Desk(worlds, instance, clock, sensor=sensor)
    told = desk.tick()
    assert [one.job_name for one in told.run_requests] == ["asset_0_job", "asset_1_job"]
    shown = [one.metadata for one in told.asset_events if isinstance(one, dg.AssetObservation)]
    assert "for job 'typo': wanted one of asset_0_job. Fix: " in str(shown)


def test_a_callback_that_blocks_stops_the_other_groups_once(worlds, instance, clock):
    """Dagster ends the tick and stores nothing of it; the next one leaves the group out."""
    entered, release = Event(), Event()

    def block(_):
        entered.set()
        release.wait(120)

    worlds[0].crash()
    worlds[1].grow_to(10)
    desk = Desk(worlds, instance, clock, sensor=kl.Sensor(on_event=block))
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(evaluate, desk.sensor, desk.defs, instance, None, desk.kafka)
        try:
            assert entered.wait(60)
            clock.ahead += 60
            assert [one.job_name for one in desk.tick().run_requests] == ["asset_1_job"]
            desk.run(1)
            assert f"{worlds[0].group}: its last tick has not ended" in desk.tick().skip_message
        finally:
            release.set()
        lost.result()
    assert [one.job_name for one in desk.tick().run_requests] == ["asset_0_job"]


def test_a_failed_tick_lets_no_group_be_skipped(worlds, instance, clock, reads, monkeypatch):
    """Its checks say that they know nothing, until the group is read again."""
    desk = Desk(worlds, instance, clock)
    desk.settle()

    def unreachable(*_):
        raise kl.BrokerUnreachableError("no broker responds")

    with monkeypatch.context() as away:
        away.setattr(Cluster, "partitions_of_groups", unreachable)
        with pytest.raises(kl.BrokerUnreachableError):
            desk.tick()
    reads.clear()
    desk.tick()
    assert {world.group for world in worlds} <= set(reads)


def test_crash_lag_that_is_done_in_mid_tick_is_not_added_again(worlds, instance, clock, monkeypatch):
    """Its commits were read before it was done, and the partitions after it."""
    world = worlds[0]
    world.crash()
    world.grow_to(120)
    with world.live() as successor:
        join(world, successor)
    desk = Desk(worlds, instance, clock)
    desk.tick()
    key, group_states = f"p3:{world.topic}:70-120", Cluster.group_states

    def finish(cluster):
        log = CatchUpCommitLog(world.kafka.settings(), world.group, "forgive")
        log.write_off({TopicPartition(world.topic, 3): (Span(70, 120),)})
        log.close()
        done = dg.AssetMaterialization(desk.assets[0].settings.crash_lag_key, partition=key)
        instance.report_runless_asset_event(done)
        return group_states(cluster)

    monkeypatch.setattr(Cluster, "group_states", finish)  # read after the commits
    clock.ahead += 61
    assert not desk.tick().dynamic_partitions_requests


@pytest.fixture
def fail_first(worlds, monkeypatch):
    """Let each read of the first group raise this error."""
    read = GroupObservation.read.__func__

    def fail(error):
        def failing(cls, cluster, instance, group_id, *args, **settings):
            if group_id == worlds[0].group:
                raise error
            return read(cls, cluster, instance, group_id, *args, **settings)

        monkeypatch.setattr(GroupObservation, "read", classmethod(failing))

    return fail


def test_an_unexpected_error_of_one_group(worlds, instance, clock, fail_first, capfd):
    """It is logged with its trace, and the other goes on."""
    fail_first(ZeroDivisionError("a defect"))
    worlds[1].grow_to(10)
    assert [one.job_name for one in Desk(worlds, instance, clock).tick().run_requests] == ["asset_1_job"]
    assert "ZeroDivisionError: a defect" in capfd.readouterr().err


def test_an_error_of_dagsters_storage_is_one_of_all_groups(worlds, instance, clock, fail_first):
    fail_first(kl.DagsterStorageError("full"))
    with pytest.raises(kl.DagsterStorageError, match="full"):
        Desk(worlds, instance, clock).tick()


def test_the_page_shows_a_sensor_that_watches_its_assets(services, example, instance):
    """With topics of our own: those of the page are anybody's."""
    shown = example("shared")
    assert [one.name for one in shown.defs.get_repository_def().sensor_defs] == ["groups_sensor"]
    topics = [f"shop_{uuid4().hex[:8]}" for _ in range(2)]
    admin = AdminClient({"bootstrap.servers": services.bootstrap_servers})
    for created in admin.create_topics([NewTopic(topic, 1) for topic in topics]).values():
        created.result()
    sensor = kl.build_shared_sensor([shown.pipeline(topic) for topic in topics], name="our_sensor")
    kafka = kl.KafkaLivenessResource(bootstrap_servers=services.bootstrap_servers)
    with dg.build_sensor_context(instance, resources={"kafka": kafka, "spark": NO_SPARK}) as context:
        told = wait_for(lambda: evaluated(sensor, context))
    assert told.skip_message == "Nothing to start in 2 groups, of which 2 idle"
    assert [f"{topic}-etl" for topic in topics] == list(json.loads(told.cursor))


def evaluated(sensor, context):
    """A tick; None until the broker answers for the topics."""
    told = sensor.evaluate_tick(context)
    return None if "failed" in (told.skip_message or "") else told


def clients():
    """Threads and connections of this process."""
    me = psutil.Process()
    return me.num_threads(), len(me.net_connections(kind="tcp"))


def test_groups_that_wait_cost_no_thread_and_no_connection(services, make_topic, produce, clock):
    """Thirty as few as three."""
    topic, found = make_topic(2), {}
    for count in (3, 30):
        close_readers()
        worlds = [KafkaGroup(services, topic, produce) for _ in range(count)]
        with dg.DagsterInstance.ephemeral() as instance:
            desk = Desk(worlds, instance, clock)
            told = desk.settle()
            assert told.skip_message == f"Nothing to start in {count} groups, of which {count} idle"
            desk.tick()
            found[count] = clients()
            if count > 3:
                wait_for(lambda: all(now <= few for now, few in zip(clients(), found[3], strict=True)))
