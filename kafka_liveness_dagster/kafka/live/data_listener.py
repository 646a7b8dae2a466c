"""Notice new records of an idle lane without polling: a fetch waits at the broker for the first record.

The record is only a signal. It is dropped, because Spark reads it, and the log ends are read. A missing or
wrong signal costs only one read of the log ends, which the live lane also does at intervals. Never plans.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kafka_liveness_dagster.kafka.settings import FETCH_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import Consumer, KafkaError, Message

    from kafka_liveness_dagster.core.offsets import TopicPartition

REFRESH_SECONDS = 0.2
LISTENING_REFRESH_SECONDS = 5.0
LISTENING_POLL_SECONDS = 0.5  # longest wait of one poll; a record, a rebalance or a signal ends it
CAUGHT_UP_SECONDS = FETCH_MS / 1000  # longest time of a fetch begun earlier, which would delay the next poll


class DataListener:
    """The fetched partitions of a member's client: only those without records to read.

    Attributes:
        has_new_data: whether a record came since the last read of the log ends.
        refresh_seconds: time until the log ends are read again without a signal.
    """

    def __init__(self, client: Consumer) -> None:
        self._client = client
        self._positions: dict[TopicPartition, int] = {}
        self._requested: Mapping[TopicPartition, int] = {}
        self._caught_up_since = time.monotonic()
        self.has_new_data = False
        self.refresh_seconds = REFRESH_SECONDS

    @property
    def poll_seconds(self) -> float | None:
        """The longest useful wait of a poll for a record; None for the client's default."""
        return LISTENING_POLL_SECONDS if self._positions else None

    def on_caught_up(self, ends: Mapping[TopicPartition, int]) -> None:
        """Listen for records of these partitions, which are read up to their log ends.

        Args:
            ends: log ends of all partitions; empty if any has records to read.
        """
        now = time.monotonic()
        if not ends:
            self._caught_up_since = now
        is_quiet = now - self._caught_up_since >= CAUGHT_UP_SECONDS
        self._requested, self.refresh_seconds = (
            (ends, LISTENING_REFRESH_SECONDS) if is_quiet else ({}, REFRESH_SECONDS)
        )
        self.has_new_data = False

    def stop(self) -> None:
        """Stop listening after a record or new partitions came: the log ends are read first."""
        self._caught_up_since = time.monotonic()
        self._requested = {}
        self.refresh_seconds = REFRESH_SECONDS

    def apply(self) -> None:
        """Pause and resume the client's partitions as requested; call it before a poll, under the lock."""
        if self._requested == self._positions:
            return
        if self._positions:
            self._client.pause([KafkaTopicPartition(*tp) for tp in self._positions])
        self._positions = dict(self._requested)
        try:
            for tp, offset in self._positions.items():
                self._client.seek(KafkaTopicPartition(*tp, offset))
            if self._positions:
                self._client.resume([KafkaTopicPartition(*tp) for tp in self._positions])
        except KafkaException:  # a partition is not ready to be fetched, or no longer assigned
            self._positions = {}
            self.stop()

    def on_message(self, message: Message | None) -> KafkaError | None:
        """Handle the result of a poll: a record is a signal; return an error."""
        error = None if message is None else message.error()
        if message is not None and error is None:
            self.stop()
            self.apply()
            self.has_new_data = True
        return error
