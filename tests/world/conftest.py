"""A group in a state to begin with, on the real broker."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.commit_log import Mark
from tests.world.one_group import World


@pytest.fixture
def world(services, make_topic, produce):
    """Nothing was produced and nobody consumed."""
    return World(services, make_topic(4), produce)


@pytest.fixture
def crashed(world):
    """Committed 70, crashed at 100, log end 120 on return."""
    world.crash()
    assert world.first_log()[0] == 70
    assert world.first_log()[1].mark is Mark.RUNNING
    world.grow_to(120)
    return world
