"""The group sensor beside real processes.

Each thing that happens to a group is told once, at once, by its name.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from uuid import uuid4

import dagster as dg
import psutil
import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.run_ids import run_id_of_client, run_id_of_instance, short_run_id
from kafka_liveness_dagster.embedded import services as embedded
from kafka_liveness_dagster.embedded import state
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError
from kafka_liveness_dagster.runs.tags import fence_report_of
from tests.integration.dagster_runs import stop
from tests.integration.interrupted_runs import FOR_GOOD, LAST, PROTOCOLS
from tests.integration.kafka_group import NO_SPARK
from tests.waiting import wait_for

# Dagster's GraphQL client
pytestmark = pytest.mark.filterwarnings("ignore:Using variable_values:DeprecationWarning")

EMPTIED, DEALT = "the group has no member any more", "the partitions were reassigned among {} members"


class Sensor:
    """The sensor of an asset, looked with by hand.

    Its cursor goes from tick to tick, as the daemon has it.
    """

    def __init__(self, asset, kafka, instance):
        self.asset, self._kafka, self._instance, self.cursor = asset, kafka, instance, None

    def tick(self):
        """One look; its result."""
        keys = self.asset.settings.resources
        resources = {keys.kafka: self._kafka, keys.spark: NO_SPARK}
        with dg.build_sensor_context(
            self._instance, self.cursor, resources=resources, sensor_name="watch"
        ) as context:
            result = self.asset.sensor.evaluate_tick(context)
        self.cursor = result.cursor
        return result

    def reported_events(self):
        """What two looks tell of the group, nothing when there is no news; the second repeats nothing."""
        first, second = self.observe(), self.observe()
        assert not {*first} & {*second}, "a thing is told once"
        return first + second

    def observe(self):
        """What one look tells of the group."""
        result = self.tick()
        key = dg.AssetKey(["kafka", f"{self.asset.topics[0]}_topic"])
        found = [event.metadata for event in result.asset_events if event.asset_key == key]
        texts = [metadata["events"].value for metadata in found if "events" in metadata]
        return [line.removeprefix("- ") for text in texts for line in text.splitlines()]


def sensor_of(story):
    return Sensor(story.case.asset(), story.kafka, story.instance)


def has_joined(story):
    """Wait until a run is a member and has its mark on what it owns."""
    wait_for(lambda: any(member.partitions for member in story.members()) and story.live_log())


def test_a_run_that_times_out_is_frozen_and_ends_well(story, tmp_path):
    """Joined; left by poll timeout, though its run is at work; back; silent; back; done: each by its name."""
    told = []
    with ThreadPoolExecutor() as both:  # at the same time: most of it is waiting
        for protocol in PROTOCOLS:
            one, gates = story("watched", protocol), tmp_path / protocol
            gates.mkdir()
            sensor = sensor_of(one)
            assert sensor.reported_events() == []
            told.append(
                both.submit(_joined_late_frozen_done, one, sensor, one.launch_live(gates=gates), gates)
            )
        for one in told:
            one.result()


def _joined_late_frozen_done(story, sensor, run, gates):
    name, had = f"run {short_run_id(run)}", f"{story.case.topic}:0"
    has_joined(story)
    assert f"{name} joined with {had}" in sensor.observe()  # by the next one it may have timed out
    wait_for(lambda: not story.members())
    assert sensor.reported_events() == [f"{name} left by poll timeout; it had {had}", EMPTIED]
    assert not story.instance.get_run_by_id(run).is_finished

    (gates / "1").touch()
    wait_for(lambda: any(member.partitions for member in story.members()))
    # It tells Dagster so in another thread, which a busy machine may start later
    wait_for(lambda: fence_report_of(story.instance.get_run_by_id(run)).is_back)
    worker = story.worker(run)
    # As often as not before it planned a batch: its wait for data passes meanwhile
    stop(worker, story.instance)
    wait_for(lambda: not story.members())
    assert sensor.reported_events() == [f"{name} stopped sending heartbeats; it had {had}"]
    (gates / "all").touch()
    worker.resume()
    assert story.end(run) is dg.DagsterRunStatus.SUCCESS, "\n".join(story.log_messages(run))
    told = sensor.reported_events()
    assert told == [f"{name} left gracefully; it had {had}"], "\n".join(story.log_messages(run))


def test_a_killed_run(story, tmp_path):
    """SIGKILL.

    It crashed, and a live run is wanted at once, though the broker may list the member for long.
    """
    story = story("killed_alone", "consumer")
    sensor = sensor_of(story)
    assert sensor.reported_events() == []
    run = story.launch_live(gates=tmp_path)
    has_joined(story)
    sensor.reported_events()
    story.worker(run).kill()
    assert story.end(run) is dg.DagsterRunStatus.FAILURE
    first = sensor.tick()
    crashed = f"run {short_run_id(run)} crashed"
    assert f"- {crashed}; it had {story.case.topic}:0" in first.asset_events[0].metadata["events"].value
    assert [request.tags["kafka_liveness/started_because"] for request in first.run_requests] == [crashed]
    assert crashed not in "".join(sensor.observe()), "once"
    wait_for(lambda: not story.members())  # its session may end between any two looks
    assert crashed not in "".join(sensor.reported_events())


def test_a_canceled_run(story, tmp_path):
    """Terminated in the UI.

    Its partitions are released and so it is told, before Dagster says that the run ended.
    """
    story = story("ended", "classic")
    sensor = sensor_of(story)
    assert sensor.reported_events() == []
    run = story.launch_live(gates=tmp_path)
    has_joined(story)
    sensor.reported_events()
    story.world.ui.terminate_run(run)
    wait_for(lambda: not story.members())
    assert sensor.reported_events() == [
        f"run {short_run_id(run)} left because its run was canceled; it had {story.case.topic}:0",
        EMPTIED,
    ]


def test_a_static_member_that_ends(story):
    """It sends no LeaveGroup: told while the broker lists it; that its session ends is no departure."""
    story = story("static", "classic")
    sensor = sensor_of(story)
    assert sensor.reported_events() == []
    run = story.finish().run_id
    assert story.members(), "its session lasts on"
    told = sensor.reported_events()
    assert (
        f"run {short_run_id(run)} ended, and holds its partitions as a static member until its session "
        "times out; " in told[0]
    )
    wait_for(lambda: not story.members())
    assert sensor.reported_events() == [EMPTIED]


def killed(story, run):
    """Kill a run in the middle of its second batch, which Spark goes on with: it lands when it may."""
    story.is_busy(run)
    story.worker(run).kill()
    assert story.end(run) is dg.DagsterRunStatus.FAILURE
    story.go_on(run)
    return f"run {short_run_id(run)} crashed; it had {story.case.topic}:0"


def test_a_successor_takes_the_place_of_a_run_that_was_killed(story):
    """Twice in turn, within one session of the first.

    Nobody waits for it, it is told who is there, nothing is lost.
    """
    story = story("followed", "classic")
    sensor = sensor_of(story)
    assert sensor.reported_events() == []
    first = story.launch_live(busy=True)
    crashed = killed(story, first)
    assert crashed in "".join(sensor.reported_events())
    began_at = time.monotonic()
    second = story.launch_live(busy=True)
    story.is_busy(second)
    (member,) = story.members()
    assert run_id_of_instance(member.group_instance_id) == first
    assert f"run {short_run_id(second)} joined with {story.case.topic}:0" in "".join(sensor.reported_events())
    crashed = killed(story, second)
    assert crashed in "".join(sensor.reported_events())
    third = story.launch_live()
    assert story.end(third) is dg.DagsterRunStatus.SUCCESS
    assert time.monotonic() - began_at < FOR_GOOD, "it would have waited for the session"
    assert f"Took over the group membership of dead run {short_run_id(second)}" in "".join(
        story.log_messages(third)
    ), "the run that died last, not the first one of this group.instance.id"
    assert story.live_log() == (LAST, LiveCommitMetadata(OwnerState.RELEASED, short_run_id(third)))
    assert story.members() == (), "who is done leaves at once"
    assert story.offsets() == list(range(LAST))


# --- plain consumers ----------------------------------------------------------------------------------------


@contextmanager
def member(kafka, topic, group):
    """A consumer that answers its group on a thread of its own, settled."""
    with kafka.consumer(
        topics=[topic], group_id=group, max_batch_seconds=600, membership=kl.Membership(liveness="progress")
    ) as consumer:
        wait_for(lambda: consumer.poll(0.0) is None and consumer.assignment())
        yield consumer


def watch(topic, group):
    @kl.kafka_asset(topics=[topic], group_id=group, table="lake.shop.orders", name="orders")
    def orders(batch):
        return batch

    return orders


def kafka_at(servers):
    return kl.KafkaLivenessResource(
        bootstrap_servers=servers, session_timeout_seconds=30, heartbeat_interval_seconds=0.5
    )


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as found:
        yield found


def test_others_come_and_go(services, make_topic, instance):
    """A second member, a plain Kafka consumer among them, and each that leaves.

    Named, and none is disturbed.
    """
    topic, group, kafka = make_topic(2), f"etl-{uuid4().hex[:8]}", kafka_at(services.bootstrap_servers)
    sensor = Sensor(watch(topic, group), kafka, instance)
    members = lambda: kafka.cluster().members(group)  # noqa: E731
    with ExitStack() as stack:
        first = stack.enter_context(member(kafka, topic, group))
        assert sensor.reported_events() == []
        with member(kafka, topic, group) as second:
            wait_for(lambda: len(first.assignment()) == len(second.assignment()) == 1)
            told = sensor.reported_events()
            assert told[0] == f"run {second._run_context.short_run_id} joined with {second.assignment()[0]}"
            assert told[1].startswith(DEALT.format(2))
        wait_for(lambda: first.poll(0.0) is None and len(first.assignment()) == 2)
        told = sensor.reported_events()
        assert told[0] == f"run {second._run_context.short_run_id} left for no known reason", (
            "a script, and the other has its marks"
        )
        elsewhere = f"dagster/orders_job/{uuid4()}/orders"
        for client_id, who in {
            "kcat": "external member kcat at 127.0.0.1",
            elsewhere: f"run {run_id_of_client(elsewhere)} of another Dagster instance",
        }.items():
            foreign = Consumer(
                {
                    "bootstrap.servers": services.bootstrap_servers,
                    "group.id": group,
                    "client.id": client_id,
                    "partition.assignment.strategy": "cooperative-sticky",
                }
            )
            foreign.subscribe([topic])
            wait_for(lambda foreign=foreign: foreign.poll(0.1) is None and foreign.assignment())
            wait_for(lambda: len(first.assignment()) == 1 and all(seen.partitions for seen in members()))
            assert sensor.reported_events()[0].startswith(f"{who} joined with ")
            foreign.close()
            wait_for(lambda: first.poll(0.0) is None and len(first.assignment()) == 2)
            assert sensor.reported_events()[0] == f"{who} left"
    assert sensor.reported_events() == [
        f"run {first._run_context.short_run_id} left gracefully; it had {topic}:0, {topic}:1",
        EMPTIED,
    ]


def test_a_broker_that_restarts_is_no_departure(tmp_path, monkeypatch, instance, produce):
    """While it is away a tick fails by name and remembers nothing; once it is back, nobody has left."""
    kafka_alone = {"home": tmp_path, "which": ("kafka",)}
    servers = embedded.ensure_services(**kafka_alone).bootstrap_servers
    try:
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        admin.create_topics([NewTopic("orders", 1)])["orders"].result()
        with ExitStack() as stack:
            members = []
            for protocol in PROTOCOLS:
                kafka = kl.KafkaLivenessResource(
                    bootstrap_servers=servers,
                    group_protocol=protocol,
                    session_timeout_seconds=120 if protocol == "classic" else None,
                )
                members.append(
                    (
                        stack.enter_context(member(kafka, "orders", protocol)),
                        Sensor(watch("orders", protocol), kafka, instance),
                    )
                )
            before = [
                (consumer._session.planner, sensor.reported_events(), sensor.cursor)
                for consumer, sensor in members
            ]
            broker = psutil.Process(state.read_state(tmp_path)["kafka"].pid)
            broker.kill()
            broker.wait(60)
            with pytest.raises(BrokerUnreachableError):
                members[0][1].tick()
            embedded.ensure_services(**kafka_alone)
            produce(servers, "orders", 0, ["late"])
            for (consumer, sensor), (lane, told, cursor) in zip(members, before, strict=True):
                assert (told, sensor.cursor) == ([], cursor)
                assert wait_for(lambda sensor=sensor: _answered(sensor)) == [[]]
                consumer.commit(wait_for(lambda consumer=consumer: consumer.poll(0.0)))
                assert consumer._session.planner is lane, "the same member as before"
                assert sensor.reported_events() == []
    finally:
        embedded.stop_services(tmp_path)


def _answered(sensor):
    """What a look tells, in a list; None while the broker's coordinator is not ready."""
    try:
        return [sensor.reported_events()]
    except KafkaLivenessError:
        return None
