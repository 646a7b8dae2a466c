"""Kafka's own look.

``kafka-consumer-groups``, and ``JmxTool`` for a broker's counts, whose jar Ivy of pyspark gets.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_liveness_dagster.embedded import jars
from kafka_liveness_dagster.embedded.jars import find_java
from kafka_liveness_dagster.embedded.processes import LOOPBACK, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_VERSION = "4.3.1"
_ENOUGH_SECONDS = 600
_PACKAGE = "org.apache.kafka.tools"
_JAVA_OPTIONS = "JDK_JAVA_OPTIONS"
_REQUESTS = "kafka.network:type=RequestMetrics,name=RequestsPerSec,*"
# A Fetch is counted as both
_COUNTED = re.compile(r"request=(?!FetchConsumer|FetchFollower)(\w+),.*Count=(\d+)")


def describe(bootstrap_servers: str, groups: Sequence[str], *, expected_rows: int) -> float:
    """Seconds of ``--describe`` of these groups.

    Commits and log ends, by the Java client in a new process.
    """
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


@contextmanager
def open_to_jmx() -> Iterator[int]:
    """A broker that is started in the block tells what it counts at this port of loopback."""
    port, option = free_port(), "-Dcom.sun.management.jmxremote"
    before = os.environ.get(_JAVA_OPTIONS)
    os.environ[_JAVA_OPTIONS] = (
        f"{before or ''} {option}.port={port} {option}.rmi.port={port} {option}.host={LOOPBACK} "
        f"{option}.authenticate=false {option}.ssl=false -Djava.rmi.server.hostname={LOOPBACK}"
    )
    try:
        yield port
    finally:
        os.environ.pop(_JAVA_OPTIONS)
        os.environ.update({} if before is None else {_JAVA_OPTIONS: before})


def requests(jmx_port: int) -> Counter[str]:
    """How many requests of each kind a broker has received, from whomever; a second of Java's time."""
    url = f"service:jmx:rmi:///jndi/rmi://{LOOPBACK}:{jmx_port}/jmxrmi"
    told = _told("JmxTool", "--one-time", "--jmx-url", url, "--object-name", _REQUESTS,
                 "--attributes", "Count", "--report-format", "properties")  # fmt: skip
    found: Counter[str] = Counter()
    for kind, count in _COUNTED.findall(told):  # a line for each version of it
        found[kind] += int(count)
    return found


def _run(bootstrap_servers: str, *arguments: str) -> int:
    """How many lines the tool wrote that name a partition of ours."""
    servers = ("--bootstrap-server", bootstrap_servers, "--timeout", "60000")
    told = _told("consumer.group.ConsumerGroupCommand", *servers, *arguments)
    return sum(line.startswith("bench-") for line in told.splitlines())


def _told(tool: str, *arguments: str) -> str:
    path = f"{_tools()}{os.pathsep}{jars.resolve_jars('kafka')}/*"
    done = subprocess.run(
        [str(find_java()), "-Xmx512m", "-cp", path, f"{_PACKAGE}.{tool}", *arguments],
        capture_output=True, text=True, check=False, timeout=_ENOUGH_SECONDS,
    )  # fmt: skip
    if done.returncode:
        said = f"{done.stdout[-500:]}{done.stderr[-1500:]}"
        raise RuntimeError(f"{tool} failed with {done.returncode}:\n{said}")
    return done.stdout


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
                "-dependency", "org.apache.kafka", "kafka-tools", _VERSION,
                "-confs", "default", "-notransitive", "-cache", f"{folder}/cache",
                "-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]",
            ],
            check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        (Path(folder) / found.name).rename(found)
    return found
