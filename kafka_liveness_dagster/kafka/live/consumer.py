"""The live lane's consumer: join the group, plan fair batches, commit them, and read both logs (KIP-333).

Each method of ``GroupView`` cites the sentence of the KIP's "Effects on Current API And Behavior" that it
implements. No such method joins a group or processes an offset.

Joins at the first poll, after all other checks. Never keeps a record, so no planned range is lost: the next
owner of its partition plans it again, unless it is committed.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.batch_planning import Batch, BatchRequest, Rotation
from kafka_liveness_dagster.core.batch_size import SlowRecordError
from kafka_liveness_dagster.core.commit_metadata import committed_offset
from kafka_liveness_dagster.core.departures import will_get_a_partition
from kafka_liveness_dagster.core.errors import KafkaLivenessError, summary_line
from kafka_liveness_dagster.core.fencing import FenceReason, PollTimer
from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
from kafka_liveness_dagster.core.partition_state import RowsMissingError, rows_missing_error
from kafka_liveness_dagster.core.resume import decide_resume
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.batch_consumer import BatchConsumer
from kafka_liveness_dagster.kafka.catch_up import consumer
from kafka_liveness_dagster.kafka.catch_up.commit_log import CatchUpCommitLog
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError, CommitRefusedError
from kafka_liveness_dagster.kafka.live.data_listener import REFRESH_SECONDS
from kafka_liveness_dagster.kafka.live.member import Member
from kafka_liveness_dagster.kafka.live.planner import LivePlanner, ResumeReport
from kafka_liveness_dagster.kafka.live.session import GroupSession, OffsetCommits, choose_group_instance_id
from kafka_liveness_dagster.kafka.partition_states import partition_states_with_ledger
from kafka_liveness_dagster.kafka.record_reader import RecordReader
from kafka_liveness_dagster.kafka.run_context import RunContext, now_ms
from kafka_liveness_dagster.kafka.timestamps import seconds_behind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

    from kafka_liveness_dagster.core.partition_state import PartitionState
    from kafka_liveness_dagster.core.timeouts import Timeouts
    from kafka_liveness_dagster.kafka.live.assignment import Finish
    from kafka_liveness_dagster.kafka.live.planner import OnRecovered
    from kafka_liveness_dagster.kafka.settings import KafkaSettings, LiveSettings


class GroupView:
    """One consumer's view of its group.

    Args:
        cluster: cluster of the group.
        settings: the group and its topics.
        session: this consumer's membership in the group.
        run_context: this consumer's run, which also finds the other runs.
    """

    def __init__(
        self, cluster: Cluster, settings: LiveSettings, session: GroupSession, run_context: RunContext
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._session = session
        self._run_context = run_context

    @property
    def is_joined(self) -> bool:
        """Whether this consumer has joined the group and was not removed since.

        The join may take long: a rebalance may wait for other members' batches or dead sessions.
        """
        lane = self._session.planner
        return lane is not None and lane.member.is_joined and lane.member.fenced_by is None

    def why_partitions_pending(self) -> str:
        """Return why this member will still get partitions to process; empty if it will get none.

        A rebalance that waits for other members' batches may first let a new member join without partitions
        (cooperative). Or it has assigned partitions, and refuses their commits until all members have joined.

        Raises:
            BrokerUnreachableError: no broker responds.
        """
        lane = self._session.planner
        if lane is None:
            return ""
        if self.is_assignment_pending():
            return (
                f"{len(lane.member.pending)} partitions are assigned, and a rebalance delays their "
                "first commit"
            )
        if lane.member.owned:
            return ""
        members = self._cluster.members(self._settings.group_id)
        others = [
            len(member.partitions) for member in members if member.client_id != self._run_context.client_id
        ]
        partitions = len(self._cluster.partitions(self._settings.topics))
        if not will_get_a_partition(partitions, others):
            return ""
        return f"{partitions} partitions, {sum(map(bool, others))} other members at work"

    def is_assignment_pending(self) -> bool:
        """Return whether a rebalance still refuses the first commit of assigned partitions."""
        lane = self._session.planner
        return lane is not None and bool(lane.member.pending)

    def assignment(self) -> tuple[TopicPartition, ...]:
        """Return the partitions owned now.

        Only the live lane's, as with "subscribe(), assign(), and unsubscribe()".
        """
        return tuple(sorted(self._session.owned))

    def position(self, topic: str, partition: int) -> int | None:
        """Return where the live lane's next batch begins; None for a partition not owned.

        KIP-333: "position() - will call the user-created consumer's position, the second consumer [...] will
        not take any part in this call".
        """
        owned = self._session.owned.get(TopicPartition(topic, partition))
        return owned.position if owned else None

    def committed(self, topic: str, partition: int) -> int | None:
        """Return the offset below which all are processed, in either lane; None without a commit.

        KIP-333: "any offset before the one returned by KafkaConsumer#committed has also been checkpointed as
        well". With a ``ledger`` the table is queried too; without one, or without its response, both commit
        logs decide.

        Raises:
            TableMismatchError: the group's commits are about another table.
            RowsMissingError: the table has lost rows that this process wrote.
        """
        seen = self._partition_snapshot(topic, partition)
        return committed_offset(seen.committed, seen.pending)

    def pending(self, topic: str, partition: int) -> tuple[OffsetRange, ...]:
        """Return the pending ranges: crash lag not caught up yet, and offsets whose rows the table lost.

        KIP-333: "we need to remember these two numbers [...] they need to be checkpointed as a token". The
        sources are those of ``committed``.
        """
        return tuple(
            OffsetRange(topic, partition, *span)
            for span in self._partition_snapshot(topic, partition).pending
        )

    def beginning_offsets(self, topic: str, partition: int) -> int:
        """Return the first offset that either lane can read: the log start.

        KIP-333: "beginningOffsets(), endOffsets() - Will check both consumer threads". Both read one log, so
        the earlier of the two beginnings is the log's. ``committed`` and ``pending`` show what each lane has
        done.
        """
        return self._partition_state(topic, partition).log_start

    def end_offsets(self, topic: str, partition: int) -> int:
        """Return the offset after the last one that either lane can read.

        It is the last stable offset (``read_committed``).
        """
        return self._partition_state(topic, partition).log_end

    def lag(self) -> int:
        """Return the number of offsets from the positions of the owned partitions to the log ends.

        Sends two requests.
        """
        owned = dict(self._session.owned)
        bounds = self._cluster.log_bounds(owned)
        return sum(max(0, bounds[tp][1] - one.position) for tp, one in owned.items())

    def seconds_behind(self) -> float | None:
        """Return the seconds between the timestamps of the newest processed and the newest log record.

        This is the largest value of an owned partition; 0 without lag, None if it is unknown.

        Raises:
            BrokerUnreachableError: no broker responds.
        """
        positions = {tp: one.position for tp, one in dict(self._session.owned).items()}
        ends = {tp: end for tp, (_, end) in self._cluster.log_bounds(positions).items()}
        return seconds_behind(self._cluster, self._settings.group_id, positions, ends=ends)

    def pause(self, topic: str, partition: int) -> None:
        """Pause both lanes of an owned partition until ``resume``.

        The live commit log keeps the pause over restarts. KIP-333: "when we call pause() or resume(), both
        consumer threads will stop or restart processing on partitions accordingly". A batch in progress is
        not stopped, and its commit is accepted.

        Raises:
            CommitRefusedError: the partition is not owned, or the pause could not be committed.
        """
        self._set_paused(TopicPartition(topic, partition), paused=True)

    def resume(self, topic: str, partition: int) -> None:
        """Resume both lanes of a paused partition, in order from where they were.

        Raises:
            CommitRefusedError: the partition is not owned, or the resume could not be committed.
        """
        self._set_paused(TopicPartition(topic, partition), paused=False)

    def child_consumer_is_alive(self) -> bool:
        """Return whether a catch-up lane of the group is open in this process or in a Dagster run.

        KIP-333: "a boolean value indicating if the secondary thread created has started or not". So a run
        that is queued or starting does not count. Scripts in other processes are not detected.
        """
        group_id = self._settings.group_id
        return (
            consumer.is_open(self._cluster.settings, group_id)
            or self._run_context.catch_up_runs(group_id) > 0
        )

    def _partition_snapshot(self, topic: str, partition: int) -> PartitionSnapshot:
        tp = TopicPartition(topic, partition)
        settings = self._settings
        return PartitionSnapshot.from_state(
            tp, partition_states_with_ledger(self._cluster, settings.group_id, [tp], settings.ledger)[tp]
        )

    def _partition_state(self, topic: str, partition: int) -> PartitionState:
        tp = TopicPartition(topic, partition)
        return self._cluster.partition_states(self._settings.group_id, [tp])[tp]

    def _set_paused(self, tp: TopicPartition, *, paused: bool) -> None:
        lane = self._session.planner
        if lane is None or tp not in lane.member.owned:
            raise CommitRefusedError(
                f"{tp} is not owned by this consumer, so it cannot be paused or resumed here. Nothing "
                "was changed. Fix: poll() until it is in assignment(), or call this in the process that "
                "owns it"
            )
        lane.set_paused(tp, paused=paused)
        if tp not in lane.member.owned:
            raise CommitRefusedError(
                f"{tp} was handed over while it was to be {'paused' if paused else 'resumed'}. Nothing "
                "was changed. Fix: call this in the process that owns it now"
            )


class LivenessConsumer(BatchConsumer, GroupView):
    """A consumer with heartbeats whose poll interval is its run budget. Use it as a context manager.

    Leaving the block normally releases the partitions, so the next owner resumes in order. Leaving it by an
    error leaves the group too, but the partitions are not released, as after a crash. With
    ``enable_parallel_rebalance`` the open batch becomes crash lag, and the live lane continues at the log
    end.

    Attributes:
        crash_lag: crash lag that this consumer found, in that order.
        lost: ranges that expired before either lane processed them, with ``on_data_loss="write_off"``.
        forgotten_pending: ranges that are pending again, because an external commit replaced their record, or
            the table has lost them.
        recovered: ranges that a dead run had written and not committed; this consumer does not write them
            again.
    """

    def __init__(
        self, kafka: KafkaSettings, live: LiveSettings, timeouts: Timeouts, run_context: RunContext
    ) -> None:
        self.timeouts = timeouts
        self.settings = live
        self._kafka = kafka
        self._resume_report = ResumeReport()
        self._poison = set[OffsetRange]()
        self._rotation = Rotation()
        self.crash_lag = self._resume_report.crash_lag
        self.lost = self._resume_report.lost
        self.forgotten_pending = self._resume_report.forgotten_pending
        self.recovered = self._resume_report.recovered
        self._catch_up_log: CatchUpCommitLog | None = None
        self._has_reported_commit = False
        self._timer = PollTimer(timeouts.process_timeout_ms, now_ms(), run_context.ends_at_ms)
        session = GroupSession(
            self._timer,
            run_context,
            self._join,
            answers_while_busy=live.answers_rebalances_while_busy,
            outcome=live.policy.outcome_after_fence,
        )
        reader = RecordReader(kafka, live.group_id, run_context.client_id)
        BatchConsumer.__init__(self, session.fence, reader)
        GroupView.__init__(self, Cluster(kafka), live, session, run_context=run_context)
        self._offset_commits = OffsetCommits(
            self._cluster,
            live.group_id,
            session,
            resume_report=self._resume_report,
            catch_up_log=self._create_catch_up_log,
        )

    def before_revoke(self, finish: Finish) -> None:
        """Register a callback that commits the open batches before a rebalance revokes their partitions.

        With ``liveness="progress"`` it is not called, because there a rebalance never waits for a batch.

        Args:
            finish: the callback. It must call the function that it gets while it waits. The function raises
                ``RebalanceTimeoutError`` before the group removes this member, and ``FencedError`` if this
                process may not commit any more.

        Caller: ``poll``, in its caller's thread. Affects: the rebalance, which waits for it.
        """
        self._session.before_revoke(finish)

    def commit(self, done: Batch | Mapping[TopicPartition, int]) -> tuple[TopicPartition, ...]:
        """Commit a processed batch: positions, owner state and pending ranges in one request.

        The new owner of a partition that was handed over meanwhile processes it again. Plain offsets go to
        the log of their lane (KIP-333): those inside crash lag to the catch-up commit log, the others to the
        live one.

        Returns:
            The partitions that were handed over; nothing of them was committed.

        Raises:
            FencedError: this process may not commit any more.
            CommitRefusedError: the broker refused, the batch is out of order, or an offset belongs to neither
                lane. Nothing was lost.
        """
        if not isinstance(done, Batch):
            return self._offset_commits.commit(done)
        handed_over = self._session.commit(done)
        self._rotation.committed = done.rotation_start
        if not self._has_reported_commit:
            self._has_reported_commit = True
            self._run_context.on_first_commit()
        return handed_over

    def confirm(self, batch: Batch) -> None:
        """Verify at the broker that an open batch still belongs to this member.

        Without this request a process that was frozen cannot detect that it was removed.

        Raises:
            FencedError: other members have its partitions, or this process may not commit any more.
        """
        self._session.confirm(batch)

    def require_room(self, batch: Batch) -> None:
        """Check that the commit of this batch can record its skipped offsets, before they are passed.

        Raises:
            BadRecordError: the commit metadata has no room for them.
            FencedError: this process may not commit any more.
        """
        self._session.require_room(batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if isinstance(error, RowsMissingError):
            self._create_catch_up_log().mark_missing_rows(
                error.ranges, self._run_context.log, self._resume_report.topic_ids
            )
        # KeyboardInterrupt and Dagster's interrupt are requests to stop, not failures
        release = kind is None or not issubclass(kind, Exception)
        if error is not None and not release:
            self._append_outcome(error)
        is_interrupt = kind is not None and release and kind is not GeneratorExit
        self._close(release=release, why=FenceReason.INTERRUPTED if is_interrupt else FenceReason.CLOSED)

    def poll(
        self,
        timeout_seconds: float = 5.0,
        max_records: int | None = None,
        *,
        min_records: int = 1,
        max_wait_seconds: float | None = None,
    ) -> Batch | None:
        """Return the next batch, or None if no new records came in time; the first poll joins the group.

        The batch before need not be committed yet. After a poll timeout the next poll joins again, and
        uncommitted ranges are planned again (KIP-62). With ``enable_parallel_rebalance`` they become crash
        lag.

        Args:
            timeout_seconds: longest wait for data.
            max_records: smaller bound than ``max_poll_records`` for this batch (KIP-41's rejected
                argument).
            min_records: smallest number of offsets for a batch, as ``fetch.min.bytes`` is for bytes.
            max_wait_seconds: time after which fewer offsets make a batch, as with ``fetch.max.wait.ms``. This
                wait may exceed the timeout, but never the run's own budget.

        Raises:
            FencedError: this process may not rejoin the group.
            KafkaLivenessError: the broker, a topic or a commit has a problem, which the message names.
        """
        give_up_at = time.monotonic() + timeout_seconds
        bound = self.settings.max_poll_records
        wanted = BatchRequest(
            bound if max_records is None else min(max_records, bound), min_records, max_wait_seconds
        )
        while True:
            batch = self._plan_once(wanted)
            asked_at = time.monotonic()
            if max_wait_seconds is not None and self._has_pending_records():
                give_up_at = max(give_up_at, asked_at + REFRESH_SECONDS)
            if batch is not None or asked_at >= give_up_at:
                return batch
            with suppress(BrokerUnreachableError):  # the next attempt waits for the broker
                self._wait_for_data(min(give_up_at, self._due_at(max_wait_seconds)))

    def on_recovered(self, callback: OnRecovered) -> None:
        """Register a callback that repeats side effects which the dead writer of recovered ranges may lack.

        Caller: ``poll``, in its caller's thread. Affects: the ranges, which are committed after it returned.
        """
        self._resume_report.on_recovered = callback

    def heartbeat(self) -> None:
        """Report progress on the open batch.

        This restarts the process timeout, and answers a rebalance. For ops whose batch may exceed its run
        budget while it makes progress (KIP-62's possible extension).

        Raises:
            FencedError: the process timeout passed, or this process may not rejoin the group. Stop the work.
        """
        self._fence.heartbeat()
        self._session.answer_rebalance()
        self._fence.check()

    def check_rows(self) -> None:
        """Check that the ledger has all committed offsets of each partition this consumer ever owned.

        Reads both commit logs and the ledger once, and needs no membership. The next run checks offsets that
        another client committed.

        Raises:
            RowsMissingError: the ledger lacks some of them.
        """
        partitions = sorted(self._resume_report.pending) if self.settings.ledger else []
        if not partitions:
            return
        for tp, state in partition_states_with_ledger(
            self._cluster, self.settings.group_id, partitions, self.settings.ledger
        ).items():
            missing = state.lost_rows
            if missing:
                raise rows_missing_error(
                    tp, state, missing, outcome="This run writes and commits nothing more"
                )

    def has_time_for_batch(self) -> bool:
        """Return whether the run's own budget covers another batch; if not, stop and release."""
        return self._timer.remaining_ms(now_ms()) >= min(self.timeouts.process_timeout_ms, 10_000)

    def quarantine(self, poison: OffsetRange) -> None:
        """Quarantine an offset that stopped the live lane; the next poll makes it pending, like crash lag.

        Raises:
            SlowRecordError: the offset was quarantined before, but the commit metadata has no room for it.
        """
        if poison in self._poison:
            outcome = (
                "The group has too many pending ranges for one more. Fix: materialize crash lag "
                "partitions first"
            )
            raise SlowRecordError([poison], self.timeouts.process_timeout_ms / 1000, outcome)
        self._poison.add(poison)

    def replan(self) -> None:
        """Plan uncommitted ranges again with the next poll.

        The poll reads the log bounds and the topic's id again. Use it for a batch whose records could not be
        read: if the broker has deleted them, the poll raises or passes them.
        """
        if (lane := self._session.planner) is not None:
            lane.replan()

    def leave(self) -> None:
        """Leave the group and release the partitions; both commit logs and the ledger stay readable."""
        self._session.close(release=True)

    def close(self, *, release: bool = True) -> None:
        """Leave the group at once; ``release=False`` leaves the partitions as after a crash."""
        self._close(release=release, why=FenceReason.CLOSED)

    def _close(self, *, release: bool, why: FenceReason) -> None:
        try:
            self._session.close(release=release, why=why)
        finally:
            self._reader.close()
            if self._catch_up_log is not None:
                self._catch_up_log.close()

    def _append_outcome(self, error: BaseException) -> None:
        """Append to an error where the next live run resumes.

        This run leaves its partitions as after a crash.
        """
        fenced = self._session.watchdog.reason
        if not self._resume_report.pending or (fenced is not None and fenced.releases_partitions):
            return  # it never owned a partition, or releases its partitions
        policy = self.settings.policy
        if isinstance(error, KafkaLivenessError):
            if policy.enable_parallel_rebalance or isinstance(error, BrokerUnreachableError):
                error.append(policy.outcome_after_error)
        elif policy.enable_parallel_rebalance:
            self._run_context.log.warning(
                "This live run ended by an error (%s). %s", summary_line(error), policy.outcome_after_error
            )

    def _has_pending_records(self) -> bool:
        lane = self._session.planner
        return lane is not None and lane.data_pending_since is not None and self.has_time_for_batch()

    def _due_at(self, max_wait_seconds: float | None) -> float:
        """Return when the pending records are a batch, however few they are; without such records never."""
        since = None if self._session.planner is None else self._session.planner.data_pending_since
        return math.inf if since is None or max_wait_seconds is None else since + max_wait_seconds

    def _wait_for_data(self, deadline: float) -> None:
        """Wait until the log ends are to be read again: after a short time, or at a signal."""
        looked_at = time.monotonic()
        lane = self._session.join_and_poll()
        while not (listener := lane.member.data_listener).has_new_data:
            left = min(looked_at + listener.refresh_seconds, deadline) - time.monotonic()
            if left <= 0:
                return
            seconds = listener.poll_seconds
            lane = self._session.join_and_poll(None if seconds is None else min(seconds, left))

    def _plan_once(self, request: BatchRequest) -> Batch | None:
        """Read the log ends once and plan; wait for unavailable brokers up to the process timeout."""
        give_up_at = time.monotonic() + self.timeouts.process_timeout_ms / 1000
        while True:
            try:
                lane = self._session.join_and_poll(0.0)  # a joined member has nothing to wait for
                lane.prune_pending()
                self._fence.record_poll()  # the time until here does not count against the next batch
                return self._plan_batch(lane, request) if self._session.watchdog.reason is None else None
            except BrokerUnreachableError as error:
                if self._session.planner is None or time.monotonic() >= give_up_at:
                    raise  # before the first join there is no membership to keep, so fail at once
                self._run_context.log.warning(
                    "Brokers did not respond; this run is still a member and retries: %s", error
                )

    def _plan_batch(self, lane: LivePlanner, request: BatchRequest) -> Batch | None:
        began_ms = now_ms()
        batch = lane.plan(request)
        if batch is None:
            return None
        at_ms = now_ms()
        deadline_seconds = self._timer.remaining_ms(at_ms) / 1000
        planning_seconds = (at_ms - began_ms) / 1000
        epoch = self._fence.epoch
        return replace(
            batch,
            deadline_seconds=deadline_seconds,
            membership_epoch=epoch,
            planning_seconds=planning_seconds,
        )

    def _join(self) -> LivePlanner:
        """Create a new membership; raise errors that prevent a resume before the group rebalances."""
        self._create_catch_up_log()  # finds its coordinator while the next requests run
        partitions = self._cluster.partitions(self.settings.topics)
        states = partition_states_with_ledger(
            self._cluster, self.settings.group_id, partitions, self.settings.ledger
        )
        for tp, found in states.items():
            decide_resume(tp, found, self.settings.policy)
        own = choose_group_instance_id(
            self._cluster, self.settings, self.timeouts, run_context=self._run_context, partitions=partitions
        )
        live = replace(self.settings, claimed_instance_id=own)
        member = Member(self._kafka, live, self.timeouts, run_context=self._run_context)
        self._rotation.reset()
        return LivePlanner(
            self._cluster,
            member,
            self.settings,
            report=self._resume_report,
            poison=self._poison,
            rotation=self._rotation,
            catch_up_log=self._create_catch_up_log,
            log=self._run_context.log,
        )

    def _create_catch_up_log(self) -> CatchUpCommitLog:
        self._catch_up_log = self._catch_up_log or CatchUpCommitLog(
            self._kafka,
            self.settings.group_id,
            self._run_context.client_id,
            target=self.settings.ledger.target if self.settings.ledger else None,
        )
        return self._catch_up_log
