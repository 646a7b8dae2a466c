"""Run Flink in one JVM as a peer: Kafka's source, Iceberg's sink, exactly once by checkpoints.

Never reads a result from Flink: the table is compared by ``benchmarks.lake``.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil

from benchmarks import peers
from kafka_liveness_dagster.embedded.processes import last_lines
from kafka_liveness_dagster.embedded.spark import CATALOG

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.lake import Lake
    from kafka_liveness_dagster.spark.table.table import IcebergTable

VERSION = "2.1.2"
_OPENED = ("java.lang", "java.util", "java.util.concurrent", "java.time", "java.net", "java.nio", "java.text")
# Each of its consumers registers the same metrics again, and a line of the log for each
_LOGGING = tuple(
    f"-Dorg.slf4j.simpleLogger.{name}"
    for name in ("defaultLogLevel=warn", "log.org.apache.flink.metrics.MetricGroup=error")
)


class Flink:
    """A cluster in one process, for one job at a time."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log

    @property
    def process(self) -> psutil.Process:
        """The process of the cluster."""
        return psutil.Process(self._process.pid)

    def write(self, topic: str, table: IcebergTable, interval_ms: int) -> float:
        """Write a topic until the log end, and return the seconds from the submission to the job's end."""
        began = time.perf_counter()
        self.start(topic, table, interval_ms)
        self.await_answer("done")
        return time.perf_counter() - began

    def start(
        self,
        topic: str,
        table: IcebergTable,
        interval_ms: int,
        checkpoints: Path | None = None,
        *,
        restored: Path | None = None,
    ) -> None:
        """Submit a job; with a folder for its checkpoints it goes on until the process ends."""
        name = table.name.removeprefix(f"{CATALOG}.")
        fields = (topic, name, str(interval_ms), str(checkpoints or ""), str(restored or ""))
        assert self._process.stdin is not None  # noqa: S101 - it was started with one
        self._process.stdin.write("\t".join(fields) + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """End the process by SIGKILL."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def await_answer(self, wanted: str) -> None:
        """Wait for the next line of the process.

        Raises:
            RuntimeError: the line is another one, or the process has ended.
        """
        assert self._process.stdout is not None  # noqa: S101 - it was started with one
        answer = self._process.stdout.readline().strip()
        if answer != wanted:
            raise RuntimeError(f"Flink answered {answer!r} instead of {wanted!r}:\n{last_lines(self._log)}")


@contextmanager
def flink(services: Lake) -> Iterator[Flink]:
    """Start a cluster on the broker and the catalog of a benchmark; it ends with the block."""
    path = peers.class_path("flink")
    classes = peers.compiled(peers.HERE / "FlinkPeer.java", path)
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    settings = [f"{name}={value}" for name, value in services.options("-flink").items()]
    catalog = [f"catalog.{name}={value}" for name, value in services.catalog.items()]
    folder = services.home / "flink"
    folder.mkdir(exist_ok=True)
    log = folder / "flink.log"
    options = [*_LOGGING, *opened, "-cp", f"{classes}:{path}", "FlinkPeer"]
    with peers.java(options, [*settings, *catalog], folder, log) as process:
        found = Flink(process, log)
        found.await_answer("ready")
        yield found


def last_checkpoint(folder: Path) -> Path:
    """Return the folder of the last complete checkpoint of a job.

    Raises:
        RuntimeError: there is none.
    """
    complete = [file.parent for file in folder.glob("*/chk-*/_metadata")]
    if not complete:
        raise RuntimeError(f"Flink made no complete checkpoint in {folder}")
    return max(complete, key=lambda one: int(one.name.removeprefix("chk-")))
