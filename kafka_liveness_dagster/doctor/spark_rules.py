"""Rules for a Spark Connect server: it can read the planned records and write them to the table.

Versions come from ``version()`` and from the names of jars. Settings are texts; None if not set. Queries
nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.names import format_duration
from kafka_liveness_dagster.doctor.rules import FAIL, OK, UNKNOWN, WARN, CheckResult, Rule

if TYPE_CHECKING:
    from collections.abc import Mapping

ICEBERG = "1.12.0"  # the tested version, in embedded/ivy-spark.xml
_ICEBERG_EXTENSIONS = "IcebergSparkSessionExtensions"
_ICEBERG_CATALOGS = ("org.apache.iceberg.spark.SparkCatalog", "org.apache.iceberg.spark.SparkSessionCatalog")
_LOCAL = ("", "file", "hdfs", "viewfs")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "": 1e-3}
_DETACHED_TIMEOUT = "spark.connect.execute.manager.detachedTimeout"
_DETACHED_SECONDS = 60.0
_PROGRESS_INTERVAL = "spark.connect.progress.reportInterval"
_REPORT_SECONDS = 1.0
_FETCH_TIMEOUT = "spark.kafka.consumer.fetchedData.cache.timeout"
_CACHED_SECONDS = 60.0
_SCHEDULER = "spark.scheduler.mode"
_SKEW_SECONDS = 2.0


@dataclass(frozen=True)
class Jar:
    """The jar of a class on the server, by its name.

    The name is empty if the jar is not on the server's own class path.
    """

    name: str

    @property
    def version(self) -> str | None:
        """The version in the name: ``4.1.3`` of ``spark-sql-kafka-0-10_2.13-4.1.3.jar``."""
        found = re.search(r"-(\d+\.\d+(?:\.\d+)*[^/]*)\.jar$", self.name)
        return found[1] if found else None


@dataclass(frozen=True)
class ClockSkew:
    """The seconds by which a clock is ahead of this machine's: at least ``least``, at most ``most``."""

    least: float
    most: float

    @property
    def certain_seconds(self) -> float:
        """The smallest possible error in either direction; 0 if the clock may be right."""
        return max(self.least, -self.most, 0.0)

    def __str__(self) -> str:
        return f"{self.least:+.2f} to {self.most:+.2f} s"


@dataclass(frozen=True)
class TimeZoneFacts:
    """A time zone: its name and its offsets.

    Attributes:
        name: the name in the settings of its server or machine.
        midnights: ``MIDNIGHTS`` in this zone, in seconds of the Unix epoch.
    """

    name: str
    midnights: tuple[int, ...]


MIDNIGHTS = ("2026-01-01", "2026-07-01")  # one in winter, one in summer


def _version(server: str, client: str) -> CheckResult:
    # Rule 1: client and server use one protocol, and jars are built for one line
    if _version_line(server) != _version_line(client):
        return WARN(
            f"the server is Spark {server}, the client here pyspark {client}",
            f"install pyspark {_version_line(server)} here, or run Spark {_version_line(client)}. The client "
            "sends the protocol of its own version, and only versions of one line were tested together",
        )
    return OK(f"Spark {server}, pyspark {client}")


def _connector(server: str, client: str, jar: Jar | None, run_with: str | None) -> CheckResult:
    # Rule 2: without the connector Spark reads no record. A connector of another line uses classes that this
    # Spark lacks. Within a line, only pairs of pyspark and connector that were tested together are OK
    wanted = f"spark-sql-kafka-0-10_2.13 {_version_line(server)}"
    if jar is None:
        return FAIL(
            "the server has no Kafka connector", f"put {wanted} on its class path. It reads the records"
        )
    if jar.version is None:
        return UNKNOWN(
            "the version of the server's Kafka connector is unknown: its jar is not on the server's own "
            "class path",
            f"check the version of the jar: pyspark {client} goes with {run_with or 'none of docs/spark.md'}",
        )
    if _version_line(jar.version) != _version_line(server):
        return FAIL(f"{jar.name} on Spark {server}", f"replace it with {wanted}. It uses Spark's own classes")
    if _version_line(client) != _version_line(server):
        return OK(jar.name)  # rule 1 warns of the client
    if jar.version != run_with:
        replace = (
            f"replace it with spark-sql-kafka-0-10_2.13 {run_with}, which was tested with pyspark {client}"
        )
        install = "install a pyspark of the table in docs/spark.md. This one was tested with no connector"
        return WARN(f"{jar.name} with pyspark {client}", replace if run_with else install)
    return OK(f"{jar.name} with pyspark {client}")


