"""Measure whether planning stays linear, and how much it costs beyond sorting.

Runs the planner, the commit codec and the resume decision, without Kafka.

Partitions of ten topics in random order, each with a lag of its own, one range owed and one done after it, as
between a crash and its backfill. The bounds are loops that nobody can do without: for the planner one that
sorts the partitions and builds as many tuples as it builds ranges, for the codec ``json`` on the same
content.

    python -m benchmarks.planner --write benchmarks/RESULTS.md
"""

from __future__ import annotations

import gc
import json
import random
import time
import tracemalloc
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from rich.console import Console

from benchmarks.report import Table, keep, show
from benchmarks.turns import interleaved, quartiles, ratio, spread
from kafka_liveness_dagster.core.batch_planning import plan_ranges
from kafka_liveness_dagster.core.commit_metadata import CatchUpCommitMetadata, LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.core.partition_state import PartitionState
from kafka_liveness_dagster.core.resume import ResumePolicy, decide_resume

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (10, 1_000, 10_000, 100_000)
GOAL_SECONDS = 1.0
_ENOUGH = 10_000  # partitions a measurement: few of them are planned often
_TOPICS = 10
_MOST_LAG = 2_000
_SHARE = 500  # offsets a partition in a batch: about half of all partitions have more
_COMMITTED = 200
BOUND, JSON = "bound: sort, build tuples", "bound: json, encode and decode"


class Scene(NamedTuple):
    """Partitions, and what is known of each."""

    pending: dict[TopicPartition, tuple[Span, ...]]
    facts: dict[TopicPartition, PartitionState]
    last: TopicPartition


