"""A live lane at the log end hears of new records at once, and asks for no more than it has to."""

from __future__ import annotations

from unittest.mock import patch

import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.live.data_listener import FETCH_MS
from tests.integration.kafka_group import SECONDS


@pytest.fixture(params=["classic", "consumer"])
def at_rest(world, request):
    """All ten records are processed, and for a while nothing has come."""
    world.grow_to(10)
    world.kafka = kl.KafkaLivenessResource(
        bootstrap_servers=world.kafka.bootstrap_servers, group_protocol=request.param
    )
    with world.live() as consumer:
        world.process(consumer, 10)
        assert consumer.poll(2 * FETCH_MS / 1000) is None
        yield world, consumer


def test_the_broker_says_when_there_is_something(at_rest):
    """The log ends are not read five times a second; the first record ends the wait for the next read."""
    w, consumer = at_rest
    ask, looks = Cluster.log_bounds, []

    def look(cluster, partitions):
        looks.append(ask(cluster, partitions))
        if len(looks) == 3:
            w.grow_to(11)  # while it is waited, right after the look
        return looks[-1]

    with patch.object(Cluster, "log_bounds", look):
        assert consumer.poll(1.0) is None
        assert len(looks) == 2, "at the beginning of the wait and at its end"
        batch = consumer.poll(SECONDS)
        assert w.spans(batch.ranges) == [(10, 11)]
        assert len(looks) == 4, "the one that found nothing, and the one when it was heard"
    consumer.commit(batch)
    assert consumer.poll(0) is None, "what was heard was a sign: nothing is there twice"


def test_what_expires_at_rest_is_missed_by_no_look(at_rest):
    """The log start is looked at with the first record that is new."""
    w, consumer = at_rest
    w.expire(10)
    assert consumer.poll(0.5) is None, "all of it was processed"
    w.grow_to(15)
    w.expire(13)
    with pytest.raises(kl.DataExpiredError, match="10 but its log starts at 13"):
        consumer.poll(SECONDS)
