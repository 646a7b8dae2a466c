"""Collect facts of a Spark Connect server, for ``doctor.spark_rules``.

Queries the JVM with ``java_method`` for versions and for the jar of a class. Changes nothing, and reads no
table.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from kafka_liveness_dagster.doctor.spark_rules import MIDNIGHTS, SETTINGS, ClockSkew, Jar, TimeZoneFacts
from kafka_liveness_dagster.spark.error_classification import storage_read_error, summarize
from kafka_liveness_dagster.spark.errors import SparkFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_CONNECTOR = ("spark-sql-kafka-0-10_", "org/apache/spark/sql/kafka010/KafkaSourceProvider.class")
_RUNTIME = ("iceberg-spark-runtime-", "org/apache/iceberg/spark/SparkCatalog.class")


def server_facts(session: SparkSession) -> dict[str, Any]:
    """Return the facts for the rules of a server."""
    zone = _select_row(
        session, "current_timezone()", *(f"unix_timestamp(timestamp'{day} 00:00:00')" for day in MIDNIGHTS)
    )
    here = tuple(round(datetime.fromisoformat(day).timestamp()) for day in MIDNIGHTS)
    return {
        "version": session.version,
        "client": version("pyspark"),
        "connector": _jar_of_class(session, *_CONNECTOR) if _has_kafka_source(session) else None,
        "iceberg": _call_java(session, "org.apache.iceberg.IcebergBuild", "version"),
        "iceberg jar": _jar_of_class(session, *_RUNTIME),
        "zone": TimeZoneFacts(zone[0], tuple(zone[1:])),
        "host zone": TimeZoneFacts(os.environ.get("TZ") or time.tzname[0], here),
        "skew": _clock_skew(session),
        **{name: session.conf.get(name, None) for name in SETTINGS},
    }


def server_settings(session: SparkSession) -> dict[str, str]:
    """Return the settings of the server, which redacts secrets."""
    return {row[0]: row[1] for row in session.sql("SET").collect()}


def list_namespaces(session: SparkSession, catalog: str) -> None:
    """List the namespaces of a catalog, to check that it responds.

    Raises:
        TableUnreadableError: the catalog is unavailable, or rejects the request.
        SparkFailedError: Spark cannot query the catalog.
    """
    try:
        session.sql(f"SHOW NAMESPACES IN `{catalog}`").collect()
    except PySparkException as error:
        raise storage_read_error(error, catalog) or SparkFailedError(
            f"The server cannot query catalog {catalog} ({summarize(error)}). Fix: correct its settings "
            f"spark.sql.catalog.{catalog}.*"
        ) from None


def _select_row(session: SparkSession, *columns: str) -> Any:
    return session.sql(f"SELECT {', '.join(columns)}").collect()[0]


def _call_java(session: SparkSession, java_class: str, method: str, *arguments: str) -> str | None:
    """Return the result of a static Java method; None if the class does not exist."""
    told = ", ".join(f"'{one}'" for one in (java_class, method, *arguments))
    try:
        with _silence_pyspark():
            (found,) = _select_row(session, f"java_method({told})")
    except PySparkException:
        return None
    return found if found is None else str(found)


@contextmanager
def _silence_pyspark() -> Iterator[None]:
    """Suppress pyspark's own log of errors, a page of JSON on standard error.

    A missing class is an expected result here.
    """
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _jar_of_class(session: SparkSession, name: str, resource: str) -> Jar:
    """Return the jar of a class: on the server's own class path, or in ``spark.jars``."""
    found = _call_java(session, "java.lang.ClassLoader", "getSystemResource", resource) or ""
    added = (session.conf.get("spark.jars", None) or "").split(",")
    jars = [one.partition("!")[0].rpartition("/")[2] for one in (found, *added)]
    return Jar(next((one for one in jars if name in one), ""))


def _has_kafka_source(session: SparkSession) -> bool:
    """Return whether the server can plan a read from Kafka; contacts no broker."""
    options = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "nothing"}
    try:
        return bool(session.read.format("kafka").options(**options).load().columns)
    except PySparkException:
        return False


def _clock_skew(session: SparkSession) -> ClockSkew:
    """Return the difference of the server's clock to this one.

    The duration of a query bounds the difference. The first query is slow, the next ones are fast.
    """
    looks = [_clock_bounds(session) for _ in range(3)]
    return ClockSkew(max(one.least for one in looks), min(one.most for one in looks))


def _clock_bounds(session: SparkSession) -> ClockSkew:
    before = time.time()
    (there,) = _select_row(session, "unix_micros(current_timestamp())")
    after = time.time()
    return ClockSkew(there / 1e6 - after, there / 1e6 - before)
