"""Is there something new? At rest nobody asks all the time: a fetch waits at the broker for the first record.

The record is a sign and nothing else. It is dropped, Spark reads it; what is there is looked up. So no sign, or a wrong
one, costs a look: who listens looks by himself now and then.
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

LOOK_SECONDS, LISTENING_LOOK_SECONDS = 0.2, 5.0
_QUIET_SECONDS = FETCH_MS / 1000  # a fetch that began before lasts no longer, and would be waited for


class Listening:
    """Which partitions of a member's client are fetched: none, but while there is nothing to read of them.

    Attributes:
        has_news: a record has come since the last look.
        look_seconds: how long after it the next one is due, without news.
    """

    def __init__(self, client: Consumer) -> None:
        self._client = client
        self._at: dict[TopicPartition, int] = {}
        self._wanted: Mapping[TopicPartition, int] = {}
        self._quiet_since = time.monotonic()
        self.has_news, self.look_seconds = False, LOOK_SECONDS

    def looked(self, ends: Mapping[TopicPartition, int]) -> None:
        """There is nothing to read of these partitions up to their log ends; of none where there is something."""
        now = time.monotonic()
        if not ends:
            self._quiet_since = now
        is_quiet = now - self._quiet_since >= _QUIET_SECONDS
        self._wanted, self.look_seconds = (ends, LISTENING_LOOK_SECONDS) if is_quiet else ({}, LOOK_SECONDS)
        self.has_news = False

    def stop(self) -> None:
        """Partitions have come, or a record: what there is is to be looked at first."""
        self._quiet_since = time.monotonic()
        self._wanted, self.look_seconds = {}, LOOK_SECONDS

    def begin(self) -> None:
        """Before a poll, by who may use the client: listen where there was nothing."""
        if self._wanted == self._at:
            return
        if self._at:
            self._client.pause([KafkaTopicPartition(*tp) for tp in self._at])
        self._at = dict(self._wanted)
        try:
            for tp, offset in self._at.items():
                self._client.seek(KafkaTopicPartition(*tp, offset))
            if self._at:
                self._client.resume([KafkaTopicPartition(*tp) for tp in self._at])
        except KafkaException:  # one is not ready to be fetched, or no longer ours
            self._at = {}
            self.stop()

    def hear(self, message: Message | None) -> KafkaError | None:
        """After it, what it gave: a record is news, an error is to be told."""
        error = None if message is None else message.error()
        if message is not None and error is None:
            self.stop()
            self.begin()
            self.has_news = True
        return error
