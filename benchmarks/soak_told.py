"""Summarize a soak's samples: the values at the beginning and at the end, the growth, and a picture.

>>> samples = [{"at": 6.0 * n, "even": 5.0, "grows": 10.0 + n} for n in range(100)]
>>> of(samples, "even") == (5.0, 5.0, 5.0, 1.0, 0.0)
True
>>> of(samples, "grows")._replace(ratio=0)
Course(first=14.5, begin=24.5, end=104.5, ratio=0, growth=600.0)
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.report import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.soak_samples import Sample, Soak

_HOUR = 3600
_FLAT = 1.1
_YOUNG_SECONDS, _FEWEST = 60.0, 3
_ROWS = {
    "commit latency": ("s", 2),
    "freshness": ("s", 2),
    "between commits": ("s", 2),
    "seconds behind": ("s", 1),
    "maintenance": ("s", 1),
    "snapshots": ("", 0),
    "manifests": ("", 0),
    "data files": ("", 0),
    "metadata.json": ("kB", 0),
    "all metadata": ("MB", 2),
    "data of old snapshots": ("MB", 1),
    "worker memory": ("MB", 0),
    "worker threads": ("", 0),
    "worker files": ("", 0),
    "spark memory": ("MB", 0),
    "spark old generation": ("MB", 0),
    "spark metaspace": ("MB", 0),
    "spark threads": ("", 0),
    "spark files": ("", 0),
    "code server memory": ("MB", 0),
    "code server threads": ("", 0),
    "code server files": ("", 0),
    "daemon memory": ("MB", 0),
    "daemon threads": ("", 0),
    "daemon files": ("", 0),
    "kafka memory": ("MB", 0),
    "events": ("", 0),
    "events of assets": ("", 0),
    "event log": ("MB", 2),
    "ticks": ("", 0),
    "all of Dagster": ("MB", 2),
}
_DATA = {"data": ("MB", 1), "rows": ("", 0)}  # grows by what is produced


class Course(NamedTuple):
    """One number over a soak.

    Medians of its first, second and last tenth, the last by the second, growth an hour.
    """

    first: float
    begin: float
    end: float
    ratio: float
    growth: float


def of(samples: Sequence[Sample], name: str) -> Course:
    """How a number went.

    The first tenth, in which caches fill and Java compiles, is none of ratio and growth.
    """
    length = samples[-1]["at"]
    known = [(one["at"], one[name]) for one in samples if name in one]

    def tenth(number: int) -> float:
        within = [value for at, value in known if number <= 10 * at / length <= number + 1]
        return statistics.median(within or [value for _, value in known])

    first, begin, end = tenth(0), tenth(1), tenth(9)
    later = [(at, value) for at, value in known if 10 * at >= length]
    growth = statistics.linear_regression(*zip(*later, strict=True)).slope * _HOUR if len(later) > 1 else 0.0
    return Course(first, begin, end, end / begin if begin else 1.0, growth)


def in_runs(samples: Sequence[Sample], name: str) -> list[float]:
    """Growth an hour of a number within each worker's life, without its first minute."""
    lives: list[list[tuple[float, float]]] = []
    age = math.inf
    for one in (sample for sample in samples if name in sample):
        if one["worker age"] < age:
            lives.append([])
        if (age := one["worker age"]) > _YOUNG_SECONDS:
            lives[-1].append((one["at"], one[name]))
    long_ones = [life for life in lives if len(life) >= _FEWEST]
    return [statistics.linear_regression(*zip(*life, strict=True)).slope * _HOUR for life in long_ones]


def told(samples: Sequence[Sample], soak: Soak, minutes: float, rate: int) -> Table:
    """The table of all numbers."""
    commits = sum(one["commits"] for one in samples)
    table = Table(
        f"{commits:,.0f} commits in {minutes:g} minutes, {len(soak.live_runs)} live runs, {rate:,} records "
        "a second",
        ("", "first tenth", "second tenth", "last tenth", "last / second tenth", "growth per hour"),
    )
    known = {name for one in samples for name in one}
    grown = []
    for name, (unit, digits) in {**_ROWS, **_DATA}.items():
        if name not in known:
            continue
        course = of(samples, name)
        first, begin, end = (f"{value:,.{digits}f} {unit}".strip() for value in course[:3])
        table.add(
            name, first, begin, end, f"{course.ratio:.2f}", f"{course.growth:+,.{digits}f} {unit}".strip()
        )
        if name in _ROWS and course.ratio > _FLAT:
            grown.append(name)
    return _noted(table, samples, soak, grown)


def _noted(table: Table, samples: Sequence[Sample], soak: Soak, grown: Sequence[str]) -> Table:
    latency, waited = (
        max(one.get(f"{name}, longest", 0.0) for one in samples) for name in ("commit latency", "freshness")
    )
    table.note(
        "medians of samples, one each 15 s. Commit latency: from the youngest record of a batch to its "
        f"snapshot, at most {latency:.1f} s. Freshness: from its oldest record, at most {waited:.1f} s, "
        "between two live runs"
    )
    if growth := in_runs(samples, "worker memory"):
        table.note(
            f"memory of one worker, after its first minute: {statistics.median(growth):+.1f} MB an hour"
        )
    table.note(
        "data and rows grow with the produced records. Ended runs are deleted, except the newest of each job"
    )
    table.note(f"the table was exact: {soak.feed.produced:,} records")
    for why in soak.failed.values() or ["none"]:
        table.note(f"failed runs: {why}")
    table.note(
        f"flat (at most {_FLAT:g} times): " + (f"all rows, except {', '.join(grown)}" if grown else "all")
    )
    table.note("![all numbers over the minutes](../docs/images/soak.svg)")
    return table


def draw(picture: Path, samples: Sequence[Sample]) -> None:
    """Each number over the minutes."""
    from benchmarks import pictures  # noqa: PLC0415 - matplotlib only where something is drawn
    from benchmarks.pictures import OTHER, OURS, PEER  # noqa: PLC0415

    panels = {
        "commit latency, s": {"commit latency": OURS},
        "freshness, s": {"freshness": OURS},
        "metadata.json, kB": {"metadata.json": OURS},
        "data files": {"data files": OURS},
        "snapshots, manifests": {"snapshots": OURS, "manifests": PEER},
        "all metadata, MB": {"all metadata": OURS},
        "memory of the run worker, MB": {"worker memory": OURS},
        "memory of Spark, MB": {"spark memory": OURS, "spark old generation": PEER, "spark metaspace": OTHER},
        "memory of Dagster, MB": {"code server memory": OURS, "daemon memory": PEER},
        "threads": {"worker threads": OURS, "spark threads": PEER, "code server threads": OTHER},
        "events of runs, of assets": {"events": OURS, "events of assets": PEER},
        "Dagster's storage, MB": {"all of Dagster": OURS, "event log": PEER},
    }
    at = [one["at"] / 60 for one in samples]
    drawn = {
        title: {
            name: ([one.get(name, float("nan")) for one in samples], colour) for name, colour in names.items()
        }
        for title, names in panels.items()
    }
    pictures.multiples(picture, at, drawn, "minutes")
