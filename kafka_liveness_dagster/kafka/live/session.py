"""Keep a consumer in its group: join, rejoin after a fence, commit as the current member.

Plain offsets are split between the two logs, as KIP-333 has it.

Joins when there is no membership, answers the group, and settles what it assigned. Never plans.

A dynamic member that is killed keeps its partitions from its successor until its session has timed out. By
the classic protocol a member with a ``group.instance.id`` (KIP-345) is replaced at once by the next one of
that name, which also fences it if it still lives; so each run of Dagster's has such a name of its own, and a
run that finds one of a run for which nobody works any more goes on under it. It leaves as dynamic members do.

Under KIP-848 the broker refuses the name until that session is over (``UNRELEASED_INSTANCE_ID``), and members
that leave keep theirs: they are dynamic.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.commit_metadata import pending_before
from kafka_liveness_dagster.core.errors import summary_line
from kafka_liveness_dagster.core.fencing import RETRY_REASONS, FenceReason
from kafka_liveness_dagster.core.offsets import OffsetRange, Span
from kafka_liveness_dagster.core.run_ids import instance_id_for_run, run_id_of_instance, short_run_id
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
        timer: the poll timer, and the run it works for (``run_context``): what its watchdog looks at.
        answers_while_busy: the group is answered all the time, on a thread of the watchdog's.
        join: makes a new member, once everything that can be checked was checked.
        outcome: of a batch whose membership has ended, as a clause of the error.

    Attributes:
        planner: what the last one works on; None before the first.
        watchdog: ends the one that goes on; ``fence``: what it raises.
    """

    def __init__(
        self,
        timer: PollTimer,
        run_context: RunContext,
        join: Callable[[], LivePlanner],
        *,
        answers_while_busy: bool,
        outcome: str = RETRY_REASONS,
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
        """The settled partitions."""
        return {} if self.planner is None else self.planner.member.owned

    def before_revoke(self, finish: Finish) -> None:
        """Register what commits the open batches; see ``LivenessConsumer.before_revoke``."""
        self._commit_before_revoke = None if self._answers_while_busy else finish

    def join_and_poll(self, seconds: float | None = None) -> LivePlanner:
        """Be a member: join when there is no membership, answer the group, settle what it assigned.

        Args:
            seconds: how long a member waits for news, None for a moment; who is none yet always does.
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
        """Answer the group, if nobody does at this moment.

        Caller: ``heartbeat``, or the watchdog's answering thread. Affects: ownership, when there is a
        rebalance.
        """
        lane = self.planner
        if lane is not None:
            lane.member.poll_if_unlocked()
            self._fence_if_ended(lane)

    def commit(self, batch: Batch) -> tuple[TopicPartition, ...]:
        """Commit a processed batch by the membership that planned it.

        The group is answered while a rebalance holds the commit up.

        Returns:
            The partitions that were handed over: nothing of them was committed.

        Raises:
            FencedError: that membership has ended.
            TopicRecreatedError: a topic was recreated since the batch was planned.
        """
        self.fence.check_batch(batch)
        with self._fence_on_refusal() as lane:
            lane.check_topics(batch)
            # The work is done: waiting for the group is no stall
            handed_over = lane.member.commit(
                batch.spans, batch.assignment_ids, self.fence.heartbeat, batch.pending_of
            )
            lane.record_commit(batch, handed_over)
            return handed_over

    def confirm(self, batch: Batch) -> None:
        """Ask the broker whether an open batch is still this member's: a process that was frozen cannot know.

        Raises:
            FencedError: others have it by now, or this process may not commit any more.
        """
        self.fence.check_batch(batch)
        try:
            with self._fence_on_refusal() as lane:
                lane.confirm(batch, self.fence.heartbeat)
        except FencedError as fenced:  # what was planned after it comes again too
            self.fence.start_epoch(fenced.reason)
            raise

    def require_room(self, batch: Batch) -> None:
        """Check that the commit of this batch can record what it leaves out, before that is passed.

        Raises:
            BadRecordError: it cannot.
            FencedError: this process may not commit any more.
        """
        self.fence.check_batch(batch)
        if not all(
            owned.fits_commit_metadata(batch.pending_of(tp)) for tp, owned in dict(self.owned).items()
        ):
            raise no_room_error(batch.skipped)

    def close(self, *, release: bool, why: FenceReason = FenceReason.CLOSED) -> None:
        """Leave for good; a fence that is up already says itself whether the partitions are released."""
        fenced = self.watchdog.reason  # its thread may be about to leave
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
        """Fence this process where a refused commit means that the membership has ended."""
        lane = self.planner
        assert lane is not None  # noqa: S101 - it has a position
        try:
            yield lane
        except BrokerUnreachableError:
            raise  # to wait for it once more, as a new member, would take as long again
        except BaseException:
            self._check_fence(lane)  # says more than the broker's refusal
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
        cluster: where the group is; ``group_id``: its name.
        session: commits to the live commit log.
        resume_report: where the live lane of this consumer began.
        catch_up_log: opens the catch-up commit log when it has to be written.
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
        """Commit offsets, each to the log of the lane that it belongs to.

        KIP-333: "if an offset to be committed is within one of the offset lags created by a crash", it goes
        to the catch-up commit log, the others to the live one. The live lane's own commit changes nothing,
        though a pending range ends there: it does not show that anyone has read the range.

        Returns:
            The partitions that were handed over: nothing of them was committed.

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
        """The ownership that ``offset`` lies in.

        Counted from this member's own commit, which may have skipped data.
        """
        owned = self._session.owned.get(tp)
        if behind := [span for span in pending if span.start < offset <= span.end]:
            raise CommitRefusedError(
                f"offset {offset} of {tp} is where the live lane went on behind {behind[0]}: it does not "
                f"show that these {behind[0].size:,} offsets were read. Nothing was committed, in either "
                "log. Fix: commit the batches of kafka.catch_up, which record the whole range, or an "
                "offset inside of it"
            )
        if owned is None or not owned.committed <= offset <= owned.position:
            raise CommitRefusedError(
                f"commit of offset {offset} of {tp}: it is not in this consumer's hands, whose position is "
                f"{owned.position if owned else None} and whose commit "
                f"{owned.committed if owned else None}. Commit what poll() gave; nothing was committed, in "
                "either log"
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

    None for a dynamic member, or one that has a name of the user's.

    Args:
        cluster: where the group is.
        live: which group, and the user's name.
        timeouts: by which protocol.
        run_context: knows which runs are gone; a script does not, and nobody could tell that it is.
        partitions: of the topics, now. Where the group has dealt others it must deal again, and who goes on
            under a name that it knows is given what that name had: the others would stand still.
    """
    if (
        run_context.claim_instance_id is None
        or timeouts.protocol == "consumer"
        or live.group_instance_id is not None
    ):
        return None
    members = sorted(cluster.members(live.group_id), key=lambda member: -len(member.partitions))
    dealt = {tp for member in members for tp in member.partitions}
    fits = not dealt or dealt == set(partitions)  # none: they are dealt at this moment
    names = [
        name for member in members if fits and run_id_of_instance(name := member.group_instance_id) and name
    ]
    try:
        taken = run_context.claim_instance_id(live.group_id, names)
    except Exception as error:  # noqa: BLE001 - Dagster's storage is unavailable: the run waits for the session
        log.warning(
            "could not read from Dagster which memberships of group %s are free: %s",
            live.group_id,
            summary_line(error),
        )
        taken = None
    if taken is not None:
        gone = short_run_id(run_id_of_instance(taken) or "")
        run_context.log.info(
            "took over the group membership of dead run %s without waiting for its session timeout", gone
        )
    return taken or instance_id_for_run(run_context.run_id, uuid4().hex[:8])
