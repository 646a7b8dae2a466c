"""How is a thing measured beside its peer? All ways once in every repetition, so that drift of the machine hits all."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

T = TypeVar("T")


def interleaved(
    console: Console, title: str, ways: Mapping[str, Callable[[], T]], repetitions: int
) -> dict[str, list[T]]:
    """What each way gave, one after the other in every repetition; every other repetition goes backwards."""
    found: dict[str, list[T]] = {name: [] for name in ways}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=repetitions * len(ways))
        for number in range(repetitions):
            for name in ways if number % 2 == 0 else [*ways][::-1]:
                progress.update(task, description=f"{title}: {name}")
                found[name].append(ways[name]())
                progress.advance(task)
    return found


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
    return statistics.median(own / other for own, other in zip(values, peer, strict=True))
