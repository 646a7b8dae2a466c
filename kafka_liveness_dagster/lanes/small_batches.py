"""Decide which batches are small enough to be read in the run, and read them.

Spark's Kafka source has a consumer for each partition, and each of them reads the metadata of the whole
topic. For a few records this costs more than all the rest of a batch. What the run cannot read at once is
left to Spark's source, as are large batches.
"""

from __future__ import annotations

import time
from functools import cache, partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.core.record_reader import KafkaRecord
    from kafka_liveness_dagster.lanes.protocols import Lane

MAX_OFFSETS = 5_000
MAX_BYTES = 2 * 2**20
"""Each request for the plan has the records: two analyses and one execution of a batch."""
MAX_SECONDS = 2.0
_SLOW_SECONDS = 1.0
_PAUSE_SECONDS = 60.0  # after a batch that the run could not read


class SmallBatches:
    """The small batches of one run.

    For a minute batches are assumed to have records of the same size as the last one that the run read.

    Attributes:
        last_seconds: time that the last batch of the run took, of any size.
    """

    def __init__(self) -> None:
        self.last_seconds = 0.0
        self._record_bytes = 0.0
        self._measured_at = 0.0
        self._left_to_spark_until = 0.0

    @property
    def are_slow(self) -> bool:
        """Whether one task is too few for a batch: its transform may be slow, and more cores would help."""
        return self.last_seconds > _SLOW_SECONDS

    def read(self, lane: Lane, batch: Batch) -> Callable[[], list[KafkaRecord] | None]:
        """Return a function that reads the records of a batch, once; None if Spark has to read them."""
        return cache(partial(self._read, lane, batch))

    def _read(self, lane: Lane, batch: Batch) -> list[KafkaRecord] | None:
        now = time.monotonic()
        offsets = batch.max_records
        is_large = offsets * self._record_bytes > MAX_BYTES and now < self._measured_at + _PAUSE_SECONDS
        if offsets > MAX_OFFSETS or is_large or now < self._left_to_spark_until:
            lane.release_records()
            return None
        found = lane.records_within(batch, max_bytes=MAX_BYTES, seconds=MAX_SECONDS)
        if found is None:
            self._left_to_spark_until = time.monotonic() + _PAUSE_SECONDS
        elif found:
            self._record_bytes = sum(one.size for one in found) / len(found)
            self._measured_at = now
        return found
