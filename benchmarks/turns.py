"""In which order are ways measured, and what is said of their seconds? In turns, so that drift hits all alike.

What else the machine does changes slowly: a ratio is the median of the ratios within each repetition.

>>> found = Seconds({"bound": [2.0, 3.0, 2.0], "ours": [4.0, 3.0, 2.5]})
>>> found.spread("ours"), found.ratio("bound", "ours"), found.ratios("bound", "ours")
('3.00 s (2.50-4.00)', 0.8, '0.80 (0.50-1.00)')
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from rich.console import Console


class Seconds(defaultdict[str, list[float]]):
    """What each way took, one number a repetition."""

    def __init__(self, found: Mapping[str, list[float]] | None = None) -> None:
        super().__init__(list, found or {})

    def median(self, name: str) -> float:
        """The middle one of a way's repetitions."""
        return statistics.median(self[name])

    def spread(self, name: str) -> str:
        """Median, shortest and longest."""
        return f"{self.median(name):.2f} s ({min(self[name]):.2f}-{max(self[name]):.2f})"

    def ratio(self, of: str, to: str) -> float:
        """Seconds of one by seconds of the other: above 1 when the other is faster."""
        return statistics.median(self._ratios(of, to))

    def ratios(self, of: str, to: str) -> str:
        """The same with the smallest and the greatest."""
        found = self._ratios(of, to)
        return f"{self.ratio(of, to):.2f} ({min(found):.2f}-{max(found):.2f})"

    def _ratios(self, of: str, to: str) -> list[float]:
        return [one / other for one, other in zip(self[of], self[to], strict=True)]


def take_turns(
    console: Console,
    repetitions: int,
    ways: Mapping[str, Callable[[], float]],
    *,
    warm_up: Collection[str] | None = None,
) -> Seconds:
    """Measure every way once in each repetition.

    Args:
        console: where the progress is shown.
        repetitions: those that count.
        ways: each gives its seconds; every other repetition goes backwards, so that none always follows the same.
        warm_up: the names of those that go once before, not counted; all unless given.
    """
    first = list(ways if warm_up is None else warm_up)
    found = Seconds()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        steps = progress.add_task("", total=len(first) + repetitions * len(ways))
        for number in range(repetitions + 1):
            for name in first if number == 0 else list(ways)[:: 1 if number % 2 else -1]:
                progress.update(steps, description=f"{f'repetition {number}' if number else 'warm-up'}: {name}")
                seconds = ways[name]()
                if number:
                    found[name].append(seconds)
                progress.advance(steps)
    return found
