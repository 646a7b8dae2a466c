"""What is missing here? Each check tells one fact when all is well, and raises an error with the remedy when not.

Starts nothing, downloads nothing, writes nothing.
"""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.embedded import jars, java, ports, services, state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

EMBEDDED = "embedded"
_KAFKA_SECONDS = 5.0
_SPARK_SECONDS = 10.0
_CATALOG_SECONDS = 45.0  # Iceberg itself asks a REST catalog for half a minute
_CATALOG_SETTING = re.compile(r"spark\.sql\.catalog\.(?P<name>[^.]+)")
_LIMITS = ("group.min.session.timeout.ms", "group.max.session.timeout.ms")
_START_THEM = "start it with `kafka-liveness up`"


class UnhealthyError(KafkaLivenessError):
    """A check failed."""


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's."""

    subject: str
    ok: bool
    found: str


def examine(bootstrap_servers: str = EMBEDDED, spark_remote: str = EMBEDDED) -> Iterator[Finding]:
    """Check one thing after the other; a failed check does not end the rest."""
    checks: dict[str, Callable[[], str]] = {
        "java": lambda: str(java.find_java()),
        "jars": _jars,
        "kafka": lambda: _kafka(bootstrap_servers),
        "spark": lambda: _spark(spark_remote),
        "catalog": lambda: _catalog(spark_remote, state.home_folder()),
    }
    for subject, check in checks.items():
        yield _finding(subject, check)


def _finding(subject: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(subject, ok=True, found=check())
    except KafkaLivenessError as error:
        return Finding(subject, ok=False, found=str(error))


def _jars() -> str:
    missing = [name for name in jars.NAMES if jars.resolved(name) is None]
    if missing:
        raise UnhealthyError(
            f"those of {' and '.join(missing)} are not in {jars.jars_folder()}, or damaged: `kafka-liveness up` "
            f"downloads them"
        )
    if broken := [jar for name in jars.NAMES for jar in jars.damaged(name)]:
        raise UnhealthyError(
            f"{', '.join(broken[:3])} in {jars.jars_folder()} are not what was downloaded: remove them, and "
            "`kafka-liveness up` downloads them again"
        )
    return f"complete in {jars.jars_folder()}, checksums as downloaded, for pyspark {jars.check_pyspark()}"


def _kafka(bootstrap_servers: str) -> str:
    from confluent_kafka import KafkaException, admin  # noqa: PLC0415  `--help` must not wait for it

    resource = admin.ConfigResource

    address = _embedded().bootstrap_servers if bootstrap_servers == EMBEDDED else bootstrap_servers
    if not address:
        raise UnhealthyError(f"the embedded Kafka does not run: {_START_THEM}")
    client = admin.AdminClient({"bootstrap.servers": address, "log_level": 0})
    try:
        brokers = client.list_topics(timeout=_KAFKA_SECONDS).brokers
        broker = resource(resource.Type.BROKER, str(min(brokers)))
        found = client.describe_configs([broker], request_timeout=_KAFKA_SECONDS)[broker].result()
    except KafkaException as error:
        raise UnhealthyError(
            f"{address} did not answer in {_KAFKA_SECONDS:.0f} s ({error.args[0].str()}): check the address and "
            f"that this machine may reach it"
        ) from None
    shortest, longest = (int(found[limit].value) for limit in _LIMITS)
    return f"{address}, {len(brokers)} broker(s), session timeouts of {shortest:,} to {longest:,} ms"


def _spark(remote: str) -> str:
    url = _embedded().spark_remote if remote == EMBEDDED else remote
    if not url:
        raise UnhealthyError(f"the embedded Spark Connect does not run: {_START_THEM}")
    address = urlsplit(url)
    host, port = address.hostname or "", address.port or 15002
    if not ports.answers(port, host):  # pyspark itself goes on trying for ten minutes
        raise UnhealthyError(f"nothing answers at {host}:{port}: check the address and that the server runs")
    return f"{host}:{port}, Spark {_spark_version(url)}"


def _spark_version(url: str) -> str:
    from kafka_liveness_dagster.spark.line import line_of  # noqa: PLC0415  takes half a second
    from kafka_liveness_dagster.spark.session import connect, end  # noqa: PLC0415

    session = connect(url, timeout_seconds=_SPARK_SECONDS)
    try:
        with line_of(session).within(_SPARK_SECONDS, "it was asked for its version"):
            return str(session.version)
    finally:
        end(session)


def _catalog(remote: str, home: Path) -> str:
    """The embedded catalog's file, and each catalog that the server knows, by whatever name and of whatever kind."""
    found = [_file(home)] if remote == EMBEDDED else []
    running = services.running()
    if url := (running.spark_remote if running else "") if remote == EMBEDDED else remote:
        found.append(_catalogs(url))
    return "; ".join(found)


def _catalogs(url: str) -> str:
    from pyspark.errors import PySparkException  # noqa: PLC0415  takes half a second

    from kafka_liveness_dagster.spark.failed import in_short  # noqa: PLC0415
    from kafka_liveness_dagster.spark.keepers import unreadable  # noqa: PLC0415
    from kafka_liveness_dagster.spark.line import line_of  # noqa: PLC0415
    from kafka_liveness_dagster.spark.session import connect, end  # noqa: PLC0415

    session, name = connect(url, timeout_seconds=_SPARK_SECONDS), ""
    try:
        with line_of(session).within(_CATALOG_SECONDS, "it was asked whether its catalogs answer"):
            named = (_CATALOG_SETTING.fullmatch(row[0]) for row in session.sql("SET").collect())
            names = sorted(one["name"] for one in named if one)
            for name in names:
                session.sql(f"SHOW NAMESPACES IN `{name}`").collect()
    except PySparkException as error:
        raise unreadable(error, name) or UnhealthyError(
            f"the server cannot ask catalog {name} ({in_short(error)}): mend its settings spark.sql.catalog.{name}.*"
        ) from None
    finally:
        end(session)
    if not names:
        raise UnhealthyError(
            "the server knows no catalog for tables: set spark.sql.catalog.<name> (docs/production.md)"
        )
    return f"{', '.join(names)} answered Spark"


def _file(home: Path) -> str:
    file = home / "catalog.db"
    if not file.exists():
        return f"{file} is made with the first table"
    if not os.access(home / "warehouse", os.W_OK):
        raise UnhealthyError(f"{home}/warehouse is not writable: change its owner, or set KAFKA_LIVENESS_HOME")
    try:
        with closing(sqlite3.connect(file, timeout=_KAFKA_SECONDS)) as catalog:
            (tables,) = catalog.execute("select count(*) from iceberg_tables").fetchone()
    except sqlite3.Error as error:
        raise UnhealthyError(
            f"{file} cannot be read ({error}): move it away with the warehouse to begin anew"
        ) from None
    return f"{file}, {tables} table(s)"


def _embedded() -> services.Services:
    found = services.running()
    if found is None:
        raise UnhealthyError(f"the embedded services of {state.home_folder()} do not run: {_START_THEM}")
    return found
