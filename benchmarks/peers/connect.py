"""Run Kafka Connect as a peer: a standalone worker with Iceberg's sink, which adds rows by transforms alone.

Never reads a result from Connect: the table's metadata has the number of rows and the hour of each commit.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import time
import urllib.error
import urllib.request
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil

from benchmarks import peers
from benchmarks.lake import new_topic
from kafka_liveness_dagster.embedded.processes import LOOPBACK, free_port, last_lines
from kafka_liveness_dagster.embedded.spark import CATALOG

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from benchmarks.lake import Lake
    from kafka_liveness_dagster.spark.table.table import IcebergTable

VERSION, SINK_VERSION = "4.3.1", "1.12.0"
TASKS = 2
_START_SECONDS, _RUN_SECONDS = 60, 300
_FLUSH_MS = 100
_LOG4J = ("log4j-api", "log4j-core", "log4j-slf4j2-impl")
_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""
_TEXT = "org.apache.kafka.connect.storage.StringConverter"
_TRANSFORMS = {
    "transforms": "order,origin",
    "transforms.order.type": "org.apache.kafka.connect.transforms.HoistField$Value",
    "transforms.order.field": "order_json",
    "transforms.origin.type": "org.apache.kafka.connect.transforms.InsertField$Value",
    **{f"transforms.origin.{field}.field": field for field in ("topic", "partition", "offset")},
}
"""The transform of every way: the order as text next to the offset that it came from."""


class Connect:
    """A standalone worker in one process, for one connector at a time."""

    def __init__(self, services: Lake, process: subprocess.Popen[str], port: int, log: Path) -> None:
        self._services, self._process = services, process
        self._port, self._log = port, log

    @property
    def process(self) -> psutil.Process:
        """The process of the worker."""
        return psutil.Process(self._process.pid)

    def write(self, topic: str, table: IcebergTable, records: int, interval_ms: int) -> float:
        """Write a topic, and return the seconds from the connector's creation to its last commit.

        Raises:
            RuntimeError: a task failed, or the worker ended.
            TimeoutError: the table lacks records after 300 s.
        """
        name = f"sink-{uuid4().hex[:8]}"
        settings = self._settings(topic, table, interval_ms)
        began = time.time()
        self._request("POST", "/connectors", {"name": name, "config": settings})
        give_up_at = began + _RUN_SECONDS
        while (newest := self._newest(table))[0] < records:
            self._check(name)
            if time.time() > give_up_at:
                raise TimeoutError(
                    f"{table.name} has {newest[0]:,} of {records:,} rows after {_RUN_SECONDS} s:\n"
                    f"{last_lines(self._log)}"
                )
            time.sleep(0.1)
        self._request("DELETE", f"/connectors/{name}")
        return newest[1] - began

    def is_up(self) -> bool:
        """Return whether the worker responds."""
        if self._process.poll() is not None:
            raise RuntimeError(f"Connect ended with {self._process.returncode}:\n{last_lines(self._log)}")
        try:
            self._request("GET", "/connectors")
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def _settings(self, topic: str, table: IcebergTable, interval_ms: int) -> dict[str, str]:
        control = new_topic(self._services.servers, 1)
        properties = self._services.catalog
        return {
            "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
            "tasks.max": str(TASKS),
            "topics": topic,
            "iceberg.tables": table.name.removeprefix(f"{CATALOG}."),
            "iceberg.control.topic": control,
            "iceberg.control.commit.interval-ms": str(interval_ms),
            "iceberg.catalog": properties["name"],
            "iceberg.catalog.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            **{f"iceberg.catalog.{name}": value for name, value in properties.items() if name != "name"},
            "iceberg.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
            **_TRANSFORMS,
        }

    def _newest(self, table: IcebergTable) -> tuple[int, float]:
        """Return the rows of the newest snapshot and its commit in seconds since the epoch."""
        _, namespace, name = table.name.split(".")
        with closing(sqlite3.connect(f"file:{self._services.home}/catalog.db?mode=ro", uri=True)) as catalog:
            query = (
                "SELECT metadata_location FROM iceberg_tables "
                "WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
            )
            (location,) = catalog.execute(query, (CATALOG, namespace, name)).fetchone()
        written = Path(location.removeprefix("file:")).read_bytes()
        metadata = json.loads(gzip.decompress(written) if ".gz." in location else written)
        newest = max(metadata["snapshots"], key=lambda one: one["sequence-number"])
        return int(newest["summary"].get("total-records", 0)), newest["timestamp-ms"] / 1000

    def _check(self, name: str) -> None:
        status = self._request("GET", f"/connectors/{name}/status")
        for part in (status["connector"], *status["tasks"]):
            if part["state"] == "FAILED":
                raise RuntimeError(f"Connect's sink failed:\n{part['trace'][:2000]}")

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"http://{LOOPBACK}:{self._port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=_START_SECONDS) as response:  # noqa: S310 - loopback
            return json.loads(response.read() or b"null")


@contextmanager
def connect(services: Lake) -> Iterator[Connect]:
    """Start a standalone worker on the broker of a benchmark; it ends with the block."""
    path = peers.class_path("connect", of_spark=_LOG4J)
    folder = services.home / "connect"
    folder.mkdir(exist_ok=True)
    (folder / "log4j2.properties").write_text(_LOGGING)
    port = free_port()
    consumer = {
        f"consumer.{name.removeprefix('kafka.')}": value
        for name, value in services.options().items()
        if name not in ("kafka.bootstrap.servers", "kafka.group.id")
    }
    settings = {
        "bootstrap.servers": services.servers,
        "listeners": f"http://{LOOPBACK}:{port}",
        "key.converter": _TEXT,
        "value.converter": _TEXT,
        "plugin.discovery": "service_load",
        # A sink handles its commits between polls. Without new records a poll lasts until the next flush, by
        # default 60 s: the last commit of a topic would wait for it
        "offset.flush.interval.ms": str(_FLUSH_MS),
        "offset.storage.file.filename": str(folder / "offsets"),
        **consumer,
    }
    worker = folder / "worker.properties"
    worker.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    log = folder / "connect.log"
    options = [f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}", "-cp", path]
    main = ["org.apache.kafka.connect.cli.ConnectStandalone", str(worker)]
    with peers.java(options, main, folder, log) as process:
        found = Connect(services, process, port, log)
        give_up_at = time.monotonic() + _START_SECONDS
        while not found.is_up():
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"Connect did not start in {_START_SECONDS} s:\n{last_lines(log)}")
            time.sleep(0.2)
        yield found
