"""Measure ways in turns, so that drift affects all alike, and summarize their numbers.

What else the machine does changes slowly: a ratio is the median of the ratios within each repetition.

>>> found = Seconds({"bound": [2.0, 3.0, 2.0], "ours": [4.0, 3.0, 2.5]})
>>> found.spread("ours"), found.ratio("bound", "ours"), found.ratios("bound", "ours")
('3.00 s (2.50-4.00)', 0.8, '0.80 (0.50-1.00)')
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

T = TypeVar("T")


class Seconds(dict[str, list[float]]):
    """What each way took, one number a repetition."""

    def median(self, name: str) -> float:
        """The middle one of a way's repetitions."""
        return statistics.median(self[name])

    def spread(self, name: str) -> str:
        """Median, shortest and longest."""
        return median_and_range(self[name], unit=" s")

    def ratio(self, of: str, to: str) -> float:
        """Seconds of one by seconds of the other: above 1 when the other is faster."""
        return statistics.median(ratios(self[of], self[to]))

    def ratios(self, of: str, to: str) -> str:
        """The same with the smallest and the greatest."""
        return median_and_range(ratios(self[of], self[to]))


def interleaved(
    console: Console,
    title: str,
    ways: Mapping[str, Callable[[], T]],
    repetitions: int,
    warm_up: Sequence[str] = (),
) -> dict[str, list[T]]:
    """What each way gave, one after the other in every repetition; every other repetition goes backwards.

    Args:
        console: where the progress is shown.
        title: of the progress.
        ways: what is measured, by name.
        repetitions: those that count.
        warm_up: the names of those that go once before, not counted.
    """
    found: dict[str, list[T]] = {name: [] for name in ways}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=len(warm_up) + repetitions * len(ways))
        for number in range(repetitions + 1):
            for name in warm_up if number == 0 else list(ways)[:: 1 if number % 2 else -1]:
                progress.update(
                    task, description=f"{title}, {f'repetition {number}' if number else 'warm-up'}: {name}"
                )
                given = ways[name]()
                if number:
                    found[name].append(given)
                progress.advance(task)
    return found


def median_and_range(values: Sequence[float], form: str = ".2f", unit: str = "") -> str:
    """Return the median, the least and the most as text.

    >>> median_and_range([3.0, 1.0, 2.5], unit=" s")
    '2.50 s (1.00-3.00)'
    """
    return f"{statistics.median(values):{form}}{unit} ({min(values):{form}}-{max(values):{form}})"


def spread(values: Sequence[float], form: str) -> tuple[str, str]:
    """Median and quartiles as text."""
    low, middle, high = quartiles(values)
    return format(middle, form), f"{low:{form}} - {high:{form}}"


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The middle half and its middle; of a single value, that value."""
    if len(values) == 1:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratio(values: Sequence[float], peer: Sequence[float]) -> float:
    """The median of each repetition's own ratio."""
    return statistics.median(ratios(values, peer))


def ratios(values: Sequence[float], peer: Sequence[float]) -> list[float]:
    """Each repetition's own ratio."""
    return [own / other for own, other in zip(values, peer, strict=True)]
