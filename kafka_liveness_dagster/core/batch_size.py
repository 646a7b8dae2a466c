"""Limit the next batch to the offsets that are expected to take half of its budget.

Without ``auto`` only the ceiling limits it. With a bound of bytes no more than are expected to weigh as much,
by what the records of the batches before weighed.

After one that was too slow: half of them, down to the offset that fails alone. Never drops an offset: what
failed alone is named, and the caller decides whether it is pending or ends the run.

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

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import KafkaLivenessError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.core.offsets import OffsetRange


INITIAL_OFFSETS = 10_000
"""Of an automatic bound, before anything is known: a second of work for most transforms."""
AUTO_MAX_OFFSETS = 5_000_000
"""Of an automatic bound that was given none."""
_MAX_GROWTH = 4  # of a bound from one batch to the next: one quick batch proves little
_CLOCK_RESOLUTION_SECONDS = 0.001
LARGEST_RECORD_BYTES = 2**20
"""Before any record was weighed.

Kafka's message.max.bytes, so that the first batch is not too heavy either.
"""


class SlowRecordError(KafkaLivenessError):
    """Single offsets take longer than a whole batch may.

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
        auto: find the bound by what batches take: the next is expected to use half of its budget.
        max_bytes: what keys and values of a batch may weigh together; None for any weight.
        retry_alone: the batch before was too slow; what comes next is to be judged by itself.
    """

    ceiling: int
    auto: bool = False
    max_bytes: int | None = None
    _: KW_ONLY
    retry_alone: bool = field(default=False, init=False)
    _last_succeeded: int = field(init=False)
    _record_bytes: float = field(default=LARGEST_RECORD_BYTES, init=False)
    _suspect_offset: OffsetRange | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._last_succeeded = min(self.ceiling, INITIAL_OFFSETS) if self.auto else self.ceiling

    @property
    def bound(self) -> int:
        """Offsets the next batch may hold."""
        if self.max_bytes is None:
            return self._last_succeeded
        return max(1, min(self._last_succeeded, int(self.max_bytes / self._record_bytes)))

    def record_success(self, batch: Batch, seconds: float, record_bytes: float | None = None) -> None:
        """A batch was committed after so long: the next may be larger, up to the ceiling.

        Args:
            batch: the batch.
            seconds: what it took.
            record_bytes: what a record of it weighed on average; None where nobody weighed one.
        """
        self.retry_alone = False
        self._suspect_offset = None
        if record_bytes is not None:
            was = record_bytes if self._record_bytes == LARGEST_RECORD_BYTES else self._record_bytes
            # The size goes up at once, and down by and by
            self._record_bytes = max(1.0, record_bytes, (was + record_bytes) / 2)
        if not self.auto:
            self._last_succeeded = min(self.ceiling, 2 * self._last_succeeded)
            return
        # What is fixed in a batch makes a small one look slow for each of its offsets, so this promises too
        # little
        wanted = int(batch.max_records / max(seconds, _CLOCK_RESOLUTION_SECONDS) * batch.deadline_seconds / 2)
        full = batch.max_records >= self.bound
        late = seconds > batch.deadline_seconds / 2
        if full or late or wanted > self.bound:  # a batch that lacked data is no reason to take less
            self._last_succeeded = max(1, min(self.ceiling, wanted, _MAX_GROWTH * self._last_succeeded))

    def record_timeout(self, batch: Batch, *, alone: bool = True) -> OffsetRange | None:
        """Halve the next batch after one that exceeded its deadline.

        An offset that was alone in it is returned, the second time. Once may be a process that was stopped, a
        machine that was paused, or what was in flight beside it.

        Args:
            batch: the oldest that was in flight.
            alone: nothing else was in flight, so nothing else can have slowed it down.
        """
        self.retry_alone = True
        self._last_succeeded = max(1, batch.max_records // 2)
        before, self._suspect_offset = (
            self._suspect_offset,
            batch.ranges[0] if batch.max_records == 1 else None,
        )
        return self._suspect_offset if alone and self._suspect_offset == before else None