def _iceberg(server: str, version: str | None, jar: Jar | None) -> CheckResult:
    # Rule 3: without the runtime Spark writes no table; each runtime is built for one line of Spark
    wanted = f"iceberg-spark-runtime-{_version_line(server)}_2.13 {ICEBERG}"
    if version is None:
        return FAIL("the server has no Iceberg", f"put {wanted} on its class path. A custom sink needs none")
    made_for = re.search(r"iceberg-spark-runtime-(\d+\.\d+)_", jar.name) if jar else None
    if made_for and made_for[1] != _version_line(server):
        return FAIL(
            f"Iceberg {version} for Spark {made_for[1]} on Spark {server}", f"replace it with {wanted}"
        )
    if _version_numbers(version) < _version_numbers(ICEBERG):
        return WARN(
            f"Iceberg {version}", f"use {wanted}. Concurrent commits of two lanes were tested with it"
        )
    return OK(f"Iceberg {version}{f', {jar.name}' if jar and jar.name else ''}")


def _extensions(extensions: str | None) -> CheckResult:
    # Rule 4: without the extensions Spark cannot set the partitioning and the sort order of a table
    if _ICEBERG_EXTENSIONS in (extensions or ""):
        return OK("Iceberg's SQL extensions are on")
    return WARN(
        f"spark.sql.extensions is {extensions or 'not set'}",
        f"set it to org.apache.iceberg.spark.extensions.{_ICEBERG_EXTENSIONS}. Otherwise Spark rejects "
        "Iceberg's own statements (WRITE ORDERED BY, partition fields, branches)",
    )


def _detached(timeout: str | None) -> CheckResult:
    # Rule 5: the work of a dead run takes Spark from the next run
    kept = parse_seconds(timeout or "5m")
    found = f"work of a dead client ends after {format_duration(kept)}"
    if kept > _DETACHED_SECONDS:
        return WARN(
            found,
            f"set {_DETACHED_TIMEOUT}=60s. The table rejects that work, or the next run replaces it. Until "
            "then the next run shares Spark with it",
        )
    return OK(found)


def _progress(interval: str | None) -> CheckResult:
    # Rule 6: with liveness="progress" a finished task is a sign of life
    told = parse_seconds(interval or "2s")
    found = f"Spark reports finished tasks every {format_duration(told)}"
    if told > _REPORT_SECONDS:
        return WARN(
            found,
            (
                f"set {_PROGRESS_INTERVAL}=500ms. With liveness='progress' it must be far below the process "
                "timeout"
            ),
        )
    return OK(found)


def _fetched(timeout: str | None) -> CheckResult:
    # Rule 7: fetched records that no read used fill the heap of the executors
    kept = parse_seconds(timeout or "5m")
    if kept > _CACHED_SECONDS:
        return WARN(
            f"executors keep unread fetched records for {format_duration(kept)}",
            f"set {_FETCH_TIMEOUT}=10s and "
            "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval=5s. The cache has no other "
            "limit: small batches with snapshots='append' filled a heap of 1 GB",
        )
    return OK(f"executors keep unread fetched records for {format_duration(kept)}")


def _scheduler(mode: str | None) -> CheckResult:
    # Rule 8: groups share one server
    found = f"jobs get cores by {mode or 'FIFO, the default'}"
    if (mode or "").upper() == "FAIR":
        return OK(found)
    return WARN(
        found,
        f"set {_SCHEDULER}=FAIR. Otherwise a batch waits until each earlier batch, of any group, has begun "
        "its last tasks",
    )


