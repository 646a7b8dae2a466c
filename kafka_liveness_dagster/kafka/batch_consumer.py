"""What the consumers of both lanes offer to the code that processes a batch: fence, heartbeat and records."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.record_reader import Prefetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import Message

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.core.record_reader import Heuristic
    from kafka_liveness_dagster.kafka.record_reader import RecordReader
    from kafka_liveness_dagster.kafka.watchdog import Fence

_DEFAULT_PREFETCH = Prefetch()


class BatchConsumer:
    """The fence of a consumer, and the records of its batches.

    Args:
        fence: of the consumer, by which its batches are open.
        reader: fetches the records.
    """

    def __init__(self, fence: Fence, reader: RecordReader) -> None:
        self._fence = fence
        self._reader = reader

    def check(self) -> None:
        """Raise when this process may not commit any more: ask before starting anything long.

        Raises:
            FencedError: the fence is up.
        """
        self._fence.check()

    def check_batch(self, batch: Batch) -> None:
        """Raise when this batch may not be committed any more, also after a new membership has begun.

        Raises:
            FencedError: the fence is up, or it was since the batch was planned.
        """
        self._fence.check_batch(batch)

    def is_batch_current(self, batch: Batch) -> bool:
        """Whether a batch is of the membership that goes on: none is, while the fence is up."""
        return self._fence.is_batch_current(batch)

    def on_fence(self, cancel: Callable[[], None]) -> None:
        """Register what to cancel when the fence goes up, a Spark job for one.

        Caller: a thread of the watchdog's, once per fence. It may come late, when work of the next membership
        has begun: ``is_batch_current`` tells them apart. Affects: work already under way.
        """
        self._fence.on_fence(cancel)

    def heartbeat(self) -> None:
        """Report that the work on the open batch goes on: the process timeout begins again.

        For ops whose batch may take longer than its budget as long as it moves (KIP-62's possible extension).

        Raises:
            FencedError: the process timeout had passed, or this process is finished with the group: stop the
                work.
        """
        self._fence.heartbeat()

    def records(
        self,
        batch: Batch,
        *,
        prefetch: Heuristic = "partition",
        max_buffered_records: int = _DEFAULT_PREFETCH.max_records,
        max_buffered_bytes: int = _DEFAULT_PREFETCH.max_bytes,
    ) -> Iterator[Message]:
        """The records of exactly this batch's ranges, to iterate once; iterate again to read them again.

        The partitions take turns, a record each, until they have no more (KIP-41's round-robin): an op that
        stops half-way has seen all of them. Within a partition records come by offset, and the same batch
        gives the same order. There may be fewer records than offsets. Iterating is no heartbeat: call
        ``heartbeat()`` where a batch may outlast its budget.

        Args:
            batch: what ``poll`` gave.
            prefetch: KIP-41's heuristic for fetching ahead, see ``core.record_reader.Prefetch``:
                ``partition`` fetches each partition of which less than its share is held, ``total`` all of
                them when little is held of all.
            max_buffered_records: about how many records may wait for their turn; never three times as many.
            max_buffered_bytes: the same for the bytes of their values. librdkafka's own queue comes on top
                (``queued.max.messages.kbytes``, 16 MB unless set in ``extra``).

        Raises:
            FencedError: from the iterator, as soon as this process may not commit the batch any more.
            BatchInterleavedError: from the iterator, when the records of another batch were asked for
                meanwhile.
            DataExpiredError: from the iterator, when offsets of the batch were deleted before they were read.
        """
        bound = Prefetch(max_buffered_records, max_buffered_bytes, prefetch)
        if not self._reader.is_open:
            self._fence.on_fence(self._reader.stop_giving_fenced)
        return chain.from_iterable(
            self._reader.read(batch.ranges, bound, lambda: self._fence.check_batch(batch))
        )
