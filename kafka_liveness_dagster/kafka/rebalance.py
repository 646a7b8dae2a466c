"""What does a rebalance change? What a member owns; told by librdkafka's callbacks, in the middle of a poll.

A rebalance may wait for open batches, in the middle of that poll; past its time they are given up in good order.
Decides nothing: where a partition goes on is the consumer's to settle before it counts as owned.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.heartbeat import FenceReason
from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.kafka.errors import HandoverDueError

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence

    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as KafkaTopicPartition

    from kafka_liveness_dagster.core.resume import Owned
    from kafka_liveness_dagster.core.timeouts import Timeouts

    Finish = Callable[[Callable[[], None]], None]  # gets what it has to call while it waits


class Rebalanced:
    """What a member owns.

    Attributes:
        arrived: partitions assigned but not settled, each with the number of its arrival: the consumer decides where
            each goes on, then ``adopt``s it.
        owned: settled partitions.
        joined: the coordinator has given this member its part, which may be no partition at all.
        ended: why the group goes on without this member, None while it is one of it as far as it knows.
    """

    def __init__(self, timeouts: Timeouts, *, incremental: bool, log: logging.Logger) -> None:
        self.arrived: dict[TopicPartition, int] = {}
        self.owned: dict[TopicPartition, Owned] = {}
        self.joined = False
        self.ended: FenceReason | None = None
        self._arrivals = itertools.count(1)
        self._incremental, self._log = incremental, log
        self._before_revoke: Finish | None = None
        self._handover_seconds, self._served_at = timeouts.handover_ms / 1000, time.monotonic()
        self._revoking = self._called_back = False

    def _release(self, partitions: Sequence[TopicPartition]) -> None:
        raise NotImplementedError

    def _on_assign(self, client: Consumer, partitions: list[KafkaTopicPartition]) -> None:
        """Caller: client.poll, under the lock. Affects: ``arrived``; nothing is planned before ``adopt``."""
        self._called_back = True
        (client.incremental_assign if self._incremental else client.assign)(partitions)
        if partitions:
            client.pause(partitions)
        self.joined = True
        self.arrived.update({TopicPartition(tp.topic, tp.partition): next(self._arrivals) for tp in partitions})

    def _on_revoke(self, client: Consumer, partitions: list[KafkaTopicPartition]) -> None:
        """Caller: client.poll or close, under the lock. Affects: ``owned``, and marks the first log."""
        self._called_back = True
        gone = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
        try:
            self._finish_what_can()
            self._release(gone)
        finally:
            self._forget(client, partitions)

    def _finish_what_can(self) -> None:
        if self._before_revoke is None:
            return
        self._revoking = True
        try:
            self._before_revoke(self.may_wait)
        except HandoverDueError as due:
            self._log.warning("%s", due)
        finally:
            self._revoking = False

    def _end_of_poll(self) -> None:
        """No rebalance began before a poll that found nothing to call back; one that did may have left the next one."""
        if not self._called_back:
            self._served_at = time.monotonic()
        self._called_back = False

    def may_wait(self) -> None:
        """Whether the group grants more time to who is about to give partitions up.

        Raises:
            HandoverDueError: it may be about to throw this member out.
        """
        seconds = time.monotonic() - self._served_at
        if seconds >= self._handover_seconds:
            raise HandoverDueError(
                f"a rebalance began up to {seconds:.1f} s ago and may wait {self._handover_seconds:.1f} s: what is not "
                "committed by now is processed again by the next owner"
            )

    def _on_lost(self, client: Consumer, partitions: list[KafkaTopicPartition]) -> None:
        """Caller: client.poll, under the lock. Affects: ``owned``; lost is not revoked, nothing may be committed."""
        self._log.warning("partitions lost: %s", ", ".join(f"{tp.topic}:{tp.partition}" for tp in partitions))
        self.ended = FenceReason.PARTITIONS_LOST
        self._forget(client, partitions)

    def _forget(self, client: Consumer, partitions: list[KafkaTopicPartition]) -> None:
        for tp in partitions:
            self.owned.pop(TopicPartition(tp.topic, tp.partition), None)
            self.arrived.pop(TopicPartition(tp.topic, tp.partition), None)
        if self._incremental:
            client.incremental_unassign(partitions)
        else:
            client.unassign()
