"""Where is a mistake looked for? In which histories, and from which seed on."""

from __future__ import annotations

import functools
import traceback
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.events import OF_REBALANCES, WEIGHTS
from tests.simulation.faults import ENEMIES
from tests.simulation.scenario import Scenario
from tests.simulation.world import Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.simulation.events import Event


@dataclass(frozen=True)
class Histories:
    """Some kind of them.

    Attributes:
        of_rebalances: how many are about rebalances.
        settings, policy: what is the same in all; everything else is the seed's.
        weights: of events that come more often, or less.
    """

    of_rebalances: float = 0.3
    settings: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[Event, float] = field(default_factory=dict)

    def of(self, seed: int) -> Simulation:
        """The one of this seed."""
        if self == Histories():
            return Simulation(seed)
        found = Scenario.random(Random(seed), of_rebalances=self.of_rebalances)  # noqa: S311 - to be repeated
        found = replace(found, policy=replace(found.policy, **self.policy), **self.settings)
        usual = OF_REBALANCES if found.is_about_rebalances else {**WEIGHTS, **ENEMIES}
        return Simulation(seed, found, {**usual, **self.weights})


ANY = Histories()


@dataclass(frozen=True)
class SimulatedMutant:
    """A mistake on purpose.

    Attributes:
        owner, name: in whose place it is put.
        replacement: what is put there.
        invariant: how what breaks is told.
        histories, first_seed: where it is looked for, and from which seed on.
    """

    owner: Any
    name: str
    replacement: Callable[..., Any]
    invariant: str
    histories: Histories = ANY
    first_seed: int = 0


@dataclass
class Trace:
    """The calls of a wrong function in one history.

    Attributes:
        calls: how many there were.
        broken: errors that the wrong function made itself, such as an attribute that the product no longer
            has.
    """

    calls: int = 0
    broken: list[Exception] = field(default_factory=list)

    def wrap(self, wrong: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, with its calls recorded here."""

        @functools.wraps(wrong)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            try:
                return wrong(*args, **kwargs)
            except (AttributeError, NameError, TypeError) as error:
                raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
                if raised_in in (__file__, wrong.__code__.co_filename):
                    self.broken.append(error)
                raise

        return call
