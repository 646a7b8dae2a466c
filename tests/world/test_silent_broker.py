"""The broker's network falls silent: a run waits for it as long as a batch may take, and ends by itself soon after."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import kafka_liveness_dagster as kl
from tests.chaos.services import Broker
from tests.timeouts import set_timeouts
from tests.waiting import wait_for
from tests.world.lonely import AFTER, BUDGET, SIZE, Lonely, ends, goes_on


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
def lonely(services, broker, produce, table, tmp_path, warm_spark, request):  # noqa: PLR0917
    """Four batches of data, and a table without rows."""
    direct, topic = f"127.0.0.1:{broker.port}", f"orders-{table.split('.')[1]}"
    admin = AdminClient({"bootstrap.servers": direct, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    produce(direct, topic, 0, map(str, range(4 * SIZE)))
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    found = Lonely(services, topic, table, tmp_path, services.spark_remote)
    found.kafka["bootstrap_servers"] = f"127.0.0.1:{broker.proxy.port}"
    if request.param == "consumer":
        session, heartbeat = (found.kafka.pop(f"{name}_seconds") for name in ("session_timeout", "heartbeat_interval"))
        set_timeouts(direct, found.group, session, heartbeat)
        found.kafka["group_protocol"] = "consumer"
    found.cluster = kl.KafkaLivenessResource(bootstrap_servers=direct).cluster()
    found.make_table(warm_spark)
    yield found
    broker.proxy.talk()


@pytest.mark.parametrize("lonely", ["consumer", pytest.param("classic", marks=pytest.mark.certify)], indirect=True)
def test_in_the_middle_of_a_batch(lonely, broker, spark, rows):
    """The batch is written and cannot be committed: librdkafka never comes back from the commit."""
    with lonely.start() as run:
        wait_for(lambda: lonely.is_busy(spark), what="Spark has reached a row of the run", details=run.shown)
        broker.proxy.fall_silent()
        before = lonely.committed()  # the batch may have landed while Spark was asked; then it is the next one
        ends(run, error="BrokerUnreachableError", within=BUDGET + AFTER)
    assert lonely.committed() == before
    broker.proxy.talk()
    goes_on(lonely, rows)


def test_while_it_waits_for_data(lonely, broker, rows):
    """Nothing is under way: the next look does not come back."""
    with lonely.start(slow=False, idle_seconds=60) as run:
        wait_for(lambda: lonely.committed() == 4 * SIZE, what="all is committed", details=run.shown)
        broker.proxy.fall_silent()
        ends(run, error="BrokerUnreachableError", within=BUDGET + AFTER)
    broker.proxy.talk()
    goes_on(lonely, rows)


def test_before_it_joins(lonely, broker, rows):
    """It is connected to, and says nothing."""
    broker.proxy.fall_silent()
    with lonely.start(pauses_in="start") as run:
        run.said("start")
        run.go_on()
        ends(run, error="BrokerUnreachableError", within=AFTER)
    broker.proxy.talk()
    goes_on(lonely, rows)
