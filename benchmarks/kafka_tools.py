"""Kafka's own look at the same groups: ``kafka-consumer-groups``, whose jar is downloaded by the Ivy of pyspark."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_liveness_dagster.embedded import jars
from kafka_liveness_dagster.embedded.java import find_java

if TYPE_CHECKING:
    from collections.abc import Sequence

_VERSION = "4.3.1"
_ENOUGH_SECONDS = 600


def describe(bootstrap_servers: str, groups: Sequence[str], *, expected_rows: int) -> float:
    """Seconds of ``--describe`` of these groups: commits and log ends, by the Java client in a new process."""
    asked = (argument for group in groups for argument in ("--group", group))
    began = time.perf_counter()
    rows = _run(bootstrap_servers, "--describe", *asked)
    seconds = time.perf_counter() - began
    if rows < expected_rows:
        raise RuntimeError(f"kafka-consumer-groups told {rows} partitions, wanted {expected_rows}")
    return seconds


def java_start(bootstrap_servers: str) -> float:
    """Seconds of ``--version``: Java and the tool's classes, nobody is asked."""
    began = time.perf_counter()
    _run(bootstrap_servers, "--version")
    return time.perf_counter() - began


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
