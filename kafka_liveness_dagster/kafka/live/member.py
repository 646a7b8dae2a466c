"""One membership of a group: its client under one lock, and the live commit log (KIP-333).

Only members write the live commit log, and only for partitions they own: the broker fences members, not
partitions.

Lives from its join to its leave; who comes back after a fence is a new member. It fetches nothing that is
read: its partitions are paused, but while there is nothing to read. Every call of the client is made under
one lock, since a synchronous commit beside a blocking poll deadlocks in librdkafka's Python client. What each
call does, and when, is in the tables of ``core.member_state``.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError

from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.fencing import FenceReason
from kafka_liveness_dagster.core.member_state import (
    CommitAction,
    Event,
    LeaveAction,
    MemberState,
    PollAction,
    State,
)
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.kafka.clients import create_client
from kafka_liveness_dagster.kafka.committer import Committer
from kafka_liveness_dagster.kafka.errors import (
    BrokerUnreachableError,
    fence_reason_of,
    is_no_longer_a_member,
    is_rebalance_in_progress,
    is_transient,
    to_package_error,
)
from kafka_liveness_dagster.kafka.live.assignment import (
    AssignedPartitions,
    RebalanceCallbacks,
    drain_callbacks,
)
from kafka_liveness_dagster.kafka.live.data_listener import DataListener

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from confluent_kafka import ThrottleEvent

    from kafka_liveness_dagster.core.errors import KafkaLivenessError
    from kafka_liveness_dagster.core.resume import OwnedPartition
    from kafka_liveness_dagster.core.timeouts import Timeouts
    from kafka_liveness_dagster.kafka.live.assignment import Finish
    from kafka_liveness_dagster.kafka.run_context import RunContext
    from kafka_liveness_dagster.kafka.settings import KafkaSettings, LiveSettings


_RELEASE_SECONDS = 2.0
COMMIT_RETRY_SECONDS = 0.05


class LiveCommitLog:
    """The live commit log, as one member writes it.

    Args:
        committing: of the member's client, to its group.
        standing: the member's; ``ownership``: what it owns.
        run: 8 hex digits that name its run.
        log: the run's.
    """

    def __init__(
        self,
        committing: Committer,
        standing: MemberState,
        ownership: AssignedPartitions,
        run: str,
        log: logging.Logger,
    ) -> None:
        self._committer = committing
        self._state = standing
        self._assigned = ownership
        self._run = run
        self._log = log

    def commit(
        self,
        positions: Mapping[TopicPartition, tuple[int, OwnedPartition]],
        deadline: float = math.inf,
        owner_state: OwnerState = OwnerState.RUNNING,
    ) -> KafkaError | None:
        """Commit positions with what their partitions owe, once; returns the first refusal.

        Raises:
            BrokerUnreachableError: nothing came back. The membership is over: its client is left behind.
        """
        texts = {
            tp: (offset, self._encode_metadata(owned, owner_state).encode())
            for tp, (offset, owned) in positions.items()
        }
        in_callback = self._state.allowed.commit is CommitAction.IN_CALLBACK
        try:
            return self._committer.commit(texts, until=deadline, in_callback=in_callback)
        except BrokerUnreachableError:
            self._state.apply(Event.COMMIT_TIMED_OUT)
            self._assigned.remove_all()
            raise

    def mark_released(self, partitions: Sequence[TopicPartition]) -> None:
        """Mark partitions as given up at their last committed position.

        Failing to costs a replay, no data.
        """
        owned = self._assigned.owned
        ours = {tp: (owned[tp].committed, owned[tp]) for tp in partitions if tp in owned}
        give_up_at = time.monotonic() + _RELEASE_SECONDS
        try:
            while ours and (error := self.commit(ours, owner_state=OwnerState.RELEASED)) is not None:
                if not is_rebalance_in_progress(error) or time.monotonic() >= give_up_at:
                    level = logging.INFO if is_no_longer_a_member(error) else logging.WARNING
                    self._log.log(
                        level, "could not mark %d partitions as released: %s", len(ours), error.str()
                    )
                    return
                time.sleep(COMMIT_RETRY_SECONDS)  # until the other members have synchronised
        except BrokerUnreachableError as silence:
            self._log.warning("could not mark %d partitions as released: %s", len(ours), silence)

    def _encode_metadata(self, owned: OwnedPartition, owner_state: OwnerState) -> LiveCommitMetadata:
        return LiveCommitMetadata(
            OwnerState.PAUSED if owned.is_paused else owner_state,
            self._run,
            owned.pending,
            reprocess=owned.reprocess,
            origin=owned.origin,
        )


POLL_SECONDS = 0.1
_THROTTLED_LOG_SECONDS = 60.0


class Member:
    """One membership in one group.

    Attributes:
        membership_certain_seconds: whoever was a member so long ago still is one: the session timeout has not
            passed. 0 for one with a ``group.instance.id``: another one of that name takes its place at any
            moment.
        data_listener: whether there is something new, while there is nothing to do.
    """

    def __init__(
        self, settings: KafkaSettings, live: LiveSettings, timeouts: Timeouts, run_context: RunContext
    ) -> None:
        self.membership_certain_seconds = (
            timeouts.session_timeout_ms / 2000
            if (live.group_instance_id or live.claimed_instance_id) is None
            else 0.0
        )
        # The process timeout of the others is not known, and rarely another
        self._rebalance_wait_seconds = timeouts.process_timeout_ms / 1000
        self._group_id = live.group_id
        self._servers = settings.bootstrap_servers
        self._is_static = live.group_instance_id is not None
        replaced = FenceReason.REPLACED if self._is_static else FenceReason.PARTITIONS_LOST
        self._reason_if_replaced = replaced if self._is_static or live.claimed_instance_id else None
        self._recent_poll_seconds = 2 * timeouts.session_timeout_ms / 1000
        self._unverified_since = -math.inf
        self._log = run_context.log
        self._throttle_logged_at = -math.inf
        heard = {"error_cb": self._on_error, "throttle_cb": self._on_throttle}
        config = {**settings.member_config(live, run_context.client_id, timeouts), **heard}
        self._client = create_client(Consumer, config)
        self._lock = threading.RLock()
        self._is_release_deferred = False  # when a leave was put off to the end of the poll
        self._state = MemberState()
        self._assigned = AssignedPartitions()
        self.data_listener = DataListener(self._client)
        self._committer = Committer(
            self._client, self._group_id, self._servers, seconds=self._rebalance_wait_seconds
        )
        self._commit_log = LiveCommitLog(
            self._committer, self._state, self._assigned, run=run_context.short_run_id, log=run_context.log
        )
        strategy = config.get("partition.assignment.strategy", "cooperative, as every assignment of KIP-848")
        self._rebalance = RebalanceCallbacks(
            self._state,
            self._assigned,
            handover_seconds=timeouts.handover_ms / 1000,
            incremental="cooperative" in str(strategy),
            release=self._commit_log.mark_released,
            log=run_context.log,
        )
        self._client.subscribe(
            list(live.topics),
            on_assign=self._rebalance.on_assign,
            on_revoke=self._rebalance.on_revoke,
            on_lost=self._rebalance.on_lost,
        )

    @property
    def pending(self) -> dict[TopicPartition, int]:
        """Partitions assigned but not settled, each with the number of its arrival."""
        return self._assigned.pending

    @property
    def owned(self) -> dict[TopicPartition, OwnedPartition]:
        """Settled partitions."""
        return self._assigned.owned

    @property
    def is_joined(self) -> bool:
        """Whether the coordinator has given this member its part, perhaps no partition.

        Not once it has left.
        """
        return self._assigned.has_assignment and self._state.state is not State.LEFT

    @property
    def fenced_by(self) -> FenceReason | None:
        """Why the group goes on without this member, None while it is one of it as far as it knows.

        The client reports an outage of its brokers in a poll, or while it leaves: until then the reason is
        general.
        """
        ended = self._state.fenced_by
        if (
            ended is FenceReason.PARTITIONS_LOST
            and time.monotonic() - self._unverified_since < self._recent_poll_seconds
        ):
            return FenceReason.BROKERS_UNAVAILABLE
        return ended

    def poll(self, seconds: float = POLL_SECONDS, before_revoke: Finish | None = None) -> None:
        """Poll the client once: rebalances happen in here.

        Args:
            seconds: how long to wait for news.
            before_revoke: called with ``check_handover_deadline`` when partitions are about to go: the last
                chance to commit them.

        Raises:
            KafkaRefusedError: the group or a topic may not be used any more.
        """
        with self._lock:
            does = self._state.allowed.poll
            if does is PollAction.POLL:
                self._poll(seconds, before_revoke)
            elif does is PollAction.WAIT:
                self._rebalance.check_handover_deadline()
                time.sleep(COMMIT_RETRY_SECONDS)

    def poll_if_unlocked(self) -> None:
        """The same without waiting, neither for news nor for the thread that uses the client now."""
        if self._lock.acquire(blocking=False):
            try:
                self.poll(0.0)
            finally:
                self._lock.release()

    def commit_start_positions(self, resumed: Mapping[TopicPartition, OwnedPartition]) -> None:
        """Commit where arrived partitions go on and what they owe, then own them: one OffsetCommit.

        Does nothing while a rebalance is under way: serve it, look again, settle that. What went and came
        back since it was looked at is left out: another member may have committed it meanwhile.

        Raises:
            CommitRefusedError: nothing is owned that was not owned before.
        """
        with self._lock:
            mine = self._assigned.still_pending(resumed)
            if not mine or self._state.allowed.commit is CommitAction.NOTHING:
                return
            error = self._commit_log.commit({tp: (owned.committed, owned) for tp, owned in mine.items()})
            if error is None:
                self._assigned.activate(mine)
                self.data_listener.stop()
            elif not is_rebalance_in_progress(error):
                raise self._to_package_error(error)

    def commit(
        self,
        done: Mapping[TopicPartition, Span],
        assignment_ids: Mapping[TopicPartition, int],
        while_rebalancing: Callable[[], None] = lambda: None,
        skipped: Callable[[TopicPartition], tuple[Span, ...]] = lambda _: (),
    ) -> tuple[TopicPartition, ...]:
        """Commit done spans of owned partitions; returns those that were not ours any more.

        While a rebalance is under way it is served and the commit repeated with what is still owned: the
        broker would accept the rest and overwrite its new owner.

        Args:
            done: what to commit of each partition.
            assignment_ids: by which ownership each of them was planned.
            while_rebalancing: called before each repetition; may raise.
            skipped: what of a partition is pending from this commit on.

        Raises:
            CommitRefusedError: out of order, or the broker refused.
            RebalanceTimeoutError: a rebalance that waits for it can wait no longer.
        """
        with self._lock:
            was_owned = self._assigned.in_commit_order(done, assignment_ids)
            give_up_at = time.monotonic() + self._rebalance_wait_seconds
            while mine := self._assigned.still_assigned(was_owned):
                owing = {tp: owned.with_pending(skipped(tp)) for tp, owned in mine.items()}
                error = self._commit_log.commit(
                    {tp: (done[tp].end, one) for tp, one in owing.items()}, give_up_at
                )
                if error is None:
                    break
                if not is_rebalance_in_progress(error) or time.monotonic() > give_up_at:
                    self._assigned.rewind()  # this batch, and all that was planned after it, comes again
                    raise self._to_package_error(error)
                while_rebalancing()
                self.poll()
            for tp, owned in mine.items():
                owned.committed = done[tp].end
                owned.pending = owing[tp].pending
            return tuple(tp for tp in done if tp not in mine)

    def owns(self, assignment_ids: Mapping[TopicPartition, int]) -> bool:
        """Whether each partition is ours by the same ownership as then, as far as this member knows."""
        with self._lock:
            return len(self._assigned.with_assignment(assignment_ids)) == len(assignment_ids)

    def verify_ownership(
        self, assignment_ids: Mapping[TopicPartition, int], while_rebalancing: Callable[[], None]
    ) -> tuple[TopicPartition, ...]:
        """Ask the broker by a commit of what is committed.

        Returns those of them that are not ours any more.
        """
        with self._lock:
            at = {tp: self.owned[tp].committed if tp in self.owned else 0 for tp in assignment_ids}
            return self.commit(
                {tp: Span(offset, offset) for tp, offset in at.items()}, assignment_ids, while_rebalancing
            )

    def leave(self, *, release: bool) -> None:
        """LeaveGroup, from whichever thread. ``release`` marks the partitions as given up in good order.

        Inside of a callback it waits for the poll's end: there ``close()`` never returns, or raises
        SystemError.
        """
        with self._committer.lock_or_give_up(self._lock):
            does = self._state.allowed.leave
            if does is LeaveAction.AFTER_POLL:
                self._state.apply(Event.LEAVE_DEFERRED)
                self._is_release_deferred = release
            elif does is LeaveAction.NOW:
                self._leave(release=release)

    def _on_error(self, error: KafkaError) -> None:
        """Caller: the client's ``poll`` or ``close``. Affects: why this member is out of its group.

        librdkafka gives a membership up by itself when no broker has answered for a session; the coordinator
        may still list the member. A process that was paused gets no such error: its connections are there.
        """
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - librdkafka's own codes begin with _
            self._unverified_since = time.monotonic()

    def _on_throttle(self, event: ThrottleEvent) -> None:
        """Caller: the client's ``poll``, for each response that a quota delayed.

        Affects: a line of the run's log.
        """
        now = time.monotonic()
        if now - self._throttle_logged_at >= _THROTTLED_LOG_SECONDS:
            self._throttle_logged_at = now
            self._log.warning(
                "The broker throttles this login: a quota delays a response to this member by %.1f s. Fix: "
                "raise the quota (consumer_byte_rate or request_percentage)",
                event.throttle_time,
            )

    def _leave(self, *, release: bool) -> None:
        if release:
            self._commit_log.mark_released(list(self.owned))
        if self._state.state is not State.LEFT:  # which it is when its broker has fallen silent
            self._state.apply(Event.GROUP_LEFT)
            self._assigned.remove_all()
            drain_callbacks(self._client, is_static=self._is_static)
            self._client.close()

    def _poll(self, seconds: float, before_revoke: Finish | None) -> None:
        self.data_listener.apply()
        try:
            message = self._rebalance.poll(self._client, seconds, before_revoke)
        finally:
            told_to_leave = self._state.state is State.LEAVING
            self._state.apply(Event.POLL_ENDED)
            if told_to_leave:
                self._leave(release=self._is_release_deferred)
        error = self.data_listener.on_message(message)
        if error is not None and not self._fence_if_ended(error) and not is_transient(error):
            raise to_package_error(error, f"consuming as a member of {self._group_id}", self._servers)

    def _to_package_error(self, error: KafkaError) -> KafkaLivenessError:
        self._fence_if_ended(error)
        return to_package_error(error, f"committing to group {self._group_id}", self._servers)

    def _fence_if_ended(self, error: KafkaError) -> bool:
        """Whether the group goes on without this member from now on."""
        reason = fence_reason_of(error, self._reason_if_replaced)
        if reason is not None:
            self._state.fence(reason)
        return self.fenced_by is not None
