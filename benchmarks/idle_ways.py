"""Who may have nothing to do?

A run, a sensor, a session; and their peers: each at rest in a block, as processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import dagster as dg
import psutil

from benchmarks import crashing, idle_child, resting
from benchmarks.daemon import Daemon
from benchmarks.lake import fill, new_topic
from benchmarks.ways import start_stream
from kafka_liveness_dagster.embedded import processes as embedded_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.lake import Lake
    from kafka_liveness_dagster.spark.table.table import IcebergTable

PARTITIONS, RECORDS = 8, 8_000
_KEPT_ALIVE, _SOON = "86400", "1"  # idle_seconds of a run
_ASSET = dg.AssetKey("orders")
_PATIENCE = 120.0
SETTLE_SECONDS = 15.0  # what a start has left to do, in the JVMs above all
_READ_SECONDS = 60.0  # between the sensor's reads of the table
_THIRD_READ_SECONDS = 2 * _READ_SECONDS + SETTLE_SECONDS  # a session's first reads cost the most


@dataclass(frozen=True)
class Resting:
    """Who has nothing to do now.

    Attributes:
        processes: its own, by what they are; not the Spark server and not the broker.
        ticks: how many ticks of sensors there have been since a moment (seconds since the epoch).
        settle_seconds: time from then until it is at rest.
        period_seconds: time in which it does each of its tasks; it is measured for no less.
    """

    processes: dict[str, list[psutil.Process]]
    ticks: Callable[[float], int] = lambda _since: 0
    settle_seconds: float = SETTLE_SECONDS
    period_seconds: float = 0.0


class Ways:
    """All of them, on the same services.

    Each makes a topic, processes it, and rests until the end of its block.
    """

    def __init__(self, services: Lake) -> None:
        self._services = services

    @contextmanager
    def nobody(self) -> Iterator[Resting]:
        """What Kafka and Spark do by themselves."""
        yield Resting({})

    @contextmanager
    def live_run(self) -> Iterator[Resting]:
        """A run worker that is kept alive by a long `idle_seconds`."""
        topic, table = self._work()
        with self.live_run_of(topic, table) as run:
            yield run

    @contextmanager
    def live_run_of(
        self, topic: str, table: IcebergTable, commit_interval_seconds: float = 0.0
    ) -> Iterator[Resting]:
        """A run worker of a topic, after its first batch."""
        home = self._services.home / f"dagster-{topic}"
        home.mkdir()
        (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        told = [sys.executable, "-m", "dagster", "job", "execute", "-m", resting.__name__, "-j", resting.JOB]
        instance = dg.DagsterInstance.from_config(str(home))
        env = {
            **self._env(topic, table, _KEPT_ALIVE),
            crashing.INTERVAL: str(commit_interval_seconds),
            "DAGSTER_HOME": str(home),
        }
        with self._child(told, env) as child:
            _await("batch", child, lambda: instance.get_latest_materialization_event(_ASSET) is not None)
            yield Resting({"run worker": _tree(child)})
        instance.dispose()

    @contextmanager
    def sensor(self, *, empty: bool = False) -> Iterator[Resting]:
        """Start the daemon and its code server, with an empty sensor, or the group's after its run ended."""
        topic, table = self._work()
        env = {**self._env(topic, table, _SOON), **({resting.EMPTY: "yes"} if empty else {})}
        home = self._services.home / f"dagster-{topic}"
        with Daemon(home, resting.__name__, env, code_server=True) as daemon:
            done = dg.RunsFilter(statuses=[dg.DagsterRunStatus.SUCCESS])
            daemon.await_(
                "tick" if empty else "run",
                lambda: (
                    (_ticks(daemon.instance, 0.0) if empty else daemon.instance.get_runs_count(done)) or None
                ),
            )
            assert daemon.server is not None  # noqa: S101 - it was asked for
            processes = {"daemon": [daemon.daemon], "code server": [daemon.server]}
            settle = SETTLE_SECONDS if empty else _THIRD_READ_SECONDS
            yield Resting(processes, lambda since: _ticks(daemon.instance, since), settle, _READ_SECONDS)

    @contextmanager
    def session(self) -> Iterator[Resting]:
        """An open Spark Connect session."""
        with self._idle_child("hold") as resting_child:
            yield resting_child

    @contextmanager
    def polling(self) -> Iterator[Resting]:
        """A plain consumer."""
        topic, _ = self._work()
        with self._idle_child("poll", self._services.servers, topic) as resting_child:
            yield resting_child

    @contextmanager
    def stream(self) -> Iterator[Resting]:
        """Structured Streaming; it is all in the Spark server."""
        topic, table = self._work()
        checkpoint = str(self._services.home / f"checkpoint-{topic}")
        query = start_stream(self._services, topic, table, 500_000, checkpoint, processingTime="1 second")
        try:
            query.processAllAvailable()
            yield Resting({})
        finally:
            query.stop()

    def _work(self) -> tuple[str, IcebergTable]:
        topic = new_topic(self._services.servers, PARTITIONS)
        fill(self._services.servers, topic, PARTITIONS, RECORDS)
        return topic, self._services.new_table()

    def _env(self, topic: str, table: IcebergTable, idle: str) -> dict[str, str]:
        return {crashing.TOPIC: topic, crashing.TABLE: table.name, crashing.IDLE: idle}

    @contextmanager
    def _idle_child(self, *told: str) -> Iterator[Resting]:
        with self._child([sys.executable, "-m", idle_child.__name__, *told], {}) as child:
            assert child.stdout is not None  # noqa: S101 - it is a pipe
            if child.stdout.readline().strip().decode() != idle_child.READY:
                raise RuntimeError(f"{told[0]} ended before it was at rest")
            yield Resting({"process": _tree(child)})

    @contextmanager
    def _child(self, command: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
        log = self._services.home / f"child-{uuid4().hex[:8]}.log"
        with log.open("wb") as errors:
            child = subprocess.Popen(
                command, env={**os.environ, "PYTHONPATH": str(Path.cwd()), **env},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        try:
            yield child
        except Exception as error:
            raise RuntimeError(embedded_processes.last_lines(log)) from error
        finally:
            embedded_processes.end_processes([psutil.Process(child.pid)])
            child.communicate()


def _tree(child: subprocess.Popen[bytes]) -> list[psutil.Process]:
    one = psutil.Process(child.pid)
    return [one, *one.children(recursive=True)]


def _ticks(instance: dg.DagsterInstance, since: float) -> int:
    states = instance.all_instigator_state()
    return sum(
        len(instance.get_ticks(one.instigator_origin_id, one.selector_id, after=since)) for one in states
    )


def _await(what: str, child: subprocess.Popen[bytes], found: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + _PATIENCE
    while not found():
        if child.poll() is not None or time.monotonic() > give_up_at:
            raise RuntimeError(f"no {what} in {_PATIENCE:.0f} s")
        time.sleep(0.2)
