"""Measure small commits at a steady rate: CPU seconds a commit, and the age of a record when it is readable.

A producer adds records at a fixed rate to 8 partitions, and each program commits about once a second: a live
run with ``commit_interval_seconds=1``, Structured Streaming with a trigger of 1 s, Flink with checkpoints of
1 s. They take turns. The live run and Structured Streaming use the same warm Spark server.

CPU seconds are the kernel's count for the program's processes. For the Spark server they are the seconds
beyond an idle server. The age of a record is the time from its production to the ``committed_at`` of the
first snapshot that has its offset. Readers find that snapshot some milliseconds later, when the catalog has
it.

    python -m benchmarks.steady_commits --write benchmarks/RESULTS.md
"""

from __future__ import annotations

import statistics
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from benchmarks.idle_ways import Ways
from benchmarks.jvm import compiler_cpu
from benchmarks.lake import cpu_seconds, lake, new_topic
from benchmarks.peers.flink import VERSION as FLINK_VERSION
from benchmarks.peers.flink import flink
from benchmarks.report import Table, keep, show
from benchmarks.steady import Steady
from benchmarks.turns import interleaved, median_and_range
from benchmarks.ways import start_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    import psutil

    from benchmarks.lake import Lake
    from kafka_liveness_dagster.spark.table.table import IcebergTable

    # Starts a program on a topic and a table with an interval in seconds; returns its own processes
    Program: TypeAlias = Callable[
        [str, IcebergTable, float], AbstractContextManager[Mapping[str, Sequence[psutil.Process]]]
    ]

TITLE = "Steady commits"
PARTITIONS = 8
INTERVAL_SECONDS = 1.0
LIVE, STREAM = "live run", "Structured Streaming"
FLINK = f"Flink {FLINK_VERSION}"
GOAL_SECONDS = 1.5
_SETTLE_SECONDS = 5.0  # the first batches of a program, whose code Java has not compiled yet
_TAIL_SECONDS = 3.0  # records of the window's end, which may not be committed yet
_START_SECONDS = 120.0


@dataclass(frozen=True)
class Seen:
    """The measurements of one program at one rate.

    Attributes:
        seconds: length of the window.
        commits: number of commits in the window.
        own_cpu: CPU seconds of the program's own processes.
        spark_cpu: CPU seconds of the Spark server beyond an idle server.
        compiler_cpu: CPU seconds of the compilers of all its JVMs, which are part of the other two.
        ages: seconds from the production of a record to its snapshot, sorted; each partition counts the same.
        files: data files a commit.
    """

    seconds: float
    commits: int
    own_cpu: float
    spark_cpu: float
    compiler_cpu: float
    ages: list[float]
    files: float

    def age(self, share: float) -> float:
        """Return the age that this share of the records does not exceed."""
        return self.ages[min(len(self.ages) - 1, int(share * len(self.ages)))]

    @property
    def cpu_per_commit(self) -> float:
        """CPU seconds of the program and of Spark, a commit."""
        return (self.own_cpu + self.spark_cpu) / self.commits

    @property
    def cpu_per_commit_compiled(self) -> float:
        """The same without Java's compiler."""
        return self.cpu_per_commit - self.compiler_cpu / self.commits


@click.command()
@click.option("--rate", "rates", default=(1_000, 20_000), show_default=True, multiple=True,
              help="Records a second; may be repeated.")  # fmt: skip
@click.option("--seconds", default=15.0, show_default=True, help="Measured time of each program.")
@click.option(
    "--warm-up", default=30.0, show_default=True, help="Seconds of commits without a pause, on Spark."
)
@click.option("--repetitions", default=1, show_default=True, help="Of each program at each rate.")
@click.option("--peers/--no-peers", default=True, help="Flink.")
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Keep the section in this file."
)
def main(
    rates: Sequence[int],
    seconds: float,
    warm_up: float,
    repetitions: int,
    *,
    peers: bool,
    write: Path | None,
) -> None:
    """Measure the cost of a commit each second. About 5 minutes.

    Java compiles for some thousand commits. With `--warm-up 300` both programs on Spark take less CPU time.
    """
    console = Console()
    with lake() as services:
        programs = _programs(services, peers=peers)
        with console.status("warming Spark up"):
            for name in (LIVE, STREAM):
                _run(services, programs[name], min(rates), warm_up, interval=0.0, idle_cpu=0.0)
        idle_cpu = _idle_cpu(services)
        ways = {
            named(name, rate): partial(
                _run, services, program, rate, seconds, interval=INTERVAL_SECONDS, idle_cpu=idle_cpu
            )
            for rate in rates
            for name, program in programs.items()
        }
        found = interleaved(console, "committing", ways, repetitions)
    table = _described(found, rates, list(programs), idle_cpu)
    show(console, table)
    if write is not None:
        keep(write, TITLE, "python -m benchmarks.steady_commits", [table])
        console.print(f"kept in {write}")


