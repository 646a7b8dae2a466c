"""The broker's network falls silent.

A run waits for it as long as a batch may take, and ends by itself soon after.
"""

from __future__ import annotations

import threading
from uuid import uuid4

import dagster as dg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.event_detection import detect_events
from kafka_liveness_dagster.core.events import LeaveReason, MemberLeft
from kafka_liveness_dagster.core.fencing import FenceReason
from kafka_liveness_dagster.kafka.errors import FencedError
from kafka_liveness_dagster.sensor.observation import GroupObservation
from tests.chaos.services import Broker
from tests.integration.partitioned_network import (
    AFTER,
    BUDGET,
    GIVE_UP,
    SIZE,
    PartitionedNetwork,
    check_recovery,
    ends,
)
from tests.timeouts import seconds, set_timeouts
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def broker(services, tmp_path_factory):
    """A broker of its own, which runs reach by a proxy and tests do not."""
    home = tmp_path_factory.mktemp("silent")
    (home / "logs").mkdir()
    found = Broker(home)
    try:
        with found.proxy:
            found.start()
            yield found
    finally:
        found.end()


@pytest.fixture(params=["classic"])
def isolated(services, broker, produce, table, tmp_path, warm_spark, request):  # noqa: PLR0917
    """Four batches of data, and a table without rows."""
    direct, topic = f"127.0.0.1:{broker.port}", f"orders-{table.split('.')[1]}"
    admin = AdminClient({"bootstrap.servers": direct, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    produce(direct, topic, 0, map(str, range(4 * SIZE)))
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    found = PartitionedNetwork(services, topic, table, tmp_path, services.spark_remote)
    found.kafka["bootstrap_servers"] = f"127.0.0.1:{broker.proxy.port}"
    if request.param == "consumer":
        session, heartbeat = (
            found.kafka.pop(f"{name}_seconds") for name in ("session_timeout", "heartbeat_interval")
        )
        set_timeouts(direct, found.group, session, heartbeat)
        found.kafka["group_protocol"] = "consumer"
    found.cluster = kl.KafkaLivenessResource(bootstrap_servers=direct).cluster()
    found.make_table(warm_spark)
    yield found
    broker.proxy.resume()


@pytest.mark.parametrize(
    "isolated", ["consumer", pytest.param("classic", marks=pytest.mark.certify)], indirect=True
)
def test_in_the_middle_of_a_batch(isolated, broker, spark, rows):
    """The batch is written and cannot be committed: librdkafka never comes back from the commit."""
    with isolated.start() as run:
        wait_for(lambda: isolated.is_busy(spark), what="Spark has a row of the run", details=run.shown)
        broker.proxy.fall_silent()
        # The batch may have landed while Spark was asked; then it is the next one
        before = isolated.committed()
        ends(run, error="BrokerUnreachableError", within=BUDGET + AFTER)
    assert isolated.committed() == before
    broker.proxy.resume()
    check_recovery(isolated, rows)


def test_while_the_run_reads_a_small_batch(isolated, broker):
    """The read ends at its limit, or with the fence; the batch can be read when the network is back.

    In a backlog the third batch was fetched with the second, unless Spark reads the next one.
    """
    kafka = kl.KafkaLivenessResource(**isolated.kafka)

    def read(batch, limit=GIVE_UP):
        return consumer.records_within(batch, max_bytes=10_000, seconds=limit)

    with kafka.consumer(
        topics=[isolated.topic], group_id=isolated.group, max_poll_records=SIZE, max_batch_seconds=seconds(6)
    ) as consumer:
        first, second, third = (consumer.poll(GIVE_UP) for _ in range(3))
        assert [len(read(batch)) for batch in (first, second)] == [SIZE, SIZE]
        broker.proxy.fall_silent()
        assert len(read(third)) == SIZE
        consumer.release_records()
        assert read(third, limit=0.2) is None
        with pytest.raises(FencedError, match="process timeout"):
            read(first)
        broker.proxy.resume()
        again = consumer.poll(GIVE_UP)
        assert again.ranges == first.ranges
        assert [int(record.value) for record in read(again)] == list(range(SIZE))
        consumer.commit(again)


def test_while_it_waits_for_data(isolated, broker, rows):
    """Nothing is under way: the next look does not come back."""
    with isolated.start(slow=False, idle_seconds=60) as run:
        wait_for(lambda: isolated.committed() == 4 * SIZE, what="all is committed", details=run.shown)
        broker.proxy.fall_silent()
        ends(run, error="BrokerUnreachableError", within=BUDGET + AFTER)
    broker.proxy.resume()
    check_recovery(isolated, rows)


def test_who_was_cut_off_is_not_told_that_it_was_silent(broker, produce):
    """Its session passed without a broker: that is no paused machine, and says nothing of other members."""
    direct, topic = f"127.0.0.1:{broker.port}", f"orders-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": direct, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    produce(direct, topic, 0, map(str, range(SIZE)))
    timeouts = {"session_timeout_seconds": 6, "heartbeat_interval_seconds": 0.5}
    kafka = kl.KafkaLivenessResource(bootstrap_servers=f"127.0.0.1:{broker.proxy.port}", **timeouts)
    # The group is answered beside the batch: who is cut off is so at once
    serving = kl.Membership(liveness="progress")
    with kafka.consumer(
        topics=[topic], group_id=topic, max_batch_seconds=GIVE_UP, membership=serving
    ) as consumer:
        batch, cut = consumer.poll(GIVE_UP), threading.Event()
        consumer.on_fence(cut.set)
        broker.end()
        try:
            wait_for(cut.is_set, what="the session has passed")
        finally:
            broker.start()
        with pytest.raises(
            FencedError, match=r"no broker answered this member.*session.*Fix: .*brokers"
        ) as cut_off:
            consumer.commit(batch)
        assert cut_off.value.reason is FenceReason.BROKERS_UNAVAILABLE
        assert consumer.poll(GIVE_UP).ranges == batch.ranges


def test_a_run_that_a_signal_ended_did_not_crash(isolated):
    """A host that shuts down.

    Another run has its partitions before the sensor looks, and Dagster says *failed*.
    """
    with (
        dg.DagsterInstance.from_config(str(isolated.home)) as instance,
        isolated.start(pauses_in="transform") as run,
    ):

        def seen():
            look = GroupObservation.read(isolated.cluster, instance, isolated.group, [isolated.topic])
            return look.snapshot

        run.log_messages("transform")
        _, memory = detect_events(None, seen(), 0.0, GIVE_UP)
        run.interrupt()
        run.end()
        with kl.KafkaLivenessResource(**isolated.kafka).consumer(
            topics=[isolated.topic], group_id=isolated.group
        ) as other:
            assert other.poll(GIVE_UP).ranges
            events, _ = detect_events(memory, seen(), 5.0, GIVE_UP)
    left = [(event.run, event.reason) for event in events if isinstance(event, MemberLeft)]
    assert left == [(run.run_id[:8], LeaveReason.INTERRUPTED)]


def test_before_it_joins(isolated, broker, rows):
    """It is connected to, and says nothing."""
    broker.proxy.fall_silent()
    with isolated.start(pauses_in="start") as run:
        run.log_messages("start")
        run.go_on()
        ends(run, error="BrokerUnreachableError", within=AFTER)
    broker.proxy.resume()
    check_recovery(isolated, rows)
