"""What the simulation does not complain of is right, as far as it can see: here is how far that is."""

from __future__ import annotations

from dataclasses import replace
from inspect import getattr_static
from random import Random

import pytest

from tests.simulation.mistakes import ALL, MISTAKES
from tests.simulation.mistakes_of_the_core import OF_THE_CORE
from tests.simulation.product import simulated
from tests.simulation.scenario import Scenario
from tests.simulation.world import Simulation, Violation

FOUND_WITHIN = 1_000
EVERY = [*MISTAKES, *((*mistake, ALL, 0) for mistake in OF_THE_CORE)]


def about(settings, seed):
    """The scenario of a seed; None for whatever it gives."""
    if settings is None:
        return None
    return replace(Scenario.random(Random(seed), of_rebalances=1.0), **settings)  # noqa: S311 - to be repeated


@pytest.mark.parametrize("made", [pytest.param(made, id=f"{made[1]}: {made[2].__name__}") for made in EVERY])
def test_a_mistake_is_found(made, monkeypatch):
    """Each is put in the place of what is right; some history shows it."""
    where, name, mistake, invariant, settings, first = made
    right = getattr_static(where, name)
    of_its_kind = property if isinstance(right, property) else staticmethod
    special = isinstance(right, (staticmethod, classmethod, property))
    with simulated(), pytest.raises(Violation, match=f"seed [0-9]+: .*{invariant}"):
        monkeypatch.setattr(where, name, of_its_kind(mistake) if special else mistake)
        for seed in range(first, first + FOUND_WITHIN):
            Simulation(seed, about(settings, seed)).run()
    monkeypatch.undo()
