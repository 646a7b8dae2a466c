"""What the simulation does not complain of is right, as far as it can see: here is how far that is."""

from __future__ import annotations

from inspect import getattr_static

import pytest

from kafka_liveness_dagster.core.commit_metadata import CatchUpCommitMetadata
from tests.simulation.core_mutants import CORE_MUTANTS
from tests.simulation.mutant_histories import Trace
from tests.simulation.seams import simulated
from tests.simulation.shell_mutants import SHELL_MUTANTS
from tests.simulation.world import Violation

FOUND_WITHIN = 1_000


def find(made, monkeypatch):
    """Look for the mistake.

    Return the seed of the first violation, its first line, and the wrong function's calls.
    """
    right = getattr_static(made.owner, made.name)
    of_its_kind = property if isinstance(right, property) else staticmethod
    special = isinstance(right, (staticmethod, classmethod, property))
    for seed in range(made.first_seed, made.first_seed + FOUND_WITHIN):
        trace = Trace()
        wrong = trace.wrap(made.replacement)
        monkeypatch.setattr(made.owner, made.name, of_its_kind(wrong) if special else wrong)
        try:
            made.histories.of(seed).run()
        except Violation as found:
            return seed, str(found).splitlines()[0], trace
        finally:
            monkeypatch.undo()
    return None


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(made, id=f"{made.name}: {made.replacement.__name__}")
        for made in (*SHELL_MUTANTS, *CORE_MUTANTS)
    ],
)
def test_a_mistake_is_found(made, monkeypatch):
    """Each replaces the right function; some history shows it, which is in order without it.

    The wrong function ran, failed by no mistake in its own text, and broke the invariant that the table
    names.
    """
    assert made.invariant
    with simulated():
        found = find(made, monkeypatch)
        assert found is not None
        seed, violation, trace = found
        assert trace.calls
        assert not trace.broken
        assert made.invariant in violation
        made.histories.of(seed).run()


def misspelled(log):
    """Use an attribute that the product does not have."""
    return log.no_such_attribute


def misunderstood(log):
    """Pass an argument that the product does not take."""
    return log.outstanding((), None)


def refused(log):
    """Make the product fail in its own code."""
    return log.outstanding(None)


@pytest.mark.parametrize(
    ("wrong", "is_its_own"), [(misspelled, True), (misunderstood, True), (refused, False)]
)
def test_an_error_of_the_wrong_function_itself_is_recorded(wrong, is_its_own):
    """The mistake in question was not made then. Errors of the product's own code are not recorded."""
    trace = Trace()
    with pytest.raises((AttributeError, TypeError)) as raised:
        trace.wrap(wrong)(CatchUpCommitMetadata())
    assert trace.calls == 1
    assert trace.broken == ([raised.value] if is_its_own else [])