def named(program: str, rate: int) -> str:
    """Return the name of a row."""
    return f"{program}, {rate:,} records/s"


def _programs(services: Lake, *, peers: bool) -> dict[str, Program]:
    programs: dict[str, Program] = {
        LIVE: partial(_live, Ways(services)),
        STREAM: partial(_stream, services),
    }
    return {**programs, FLINK: partial(_flink, services)} if peers else programs


@contextmanager
def _live(
    ways: Ways, topic: str, table: IcebergTable, interval: float
) -> Iterator[Mapping[str, Sequence[psutil.Process]]]:
    with ways.live_run_of(topic, table, interval) as run:
        yield run.processes


@contextmanager
def _stream(
    services: Lake, topic: str, table: IcebergTable, interval: float
) -> Iterator[Mapping[str, Sequence[psutil.Process]]]:
    checkpoint = str(services.home / f"checkpoint-{topic}")
    trigger = {"processingTime": f"{interval:g} seconds"} if interval else {}
    query = start_stream(services, topic, table, 500_000, checkpoint, **trigger)
    try:
        yield {}
    finally:
        query.stop()


@contextmanager
def _flink(
    services: Lake, topic: str, table: IcebergTable, interval: float
) -> Iterator[Mapping[str, Sequence[psutil.Process]]]:
    with flink(services) as running:
        checkpoints = services.home / f"checkpoint-{topic}"
        running.start(topic, table, round(interval * 1000), checkpoints)
        yield {"Flink": [running.process]}


def _run(
    services: Lake, program: Program, rate: int, seconds: float, *, interval: float, idle_cpu: float
) -> Seen:
    """Run a program on a topic of its own, and measure it for some seconds."""
    topic, table = new_topic(services.servers, PARTITIONS), services.new_table()
    spark = services.spark_process
    with (
        Steady(services.servers, topic, PARTITIONS, rate) as producer,
        program(topic, table, interval) as processes,
    ):
        _await_commit(services, table)
        time.sleep(_SETTLE_SECONDS)
        own = [one for several in processes.values() for one in several]
        began, cpu, spark_cpu, compilers = (
            time.time(),
            cpu_seconds(own),
            cpu_seconds([spark]),
            _compilers([*own, spark]),
        )
        time.sleep(seconds)
        ended, cpu, spark_cpu = time.time(), cpu_seconds(own) - cpu, cpu_seconds([spark]) - spark_cpu
        compilers = _compilers([*own, spark]) - compilers
        producer.stop()
    commits, files, ends = _commits(services, table, began, ended)
    ages = _ages(producer, ends, began, ended - _TAIL_SECONDS)
    services.drop_exact(table)
    spark_cpu -= idle_cpu * (ended - began)
    return Seen(ended - began, commits, cpu, spark_cpu, compilers, ages=ages, files=files)


def _await_commit(services: Lake, table: IcebergTable) -> None:
    give_up_at = time.monotonic() + _START_SECONDS
    while not services.commits(table):
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"no commit in {_START_SECONDS:.0f} s")
        time.sleep(0.2)


