"""Fence, heartbeat and records: the part of both lanes' consumers that processes a batch.

Never plans and never commits.
"""

from __future__ import annotations

import time
from itertools import chain
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.record_reader import KafkaRecord, Prefetch
from kafka_liveness_dagster.kafka.errors import FencedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import Message

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.record_reader import Heuristic
    from kafka_liveness_dagster.kafka.record_reader import RecordReader
    from kafka_liveness_dagster.kafka.watchdog import Fence

_DEFAULT_PREFETCH = Prefetch()


class BatchConsumer:
    """The fence of a consumer, and the records of its batches.

    Args:
        fence: the consumer's fence; it decides whether a batch is still open.
        reader: reader that fetches the records.
    """

    def __init__(self, fence: Fence, reader: RecordReader) -> None:
        self._fence = fence
        self._reader = reader
        self._partitions_read: frozenset[TopicPartition] = frozenset()

    def check(self) -> None:
        """Raise if this process may not commit any more; call it before any long work.

        Raises:
            FencedError: the fence is up.
        """
        self._fence.check()

    def check_batch(self, batch: Batch) -> None:
        """Raise if this batch may not be committed any more, also after a new membership began.

        Raises:
            FencedError: the fence is up, or was up since the batch was planned.
        """
        self._fence.check_batch(batch)

    def is_batch_current(self, batch: Batch) -> bool:
        """Return whether a batch belongs to the current membership; False while the fence is up."""
        return self._fence.is_batch_current(batch)

    def on_fence(self, cancel: Callable[[], None]) -> None:
        """Register a callback that cancels work when the fence goes up, such as a Spark job.

        Caller: a thread of the watchdog, once per fence. The call may come late, after work of the next
        membership began: check ``is_batch_current``. Affects: work in progress.
        """
        self._fence.on_fence(cancel)

    def heartbeat(self) -> None:
        """Report progress on the open batch, which restarts the process timeout.

        For ops whose batch may exceed its run budget while it makes progress (KIP-62's possible extension).

        Raises:
            FencedError: the process timeout passed, or this process may not rejoin the group. Stop the work.
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
        """Return an iterator over the records of exactly this batch's ranges; call again to read them again.

        The partitions take turns, one record each, until all are read (KIP-41's round-robin). So an op that
        stops half-way has seen every partition. Within a partition records come by offset, and the same batch
        gives the same order. There may be fewer records than offsets. Iterating is no heartbeat: call
        ``heartbeat()`` if a batch may exceed its run budget.

        Args:
            batch: batch returned by ``poll``.
            prefetch: KIP-41's heuristic for fetching ahead, see ``core.record_reader.Prefetch``.
                With ``partition`` a partition is fetched while the buffer has less than its share. With
                ``total`` all partitions are fetched when the whole buffer is low.
            max_buffered_records: approximate number of buffered records; never three times as many.
            max_buffered_bytes: the same limit for the bytes of their values. librdkafka's own queue comes on
                top (``queued.max.messages.kbytes``, 16 MB unless set in ``extra``).

        Raises:
            FencedError: from the iterator, as soon as this process may not commit the batch any more.
            BatchInterleavedError: from the iterator, if the records of another batch were requested
                meanwhile.
            DataExpiredError: from the iterator, if offsets of the batch were deleted before they were read.
        """
        bound = Prefetch(max_buffered_records, max_buffered_bytes, prefetch)
        self._withhold_records_when_fenced()
        return chain.from_iterable(
            self._reader.read(batch.ranges, bound, lambda: self._fence.check_batch(batch))
        )

    def records_within(self, batch: Batch, *, max_bytes: int, seconds: float) -> list[KafkaRecord] | None:
        """Return all records of this batch; None if they are larger, take longer, or cannot be read.

        If the batch has the partitions of the last one, and left at least as many offsets, the client fetches
        ahead: up to ``queued.max.messages.kbytes``, which is 16 MB unless set in ``extra``. Else it drops
        what it fetched beyond this batch, and fetches nothing until the next call.

        Args:
            batch: batch returned by ``poll``.
            max_bytes: largest size of all keys, values and headers, in bytes.
            seconds: longest time.

        Raises:
            FencedError: this process may not commit the batch any more.
        """
        deadline = time.monotonic() + seconds
        partitions = frozenset(batch.spans)
        found: list[KafkaRecord] = []
        size = 0
        is_followed = False

        def check() -> None:
            self._fence.check_batch(batch)
            if size > max_bytes or time.monotonic() > deadline:
                raise KafkaLivenessError  # caught below

        self._withhold_records_when_fenced()
        try:
            for messages in self._reader.read(batch.ranges, _DEFAULT_PREFETCH, check):
                records = list(map(_to_record, messages))
                found += records
                size += sum(record.size for record in records)
            check()
            is_followed = partitions == self._partitions_read and batch.offsets_left >= batch.max_records
        except FencedError:
            raise
        except (KafkaLivenessError, SystemError):  # the latter if the name of a header is not UTF-8
            return None
        else:
            self._partitions_read = partitions
            return found
        finally:
            if not is_followed:
                self._reader.release()

    def release_records(self) -> None:
        """Drop the records that were fetched ahead, because Spark reads the next batch."""
        self._reader.release()

    def _withhold_records_when_fenced(self) -> None:
        if not self._reader.is_open:  # once for the reader
            self._fence.on_fence(self._reader.stop_giving_fenced)


def _to_record(message: Any) -> KafkaRecord:
    kind, timestamp_ms = message.timestamp()
    return KafkaRecord(
        message.key(),
        message.value(),
        message.topic(),
        message.partition(),
        offset=message.offset(),
        timestamp_ms=timestamp_ms,
        timestamp_type=kind - 1,  # librdkafka counts from 0, for no timestamp
        headers=message.headers() or None,
    )
