"""Is there something new? At rest nobody asks all the time: a fetch waits at the broker for the first record.

The record is a sign and nothing else. It is dropped, Spark reads it; what is there is looked up. So no sign,
or a wrong one, costs a look: who listens looks by himself now and then.
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
CAUGHT_UP_SECONDS = FETCH_MS / 1000  # a fetch that began before lasts no longer, and would be waited for


class DataListener:
    """Which partitions of a member's client are fetched: none, but while there is nothing to read of them.

    Attributes:
        has_new_data: a record has come since the last look.
        refresh_seconds: how long after it the next one is due, without news.
    """

    def __init__(self, client: Consumer) -> None:
        self._client = client
        self._positions: dict[TopicPartition, int] = {}
        self._requested: Mapping[TopicPartition, int] = {}
        self._caught_up_since = time.monotonic()
        self.has_new_data = False
        self.refresh_seconds = REFRESH_SECONDS

    def on_caught_up(self, ends: Mapping[TopicPartition, int]) -> None:
        """There is nothing to read of these partitions up to their log ends.

        Of none where there is something.
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
        """Partitions have come, or a record: what there is is to be looked at first."""
        self._caught_up_since = time.monotonic()
        self._requested = {}
        self.refresh_seconds = REFRESH_SECONDS

    def apply(self) -> None:
        """Before a poll, by who may use the client: listen where there was nothing."""
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
        except KafkaException:  # one is not ready to be fetched, or no longer ours
            self._positions = {}
            self.stop()

    def on_message(self, message: Message | None) -> KafkaError | None:
        """After it, what it gave: a record is news, an error is to be told."""
        error = None if message is None else message.error()
        if message is not None and error is None:
            self.stop()
            self.apply()
            self.has_new_data = True
        return error
