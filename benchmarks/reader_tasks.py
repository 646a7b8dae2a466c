"""Measure how long Spark takes to read a Kafka partition, by the number of partitions of its topic.

Plain Spark, the same records each time.

Each partition in a batch is a task of Spark's Kafka source with a consumer of its own, and each consumer asks
for all of the topic. Spark keeps 64 of them for the tasks that come next.

    python -m benchmarks.reader_tasks --write benchmarks/RESULTS.md
"""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import click
from rich.console import Console

from benchmarks.lake import fill, lake
from benchmarks.many_groups import make_topic
from benchmarks.report import Table, keep, show
from benchmarks.turns import interleaved, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.lake import Lake

_SIZES = (100, 1_000, 10_000)
_TASKS = 60  # fewer than Spark keeps readers
_RECORDS = 6_000
_ANEW, _KEPT = "{:,}, readers that connect", "{:,}, readers that were kept"


@click.command()
@click.option("--partitions", "sizes", default=_SIZES, show_default=True, multiple=True, help="Of a topic.")
@click.option(
    "--repetitions", default=5, show_default=True, help="Of each, interleaved, after one not counted."
)
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Keep the section in this file."
)
def main(sizes: Sequence[int], repetitions: int, write: Path | None) -> None:
    """Read sixty partitions of topics with a hundred to ten thousand: milliseconds a task.

    Takes some two minutes.
    """
    console = Console()
    with lake() as services:
        ways = {}
        for size in sizes:
            with console.status(f"a topic of {size:,} partitions"):
                topic = make_topic(services.servers, size, filled=False)
                fill(services.servers, topic, _TASKS, _RECORDS)
            ways[_ANEW.format(size)] = partial(_anew, services, topic)
            ways[_KEPT.format(size)] = partial(_kept, services, topic)
        found = interleaved(console, f"{_TASKS} partitions", ways, repetitions, list(ways))
    table = Table(
        f"milliseconds a task, {_TASKS} tasks of {_RECORDS // _TASKS} records, by the topic's partitions",
        ("", "reader connects", "quartiles", "reader was kept", "quartiles"),
    )
    for size in sizes:
        cells: list[str] = []
        for name in (_ANEW, _KEPT):
            cells += spread([1_000 * seconds / _TASKS for seconds in found[name.format(size)]], ".1f")
        table.add(f"{size:,}", *cells)
    table.note(
        f"medians of {repetitions} and quartiles: time of the whole query / its tasks; several run at a time"
    )
    show(console, table)
    if write is not None:
        keep(write, "A reader for each partition", "python -m benchmarks.reader_tasks", [table])
        console.print(f"kept in {write}")


def _anew(services: Lake, topic: str) -> float:
    """Seconds of a read by readers that nobody has used before."""
    return _seconds(services, topic, uuid4().hex)


def _kept(services: Lake, topic: str) -> float:
    """Seconds of a read by readers that Spark has kept from the one before."""
    _seconds(services, topic, "-kept")
    return _seconds(services, topic, "-kept")


def _seconds(services: Lake, topic: str, reader: str) -> float:
    asked = {
        "assign": {topic: list(range(_TASKS))},
        "startingOffsets": {topic: dict.fromkeys(map(str, range(_TASKS)), 0)},
        "endingOffsets": {topic: dict.fromkeys(map(str, range(_TASKS)), _RECORDS // _TASKS)},
    }
    options = {**services.options(reader), **{name: json.dumps(value) for name, value in asked.items()}}
    frame = services.session.read.format("kafka").options(**options).load()
    began = time.perf_counter()
    rows = frame.count()
    seconds = time.perf_counter() - began
    if rows != _RECORDS:
        raise RuntimeError(f"{rows:,} records were read instead of {_RECORDS:,}: what was measured is wrong")
    return seconds


if __name__ == "__main__":
    main()
