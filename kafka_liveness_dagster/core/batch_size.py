"""Limit the next batch to the offsets that are expected to take half of its budget.

Without ``auto`` only the ceiling limits it. A limit of bytes applies too, by the mean record size of earlier
batches.

After a batch that was too slow the next has half of its offsets, down to a single offset. Never drops an
offset: an offset that is too slow alone is returned, and the caller quarantines it or ends the run.

>>> from kafka_liveness_dagster.core.batch_planning import Batch
>>> from kafka_liveness_dagster.core.offsets import OffsetRange
>>> sizer = BatchSizer(ceiling=50)
>>> sizer.record_timeout(Batch((OffsetRange("orders", 3, 70, 120),), deadline_seconds=60)), sizer.bound
(None, 25)
>>> half = Batch((OffsetRange("orders", 3, 70, 95),), deadline_seconds=60)
>>> sizer.record_success(half, seconds=20.0), sizer.bound
(None, 50)
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import KafkaLivenessError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.core.offsets import OffsetRange


INITIAL_OFFSETS = 10_000
"""First bound with ``auto``, before any measurement: a second of work for most transforms."""
AUTO_MAX_OFFSETS = 5_000_000
"""Ceiling with ``auto`` if none is set."""
_MAX_GROWTH = 4  # a larger growth needs more proof than one quick batch: see BatchSizer.record_success
_CLOCK_RESOLUTION_SECONDS = 0.001
LARGEST_RECORD_BYTES = 2**20
"""Assumed record size before any measurement.

It is Kafka's message.max.bytes, so that the first batch is not too large either.
"""


class SlowRecordError(KafkaLivenessError):
    """Single offsets take longer than the run budget of a whole batch.

    Attributes:
        offsets: ranges of one offset each.
    """

    def __init__(self, offsets: Iterable[OffsetRange], process_seconds: float, outcome: str) -> None:
        self.offsets = tuple(offsets)
        named = ", ".join(f"offset {r.start} of {r.topic_partition}" for r in self.offsets)
        super().__init__(
            f"{named}: not processed within the process timeout of {process_seconds:g} s, alone in a batch. "
            f"{outcome}. Fix: find why the transform is slow for this record, or raise max_batch_seconds."
        )


@dataclass
class BatchSizer:
    """The bound of the next batch.

    Attributes:
        ceiling: ``max_poll_records``; never exceeded.
        auto: whether the bound follows the time of batches, so that the next one should use half its budget.
        max_bytes: largest size of all keys and values in a batch; None without a limit.
        retry_alone: whether the batch before was too slow, so that the next one must be the only one in
            flight.
    """

    ceiling: int
    auto: bool = False
    max_bytes: int | None = None
    _: KW_ONLY
    retry_alone: bool = field(default=False, init=False)
    _offset_bound: int = field(init=False)
    _record_bytes: float = field(default=LARGEST_RECORD_BYTES, init=False)
    _suspect_offset: OffsetRange | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._offset_bound = min(self.ceiling, INITIAL_OFFSETS) if self.auto else self.ceiling

    @property
    def bound(self) -> int:
        """The largest number of offsets in the next batch."""
        if self.max_bytes is None:
            return self._offset_bound
        return max(1, min(self._offset_bound, int(self.max_bytes / self._record_bytes)))

    def record_success(self, batch: Batch, seconds: float, record_bytes: float | None = None) -> None:
        """Record the time of a committed batch; the next one may be larger, up to the ceiling.

        With ``auto`` the next one may be four times as large. It may be even larger if it would stay within
        half of its budget although the time grows with the square of the size. Some joins grow so.

        Args:
            batch: the committed batch.
            seconds: time that it took.
            record_bytes: mean size of its records; None if it was not measured.
        """
        self.retry_alone = False
        self._suspect_offset = None
        if record_bytes is not None:
            was = record_bytes if self._record_bytes == LARGEST_RECORD_BYTES else self._record_bytes
            # A larger size counts at once, a smaller one step by step, so that no batch becomes too large
            self._record_bytes = max(1.0, record_bytes, (was + record_bytes) / 2)
        if not self.auto:
            self._offset_bound = min(self.ceiling, 2 * self._offset_bound)
            return
        # The fixed cost of a batch makes each offset of a small batch look slow, so this estimate is too low
        shorter = batch.deadline_seconds / 2 / max(seconds, _CLOCK_RESOLUTION_SECONDS)
        wanted = int(batch.max_records * shorter)
        full = batch.max_records >= self.bound
        late = seconds > batch.deadline_seconds / 2
        if full or late or wanted > self.bound:  # a lack of data must not lower the bound
            largest = int(max(_MAX_GROWTH * self._offset_bound, batch.max_records * math.sqrt(shorter)))
            self._offset_bound = max(1, min(self.ceiling, wanted, largest))

    def record_timeout(self, batch: Batch, *, alone: bool = True) -> OffsetRange | None:
        """Halve the next batch after one that exceeded its deadline.

        Return a single offset when it was too slow for the second time. The first time the cause may be a
        stopped process, a paused machine, or another batch in flight.

        Args:
            batch: the oldest batch in flight.
            alone: whether no other batch was in flight that could have slowed it down.
        """
        self.retry_alone = True
        self._offset_bound = max(1, batch.max_records // 2)
        before, self._suspect_offset = (
            self._suspect_offset,
            batch.ranges[0] if batch.max_records == 1 else None,
        )
        return self._suspect_offset if alone and self._suspect_offset == before else None
