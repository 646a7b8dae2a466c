"""Measure the seconds from SIGKILL to fresh data, and each step between.

The steps: detection of the crash, the start of a process, its join.

A pipeline reads 50 orders a second from 8 partitions. What runs it is killed with SIGKILL; the clock starts
then, and stops when Iceberg committed the first snapshot with a record that was produced after it: the
table's own `committed_at`, for all alike.

- the live lane with the dagster.yaml of docs/dagster-instance.md: a sensor's tick, which has a thread of the
  daemon's own, notices the death of the run worker, and the queue is looked at each second. The Spark server
  and Kafka live on;
- the same with Dagster's defaults, where the sensor and the queue check every 5 s;
- Structured Streaming in a process of its own, with Spark in it, killed and started again at once by this
  benchmark, as no supervisor could do it sooner;
- Flink in one JVM, with a checkpoint each second, killed and started again at once in the same way. It goes
  on from its last complete checkpoint.

The tables of both peers are compared with the topic afterwards: every offset once.

    python -m benchmarks.crash_to_fresh --write benchmarks/RESULTS.md
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import click
import dagster as dg
from rich.console import Console

from benchmarks import crashing, stream_driver
from benchmarks.daemon import QUEUE, Daemon
from benchmarks.lake import Lake, fresh_at, lake, log_ends, new_topic
from benchmarks.left_behind import Trickle
from benchmarks.peers.flink import flink, last_checkpoint
from benchmarks.report import Table, keep, show
from benchmarks.turns import Seconds, interleaved, median_and_range
from kafka_liveness_dagster.embedded.jars import find_java, pyspark_folder
from kafka_liveness_dagster.runs.tags import heartbeat_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kafka_liveness_dagster.spark.table.table import IcebergTable

TITLE = "From SIGKILL to fresh data"
PARTITIONS = 8
LIVE, DEFAULTS = "live lane, through Dagster", "live lane, Dagster's defaults"
STREAM = "Structured Streaming, restarted at once"
FLINK = "Flink, restarted at once"
FRESH = "a fresh record is in the table"
GOAL_SECONDS = {LIVE: 3.0, DEFAULTS: 6.0}
_PATIENCE = 120.0
_CHECKPOINT_MS = 1_000
_RECOMMENDED = f"{QUEUE}sensors: {{use_threads: true, num_workers: 8}}\n"
_EVENTS = {
    dg.DagsterEventType.RUN_STARTING: "taken from the queue",
    dg.DagsterEventType.RUN_START: "the next run's process works",
}
_LINES = {"process timeout ": "joins the group"}
Moments = dict[str, float]


@click.command()
@click.option(
    "--repetitions", default=10, show_default=True, help="Of each way, after one that is not counted."
)
@click.option("--peers/--no-peers", default=True, help="Flink.")
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Keep the section in this file."
)
def main(repetitions: int, *, peers: bool, write: Path | None) -> None:
    """Kill what runs a pipeline, and measure until its table has fresh data again.

    About 20 minutes: a crash may happen at any moment between two looks of Dagster's daemon.
    """
    console = Console()
    with lake() as services:
        ways: dict[str, Callable[[], Moments]] = {
            LIVE: partial(_live, services, _RECOMMENDED),
            DEFAULTS: partial(_live, services, ""),
            STREAM: partial(_stream, services),
        }
        if peers:
            ways[FLINK] = partial(_flink, services)
        found = interleaved(console, "killing", ways, repetitions, list(ways))
    table = _described(found)
    show(console, table)
    if write is not None:
        keep(write, TITLE, "python -m benchmarks.crash_to_fresh", [table])
        console.print(f"kept in {write}")


def _live(services: Lake, settings: str) -> Moments:
    topic, table = new_topic(services.servers, PARTITIONS), services.new_table()
    env = {crashing.TOPIC: topic, crashing.TABLE: table.name}
    with (
        Daemon(services.home / f"dagster-{topic}", crashing.__name__, env, settings=settings) as daemon,
        Trickle(services.servers, topic, PARTITIONS),
    ):

        def at_work(but: str = "") -> dg.RunRecord | None:
            records = daemon.instance.get_run_records(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
            known = (
                one
                for one in records
                if one.dagster_run.run_id != but and heartbeat_of(one.dagster_run).process
            )
            return next(known, None)

        first = daemon.await_("live run", at_work)
        _await_fresh(services, topic, table, time.time())
        time.sleep(random.uniform(0, 5))  # noqa: S311 - the daemon comes by every 5 s: a crash comes at any moment
        worker = heartbeat_of(first.dagster_run).process
        assert worker is not None  # noqa: S101 - it was looked for
        killed_at = time.time()
        os.kill(worker.pid, signal.SIGKILL)
        fresh = _await_fresh(services, topic, table, killed_at)
        after = daemon.await_("next run", partial(at_work, but=first.dagster_run.run_id))
        found = {"the sensor requests the next run": after.create_timestamp.timestamp() - killed_at}
        for entry in daemon.instance.all_logs(after.dagster_run.run_id):
            text = entry.user_message or entry.message
            if entry.dagster_event is not None:
                name = _EVENTS.get(entry.dagster_event.event_type)
            else:
                name = next((name for start, name in _LINES.items() if text.startswith(start)), None)
            if name is not None:
                found.setdefault(name, entry.timestamp - killed_at)
    return {**found, FRESH: fresh}


def _stream(services: Lake) -> Moments:
    topic, table = new_topic(services.servers, PARTITIONS), services.new_table()
    folder = services.home / f"stream-{topic}"
    conf = folder / "conf"
    shutil.copytree(services.home / "spark" / "conf", conf)
    ours = ("spark.connect.", "spark.driver.extraJavaOptions", "spark.local.dir")
    lines = (conf / "spark-defaults.conf").read_text().splitlines()
    (conf / "spark-defaults.conf").write_text(
        "\n".join(one for one in lines if not one.startswith(ours)) + "\n"
    )
    start = partial(_driver, services, folder, conf, topic, table)
    with Trickle(services.servers, topic, PARTITIONS):
        with start() as driver:
            _await_fresh(services, topic, table, time.time())
            killed_at = time.time()
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        with start():
            fresh = _await_fresh(services, topic, table, killed_at)
    services.drop_exact(table)
    return {FRESH: fresh}


def _flink(services: Lake) -> Moments:
    topic, table = new_topic(services.servers, PARTITIONS), services.new_table()
    checkpoints = services.home / f"checkpoints-{topic}"
    with Trickle(services.servers, topic, PARTITIONS):
        with flink(services) as running:
            running.start(topic, table, _CHECKPOINT_MS, checkpoints)
            _await_fresh(services, topic, table, time.time())
            killed_at = time.time()
            running.kill()
        with flink(services) as running:
            last = last_checkpoint(checkpoints)
            running.start(topic, table, _CHECKPOINT_MS, checkpoints, restored=last)
            fresh = _await_fresh(services, topic, table, killed_at)
    services.drop_exact(table)
    return {FRESH: fresh}


@contextmanager
def _driver(
    services: Lake, folder: Path, conf: Path, topic: str, table: IcebergTable
) -> Iterator[subprocess.Popen[bytes]]:
    """One life of the peer's driver.

    A Python process and its JVM, a group of processes that ends with the block.
    """
    # SPARK_CONNECT_MODE_ENABLED belongs to this process
    theirs = {name: value for name, value in os.environ.items() if name != "SPARK_CONNECT_MODE_ENABLED"}
    env = {**theirs, "SPARK_HOME": str(pyspark_folder()), "SPARK_CONF_DIR": str(conf),
           "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_HOME": str(find_java().parent.parent),
           "PYSPARK_PYTHON": sys.executable}  # fmt: skip
    options = json.dumps(services.options(reader=f"-{uuid4().hex[:4]}"))
    told = [str(stream_driver.__file__), options, topic, table.name, str(folder / "checkpoint")]
    with (folder / "driver.log").open("ab") as log:
        driver = subprocess.Popen(
            [sys.executable, *told], env=env, cwd=folder, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        yield driver
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def _await_fresh(services: Lake, topic: str, table: IcebergTable, since: float) -> float:
    """Return the seconds from now to the table's first snapshot with a record that is produced later."""
    ends = log_ends(services.servers, topic, PARTITIONS)
    give_up_at = time.monotonic() + _PATIENCE
    while (at := fresh_at(services, table, ends)) is None:
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"no fresh record in {_PATIENCE:.0f} s")
        time.sleep(1)
    return at - since


