"""Commit where a member's assigned partitions resume, and plan batches over them.

Never decides by itself: ``core.resume`` and ``core.batch_planning`` do. Start positions are committed before
any record is processed. The catch-up commit log is written first. Else it could still mark offsets as done
from a former start of the group, and this lane would not process them.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from kafka_liveness_dagster.core.batch_planning import Batch, BatchRequest, plan_ranges
from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.fencing import FenceReason
from kafka_liveness_dagster.core.ledger import LedgerEntry
from kafka_liveness_dagster.core.names import join_some
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition, difference, intersection
from kafka_liveness_dagster.core.partition_state import (
    TopicRecreatedError,
    check_offset_in_log,
    topic_recreated_message,
)
from kafka_liveness_dagster.core.resume import OwnedPartition, decide_resume, pending_to_keep
from kafka_liveness_dagster.failpoints import Failpoint, failpoint
from kafka_liveness_dagster.kafka.catch_up.commit_log import warn_about_external_commits
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError, FencedError
from kafka_liveness_dagster.kafka.partition_states import partition_states_with_ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from logging import Logger

    from kafka_liveness_dagster.core.batch_planning import Rotation
    from kafka_liveness_dagster.core.commit_metadata import CatchUpCommitMetadata
    from kafka_liveness_dagster.core.partition_state import PartitionState
    from kafka_liveness_dagster.core.resume import ResumeDecision
    from kafka_liveness_dagster.core.sink_ledger import LaneLedger
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.catch_up.commit_log import CatchUpCommitLog
    from kafka_liveness_dagster.kafka.live.member import Member
    from kafka_liveness_dagster.kafka.settings import LiveSettings


CRASH_LAG_LINE = (
    "Skipped ahead to the log end after a crash: %s, %d offsets, became crash lag, pending, a partition "
    "for each range"
)
FORGOTTEN_PENDING_LINE = (
    "%s, %d offsets, are committed and neither in the table nor pending: another client replaced the "
    "group's commit, or the table lost rows. Marked as pending again, a partition for each range"
)
WRITTEN_UNCOMMITTED_LINE = (
    "Recovered %s, %d offsets, from the table: a run died after it wrote them and before it committed them"
)
LOST_LINE = (
    "DATA LOSS: %s, %d offsets, expired in Kafka before they were processed. Skipped, and reported as lost"
)
IN_ORDER_LINE = (
    "Resumed in order, because the pending ranges do not fit a commit, or exceed max_ranges of CrashLag: %s"
)
PAUSED_LINE = "Paused in both lanes until resume(): %s"


class OnRecovered(Protocol):
    """Repeats side effects that a dead run may have skipped between the table's and the offsets' commit."""

    def __call__(self, ranges: Sequence[OffsetRange], deleted: Sequence[OffsetRange], /) -> None:
        """Repeat them for ``ranges``; the broker has deleted the records of ``deleted``."""


@dataclass
class ResumeReport:
    """The findings of one consumer when its partitions resumed.

    Attributes:
        crash_lag: crash lag, in the order in which it was found.
        lost: ranges that expired before they were processed.
        forgotten_pending: ranges that are pending again, because an external commit replaced their record, or
            the table has lost them.
        recovered: ranges that were in the table and in neither commit log.
        on_recovered: repeats side effects that their dead writer may have skipped; called before they are
            committed.
        pending: pending ranges that this consumer last committed, for each partition it ever owned.
        topic_ids: ids of the topics at their first read.
        group_start_positions: positions at which its live lane began to read: the last one, and those inside
            crash lag.
    """

    crash_lag: list[OffsetRange] = field(default_factory=list)
    lost: list[OffsetRange] = field(default_factory=list)
    forgotten_pending: list[OffsetRange] = field(default_factory=list)
    _: KW_ONLY
    recovered: list[OffsetRange] = field(default_factory=list)
    on_recovered: OnRecovered | None = None
    pending: dict[TopicPartition, tuple[Span, ...]] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    group_start_positions: dict[TopicPartition, frozenset[int]] = field(default_factory=dict)

    def recover(
        self, spans: Mapping[TopicPartition, Iterable[Span]], log_starts: Mapping[TopicPartition, int]
    ) -> list[OffsetRange]:
        """Repeat side effects that the dead writer of these offsets may have skipped, once.

        Args:
            spans: offsets that are in the table and in neither commit log; the caller commits them after
                this.
            log_starts: log starts; the broker has deleted the offsets below.

        Returns:
            The ranges that were handled now. Nothing is logged yet, because a slow log handler would delay
            the group.
        """
        known = self.recovered
        new = {
            tp: difference(found, [r.span for r in known if r.topic_partition == tp])
            for tp, found in spans.items()
        }
        ranges = _offset_ranges(new)
        if not ranges:
            return []
        if self.on_recovered is not None:
            deleted = {tp: intersection(found, (Span(0, log_starts[tp]),)) for tp, found in new.items()}
            there = {tp: difference(found, deleted[tp]) for tp, found in new.items()}
            self.on_recovered(_offset_ranges(there), _offset_ranges(deleted))
        self.recovered += ranges
        return ranges

    def add(self, settled: Mapping[TopicPartition, ResumeDecision], log: Logger) -> None:
        """Record and log the resume decisions of these partitions."""
        self.pending.update({tp: resumed.pending for tp, resumed in settled.items()})
        self.group_start_positions.update(
            {tp: self._start_positions(tp, resumed) for tp, resumed in settled.items()}
        )
        self.add_lost({tp: resumed.lost for tp, resumed in settled.items()}, log)
        forgotten = _offset_ranges({tp: resumed.forgotten_pending for tp, resumed in settled.items()})
        jumped = _offset_ranges({tp: resumed.crash_lag for tp, resumed in settled.items()})
        landed = _offset_ranges({tp: resumed.written_uncommitted for tp, resumed in settled.items()})
        self.forgotten_pending += forgotten
        self.crash_lag += jumped
        for told, ranges in (
            (WRITTEN_UNCOMMITTED_LINE, landed),
            (FORGOTTEN_PENDING_LINE, forgotten),
            (CRASH_LAG_LINE, jumped),
        ):
            if ranges:
                log.warning(told, join_some(ranges), sum(found.size for found in ranges))
        _log_held_partitions(settled, log)

    def add_lost(self, spans: Mapping[TopicPartition, Iterable[Span]], log: Logger) -> None:
        """Record and log offsets that expired before they were processed."""
        self.lost += (lost := _offset_ranges(spans))
        if lost:
            log.error(LOST_LINE, join_some(lost), sum(found.size for found in lost))

    def _start_positions(self, tp: TopicPartition, resumed: ResumeDecision) -> frozenset[int]:
        before = self.group_start_positions.get(tp, ())
        inside = {start for start in before if any(span.start < start < span.end for span in resumed.pending)}
        return frozenset({*inside, resumed.position})


def _log_held_partitions(settled: Mapping[TopicPartition, ResumeDecision], log: Logger) -> None:
    """Log the paused partitions, and those read in order because their metadata has no room for crash lag."""
    paused = [f"{tp} at {resumed.position}" for tp, resumed in settled.items() if resumed.paused]
    in_order = [f"{tp} at {resumed.overflow.start}" for tp, resumed in settled.items() if resumed.overflow]
    for told, partitions in ((PAUSED_LINE, paused), (IN_ORDER_LINE, in_order)):
        if partitions:
            log.warning(told, join_some(partitions))


def _offset_ranges(spans: Mapping[TopicPartition, Iterable[Span]]) -> list[OffsetRange]:
    return [OffsetRange(*tp, *span) for tp, found in spans.items() for span in found]


PRUNE_INTERVAL_SECONDS = 60.0
"""Interval at which the live lane drops done ranges from the pending ones."""
PENDING_BEYOND_COMMIT_LINE = (
    "Ignored pending offsets in the live commit log of group %s, at or above its committed offset, which "
    "the live lane reads: %s"
)


class LivePlanner:
    """The partitions of one member.

    Args:
        report: collects the findings of this membership.
        poison: quarantined offsets, which become pending when their partitions resume.
        rotation: order in which partitions take turns.
        catch_up_log: opens the catch-up commit log before it is written.

    Attributes:
        data_pending_since: time by ``time.monotonic`` after which the oldest offset came that is in no batch
            yet; None without such offsets.
    """

    def __init__(
        self,
        cluster: Cluster,
        member: Member,
        settings: LiveSettings,
        *,
        report: ResumeReport,
        poison: Collection[OffsetRange],
        rotation: Rotation,
        catch_up_log: Callable[[], CatchUpCommitLog],
        log: Logger,
    ) -> None:
        self.member = member
        self._cluster = cluster
        self._settings = settings
        self._log = log
        self._report = report
        self._poison = poison
        self._rotation = rotation
        self._catch_up_log = catch_up_log
        self.data_pending_since: float | None = None
        self._pruned_at = self._planned_at = self._recommitted_at = time.monotonic()

    def leave(self, reason: FenceReason) -> FenceReason:
        """End this membership for the reason of its fence.

        Return the reason that the client's last callbacks report.
        """
        self.member.leave(release=reason.releases_partitions)
        return self.member.fenced_by or reason if reason is FenceReason.PARTITIONS_LOST else reason

    def resume_assigned(self) -> None:
        """Decide where assigned partitions resume, and commit that before their first record is processed."""
        arrived = dict(self.member.pending)
        if not arrived:
            return
        failpoint(Failpoint.AFTER_JOIN)
        states = self._partition_states(sorted(arrived))
        resumed = {
            tp: decide_resume(tp, states[tp], self._settings.policy, _spans(tp, self._poison))
            for tp in arrived
        }
        self._recover(states, {tp: r.written_uncommitted for tp, r in resumed.items()})
        self._catch_up_log().write(
            {tp: (states[tp].catch_up_log, self._catch_up_log_of(r)) for tp, r in resumed.items()}
        )
        self._warn_about_external_commits(states)
        self.member.commit_start_positions(
            {
                tp: OwnedPartition(
                    r.position,
                    r.position,
                    r.pending,
                    assignment_id=arrived[tp],
                    is_paused=r.paused,
                    reprocess=r.reprocess,
                    origin=r.origin if self._ledger else None,
                )
                for tp, r in resumed.items()
            }
        )
        adopted = [tp for tp in sorted(arrived) if tp in self.member.owned]
        self._update_ledger({tp: (states[tp], resumed[tp]) for tp in adopted})
        failpoint(Failpoint.AFTER_TOKEN_COMMIT)
        self._report.add({tp: resumed[tp] for tp in adopted}, self._log)

    def plan(self, request: BatchRequest) -> Batch | None:
        """Return the next ranges of the owned partitions, now planned; None if there are too few offsets."""
        now = time.monotonic()
        # New offsets came after the last read of the log ends, perhaps while a batch was committed. A signal
        # of the listener has just come
        came_after = now if self.member.data_listener.has_new_data else self._planned_at
        self._planned_at = now
        owned = {tp: o for tp, o in dict(self.member.owned).items() if not o.is_paused}
        bounds = self._cluster.log_bounds(owned)
        self._check_positions(owned, bounds)
        pending = {tp: (Span(o.position, bounds[tp][1]),) for tp, o in owned.items()}
        records = sum(span.size for (span,) in pending.values())
        self.data_pending_since = (self.data_pending_since or came_after) if records else None
        self.member.data_listener.on_caught_up({} if records else {tp: o.position for tp, o in owned.items()})
        if not request.is_satisfied(records, now - (self.data_pending_since or now)):
            return None
        ranges, last = plan_ranges(
            pending, request.max_records, self._rotation.planned, greedy=self._settings.is_greedy
        )
        self._check_identity([r.topic_partition for r in ranges], "nothing was written or committed")
        for r in ranges:
            owned[r.topic_partition].position = r.end
        arrivals = {r.topic_partition: owned[r.topic_partition].assignment_id for r in ranges}
        self._rotation.planned = last
        self.data_pending_since = None
        left = records - sum(one.size for one in ranges)
        return Batch(ranges, 0.0, rotation_start=last, assignment_ids=arrivals, offsets_left=left)

    def check_topics(self, batch: Batch) -> None:
        """Check before a commit that no topic was recreated since the batch was planned.

        Raises:
            TopicRecreatedError: a topic was recreated, so it is unknown which topic's records were written.
        """
        done = ", ".join(map(str, batch.ranges))
        outcome = (
            f"nothing was committed. Rows of {done} were written meanwhile; check which topic they came from"
        )
        with suppress(BrokerUnreachableError):  # the commit itself waits for an unavailable broker
            self._check_identity(batch.spans, outcome)

    def record_commit(self, batch: Batch, handed_over: Collection[TopicPartition]) -> None:
        """Record the pending ranges after a commit; log the partitions that were handed over before it."""
        self._report.pending.update(
            {tp: self.member.owned[tp].pending for tp in batch.spans if tp in self.member.owned}
        )
        if handed_over:
            message = "Handed over before the commit; the new owner retries: %s"
            self._log.info(message, ", ".join(map(str, handed_over)))

    def confirm(self, batch: Batch, while_rebalancing: Callable[[], None]) -> None:
        """Commit nothing new, to verify that the batch still belongs to this member.

        Skipped if the batch was planned so recently that no other member can have its partitions.

        Raises:
            FencedError: another member owns a part of it; the part that this member owns is planned again.
            CommitRefusedError: the membership has ended.
        """
        if time.monotonic() - self._planned_at < self.member.membership_certain_seconds and self.member.owns(
            batch.assignment_ids
        ):
            return
        handed_over = self.member.verify_ownership(batch.assignment_ids, while_rebalancing)
        if handed_over:
            self.replan()
            names = ", ".join(map(str, handed_over))
            raise FencedError(FenceReason.HANDED_OVER, f"{names}, before the batch was written")

    def replan(self) -> None:
        """Plan uncommitted ranges again."""
        for owned in dict(self.member.owned).values():
            owned.position = owned.committed

    def set_paused(self, tp: TopicPartition, *, paused: bool) -> None:
        """Pause or resume an owned partition, also for its later owners.

        Raises:
            CommitRefusedError: the change could not be committed; nothing is paused or resumed.
        """
        owned = self.member.owned[tp]
        before, owned.is_paused = owned.is_paused, paused
        try:
            self.member.commit({tp: Span(owned.committed, owned.committed)}, {tp: owned.assignment_id})
        except BaseException:
            owned.is_paused = before
            raise

    def prune_pending(self) -> None:
        """At intervals, drop pending ranges that are done, and commit the catch-up commit log again.

        Without that its offsets expire, because its group has no members.
        """
        now = time.monotonic()
        if now - self._recommitted_at >= self._settings.recommit_seconds:
            self._recommitted_at = now
            warn_about_external_commits(
                self._log, self._settings.group_id, self._catch_up_log().recommit(list(self.member.owned))
            )
        if now - self._pruned_at < PRUNE_INTERVAL_SECONDS:
            return
        self._pruned_at = now
        owing = {tp: owned for tp, owned in dict(self.member.owned).items() if owned.pending}
        states = self._partition_states(list(owing))
        if self._ledger is not None:
            self._ledger.add_known(
                {tp: LedgerEntry(written_off=one.catch_up_log.written_off) for tp, one in states.items()}
            )
        self._write_rebuilt_logs(states)
        for tp, owned in owing.items():
            self._report.pending[tp] = owned.pending = pending_to_keep(_with_owned(states[tp], owned))

    @property
    def _ledger(self) -> LaneLedger | None:
        return self._settings.ledger

    def _catch_up_log_of(self, found: ResumeDecision | PartitionState) -> CatchUpCommitMetadata:
        target = found.catch_up_log.target if self._ledger is None else self._ledger.target
        return replace(found.catch_up_log, target=target)

    def _recover(
        self,
        states: Mapping[TopicPartition, PartitionState],
        written: Mapping[TopicPartition, tuple[Span, ...]],
    ) -> None:
        """Repeat side effects that dead runs may have skipped, before their rows are committed as done."""
        spans = {tp: (*written.get(tp, ()), *one.done_in_rebuilt_log) for tp, one in states.items()}
        self._report.recover(spans, {tp: one.log_start for tp, one in states.items()})

    def _write_rebuilt_logs(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        """Write the rebuilt catch-up commit logs; the others stay unchanged."""
        if logs := {
            tp: (one.catch_up_log, self._catch_up_log_of(one))
            for tp, one in states.items()
            if one.catch_up_log.external
        }:
            self._recover(states, {})
            self._catch_up_log().write(logs)
            self._warn_about_external_commits(states)

    def _warn_about_external_commits(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        """Log the external commits in both commit logs."""
        warn_about_external_commits(
            self._log, self._settings.group_id, {tp: one.catch_up_log.external for tp, one in states.items()}
        )
        if beyond := [
            str(OffsetRange(*tp, *span)) for tp, one in states.items() for span in one.pending_beyond_commit
        ]:
            self._log.warning(PENDING_BEYOND_COMMIT_LINE, self._settings.group_id, join_some(beyond))

    def _partition_states(self, partitions: list[TopicPartition]) -> dict[TopicPartition, PartitionState]:
        states = partition_states_with_ledger(
            self._cluster, self._settings.group_id, partitions, self._ledger
        )
        self._check_topic_id(
            {tp: one.topic_id for tp, one in states.items()}, "nothing was written or committed"
        )
        return {
            tp: replace(one, remembered_pending=self._report.pending.get(tp, ()))
            for tp, one in states.items()
        }

    def _update_ledger(self, resumed: Mapping[TopicPartition, tuple[PartitionState, ResumeDecision]]) -> None:
        """Add facts of the commit logs to the ledger; the next write stores them in the table.

        Unknown offsets below the position are done, by the last commit or by this one. Only pending offsets
        stay unknown: a catch-up run may have written some that no commit log has yet.
        """
        if self._ledger is None:
            return
        known = {}
        assumed = {}
        for tp, (state, r) in resumed.items():
            assert r.origin is not None  # noqa: S101 - resume gave it
            known[tp] = LedgerEntry(
                (), r.catch_up_log.written_off, r.origin.start, topic_id=r.origin.topic_id
            )
            if state.ledger_entry is not None and not state.ledger_entry.is_complete:
                done = state.done_by_commit((*r.catch_up_log.written_off, *r.pending))
                assumed[tp] = replace(
                    known[tp],
                    written=intersection(done, (Span(0, r.position),)),
                    unknown=intersection(r.pending, state.ledger_entry.unknown),
                )
        self._ledger.add_known(known)
        self._ledger.assume_written(assumed)

    def _check_identity(self, partitions: Collection[TopicPartition], outcome: str) -> None:
        if partitions:
            ids = self._cluster.topic_ids({tp.topic for tp in partitions})
            self._check_topic_id({tp: ids[tp.topic] for tp in partitions}, outcome)

    def _check_topic_id(self, ids: Mapping[TopicPartition, str], outcome: str) -> None:
        for tp, now in ids.items():
            was = self._report.topic_ids.setdefault(tp.topic, now)
            if was and now and was != now:
                raise TopicRecreatedError(
                    topic_recreated_message(tp, was, now, where="this run", outcome=outcome)
                )

    def _check_positions(
        self, owned: Mapping[TopicPartition, OwnedPartition], bounds: Mapping[TopicPartition, tuple[int, int]]
    ) -> None:
        """Check that the positions are in their logs, which may be deleted or recreated at any time.

        Raises:
            DataExpiredError, TopicRecreatedError: a position is not in its log any more.
        """
        expired = {tp: bounds[tp][0] for tp, o in owned.items() if o.committed == o.position < bounds[tp][0]}
        if expired and self._settings.policy.on_data_loss == "write_off":
            self._pass_expired(owned, expired)
        for tp, o in owned.items():
            check_offset_in_log(tp, o.position, *bounds[tp])

    def _pass_expired(
        self, owned: Mapping[TopicPartition, OwnedPartition], starts: Mapping[TopicPartition, int]
    ) -> None:
        """Continue at the log starts between two batches, and report the expired offsets as lost."""
        lost = {tp: (Span(owned[tp].position, start),) for tp, start in starts.items()}
        self._catch_up_log().write_off(lost)
        if self._ledger is not None:
            self._ledger.add_known({tp: LedgerEntry(written_off=spans) for tp, spans in lost.items()})
        self._report.add_lost(lost, self._log)
        for tp in starts:
            owned[tp].committed = owned[tp].position = starts[tp]


def _with_owned(state: PartitionState, owned: OwnedPartition) -> PartitionState:
    """Return the state after the owner's next commit."""
    metadata = LiveCommitMetadata(
        OwnerState.RUNNING, "0" * 8, owned.pending, reprocess=owned.reprocess, origin=owned.origin
    )
    return replace(state, committed=owned.committed, live_metadata=metadata)


def _spans(tp: TopicPartition, ranges: Collection[OffsetRange]) -> tuple[Span, ...]:
    return tuple(r.span for r in ranges if r.topic_partition == tp)
