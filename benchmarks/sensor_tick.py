"""Does a tick of the group sensor end in its time, and does it ask more when a topic has more partitions?

1, 10 and 100 groups on a topic of 50 partitions, then one group on topics of up to 5,000: each with commits
in both logs and an owed range on every partition, on the embedded broker. Their sensors are evaluated one
after the other in one process, as a code server does with one worker. The peer is
``kafka-consumer-groups --describe`` of the same groups and their catch-up commit logs, less Java's start.
Requests are counted by librdkafka's own protocol log. Then one group that has had up to 100,000 crash lag
partitions: their keys are never removed.

The same groups are also watched by one sensor (``kl.build_shared_sensor``), with one tick for all of them.
For idle groups there is a table of one sensor's ticks in a minute, one each 5 s.

    python -m benchmarks.sensor_tick --write benchmarks/RESULTS.md
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import dagster as dg
import psutil
from rich.console import Console

import kafka_liveness_dagster as kl
from benchmarks import kafka_tools
from benchmarks.many_groups import (
    TICK_SECONDS,
    MinuteClock,
    SharedGroups,
    WatchedGroup,
    broker,
    caught_up,
    crash,
    have_done,
    make_topic,
    watched,
)
from benchmarks.report import Table, keep, show
from benchmarks.turns import interleaved, median_and_range, ratios, spread
from kafka_liveness_dagster.core.commit_metadata import CATCH_UP_SUFFIX
from kafka_liveness_dagster.sensor.cursor import GroupCursor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TICK_LIMIT_SECONDS = 60
GROUPS = (1, 10, 100)
GROWTH = (10, 100, 1_000, 5_000)  # of 10,000 a broker opens more files than many systems allow
KEYS = (10, 1_000, 100_000)
_NEW_TICK = "=== the next tick"
_SENT = re.compile(r"Sent (\w+?)Request ")
_TICK, _LOOK, _TOOL, _JAVA = "a tick", "the read", "kafka-consumer-groups", "Java's start"
_SHARED = "one sensor"


@click.command()
@click.option("--partitions", default=50, show_default=True, help="Of the topic that many groups consume.")
@click.option("--rounds", default=3, show_default=True, help="Of ticks and of the peer, interleaved.")
@click.option("--peer/--no-peer", default=True, help="kafka-consumer-groups on the same groups.")
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Keep the section in this file."
)
@click.option("--many-only", is_flag=True, help="Only the many groups, with a sensor each and one sensor.")
@click.option("--count", hidden=True, help="Tick the first group of this topic three times and end.")
def main(
    partitions: int, rounds: int, *, peer: bool, write: Path | None, many_only: bool, count: str | None
) -> None:
    """Measure the ticks of 1 to 100 group sensors, and of one group on 10 to 5,000 partitions.

    Starts a broker of its own and stops it; takes two to four minutes.
    """
    if count is not None:
        _tick_for_the_log(count)
        return
    if many_only and write is not None:
        raise click.UsageError("--write keeps the whole section. Fix: leave --many-only or --write out.")
    console = Console()
    with (
        broker() as servers,
        tempfile.TemporaryDirectory() as folder,
        dg.DagsterInstance.local_temp(folder) as instance,
    ):
        kafka = kl.KafkaLivenessResource(bootstrap_servers=servers)

        def groups_in_state(state: str, prepare: Callable[..., object]) -> dict[str, list[WatchedGroup]]:
            with console.status(f"{max(GROUPS)} groups on {partitions} partitions, {state}"):
                topic = make_topic(servers, partitions)
                every = [watched(topic, number, kafka, instance) for number in range(max(GROUPS))]
                for group in every:
                    prepare(group, servers, partitions)
            return {f"{count:,} x {partitions}": every[:count] for count in GROUPS}

        many = groups_in_state("as after a crash", crash)
        shared = {name: _shared(groups, f"after_a_crash_{len(groups)}") for name, groups in many.items()}
        tables = [_times(console, servers, many, rounds, "many groups", peer=peer, shared=shared)]
        tables.append(_idle(console, servers, groups_in_state("idle", caught_up), rounds, peer=peer))
        if many_only:
            for table in tables:
                show(console, table)
            return
        large = {}
        for size in GROWTH:
            with console.status(f"one group on {size:,} partitions"):
                group = watched(make_topic(servers, size), 0, kafka, instance)
                crash(group, servers, size)
            large[f"1 x {size:,}"] = [group]
        tables.append(_times(console, servers, large, rounds, "many partitions", peer=peer))
        with console.status("requests"):
            tables.append(
                _requests(servers, {size: one for size, [one] in zip(GROWTH, large.values(), strict=True)})
            )
        tables.append(_keys(console, make_topic(servers, 10), kafka, instance, servers))
    for table in tables:
        show(console, table)
    if write is not None:
        keep(write, "A tick of the group sensor", "python -m benchmarks.sensor_tick", tables)
        console.print(f"kept in {write}")


def _times(
    console: Console,
    servers: str,
    sets: dict[str, list[WatchedGroup]],
    rounds: int,
    what: str,
    *,
    peer: bool,
    shared: dict[str, SharedGroups] | None = None,
) -> Table:
    """How long a round of ticks takes, and Kafka's own tool, for each set of groups."""
    process = psutil.Process()
    shared = shared or {}
    threads = process.num_threads()
    first_shared = [one.tick() for one in shared.values()]
    threads_shared = process.num_threads()
    first = [group.tick() for groups in sets.values() for group in groups if group.cursor is None]
    ways: dict[str, Callable[[], float]] = {}
    for name, groups in sets.items():
        ways[f"{name}, {_TICK}"] = partial(_sum, [group.tick for group in groups])
        ways[f"{name}, {_LOOK}"] = partial(_sum, [group.look for group in groups])
        if name in shared:
            ways[f"{name}, {_SHARED}"] = partial(_median, partial(MinuteClock().minute, shared[name].tick))
        if peer:
            both = [group.asset.group_id + log for group in groups for log in ("", CATCH_UP_SUFFIX)]
            rows = 2 * sum(len(group.kafka.cluster().partitions(group.asset.topics)) for group in groups)
            ways[f"{name}, {_TOOL}"] = partial(kafka_tools.describe, servers, both, expected_rows=rows)
    if peer:
        ways[_JAVA] = partial(kafka_tools.java_start, servers)
    found = interleaved(console, "ticks", ways, rounds)
    table = Table(
        f"one round of ticks: {what}",
        (
            "groups x partitions",
            _TICK,
            "quartiles",
            "of that, the read",
            *([_SHARED] if shared else []),
            _TOOL,
            "the tool without Java's start",
            "tick / tool without start",
        ),
    )
    slower = []
    start = statistics.median(found[_JAVA]) if peer else 0.0
    for name in sets:
        ticks = found[f"{name}, {_TICK}"]
        cells = ["", "", ""]
        if peer:
            tool = statistics.median(found[f"{name}, {_TOOL}"])
            beside = statistics.median(_beside(found, _TICK, name, start))
            cells = [f"{tool:.2f} s", f"{tool - start:.2f} s", f"{beside:.2f}"]
            slower += [name] if beside > 1 else []
        middle, quarters = spread(ticks, ".3f")
        table.add(
            name,
            f"{middle} s",
            f"{quarters} s",
            f"{statistics.median(found[f'{name}, {_LOOK}']):.3f} s",
            *([f"{statistics.median(found[f'{name}, {_SHARED}']):.3f} s"] if shared else []),
            *cells,
        )
    if shared:
        table.note(
            f"{_SHARED}: one tick for all groups, the median of a minute's ticks, {TICK_SECONDS} s of its "
            f"clock apart, after a first tick of at most {max(first_shared):.2f} s; "
            f"threads {threads} -> {threads_shared} with it alone"
        )
    table.note(
        f"{rounds} rounds, interleaved, after a first tick of each group of at most {max(first):.2f} s"
    )
    table.note(f"threads {threads} -> {process.num_threads()}; a tick may take {TICK_LIMIT_SECONDS} s")
    if peer and shared:
        listed = ", ".join(
            f"{median_and_range(_beside(found, _SHARED, name, start))} at {name}" for name in sets
        )
        table.note(f"{_SHARED} / tool without start: {listed}")
    if peer:
        table.note(
            f"the tool: a new Java process for each run ({start:.2f} s for --version alone), queried for "
            "both logs as two groups. It reads no pending ranges, Dagster runs or events. A tick also makes "
            "five queries to Dagster's SQLite"
        )
        table.note(
            "Burrow was not measured: its Go module could not be fetched. It is a service, without a "
            "single read to time"
        )
        verdict = (
            f"slower than the tool at {', '.join(slower)}" if slower else "faster than the tool everywhere"
        )
        table.note(f"verdict: without Java's start, {verdict}")
    return table


