"""Read a batch record by record, for ops without Spark, by a client that belongs to no group.

The client is assigned exactly the planned ranges and stays connected from batch to batch. It never joins and
never commits, so the member continues its heartbeats while the op iterates. Ranges end by position, not by
count. Their last offsets may be holes (aborted, control records, compacted away), which the next record or
the log end shows.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.core.partition_state import check_offset_in_log
from kafka_liveness_dagster.core.record_reader import BatchReader, Buffered
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.clients import create_client
from kafka_liveness_dagster.kafka.errors import is_transient, to_package_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.core.record_reader import Prefetch
    from kafka_liveness_dagster.kafka.settings import KafkaSettings

_POLL_SECONDS = 0.1  # longest time that a wait for records delays the check of the fence
# Records taken at a time: more would leave the processor's cache before they are sorted by partition
_MAX_MESSAGES = 2_000
_SAMPLE = 100  # number of last records from which the size of the next ones is estimated


class BatchInterleavedError(KafkaLivenessError):
    """A second batch was begun before all records of the first were read."""


class RecordReader:
    """The client of one consumer; records that it fetched beyond a batch are kept for the next."""

    def __init__(self, kafka: KafkaSettings, group_id: str, client_id: str) -> None:
        self._kafka = kafka
        self._operation = f"reading records for {group_id}"
        self._config = kafka.reader_config(group_id, f"{client_id}/records")
        self._client: Any = None
        self._batch_reader: BatchReader[Any] = BatchReader()
        self._assigned: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._last_records: list[Message] = []
        self._check: Callable[[], None] = lambda: None
        self._record_bytes: float | None = None
        self._iteration = 0
        self._is_drained = True

    @property
    def is_open(self) -> bool:
        """Whether the client is connected."""
        return self._client is not None

    def buffered(self) -> Buffered:
        """Return the buffered records and bytes of all partitions."""
        every = self._batch_reader.buffered().values()
        return Buffered(sum(h.records for h in every), sum(h.bytes for h in every))

    def read(
        self, ranges: Iterable[OffsetRange], bound: Prefetch, may_go_on: Callable[[], None]
    ) -> Iterator[list[Message]]:
        """Yield the records of these ranges in turns, in lists of the available ones.

        ``may_go_on`` is called before each list; it raises to stop.
        """
        self.stop_giving()
        self._iteration += 1
        turn = self._iteration

        def check() -> None:
            may_go_on()
            if turn != self._iteration:
                raise BatchInterleavedError(
                    "the records of another batch were requested before all records of this batch were "
                    "read. Fix: read one batch after the other, or keep the records of the first in a "
                    "list"
                )

        check()
        if self._client is None:
            self._client = create_client(Consumer, self._config)
        moves = self._batch_reader.start_batch(ranges)
        self._leave(moves.unassign)
        self._seek(moves.seek)
        while True:
            check()
            self._seek(self._batch_reader.advance())
            if self._batch_reader.is_finished:
                return
            self._check = check  # before the records, because stop_giving_fenced calls it
            self._last_records = self._batch_reader.take()
            if self._last_records:
                check()  # the fence may have gone up before stop_giving_fenced had records to withhold
                yield self._last_records
            else:
                self._consume(bound)

    def stop_giving_fenced(self) -> None:
        """Withhold the remaining records of a fenced batch.

        Caller: a thread of the watchdog after the fence went up, perhaps so late that the next batch is being
        read. Affects: the list being iterated, which ends with the op's current record; its iterator then
        raises the reason.
        """
        given = self._last_records
        check = self._check
        try:
            check()
        except KafkaLivenessError:
            given.clear()

    def stop_giving(self) -> None:
        """Withhold the records that are on their way to the op."""
        self._last_records.clear()

    def release(self) -> None:
        """Drop the records fetched beyond the batch; fetch nothing until the next batch."""
        self.stop_giving()
        self._leave(set(self._assigned))
        self._batch_reader = BatchReader()

    def close(self) -> None:
        """Disconnect; there is no group to leave."""
        self.stop_giving()
        if self._client is not None:
            self._client.close()

    def _seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Move to these offsets by a new assignment.

        librdkafka then drops the records it has queued of a partition, wherever the offset lies.
        """
        self._leave(offsets.keys() & self._assigned)
        if offsets:
            self._call(
                "incremental_assign", [KafkaTopicPartition(*tp, offset) for tp, offset in offsets.items()]
            )
            self._assigned |= offsets.keys()

    def _leave(self, partitions: set[TopicPartition]) -> None:
        self._pause(self._paused - partitions)
        if partitions:
            self._call("incremental_unassign", [KafkaTopicPartition(*tp) for tp in partitions])
            self._assigned -= partitions

    def _pause(self, paused: set[TopicPartition]) -> None:
        for name, changed in (("resume", self._paused - paused), ("pause", paused - self._paused)):
            if changed:
                self._call(name, [KafkaTopicPartition(*tp) for tp in changed])
        self._paused = paused

    def _consume(self, bound: Prefetch) -> None:
        """Take the available records from librdkafka; wait only if there are none."""
        held = self._batch_reader.buffered()
        self._pause(bound.partitions_to_pause(held, self._paused, drained=self._is_drained))
        room = min(_MAX_MESSAGES, bound.max_records_now(held, self._record_bytes))
        got = self._call("consume", 1, _POLL_SECONDS)
        if got and room > 1:
            got += self._call("consume", room - 1, 0)
        self._is_drained = len(got) < room
        if got:
            self._record_bytes = sum(map(len, got[-_SAMPLE:])) / len(got[-_SAMPLE:])
        for tp, run in _group_by_partition(got, {tp.topic for tp in held}):
            if any(map(Message.error, run)):
                self._add_messages(tp, run)
            else:
                self._batch_reader.add(tp, run)

    def _add_messages(self, tp: TopicPartition, run: list[Any]) -> None:
        """Add records among which librdkafka reports the log end or an error."""
        for message in run:
            error = message.error()
            if error is None:
                self._batch_reader.add(tp, [message])
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own codes begin so
                self._batch_reader.mark_end(tp, message.offset())
            elif error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART or not is_transient(error):
                at = self._batch_reader.position(tp)
                if at is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
                    check_offset_in_log(tp, at, *Cluster(self._kafka).log_bounds([tp])[tp])
                raise to_package_error(error, self._operation, self._kafka.bootstrap_servers)

    def _call(self, name: str, *args: Any) -> Any:
        try:
            return getattr(self._client, name)(*args)
        except KafkaException as error:
            raise to_package_error(error, self._operation, self._kafka.bootstrap_servers) from error


def _group_by_partition(messages: list[Any], topics: set[str]) -> Iterator[tuple[TopicPartition, list[Any]]]:
    """Yield adjacent records of one partition together, without a Python step for each record."""
    partition_of: Any = Message.partition
    topic_of: Any = Message.topic  # None for an error that belongs to no partition
    for partition, same in groupby(messages, partition_of):
        for topic, run in groupby(same, topic_of) if len(topics) > 1 else [(min(topics), same)]:
            yield TopicPartition(topic, partition), list(run)
