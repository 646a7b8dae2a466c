"""Read the timestamps of the oldest records that are not in the table, each from Kafka once.

The timestamp of an offset never changes, so a tick that finds the same positions sends no request. Keeps only
the positions of the last read; commits nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.freshness import pending_positions, unread_positions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafka_liveness_dagster.core.freshness import Position
    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
    from kafka_liveness_dagster.kafka.admin import Cluster

log = logging.getLogger("kafka_liveness_dagster")


class RecordTimestamps:
    """The timestamps of one group, kept between the ticks of a process."""

    def __init__(self) -> None:
        self._known: dict[Position, int] = {}

    def known(self, partitions: Sequence[PartitionSnapshot]) -> Mapping[Position, int]:
        """Return the timestamps that were read before; sends no request."""
        wanted = (*unread_positions(partitions), *pending_positions(partitions))
        return {one: self._known[one] for one in wanted if one in self._known}

    def read(
        self, cluster: Cluster, group_id: str, partitions: Sequence[PartitionSnapshot]
    ) -> Mapping[Position, int]:
        """Return all timestamps that Kafka returns in time; the others are read by the next call."""
        known = dict(self.known(partitions))
        # One position of a partition in each request
        for positions in (unread_positions(partitions), pending_positions(partitions)):
            missing = {tp: offset for tp, offset in positions if (tp, offset) not in known}
            if missing:
                known |= _read(cluster, group_id, missing)
        self._known = known
        return known


def _read(cluster: Cluster, group_id: str, offsets: Mapping[TopicPartition, int]) -> dict[Position, int]:
    from kafka_liveness_dagster.kafka.timestamps import timestamps  # noqa: PLC0415 - confluent_kafka stays lazy

    try:
        found = timestamps(cluster, group_id, offsets)
    except KafkaLivenessError as error:  # the other checks are evaluated without it
        log.warning("the age of the records of group %s is unknown: %s", group_id, error)
        return {}
    # A record without a timestamp has -1 there
    return {(tp, offsets[tp]): at_ms for tp, at_ms in found.items() if at_ms >= 0}
