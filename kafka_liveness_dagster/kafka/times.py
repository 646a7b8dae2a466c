"""Which offsets have which timestamps? The records' own: the producer's (``CreateTime``), or the broker's.

Offsets say how much is waiting, and not for how long: a partition that gets a record an hour is hours behind by one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import OffsetSpec

from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.core.transactions import HeldBack
from kafka_liveness_dagster.kafka.admin import REQUEST_SECONDS
from kafka_liveness_dagster.kafka.clients import admin_client, made
from kafka_liveness_dagster.kafka.errors import KafkaRefusedError, named

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kafka_liveness_dagster.kafka.admin import Cluster

_WORST = 10
_SECONDS = 2.0  # to read so few records; then it is said of those that came
_MOST = 100  # messages of one answer


def seconds_behind(
    cluster: Cluster, group_id: str, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> float | None:
    """Seconds of the records' own timestamps from the newest that is processed to the newest in the log.

    Of the partition that is worst off, among the ten with the largest lag. A timestamp may be the producer's
    (``CreateTime``): records that are older than their neighbours count as what they say.

    Args:
        cluster: where they are.
        group_id: in whose name they are read: nothing is joined or committed.
        positions: where the lane goes on.
        ends: of the logs.

    Returns:
        0 where nothing waits, None where nobody can tell: a broker before 3.0, or one that is slow.

    Raises:
        BrokerUnreachableError: no broker answers.
        KafkaRefusedError: the broker refuses to tell.
    """
    waiting = sorted((tp for tp in positions if ends[tp] > positions[tp]), key=lambda tp: positions[tp] - ends[tp])
    if not waiting:
        return 0.0
    newest = _newest(cluster, waiting[:_WORST])
    processed = timestamps(cluster, group_id, {tp: max(0, positions[tp] - 1) for tp in newest})
    behind = [newest[tp] - at_ms for tp, at_ms in processed.items()]
    return max(0, *behind) / 1000 if behind else None


def held_back(cluster: Cluster, group_id: str, ends: Mapping[TopicPartition, int]) -> tuple[HeldBack, ...]:
    """What waits behind open transactions; since when, of the ten partitions where most does.

    Args:
        cluster: where they are.
        group_id: in whose name they are read: nothing is joined or committed.
        ends: the last stable offsets, as of a moment ago.

    Raises:
        BrokerUnreachableError: no broker answers.
        KafkaRefusedError: the broker refuses to tell.
    """
    very_ends = _listed(cluster, ends, OffsetSpec.latest(), "asking where the logs end")
    behind = [tp for tp, at in very_ends.items() if at.offset > ends[tp]]
    stable = {
        tp: end for tp, (_, end) in cluster.log_bounds(behind).items()
    }  # later: what came meanwhile is behind none
    waiting = {tp: very_ends[tp].offset - end for tp, end in stable.items() if very_ends[tp].offset > end}
    if not waiting:
        return ()
    worst = sorted(waiting, key=lambda tp: -waiting[tp])[:_WORST]
    began = timestamps(cluster, group_id, {tp: stable[tp] for tp in worst}, isolation="read_uncommitted")
    ages = {tp: max(0.0, time.time() - at_ms / 1000) for tp, at_ms in began.items() if at_ms > 0}
    return tuple(HeldBack(tp, stable[tp], count, ages.get(tp)) for tp, count in waiting.items())


def timestamps(
    cluster: Cluster, group_id: str, offsets: Mapping[TopicPartition, int], isolation: str = "read_committed"
) -> dict[TopicPartition, int]:
    """Milliseconds of the first record at or behind each offset, of those that came in time.

    At the offset itself may be none: a transaction's marker, or what compaction took.
    """
    settings = cluster.settings
    reader = settings.reader(group_id, "kafka-liveness/behind")
    config = {**reader, "auto.offset.reset": "earliest", "isolation.level": isolation}
    client: Any = made(Consumer, config)
    found: dict[TopicPartition, int] = {}
    unheard, give_up_at = set(offsets), time.monotonic() + _SECONDS
    try:
        client.assign([KafkaTopicPartition(*tp, offset) for tp, offset in offsets.items()])
        while unheard and (left := give_up_at - time.monotonic()) > 0:
            heard: set[TopicPartition] = set()
            for message in client.consume(_MOST, min(left, 0.1)):
                at = TopicPartition(message.topic(), message.partition())
                if at in unheard - heard and not message.error():
                    found[at] = message.timestamp()[1]
                heard.add(at)
            client.pause([KafkaTopicPartition(*tp) for tp in heard & unheard])  # else the others wait for their rest
            unheard -= heard
    except KafkaException as error:
        raise named(error, f"reading how old the records of {group_id} are", settings.bootstrap_servers) from error
    finally:
        client.close()
    return found


def offsets_at(cluster: Cluster, partitions: Iterable[TopicPartition], at_ms: int) -> dict[TopicPartition, int | None]:
    """The first offset of each partition whose timestamp is not before this one; None where there is none.

    Raises:
        BrokerUnreachableError: no broker answers.
        KafkaRefusedError: the broker refuses to tell.
    """
    found = _listed(cluster, partitions, OffsetSpec.for_timestamp(at_ms), "asking which offsets are of a time")
    return {tp: one.offset if one.offset >= 0 else None for tp, one in found.items()}


def window_bounds(
    cluster: Cluster, partitions: Sequence[TopicPartition], begin_ms: int, end_ms: int
) -> tuple[dict[TopicPartition, int | None], dict[TopicPartition, int]]:
    """Between which offsets of each partition a window of time lies.

    Args:
        cluster: where they are.
        partitions: of the topics.
        begin_ms: of the window, since the epoch.
        end_ms: of the window; the first offset that is not before it is behind the window.

    Returns:
        The first offsets that are not before its beginning, None where there is none; and those behind it: where there
        is none the log's very end, with what is in open transactions, of which nobody knows yet.

    Raises:
        BrokerUnreachableError: no broker answers.
        KafkaRefusedError: the broker refuses to tell.
    """
    return offsets_at(cluster, partitions, begin_ms), window_ends(cluster, partitions, end_ms)


def window_ends(cluster: Cluster, partitions: Sequence[TopicPartition], end_ms: int) -> dict[TopicPartition, int]:
    """Return the offsets behind a window, as ``window_bounds`` does.

    Raises:
        BrokerUnreachableError: no broker answers.
        KafkaRefusedError: the broker refuses to tell.
    """
    found = offsets_at(cluster, partitions, end_ms)
    last = [tp for tp, at in found.items() if at is None]
    ends = _listed(cluster, last, OffsetSpec.latest(), "asking where the logs end")
    return {tp: ends[tp].offset if at is None else at for tp, at in found.items()}


def _newest(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Milliseconds of the newest record's timestamp of each partition that has one; none before Kafka 3.0."""
    try:
        found = _listed(cluster, partitions, OffsetSpec.max_timestamp(), "asking how new the newest records are")
    except KafkaRefusedError:
        return {}
    return {tp: one.timestamp for tp, one in found.items() if one.offset >= 0}


def _listed(
    cluster: Cluster, partitions: Iterable[TopicPartition], of: OffsetSpec, doing: str
) -> dict[TopicPartition, Any]:
    admin, heard = admin_client(cluster.settings)
    wanted = {KafkaTopicPartition(*tp): of for tp in partitions}
    if not wanted:
        return {}
    asked = admin.list_offsets(wanted, request_timeout=REQUEST_SECONDS)
    try:
        return {TopicPartition(tp.topic, tp.partition): one.result() for tp, one in asked.items()}
    except KafkaException as error:
        admin.poll(0)  # serves what the client has to say
        raise heard.named(error, doing) from error
