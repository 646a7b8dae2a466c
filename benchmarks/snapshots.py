"""Measure the cost of a table that streams can read: ``append`` and ``overwrite`` snapshots, in turns.

An append asks Spark whether there are rows, and merges them; see decision 6. Two batches are in flight, as by
default.

    python -m benchmarks.snapshots --write benchmarks/RESULTS.md
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import click
from rich.console import Console

import kafka_liveness_dagster as kl
from benchmarks.lake import fill, lake, new_topic, to_rows
from benchmarks.report import Table, keep, show
from benchmarks.turns import Seconds, interleaved
from benchmarks.ways import Runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.spark.table.table import IcebergTable

TITLE = "Snapshots"
PARTITIONS = 8


@click.command()
@click.option("--records", default=200_000, show_default=True)
@click.option("--batch", "batches", default=(100_000, 25_000), show_default=True, multiple=True,
              help="Offsets a batch; may be repeated.")  # fmt: skip
@click.option(
    "--repetitions", default=3, show_default=True, help="Of each way, after one that is not counted."
)
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Keep the section in this file."
)
def main(records: int, batches: Sequence[int], repetitions: int, write: Path | None) -> None:
    """Measure the live lane with both kinds of snapshots. About 3 minutes."""
    console = Console()
    with lake() as services:
        topic = new_topic(services.servers, PARTITIONS)
        with console.status(f"producing {records:,} records"):
            fill(services.servers, topic, PARTITIONS, records)
        runs = Runs(services)
        ways = {
            name(batch, kind): partial(services.timed, partial(_live, runs, topic, batch, kind), records)
            for batch in batches
            for kind in ("append", "overwrite")
        }
        found = Seconds(interleaved(console, "writing", ways, repetitions, list(ways)))
    table = _told(found, records, batches)
    show(console, table)
    if write is not None:
        keep(write, TITLE, "python -m benchmarks.snapshots", [table])
        console.print(f"kept in {write}")


def name(batch: int, kind: str) -> str:
    """The name of a row."""
    return f"live lane, {batch:,} a batch, {kind}"


def _live(runs: Runs, topic: str, batch: int, kind: str, table: IcebergTable) -> float:
    group = f"live_{uuid4().hex[:8]}"
    asset = kl.kafka_asset(
        topics=[topic], group_id=group, name=group, table=table.name, max_poll_records=batch,
        max_batch_seconds=600, idle_seconds=0.1,
        iceberg=kl.Iceberg(snapshots=kind),  # type: ignore[arg-type]  # one of the two words
    )(to_rows)  # fmt: skip
    return runs.live(asset).seconds


def _told(found: Seconds, records: int, batches: Sequence[int]) -> Table:
    table = Table(
        f"{records:,} records, {PARTITIONS} partitions, into Iceberg",
        ("way", "seconds", "speed relative to overwrite"),
    )
    for batch in batches:
        overwrite, append = name(batch, "overwrite"), name(batch, "append")
        table.add(overwrite, found.spread(overwrite), "")
        table.add(append, found.spread(append), found.ratios(overwrite, append))
    table.note("ratios compare speeds within a repetition; above 1 is faster. Every table was exact")
    return table


if __name__ == "__main__":
    main()
