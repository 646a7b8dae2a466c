"""Measure the lag and the crash lag of a group in offsets and seconds, as gauges of one sensor tick.

A failed measurement never fails the tick.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.events import MemberLeft
from kafka_liveness_dagster.core.partition_snapshot import Expiry, expiry
from kafka_liveness_dagster.telemetry.metrics import (
    EVENT,
    EVENTS,
    EXPIRED,
    GROUP,
    LAG,
    LAG_TIME,
    MEMBERS,
    OPEN_TRANSACTION_AGE,
    OPEN_TRANSACTION_OFFSETS,
    PENDING,
    PENDING_AGE,
    REASON,
    TOPIC,
)
from kafka_liveness_dagster.telemetry.otel import Point, is_enabled, labels_of, record, set_gauges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kafka_liveness_dagster.core.events import GroupEvent
    from kafka_liveness_dagster.core.health import OpenTransaction
    from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
    from kafka_liveness_dagster.kafka.admin import Cluster

log = logging.getLogger("kafka_liveness_dagster")


class TopicTimes(NamedTuple):
    """Times of one topic's records, from the broker; None if unknown.

    Attributes:
        behind_seconds: seconds from the newest processed record to the newest record.
        pending_since: timestamp of the oldest pending record, in seconds since the epoch.
        open_transaction_offsets: offsets behind open transactions.
        open_transaction_seconds: age of the oldest open transaction, in seconds.
    """

    behind_seconds: float | None
    pending_since: float | None
    open_transaction_offsets: int = 0
    open_transaction_seconds: float | None = None


NO_TIMES = TopicTimes(None, None)


def measure_topics(
    cluster: Cluster,
    group_id: str,
    partitions: Sequence[PartitionSnapshot],
    open_transactions: Sequence[OpenTransaction],
) -> dict[str, TopicTimes]:
    """Measure the times of each topic; reads one record of each partition furthest behind.

    Returns:
        The times by topic, with the offsets behind its open transactions.

    Raises:
        BrokerUnreachableError: no broker responded.
        KafkaRefusedError: the broker refused a request.
    """
    from kafka_liveness_dagster.kafka.timestamps import seconds_behind, timestamps  # noqa: PLC0415 - stays lazy

    found = {}
    for topic, seen in _group_by_topic(partitions).items():
        positions = {
            one.topic_partition: one.log_start if one.committed is None else one.committed for one in seen
        }
        behind = seconds_behind(
            cluster, group_id, positions, ends={one.topic_partition: one.log_end for one in seen}
        )
        first = {one.topic_partition: at for one in seen if (at := _first_pending(one)) is not None}
        pending = timestamps(cluster, group_id, first) if first else {}
        waits = [one for one in open_transactions if one.topic_partition.topic == topic]
        ages = [one.open_seconds for one in waits if one.open_seconds is not None]
        since = min(pending.values()) / 1000 if pending else None
        found[topic] = TopicTimes(
            behind, since, sum(one.offsets for one in waits), open_transaction_seconds=max(ages, default=None)
        )
    return found


def gauge_points(
    group_id: str,
    members: int,
    partitions: Sequence[PartitionSnapshot],
    topic_times: Mapping[str, TopicTimes],
    *,
    by_partition: bool | None = None,
) -> Iterator[Point]:
    """Yield the gauge values of a group, one per topic or per partition.

    Args:
        group_id: the live lane's group.
        members: number of its members.
        partitions: partitions as of one observation.
        topic_times: times by topic from ``measure_topics``; a missing topic has no such gauges.
        by_partition: whether each partition has its own series, except for the times. None uses the
            environment variable.
    """
    yield Point(MEMBERS, members, {GROUP: group_id})
    sums: dict[str, Counter[tuple[tuple[str, str], ...]]] = defaultdict(Counter)
    for one in partitions:
        of = tuple(labels_of(group_id, one.topic_partition, by_partition=by_partition).items())
        sums[LAG.name][of] += one.lag
        sums[PENDING.name][of] += one.pending_offsets
        sums[EXPIRED.name][of] += sum(
            max(0, min(span.end, one.log_start) - span.start) for span in one.unprocessed
        )
    for metric in (LAG, PENDING, EXPIRED):
        yield from (Point(metric, value, dict(of)) for of, value in sums[metric.name].items())
    for topic, seen in _group_by_topic(partitions).items():
        of_topic = {GROUP: group_id, TOPIC: topic}
        behind, owed_since, held, held_seconds = topic_times.get(topic, NO_TIMES)
        if not any(one.lag for one in seen):
            behind = 0.0
        if behind is not None:
            yield Point(LAG_TIME, behind, of_topic)
        if all(_first_pending(one) is None for one in seen):
            yield Point(PENDING_AGE, 0.0, of_topic)
        elif owed_since is not None:
            yield Point(PENDING_AGE, max(0.0, time.time() - owed_since), of_topic)
        if topic in topic_times:
            yield Point(OPEN_TRANSACTION_OFFSETS, held, of_topic)
            if not held or held_seconds is not None:
                yield Point(OPEN_TRANSACTION_AGE, held_seconds or 0.0, of_topic)


class GroupMetrics:
    """The metrics that a sensor reports for its group."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._times: Mapping[str, TopicTimes] = {}

    def record(
        self,
        cluster: Cluster,
        members: int,
        partitions: Sequence[PartitionSnapshot],
        events: Sequence[GroupEvent],
        *,
        cluster_for_times: bool,
    ) -> None:
        """Set the gauges of one tick and count its events, if metrics are enabled.

        Args:
            cluster: the group's cluster.
            members: number of the group's members.
            partitions: the group's partitions as of this tick.
            events: events of this tick.
            cluster_for_times: whether to query the cluster for record timestamps; otherwise the last times
                are reported again.
        """
        if not is_enabled():
            return
        for event in events:
            reason = {REASON: event.reason.code} if isinstance(event, MemberLeft) else {}
            record(EVENTS, 1, {GROUP: self._group_id, EVENT: type(event).__name__, **reason})
        if cluster_for_times:
            from kafka_liveness_dagster.kafka.timestamps import open_transactions  # noqa: PLC0415 - stays lazy

            try:
                held = open_transactions(
                    cluster, self._group_id, {one.topic_partition: one.log_end for one in partitions}
                )
                self._times = measure_topics(cluster, self._group_id, partitions, open_transactions=held)
            except KafkaLivenessError as error:  # a failed measurement must not fail the tick
                self._times = {}
                log.warning("Could not measure record ages of group %s: %s", self._group_id, error)
        set_gauges(
            self._group_id, list(gauge_points(self._group_id, members, partitions, topic_times=self._times))
        )


def _group_by_topic(partitions: Sequence[PartitionSnapshot]) -> dict[str, list[PartitionSnapshot]]:
    found: dict[str, list[PartitionSnapshot]] = defaultdict(list)
    for one in partitions:
        found[one.topic_partition.topic].append(one)
    return found


def _first_pending(one: PartitionSnapshot) -> int | None:
    """Return the first pending offset that the broker still has; None if there is none."""
    there = [
        span.start
        for span in one.unprocessed
        if expiry(span, one.log_start, one.log_end) is not Expiry.EXPIRED
    ]
    return max(one.log_start, min(there)) if there else None
