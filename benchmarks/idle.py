"""What does a group cost that has nothing to do? CPU seconds and requests an hour, beside those who poll.

A topic of 8 partitions, all of whose records are processed, on a broker and a Spark server of the benchmark's
own. One after the other is at rest for a while: a live run that `idle_seconds` keeps alive, Dagster's daemon
with the group's sensor and with one that does nothing, an open Spark Connect session. Their peers are a
consumer of confluent-kafka with its defaults that polls once a second, and Structured Streaming with a
trigger of a second on the same Spark.

CPU seconds are what the kernel counts of their processes; of the Spark server and the broker, what these took
more than while nobody was there, in the same repetition. Requests are counted by the broker itself (its JMX
metrics).

    python -m benchmarks.idle --write benchmarks/RESULTS.md
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import psutil
from rich.console import Console

from benchmarks import kafka_tools
from benchmarks.idle_ways import PARTITIONS, Ways
from benchmarks.lake import cpu_seconds, opened, own_services
from benchmarks.report import Table, keep, show
from benchmarks.turns import interleaved, median_and_range, ratio
from kafka_liveness_dagster.embedded import services, state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from benchmarks.idle_ways import Resting
    from benchmarks.lake import Lake

TITLE = "Idle"
GOAL_SECONDS = 30
NOBODY, LIVE, SESSION = "Kafka and Spark alone", "a live run, kept alive", "an open Spark Connect session"
POLLING, STREAM = "confluent-kafka, polls once a second", "Structured Streaming, a trigger of 1 s"
EMPTY, SENSOR = "Dagster's daemon, an empty sensor", "Dagster's daemon, the group's sensor"
_HOUR = 3_600.0
_FEW = 10  # requests an hour


@dataclass(frozen=True)
class Cost:
    """What somebody took who had nothing to do.

    Attributes:
        cpu: seconds an hour, by process: its own, ``Kafka`` and ``Spark``.
        requests: an hour, by kind.
        ticks: an hour.
    """

    cpu: dict[str, float]
    requests: dict[str, float]
    ticks: float = 0.0

    def own(self) -> float:
        """CPU seconds of its own processes."""
        return sum(seconds for name, seconds in self.cpu.items() if name not in ("Kafka", "Spark"))

    def beyond(self, other: Cost) -> Cost:
        """What it took more than another."""
        cpu = {name: seconds - other.cpu.get(name, 0.0) for name, seconds in self.cpu.items()}
        kinds = {*self.requests, *other.requests}
        requests = {kind: self.requests.get(kind, 0.0) - other.requests.get(kind, 0.0) for kind in kinds}
        return Cost(cpu, requests, self.ticks)


@click.command()
@click.option(
    "--minutes", default=0.5, show_default=True, help="Of rest, each time; a sensor's is 1 at least."
)
@click.option("--repetitions", default=3, show_default=True, help="Of each.")
@click.option("--only", multiple=True, help="A part of a row's name; may be repeated.  [default: all]")
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Keep the section in this file."
)
def main(minutes: float, repetitions: int, only: Sequence[str], write: Path | None) -> None:
    """Measure what a group costs that has nothing to do. About half an hour."""
    console = Console()
    with _lake() as (lake, jmx_port):
        every = Ways(lake)
        ways: dict[str, Callable[[], AbstractContextManager[Resting]]] = {
            NOBODY: every.nobody,
            POLLING: every.polling,
            LIVE: every.live_run,
            STREAM: every.stream,
            SESSION: every.session,
            EMPTY: partial(every.sensor, empty=True),
            SENSOR: every.sensor,
        }
        measured = {
            name: partial(_measured, way, jmx_port, lake.home, minutes * 60)
            for name, way in ways.items()
            if not only or name == NOBODY or any(part in name for part in only)
        }
        found = interleaved(console, "idle", measured, repetitions, [NOBODY])
    tables = [_costs(found, minutes), _kinds(found)]
    for table in tables:
        show(console, table)
    if write is not None:
        keep(write, TITLE, "python -m benchmarks.idle", tables)
        console.print(f"kept in {write}")


@contextmanager
def _lake() -> Iterator[tuple[Lake, int]]:
    """The services, and the port at which the broker tells what it counts."""
    with ExitStack() as until_the_end:
        with kafka_tools.open_to_jmx() as port:
            _, home = until_the_end.enter_context(own_services("kafka"))
        yield until_the_end.enter_context(opened(services.ensure_services(), home)), port


def _measured(
    way: Callable[[], AbstractContextManager[Resting]], jmx_port: int, home: Path, seconds: float
) -> Cost:
    """What one of them takes in so many seconds of rest."""
    shared = {name.capitalize(): [psutil.Process(one.pid)] for name, one in state.read_state(home).items()}
    with way() as resting:
        every = {**resting.processes, **shared}
        time.sleep(resting.settle_seconds)
        cpu, asked, began, since = _cpu(every), kafka_tools.requests(jmx_port), time.monotonic(), time.time()
        time.sleep(max(seconds, resting.period_seconds))
        taken, an_hour = _cpu(every), _HOUR / (time.monotonic() - began)
        requests = kafka_tools.requests(jmx_port) - asked
        return Cost(
            {name: (taken[name] - before) * an_hour for name, before in cpu.items()},
            {kind: count * an_hour for kind, count in requests.items()},
            resting.ticks(since) * an_hour,
        )


def _cpu(every: Mapping[str, Sequence[psutil.Process]]) -> dict[str, float]:
    """CPU seconds so far."""
    return {name: cpu_seconds(processes) for name, processes in every.items()}


def _costs(found: dict[str, list[Cost]], minutes: float) -> Table:
    columns = ("idle program", "CPU s/h, its own", "CPU s/h, in Spark", "CPU s/h, in Kafka", "requests/h")
    table = Table(
        f"an idle hour, extrapolated from {minutes:g} min each (a sensor: 1 at least), {PARTITIONS} "
        "partitions: median (spread)",
        columns,
    )
    for name, costs in found.items():
        _add(table, name, costs if name == NOBODY else _beyond(costs, found[NOBODY]))
    if SENSOR in found and EMPTY in found:
        more = _beyond(found[SENSOR], found[EMPTY])
        _add(table, "the group's sensor beyond the empty one", more)
        parts = ", ".join(
            f"{statistics.median(one.cpu[part] for one in more):.0f} s of it the {part}'s"
            for part in ("code server", "daemon")
        )
        ticks = statistics.median(one.ticks for one in more)
        per_tick = statistics.median(sum(one.requests.values()) / one.ticks for one in more)
        table.note(f"the group's sensor: {ticks:.0f} ticks an hour, {per_tick:.1f} requests each; {parts}")
        own = statistics.median(one.own() for one in more)
        spark = statistics.median(one.cpu["Spark"] for one in more)
        table.note(
            f"goal of the sensor beyond the empty one: {GOAL_SECONDS} CPU seconds an hour; measured: "
            f"{own + spark:.0f}, with {spark:.0f} in Spark, where a tick reads the table's ledger each "
            "minute. Its first two reads in a session are not counted"
        )
    table.note("Spark, Kafka and requests: the difference to Kafka and Spark alone, in the same repetition")
    table.note(
        "a live run ends after `idle_seconds` (10 s) without records, so by default an idle group has only "
        "its sensor. A larger `idle_seconds` keeps a run alive, so that new records do not wait for its start"
    )
    if LIVE in found and POLLING in found:
        ours, peer = ([one.own() for one in found[way]] for way in (LIVE, POLLING))
        asked = [
            [sum(one.requests.values()) for one in _beyond(found[way], found[NOBODY])]
            for way in (LIVE, POLLING)
        ]
        table.note(
            "the live run relative to the consumer that polls, in the same repetition: "
            f"{ratio(ours, peer):.1f} of its CPU seconds, {ratio(*asked):.1f} of its requests"
        )
    return table


def _beyond(costs: Sequence[Cost], others: Sequence[Cost]) -> list[Cost]:
    return [one.beyond(other) for one, other in zip(costs, others, strict=True)]


def _add(table: Table, name: str, costs: Sequence[Cost]) -> None:
    parts = [
        [one.own() for one in costs],
        *([one.cpu[which] for one in costs] for which in ("Spark", "Kafka")),
    ]
    asked = [sum(one.requests.values()) for one in costs]
    table.add(name, *(median_and_range(part, ",.0f") for part in (*parts, asked)))


def _kinds(found: dict[str, list[Cost]]) -> Table:
    """What is asked, of each kind that is asked ten times an hour."""
    table = Table("requests an hour, by kind: medians", ("idle program", "requests"))
    for name, costs in found.items():
        net = costs if name == NOBODY else _beyond(costs, found[NOBODY])
        kinds = sorted({kind for one in net for kind in one.requests})
        each = {kind: statistics.median(one.requests.get(kind, 0.0) for one in net) for kind in kinds}
        told = (f"{number:,.0f} {kind}" for kind, number in each.items() if number >= _FEW)
        table.add(name, ", ".join(told) or "none")
    return table


if __name__ == "__main__":
    main()
