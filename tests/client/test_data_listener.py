"""What is fetched while there is nothing to read, and for how long."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.kafka.live import data_listener
from kafka_liveness_dagster.kafka.live.data_listener import (
    LISTENING_REFRESH_SECONDS,
    REFRESH_SECONDS,
    DataListener,
)

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


class IdleListener:
    """One that listens, since nothing has come for a second; its client, and its clock."""

    def __init__(self, monkeypatch):
        self.now, self.client = 0.0, Client()
        monkeypatch.setattr(data_listener, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.one = DataListener(self.client)
        self.look(0.0, ENDS)
        assert (self.client.fetched, self.one.refresh_seconds) == ({}, REFRESH_SECONDS)
        self.look(1.0, ENDS)
        assert (self.client.fetched, self.one.refresh_seconds) == (ENDS, LISTENING_REFRESH_SECONDS)

    def look(self, now, ends):
        """And poll, as who waits does then."""
        self.now = now
        self.one.on_caught_up(ends)
        self.one.apply()


@pytest.fixture
def quiet(monkeypatch):
    return IdleListener(monkeypatch)


def test_what_is_heard_is_looked_at_and_listened_to_again_after_a_while(quiet):
    """So a sign that was wrong costs five looks a second for a second, and no more."""
    assert quiet.one.on_message(SimpleNamespace(error=lambda: None)) is None
    assert (quiet.client.fetched, quiet.one.has_new_data) == ({}, True)
    quiet.look(1.1, ENDS)
    assert (quiet.client.fetched, quiet.one.refresh_seconds, quiet.one.has_new_data) == (
        {},
        REFRESH_SECONDS,
        False,
    )
    quiet.look(2.1, ENDS)
    assert quiet.client.fetched == ENDS


def test_an_error_is_no_news(quiet):
    """Who polls tells it."""
    assert quiet.one.on_message(SimpleNamespace(error=lambda: "refused")) == "refused"
    assert quiet.one.on_message(None) is None
    assert (quiet.client.fetched, quiet.one.has_new_data) == (ENDS, False)


def test_nothing_is_fetched_while_there_is_something_to_read(quiet):
    """Spark reads it."""
    quiet.look(2.0, {})
    assert (quiet.client.fetched, quiet.one.refresh_seconds) == ({}, REFRESH_SECONDS)
    quiet.look(2.5, ENDS)
    assert quiet.client.fetched == {}


def test_who_has_been_given_partitions_looks_soon(quiet):
    """What is there of them is not known yet, and their client has paused them."""
    quiet.one.stop()
    assert quiet.one.refresh_seconds == REFRESH_SECONDS
    quiet.one.apply()
    assert quiet.client.fetched == {}


def test_who_cannot_listen_looks_oftener(quiet):
    """A partition that has just been assigned may not be ready."""
    quiet.client.refuses = True
    quiet.look(2.0, {**ENDS, TopicPartition("orders", 1): 21})
    assert (quiet.client.fetched, quiet.one.refresh_seconds) == ({}, REFRESH_SECONDS)
    quiet.client.refuses = False
    quiet.look(3.0, ENDS)
    assert (quiet.client.fetched, quiet.one.refresh_seconds) == (ENDS, LISTENING_REFRESH_SECONDS)
