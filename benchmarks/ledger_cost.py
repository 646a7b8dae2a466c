"""Measure the ledger's cost in the live lane: the lane with and without it, in turns, on one warm server.

With it each write says in its snapshot what it wrote and what the table had, the topic's id is asked for with
each plan and each commit, and the table is looked at at the start and for a hundredth of the time. Without it
the lane writes the rows alone.

    python -m benchmarks.ledger_cost --write benchmarks/RESULTS.md
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch
from uuid import uuid4

import click
from rich.console import Console

import kafka_liveness_dagster as kl
from benchmarks.lake import fill, lake, new_topic, to_rows
from benchmarks.report import Table, keep, show
from benchmarks.turns import Seconds, interleaved
from benchmarks.ways import Runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kafka_liveness_dagster.spark.table.table import IcebergTable

TITLE = "Cost of the ledger"
PARTITIONS = 8
GOAL = 0.98


@click.command()
@click.option("--records", default=4_000_000, show_default=True)
@click.option("--batch", "batches", default=(500_000, 100_000), show_default=True, multiple=True,
              help="Offsets a batch; may be repeated.")  # fmt: skip
@click.option(
    "--repetitions", default=5, show_default=True, help="Of each way, after one that is not counted."
)
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Keep the section in this file."
)
def main(records: int, batches: Sequence[int], repetitions: int, write: Path | None) -> None:
    """Measure the live lane with and without the ledger. About 6 minutes."""
    console = Console()
    with lake() as services:
        topic = new_topic(services.servers, PARTITIONS)
        with console.status(f"producing {records:,} records"):
            fill(services.servers, topic, PARTITIONS, records)
        runs = Runs(services)
        ways = {
            name(batch, told=told): partial(services.timed, partial(_live, runs, topic, batch, told), records)
            for batch in batches
            for told in (True, False)
        }
        found = Seconds(interleaved(console, "writing", ways, repetitions, list(ways)))
    table = _told(found, records, batches)
    show(console, table)
    if write is not None:
        keep(write, TITLE, "python -m benchmarks.ledger_cost", [table])
        console.print(f"kept in {write}")


def name(batch: int, *, told: bool) -> str:
    """The name of a row."""
    return f"live lane, {batch:,} a batch, {'with' if told else 'without'} the ledger"


def _live(runs: Runs, topic: str, batch: int, told: bool, table: IcebergTable) -> float:  # noqa: FBT001 - of a partial
    group = f"live_{uuid4().hex[:8]}"
    asset = kl.kafka_asset(
        topics=[topic], group_id=group, name=group, table=table.name, max_poll_records=batch,
        max_batch_seconds=600, idle_seconds=0.1,
    )(to_rows)  # fmt: skip
    with _ledger(told=told):
        return runs.live(asset).seconds


@contextmanager
def _ledger(*, told: bool) -> Iterator[None]:
    """Leave it out, for once: no setting does."""
    if told:
        yield
        return
    with patch("kafka_liveness_dagster.lanes.pipeline.ledger_for", lambda *_: None):
        yield


def _told(found: Seconds, records: int, batches: Sequence[int]) -> Table:
    table = Table(
        f"{records:,} records, {PARTITIONS} partitions, into Iceberg",
        ("way", "seconds", "speed relative to no ledger"),
    )
    for batch in batches:
        without = name(batch, told=False)
        for way in (name(batch, told=True), without):
            ratio = "" if way == without else found.ratios(without, way)
            table.add(way, found.spread(way), ratio)
        table.note(
            f"goal at {batch:,}: not below {GOAL}; measured: "
            f"{found.ratio(without, name(batch, told=True)):.2f}"
        )
    table.note("ratios compare speeds within a repetition; above 1 is faster. Every table was exact")
    return table


if __name__ == "__main__":
    main()
