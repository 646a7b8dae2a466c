"""What the simulation does not complain of is right, as far as it can see: here is how far that is."""

from __future__ import annotations

from inspect import getattr_static

import pytest

from tests.simulation.mistakes import MISTAKES
from tests.simulation.mistakes_of_the_core import OF_THE_CORE
from tests.simulation.product import simulated
from tests.simulation.world import Violation

FOUND_WITHIN = 1_000


@pytest.mark.parametrize(
    "made", [pytest.param(made, id=f"{made.name}: {made.wrong.__name__}") for made in (*MISTAKES, *OF_THE_CORE)]
)
def test_a_mistake_is_found(made, monkeypatch):
    """Each is put in the place of what is right; some history shows it, which is in order without it."""
    right = getattr_static(made.where, made.name)
    of_its_kind = property if isinstance(right, property) else staticmethod
    special = isinstance(right, (staticmethod, classmethod, property))
    with simulated():
        monkeypatch.setattr(made.where, made.name, of_its_kind(made.wrong) if special else made.wrong)
        with pytest.raises(Violation, match=f"seed [0-9]+: .*{made.invariant}"):
            for seed in range(made.first, made.first + FOUND_WITHIN):
                made.histories.of(seed).run()
        monkeypatch.undo()
        made.histories.of(seed).run()
