"""Rules for a Spark Connect server: it can read what is planned and write it to its place.

Nothing is queried here. Versions are what ``version()`` and the names of jars say; settings are texts, None
where nobody set them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.names import format_duration
from kafka_liveness_dagster.doctor.rules import FAIL, OK, UNKNOWN, WARN, CheckResult, Rule

if TYPE_CHECKING:
    from collections.abc import Mapping

ICEBERG = "1.12.0"  # what the tests run, in embedded/ivy-spark.xml
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
_SKEW_SECONDS = 2.0


@dataclass(frozen=True)
class Jar:
    """A class of the server's, by its jar's name.

    Empty where the jar cannot be seen from the server's class path.
    """

    name: str

    @property
    def version(self) -> str | None:
        """``4.1.3`` of ``spark-sql-kafka-0-10_2.13-4.1.3.jar``."""
        found = re.search(r"-(\d+\.\d+(?:\.\d+)*[^/]*)\.jar$", self.name)
        return found[1] if found else None


@dataclass(frozen=True)
class ClockSkew:
    """By how many seconds a clock is ahead of this machine's.

    No less than ``least``, no more than ``most``.
    """

    least: float
    most: float

    @property
    def certain_seconds(self) -> float:
        """The least that it is off by, whichever way; 0 where it may be right."""
        return max(self.least, -self.most, 0.0)

    def __str__(self) -> str:
        return f"{self.least:+.2f} to {self.most:+.2f} s"


@dataclass(frozen=True)
class TimeZoneFacts:
    """A time zone by what it does.

    Attributes:
        name: as its owner calls it.
        midnights: seconds of the Unix epoch at which ``MIDNIGHTS`` are, there.
    """

    name: str
    midnights: tuple[int, ...]


MIDNIGHTS = ("2026-01-01", "2026-07-01")  # one in winter, one in summer


def _version(server: str, client: str) -> CheckResult:
    # Rule 1: client and server speak one protocol, and jars are made for one line
    if _version_line(server) != _version_line(client):
        return WARN(
            f"the server is Spark {server}, the client here pyspark {client}",
            f"install pyspark {_version_line(server)} here, or run Spark {_version_line(client)}: what is "
            "sent is what the client's version knows, and only versions of one line were run together",
        )
    return OK(f"Spark {server}, pyspark {client}")


def _connector(server: str, client: str, jar: Jar | None, run_with: str | None) -> CheckResult:
    # Rule 2: without the connector no record is read; one of another line meets classes that it does not
    # know. Within a line only pairs of pyspark and connector that were run together are well
    wanted = f"spark-sql-kafka-0-10_2.13 {_version_line(server)}"
    if jar is None:
        return FAIL(
            "the server has no Kafka connector", f"put {wanted} on its class path: it reads the records"
        )
    if jar.version is None:
        return UNKNOWN(
            "the server has a Kafka connector of an unknown version: its jar is not on the server's own "
            "class path",
            f"compare the jar: pyspark {client} goes with {run_with or 'none of docs/spark.md'}",
        )
    if _version_line(jar.version) != _version_line(server):
        return FAIL(f"{jar.name} on Spark {server}", f"replace it by {wanted}: it uses Spark's own classes")
    if _version_line(client) != _version_line(server):
        return OK(jar.name)  # rule 1 warns of the client
    if jar.version != run_with:
        replace = (
            f"replace it by spark-sql-kafka-0-10_2.13 {run_with}: pyspark {client} was run with that one"
        )
        install = "install a pyspark of the table in docs/spark.md: this one was run with no connector"
        return WARN(f"{jar.name} with pyspark {client}", replace if run_with else install)
    return OK(f"{jar.name} with pyspark {client}")


def _iceberg(server: str, version: str | None, jar: Jar | None) -> CheckResult:
    # Rule 3: without the runtime no table is written; it is made for one line of Spark
    wanted = f"iceberg-spark-runtime-{_version_line(server)}_2.13 {ICEBERG}"
    if version is None:
        return FAIL(
            "the server has no Iceberg", f"put {wanted} on its class path; a sink of your own needs none"
        )
    made_for = re.search(r"iceberg-spark-runtime-(\d+\.\d+)_", jar.name) if jar else None
    if made_for and made_for[1] != _version_line(server):
        return FAIL(f"Iceberg {version} for Spark {made_for[1]} on Spark {server}", f"replace it by {wanted}")
    if _version_numbers(version) < _version_numbers(ICEBERG):
        return WARN(
            f"Iceberg {version}", f"take {wanted}: how commits of two lanes meet was tested with that"
        )
    return OK(f"Iceberg {version}{f', {jar.name}' if jar and jar.name else ''}")


def _extensions(extensions: str | None) -> CheckResult:
    # Rule 4: without them partitioning and sorting of a table are not understood
    if _ICEBERG_EXTENSIONS in (extensions or ""):
        return OK("Iceberg's SQL extensions are on")
    return WARN(
        f"spark.sql.extensions is {extensions or 'not set'}",
        f"set it to org.apache.iceberg.spark.extensions.{_ICEBERG_EXTENSIONS}: Spark does not understand "
        "Iceberg's own statements without (WRITE ORDERED BY, partition fields, branches)",
    )


def _detached(timeout: str | None) -> CheckResult:
    # Rule 5: what a dead run left at work takes Spark from its successor
    kept = parse_seconds(timeout or "5m")
    found = f"work of a client that died ends after {format_duration(kept)}"
    if kept > _DETACHED_SECONDS:
        return WARN(
            found,
            f"set {_DETACHED_TIMEOUT}=60s: what it writes is refused or replaced, and until then the run "
            "that follows shares Spark with it",
        )
    return OK(found)


def _progress(interval: str | None) -> CheckResult:
    # Rule 6: with liveness="progress" a finished task is a sign of life
    told = parse_seconds(interval or "2s")
    found = f"finished tasks are told every {format_duration(told)}"
    if told > _REPORT_SECONDS:
        return WARN(
            found,
            (
                f"set {_PROGRESS_INTERVAL}=500ms: with liveness='progress' it has to be far below the "
                "process timeout"
            ),
        )
    return OK(found)


def _fetched(timeout: str | None) -> CheckResult:
    # Rule 7: what executors fetched and nobody asked for fills their heap
    kept = parse_seconds(timeout or "5m")
    if kept > _CACHED_SECONDS:
        return WARN(
            f"fetched records that no read asked for are kept for {format_duration(kept)}",
            f"set {_FETCH_TIMEOUT}=10s and "
            "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval=5s: they have no other bound, "
            "and small batches with snapshots='append' filled a heap of 1 GB",
        )
    return OK(f"fetched records that no read asked for are kept for {format_duration(kept)}")


def _zone(session: TimeZoneFacts, host: TimeZoneFacts) -> CheckResult:
    # Rule 8: hour() and to_date() in a transform are of the session's zone
    if session.midnights == host.midnights:
        return OK(f"the session's time zone, {session.name}, is that of this machine")
    return WARN(
        f"the session's time zone is {session.name}, this machine's {host.name}",
        f"set spark.sql.session.timeZone on the server, or TZ={session.name} for Dagster's processes: "
        "hour(), to_date() and texts made of a timestamp are of the first, Python's of the second",
    )


def _clock(skew: ClockSkew) -> CheckResult:
    # Rule 9: current_timestamp() is in rows, and certificates and logins end by the clock
    if skew.certain_seconds > _SKEW_SECONDS:
        return WARN(
            f"the server's clock is off by {skew}",
            "set both by NTP: current_timestamp() in a transform, TLS and tokens go by the server's, "
            "freshness and retention are told by this one",
        )
    return OK(f"the server's clock is off by {skew}, as far as a question can tell")


def _cache(kind: str, cached: str | None) -> CheckResult:
    # Rule 10: each session has a cache of its own
    if kind in _ICEBERG_CATALOGS and (cached or "true").lower() == "true":
        return WARN(
            "cache-enabled is true, its default",
            "set it to false: other sessions' commits are seen up to 30 s late, and each write begins from "
            "the newest snapshot, so it is refused and made again",
        )
    return OK("not cached" if kind in _ICEBERG_CATALOGS else f"{kind}: not Iceberg's, for sinks of your own")


def _atomic(type_: str | None, warehouse: str | None) -> CheckResult:
    # Rule 11: two lanes are kept apart by the catalog's atomic commit
    scheme = (warehouse or "").partition(":")[0] if ":" in (warehouse or "") else ""
    if type_ == "hadoop" and scheme not in _LOCAL:
        return FAIL(
            f"type hadoop on {scheme}:",
            "take a REST, Glue, Hive or JDBC catalog: an object store has no atomic rename, so of two "
            "commits at once one is lost",
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
    Rule("time zone", ("zone", "host zone"), _zone),
    Rule("clock", ("skew",), _clock),
)
CATALOG = (Rule("cache", ("class", "cache-enabled"), _cache), Rule("commits", ("type", "warehouse"), _atomic))
SETTINGS = tuple(name for rule in SERVER for name in rule.required_facts if name.startswith("spark."))


def parse_seconds(text: str) -> float:
    """A time as Spark writes it; a number alone is milliseconds.

    >>> parse_seconds("500ms"), parse_seconds("5m"), parse_seconds("60000")
    (0.5, 300.0, 60.0)
    """
    number, unit = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower()).groups()  # type: ignore[union-attr]
    return int(number) * _UNITS[unit]


def find_catalogs(settings: Mapping[str, str]) -> dict[str, dict[str, str | None]]:
    """The catalogs that a server's settings name, each with what the rules need.

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