@click.command()
@click.option("--repetitions", default=5, show_default=True, help="Of each way and size, interleaved.")
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Keep the section in this file."
)
def main(repetitions: int, write: Path | None) -> None:
    """Plan, encode, decode and resume 10 to 100,000 partitions: time, memory, and whether both are linear.

    Nothing is started and nobody is asked: it needs neither Kafka nor Java, and takes about a minute.
    """
    console = Console()
    seconds: dict[int, dict[str, list[float]]] = {}
    peaks: dict[int, dict[str, int]] = {}
    for size in SIZES:
        ways = _ways(_scene(size))
        timed = {name: partial(_timed, way, max(1, _ENOUGH // size)) for name, way in ways.items()}
        seconds[size] = interleaved(console, f"{size:,} partitions", timed, repetitions)
        with console.status(f"memory of {size:,} partitions"):
            peaks[size] = {name: _peak(way) for name, way in ways.items()}
    tables = [_times(seconds), _growth(seconds, peaks)]
    for table in tables:
        show(console, table)
    if write is not None:
        keep(write, "Planner and commit codec", "python -m benchmarks.planner", tables)
        console.print(f"kept in {write}")


def _scene(size: int) -> Scene:
    dice = random.Random(7)  # noqa: S311 - test data
    partitions = [TopicPartition(f"orders-{number % _TOPICS}", number // _TOPICS) for number in range(size)]
    dice.shuffle(partitions)
    pending: dict[TopicPartition, tuple[Span, ...]] = {}
    facts: dict[TopicPartition, PartitionState] = {}
    for tp in partitions:
        end = _COMMITTED + dice.randrange(_MOST_LAG)
        pending[tp] = (Span(_COMMITTED, end),)
        mark = LiveCommitMetadata(OwnerState.RUNNING, "0badcafe", (Span(70, 120), Span(140, 190)))
        facts[tp] = PartitionState(
            _COMMITTED, mark, 0, log_end=end, catch_up_log=CatchUpCommitMetadata(100, (Span(150, 160),))
        )
    return Scene(pending, facts, dice.choice(partitions))


def _ways(scene: Scene) -> dict[str, Callable[[], object]]:
    """What is measured, each over all partitions once."""
    pending, bound = scene.pending, _SHARE * len(scene.pending)
    marks = [facts.live_metadata for facts in scene.facts.values() if facts.live_metadata]
    logs = [facts.catch_up_log for facts in scene.facts.values()]
    policy = ResumePolicy(enable_parallel_rebalance=True)
    return {
        "plan, fair": lambda: plan_ranges(pending, bound, scene.last),
        "plan, greedy": lambda: plan_ranges(pending, bound, scene.last, greedy=True),
        BOUND: lambda: tuple((*tp, *spans[0]) for tp, spans in sorted(pending.items())),
        "live commit log, encode and decode": lambda: [
            LiveCommitMetadata.decode(mark.encode()) for mark in marks
        ],
        "catch-up commit log, encode and decode": lambda: [
            CatchUpCommitMetadata.decode(log.watermark, log.encode()) for log in logs
        ],
        JSON: lambda: [
            json.loads(json.dumps((mark.owner_state.value, mark.run_id, mark.pending))) for mark in marks
        ],
        "resume after a crash": lambda: [
            decide_resume(tp, facts, policy) for tp, facts in scene.facts.items()
        ],
    }


def _timed(way: Callable[[], object], times: int) -> float:
    """Processor seconds of one call, for nothing here waits; what it gives is freed within them."""
    gc.collect()
    began = time.process_time()
    for _ in range(times):
        way()
    return (time.process_time() - began) / times


def _peak(way: Callable[[], object]) -> int:
    """The most bytes that one call needed at once, its answer among them."""
    gc.collect()
    tracemalloc.start()
    way()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def _times(seconds: dict[int, dict[str, list[float]]]) -> Table:
    """All of the largest size, beside their bounds."""
    most = max(seconds)
    found = seconds[most]
    table = Table(f"{most:,} partitions", ("", "median", "quartiles", "time relative to its bound"))
    peers = {
        "plan, fair": BOUND,
        "plan, greedy": BOUND,
        "live commit log, encode and decode": JSON,
        "catch-up commit log, encode and decode": JSON,
    }
    for name, runs in found.items():
        median, quarters = spread([1000 * one for one in runs], ",.0f")
        beside = f"{ratio(runs, found[peers[name]]):.1f}" if name in peers else ""
        table.add(name, f"{median} ms", f"{quarters} ms", beside)
    slowest = max(quartiles(runs)[1] for name, runs in found.items() if name.startswith("plan"))
    table.note(
        f"verdict: planned in {slowest:.2f} s, {'below' if slowest < GOAL_SECONDS else 'NOT below'} the "
        f"goal of {GOAL_SECONDS:g} s; {len(next(iter(found.values())))} repetitions, interleaved"
    )
    return table


def _growth(seconds: dict[int, dict[str, list[float]]], peaks: dict[int, dict[str, int]]) -> Table:
    """What one partition costs, by how many there are."""
    columns = [f"{size:,}" for size in seconds]
    table = Table(
        "µs a partition (peak bytes a partition), by the number of partitions", ("", *columns, "growth")
    )
    thousand = SIZES[1]
    grown: dict[str, float] = {}
    for name in seconds[thousand]:
        each = {size: 1e6 * quartiles(seconds[size][name])[1] / size for size in seconds}
        grown[name] = each[max(each)] / each[thousand]
        cells = (f"{cost:.2f} ({peaks[size][name] / size:,.0f})" for size, cost in each.items())
        table.add(name, *cells, f"{grown[name]:.1f}")
    table.note(
        f"growth: from {thousand:,} to {max(seconds):,} partitions. The bound itself grows "
        f"{grown[BOUND]:.1f} times, because data in random order leaves the processor's caches"
    )
    linear = max(grown[name] for name in grown if name.startswith("plan")) <= grown[BOUND]
    table.note(f"verdict: the planner grows {'no faster' if linear else 'FASTER'} than its bound")
    return table


if __name__ == "__main__":
    main()
