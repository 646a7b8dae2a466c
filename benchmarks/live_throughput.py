"""How fast does the live lane bring records from Kafka into an Iceberg table, in batches that are each exact?

Four million orders of about 100 bytes on 8 partitions. The bound is plain Spark, which reads and writes them
all in one pass, and plans once. The peers:

- Structured Streaming with `trigger(availableNow=True)` and `maxOffsetsPerTrigger` of the batch size;
- Flink in one JVM, which reads while it writes, with exactly-once checkpoints. Flink commits by time: in the
  warm-up its checkpoint interval is tuned until a commit has about as many records as a batch;
- Kafka Connect, a standalone worker with Iceberg's sink, whose commit interval is tuned in the same way. It
  may make fewer and larger commits than wanted, so the table has the commits of each way.

All have the same options of Kafka's consumer, the same catalog and the same table properties. They take turns
in every repetition, each in a warm JVM. After each the table is compared with the topic: every offset once.
CPU seconds are those of a way's own processes: Spark's server and this process, or the peer's. The broker's
are left out.

    python -m benchmarks.live_throughput --write benchmarks/RESULTS.md
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias
from uuid import uuid4

import click
import psutil
from rich.console import Console

import kafka_liveness_dagster as kl
from benchmarks.lake import Lake, cpu_seconds, fill, lake, log_ends, new_topic, to_rows
from benchmarks.peers import Pace
from benchmarks.peers.connect import SINK_VERSION, TASKS, connect
from benchmarks.peers.connect import VERSION as CONNECT_VERSION
from benchmarks.peers.flink import VERSION as FLINK_VERSION
from benchmarks.peers.flink import flink
from benchmarks.report import Table, keep, show
from benchmarks.turns import Seconds, interleaved, median_and_range
from benchmarks.ways import FLIGHTS, Runs, everything, in_words, one_pass, stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.peers.connect import Connect
    from benchmarks.peers.flink import Flink
    from kafka_liveness_dagster.spark.table.table import IcebergTable

Way: TypeAlias = "Callable[[IcebergTable], float]"
TITLE = "Live throughput"
PARTITIONS = 8
BOUND = "plain Spark, one pass"
AUTO = f"live lane, max_poll_records='auto'{in_words(max(FLIGHTS))}"
GOALS = {500_000: 0.9, 100_000: 0.5}
CPU_GOALS = {500_000: 1.1, 100_000: 1.0}
_WARM_UPS = 3  # Java compiles what plans a batch for some hundred of them, with the cores that are measured
_PICTURE = Path("docs/images/live-throughput.svg")


@dataclass(frozen=True)
class Cost:
    """What one repetition of a way cost.

    Attributes:
        commits: snapshots with records.
        cpu: CPU seconds of the way's processes.
    """

    commits: int
    cpu: float


@click.command()
@click.option("--records", default=4_000_000, show_default=True)
@click.option("--batch", "batches", default=(500_000, 100_000), show_default=True, multiple=True,
              help="Offsets a batch; may be repeated.")  # fmt: skip
@click.option(
    "--repetitions", default=3, show_default=True, help="Of each way, after three that are not counted."
)
@click.option("--peer/--no-peer", default=True, help="Structured Streaming.")
@click.option("--peers/--no-peers", default=True, help="Flink and Kafka Connect.")
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Keep the section in this file."
)
@click.option(
    "--svg-file", type=click.Path(path_type=Path), help=f"Where to draw.  [default: {_PICTURE} with --write]"
)
def main(
    records: int,
    batches: Sequence[int],
    repetitions: int,
    *,
    peer: bool,
    peers: bool,
    write: Path | None,
    svg_file: Path | None,
) -> None:
    """Measure the live lane against plain Spark, Structured Streaming, Flink and Kafka Connect.

    About 12 minutes. `--records 400000 --repetitions 1` shows in three minutes whether all works. The ratios
    of so few records are worse, since joining the group and the first plan count as much.
    """
    console = Console()
    with lake() as services, ExitStack() as running:
        topic = new_topic(services.servers, PARTITIONS)
        with console.status(f"producing {records:,} records"):
            fill(services.servers, topic, PARTITIONS, records)
        all_ways = _ways(services, topic, batches, Runs(services), peer=peer)
        processes: dict[str, Sequence[psutil.Process]] = dict.fromkeys(
            all_ways, (services.spark_process, psutil.Process())
        )
        if peers:
            cluster = running.enter_context(flink(services))
            flink_ways = _flink_ways(services, topic, batches, cluster)
            worker = running.enter_context(connect(services))
            connect_ways = _connect_ways(services, topic, batches, worker)
            all_ways |= flink_ways | connect_ways
            processes |= dict.fromkeys(flink_ways, (cluster.process,))
            processes |= dict.fromkeys(connect_ways, (worker.process,))
        costs: dict[str, list[Cost]] = {name: [] for name in all_ways}
        ways = {
            name: partial(services.timed, _counted(services, way, processes[name], costs[name]), records)
            for name, way in all_ways.items()
        }
        found = Seconds(interleaved(console, "writing", ways, repetitions, list(ways) * _WARM_UPS))
    table = _described(found, {name: costs[name][_WARM_UPS:] for name in found}, records, batches)
    show(console, table)
    if write is not None:
        keep(write, TITLE, "python -m benchmarks.live_throughput", [table])
        console.print(f"kept in {write}")
    if svg_file or write:
        _draw(svg_file or _PICTURE, found, records)


def _ways(services: Lake, topic: str, batches: Sequence[int], runs: Runs, *, peer: bool) -> dict[str, Way]:
    """What is measured, by the name of its row.

    Each writes the whole topic to a table and gives its seconds.
    """
    ways: dict[str, Way] = {}
    ways[BOUND] = lambda table: one_pass(everything(services, topic), table)
    for batch in batches:
        for flights in FLIGHTS:
            ways[ours(batch, flights)] = partial(_live, runs, topic, batch, flights)
        if peer:
            ways[streamed(batch)] = partial(_stream, services, topic, batch)
    ways[AUTO] = partial(_live, runs, topic, "auto", max(FLIGHTS))
    return ways


def _flink_ways(services: Lake, topic: str, batches: Sequence[int], running: Flink) -> dict[str, Way]:
    """Return what Flink is to do, by the name of its row."""
    return {
        flinked(batch): partial(_flink, services, topic, running, pace=Pace(batch, _WARM_UPS))
        for batch in batches
    }


def _connect_ways(services: Lake, topic: str, batches: Sequence[int], running: Connect) -> dict[str, Way]:
    """Return what Kafka Connect is to do, by the name of its row."""
    return {
        connected(batch): partial(_connect, services, topic, running, pace=Pace(batch, _WARM_UPS))
        for batch in batches
    }


def _counted(services: Lake, way: Way, processes: Sequence[psutil.Process], costs: list[Cost]) -> Way:
    """Return a way that also keeps what it cost."""

    def counted(table: IcebergTable) -> float:
        before = cpu_seconds(processes)
        seconds = way(table)
        cpu = cpu_seconds(processes) - before
        costs.append(Cost(services.commits(table), cpu))
        return seconds

    return counted


def ours(batch: int, flights: int) -> str:
    """The name of the live lane's row."""
    return f"live lane, {batch:,} a batch{in_words(flights)}"


