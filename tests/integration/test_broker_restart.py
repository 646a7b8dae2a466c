"""Check that a group's observer gets a response again after a broker's restart or a network's loss.

A firewall forgets connections: what is open is silent for good, what is new comes through, and nothing tells
a client so but the want of an answer. On a broker of its own, whose advertised address is a proxy's.
"""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError
from tests.chaos.services import Broker
from tests.timeouts import seconds
from tests.waiting import seconds_until

TP = TopicPartition("orders", 0)
# A client finds its connections dead, one or two, each by a request of 5 s; then it connects anew
EACH = seconds(20.0)


@pytest.fixture(scope="module")
def restarted_broker(tmp_path_factory):
    """A broker behind a network that can forget, with a topic."""
    home = tmp_path_factory.mktemp("restarted_broker")
    (home / "logs").mkdir()
    broker = Broker(home)
    with broker.proxy:
        try:
            broker.start()
            admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.port}", "log_level": 0})
            admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result()
            yield broker
        finally:
            broker.end()


@pytest.fixture
def kafka(restarted_broker):
    """The cluster as seen through that network."""
    return kl.KafkaLivenessResource(bootstrap_servers=f"127.0.0.1:{restarted_broker.proxy.port}")


def seconds_until_answered(ask):
    """How long until a question that is asked again and again has an answer."""

    def is_answered():
        try:
            ask()
        except BrokerUnreachableError:
            return False
        return True

    return seconds_until(is_answered, what="an answer of the broker")


QUESTIONS = {  # how many clients it takes
    "both logs": (3, lambda cluster: cluster.partition_states("etl", [TP])),
    "members": (1, lambda cluster: cluster.group("etl")),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_who_looks_finds_out_by_one_request(restarted_broker, kafka, question):
    """The sensor, a run that looks where to go on, a command.

    Each is answered soon, whatever it asks first.
    """
    clients, ask = QUESTIONS[question]
    seconds_until_answered(lambda: ask(kafka.cluster()))
    restarted_broker.proxy.forget()
    assert seconds_until_answered(lambda: ask(kafka.cluster())) < clients * EACH


def test_a_restart_is_no_refusal_and_no_topic_made_anew(restarted_broker, kafka):
    """A client that met the former leader is refused its epoch, until its next query looks for leaders.

    A partition of which nothing was told has no log end of -1001, above which every commit would be.
    """
    cluster = kafka.cluster()
    before = cluster.log_bounds([TP])
    restarted_broker.end()
    restarted_broker.start()
    assert seconds_until_answered(lambda: cluster.log_bounds([TP])) < EACH
    assert cluster.log_bounds([TP]) == before == {TP: (0, 0)}