def _beside(found: Mapping[str, Sequence[float]], way: str, name: str, start: float) -> list[float]:
    """Seconds of a way relative to the tool's without Java's start, in each round."""
    return ratios(found[f"{name}, {way}"], [tool - start for tool in found[f"{name}, {_TOOL}"]])


def _shared(groups: list[WatchedGroup], name: str) -> SharedGroups:
    """The same groups under one sensor."""
    topic, kafka, instance = groups[0].asset.topics[0], groups[0].kafka, groups[0].instance
    return SharedGroups([watched(topic, number, kafka, instance) for number in range(len(groups))], name)


def _idle(
    console: Console, servers: str, sets: dict[str, list[WatchedGroup]], rounds: int, *, peer: bool
) -> Table:
    """A minute of one sensor on idle groups, one with a sensor each, and Kafka's own tool."""
    process = psutil.Process()
    threads = process.num_threads()
    ways: dict[str, Callable[[], list[float]]] = {}
    for name, groups in sets.items():
        shared = _shared(groups, f"idle_{len(groups)}")
        ways[f"{name}, {_SHARED}"] = _settled(shared.tick)
    threads_shared = process.num_threads()
    for name, groups in sets.items():
        ways[f"{name}, {_TICK}"] = _settled(partial(_sum, [group.tick for group in groups]))
        if peer:
            names = [group.asset.group_id for group in groups]
            rows = sum(len(group.kafka.cluster().partitions(group.asset.topics)) for group in groups)
            ways[f"{name}, {_TOOL}"] = partial(
                _sums, [partial(kafka_tools.describe, servers, names, expected_rows=rows)]
            )
    if peer:
        ways[_JAVA] = partial(_sums, [partial(kafka_tools.java_start, servers)])
    found = interleaved(console, "idle groups", ways, rounds)
    table = Table(
        "one round of ticks: idle groups",
        (
            "groups x partitions",
            "a sensor each, median of a minute's ticks",
            "mean",
            f"{_SHARED}, median of a minute's ticks",
            "mean",
            "longest",
            "the tool without Java's start",
        ),
    )
    start = statistics.median(one for [one] in found[_JAVA]) if peer else 0.0
    for name in sets:
        each, one_sensor = found[f"{name}, {_TICK}"], found[f"{name}, {_SHARED}"]
        cells = [_middles(each), _of_all(statistics.mean, each)]
        cells += [_middles(one_sensor), _of_all(statistics.mean, one_sensor), _of_all(max, one_sensor)]
        tool = (
            f"{statistics.median(one for [one] in found[f'{name}, {_TOOL}']) - start:.2f} s" if peer else ""
        )
        table.add(name, *cells, tool)
    table.note(
        f"{rounds} rounds, interleaved; a tick each {TICK_SECONDS} s of the sensor's clock. Each "
        "group has a whole tick in a minute; the other ticks find no change, and read no commits"
    )
    table.note(f"threads {threads} -> {threads_shared} with {_SHARED} alone -> {process.num_threads()}")
    return table