def streamed(batch: int) -> str:
    """The name of the peer's row."""
    return f"Structured Streaming, {batch:,} a trigger"


def flinked(batch: int) -> str:
    """The name of Flink's row."""
    return f"Flink, about {batch:,} a commit"


def connected(batch: int) -> str:
    """The name of Kafka Connect's row."""
    return f"Kafka Connect, about {batch:,} a commit"


def _live(runs: Runs, topic: str, batch: int | Literal["auto"], flights: int, table: IcebergTable) -> float:
    name = f"live_{uuid4().hex[:8]}"
    asset = kl.kafka_asset(
        topics=[topic], group_id=name, name=name, table=table.name, max_poll_records=batch,
        max_batch_seconds=600, idle_seconds=0.1, batching=kl.Batching(in_flight=flights),
    )(to_rows)  # fmt: skip
    return runs.live(asset).seconds


def _stream(services: Lake, topic: str, batch: int, table: IcebergTable) -> float:
    return stream(services, topic, table, batch)


def _flink(services: Lake, topic: str, running: Flink, table: IcebergTable, *, pace: Pace) -> float:
    seconds = running.write(topic, table, pace.interval_ms)
    pace.tune(services.rows(table), services.commits(table))
    return seconds


def _connect(services: Lake, topic: str, running: Connect, table: IcebergTable, *, pace: Pace) -> float:
    records = sum(log_ends(services.servers, topic, PARTITIONS).values())
    seconds = running.write(topic, table, records, pace.interval_ms)
    pace.tune(records, services.commits(table))
    return seconds


