"""Track the partitions that a member owns, through the callbacks of a rebalance.

A rebalance may wait for open batches, during a poll. After its limit the partitions are released without the
batches. Never decides where a partition resumes: the consumer does, before the partition counts as owned.
"""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from kafka_liveness_dagster.core.fencing import FenceReason
from kafka_liveness_dagster.core.member_state import Event, State
from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.kafka.errors import CommitRefusedError, RebalanceTimeoutError

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from confluent_kafka import Consumer, Message
    from confluent_kafka import TopicPartition as KafkaTopicPartition

    from kafka_liveness_dagster.core.member_state import MemberState
    from kafka_liveness_dagster.core.offsets import Span
    from kafka_liveness_dagster.core.resume import OwnedPartition


class AssignedPartitions:
    """The partitions of one member.

    Attributes:
        has_assignment: whether the coordinator has sent this member its assignment, which may be empty.
        pending: assigned partitions for which the consumer has not decided yet where to resume, each with the
            number of its assignment.
        owned: partitions whose start position is committed.
    """

    def __init__(self) -> None:
        self.has_assignment = False
        self.pending: dict[TopicPartition, int] = {}
        self.owned: dict[TopicPartition, OwnedPartition] = {}
        self._next_assignment_id = itertools.count(1)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Add assigned partitions; a partition that comes back gets a new assignment number."""
        self.has_assignment = True
        self.pending.update({tp: next(self._next_assignment_id) for tp in partitions})

    def still_pending(
        self, resumed: Mapping[TopicPartition, OwnedPartition]
    ) -> dict[TopicPartition, OwnedPartition]:
        """Return those that still have the same assignment; after another one their commits may be stale."""
        return {tp: owned for tp, owned in resumed.items() if self.pending.get(tp) == owned.assignment_id}

    def activate(self, resumed: Mapping[TopicPartition, OwnedPartition]) -> None:
        """Own these partitions from now on: their start positions are committed."""
        self.owned.update(resumed)
        for tp in resumed:
            del self.pending[tp]

    def with_assignment(
        self, assignment_ids: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OwnedPartition]:
        """Return the partitions that are owned by the same assignment as then."""
        return {tp: one for tp, one in self.owned.items() if one.assignment_id == assignment_ids.get(tp)}

    def in_commit_order(
        self, done: Mapping[TopicPartition, Span], assignment_ids: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OwnedPartition]:
        """Return the owned partitions that have a done span.

        Raises:
            CommitRefusedError: a span does not begin at the committed offset.
        """
        found = {tp: one for tp, one in self.with_assignment(assignment_ids).items() if tp in done}
        for tp, one in found.items():
            if done[tp].start != one.committed:
                raise CommitRefusedError(
                    f"commit of {tp}:{done[tp]} is out of order: {one.committed} is committed. The "
                    "batch before it is still open, or this batch was committed already. Nothing was "
                    "committed. Fix: commit batches in the order in which poll() returned them"
                )
        return found

    def still_assigned(
        self, owned: Mapping[TopicPartition, OwnedPartition]
    ) -> dict[TopicPartition, OwnedPartition]:
        """Return the partitions that were not removed since."""
        return {tp: one for tp, one in owned.items() if self.owned.get(tp) is one}

    def rewind(self) -> None:
        """Set each position to the committed offset, so that uncommitted ranges are planned again."""
        for one in self.owned.values():
            one.position = one.committed

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions that were revoked or lost."""
        for tp in partitions:
            self.owned.pop(tp, None)
            self.pending.pop(tp, None)

    def remove_all(self) -> None:
        """Remove all partitions."""
        self.owned.clear()
        self.pending.clear()


if TYPE_CHECKING:
    Finish = Callable[[Callable[[], None]], None]  # its argument must be called while it waits

_JOIN_POLL_SECONDS = 0.01
_POLL_SECONDS = 0.1
_MAX_CLOSING_POLLS = 50  # a number, not seconds: the process may be frozen for that time


