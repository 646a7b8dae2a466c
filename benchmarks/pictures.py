"""Draw seconds as SVG, with the numbers and ratios written where they are, on white in any theme.

The same numbers give the same file: no date in it, and no random names.
"""

from __future__ import annotations

from contextlib import contextmanager
from math import isnan
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

OURS, PEER, OTHER = "#1f6fb4", "#c8641b", "#767676"  # told apart by lightness too
_TEXT = "#222222"
_LOOK: Any = {
    "svg.hashsalt": "kafka-liveness",
    "svg.fonttype": "none",  # text stays text: it can be searched, and read aloud
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": _TEXT,
    "axes.labelcolor": _TEXT,
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
}


def bars(file: Path, title: str, rows: Sequence[tuple[str, float, str, str]]) -> None:
    """One bar a row: name, length, what is written behind it, colour; the first on top."""
    with _drawn(file, (9.0, 0.8 + 0.45 * len(rows))) as axes:
        places = range(len(rows), 0, -1)
        axes.barh(places, [row[1] for row in rows], 0.62, color=[row[3] for row in rows])
        for place, (_, length, said, _) in zip(places, rows, strict=True):
            axes.annotate(said, (length, place), (6, 0), textcoords="offset points", va="center")
        axes.set_yticks(places, [row[0] for row in rows])
        axes.tick_params(length=0)
        axes.set_xticks([])
        axes.set_xlim(0, 1.55 * max(row[1] for row in rows))
        axes.spines["bottom"].set_visible(False)
        axes.set_title(title, loc="left", fontsize=11)


def lines(
    file: Path, title: str, at: Sequence[float], rows: Mapping[str, tuple[Sequence[float], str]], axis: str
) -> None:
    """One line a row, by what is written at its end: seconds over ``at``, and a colour."""
    with _drawn(file, (9.0, 4.2)) as axes:
        ends = _apart(
            [found[-1] for found, _ in rows.values()], 0.08 * max(max(found) for found, _ in rows.values())
        )
        for (said, (found, colour)), end in zip(rows.items(), ends, strict=True):
            axes.plot(at, found, color=colour, marker="o", linewidth=2)
            axes.annotate(said, (at[-1], end), (10, 0), textcoords="offset points", color=colour, va="center")
        axes.set_xlim(0, at[-1] * 1.8)
        axes.set_ylim(0, None)
        axes.set_xticks(at, [f"{one:g}" for one in at])
        axes.spines["bottom"].set_bounds(0, at[-1])
        axes.grid(axis="y", color="#e4e4e4")
        axes.set_axisbelow(True)
        axes.set_xlabel(axis, loc="left")
        axes.set_ylabel("seconds")
        axes.set_title(title, loc="left", fontsize=11)


def multiples(
    file: Path,
    at: Sequence[float],
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], str]]],
    axis: str,
    columns: int = 3,
) -> None:
    """Draw many small pictures, each with a title, lines over ``at``, and an axis from 0.

    Each line has its name and its color. A line alone has no name in its picture.
    """
    rows = -(-len(panels) // columns)
    with _saved(file, (4.2 * columns, 2.2 * rows)) as figure:
        for place, (title, found) in enumerate(panels.items(), 1):
            axes = _plain(figure.add_subplot(rows, columns, place))
            for values, colour in found.values():
                axes.plot(at, values, color=colour, linewidth=1.3)
            most = max((one for values, _ in found.values() for one in values if not isnan(one)), default=1.0)
            axes.set_ylim(0, 1.15 * most)
            axes.set_xlim(0, at[-1])
            axes.grid(axis="y", color="#e4e4e4")
            axes.set_axisbelow(True)
            axes.tick_params(labelsize=9)
            axes.set_title(title, loc="left", fontsize=11)
            if len(found) > 1:
                axes.legend(list(found), loc="best", fontsize=8, frameon=False)
            if place > len(panels) - columns:
                axes.set_xlabel(axis, loc="left", fontsize=9)


@contextmanager
def _drawn(file: Path, inches: tuple[float, float]) -> Iterator[Axes]:
    with _saved(file, inches) as figure:
        yield _plain(figure.add_subplot())


def _plain(axes: Axes) -> Axes:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return axes


@contextmanager
def _saved(file: Path, inches: tuple[float, float]) -> Iterator[Figure]:
    with mpl.rc_context(_LOOK):
        figure = Figure(figsize=inches, facecolor="white", layout="constrained")
        yield figure
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, format="svg", metadata={"Date": None})
        file.write_text("\n".join(line.rstrip() for line in file.read_text().splitlines()) + "\n")


def _apart(ends: Sequence[float], room: float) -> list[float]:
    """Where labels go so that none lies on another: at their values, or as far above as it takes."""
    placed: list[float] = []
    for _, number in sorted((end, number) for number, end in enumerate(ends)):
        placed.append(max(ends[number], placed[-1] + room if placed else ends[number]))
    order = sorted(range(len(ends)), key=lambda number: (ends[number], number))
    return [placed[order.index(number)] for number in range(len(ends))]