def _described(found: dict[str, list[Moments]]) -> Table:
    peers = [way for way in (STREAM, FLINK) if way in found]
    table = Table("seconds from SIGKILL: median (spread)", ("moment", *found))
    live = found[LIVE]
    for name in sorted(live[0], key=lambda name: statistics.median(one[name] for one in live)):
        seen = ([one[name] for one in moments if name in one] for moments in found.values())
        table.add(name, *(median_and_range(seconds, unit=" s") if seconds else "" for seconds in seen))
    seconds = Seconds({way: [one[FRESH] for one in moments] for way, moments in found.items()})
    for peer in peers:
        ratios = seconds.ratios(peer, LIVE)
        table.note(f"the live lane {ratios} times as fast as {peer}, in the same repetition")
    for way, goal in GOAL_SECONDS.items():
        table.note(f"goal of the {way}: {goal:g} s at the median; measured: {seconds.median(way):.2f} s")
    table.note(
        "`dequeue_interval_seconds` is a whole number, so a run waits up to a second in Dagster's queue. "
        "Dagster starts a process for each run, which imports Dagster, the code location, Kafka's client and "
        "PySpark"
    )
    table.note(
        f"{LIVE}: with `sensors: {{use_threads: true}}`, so a tick watches the run's process, and "
        "`dequeue_interval_seconds: 1`. By default the sensor and the queue check every 5 s"
    )
    return table


if __name__ == "__main__":
    main()
