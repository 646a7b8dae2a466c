"""How is a consumer group, for Prometheus? The status as gauges, of which each is a fact of the broker's.

They are those that the sensor tells, by the same names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.telemetry.group import points, times
from kafka_liveness_dagster.telemetry.metrics import prometheus

if TYPE_CHECKING:
    from kafka_liveness_dagster.cli.status import GroupStatus
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.telemetry.metrics import Metric


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
    registry = CollectorRegistry()
    gauges: dict[Metric, Gauge] = {}
    seen = [one.seen for one in found.partitions]
    known = times(cluster, found.group_id, seen, found.held)
    for metric, value, labels in points(found.group_id, len(found.members), seen, known, by_partition=by_partition):
        names = [prometheus(label) for label in labels]
        if metric not in gauges:
            gauges[metric] = Gauge(metric.prometheus, metric.description, names, registry=registry)
        gauges[metric].labels(*labels.values()).set(value)
    return generate_latest(registry).decode()
