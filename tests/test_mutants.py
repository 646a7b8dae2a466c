"""The table of mutants fits the code: each defect can be applied, and its test exists.

``make mutants`` runs them.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants import ALL
from tests.mutants.__main__ import mutated

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_applied(mutant):
    """The old text is in its module exactly once, the mutated module parses, and the named test exists."""
    source = (ROOT / "kafka_liveness_dagster" / mutant.file).read_text(encoding="utf-8")
    assert source.count(mutant.old) == 1
    ast.parse(mutated(source, mutant, Path("reached")))
    file, *names = mutant.killed_by.split("::")
    test = names[-1].partition("[")[0] if names else "def test_"
    assert test in (ROOT / file).read_text(encoding="utf-8")


def test_mutants_have_names_of_their_own():
    """A row of the table is found by its name."""
    assert len({mutant.name for mutant in ALL}) == len(ALL)
