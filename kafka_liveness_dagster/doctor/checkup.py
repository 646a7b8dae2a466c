"""Check Kafka, a group, Spark and its catalogs against the advice of docs/production.md.

Rules judge the facts of a real deployment. Each query has a timeout, and a failed query does not end the
others. Starts nothing, and changes only the scratch table of a probed catalog.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kafka_liveness_dagster.core.batch_size import INITIAL_OFFSETS
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.health import retention
from kafka_liveness_dagster.doctor import kafka_rules, spark_rules
from kafka_liveness_dagster.doctor.kafka_facts import ClusterConfig
from kafka_liveness_dagster.doctor.rules import FAIL, OK, UNKNOWN, WARN, Finding, Unavailable, run_rules
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.errors import KafkaRefusedError
from kafka_liveness_dagster.kafka.group_status import NoSuchGroupError, group_status
from kafka_liveness_dagster.kafka.quotas import measure_throttle_seconds
from kafka_liveness_dagster.kafka.timestamps import timestamps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.kafka.group_status import PartitionStatus
    from kafka_liveness_dagster.kafka.settings import KafkaSettings

SPARK_TIMEOUT_SECONDS = 10.0
SERVER_TIMEOUT_SECONDS = 30.0  # a cold server's first queries
CATALOG_TIMEOUT_SECONDS = 45.0  # Iceberg itself retries a REST catalog for half a minute
PROBE_TIMEOUT_SECONDS = 180.0  # about ten small commits
_RETENTION_SETTING = "offsets.retention.minutes"
_CLUSTER_SETTINGS = [
    name for rule in kafka_rules.CLUSTER for name in rule.required_facts if name != "differing"
]


def check_kafka(
    settings: Callable[[], KafkaSettings], group_id: str | None, *, is_embedded: bool
) -> Iterator[Finding]:
    """Check the brokers and, if one is named, a group; yield a finding for each check."""
    yield from _run_checks(
        "kafka", "brokers", lambda: _check_cluster(settings(), group_id, is_embedded=is_embedded)
    )


def check_spark(url: Callable[[], str], probed: str | None = None) -> Iterator[Finding]:
    """Check the Spark Connect server and each of its catalogs; yield a finding for each check.

    The catalog ``probed`` gets a scratch table.
    """
    yield from _run_checks("spark", "server", lambda: _check_server(url(), probed))


def _run_checks(area: str, check: str, ask: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from ask()
    except NoSuchGroupError as error:
        yield Finding(area, check, WARN(str(error)))
    except KafkaRefusedError as error:
        yield Finding(area, check, UNKNOWN(f"not checked: {error}", "grant the rights of docs/security.md"))
    except KafkaLivenessError as error:
        yield Finding(area, check, FAIL(str(error)))


def _check_cluster(settings: KafkaSettings, group_id: str | None, *, is_embedded: bool) -> Iterator[Finding]:
    setup = ClusterConfig(settings)
    brokers = setup.brokers()
    how = settings.security
    login = "" if how.login is None else f" as {how.login!r}"
    told_of = f"{settings.bootstrap_servers}, {len(brokers)} broker(s), {how.security_protocol}{login}"
    yield Finding("kafka", "brokers", OK(told_of))
    cluster = setup.cluster(brokers, _CLUSTER_SETTINGS)
    yield from run_rules("kafka", kafka_rules.CLUSTER, cluster)
    commits = setup.offsets_topic(cluster)
    if not isinstance(commits, Unavailable):
        commits = {**commits, "brokers": len(brokers), "embedded": is_embedded}
    yield from run_rules("kafka", kafka_rules.OFFSETS_TOPIC, commits)
    if group_id is not None:
        yield from _run_checks(
            "group", group_id, lambda: _check_group(settings, setup, cluster, group_id=group_id)
        )


def _check_group(
    settings: KafkaSettings, setup: ClusterConfig, cluster: Mapping[str, Any] | Unavailable, group_id: str
) -> Iterator[Finding]:
    found = group_status(Cluster(settings), group_id)
    expiry = retention([one.snapshot for one in found.partitions], INITIAL_OFFSETS)
    yield from run_rules("group", kafka_rules.GROUP, setup.group(group_id))
    yield from run_rules("group", kafka_rules.BACKLOG, {"expiry": expiry})
    if isinstance(cluster, Unavailable):
        kept = cluster
    else:
        kept = cluster.get(
            _RETENTION_SETTING, Unavailable(f"the broker does not return {_RETENTION_SETTING} to this client")
        )
    for topic in sorted({one.snapshot.topic_partition.topic for one in found.partitions}):
        partitions = [one for one in found.partitions if one.snapshot.topic_partition.topic == topic]
        config = setup.topic(topic)
        if not isinstance(config, Unavailable):
            of_records = {
                # First: a broker's quota counts the last 11 s, so the reads below would count too
                "throttle seconds": measure_throttle_seconds(
                    settings, partitions[0].snapshot.topic_partition
                ),
                "age seconds": _oldest_age_seconds(settings, group_id, partitions),
                "ahead seconds": _clock_ahead_seconds(setup, partitions),
            }
            config = {**config, **of_records, _RETENTION_SETTING: kept}
        yield from run_rules(f"topic {topic}", kafka_rules.TOPIC, config)


def _oldest_age_seconds(
    settings: KafkaSettings, group_id: str, partitions: Sequence[PartitionStatus]
) -> float | Unavailable:
    """Return the age of the oldest waiting record that the broker still has.

    0 if no record waits.
    """
    firsts = {
        one.snapshot.topic_partition: max(one.snapshot.log_start, one.committed)
        for one in partitions
        if one.committed is not None and one.committed < one.snapshot.log_end > one.snapshot.log_start
    }
    if not firsts:
        return 0.0
    found = timestamps(Cluster(settings), group_id, firsts)
    return (
        max(0.0, time.time() - min(found.values()) / 1000)
        if found
        else Unavailable("no record could be read within 2 s")
    )


def _clock_ahead_seconds(
    setup: ClusterConfig, partitions: Sequence[PartitionStatus]
) -> float | Unavailable | None:
    try:
        return setup.clock_ahead_seconds([one.snapshot.topic_partition for one in partitions])
    except KafkaRefusedError as error:
        return Unavailable(str(error))


def _check_server(url: str, probed: str | None) -> Iterator[Finding]:
    from kafka_liveness_dagster.doctor import spark_facts  # noqa: PLC0415  takes half a second
    from kafka_liveness_dagster.doctor.catalog_probe import probe_catalog  # noqa: PLC0415
    from kafka_liveness_dagster.embedded import jars, processes  # noqa: PLC0415
    from kafka_liveness_dagster.spark.connect import health  # noqa: PLC0415  takes half a second
    from kafka_liveness_dagster.spark.connect.connection import connection_of  # noqa: PLC0415
    from kafka_liveness_dagster.spark.connect.session import close, connect  # noqa: PLC0415

    address = urlsplit(url)
    host = address.hostname or ""
    port = address.port or 15002
    if not processes.is_listening(port, host):  # pyspark itself retries for ten minutes
        yield Finding(
            "spark",
            "server",
            FAIL(f"no server listens at {host}:{port}. Fix: check the address, or start it"),
        )
        return
    session = connect(url, timeout_seconds=SPARK_TIMEOUT_SECONDS)
    try:
        if why := health.dead_reason(session, SERVER_TIMEOUT_SECONDS):
            yield Finding("spark", "server", FAIL(f"{why} {health.FIX}"))
            return
        yield Finding("spark", "server", OK(f"{host}:{port}"))
        with connection_of(session).abort_after(SERVER_TIMEOUT_SECONDS, "the query of its settings"):
            server = spark_facts.server_facts(session)
            catalogs = spark_rules.find_catalogs(spark_facts.server_settings(session))
        yield from run_rules(
            "spark", spark_rules.SERVER, {**server, "run with": jars.connector_version(server["client"])}
        )
        if not catalogs:
            advice = "set spark.sql.catalog.<name> (docs/spark.md). A custom sink needs none"
            yield Finding("spark", "catalogs", FAIL("the server has no catalog for tables", advice))
        for name, settings in catalogs.items():
            with connection_of(session).abort_after(
                CATALOG_TIMEOUT_SECONDS, f"the list of namespaces of catalog {name}"
            ):
                yield from _run_checks(
                    f"catalog {name}", "answers", partial(_check_catalog, session, name, settings)
                )
        if probed is not None:
            with connection_of(session).abort_after(PROBE_TIMEOUT_SECONDS, f"the probe of catalog {probed}"):
                yield from _run_checks(f"catalog {probed}", "probe", partial(probe_catalog, session, probed))
    finally:
        close(session)


def _check_catalog(session: SparkSession, name: str, settings: Mapping[str, str | None]) -> Iterator[Finding]:
    from kafka_liveness_dagster.doctor.spark_facts import list_namespaces  # noqa: PLC0415  takes half a second

    list_namespaces(session, name)
    yield Finding(f"catalog {name}", "answers", OK("the catalog responded to Spark"))
    yield from run_rules(f"catalog {name}", spark_rules.CATALOG, settings)
