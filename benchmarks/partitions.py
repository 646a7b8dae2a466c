"""What grows with a topic's partitions? Ten, a hundred, a thousand of them, with as many records in all.

A live run works off a backlog, beside Structured Streaming over the same one, then what little each partition
has. Then a crash: the jump over all partitions, the sensor's looks, the crash lag asset's page, and its
backfill: a hundred partitions, as a person would select them, and all others in one run. Every table is
looked at: each offset once.

    python -m benchmarks.partitions --write benchmarks/RESULTS.md
"""

from __future__ import annotations

import math
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import dagster as dg
import psutil
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import ModuleTarget
from dagster_graphql.test.utils import execute_dagster_graphql
from rich.console import Console

import kafka_liveness_dagster as kl
from benchmarks import partitioned
from benchmarks.lake import fill, lake, log_ends
from benchmarks.left_behind import Trickle, crashed_at
from benchmarks.many_groups import WatchedGroup, make_topic
from benchmarks.neighbor import Neighbor
from benchmarks.report import Table, keep, show
from benchmarks.turns import median_and_range, ratios
from benchmarks.ways import Runs, stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.lake import Lake

TITLE = "A thousand partitions"
PIECE = 100
_BACKLOG, _LITTLE = 200_000, 5  # records: in all, and of each partition
_NEIGHBORS = 20  # batches of another group; the first half warms up
_PAGE = """query Page($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  partitionKeysByDimension { name partitionKeys }
  assetPartitionStatuses { ... on DefaultPartitionStatuses {
    materializedPartitions failedPartitions } } } } }"""
_FEW = "live run, 5 records a partition: seconds"
_FEW_CPU = "the same: CPU seconds of Spark, Kafka and the run"
_ALONE = "a neighbor's batch of 800 records, alone: seconds"
_BESIDE = "the same, while 5 records a partition are read: median"
GOAL_SECONDS = 5.0
_ROWS = {  # in words, and how its numbers are written; a row that must grow with the partitions has a *
    "live run, backlog of 200,000: seconds": ".1f",
    "the same: time relative to Structured Streaming": ".2f",
    "the same: files a batch of 50,000": ".0f",
    _FEW: ".1f",
    _FEW_CPU: ".1f",
    "the same: files *": ".0f",
    _ALONE: ".2f",
    _BESIDE: ".2f",
    "the same: longest": ".2f",
    "skip ahead over all: seconds to the first commit": ".1f",
    "the same: events of the run": ".0f",
    "sensor tick that adds the partitions: seconds *": ".2f",
    "next sensor tick: seconds": ".2f",
    "the page of crash lag partitions: seconds": ".2f",
    "backfill of 100 partitions, one run: seconds": ".1f",
    "the same: events": ".0f",
    "backfill of all others, one run: seconds *": ".1f",
    "the same: in Spark and Kafka *": ".1f",
    "the same: events *": ".0f",
    "the same: event log, MB *": ".2f",
    "the process of all runs, MB": ".0f",
    "Spark, MB": ".0f",
}


@click.command()
@click.option(
    "--partitions", "sizes", default=(10, 100, 1_000), show_default=True, multiple=True, help="Of a topic."
)
@click.option(
    "--repetitions", default=3, show_default=True, help="Of all, after one with ten that is not counted."
)
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Keep the section in this file."
)
def main(sizes: Sequence[int], repetitions: int, write: Path | None) -> None:
    """Measure what a topic of ten to a thousand partitions costs.

    Try it with `--partitions 20 --repetitions 1`.
    """
    console = Console()
    found: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    with lake() as services, console.status("warming up") as status:
        measured(services, min(sizes))
        for repetition in range(repetitions):
            for size in sizes:
                status.update(f"{size:,} partitions, {repetition + 1} of {repetitions}")
                found[size].append(measured(services, size))
    table = _told(found)
    show(console, table)
    if write is not None:
        keep(write, TITLE, "python -m benchmarks.partitions", [table])
        console.print(f"kept in {write}")


def measured(services: Lake, partitions: int) -> dict[str, float]:
    """All numbers of one topic; a table that is not exact is an error."""
    topic, table, runs = (
        make_topic(services.servers, partitions, filled=False),
        services.new_table(),
        Runs(services),
    )
    asset = partitioned.asset_of(topic, table.name)
    fill(services.servers, topic, partitions, _BACKLOG)
    live = runs.live(asset).seconds
    files = [int(row.files) for row in _snapshots(services, table.quoted)]
    peer = services.new_table()
    beside = stream(services, topic, peer, partitioned.BATCH)
    services.drop_exact(peer, _BACKLOG)
    fill(services.servers, topic, partitions, _LITTLE * partitions)
    little = runs.live(asset)
    few = [int(row.files) for row in _snapshots(services, table.quoted)][len(files) :]
    alone, beside_ours = _neighbors(services, runs, asset, topic, partitions)

    crashed_at(services.servers, topic, topic, log_ends(services.servers, topic, partitions))
    fill(services.servers, topic, partitions, _BACKLOG)
    commits: list[float] = []
    with Trickle(services.servers, topic, partitions) as trickle:

        def committed(_: kl.Batch) -> None:
            commits.append(time.time())
            trickle.stop()

        jump = runs.live(asset, committed)
    jump_events, _ = _events(services)
    sensor = WatchedGroup(asset, services.kafka, services.instance, spark=kl.SparkConnectResource())
    looks = [sensor.tick() for _ in range(3)]
    keys = services.instance.get_dynamic_partitions(f"{asset.name}_crash_lag")
    page = _page(services, topic, table.name, asset)
    piece, _ = _backfill(runs, asset, keys[:PIECE])
    piece_events, _ = _events(services)
    rest, inside = _backfill(runs, asset, keys[PIECE:]) if keys[PIECE:] else (float("nan"), float("nan"))
    rest_events, megabytes = _events(services) if keys[PIECE:] else (float("nan"), float("nan"))
    services.drop_exact(table)
    values = (
        *(
            live,
            live / beside,
            statistics.median(files[1:]),
            little.seconds,
            little.cpu_seconds,
            max(few),
            statistics.median(alone),
            statistics.median(beside_ours),
            max(beside_ours),
            commits[0] - jump.began,
            jump_events,
        ),
        *(looks[0], min(looks[1:]), page, piece, piece_events, rest, inside, rest_events, megabytes),
        *(_megabytes(psutil.Process()), _megabytes(services.spark_process)),
    )
    return dict(zip(_ROWS, values, strict=True))