def _commits(
    services: Lake, table: IcebergTable, began: float, ended: float
) -> tuple[int, float, dict[int, list[tuple[float, int]]]]:
    """Return the commits in the window, their files a commit, and each partition's ends by commit time."""
    window = f"unix_millis(committed_at) BETWEEN {began * 1000:.0f} AND {ended * 1000:.0f}"
    counted = services.session.sql(
        f"SELECT count(*) AS commits, avg(CAST(summary['added-data-files'] AS long)) AS files FROM "
        f"{table.quoted}.snapshots WHERE CAST(summary['added-records'] AS long) > 0 AND {window}"
    ).first()
    assert counted is not None  # noqa: S101 - an aggregate has a row
    if not counted.commits:
        raise RuntimeError(f"no commit of {table.name} in {ended - began:.0f} s")
    rows = services.session.sql(
        "SELECT e.data_file.partition.partition AS partition, unix_millis(s.committed_at) / 1000.0D AS at, "
        f"max(e.readable_metrics.offset.upper_bound) AS last FROM {table.quoted}.entries e JOIN "
        f"{table.quoted}.snapshots s ON e.snapshot_id = s.snapshot_id GROUP BY 1, 2 ORDER BY 2"
    ).collect()
    ends: dict[int, list[tuple[float, int]]] = {}
    for partition, at, last in rows:
        ends.setdefault(partition, []).append((at, last))
    return counted.commits, counted.files, ends


def _ages(
    producer: Steady, ends: Mapping[int, Sequence[tuple[float, int]]], since: float, until: float
) -> list[float]:
    """Return the sorted ages of the records that were produced in this time."""
    found: list[float] = []
    for commits in ends.values():
        offset = 0
        for at, last in commits:
            for one in range(offset, last + 1):
                produced = producer.produced_at(one)
                if since <= produced <= until:
                    found.append(at - produced)
            offset = max(offset, last + 1)
    return sorted(found)


def _idle_cpu(services: Lake) -> float:
    """Return the CPU seconds a second of a Spark server without work."""
    spark = services.spark_process
    time.sleep(_SETTLE_SECONDS)  # Java's compiler still works
    began, cpu = time.monotonic(), cpu_seconds([spark])
    time.sleep(_SETTLE_SECONDS)
    return (cpu_seconds([spark]) - cpu) / (time.monotonic() - began)


def _compilers(processes: Sequence[psutil.Process]) -> float:
    return sum(map(compiler_cpu, processes))


def _described(
    found: Mapping[str, Sequence[Seen]], rates: Sequence[int], programs: Sequence[str], idle_cpu: float
) -> Table:
    columns = ("program", "CPU s a commit", "of it: its processes", "of it: Spark", "of it: Java's compiler",
               "age p50", "age p99", "commits/s", "files a commit")  # fmt: skip
    table = Table(f"a commit each second, {PARTITIONS} partitions: medians (spread)", columns)
    for rate in rates:
        for program in programs:
            seen = found[named(program, rate)]
            table.add(
                named(program, rate),
                median_and_range([one.cpu_per_commit for one in seen], ".3f"),
                f"{_median(one.own_cpu / one.commits for one in seen):.3f}",
                f"{_median(one.spark_cpu / one.commits for one in seen):.3f}",
                f"{_median(one.compiler_cpu / one.commits for one in seen):.3f}",
                f"{_median(one.age(0.5) for one in seen):.2f} s",
                median_and_range([one.age(0.99) for one in seen], unit=" s"),
                f"{_median(one.commits / one.seconds for one in seen):.2f}",
                f"{_median(one.files for one in seen):.1f}",
            )
    table.note(
        "age: from the production of a record to committed_at of the first snapshot that has its offset"
    )
    table.note(f"Spark: beyond an idle server, which took {idle_cpu:.3f} CPU seconds a second")
    for rate in rates:
        ours, peer = (found[named(program, rate)] for program in (LIVE, STREAM))
        ratio = median_and_range(
            [a.cpu_per_commit / b.cpu_per_commit for a, b in zip(ours, peer, strict=True)]
        )
        without = [
            a.cpu_per_commit_compiled / b.cpu_per_commit_compiled for a, b in zip(ours, peer, strict=True)
        ]
        oldest = median_and_range([one.age(0.99) for one in ours], unit=" s")
        table.note(
            f"goals at {rate:,} records/s: p99 at most {GOAL_SECONDS} s, measured: {oldest}; CPU "
            f"seconds a commit at most those of Structured Streaming, measured: {ratio} of them, "
            f"{median_and_range(without)} of them without Java's compiler"
        )
    table.note(
        "Structured Streaming plans its query once and appends. The live run plans each batch, with two "
        "analyses of the plan, and Iceberg searches the table's manifests for rows that the batch replaces. "
        "Java compiles the code of both for some thousand commits"
    )
    return table


def _median(values: Iterator[float]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    main()
