"""Keep a consumer in its group: join, rejoin after a fence, commit as the current member.

Joins if there is no membership, answers the group, and commits start positions of assigned partitions. Plain
offsets are split between the two commit logs (KIP-333). Never plans.

A killed dynamic member blocks its partitions until its session timeout. In the classic protocol the
next member with the same ``group.instance.id`` (KIP-345) replaces a member at once. This also fences the old
process if it is still alive. So each Dagster run has such an id. A run takes over the id of a run whose
process is gone. Members with such an id leave as dynamic members do.

Under KIP-848 the broker refuses the id until the old session is over (``UNRELEASED_INSTANCE_ID``), and
members that leave keep theirs. So there the members are dynamic.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.commit_metadata import pending_before
from kafka_liveness_dagster.core.errors import summary_line
from kafka_liveness_dagster.core.fencing import RETRY_OUTCOME, FenceReason
from kafka_liveness_dagster.core.offsets import OffsetRange, Span
from kafka_liveness_dagster.core.run_ids import instance_id_for_run, run_id_of_instance
from kafka_liveness_dagster.kafka.catch_up.commit_log import no_room_error
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError, CommitRefusedError, FencedError
from kafka_liveness_dagster.kafka.live.member import POLL_SECONDS
from kafka_liveness_dagster.kafka.watchdog import Fence, Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from kafka_liveness_dagster.core.fencing import PollTimer
    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.resume import OwnedPartition
    from kafka_liveness_dagster.core.timeouts import Timeouts
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.catch_up.commit_log import CatchUpCommitLog
    from kafka_liveness_dagster.kafka.live.assignment import Finish
    from kafka_liveness_dagster.kafka.live.planner import LivePlanner, ResumeReport
    from kafka_liveness_dagster.kafka.run_context import RunContext
    from kafka_liveness_dagster.kafka.settings import LiveSettings


class GroupSession:
    """The memberships of one consumer.

    Args:
        timer: the poll timer; the watchdog checks it and the run (``run_context``).
        answers_while_busy: whether a thread of the watchdog answers the group all the time.
        join: checks everything that can be checked, then creates a new member.
        outcome: outcome of a batch whose membership has ended, as a clause of the error.

    Attributes:
        planner: planner of the last membership; None before the first.
        watchdog: ends the current membership; ``fence``: the fence that it raises.
    """

    def __init__(
        self,
        timer: PollTimer,
        run_context: RunContext,
        join: Callable[[], LivePlanner],
        *,
        answers_while_busy: bool,
        outcome: str = RETRY_OUTCOME,
    ) -> None:
        self.planner: LivePlanner | None = None
        serve = self.answer_rebalance if answers_while_busy else None
        self.watchdog = Watchdog(timer, run_context, lambda _reason: None, serve=serve, outcome=outcome)
        self.fence = Fence(
            self.watchdog, "the batch was planned before the consumer rejoined", has_started=False
        )
        self._join = join
        self._answers_while_busy = answers_while_busy
        self._commit_before_revoke: Finish | None = None

    @property
    def owned(self) -> Mapping[TopicPartition, OwnedPartition]:
        """The owned partitions, whose start positions are committed."""
        return {} if self.planner is None else self.planner.member.owned

    def before_revoke(self, finish: Finish) -> None:
        """Register a callback that commits the open batches; see ``LivenessConsumer.before_revoke``."""
        self._commit_before_revoke = None if self._answers_while_busy else finish

    def join_and_poll(self, seconds: float | None = None) -> LivePlanner:
        """Join if there is no membership, answer the group, and decide where assigned partitions resume.

        Args:
            seconds: time that a joined member waits for a message; None for a short default. A member that
                has not joined yet always waits for the default.
        """
        lane = self._current_or_join()
        finish = None if self._commit_before_revoke is None else self._hand_over
        lane.member.poll(POLL_SECONDS if seconds is None or not lane.member.is_joined else seconds, finish)
        if not self._fence_if_ended(lane):
            self.fence.record_poll()
            try:
                lane.resume_assigned()
            except CommitRefusedError:
                if not self._fence_if_ended(lane):
                    raise
        return lane

    def answer_rebalance(self) -> None:
        """Answer the group, unless another thread does at this moment.

        Caller: ``heartbeat``, or the watchdog's answering thread. Affects: the owned partitions, during a
        rebalance.
        """
        lane = self.planner
        if lane is not None:
            lane.member.poll_if_unlocked()
            self._fence_if_ended(lane)

    def commit(self, batch: Batch) -> tuple[TopicPartition, ...]:
        """Commit a processed batch by the membership that planned it.

        While a rebalance delays the commit, the group is answered.

        Returns:
            The partitions that were handed over; nothing of them was committed.

        Raises:
            FencedError: that membership has ended.
            TopicRecreatedError: a topic was recreated since the batch was planned.
        """
        self.fence.check_batch(batch)
        with self._fence_on_refusal() as lane:
            lane.check_topics(batch)
            # The batch is processed, so waiting for the group may not count against the process timeout
            handed_over = lane.member.commit(
                batch.spans, batch.assignment_ids, self.fence.heartbeat, batch.pending_of
            )
            lane.record_commit(batch, handed_over)
            return handed_over

    def confirm(self, batch: Batch) -> None:
        """Verify at the broker that an open batch still belongs to this member.

        Without this request a process that was frozen cannot detect that it was removed.

        Raises:
            FencedError: other members have its partitions, or this process may not commit any more.
        """
        self.fence.check_batch(batch)
        try:
            with self._fence_on_refusal() as lane:
                lane.confirm(batch, self.fence.heartbeat)
        except FencedError as fenced:  # batches planned after this one are planned again too
            self.fence.start_epoch(fenced.reason)
            raise

    def require_room(self, batch: Batch) -> None:
        """Check that the commit of this batch can record its skipped offsets, before they are passed.

        Raises:
            BadRecordError: the commit metadata has no room for them.
            FencedError: this process may not commit any more.
        """
        self.fence.check_batch(batch)
        if not all(
            owned.fits_commit_metadata(batch.pending_of(tp)) for tp, owned in dict(self.owned).items()
        ):
            raise no_room_error(batch.skipped)

    def close(self, *, release: bool, why: FenceReason = FenceReason.CLOSED) -> None:
        """Leave for good; if the fence is up, its reason decides whether the partitions are released."""
        fenced = self.watchdog.reason  # read before the watchdog's thread may leave
        try:
            self.watchdog.stop(why)
        finally:
            if self.planner is not None:
                self.planner.member.leave(release=release if fenced is None else fenced.releases_partitions)

    def _current_or_join(self) -> LivePlanner:
        before = self.planner
        if before is not None and self.fence.record_poll():
            return before
        why = self.watchdog.reason or FenceReason.POLL_TIMEOUT
        if not why.may_rejoin:
            self.watchdog.check()
        if before is not None:
            before.leave(why)  # who raised the fence may not have come to it yet
        self.planner = self._join()
        self.fence.start_epoch(why)
        self.watchdog.reset(self.planner.leave)
        if before is None:
            self.watchdog.start()
        return self.planner

    @contextmanager
    def _fence_on_refusal(self) -> Iterator[LivePlanner]:
        """Fence this process if a refused commit means that the membership has ended."""
        lane = self.planner
        assert lane is not None  # noqa: S101 - it has a position
        try:
            yield lane
        except BrokerUnreachableError:
            raise  # a new member would wait for the broker as long again
        except BaseException:
            self._check_fence(lane)  # its error is more specific than the broker's refusal
            raise
        self._check_fence(lane)

    def _check_fence(self, lane: LivePlanner) -> None:
        self._fence_if_ended(lane)
        self.watchdog.check()

    def _fence_if_ended(self, lane: LivePlanner) -> bool:
        if lane.member.fenced_by is not None:
            self.watchdog.fence(lane.member.fenced_by, lane.leave)
        return lane.member.fenced_by is not None

    def _hand_over(self, in_time: Callable[[], None]) -> None:
        def may_wait() -> None:
            self.fence.check()
            in_time()

        if self._commit_before_revoke is not None:
            self._commit_before_revoke(may_wait)


class OffsetCommits:
    """Commits of plain offsets, split between the two commit logs (KIP-333).

    Args:
        cluster: cluster of the group; ``group_id``: name of the group.
        session: commits to the live commit log.
        resume_report: start positions of this consumer's live lane.
        catch_up_log: opens the catch-up commit log before it is written.
    """

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        session: GroupSession,
        *,
        resume_report: ResumeReport,
        catch_up_log: Callable[[], CatchUpCommitLog],
    ) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._session = session
        self._resume_report = resume_report
        self._catch_up_log = catch_up_log

    def commit(self, offsets: Mapping[TopicPartition, int]) -> tuple[TopicPartition, ...]:
        """Commit offsets, each to the commit log of its lane.

        KIP-333: "if an offset to be committed is within one of the offset lags created by a crash", the
        catch-up commit log gets it. The live commit log gets the others. A pending range that ends at the
        live lane's start position stays pending when this position is committed. The commit does not show
        that the range was read.

        Returns:
            The partitions that were handed over; nothing of them was committed.

        Raises:
            FencedError: this process may not commit any more.
            CommitRefusedError: the broker refused, or an offset belongs to neither lane. Nothing was lost.
        """
        self._session.fence.check()
        epoch = self._session.fence.epoch
        held = dict(self._session.owned)
        new = {tp: offset for tp, offset in offsets.items() if tp not in held or offset != held[tp].committed}
        states = self._cluster.partition_states(self._group_id, list(new))
        pending = {tp: one.outstanding for tp, one in states.items()}
        pending_spans = {
            tp: pending_before(offset, pending[tp], self._resume_report.group_start_positions.get(tp, ()))
            for tp, offset in new.items()
        }
        mine = {
            tp: self._assignment_of(tp, offset, pending[tp])
            for tp, offset in new.items()
            if pending_spans[tp] is None
        }
        if caught_up := [OffsetRange(*tp, *span) for tp, span in pending_spans.items() if span is not None]:
            self._catch_up_log().mark_done(caught_up, self._session.fence.check)
        if not mine:
            return ()
        ranges = tuple(OffsetRange(*tp, owned.committed, new[tp]) for tp, owned in mine.items())
        assignment_ids = {tp: owned.assignment_id for tp, owned in mine.items()}
        return self._session.commit(Batch(ranges, 0.0, epoch, assignment_ids=assignment_ids))

    def _assignment_of(self, tp: TopicPartition, offset: int, pending: tuple[Span, ...]) -> OwnedPartition:
        """Return the owned partition in whose open range ``offset`` lies.

        The range begins at this member's own commit, which may have skipped data.
        """
        owned = self._session.owned.get(tp)
        if behind := [span for span in pending if span.start < offset <= span.end]:
            raise CommitRefusedError(
                f"offset {offset} of {tp} ends the pending range {behind[0]}: its commit does not show "
                f"that these {behind[0].size:,} offsets were read. Nothing was committed, in either "
                "log. Fix: commit the batches of kafka.catch_up, which record the whole range, or an "
                "offset inside of it"
            )
        if owned is None or not owned.committed <= offset <= owned.position:
            raise CommitRefusedError(
                f"commit of offset {offset} of {tp}: this consumer does not hold it; its position is "
                f"{owned.position if owned else None} and its commit "
                f"{owned.committed if owned else None}. Nothing was committed, in either log. Fix: "
                "commit the batches that poll() returned"
            )
        return owned


log = logging.getLogger("kafka_liveness_dagster")


def choose_group_instance_id(
    cluster: Cluster,
    live: LiveSettings,
    timeouts: Timeouts,
    run_context: RunContext,
    partitions: Collection[TopicPartition],
) -> str | None:
    """Return the ``group.instance.id`` for one membership.

    None for a dynamic member, or if the user has set an id.

    Args:
        cluster: cluster of the group.
        live: the group, and the id set by the user.
        timeouts: timeouts, with the group's protocol.
        run_context: finds the runs that are gone. A script cannot, and nothing shows that a script is gone.
        partitions: current partitions of the topics. If the group has assigned others, it must rebalance. A
            member that takes over a known id only gets the partitions of that id, so new partitions would
            have no owner.
    """
    if (
        run_context.claim_instance_id is None
        or timeouts.protocol == "consumer"
        or live.group_instance_id is not None
    ):
        return None
    members = sorted(cluster.members(live.group_id), key=lambda member: -len(member.partitions))
    dealt = {tp for member in members for tp in member.partitions}
    fits = not dealt or dealt == set(partitions)  # empty: a rebalance is assigning them now
    names = [
        name for member in members if fits and run_id_of_instance(name := member.group_instance_id) and name
    ]
    try:
        taken = run_context.claim_instance_id(live.group_id, names)
    except Exception as error:  # noqa: BLE001 - Dagster's storage is unavailable: the run waits for the session
        log.warning(
            "Could not read from Dagster which memberships of group %s are free: %s",
            live.group_id,
            summary_line(error),
        )
        taken = None
    return taken or instance_id_for_run(run_context.run_id, uuid4().hex[:8])