def _zone(session: TimeZoneFacts, host: TimeZoneFacts) -> CheckResult:
    # Rule 9: hour() and to_date() in a transform use the session's time zone
    if session.midnights == host.midnights:
        return OK(f"the session's time zone, {session.name}, is that of this machine")
    return WARN(
        f"the session's time zone is {session.name}, this machine's {host.name}",
        f"set spark.sql.session.timeZone on the server, or TZ={session.name} for Dagster's processes. "
        "hour(), to_date() and timestamps as text use the session's zone; Python uses this machine's",
    )


def _clock(skew: ClockSkew) -> CheckResult:
    # Rule 10: rows contain current_timestamp(), and certificates and logins expire by the clock
    if skew.certain_seconds > _SKEW_SECONDS:
        return WARN(
            f"the server's clock is off by {skew}",
            "synchronize both with NTP. current_timestamp() in a transform, TLS and tokens use the server's "
            "clock; freshness and retention use this machine's",
        )
    return OK(f"the server's clock is off by {skew}, within the precision of a query")


def _cache(kind: str, cached: str | None) -> CheckResult:
    # Rule 11: each session has its own cache of the catalog
    if kind in _ICEBERG_CATALOGS and (cached or "true").lower() == "true":
        return WARN(
            "cache-enabled is true, its default",
            "set it to false. Otherwise a session sees other sessions' commits up to 30 s late. A write must "
            "begin from the newest snapshot, so it is rejected and retried",
        )
    return OK("not cached" if kind in _ICEBERG_CATALOGS else f"{kind}: not Iceberg's, for custom sinks")


def _atomic(type_: str | None, warehouse: str | None) -> CheckResult:
    # Rule 12: two lanes rely on the catalog's atomic commits
    scheme = (warehouse or "").partition(":")[0] if ":" in (warehouse or "") else ""
    if type_ == "hadoop" and scheme not in _LOCAL:
        return FAIL(
            f"type hadoop on {scheme}:",
            "use a REST, Glue, Hive or JDBC catalog. An object store has no atomic rename, so one of two "
            "concurrent commits is lost",
        )
    return OK(f"commits of type {type_ or 'its own'} are atomic")


SERVER = (
    Rule("version", ("version", "client"), _version),
    Rule("kafka connector", ("version", "client", "connector", "run with"), _connector),
    Rule("iceberg", ("version", "iceberg", "iceberg jar"), _iceberg),
    Rule("extensions", ("spark.sql.extensions",), _extensions),
    Rule("detached work", (_DETACHED_TIMEOUT,), _detached),
    Rule("progress", (_PROGRESS_INTERVAL,), _progress),
    Rule("fetched records", (_FETCH_TIMEOUT,), _fetched),
    Rule("scheduler", (_SCHEDULER,), _scheduler),
    Rule("time zone", ("zone", "host zone"), _zone),
    Rule("clock", ("skew",), _clock),
)
CATALOG = (Rule("cache", ("class", "cache-enabled"), _cache), Rule("commits", ("type", "warehouse"), _atomic))
SETTINGS = tuple(name for rule in SERVER for name in rule.required_facts if name.startswith("spark."))


def parse_seconds(text: str) -> float:
    """Return a duration of Spark's settings in seconds; a number alone is milliseconds.

    >>> parse_seconds("500ms"), parse_seconds("5m"), parse_seconds("60000")
    (0.5, 300.0, 60.0)
    """
    number, unit = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower()).groups()  # type: ignore[union-attr]
    return int(number) * _UNITS[unit]


def find_catalogs(settings: Mapping[str, str]) -> dict[str, dict[str, str | None]]:
    """Return the catalogs that a server's settings name, each with the settings that the rules need.

    >>> find_catalogs({"spark.sql.catalog.lake": "a.Catalog", "spark.sql.catalog.lake.type": "rest"})
    {'lake': {'class': 'a.Catalog', 'cache-enabled': None, 'type': 'rest', 'warehouse': None}}
    """
    found = {name: re.fullmatch(r"spark\.sql\.catalog\.([^.]+)", name) for name in settings}
    wanted = [name for rule in CATALOG for name in rule.required_facts if name != "class"]
    return {
        one[1]: {"class": settings[name], **{part: settings.get(f"{name}.{part}") for part in wanted}}
        for name, one in sorted(found.items())
        if one
    }


def _version_line(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
