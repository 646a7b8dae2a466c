"""What does KIP-333 let a consumer see of its group, both lanes and both commit logs taken together?

Read-only, and the same for whoever asks: the consumer, the sensor's user, a script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.commit_log import committed
from kafka_liveness_dagster.core.offsets import OffsetRange

if TYPE_CHECKING:
    from kafka_liveness_dagster.core.offsets import Span, TopicPartition
    from kafka_liveness_dagster.kafka.admin import Cluster


class GroupView:
    """One consumer group, looked at through both commit logs."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self._cluster, self._group_id = cluster, group_id

    def committed(self, tp: TopicPartition) -> int | None:
        """Every offset before it is processed, in whichever lane; None for none."""
        first = self._cluster.commits(self._group_id, [tp]).get(tp)
        return committed(first.offset if first else None, self._outstanding(tp))

    def owed(self, tp: TopicPartition) -> tuple[OffsetRange, ...]:
        """What the live lane jumped over and no catch-up run has done yet."""
        return tuple(OffsetRange(*tp, *span) for span in self._outstanding(tp))

    def _outstanding(self, tp: TopicPartition) -> tuple[Span, ...]:
        facts = self._cluster.facts(self._group_id, [tp])[tp]
        return facts.second.outstanding(facts.mark.owed if facts.mark else ())
