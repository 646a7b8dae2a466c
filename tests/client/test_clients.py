"""Which clients are kept open, and for how long."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

import pytest

from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.kafka import admin, clients
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError
from kafka_liveness_dagster.kafka.settings import KafkaSettings
from tests.waiting import wait_for

GROUPS = 10


def at_work():
    """How many of librdkafka's clients this process has: each has one main thread."""
    names = []
    for thread in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # it has just ended
            names.append(thread.read_text())
    return names.count("rdk:main\n")


@pytest.fixture
def away():
    """A cluster that refuses every connection."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # taken, and nobody listens
        yield KafkaSettings(f"127.0.0.1:{held.getsockname()[1]}")


def test_a_broker_that_is_away_is_not_besieged(away, monkeypatch):
    """Each reader looks for its coordinator all the time: 60 of them took half a processor, for nothing."""
    monkeypatch.setattr(admin, "REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(clients, "MAX_OPEN_READERS", 1_000)  # none has to go for a new one
    cluster = admin.Cluster(away)
    for group in range(GROUPS):
        clients.commit_reader(f"group-{group}", away)
    most = at_work()
    with pytest.raises(BrokerUnreachableError):
        cluster.commits("group-0", [TopicPartition("orders", 0)])
    wait_for(lambda: at_work() <= most - GROUPS)  # the one that asks whether the broker is back goes on


def test_no_more_readers_are_kept_than_a_process_can_bear(away, monkeypatch):
    """The longest unused goes first; one that is asked for again is the same."""
    monkeypatch.setattr(clients, "MAX_OPEN_READERS", 2)
    clients.close_readers()  # those of other tests
    first, second = clients.commit_reader("a", away), clients.commit_reader("b", away)
    assert clients.commit_reader("a", away) is first
    clients.commit_reader("c", away)
    assert clients.commit_reader("a", away) is first
    assert clients.commit_reader("b", away) is not second
    clients.close_readers(away)
    assert clients.commit_reader("a", away) is not first
    clients.close_readers()