def _described(
    found: Seconds, costs: Mapping[str, Sequence[Cost]], records: int, batches: Sequence[int]
) -> Table:
    cpu = Seconds({name: [one.cpu for one in several] for name, several in costs.items()})
    columns = (
        "way",
        "seconds: median (spread)",
        "CPU seconds: median (spread)",
        "commits",
        "records/s",
        "speed relative to the bound",
        "speed relative to Structured Streaming",
    )
    table = Table(f"{records:,} records, {PARTITIONS} partitions, into Iceberg", columns)
    for name in found:
        peer = next(
            (streamed(batch) for batch in batches if f" {batch:,} " in name and streamed(batch) in found),
            None,
        )
        faster = found.ratios(peer, name) if peer and peer != name else ""
        cells = (
            found.spread(name),
            cpu.spread(name),
            f"{statistics.median(one.commits for one in costs[name]):.0f}",
            f"{records / found.median(name):,.0f}",
            found.ratios(BOUND, name),
            faster,
        )
        table.add(name, *cells)
    table.note("ratios compare speeds within a repetition; above 1 is faster. Every table was exact")
    table.note(
        "the live lane runs as Dagster's job in one process, timed from the creation of the consumer to "
        "the last commit of offsets. Structured Streaming is timed from the start to the end of the query"
    )
    if any(flinked(batch) in found for batch in batches):
        table.note(
            f"Flink {FLINK_VERSION} is a cluster in one process, with two task slots and Iceberg's "
            "IcebergSink, timed from the submission of the job to its end. It commits by time, "
            "so its commits are the checkpoints with records"
        )
    if any(connected(batch) in found for batch in batches):
        table.note(
            f"Kafka Connect {CONNECT_VERSION} is a standalone worker, with {TASKS} tasks of Iceberg's sink "
            f"{SINK_VERSION}, timed from the creation of the connector to the last commit"
        )
    for batch in batches:
        best = max(found.ratio(BOUND, ours(batch, flights)) for flights in FLIGHTS)
        if (goal := GOALS.get(batch)) is not None:
            table.note(f"goal at {batch:,}: {goal} of the bound; measured: {best:.2f}")
        if (most := CPU_GOALS.get(batch)) is not None and flinked(batch) in found:
            reached = "; ".join(
                cpu.ratios(ours(batch, flights), flinked(batch)) + in_words(flights) for flights in FLIGHTS
            )
            table.note(f"goal at {batch:,}: at most {most} of Flink's CPU seconds; measured: {reached}")
            table.note(f"CPU seconds a commit beyond one pass at {batch:,}: {_beyond(costs, batch)}")
    table.note("Spark plans and starts a job for each commit. Flink's job keeps running")
    fastest = min((ours(batch, flights) for batch in batches for flights in FLIGHTS), key=found.median)
    table.note(f"auto begins with 10,000 offsets: {found.ratios(fastest, AUTO)} of the best size; goal: 0.9")
    return table


def _beyond(costs: Mapping[str, Sequence[Cost]], batch: int) -> str:
    """Return what a commit of each way costs, besides reading and writing the records."""
    ways = [*(ours(batch, flights) for flights in FLIGHTS), streamed(batch), flinked(batch)]
    beyond = {
        name: [
            (one.cpu - bound.cpu) / one.commits for one, bound in zip(costs[name], costs[BOUND], strict=True)
        ]
        for name in ways
        if name in costs
    }
    return "; ".join(f"{name} {median_and_range(values, '.3f')}" for name, values in beyond.items())


def _draw(picture: Path, found: Seconds, records: int) -> None:
    from benchmarks import pictures  # noqa: PLC0415 - matplotlib only where something is drawn

    def row(name: str) -> tuple[str, float, str, str]:
        rate, ratio = records / found.median(name), found.ratio(BOUND, name)
        if name == BOUND:
            return name, rate, f"{rate:,.0f}/s, the bound", pictures.OTHER
        colour = pictures.OURS if name.startswith("live") else pictures.PEER
        return name, rate, f"{rate:,.0f}/s, {ratio:.2f} of the bound", colour

    pictures.bars(
        picture, f"Records a second, {records:,} from Kafka into Iceberg", [row(name) for name in found]
    )


if __name__ == "__main__":
    main()
