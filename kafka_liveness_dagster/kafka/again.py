"""What is to be processed again, though it is done? By a mended transform, say: its rows replace those that are there.

Neither commit log changes: what is done stays done, and a run that dies leaves rows of both, each offset's once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.names import listed
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition, difference, intersection, union
from kafka_liveness_dagster.core.witnesses import DataExpiredError
from kafka_liveness_dagster.kafka.second_log import by_partition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kafka_liveness_dagster.kafka.proof import Facts


class Again:
    """The ranges of one catch-up run that are processed whole, whatever is owed of them.

    Args:
        ranges: some of those that the run was asked for; what of them was lost or forgiven stays so.
    """

    def __init__(self, ranges: Iterable[OffsetRange]) -> None:
        self._asked = by_partition(ranges)
        self._did: dict[TopicPartition, tuple[Span, ...]] = {}

    def left(self, facts: Facts) -> dict[TopicPartition, tuple[Span, ...]]:
        """What of them is still to be processed.

        Raises:
            DataExpiredError: the broker has deleted some of it; what is there stays.
        """
        left = {
            tp: difference(spans, (*self._did.get(tp, ()), *facts[tp].reported)) for tp, spans in self._asked.items()
        }
        gone = [
            OffsetRange(*tp, *span)
            for tp, spans in left.items()
            for span in intersection(spans, (Span(0, facts[tp].log_start),))
        ]
        if gone:
            at = gone[0].topic_partition
            raise DataExpiredError(
                f"{listed(gone)}, {sum(r.size for r in gone):,} offsets, are to be processed again and cannot be: "
                f"{at}'s log starts at {facts[at].log_start}. Their rows stay as they are. Fix: materialize the "
                "other partitions without these; `kafka-liveness write-off GROUP PARTITION --reason …` closes these"
            )
        return left

    def wrote(self, ranges: Iterable[OffsetRange]) -> None:
        """These are done, now."""
        for tp, spans in by_partition(ranges).items():
            self._did[tp] = union((*self._did.get(tp, ()), *spans))
