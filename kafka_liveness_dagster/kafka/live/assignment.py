"""Track the partitions that a member owns, through the callbacks of a rebalance.

A rebalance may wait for open batches, in the middle of that poll; past its time they are given up in good
order. Decides nothing: where a partition goes on is the consumer's to settle before it counts as owned.
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
        has_assignment: the coordinator has given this member its part, which may be no partition at all.
        pending: assigned but not settled, each with the number of its arrival: the consumer decides where
            each goes on.
        owned: settled.
    """

    def __init__(self) -> None:
        self.has_assignment = False
        self.pending: dict[TopicPartition, int] = {}
        self.owned: dict[TopicPartition, OwnedPartition] = {}
        self._next_assignment_id = itertools.count(1)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """They were assigned; what comes back after it went has another number."""
        self.has_assignment = True
        self.pending.update({tp: next(self._next_assignment_id) for tp in partitions})

    def still_pending(
        self, resumed: Mapping[TopicPartition, OwnedPartition]
    ) -> dict[TopicPartition, OwnedPartition]:
        """What of it is still to be settled: another member may have committed what went and came back."""
        return {tp: owned for tp, owned in resumed.items() if self.pending.get(tp) == owned.assignment_id}

    def activate(self, resumed: Mapping[TopicPartition, OwnedPartition]) -> None:
        """It is committed where these go on: they count as owned from now on."""
        self.owned.update(resumed)
        for tp in resumed:
            del self.pending[tp]

    def with_assignment(
        self, assignment_ids: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OwnedPartition]:
        """What of them is owned by the same ownership as then."""
        return {tp: one for tp, one in self.owned.items() if one.assignment_id == assignment_ids.get(tp)}

    def in_commit_order(
        self, done: Mapping[TopicPartition, Span], assignment_ids: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OwnedPartition]:
        """Those of them of which a span is done.

        Raises:
            CommitRefusedError: a span does not follow on what is committed.
        """
        found = {tp: one for tp, one in self.with_assignment(assignment_ids).items() if tp in done}
        for tp, one in found.items():
            if done[tp].start != one.committed:
                raise CommitRefusedError(
                    f"commit of {tp}:{done[tp]} is out of order: {one.committed} is committed, so the batch "
                    "before it is still open or this one was committed already. Commit batches in the "
                    "order poll() gave them"
                )
        return found

    def still_assigned(
        self, owned: Mapping[TopicPartition, OwnedPartition]
    ) -> dict[TopicPartition, OwnedPartition]:
        """What of them has not gone since."""
        return {tp: one for tp, one in owned.items() if self.owned.get(tp) is one}

    def rewind(self) -> None:
        """What is planned and not committed comes again."""
        for one in self.owned.values():
            one.position = one.committed

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """They went, in whichever way."""
        for tp in partitions:
            self.owned.pop(tp, None)
            self.pending.pop(tp, None)

    def remove_all(self) -> None:
        """All went."""
        self.owned.clear()
        self.pending.clear()


if TYPE_CHECKING:
    Finish = Callable[[Callable[[], None]], None]  # gets what it has to call while it waits

_JOIN_POLL_SECONDS = 0.01
_POLL_SECONDS = 0.1
_MAX_CLOSING_POLLS = 50  # and not seconds, in which a process may be frozen


class RebalanceCallbacks:
    """The callbacks of one member's client.

    Args:
        standing: the member's; ``ownership``: what it owns.
        handover_seconds: how long a rebalance may wait for open batches.
        incremental: whether partitions come and go one by one, as under KIP-848 and with a cooperative
            assignor.
        release: marks partitions as given up in good order.
        log: the run's.
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
        """The first message in time; ``before_revoke`` is called in it when partitions are about to go.

        It ends as soon as this member is given its part: the client would poll on.
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

        Affects: what has arrived; nothing is planned before it is adopted.
        """
        self._was_called_back = True
        (client.incremental_assign if self._incremental else client.assign)(partitions)
        if partitions:
            client.pause(partitions)
        self._state.apply(Event.PARTITIONS_ASSIGNED)
        if self._state.state is not State.LEFT:
            self._assigned.add(_topic_partitions(partitions))

    def on_revoke(self, client: Consumer, partitions: list[KafkaTopicPartition]) -> None:
        """Caller: client.poll or close, under the lock. Affects: what is owned, and the live commit log."""
        self._was_called_back = True
        try:
            self._state.apply(Event.REVOCATION_BEGAN)
            self._commit_in_flight()
            self._release(_topic_partitions(partitions))
        finally:
            self._remove(client, partitions)

    def on_lost(self, client: Consumer, partitions: list[KafkaTopicPartition]) -> None:
        """Caller: client.poll or close, under the lock.

        Affects: what is owned; nothing is marked: others have it.
        """
        self._log.warning("partitions lost: %s", ", ".join(f"{tp.topic}:{tp.partition}" for tp in partitions))
        self._state.fence(FenceReason.PARTITIONS_LOST)
        self._remove(client, partitions)

    def check_handover_deadline(self) -> None:
        """Whether the group grants more time to who is about to give partitions up.

        Raises:
            RebalanceTimeoutError: it may be about to throw this member out.
        """
        seconds = time.monotonic() - self._polled_at
        if seconds >= self._handover_seconds:
            raise RebalanceTimeoutError(
                f"a rebalance began up to {seconds:.1f} s ago and may wait {self._handover_seconds:.1f} s: "
                "what is not committed by now is processed again by the next owner"
            )

    def _commit_in_flight(self) -> None:
        if self._before_revoke is None:
            return
        try:
            self._before_revoke(self.check_handover_deadline)
        except RebalanceTimeoutError as due:
            self._log.warning("%s", due)

    def _after_poll(self) -> None:
        """No rebalance began before a poll that found nothing to call back.

        One that did may have left the next one.
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
    """Let a client call back all it has to, before it closes.

    librdkafka takes the first answer that comes while it closes for the last one, and ends its side of the
    group: who answers a second callback then may wait indefinitely, Python's lock in hand, and the whole
        process
    stands still. Two are pending when a process is told to leave, or ``max.poll.interval.ms`` passes, in the
    middle of a rebalance.

    A static member may not unsubscribe, which is to leave (KIP-345): it answers what is pending by now.
    """
    if not is_static:
        with suppress(KafkaException):  # closing does the rest
            client.unsubscribe()
    client.poll(0)
    for _ in range(0 if is_static else _MAX_CLOSING_POLLS):
        if not client.assignment():
            break
        client.poll(_POLL_SECONDS)


def _topic_partitions(partitions: list[KafkaTopicPartition]) -> list[TopicPartition]:
    return [TopicPartition(tp.topic, tp.partition) for tp in partitions]
