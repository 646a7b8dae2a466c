"""Measure ``consumer.records(batch)`` next to plain ``consume()``: the same records and work, in one run.

The peer is the loop that everybody writes: ``consume(num_messages)``, an error check and the value of each
message, once as librdkafka comes and once with our fetch settings. It keeps no order between partitions and
commits nothing; ours plans and commits its batches, at three sizes. The clock runs from the first look for
records to the last record. ``dagster-kafka`` reads the same topic by its IO manager, which gives at most 20
messages a load.

    python -m benchmarks.records --write benchmarks/RESULTS.md
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import click
from confluent_kafka import Consumer, TopicPartition
from rich.console import Console

import kafka_liveness_dagster as kl
from benchmarks import peer_loads
from benchmarks.lake import fill, new_topic
from benchmarks.many_groups import broker
from benchmarks.report import Table, keep, show
from benchmarks.turns import interleaved, ratio, spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

PARTITIONS = 8
NUM_MESSAGES = 10_000
GOAL = 0.9
PLAIN, TUNED = "A: consume()", "B: consume(), the package's fetch settings"


class Run(NamedTuple):
    """All records once: seconds on the clock, of processor time in all threads, and in poll and commit."""

    wall: float
    cpu: float
    between: float = 0.0
    batches: int = 0


@click.command()
@click.option("--records", default=400_000, show_default=True, help="In the topic, of some 100 bytes each.")
@click.option("--repetitions", default=7, show_default=True, help="Of each way to read, interleaved.")
@click.option(
    "--loads", default=5, show_default=True, help="Of dagster-kafka, 20 messages and 2 to 3 seconds each."
)
@click.option(
    "--peer/--no-peer", default=True, help="dagster-kafka; its venv is made on the first run, by uv."
)
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Keep the section in this file."
)
def main(records: int, repetitions: int, loads: int, *, peer: bool, write: Path | None) -> None:
    """Read a topic of the embedded broker by records(batch), by plain consume() and by dagster-kafka.

    Takes about a minute, and another one when the venv of dagster-kafka has to be made.
    """
    console = Console()
    with broker() as servers:
        topic = new_topic(servers, PARTITIONS)
        with console.status(f"producing {records:,} records"):
            fill(servers, topic, PARTITIONS, records)
        # This pass also fills the page cache
        size, _ = _plain({"bootstrap.servers": servers, "group.id": "warm"}, topic, records)
        runs = interleaved(console, "reading", _ways(servers, topic, records, size), repetitions)
        told: list[peer_loads.Load] = []
        if peer:
            with console.status("dagster-kafka"):
                told = peer_loads.loads(servers, topic, loads)
    table = _table(runs, records, told)
    show(console, table)
    if write is not None:
        keep(write, "Records without Spark", "python -m benchmarks.records", [table])
        console.print(f"kept in {write}")


def _ways(servers: str, topic: str, records: int, size: int) -> dict[str, Callable[[], Run]]:
    kafka = kl.KafkaLivenessResource(bootstrap_servers=servers)
    peers = {
        PLAIN: {"bootstrap.servers": servers, "group.id": "plain", "enable.auto.commit": False},
        TUNED: kafka.settings().reader_config("plain", "plain"),
    }
    batches = (records, records // 4, records // 40)
    return {
        **{name: partial(_timed_plain, config, topic, records, size) for name, config in peers.items()},
        **{
            f"records(), batches of {bound:,}": partial(_ours, kafka, topic, bound, size) for bound in batches
        },
    }


def _work(message: Message) -> int:
    """What an op does with a record, at the least."""
    return len(message.value() or b"")


def _plain(config: dict[str, Any], topic: str, records: int) -> tuple[int, Run]:
    """The peer."""
    wall, cpu = time.perf_counter(), time.process_time()
    consumer = Consumer({"auto.offset.reset": "earliest", **config})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    seen = size = 0
    while seen < records:
        for message in consumer.consume(NUM_MESSAGES, 0.1):
            if message.error() is None:
                size += _work(message)
                seen += 1
    run = Run(time.perf_counter() - wall, time.process_time() - cpu)
    consumer.close()
    return size, run


def _timed_plain(config: dict[str, Any], topic: str, records: int, expected: int) -> Run:
    size, run = _plain(config, topic, records)
    _check(size, expected)
    return run


def _ours(kafka: kl.KafkaLivenessResource, topic: str, bound: int, expected: int) -> Run:
    """All batches, planned, read and committed."""
    group = f"ours-{uuid4().hex[:8]}"
    with kafka.consumer(
        topics=[topic], group_id=group, max_poll_records=bound, max_batch_seconds=600
    ) as consumer:
        batch = consumer.poll(60)  # joining the group is no part of reading
        wall, cpu, between, count, size = time.perf_counter(), time.process_time(), 0.0, 0, 0
        while batch is not None:
            for message in consumer.records(batch):
                size += _work(message)
            read = time.perf_counter()
            consumer.commit(batch)
            batch = consumer.poll(0)
            between += time.perf_counter() - read
            count += 1
        run = Run(time.perf_counter() - wall, time.process_time() - cpu, between, batches=count)
    _check(size, expected)
    return run


def _check(size: int, expected: int) -> None:
    if size != expected:
        raise RuntimeError(f"{size:,} bytes were read instead of {expected:,}: what is measured is wrong")


def _table(runs: dict[str, list[Run]], records: int, told: list[peer_loads.Load]) -> Table:
    columns = (
        "",
        "records/s",
        "quartiles",
        "speed relative to A",
        "speed relative to B",
        "CPU µs a record",
        "plan and commit of a batch",
    )
    table = Table(f"{records:,} records, {PARTITIONS} partitions", columns)
    wall = {name: [run.wall for run in of_name] for name, of_name in runs.items()}
    reached: dict[str, float] = {}
    for name, of_name in runs.items():
        rate, quarters = spread([records / run.wall for run in of_name], ",.0f")
        reached[name] = ratio(wall[PLAIN], wall[name])
        cpu = statistics.median(run.cpu for run in of_name) / records * 1e6
        between = statistics.median(1000 * run.between / max(1, run.batches) for run in of_name)
        beside = (f"{reached[name]:.2f}", f"{ratio(wall[TUNED], wall[name]):.2f}")
        table.add(name, rate, quarters, *beside, f"{cpu:.2f}", f"{between:.1f} ms" if between else "")
    if told:
        rate, quarters = spread([load.records / load.seconds for load in told], ",.1f")
        table.add(f"dagster-kafka {peer_loads.VERSION}", rate, quarters, "", "", "", "")
        given, seconds = ", ".join(str(load.records) for load in told), sum(load.seconds for load in told)
        table.note(
            f"dagster-kafka: {len(told)} loads returned {given} messages in {seconds:.1f} s, with "
            "max_messages=1,000,000. A load sleeps 2 s and reads at most 20 messages, so this is not the "
            "rate of its client. It parses JSON too. It was measured after the others, not between them"
        )
    else:
        table.note("dagster-kafka was left out")
    ours = [name for name in runs if name.startswith("records()")]
    missed = [f"{name}: {reached[name]:.2f}" for name in ours if reached[name] < GOAL]
    table.note(
        f"{len(wall[PLAIN])} repetitions, interleaved; a ratio is the median of the repetitions' ratios"
    )
    verdict = f"NOT reached by {', '.join(missed)}" if missed else "reached at every batch size"
    table.note(f"verdict: {GOAL} of {PLAIN} is {verdict}")
    return table


if __name__ == "__main__":
    main()
