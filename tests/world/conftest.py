"""A group in a state to begin with, on the real broker."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.commit_log import Mark
from tests.timeouts import be_patient
from tests.world.chaos import cases
from tests.world.one_group import World
from tests.world.stories import RealDagster, Story, make_topics


@pytest.fixture(scope="module", autouse=True)
def patient():
    """Give the product time where a busy machine exceeds its limits; a test of such a limit sets it itself."""
    with pytest.MonkeyPatch.context() as patch:
        be_patient(patch.setattr)
        yield


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


@pytest.fixture(scope="session")
def real_dagster(services, tmp_path_factory, produce):
    """One Dagster for all cases of ``chaos``."""
    with RealDagster(services, tmp_path_factory.mktemp("dagster")) as found:
        make_topics(found, produce)
        yield found


@pytest.fixture
def story(real_dagster, warm_spark, rows):
    """The story of a law under a protocol: ``story(law, protocol)``."""

    def of(law, protocol):
        (case,) = (case for case in cases(real_dagster.name) if (case.law.name, case.protocol) == (law, protocol))
        return Story(case, real_dagster, warm_spark, rows)

    return of
