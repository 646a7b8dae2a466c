"""Does a tick of the group sensor end in its time, and does it ask more when a topic has more partitions?

200 groups on a topic of 50 partitions, each with commits in both logs and an owed range on every partition, on the
embedded broker. Their sensors are evaluated one after the other in one process, as a code server does with one
worker. Then the requests of one tick are counted at 10, 50 and 200 partitions, by librdkafka's own protocol log.

    python -m benchmarks.sensor_tick --write benchmarks/RESULTS.md
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import click
import dagster as dg
import psutil
from rich.console import Console

import kafka_liveness_dagster as kl
from benchmarks import kafka_tools
from benchmarks.many_groups import WatchedGroup, broker, crash, make_topic, watched
from benchmarks.report import Table, keep, show

TICK_LIMIT_SECONDS = 60
GROWTH = (10, 50, 200)
_NEW_TICK = "=== the next tick"
_SENT = re.compile(r"Sent (\w+?)Request ")


@click.command()
@click.option("--groups", default=200, show_default=True)
@click.option("--partitions", default=50, show_default=True)
@click.option("--rounds", default=3, show_default=True, help="Ticks of every group after the first one.")
@click.option("--peer/--no-peer", default=True, help="kafka-consumer-groups on the same groups.")
@click.option("--write", type=click.Path(dir_okay=False, path_type=Path), help="Keep the section in this file.")
@click.option("--count", hidden=True, help="Tick the first group of this topic three times and end.")
def main(groups: int, partitions: int, rounds: int, *, peer: bool, write: Path | None, count: str | None) -> None:
    """Measure the ticks of many group sensors on the embedded broker."""
    if count is not None:
        _tick_for_the_log(count)
        return
    console = Console()
    with (
        broker() as servers,
        tempfile.TemporaryDirectory() as folder,
        dg.DagsterInstance.local_temp(folder) as instance,
    ):
        kafka = kl.KafkaLivenessResource(bootstrap_servers=servers)
        with console.status(f"{groups} groups on {partitions} partitions, as after a crash"):
            topic = make_topic(servers, partitions)
            all_groups = [watched(topic, number, kafka, instance) for number in range(groups)]
            for group in all_groups:
                crash(group, servers, partitions)
        with console.status("ticks"):
            tables = [_times(all_groups, partitions, rounds)]
        if peer:
            with console.status("kafka-consumer-groups --describe --all-groups"):
                tables.append(kafka_tools.describe_all(servers, expected_rows=2 * groups * partitions))
        with console.status("requests"):
            tables.append(_requests(servers, instance))
    for table in tables:
        show(console, table)
    if write is not None:
        keep(write, "A tick of the group sensor", "make bench", tables)
        console.print(f"kept in {write}")


def _times(groups: list[WatchedGroup], partitions: int, rounds: int) -> Table:
    """How long ticks take: the first of the process, the first of each group, and all others."""
    process = psutil.Process()
    threads, sockets = process.num_threads(), len(process.net_connections())
    first = [group.tick() for group in groups]
    table = Table(
        f"{len(groups)} groups, {partitions} partitions each, one owed range on every partition",
        ("one round of all groups", "total", "a group: median", "95 %", "longest"),
    )
    table.add("first ticks", *_spread(first))
    for number in range(rounds):
        table.add(f"round {number + 2}", *_spread([group.tick() for group in groups]))
    table.add("of that, the look at Kafka", *_spread([group.look() for group in groups]))
    longest = max(first)
    table.note(f"first tick of the process: {first[0]:.2f} s; a tick may take {TICK_LIMIT_SECONDS} s")
    table.note(f"threads {threads} -> {process.num_threads()}, sockets {sockets} -> {len(process.net_connections())}")
    table.note(f"verdict: {'in' if longest < TICK_LIMIT_SECONDS else 'NOT in'} the time limit")
    return table


def _spread(seconds: list[float]) -> tuple[str, ...]:
    ordered = sorted(seconds)
    late = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
    each = (statistics.median(ordered), late, ordered[-1])
    return (f"{sum(ordered):.1f} s", *(f"{1000 * one:.0f} ms" for one in each))


def _requests(servers: str, instance: dg.DagsterInstance) -> Table:
    """What one tick asks the broker, by the number of partitions: with clients that are open, and with new ones."""
    table = Table("requests of one tick, by the number of partitions", ("partitions", "clients open", "new clients"))
    counts = set()
    for partitions in GROWTH:
        topic = make_topic(servers, partitions)
        kafka = kl.KafkaLivenessResource(bootstrap_servers=servers)
        crash(watched(topic, 0, kafka, instance), servers, partitions)
        cold, _, warm = _logged(topic, servers)
        table.add(str(partitions), _told(warm), _told(cold))
        counts.add(warm.total())
    table.note(f"verdict: {'the same number' if len(counts) == 1 else 'NOT the same number'} for any of them")
    return table


def _told(requests: Counter[str]) -> str:
    return f"{requests.total()}: " + ", ".join(f"{number} {name}" for name, number in sorted(requests.items()))


def _logged(topic: str, servers: str) -> list[Counter[str]]:
    """The requests of three ticks in a process of their own, whose clients write what they send."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.sensor_tick", "--count", topic],
        env={**os.environ, "KAFKA_BOOTSTRAP_SERVERS": servers},
        capture_output=True,
        text=True,
        check=False,
    )
    ticks = done.stderr.split(_NEW_TICK)[1:4]
    if done.returncode or len(ticks) < 3:  # noqa: PLR2004
        raise click.ClickException(f"the ticks of {topic} failed:\n{done.stderr[-3000:]}")
    return [Counter(_SENT.findall(tick)) for tick in ticks]


def _tick_for_the_log(topic: str) -> None:
    kafka = kl.KafkaLivenessResource(
        bootstrap_servers=os.environ["KAFKA_BOOTSTRAP_SERVERS"], extra={"debug": "protocol"}
    )
    with tempfile.TemporaryDirectory() as folder, dg.DagsterInstance.local_temp(folder) as instance:
        group = watched(topic, 0, kafka, instance)
        for _ in range(3):
            sys.stderr.write(f"{_NEW_TICK}\n")
            sys.stderr.flush()
            group.tick()
        sys.stderr.write(f"{_NEW_TICK}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    main()
