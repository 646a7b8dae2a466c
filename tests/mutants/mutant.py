"""A deliberate defect in the product, and the test that has to fail for it.

It only describes defects; ``python -m tests.mutants`` applies them to a copy of the checkout.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One text of the product replaced by another one.

    Attributes:
        name: what the mutated product does wrong, in a few words.
        file: the module, relative to the package: ``kafka/live/assignment.py``.
        old: a text that the module contains exactly once.
        new: the text in its place.
        killed_by: the pytest node that fails: ``tests/core/test_x.py::test_law``.
        invariant: a text that the failure prints, so that no other failure counts.
        env: environment variables of that test, such as ``SIMULATION_SEEDS``.
    """

    name: str
    file: str
    old: str
    new: str
    killed_by: str
    invariant: str
    env: Mapping[str, str] = field(default_factory=dict)
