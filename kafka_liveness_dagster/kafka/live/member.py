"""One membership of a group: its client under one lock, and the live commit log (KIP-333).

Only members write the live commit log, and only for partitions they own: the broker fences members, not
partitions.

A membership lasts from its join to its leave; after a fence the process joins as a new member. Its partitions
are paused while they have records to read, because Spark reads them. Every call of the client holds one lock,
because a synchronous commit concurrent with a blocking poll deadlocks in librdkafka's Python client. The
tables of ``core.member_state`` define what each call does in each state.
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
        committing: commits of the member's client to its group.
        standing: state of the member; ``ownership``: its partitions.
        run: 8 hex digits that name its run.
        log: log of the run.
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
        """Commit positions with the pending ranges of their partitions, once; return the first refusal.

        Raises:
            BrokerUnreachableError: no response came. The membership has ended; its client is abandoned.
        """
        texts = {
            tp: (offset, self._commit_metadata(owned, owner_state).encode())
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
        """Mark partitions as released at their last committed position.

        A failure costs a replay, no data.
        """
        owned = self._assigned.owned
        ours = {tp: (owned[tp].committed, owned[tp]) for tp in partitions if tp in owned}
        give_up_at = time.monotonic() + _RELEASE_SECONDS
        try:
            while ours and (error := self.commit(ours, owner_state=OwnerState.RELEASED)) is not None:
                if not is_rebalance_in_progress(error) or time.monotonic() >= give_up_at:
                    level = logging.INFO if is_no_longer_a_member(error) else logging.WARNING
                    self._log.log(
                        level, "Could not mark %d partitions as released: %s", len(ours), error.str()
                    )
                    return
                time.sleep(COMMIT_RETRY_SECONDS)  # until the other members have synchronized
        except BrokerUnreachableError as silence:
            self._log.warning("Could not mark %d partitions as released: %s", len(ours), silence)

    def _commit_metadata(self, owned: OwnedPartition, owner_state: OwnerState) -> LiveCommitMetadata:
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
        membership_certain_seconds: time for which a verified membership is still valid, because the session
            timeout has not passed. It is 0 with a ``group.instance.id``: another process with this id may
            replace the member at any moment.
        data_listener: notices new records while the lane is idle.
    """

    def __init__(
        self, settings: KafkaSettings, live: LiveSettings, timeouts: Timeouts, run_context: RunContext
    ) -> None:
        self.membership_certain_seconds = (
            timeouts.session_timeout_ms / 2000
            if (live.group_instance_id or live.claimed_instance_id) is None
            else 0.0
        )
        # The other members' process timeouts are unknown; usually they are the same
        self._rebalance_wait_seconds = timeouts.process_timeout_ms / 1000
        self._group_id = live.group_id
        self._servers = settings.bootstrap_servers
        self._is_static = live.group_instance_id is not None
        replaced = FenceReason.REPLACED if self._is_static else FenceReason.PARTITIONS_LOST
        self._reason_if_replaced = replaced if self._is_static or live.claimed_instance_id else None
        self._recent_outage_seconds = 2 * timeouts.session_timeout_ms / 1000
        self._brokers_down_at = -math.inf
        self._log = run_context.log
        self._throttle_logged_at = -math.inf
        heard = {"error_cb": self._on_error, "throttle_cb": self._on_throttle}
        config = {**settings.member_config(live, run_context.client_id, timeouts), **heard}
        self._client = create_client(Consumer, config)
        self._lock = threading.RLock()
        self._is_release_deferred = False  # of a leave that was deferred to the end of the poll
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
        """Assigned partitions without a committed start position, each with its assignment number."""
        return self._assigned.pending

    @property
    def owned(self) -> dict[TopicPartition, OwnedPartition]:
        """Partitions whose start position is committed."""
        return self._assigned.owned

    @property
    def is_joined(self) -> bool:
        """Whether the coordinator has sent this member its assignment, perhaps empty.

        False after it left.
        """
        return self._assigned.has_assignment and self._state.state is not State.LEFT

    @property
    def fenced_by(self) -> FenceReason | None:
        """The reason why this membership has ended; None while no end was detected.

        The client reports an outage of its brokers in a poll, or during the leave. Until then the reason is
        less specific.
        """
        ended = self._state.fenced_by
        if (
            ended is FenceReason.PARTITIONS_LOST
            and time.monotonic() - self._brokers_down_at < self._recent_outage_seconds
        ):
            return FenceReason.BROKERS_UNAVAILABLE
        return ended

    def poll(self, seconds: float = POLL_SECONDS, before_revoke: Finish | None = None) -> None:
        """Poll the client once, which also runs rebalances.

        Args:
            seconds: longest wait for a message.
            before_revoke: called with ``check_handover_deadline`` before partitions are revoked: the last
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
        """Poll without waiting, neither for a message nor for a thread that uses the client now."""
        if self._lock.acquire(blocking=False):
            try:
                self.poll(0.0)
            finally:
                self._lock.release()

    def commit_start_positions(self, resumed: Mapping[TopicPartition, OwnedPartition]) -> None:
        """Commit start positions and pending ranges of assigned partitions, then own the partitions.

        All are in one OffsetCommit.

        Does nothing during a rebalance: the caller serves it, reads the states again and retries. A partition
        that was revoked and assigned again since is left out, because another member may have committed it.

        Raises:
            CommitRefusedError: the broker refused; no further partition is owned.
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
        """Commit done spans of owned partitions; return the partitions that are not owned any more.

        During a rebalance the group is served, and the commit is repeated with the partitions that are still
        owned. The broker would accept the others too, which overwrites the commits of their new owners.

        Args:
            done: span to commit of each partition.
            assignment_ids: assignment number by which each partition was planned.
            while_rebalancing: called before each repetition; may raise.
            skipped: returns the spans of a partition that are pending from this commit on.

        Raises:
            CommitRefusedError: the batch is out of order, or the broker refused.
            RebalanceTimeoutError: a rebalance cannot wait for this commit any longer.
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
                    self._assigned.rewind()  # this batch and all later ones are planned again
                    raise self._to_package_error(error)
                while_rebalancing()
                self.poll()
            for tp, owned in mine.items():
                owned.committed = done[tp].end
                owned.pending = owing[tp].pending
            return tuple(tp for tp in done if tp not in mine)

    def owns(self, assignment_ids: Mapping[TopicPartition, int]) -> bool:
        """Return whether each partition has the same assignment as then, without a request to the broker."""
        with self._lock:
            return len(self._assigned.with_assignment(assignment_ids)) == len(assignment_ids)

    def verify_ownership(
        self, assignment_ids: Mapping[TopicPartition, int], while_rebalancing: Callable[[], None]
    ) -> tuple[TopicPartition, ...]:
        """Verify ownership at the broker by committing the committed offsets again.

        Return the partitions that are not owned any more.
        """
        with self._lock:
            at = {tp: self.owned[tp].committed if tp in self.owned else 0 for tp in assignment_ids}
            return self.commit(
                {tp: Span(offset, offset) for tp, offset in at.items()}, assignment_ids, while_rebalancing
            )

    def leave(self, *, release: bool) -> None:
        """Leave the group, from any thread; ``release`` marks the partitions as released.

        In a callback the leave is deferred to the end of the poll, because there ``close()`` never returns,
        or raises SystemError.
        """
        with self._committer.lock_or_give_up(self._lock):
            does = self._state.allowed.leave
            if does is LeaveAction.AFTER_POLL:
                self._state.apply(Event.LEAVE_DEFERRED)
                self._is_release_deferred = release
            elif does is LeaveAction.NOW:
                self._leave(release=release)

    def _on_error(self, error: KafkaError) -> None:
        """Caller: the client's ``poll`` or ``close``. Affects: the reason why the membership ended.

        librdkafka gives a membership up by itself if no broker responds for a session timeout; the
        coordinator may still list the member. A process that was paused gets no such error, because its
        connections are open.
        """
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - librdkafka's own codes begin with _
            self._brokers_down_at = time.monotonic()

    def _on_throttle(self, event: ThrottleEvent) -> None:
        """Caller: the client's ``poll``, for each response that a quota delayed.

        Affects: a line of the run's log.
        """
        now = time.monotonic()
        if now - self._throttle_logged_at >= _THROTTLED_LOG_SECONDS:
            self._throttle_logged_at = now
            self._log.warning(
                "The broker throttles this login: a quota delayed a response to this member by %.1f s. "
                "Fix: raise the quota (consumer_byte_rate or request_percentage)",
                event.throttle_time,
            )

    def _leave(self, *, release: bool) -> None:
        if release:
            self._commit_log.mark_released(list(self.owned))
        if self._state.state is not State.LEFT:  # it is LEFT if the release got no response
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
        """Fence the member if this error ends the membership; return whether it has ended."""
        reason = fence_reason_of(error, self._reason_if_replaced)
        if reason is not None:
            self._state.fence(reason)
        return self.fenced_by is not None
