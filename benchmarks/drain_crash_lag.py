"""How fast is crash lag drained, beside Spark's own reading and writing of the same offsets?

A group owes four million orders in all, on 1, 2 or 4 partitions. One run of the catch-up lane for all of
them, as a backfill of a single run starts it, against one plain Spark pass over the same ranges, split into
as many tasks, with the same options of Spark's Kafka source and the same table properties, in turns on one
warm server. Every table is looked at afterwards: each offset once. The catch-up commit log must say that all
is done.

    python -m benchmarks.drain_crash_lag --write benchmarks/RESULTS.md
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from uuid import uuid4

import click
from rich.console import Console

import kafka_liveness_dagster as kl
from benchmarks.lake import Lake, fill, lake, log_ends, new_topic, to_rows
from benchmarks.left_behind import owes
from benchmarks.report import Table, keep, show
from benchmarks.turns import Seconds, interleaved
from benchmarks.ways import FLIGHTS, Runs, in_words, one_pass
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.partition_keys import partition_key
from kafka_liveness_dagster.spark.source import read_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.spark.table.table import IcebergTable

TITLE = "Draining crash lag"
Batch: TypeAlias = "int | Literal['auto']"
Setting: TypeAlias = tuple[Batch, int]
"""``max_poll_records`` and batches in flight."""
AUTO: Final = "auto"
GOAL = 0.95


@click.command()
@click.option("--records", default=4_000_000, show_default=True, help="Owed in all.")
@click.option(
    "--partitions", "counts", default=(1, 2, 4), show_default=True, multiple=True, help="May be repeated."
)
@click.option(
    "--batch", "batches", default=(500_000,), show_default=True, multiple=True, help="May be repeated."
)
@click.option(
    "--repetitions", default=3, show_default=True, help="Of each way, after one that is not counted."
)
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Keep the section in this file."
)
def main(
    records: int, counts: Sequence[int], batches: Sequence[int], repetitions: int, write: Path | None
) -> None:
    """Measure one catch-up run over what 1, 2 and 4 partitions owe, against one plain Spark pass.

    In batches of the given sizes, in a single batch, and with max_poll_records='auto'. About 6 minutes. Try
    it with `--records 400000 --repetitions 1`.
    """
    console = Console()
    with lake() as services:
        runs, ways = Runs(services), {}
        several: list[Setting] = [(batch, flights) for batch in batches for flights in FLIGHTS]
        settings: list[Setting] = [*several, (records, 1), (AUTO, max(FLIGHTS))]
        for partitions in counts:
            topic = new_topic(services.servers, partitions)
            with console.status(f"producing {records:,} records to {partitions} partitions"):
                fill(services.servers, topic, partitions, records)
            ends = log_ends(services.servers, topic, partitions)
            owed = [OffsetRange(topic, partition, 0, end) for partition, end in ends.items()]
            ways[passed(partitions)] = partial(services.timed, partial(_pass, services, owed), records)
            for batch, flights in settings:
                drain = partial(_drain, runs, owed, batch, flights)
                ways[drained(partitions, batch, flights)] = partial(services.timed, drain, records)
        warm_up = list(ways)[: 1 + len(settings)]
        found = Seconds(interleaved(console, "draining", ways, repetitions, warm_up))
    table = _described(found, records, counts, settings)
    show(console, table)
    if write is not None:
        keep(write, TITLE, "python -m benchmarks.drain_crash_lag", [table])
        console.print(f"kept in {write}")


def passed(partitions: int) -> str:
    """The name of the bound's row."""
    return f"{partitions} pending: plain Spark, one pass"


def drained(partitions: int, batch: Batch, flights: int) -> str:
    """The name of the catch-up lane's row."""
    size = "max_poll_records='auto'" if batch == AUTO else f"{batch:,} a batch"
    return f"{partitions} pending: catch-up run, {size}{in_words(flights)}"


def _pass(services: Lake, owed: Sequence[OffsetRange], table: IcebergTable) -> float:
    """The same reader as ours, so that one long range is read by as many tasks."""
    return one_pass(read_ranges(services.session, owed, services.kafka.settings().spark_options()), table)


def _drain(runs: Runs, owed: Sequence[OffsetRange], batch: Batch, flights: int, table: IcebergTable) -> float:
    services = runs.lake
    name, topic = f"drain_{uuid4().hex[:8]}", owed[0].topic
    owes(services.servers, name, topic, {part.partition: part.end for part in owed})
    asset = kl.kafka_asset(
        topics=[topic], group_id=name, name=name, table=table.name, max_poll_records=batch,
        max_batch_seconds=600, enable_parallel_rebalance=True, batching=kl.Batching(in_flight=flights),
    )(to_rows)  # fmt: skip
    seconds = runs.catch_up(asset, [partition_key(part) for part in owed]).seconds
    cluster = services.kafka.cluster()
    facts = cluster.partition_states(name, cluster.partitions([topic]))
    if left := [str(tp) for tp, seen in facts.items() if seen.outstanding]:
        raise RuntimeError(f"{', '.join(left)} still owes after its run: what was measured is wrong")
    return seconds


def _described(found: Seconds, records: int, counts: Sequence[int], settings: Sequence[Setting]) -> Table:
    columns = (
        "pending partitions, and the way",
        "seconds: median (spread)",
        "records/s",
        "speed relative to one pass",
    )
    table = Table(f"{records:,} pending offsets into Iceberg", columns)
    for partitions in counts:
        bound = passed(partitions)
        for name in (one for one in found if one.startswith(f"{partitions} pending:")):
            cells = (found.spread(name), f"{records / found.median(name):,.0f}", found.ratios(bound, name))
            table.add(name, *cells)
    table.note(
        "ratios compare speeds within a repetition. Every table was exact, and nothing was pending at the end"
    )
    table.note(
        "one run for all partitions of a row, timed from the creation of its consumer to its last commit"
    )
    for batch, flights in settings:
        reached = (found.ratio(passed(n), drained(n, batch, flights)) for n in counts)
        size = batch if batch == AUTO else f"{batch:,}"
        table.note(
            f"goal: {GOAL} of one pass; measured with max_poll_records={size}{in_words(flights)}: "
            + ", ".join(f"{ratio:.2f}" for ratio in reached)
        )
    table.note("each batch has a fixed cost, so few large batches are faster")
    return table


if __name__ == "__main__":
    main()
