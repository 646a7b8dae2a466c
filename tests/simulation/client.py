"""Simulate a confluent_kafka ``Consumer`` that is a member of a group, as librdkafka was measured to behave.

Rebalances come as callbacks, inside of ``poll`` and ``close`` only. To close it inside of a callback hangs
it, or raises SystemError; so does a commit beside a poll: nobody gets away with either here.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition
from greenlet import getcurrent

from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.kafka.errors import is_rebalance_in_progress
from tests.simulation.scheduler import clock
from tests.simulation.threads import clock_stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tests.simulation.group import Group

_LOST_THE_FLAG = 0.1  # librdkafka#5604


class SimulatedHangError(Exception):
    """The client library never returns from this call."""


class Message:
    """What ``poll`` gives: an error, or a record of a partition that is not paused."""

    def __init__(self, error: KafkaError | None = None) -> None:
        self._error = error

    def error(self) -> KafkaError | None:
        """What the client has to tell."""
        return self._error


def refused(code: int) -> KafkaException:
    """The exception for a code of Kafka's."""
    return KafkaException(KafkaError(code))


class MemberClient:
    """One client, and the thread of librdkafka behind it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        me: Any = getcurrent()
        self.process = me.process
        self.world = self.process.world
        self.broker = self.world.broker
        self.group: Group = self.broker.group
        self.client_id = config["client.id"]
        self.name = self.world.name("member")
        scenario = self.world.scenario
        self.session = scenario.session_ms / 1000
        self.heartbeat = scenario.heartbeat_ms / 1000
        self.rebalance_timeout = config["max.poll.interval.ms"] / 1000
        self.is_classic = config.get("group.protocol") != "consumer"
        self.is_eager = self.is_classic and not self.broker.cooperative
        self.assigned: set[TopicPartition] = set()
        self.fetched: dict[TopicPartition, int] = {}
        self.positions: dict[TopicPartition, int] = {}
        self.events: deque[tuple[str, Any]] = deque()
        self.unheard: list[Callable[[], None]] = []
        self.is_member = self.joining = self.in_callback = self.is_mute = self.leaving = False
        self.was_told = self.is_held_up = self._rejoins = False
        self.generation, self.silences = -1, 0
        self._polling: Any = None
        self._waiting: Any = None
        self._polled_at = self.assigned_at = clock.now
        self.process.clients.append(self)

    def subscribe(self, _topics: list[str], on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        """Join, without being polled."""
        self._callbacks = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        clock.call(clock.latency(), self._join)
        self._look_at_polls()

    def poll(self, seconds: float) -> Message | None:
        """Serve what is pending up to the first message, or wait for something."""
        clock.point(0.1)
        if self._polling is not None:
            raise clock_stop(SimulatedHangError("two threads poll one client"))
        me = self._polling = getcurrent()
        until = clock.now + seconds
        try:
            while not self.events:
                if self._has_fetched():
                    return Message()
                if clock.now >= until:
                    return None
                self._waiting = me
                clock.block(until - clock.now)
                self._waiting = None
            message = None
            while self.events and message is None:
                message = self._serve(*self.events.popleft())
            return message
        finally:
            self._polling = self._waiting = None
            self._polled_at = clock.now

    def commit(self, offsets: list[KafkaTopicPartition], asynchronous: bool) -> list[KafkaTopicPartition]:  # noqa: FBT001
        """One OffsetCommit: all of it or nothing."""
        if self._polling is not None and self._polling is not getcurrent():
            raise clock_stop(SimulatedHangError("a synchronous commit beside a poll"))
        clock.point(0.4)
        code = self.broker.commit_first(self, offsets)
        self.is_held_up = code is not None and is_rebalance_in_progress(KafkaError(code))
        clock.point(0.2)
        if code is not None:
            self.world.note(f"commit refused: {KafkaError(code).name()}", self.process.name)
            raise refused(code)
        self.broker.acknowledge(self, offsets)
        return offsets

    def unsubscribe(self) -> None:
        """What is pending is called back, and then all that is assigned is revoked."""
        self.leaving, self._rejoins = True, False
        self._happens("revoke" if self.is_member else "lost", None)

    def assignment(self) -> list[KafkaTopicPartition]:
        """What is assigned, as the client has it."""
        return [KafkaTopicPartition(*tp) for tp in sorted(self.assigned)]

    def close(self) -> None:
        """LeaveGroup; what is assigned is revoked before."""
        if self.in_callback or self._polling is not None:
            raise clock_stop(SimulatedHangError("closed inside of its own callback"))
        if sum(what == "assign" or bool(what != "error" and self.assigned) for what, _ in self.events) > 1:
            raise clock_stop(SimulatedHangError("a second callback while it closes"))
        clock.point(0.2)
        self.events.clear()
        self._rejoins = False
        if self.assigned:
            self._call_back("revoke" if self.is_member else "lost", sorted(self.assigned))
        self.leaving = True
        self.is_member = False
        self.world.note("left the group", self.process.name, self.name)
        self.group.leave(self)
        clock.point(0.2)

    def assign(self, partitions: Iterable[KafkaTopicPartition]) -> None:
        """All of it anew."""
        self.assigned = _ours(partitions)

    def incremental_assign(self, partitions: Iterable[KafkaTopicPartition]) -> None:
        """More."""
        self.assigned |= _ours(partitions)

    def unassign(self) -> None:
        """Nothing any more."""
        self.assigned = set()

    def incremental_unassign(self, partitions: Iterable[KafkaTopicPartition]) -> None:
        """Less."""
        self.assigned -= _ours(partitions)

    def pause(self, partitions: Iterable[KafkaTopicPartition]) -> None:
        """These are not fetched."""
        for tp in _ours(partitions):
            self.fetched.pop(tp, None)

    def seek(self, at: KafkaTopicPartition) -> None:
        """Where it is fetched from."""
        self.positions[TopicPartition(at.topic, at.partition)] = at.offset

    def resume(self, partitions: Iterable[KafkaTopicPartition]) -> None:
        """These are fetched."""
        self.fetched.update({tp: self.positions[tp] for tp in _ours(partitions)})

    def receive_assignment(self, new: list[TopicPartition], gone: list[TopicPartition]) -> None:
        """By the coordinator: what to take, and what to give up."""
        if self.leaving:
            return
        self.was_told = True
        if gone:
            self._happens("revoke", gone)
        if new or not gone:
            self._happens("assign", new)

    def rejoin(self) -> None:
        """The coordinator wants all to join anew: an eager member gives up everything first."""
        if self.leaving:
            return
        if not self.is_eager:
            if self.events or self.in_callback:
                self._rejoins = True
            else:
                self.group.join(self)
        elif self.assigned or self.events or self.in_callback:
            if ("revoke", None) not in self.events:
                self._happens("revoke", None)
        else:
            self.group.join(self)

    def hear_of_loss(self) -> None:
        """UNKNOWN_MEMBER_ID: all is lost, and a new member joins."""
        if self.leaving or self in self.group.members:
            return
        self.is_member = self.joining = self._rejoins = False
        self.events.clear()
        if self.in_callback:
            return
        if self.assigned:
            self._happens("revoke" if self.world.chance(_LOST_THE_FLAG) else "lost", None)
        else:
            self._join()

    def hear_of_epoch(self, epoch: int) -> None:
        """KIP-848: the answer to a heartbeat has come."""
        self.generation = max(self.generation, epoch)

    def _has_fetched(self) -> bool:
        """The next record of any of them; it comes with the poll, and wakes nobody."""
        for tp in sorted(self.assigned & set(self.fetched)):
            if self.fetched[tp] < self.broker.partitions[tp].log_end:
                self.fetched[tp] += 1
                return True
        return False

    def _join(self) -> None:
        if not self.leaving and not self.process.dead:
            self.group.join(self)

    def _happens(self, what: str, details: Any) -> None:
        self.events.append((what, details))
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            clock.wake(waiting)

    def _serve(self, what: str, details: Any) -> Message | None:
        if what == "error":
            return Message(KafkaError(details))
        partitions = sorted(self.assigned) if details is None else details
        try:
            if what == "assign" or partitions:
                self._call_back(what, partitions)
        finally:
            if not self.process.dead:
                self._served(what, partitions)
        return None

    def _served(self, what: str, partitions: list[TopicPartition]) -> None:
        if not self.is_member and self.assigned:
            self._happens("revoke" if self.world.chance(_LOST_THE_FLAG) else "lost", None)
        elif not self.is_member:
            self._join()
        elif what == "revoke":
            self._rejoins = False
            self.group.revoked(self, partitions)
        elif self._rejoins and not self.events:
            self._rejoins = False
            self.group.join(self)

    def _call_back(self, what: str, partitions: list[TopicPartition]) -> None:
        self.in_callback = True
        self.assigned_at = clock.now if what == "assign" else self.assigned_at
        try:
            self._callbacks[what](self, [KafkaTopicPartition(*tp) for tp in partitions])
        finally:
            self.in_callback = False

    def _look_at_polls(self) -> None:
        """``max.poll.interval.ms``: the classic protocol leaves.

        Under KIP-848 the client only falls silent.
        """
        if self.leaving or self.process.dead:
            return
        late = clock.now - self._polled_at
        if self.process.stopped or self._polling is not None or late < self.rebalance_timeout:
            clock.call(max(self.rebalance_timeout - late, 0.5), self._look_at_polls)
            return
        self.world.note("max.poll.interval exceeded", self.process.name, self.name)
        self.events.clear()
        self._happens("error", KafkaError._MAX_POLL_EXCEEDED)
        if not self.is_classic:
            self.is_mute = True
            self.group.silent(self)
            return
        self.group.leave(self)
        self.is_member = self.joining = False
        self._happens("lost", None)


def _ours(partitions: Iterable[KafkaTopicPartition]) -> set[TopicPartition]:
    return {TopicPartition(tp.topic, tp.partition) for tp in partitions}
