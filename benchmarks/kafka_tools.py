"""Kafka's own look at the same groups: ``kafka-consumer-groups``, whose jar is downloaded by the Ivy of pyspark."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.report import Table
from kafka_liveness_dagster.embedded import jars
from kafka_liveness_dagster.embedded.java import find_java

_VERSION = "4.3.1"
_ROUNDS = 3
_ENOUGH_SECONDS = 600


def describe_all(bootstrap_servers: str, *, expected_rows: int) -> Table:
    """Seconds of ``--describe --all-groups``: commits and log ends of every group, by the Java client."""
    table = Table("Kafka's own tool on the same groups", ("kafka-consumer-groups --describe", "seconds"))
    for number in range(_ROUNDS):
        began = time.perf_counter()
        rows = _run(bootstrap_servers, "--describe", "--all-groups")
        seconds = time.perf_counter() - began
        table.add(f"--all-groups, run {number + 1}", f"{seconds:.1f} s")
        if rows < expected_rows:
            raise RuntimeError(f"kafka-consumer-groups told {rows} partitions, wanted {expected_rows}")
    began = time.perf_counter()
    _run(bootstrap_servers, "--version")
    table.add("--version: Java's start alone", f"{time.perf_counter() - began:.1f} s")
    table.note("a new Java process for each run; no state, no owed ranges, no runs: it shows both logs as two groups")
    return table


def _run(bootstrap_servers: str, *arguments: str) -> int:
    """How many lines the tool wrote that name a partition of ours."""
    path = f"{_tools()}{os.pathsep}{jars.resolve('kafka')}/*"
    command = [str(find_java()), "-Xmx512m", "-cp", path, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"]
    done = subprocess.run(
        [*command, "--bootstrap-server", bootstrap_servers, "--timeout", "60000", *arguments],
        capture_output=True, text=True, check=False, timeout=_ENOUGH_SECONDS,
    )  # fmt: skip
    if done.returncode:
        told = f"{done.stdout[-500:]}{done.stderr[-1500:]}"
        raise RuntimeError(f"kafka-consumer-groups failed with {done.returncode}:\n{told}")
    return sum(line.startswith("bench-") for line in done.stdout.splitlines())


def _tools() -> Path:
    """The one jar that the broker's do not hold."""
    found = jars.jars_folder() / f"kafka-tools-{_VERSION}.jar"
    if found.exists():
        return found
    ivy = next((jars.pyspark_folder() / "jars").glob("ivy-2*.jar"))
    named = os.environ.get("KAFKA_LIVENESS_IVY_SETTINGS")
    settings = ["-settings", named] if named else []
    with tempfile.TemporaryDirectory(dir=found.parent) as folder:
        subprocess.run(
            [
                str(find_java()), "-cp", str(ivy), "org.apache.ivy.Main", *settings,
                "-dependency", "org.apache.kafka", "kafka-tools", _VERSION, "-confs", "default", "-notransitive",
                "-cache", f"{folder}/cache", "-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]",
            ],
            check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        (Path(folder) / found.name).rename(found)
    return found
