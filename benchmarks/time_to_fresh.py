"""After a crash, how long until the table has fresh data, and does it depend on how much waits to be read?

A run died and so many orders wait on 8 partitions, while new ones go on coming, 50 a second. The clock starts
with the restart (the consumer is made, the query is started; the Spark session is open and warm) and stops
when Iceberg committed the first snapshot with a record that was produced after it: the table's own
`committed_at`, for all alike.

- the live lane with `enable_parallel_rebalance=True`, which jumps to the log end and owes the rest;
- the live lane with the mode off, which goes through what waits in order, 500,000 offsets a batch;
- Structured Streaming from its checkpoint, which stands where the crash was, `maxOffsetsPerTrigger` 500,000.

    python -m benchmarks.time_to_fresh --write benchmarks/RESULTS.md
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click
from rich.console import Console

import kafka_liveness_dagster as kl
from benchmarks.lake import Lake, fill, fresh_at, lake, log_ends, new_topic, to_rows
from benchmarks.left_behind import Trickle, crashed_at
from benchmarks.report import Table, keep, show
from benchmarks.turns import Seconds, interleaved
from benchmarks.ways import Runs, start_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kafka_liveness_dagster.spark.table.table import IcebergTable

TITLE = "Time to fresh data after a crash"
PARTITIONS = 8
BATCH = 500_000
GOAL = 5
JUMPS, IN_ORDER, STREAM = "parallel rebalance on", "parallel rebalance off", "Structured Streaming"
_BEFORE = 8_000  # records that were processed before the crash
_PICTURE = Path("docs/images/time-to-fresh.svg")
_PATIENCE = 600.0


@dataclass(frozen=True)
class Crash:
    """One topic on which a run died: what was processed before, and how much waits.

    Attributes:
        processed: the offsets at which the crash was, by partition.
        checkpoint: of the query that processed the same.
    """

    topic: str
    processed: dict[int, int]
    checkpoint: Path
    backlog: int


@click.command()
@click.option("--backlog", "backlogs", default=(500_000, 1_000_000, 2_000_000, 4_000_000), show_default=True,
              multiple=True, help="Records that wait; may be repeated.")  # fmt: skip
@click.option(
    "--repetitions", default=3, show_default=True, help="Of each way, after one that is not counted."
)
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Keep the section in this file."
)
@click.option(
    "--svg-file", type=click.Path(path_type=Path), help=f"Where to draw.  [default: {_PICTURE} with --write]"
)
def main(backlogs: Sequence[int], repetitions: int, write: Path | None, svg_file: Path | None) -> None:
    """Measure the seconds from a restart to fresh data, with much or little that waits.

    About 6 minutes. Try it with `--backlog 100000 --backlog 200000 --repetitions 1`.
    """
    console = Console()
    with lake() as services:
        with console.status(f"{sum(backlogs):,} records, and checkpoints before them"):
            crashes = [_crash(services, backlog) for backlog in backlogs]
        runs = Runs(services)
        ways: dict[str, Callable[[], float]] = {}
        for crash in crashes:
            ways[named(JUMPS, crash.backlog)] = partial(
                _live, services, runs, crash, enable_parallel_rebalance=True
            )
            ways[named(IN_ORDER, crash.backlog)] = partial(_live, services, runs, crash)
            ways[named(STREAM, crash.backlog)] = partial(_stream, services, crash)
        found = Seconds(interleaved(console, "restarting", ways, repetitions, list(ways)[:3]))
    table = _told(found, backlogs)
    show(console, table)
    if write is not None:
        keep(write, TITLE, "python -m benchmarks.time_to_fresh", [table])
        console.print(f"kept in {write}")
    if svg_file or write:
        _draw(svg_file or _PICTURE, found, sorted(backlogs))


def named(way: str, backlog: int) -> str:
    """What the seconds of a way with a backlog are kept under."""
    return f"{way}, {backlog:,} wait"


def _crash(services: Lake, backlog: int) -> Crash:
    """A few records that a query has processed into its checkpoint, and behind them those that wait."""
    topic, table = new_topic(services.servers, PARTITIONS), services.new_table()
    fill(services.servers, topic, PARTITIONS, _BEFORE)
    processed = log_ends(services.servers, topic, PARTITIONS)
    checkpoint = services.home / f"checkpoint-{topic}"
    start_stream(services, topic, table, BATCH, str(checkpoint), availableNow=True).awaitTermination()
    services.drop_exact(table, _BEFORE)
    fill(services.servers, topic, PARTITIONS, backlog)
    return Crash(topic, processed, checkpoint, backlog)


def _live(services: Lake, runs: Runs, crash: Crash, **settings: Any) -> float:
    name, table = f"fresh_{uuid4().hex[:8]}", services.new_table()
    crashed_at(services.servers, name, crash.topic, crash.processed)
    asset = kl.kafka_asset(
        topics=[crash.topic], group_id=name, name=name, table=table.name, max_poll_records=BATCH,
        max_batch_seconds=600, idle_seconds=0.5, **settings,
    )(to_rows)  # fmt: skip
    ends = log_ends(services.servers, crash.topic, PARTITIONS)
    with Trickle(services.servers, crash.topic, PARTITIONS) as trickle:

        def committed(batch: kl.Batch) -> None:
            if any(part.end > ends[part.partition] for part in batch.ranges):
                trickle.stop()  # the run ends when nothing new comes

        began = runs.live(asset, committed).began
    return _fresh_after(services, table, began, ends)


def _stream(services: Lake, crash: Crash) -> float:
    table = services.new_table()
    checkpoint = shutil.copytree(crash.checkpoint, services.home / f"checkpoint-{table.name}")
    ends = log_ends(services.servers, crash.topic, PARTITIONS)
    with Trickle(services.servers, crash.topic, PARTITIONS):
        began = time.time()
        query = start_stream(services, crash.topic, table, BATCH, str(checkpoint))
        try:
            while not _has_passed(query.lastProgress, ends):
                if (error := query.exception()) is not None:
                    raise error
                if time.time() - began > _PATIENCE:
                    raise TimeoutError(f"no fresh record in {_PATIENCE:.0f} s, {crash.backlog:,} waited")
                time.sleep(0.1)
        finally:
            query.stop()
    return _fresh_after(services, table, began, ends)


def _has_passed(progress: Any, ends: dict[int, int]) -> bool:
    """Whether a query's last micro-batch reached above the log ends of before."""
    told = json.loads(progress["sources"][0]["endOffset"] or "null") if progress else None
    return any(
        int(at) > ends[int(partition)] for topic in (told or {}).values() for partition, at in topic.items()
    )


