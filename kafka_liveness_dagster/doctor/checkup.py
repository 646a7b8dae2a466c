"""Is a real deployment as docs/production.md advises? Kafka, a group, Spark and its catalogs are asked, rules judge.

Starts nothing and changes nothing but the scratch table of a probed catalog; each question is bounded in time, and one
that fails does not end the rest.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kafka_liveness_dagster.core.batch_size import FIRST_OFFSETS
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.health import retention
from kafka_liveness_dagster.doctor import kafka_rules, spark_rules
from kafka_liveness_dagster.doctor.kafka_facts import Setup
from kafka_liveness_dagster.doctor.rules import FAIL, OK, UNKNOWN, WARN, Finding, Untold, judged
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.errors import KafkaRefusedError
from kafka_liveness_dagster.kafka.group_status import NoSuchGroupError, look
from kafka_liveness_dagster.kafka.quotas import throttle_seconds
from kafka_liveness_dagster.kafka.timestamps import timestamps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.kafka.group_status import PartitionStatus
    from kafka_liveness_dagster.kafka.settings import KafkaSettings

_SPARK_SECONDS = 10.0
_SERVER_SECONDS = 30.0  # a cold server's first queries
_CATALOG_SECONDS = 45.0  # Iceberg itself asks a REST catalog for half a minute
_PROBE_SECONDS = 180.0  # about ten small commits
_KEPT = "offsets.retention.minutes"
_OF_CLUSTER = [name for rule in kafka_rules.CLUSTER for name in rule.needs if name != "differing"]


def kafka(settings: Callable[[], KafkaSettings], group_id: str | None, *, is_embedded: bool) -> Iterator[Finding]:
    """What the brokers say, and what they say of one group."""
    yield from _unless_it_fails("kafka", "brokers", lambda: _kafka(settings(), group_id, is_embedded=is_embedded))


def spark(url: Callable[[], str], probed: str | None = None) -> Iterator[Finding]:
    """What the Spark Connect server says, and each of its catalogs; the one that is probed gets a scratch table."""
    yield from _unless_it_fails("spark", "server", lambda: _spark(url(), probed))


def _unless_it_fails(area: str, check: str, ask: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from ask()
    except NoSuchGroupError as error:
        yield Finding(area, check, WARN(str(error)))
    except KafkaRefusedError as error:
        yield Finding(area, check, UNKNOWN(f"could not be asked: {error}", "docs/security.md has the rights it takes"))
    except KafkaLivenessError as error:
        yield Finding(area, check, FAIL(str(error)))


def _kafka(settings: KafkaSettings, group_id: str | None, *, is_embedded: bool) -> Iterator[Finding]:
    setup = Setup(settings)
    brokers, how = setup.brokers(), settings.security
    login = "" if how.login is None else f" as {how.login!r}"
    told_of = f"{settings.bootstrap_servers}, {len(brokers)} broker(s), {how.security_protocol}{login}"
    yield Finding("kafka", "brokers", OK(told_of))
    cluster = setup.cluster(brokers, _OF_CLUSTER)
    yield from judged("kafka", kafka_rules.CLUSTER, cluster)
    commits = setup.offsets_topic(cluster)
    if not isinstance(commits, Untold):
        commits = {**commits, "brokers": len(brokers), "embedded": is_embedded}
    yield from judged("kafka", kafka_rules.OFFSETS_TOPIC, commits)
    if group_id is not None:
        yield from _unless_it_fails("group", group_id, lambda: _group(settings, setup, cluster, group_id))


def _group(
    settings: KafkaSettings, setup: Setup, cluster: Mapping[str, Any] | Untold, group_id: str
) -> Iterator[Finding]:
    found = look(Cluster(settings), group_id)
    expiry = retention([one.seen for one in found.partitions], FIRST_OFFSETS)
    yield from judged("group", kafka_rules.GROUP, setup.group(group_id))
    yield from judged("group", kafka_rules.BACKLOG, {"expiry": expiry})
    kept = cluster if isinstance(cluster, Untold) else cluster.get(_KEPT, Untold(f"{_KEPT} is not told to this client"))
    for topic in sorted({one.seen.topic_partition.topic for one in found.partitions}):
        partitions = [one for one in found.partitions if one.seen.topic_partition.topic == topic]
        config = setup.topic(topic)
        if not isinstance(config, Untold):
            of_records = {
                # First: a broker counts over 11 s
                "throttle seconds": throttle_seconds(settings, partitions[0].seen.topic_partition),
                "age seconds": _age(settings, group_id, partitions),
                "ahead seconds": _ahead(setup, partitions),
            }
            config = {**config, **of_records, _KEPT: kept}
        yield from judged(f"topic {topic}", kafka_rules.TOPIC, config)


def _age(settings: KafkaSettings, group_id: str, partitions: Sequence[PartitionStatus]) -> float | Untold:
    """Of the oldest record that neither lane has processed, as far as the broker has it; 0 where nothing waits."""
    firsts = {
        one.seen.topic_partition: max(one.seen.log_start, one.committed)
        for one in partitions
        if one.committed is not None and one.committed < one.seen.log_end > one.seen.log_start
    }
    if not firsts:
        return 0.0
    found = timestamps(Cluster(settings), group_id, firsts)
    return max(0.0, time.time() - min(found.values()) / 1000) if found else Untold("no record was read within 2 s")


def _ahead(setup: Setup, partitions: Sequence[PartitionStatus]) -> float | Untold | None:
    try:
        return setup.ahead([one.seen.topic_partition for one in partitions])
    except KafkaRefusedError as error:
        return Untold(str(error))


def _spark(url: str, probed: str | None) -> Iterator[Finding]:
    from kafka_liveness_dagster.doctor import spark_facts  # noqa: PLC0415  takes half a second
    from kafka_liveness_dagster.doctor.catalog_probe import probe  # noqa: PLC0415
    from kafka_liveness_dagster.embedded import jars, processes  # noqa: PLC0415
    from kafka_liveness_dagster.spark.connect import health  # noqa: PLC0415  takes half a second
    from kafka_liveness_dagster.spark.connect.connection import line_of  # noqa: PLC0415
    from kafka_liveness_dagster.spark.connect.session import connect, end  # noqa: PLC0415

    address = urlsplit(url)
    host, port = address.hostname or "", address.port or 15002
    if not processes.answers(port, host):  # pyspark itself goes on trying for ten minutes
        yield Finding("spark", "server", FAIL(f"nothing answers at {host}:{port}: check the address and that it runs"))
        return
    session = connect(url, timeout_seconds=_SPARK_SECONDS)
    try:
        if why := health.why_dead(session, _SERVER_SECONDS):
            yield Finding("spark", "server", FAIL(f"{why} {health.FIX}"))
            return
        yield Finding("spark", "server", OK(f"{host}:{port}"))
        with line_of(session).within(_SERVER_SECONDS, "it was asked how it is set up"):
            server = spark_facts.server(session)
            catalogs = spark_rules.catalogs_of(spark_facts.settings(session))
        yield from judged("spark", spark_rules.SERVER, {**server, "run with": jars.connector_of(server["client"])})
        if not catalogs:
            advice = "set spark.sql.catalog.<name> (docs/production.md); a sink of your own needs none"
            yield Finding("spark", "catalogs", FAIL("the server knows no catalog for tables", advice))
        for name, settings in catalogs.items():
            with line_of(session).within(_CATALOG_SECONDS, f"it was asked whether catalog {name} answers"):
                yield from _unless_it_fails(f"catalog {name}", "answers", partial(_catalog, session, name, settings))
        if probed is not None:
            with line_of(session).within(_PROBE_SECONDS, f"catalog {probed} was probed"):
                yield from _unless_it_fails(f"catalog {probed}", "probe", partial(probe, session, probed))
    finally:
        end(session)


def _catalog(session: SparkSession, name: str, settings: Mapping[str, str | None]) -> Iterator[Finding]:
    from kafka_liveness_dagster.doctor.spark_facts import ask  # noqa: PLC0415  takes half a second

    ask(session, name)
    yield Finding(f"catalog {name}", "answers", OK("it answered Spark"))
    yield from judged(f"catalog {name}", spark_rules.CATALOG, settings)