def _neighbors(
    services: Lake, runs: Runs, asset: kl.KafkaAsset, topic: str, partitions: int
) -> tuple[list[float], list[float]]:
    """Seconds of another group's batches: alone, and while the live run reads a few records a partition."""
    neighbor = Neighbor(services)
    alone = [neighbor.batch() for _ in range(_NEIGHBORS)][_NEIGHBORS // 2 :]
    fill(services.servers, topic, partitions, _LITTLE * partitions)
    with neighbor.at_work() as seconds:
        runs.live(asset)
    neighbor.close()
    return alone, seconds


def _backfill(runs: Runs, asset: kl.KafkaAsset, keys: Sequence[str]) -> tuple[float, float]:
    """Seconds of a run over these, and of those from its consumer to its last commit."""
    began = time.perf_counter()
    inside = runs.catch_up(asset, keys).seconds
    return time.perf_counter() - began, inside


def _snapshots(services: Lake, table: str) -> list[Any]:
    files = "coalesce(summary['added-data-files'], '0') AS files"
    found: list[Any] = services.session.sql(
        f"SELECT {files} FROM {table}.snapshots ORDER BY committed_at"
    ).collect()
    return found


def _events(services: Lake) -> tuple[float, float]:
    """How many the last run left, and what they weigh in MB."""
    (run,) = services.instance.get_runs(limit=1)
    told = services.instance.all_logs(run.run_id)
    return len(told), sum(len(dg.serialize_value(one)) for one in told) / 1e6


def _page(services: Lake, topic: str, table: str, asset: kl.KafkaAsset) -> float:
    """Seconds of what Dagster's page of the asset asks its webserver for, the second time."""
    os.environ.update({partitioned.TOPIC: topic, partitioned.TABLE: table})
    where = ModuleTarget(partitioned.__name__, None, str(Path.cwd()), "many")
    key = {"path": [f"{asset.name}_crash_lag"]}
    with WorkspaceProcessContext(services.instance, where) as process:
        execute_dagster_graphql(process.create_request_context(), _PAGE, {"key": key})
        began = time.perf_counter()
        told = execute_dagster_graphql(process.create_request_context(), _PAGE, {"key": key})
        seconds = time.perf_counter() - began
    assert told.data["assetNodeOrError"]["partitionKeysByDimension"][0]["partitionKeys"], told  # noqa: S101
    return seconds


def _megabytes(process: psutil.Process) -> float:
    return float(process.memory_info().rss / 1e6)


def _told(found: dict[int, list[dict[str, float]]]) -> Table:
    sizes = sorted(found)
    columns = ("", *(f"{size:,}" for size in sizes), "growth")
    table = Table(f"{_BACKLOG:,} records in all, by the topic's partitions", columns)
    too_fast = []
    for name, form in _ROWS.items():
        medians = [statistics.median(one[name] for one in found[size]) for size in sizes]
        known = [(size, value) for size, value in zip(sizes, medians, strict=True) if not math.isnan(value)]
        if not known:
            continue
        (least, first), (most, last) = known[0], known[-1]
        growth = last / first if first else 1.0
        too_fast += [name] if growth > most / least else []
        table.add(
            name,
            *("" if math.isnan(value) else f"{value:,{form}}" for value in medians),
            f"{growth:.1f} times",
        )
    table.note(
        f"medians of {len(found[sizes[0]])}. Live runs are timed from their consumer to their last commit, "
        "backfills from the start to the end of the run"
    )
    table.note("every table was exact")
    few, few_cpu, beside, alone = (
        [one[name] for one in found[sizes[-1]]] for name in (_FEW, _FEW_CPU, _BESIDE, _ALONE)
    )
    of_a_core = [one / (psutil.cpu_count() or 1) for one in few_cpu]
    table.note(
        f"goals with {sizes[-1]:,} partitions: 5 records a partition in {GOAL_SECONDS:g} s, measured: "
        f"{median_and_range(few, '.1f', ' s')}; a neighbor's batch at most twice as slow meanwhile, "
        f"measured: {median_and_range(ratios(beside, alone), '.1f')} times, in the same repetition"
    )
    table.note(
        f"5 records a partition take {median_and_range(of_a_core, '.1f', ' s')} of each of the "
        f"{psutil.cpu_count()} cores, the least possible time without any wait. The "
        "run reads these records itself. Iceberg writes a file for each, with a copy of Hadoop's settings. "
        "It compares each manifest of the table with each range of the batch, once for each partition of the "
        "table"
    )
    table.note(
        f"rows that grow faster than the partitions: {', '.join(too_fast) or 'none'}. A row with * must grow"
    )
    return table


if __name__ == "__main__":
    main()
