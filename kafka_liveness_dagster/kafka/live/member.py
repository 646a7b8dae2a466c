"""One membership of a group: its client under one lock, and the first commit log (KIP-333).

Only members write the first commit log, and only for partitions they own: the broker fences members, not partitions.

Lives from its join to its leave; who comes back after a fence is a new member. It fetches nothing that is read: its
partitions are paused, but while there is nothing to read. Every call of the client is made under one lock, since a
synchronous commit beside a blocking poll deadlocks in librdkafka's Python client. What each call does, and when, is in
the tables of ``core.member_state``.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError

from kafka_liveness_dagster.core.commit_metadata import LiveMark, Mark
from kafka_liveness_dagster.core.fencing import FenceReason
from kafka_liveness_dagster.core.member_state import Commit, Event, Leave, Serve, Standing, State
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.kafka.clients import made
from kafka_liveness_dagster.kafka.committer import Committing
from kafka_liveness_dagster.kafka.errors import (
    BrokerUnreachableError,
    is_held_up,
    is_no_longer_a_member,
    is_passing,
    named,
    put_out_by,
)
from kafka_liveness_dagster.kafka.live.assignment import Ownership, Rebalance, answer_what_is_pending
from kafka_liveness_dagster.kafka.live.data_listener import Listening

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from confluent_kafka import ThrottleEvent

    from kafka_liveness_dagster.core.errors import KafkaLivenessError
    from kafka_liveness_dagster.core.resume import Owned
    from kafka_liveness_dagster.core.timeouts import Timeouts
    from kafka_liveness_dagster.kafka.live.assignment import Finish
    from kafka_liveness_dagster.kafka.run_context import RunLink
    from kafka_liveness_dagster.kafka.settings import KafkaSettings, LiveSettings


_RELEASE_SECONDS = 2.0
AGAIN_SECONDS = 0.05


class FirstLog:
    """The first commit log, as one member writes it.

    Args:
        committing: of the member's client, to its group.
        standing: the member's; ``ownership``: what it owns.
        run: 8 hex digits that name its run.
        log: the run's.
    """

    def __init__(
        self, committing: Committing, standing: Standing, ownership: Ownership, run: str, log: logging.Logger
    ) -> None:
        self._committing, self._standing, self._ownership = committing, standing, ownership
        self._run, self._log = run, log

    def commit(
        self, positions: Mapping[TopicPartition, tuple[int, Owned]], until: float = math.inf, mark: Mark = Mark.RUNNING
    ) -> KafkaError | None:
        """Commit positions with what their partitions owe, once; returns the first refusal.

        Raises:
            BrokerUnreachableError: nothing came back. The membership is over: its client is left behind.
        """
        texts = {tp: (offset, self._mark(owned, mark).encode()) for tp, (offset, owned) in positions.items()}
        in_callback = self._standing.calls.commit is Commit.IN_THE_CALLBACK
        try:
            return self._committing.commit(texts, until=until, in_callback=in_callback)
        except BrokerUnreachableError:
            self._standing.happened(Event.FELL_SILENT)
            self._ownership.clear()
            raise

    def release(self, partitions: Sequence[TopicPartition]) -> None:
        """Mark partitions as given up at their last committed position; failing to costs a replay, no data."""
        owned = self._ownership.owned
        ours = {tp: (owned[tp].committed, owned[tp]) for tp in partitions if tp in owned}
        give_up_at = time.monotonic() + _RELEASE_SECONDS
        try:
            while ours and (error := self.commit(ours, mark=Mark.RELEASED)) is not None:
                if not is_held_up(error) or time.monotonic() >= give_up_at:
                    level = logging.INFO if is_no_longer_a_member(error) else logging.WARNING
                    self._log.log(level, "could not mark %d partitions as released: %s", len(ours), error.str())
                    return
                time.sleep(AGAIN_SECONDS)  # until the other members have synchronised
        except BrokerUnreachableError as silence:
            self._log.warning("could not mark %d partitions as released: %s", len(ours), silence)

    def _mark(self, owned: Owned, mark: Mark) -> LiveMark:
        return LiveMark(Mark.PAUSED if owned.paused else mark, self._run, owned.owed, owned.again, owned.origin)


SERVE_SECONDS = 0.1
_THROTTLED_LOG_SECONDS = 60.0


class Member:
    """One membership in one group.

    Attributes:
        sure_seconds: whoever was a member so long ago still is one: the session timeout has not passed. 0 for one with
            a ``group.instance.id``: another one of that name takes its place at any moment.
        listening: whether there is something new, while there is nothing to do.
    """

    def __init__(self, settings: KafkaSettings, live: LiveSettings, timeouts: Timeouts, link: RunLink) -> None:
        self.sure_seconds = timeouts.session_ms / 2000 if (live.group_instance_id or live.place) is None else 0.0
        self._patience_seconds = timeouts.process_ms / 1000  # the others' is not known, and rarely another
        self._group_id, self._servers = live.group_id, settings.bootstrap_servers
        self._is_static = live.group_instance_id is not None
        replaced = FenceReason.REPLACED if self._is_static else FenceReason.PARTITIONS_LOST
        self._replaced = replaced if self._is_static or live.place else None
        self._recent_seconds, self._unanswered_at = 2 * timeouts.session_ms / 1000, -math.inf
        self._log, self._throttled_at = link.log, -math.inf
        heard = {"error_cb": self._hear, "throttle_cb": self._throttled}
        config = {**settings.member(live, link.client_id, timeouts), **heard}
        self._client = made(Consumer, config)
        self._lock = threading.RLock()
        self._releases_later = False  # when a leave was put off to the end of the poll
        self._standing, self._ownership = Standing(), Ownership()
        self.listening = Listening(self._client)
        self._committing = Committing(self._client, self._group_id, self._servers, self._patience_seconds)
        self._first_log = FirstLog(self._committing, self._standing, self._ownership, link.mark, link.log)
        strategy = config.get("partition.assignment.strategy", "cooperative, as every assignment of KIP-848")
        self._rebalance = Rebalance(
            self._standing,
            self._ownership,
            handover_seconds=timeouts.handover_ms / 1000,
            incremental="cooperative" in str(strategy),
            release=self._first_log.release,
            log=link.log,
        )
        self._client.subscribe(
            list(live.topics),
            on_assign=self._rebalance.on_assign,
            on_revoke=self._rebalance.on_revoke,
            on_lost=self._rebalance.on_lost,
        )

    @property
    def arrived(self) -> dict[TopicPartition, int]:
        """Partitions assigned but not settled, each with the number of its arrival."""
        return self._ownership.arrived

    @property
    def owned(self) -> dict[TopicPartition, Owned]:
        """Settled partitions."""
        return self._ownership.owned

    @property
    def joined(self) -> bool:
        """Whether the coordinator has given this member its part, perhaps no partition; not once it has left."""
        return self._ownership.is_given and self._standing.state is not State.LEFT

    @property
    def ended(self) -> FenceReason | None:
        """Why the group goes on without this member, None while it is one of it as far as it knows.

        The client reports an outage of its brokers in a poll, or while it leaves: until then the reason is general.
        """
        ended = self._standing.ended
        if ended is FenceReason.PARTITIONS_LOST and time.monotonic() - self._unanswered_at < self._recent_seconds:
            return FenceReason.BROKERS_UNAVAILABLE
        return ended

    def serve(self, seconds: float = SERVE_SECONDS, before_revoke: Finish | None = None) -> None:
        """Poll the client once: rebalances happen in here.

        Args:
            seconds: how long to wait for news.
            before_revoke: called with ``may_wait`` when partitions are about to go: the last chance to commit them.

        Raises:
            KafkaRefusedError: the group or a topic may not be used any more.
        """
        with self._lock:
            does = self._standing.calls.serve
            if does is Serve.POLL:
                self._poll(seconds, before_revoke)
            elif does is Serve.WAIT:
                self._rebalance.may_wait()
                time.sleep(AGAIN_SECONDS)

    def serve_if_idle(self) -> None:
        """The same without waiting, neither for news nor for the thread that uses the client now."""
        if self._lock.acquire(blocking=False):
            try:
                self.serve(0.0)
            finally:
                self._lock.release()

    def adopt(self, settled: Mapping[TopicPartition, Owned]) -> None:
        """Commit where arrived partitions go on and what they owe, then own them: one OffsetCommit.

        Does nothing while a rebalance is under way: serve it, look again, settle that. What went and came back since it
        was looked at is left out: another member may have committed it meanwhile.

        Raises:
            CommitRefusedError: nothing is owned that was not owned before.
        """
        with self._lock:
            mine = self._ownership.as_looked_at(settled)
            if not mine or self._standing.calls.commit is Commit.NOTHING:
                return
            error = self._first_log.commit({tp: (owned.committed, owned) for tp, owned in mine.items()})
            if error is None:
                self._ownership.settle(mine)
                self.listening.stop()
            elif not is_held_up(error):
                raise self._refused(error)

    def commit(
        self,
        done: Mapping[TopicPartition, Span],
        arrivals: Mapping[TopicPartition, int],
        waiting: Callable[[], None] = lambda: None,
        left_out: Callable[[TopicPartition], tuple[Span, ...]] = lambda _: (),
    ) -> tuple[TopicPartition, ...]:
        """Commit done spans of owned partitions; returns those that were not ours any more.

        While a rebalance is under way it is served and the commit repeated with what is still owned: the
        broker would accept the rest and overwrite its new owner.

        Args:
            done: what to commit of each partition.
            arrivals: by which ownership each of them was planned.
            waiting: called before each repetition; may raise.
            left_out: what of a partition is owed from this commit on.

        Raises:
            CommitRefusedError: out of order, or the broker refused.
            HandoverDueError: a rebalance that waits for it can wait no longer.
        """
        with self._lock:
            was_owned = self._ownership.in_order(done, arrivals)
            give_up_at = time.monotonic() + self._patience_seconds
            while mine := self._ownership.still(was_owned):
                owing = {tp: owned.owing(left_out(tp)) for tp, owned in mine.items()}
                error = self._first_log.commit({tp: (done[tp].end, one) for tp, one in owing.items()}, give_up_at)
                if error is None:
                    break
                if not is_held_up(error) or time.monotonic() > give_up_at:
                    self._ownership.plan_again()  # this batch, and all that was planned after it, comes again
                    raise self._refused(error)
                waiting()
                self.serve()
            for tp, owned in mine.items():
                owned.committed, owned.owed = done[tp].end, owing[tp].owed
            return tuple(tp for tp in done if tp not in mine)

    def still_owns(self, arrivals: Mapping[TopicPartition, int]) -> bool:
        """Whether each partition is ours by the same ownership as then, as far as this member knows."""
        with self._lock:
            return len(self._ownership.since(arrivals)) == len(arrivals)

    def confirm(
        self, arrivals: Mapping[TopicPartition, int], waiting: Callable[[], None]
    ) -> tuple[TopicPartition, ...]:
        """Ask the broker by a commit of what is committed; returns those of them that are not ours any more."""
        with self._lock:
            at = {tp: self.owned[tp].committed if tp in self.owned else 0 for tp in arrivals}
            return self.commit({tp: Span(offset, offset) for tp, offset in at.items()}, arrivals, waiting)

    def leave(self, *, release: bool) -> None:
        """LeaveGroup, from whichever thread. ``release`` marks the partitions as given up in good order.

        Inside of a callback it waits for the poll's end: there ``close()`` never returns, or raises SystemError.
        """
        with self._committing.hurried(self._lock):
            does = self._standing.calls.leave
            if does is Leave.AT_THE_END_OF_THE_POLL:
                self._standing.happened(Event.LEAVE_DEFERRED)
                self._releases_later = release
            elif does is Leave.AT_ONCE:
                self._leave(release=release)

    def _hear(self, error: KafkaError) -> None:
        """Caller: the client's ``poll`` or ``close``. Affects: the reason for which this member is out of its group.

        librdkafka gives a membership up by itself when no broker has answered for a session; the coordinator may still
        list the member. A process that was paused gets no such error: its connections are there.
        """
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - librdkafka's own codes begin with _
            self._unanswered_at = time.monotonic()

    def _throttled(self, event: ThrottleEvent) -> None:
        """Caller: the client's ``poll``, for each response that a quota delayed. Affects: a line of the run's log."""
        now = time.monotonic()
        if now - self._throttled_at >= _THROTTLED_LOG_SECONDS:
            self._throttled_at = now
            self._log.warning(
                "The broker throttles this login: a quota delays a response to this member by %.1f s. Fix: raise the "
                "quota (consumer_byte_rate or request_percentage)",
                event.throttle_time,
            )

    def _leave(self, *, release: bool) -> None:
        if release:
            self._first_log.release(list(self.owned))
        if self._standing.state is not State.LEFT:  # which it is when its broker has fallen silent
            self._standing.happened(Event.GROUP_LEFT)
            self._ownership.clear()
            answer_what_is_pending(self._client, is_static=self._is_static)
            self._client.close()

    def _poll(self, seconds: float, before_revoke: Finish | None) -> None:
        self.listening.begin()
        try:
            message = self._rebalance.poll(self._client, seconds, before_revoke)
        finally:
            told_to_leave = self._standing.state is State.LEAVING
            self._standing.happened(Event.POLL_ENDED)
            if told_to_leave:
                self._leave(release=self._releases_later)
        error = self.listening.hear(message)
        if error is not None and not self._has_ended(error) and not is_passing(error):
            raise named(error, f"consuming as a member of {self._group_id}", self._servers)

    def _refused(self, error: KafkaError) -> KafkaLivenessError:
        self._has_ended(error)
        return named(error, f"committing to group {self._group_id}", self._servers)

    def _has_ended(self, error: KafkaError) -> bool:
        """Whether the group goes on without this member from now on."""
        reason = put_out_by(error, self._replaced)
        if reason is not None:
            self._standing.put_out(reason)
        return self.ended is not None
