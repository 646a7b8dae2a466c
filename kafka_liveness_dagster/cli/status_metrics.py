"""How is a consumer group, for Prometheus? The status as gauges, of which each is a fact of the broker's.

What OpenTelemetry's receiver for Kafka measures too has the name that it has there; what is this package's own begins
with ``kafka_liveness``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.membership import Expiry
from kafka_liveness_dagster.kafka.times import seconds_behind, timestamps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafka_liveness_dagster.cli.status import GroupStatus, PartitionStatus
    from kafka_liveness_dagster.kafka.admin import Cluster

_LAG = ("kafka_consumer_group_lag", "Offsets that wait for the live lane.")
_LAG_SECONDS = (
    "kafka_liveness_lag_seconds",
    "Seconds from the newest record that is processed to the newest in the log; absent where nobody can tell.",
)
_MEMBERS = ("kafka_consumer_group_members", "Members of the live lane's group.")
_OWED = ("kafka_liveness_owed_offsets", "Offsets that the live lane jumped over and that are not done.")
_OWED_AGE = (
    "kafka_liveness_owed_age_seconds",
    "How old the oldest record is that is owed, by its own timestamp; 0 where nothing is.",
)
_EXPIRED = ("kafka_liveness_owed_expired_offsets", "Owed offsets that the broker has deleted.")


def exposition(cluster: Cluster, found: GroupStatus, *, by_partition: bool = False) -> str:
    """The status in Prometheus' text format.

    Args:
        cluster: asked for the records' timestamps.
        found: the group.
        by_partition: a series for each partition, of all but the times; else one for each topic.

    Raises:
        InvalidSettingError: the client library of Prometheus is not installed.
        BrokerUnreachableError: no broker answers.
        KafkaRefusedError: the broker refuses to tell.
    """
    try:
        from prometheus_client import CollectorRegistry, Gauge, generate_latest  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InvalidSettingError(
            "--prometheus needs the client library of Prometheus: pip install 'kafka-liveness-dagster[metrics]'"
        ) from error
    labels = ("group", "topic", "partition") if by_partition else ("group", "topic")
    registry = CollectorRegistry()
    lag, owed, expired = (Gauge(*named, labels, registry=registry) for named in (_LAG, _OWED, _EXPIRED))
    lag_seconds, owed_age = (Gauge(*named, labels[:2], registry=registry) for named in (_LAG_SECONDS, _OWED_AGE))
    Gauge(*_MEMBERS, ("group",), registry=registry).labels(found.group_id).set(len(found.members))
    topics: Mapping[str, list[PartitionStatus]] = defaultdict(list)
    for one in found.partitions:
        topic, partition = one.seen.topic_partition
        topics[topic].append(one)
        of = (found.group_id, topic, *([str(partition)] if by_partition else []))
        lag.labels(*of).inc(one.seen.lag)
        owed.labels(*of).inc(one.seen.owed)
        expired.labels(*of).inc(_expired(one))
    for topic, partitions in topics.items():
        if (behind := _behind(cluster, found.group_id, partitions)) is not None:
            lag_seconds.labels(found.group_id, topic).set(behind)
        if (age := _owed_age(cluster, found.group_id, partitions)) is not None:
            owed_age.labels(found.group_id, topic).set(age)
    return generate_latest(registry).decode()


def _expired(one: PartitionStatus) -> int:
    start = one.seen.log_start
    return sum(max(0, min(span.end, start) - span.start) for span in one.seen.outstanding)


def _behind(cluster: Cluster, group_id: str, partitions: Sequence[PartitionStatus]) -> float | None:
    seen = [one.seen for one in partitions]
    positions = {one.topic_partition: one.log_start if one.committed is None else one.committed for one in seen}
    return seconds_behind(cluster, group_id, positions, {one.topic_partition: one.log_end for one in seen})


def _owed_age(cluster: Cluster, group_id: str, partitions: Sequence[PartitionStatus]) -> float | None:
    """Of what the broker still has; None where nobody can tell."""
    firsts = {
        one.seen.topic_partition: max(one.seen.log_start, min(span.start for span in one.seen.outstanding))
        for one in partitions
        if any(one.expiry(span) is not Expiry.GONE for span in one.seen.outstanding)
    }
    if not firsts:
        return 0.0
    found = timestamps(cluster, group_id, firsts)
    return max(0.0, time.time() - min(found.values()) / 1000) if found else None