def _settled(tick: Callable[[], float]) -> Callable[[], list[float]]:
    """A minute of these ticks, after two until the groups are idle and have their turns."""
    clock = MinuteClock()
    for _ in range(2):
        clock.minute(tick)
    return partial(clock.minute, tick)


def _middles(minutes: Sequence[Sequence[float]]) -> str:
    return median_and_range([statistics.median(minute) for minute in minutes], ".3f", " s")


def _of_all(of: Callable[[list[float]], float], minutes: Sequence[Sequence[float]]) -> str:
    return f"{of([tick for minute in minutes for tick in minute]):.3f} s"


def _median(call: Callable[[], list[float]]) -> float:
    return statistics.median(call())


def _sums(calls: Sequence[Callable[[], float]]) -> list[float]:
    return [_sum(calls)]


def _sum(calls: Sequence[Callable[[], float]]) -> float:
    return sum(call() for call in calls)


def _requests(servers: str, groups: dict[int, WatchedGroup]) -> Table:
    """What one tick asks the broker, by the number of partitions.

    With clients that are open, and with new ones.
    """
    table = Table(
        "requests of one tick, by the number of partitions", ("partitions", "clients open", "new clients")
    )
    counts = set()
    for partitions, group in groups.items():
        cold, _, warm = _logged(group.asset.topics[0], servers)
        table.add(f"{partitions:,}", _told(warm), _told(cold))
        counts.add(warm.total())
    table.note(
        f"verdict: {'the same number' if len(counts) == 1 else 'NOT the same number'} of requests in each row"
    )
    return table


def _keys(
    console: Console, topic: str, kafka: kl.KafkaLivenessResource, instance: dg.DagsterInstance, servers: str
) -> Table:
    """Measure a tick with so many crash lag partitions done, once with nothing pending and once with some."""
    table = Table(
        "processor time of a tick, by the number of crash lag partitions that are done",
        (
            "partitions done",
            "nothing pending",
            "the same, each minute",
            "something pending",
            "the same, each minute",
        ),
    )
    for number, keys in enumerate(KEYS):
        group = watched(topic, number, kafka, instance)
        with console.status(f"{keys:,} crash lag partitions that are done"):
            caught_up(group, servers, 10)
            have_done(group, keys)
            cells = _cpu_of_ticks(group)
            crash(group, servers, 10)
            cells += _cpu_of_ticks(group)
        table.add(f"{keys:,}", *(f"{1000 * seconds:.0f} ms" for seconds in cells))
    table.note(
        "medians of nine. Each minute a tick also reports the group, and pending ranges without a partition"
    )
    return table


def _cpu_of_ticks(group: WatchedGroup) -> list[float]:
    """Seconds of an ordinary tick, and of one that tells how the group is."""
    group.tick()
    return [statistics.median(_cpu_of(group, is_due=is_due) for _ in range(9)) for is_due in (False, True)]


def _cpu_of(group: WatchedGroup, *, is_due: bool) -> float:
    observed_at = 0.0 if is_due else time.time()
    group.cursor = GroupCursor.decode(group.cursor).model_copy(update={"observed_at": observed_at}).encode()
    began = time.process_time()
    group.tick()
    return time.process_time() - began


def _told(requests: Counter[str]) -> str:
    return f"{requests.total()}: " + ", ".join(
        f"{number} {name}" for name, number in sorted(requests.items())
    )


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