class RebalanceCallbacks:
    """The callbacks of one member's client.

    Args:
        standing: state of the member; ``ownership``: its partitions.
        handover_seconds: longest time that a rebalance may wait for open batches.
        incremental: whether partitions are assigned and revoked one by one, as under KIP-848 and with a
            cooperative assignor.
        release: marks partitions as released.
        log: log of the run.
    """

    def __init__(
        self,
        standing: MemberState,
        ownership: AssignedPartitions,
        *,
        handover_seconds: float,
        incremental: bool,
        release: Callable[[Sequence[TopicPartition]], None],
        log: logging.Logger,
    ) -> None:
        self._state = standing
        self._assigned = ownership
        self._release = release
        self._log = log
        self._handover_seconds = handover_seconds
        self._incremental = incremental
        self._before_revoke: Finish | None = None
        self._was_called_back = False
        self._polled_at = time.monotonic()

    def poll(self, client: Consumer, seconds: float, before_revoke: Finish | None) -> Message | None:
        """Return the first message in time; call ``before_revoke`` if partitions are about to be revoked.

        Ends as soon as this member has its assignment; the client itself would continue to poll.
        """
        self._before_revoke = before_revoke
        give_up_at = time.monotonic() + seconds
        try:
            while True:
                left = max(0.0, give_up_at - time.monotonic())
                message = client.poll(
                    left if self._assigned.has_assignment else min(left, _JOIN_POLL_SECONDS)
                )
                if message is not None or self._assigned.has_assignment or time.monotonic() >= give_up_at:
                    return message
        finally:
            self._before_revoke = None
            self._after_poll()

    def on_assign(self, client: Consumer, partitions: list[KafkaTopicPartition]) -> None:
        """Caller: client.poll, under the lock.

        Affects: the pending partitions; no batch is planned before they are owned.
        """
        self._was_called_back = True
        (client.incremental_assign if self._incremental else client.assign)(partitions)
        if partitions:
            client.pause(partitions)
        self._state.apply(Event.PARTITIONS_ASSIGNED)
        if self._state.state is not State.LEFT:
            self._assigned.add(_topic_partitions(partitions))

    def on_revoke(self, client: Consumer, partitions: list[KafkaTopicPartition]) -> None:
        """Caller: client.poll or close, under the lock.

        Affects: the owned partitions, and the live commit log.
        """
        self._was_called_back = True
        try:
            self._state.apply(Event.REVOCATION_BEGAN)
            self._commit_in_flight()
            self._release(_topic_partitions(partitions))
        finally:
            self._remove(client, partitions)

    def on_lost(self, client: Consumer, partitions: list[KafkaTopicPartition]) -> None:
        """Caller: client.poll or close, under the lock.

        Affects: the owned partitions. Commits nothing, because other members have them.
        """
        self._log.warning("Lost partitions: %s", ", ".join(f"{tp.topic}:{tp.partition}" for tp in partitions))
        self._state.fence(FenceReason.PARTITIONS_LOST)
        self._remove(client, partitions)

    def check_handover_deadline(self) -> None:
        """Check that the rebalance may still wait for open batches.

        Raises:
            RebalanceTimeoutError: the group may be about to remove this member.
        """
        seconds = time.monotonic() - self._polled_at
        if seconds >= self._handover_seconds:
            raise RebalanceTimeoutError(
                f"a rebalance began up to {seconds:.1f} s ago and may wait {self._handover_seconds:.1f} "
                "s. The next owner processes the uncommitted batches again"
            )

    def _commit_in_flight(self) -> None:
        if self._before_revoke is None:
            return
        try:
            self._before_revoke(self.check_handover_deadline)
        except RebalanceTimeoutError as due:
            self._log.warning("%s", due)

    def _after_poll(self) -> None:
        """Record the time of a poll without callbacks: a later rebalance began after it.

        A poll with callbacks is not recorded, because the next rebalance may have begun during it.
        """
        if not self._was_called_back:
            self._polled_at = time.monotonic()
        self._was_called_back = False

    def _remove(self, client: Consumer, partitions: list[KafkaTopicPartition]) -> None:
        self._assigned.remove(_topic_partitions(partitions))
        if self._incremental:
            client.incremental_unassign(partitions)
        else:
            client.unassign()


def drain_callbacks(client: Consumer, *, is_static: bool) -> None:
    """Serve all pending callbacks of a client before it closes.

    While librdkafka closes, it takes the first answered callback for the last one, and ends its side of the
    group. Answering a second callback then may wait indefinitely with Python's lock held, which blocks the
    whole process. Two are pending if a process is asked to leave, or ``max.poll.interval.ms`` passes, during
    a rebalance.

    A static member may not unsubscribe, because that leaves the group (KIP-345). It only answers the
    callbacks that are pending now.
    """
    if not is_static:
        with suppress(KafkaException):  # closing the client does the rest
            client.unsubscribe()
    client.poll(0)
    for _ in range(0 if is_static else _MAX_CLOSING_POLLS):
        if not client.assignment():
            break
        client.poll(_POLL_SECONDS)


def _topic_partitions(partitions: list[KafkaTopicPartition]) -> list[TopicPartition]:
    return [TopicPartition(tp.topic, tp.partition) for tp in partitions]
