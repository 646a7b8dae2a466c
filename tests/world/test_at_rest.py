"""A live lane at the log end asks for no more than it has to, and misses nothing by that."""

from __future__ import annotations

from unittest.mock import patch

import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.kafka.admin import Cluster
from tests.world.one_group import SECONDS


@pytest.fixture
def at_rest(world):
    """All ten records are processed, and a look has found nothing new."""
    world.grow_to(10)
    with world.live() as consumer:
        world.process(consumer, 10)
        assert consumer.poll(0) is None
        yield world, consumer


def test_at_rest_it_asks_for_the_log_ends_alone(at_rest):
    """Five looks a second, each of one request instead of two, until there is something to plan."""
    w, consumer = at_rest
    ends, bounds = [], []
    with (
        patch.object(Cluster, "log_ends", autospec=True, side_effect=_told(Cluster.log_ends, ends)),
        patch.object(Cluster, "log_bounds", autospec=True, side_effect=_told(Cluster.log_bounds, bounds)),
    ):
        assert consumer.poll(1.0) is None
        assert (len(ends) > 1, len(bounds)) == (True, 0)
        w.grow_to(12)
        batch = consumer.poll(SECONDS)
        assert w.spans(batch.ranges) == [(10, 12)]
        assert len(bounds) == 1
        ends.clear()
        assert consumer.poll(0) is None
        assert (len(ends), len(bounds)) == (0, 2), "while there is work a look is one round trip"


def test_what_expires_at_rest_is_missed_by_no_look(at_rest):
    """The log start is asked for again with the first record that is new."""
    w, consumer = at_rest
    w.expire(10)
    assert consumer.poll(0.5) is None, "all of it was processed"
    w.grow_to(15)
    w.expire(13)
    with pytest.raises(kl.DataExpiredError, match="10 but its log starts at 13"):
        consumer.poll(SECONDS)


def _told(asked, calls):
    """The same, and each call is kept."""

    def call(*args):
        calls.append(args)
        return asked(*args)

    return call
