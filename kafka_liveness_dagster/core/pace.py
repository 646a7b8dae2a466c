"""How many offsets may the next batch hold after one was too slow? Half of them, down to the offset that fails alone.

Never drops an offset: what failed alone is named, and the caller decides whether it is owed or ends the run.

>>> from kafka_liveness_dagster.core.fairness import Batch
>>> from kafka_liveness_dagster.core.offsets import OffsetRange
>>> pace = Pace(ceiling=50)
>>> pace.too_slow(Batch((OffsetRange("orders", 3, 70, 120),), deadline_seconds=60)), pace.bound
(None, 25)
>>> pace.in_time(), pace.bound
(None, 50)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import KafkaLivenessError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kafka_liveness_dagster.core.fairness import Batch
    from kafka_liveness_dagster.core.offsets import OffsetRange


class PoisonedOffsetError(KafkaLivenessError):
    """Single offsets take longer than a whole batch may.

    Attributes:
        offsets: ranges of one offset each.
    """

    def __init__(self, offsets: Iterable[OffsetRange], process_seconds: float, outcome: str) -> None:
        self.offsets = tuple(offsets)
        named = ", ".join(f"offset {r.start} of {r.topic_partition}" for r in self.offsets)
        super().__init__(
            f"{named}: alone in a batch, still not processed within the process timeout of {process_seconds:g} s. "
            f"{outcome}. See what the record does to the transform, or raise max_batch_seconds"
        )


@dataclass
class Pace:
    """The bound of the next batch.

    Attributes:
        ceiling: ``max_poll_records``; never exceeded.
        bound: offsets the next batch may hold.
    """

    ceiling: int
    bound: int = field(init=False)

    def __post_init__(self) -> None:
        self.bound = self.ceiling

    def in_time(self) -> None:
        """A batch was committed: the next may be twice as large, up to the ceiling."""
        self.bound = min(self.ceiling, 2 * self.bound)

    def too_slow(self, batch: Batch) -> OffsetRange | None:
        """A batch exceeded its deadline: half of it next. An offset that was alone in it is returned."""
        self.bound = max(1, batch.max_records // 2)
        return batch.ranges[0] if batch.max_records == 1 else None
