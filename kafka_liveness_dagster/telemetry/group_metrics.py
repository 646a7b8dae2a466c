"""How much waits for a group, and for how long? The gauges of one look at it, for whoever shows them."""

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
    """What the broker says of the records of one topic; None where nobody can tell.

    Attributes:
        behind_seconds: seconds from the newest record that is processed to the newest.
        pending_since: the timestamp of the oldest one that is pending, in seconds since the epoch.
        open_transaction_offsets: offsets behind open transactions.
        open_transaction_seconds: for how long the oldest of these has been open.
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
    """Of each topic, with what is held back of it; reads a record of each partition that is worst off.

    Raises:
        BrokerUnreachableError: no broker answers.
        KafkaRefusedError: the broker refuses to tell.
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
    """What the gauges of a group show; a value for each topic, or for each partition.

    Args:
        group_id: the live lane's group.
        members: how many it has.
        partitions: as one look saw them.
        topic_times: of each topic, as ``measure_topics`` gives it; what is not there is not shown.
        by_partition: a series for each partition, of all but the times; None to do as the environment says.
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
    """What a sensor tells of its group."""

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
        """Set the gauges of one tick and count its events, if metrics are on.

        ``cluster_for_times`` gives ages.
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
            except KafkaLivenessError as error:  # what is measured is no reason to fail a tick
                self._times = {}
                log.warning("the age of the records of group %s is unknown: %s", self._group_id, error)
        set_gauges(
            self._group_id, list(gauge_points(self._group_id, members, partitions, topic_times=self._times))
        )


def _group_by_topic(partitions: Sequence[PartitionSnapshot]) -> dict[str, list[PartitionSnapshot]]:
    found: dict[str, list[PartitionSnapshot]] = defaultdict(list)
    for one in partitions:
        found[one.topic_partition.topic].append(one)
    return found


def _first_pending(one: PartitionSnapshot) -> int | None:
    """The first offset that is pending and that the broker has."""
    there = [
        span.start
        for span in one.unprocessed
        if expiry(span, one.log_start, one.log_end) is not Expiry.EXPIRED
    ]
    return max(one.log_start, min(there)) if there else None