def _fresh_after(services: Lake, table: IcebergTable, began: float, ends: dict[int, int]) -> float:
    """Seconds until the table had a record from above the log ends of before; it has to be exact."""
    at = fresh_at(services, table, ends)
    assert at is not None  # noqa: S101 - it was waited for
    services.drop_exact(table)
    return at - began


def _told(found: Seconds, backlogs: Sequence[int]) -> Table:
    table = Table(
        f"seconds from the restart to the first fresh record in the table, {PARTITIONS} partitions",
        ("records of backlog", JUMPS, IN_ORDER, STREAM, f"{STREAM} / {JUMPS}"),
    )
    for backlog in backlogs:
        on, off, peer = (named(way, backlog) for way in (JUMPS, IN_ORDER, STREAM))
        table.add(
            f"{backlog:,}", found.spread(on), found.spread(off), found.spread(peer), found.ratios(peer, on)
        )
    most, least = max(backlogs), min(backlogs)
    growth = found.median(named(JUMPS, most)) / found.median(named(JUMPS, least))
    ratio = found.ratio(named(STREAM, most), named(JUMPS, most))
    table.note("medians and spreads. The package and the peer end with Iceberg's commit of a fresh record")
    table.note("the dead member's session is over, as when Dagster starts the next run")
    table.note(f"flat: {growth:.2f} times as long with {most / least:.0f} times the backlog")
    table.note(f"goal: below 1/{GOAL} of Structured Streaming at {most:,}; measured: 1/{ratio:.1f}")
    return table


def _draw(picture: Path, found: Seconds, backlogs: Sequence[int]) -> None:
    from benchmarks import pictures  # noqa: PLC0415 - matplotlib only where something is drawn

    most = backlogs[-1]
    of_peer = f",\n1/{found.ratio(named(STREAM, most), named(JUMPS, most)):.0f} of Structured Streaming"
    rows = {}
    for way, colour in ((STREAM, pictures.PEER), (IN_ORDER, pictures.OTHER), (JUMPS, pictures.OURS)):
        medians = [found.median(named(way, backlog)) for backlog in backlogs]
        rows[f"{way}: {medians[-1]:.1f} s{of_peer if way == JUMPS else ''}"] = (medians, colour)
    title = "From the restart after a crash to the first fresh record in the table"
    pictures.lines(picture, title, [one / 1e6 for one in backlogs], rows, "million records that wait")


if __name__ == "__main__":
    main()
