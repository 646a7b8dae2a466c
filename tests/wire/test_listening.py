"""What is fetched while there is nothing to read, and for how long."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.kafka.live import data_listener
from kafka_liveness_dagster.kafka.live.data_listener import LISTENING_LOOK_SECONDS, LOOK_SECONDS, Listening

ENDS = {TopicPartition("orders", 0): 10, TopicPartition("orders", 1): 20}


class Client:
    """What is fetched, from where; it may refuse to."""

    def __init__(self):
        self.at, self.fetched, self.refuses = {}, {}, False

    def seek(self, one):
        if self.refuses:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.at[one.topic, one.partition] = one.offset

    def resume(self, partitions):
        self.fetched |= {(one.topic, one.partition): self.at[one.topic, one.partition] for one in partitions}

    def pause(self, partitions):
        for one in partitions:
            self.fetched.pop((one.topic, one.partition), None)


class Quiet:
    """One that listens, since nothing has come for a second; its client, and its clock."""

    def __init__(self, monkeypatch):
        self.now, self.client = 0.0, Client()
        monkeypatch.setattr(data_listener, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.one = Listening(self.client)
        self.look(0.0, ENDS)
        assert (self.client.fetched, self.one.look_seconds) == ({}, LOOK_SECONDS)
        self.look(1.0, ENDS)
        assert (self.client.fetched, self.one.look_seconds) == (ENDS, LISTENING_LOOK_SECONDS)

    def look(self, now, ends):
        """And poll, as who waits does then."""
        self.now = now
        self.one.looked(ends)
        self.one.begin()


@pytest.fixture
def quiet(monkeypatch):
    return Quiet(monkeypatch)


def test_what_is_heard_is_looked_at_and_listened_to_again_after_a_while(quiet):
    """So a sign that was wrong costs five looks a second for a second, and no more."""
    assert quiet.one.hear(SimpleNamespace(error=lambda: None)) is None
    assert (quiet.client.fetched, quiet.one.has_news) == ({}, True)
    quiet.look(1.1, ENDS)
    assert (quiet.client.fetched, quiet.one.look_seconds, quiet.one.has_news) == ({}, LOOK_SECONDS, False)
    quiet.look(2.1, ENDS)
    assert quiet.client.fetched == ENDS


def test_an_error_is_no_news(quiet):
    """Who polls tells it."""
    assert quiet.one.hear(SimpleNamespace(error=lambda: "refused")) == "refused"
    assert quiet.one.hear(None) is None
    assert (quiet.client.fetched, quiet.one.has_news) == (ENDS, False)


def test_nothing_is_fetched_while_there_is_something_to_read(quiet):
    """Spark reads it."""
    quiet.look(2.0, {})
    assert (quiet.client.fetched, quiet.one.look_seconds) == ({}, LOOK_SECONDS)
    quiet.look(2.5, ENDS)
    assert quiet.client.fetched == {}


def test_who_has_been_given_partitions_looks_soon(quiet):
    """What is there of them is not known yet, and their client has paused them."""
    quiet.one.stop()
    assert quiet.one.look_seconds == LOOK_SECONDS
    quiet.one.begin()
    assert quiet.client.fetched == {}


def test_who_cannot_listen_looks_oftener(quiet):
    """A partition that has just been assigned may not be ready."""
    quiet.client.refuses = True
    quiet.look(2.0, {**ENDS, TopicPartition("orders", 1): 21})
    assert (quiet.client.fetched, quiet.one.look_seconds) == ({}, LOOK_SECONDS)
    quiet.client.refuses = False
    quiet.look(3.0, ENDS)
    assert (quiet.client.fetched, quiet.one.look_seconds) == (ENDS, LISTENING_LOOK_SECONDS)
