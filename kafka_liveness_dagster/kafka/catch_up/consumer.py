"""The catch-up lane: process crash lag ranges in any order, with progress in the catch-up commit log.

Reprocessing changes neither commit log. If its run dies, the table has rows of both transforms, one version
of each offset.

Never a member of the live group: manual assignment has no group thread (KIP-62), so the watchdog keeps the
deadline. Two runs on one range do no harm, because writes of the same range replace each other.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal
from weakref import WeakSet

from kafka_liveness_dagster.core.batch_planning import Batch, Rotation, plan_ranges
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.fencing import FenceReason, PollTimer
from kafka_liveness_dagster.core.names import join_some
from kafka_liveness_dagster.core.offsets import (
    OffsetRange,
    Span,
    TopicPartition,
    difference,
    intersection,
    union,
)
from kafka_liveness_dagster.core.partition_state import DataExpiredError, RowsMissingError
from kafka_liveness_dagster.failpoints import Failpoint, failpoint
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.batch_consumer import BatchConsumer
from kafka_liveness_dagster.kafka.catch_up.commit_log import (
    CatchUpCommitLog,
    spans_by_partition,
    warn_about_external_commits,
)
from kafka_liveness_dagster.kafka.catch_up.completion import CompletionCheck
from kafka_liveness_dagster.kafka.errors import FencedError
from kafka_liveness_dagster.kafka.live.planner import WRITTEN_UNCOMMITTED_LINE, ResumeReport
from kafka_liveness_dagster.kafka.record_reader import RecordReader
from kafka_liveness_dagster.kafka.run_context import RunContext, now_ms
from kafka_liveness_dagster.kafka.watchdog import Fence, Watchdog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Self

    from kafka_liveness_dagster.core.sink_ledger import LaneLedger
    from kafka_liveness_dagster.core.timeouts import RunBudget
    from kafka_liveness_dagster.kafka.catch_up.completion import PartitionStates
    from kafka_liveness_dagster.kafka.live.assignment import Finish
    from kafka_liveness_dagster.kafka.live.planner import OnRecovered
    from kafka_liveness_dagster.kafka.settings import KafkaSettings


class Reprocess:
    """The ranges of one catch-up run that are processed completely, whether pending or done.

    Args:
        ranges: some of the run's requested ranges; their lost and written-off offsets stay closed.
    """

    def __init__(self, ranges: Iterable[OffsetRange]) -> None:
        self._requested = spans_by_partition(ranges)
        self._written: dict[TopicPartition, tuple[Span, ...]] = {}

    def remaining(self, states: PartitionStates) -> dict[TopicPartition, tuple[Span, ...]]:
        """Return the offsets that are still to be processed.

        Raises:
            DataExpiredError: the broker has deleted some of them; their rows stay unchanged.
        """
        left = {
            tp: difference(spans, (*self._written.get(tp, ()), *states[tp].written_off))
            for tp, spans in self._requested.items()
        }
        gone = [
            OffsetRange(*tp, *span)
            for tp, spans in left.items()
            for span in intersection(spans, (Span(0, states[tp].log_start),))
        ]
        if gone:
            at = gone[0].topic_partition
            raise DataExpiredError(
                f"{join_some(gone)}, {sum(r.size for r in gone):,} offsets, cannot be processed again: "
                f"{at}'s log starts at {states[at].log_start}. Their rows stay as they are. Fix: "
                "materialize the other partitions without these; close these with `kafka-liveness "
                "write-off GROUP PARTITION --reason …`"
            )
        return left

    def mark_written(self, ranges: Iterable[OffsetRange]) -> None:
        """Record that these ranges are processed now."""
        for tp, spans in spans_by_partition(ranges).items():
            self._written[tp] = union((*self._written.get(tp, ()), *spans))


_REMAINS_PENDING = (
    "the batch stays pending: it is retried with the next poll, or by the next run of its partitions"
)
_open_lanes: WeakSet[CatchUpConsumer] = WeakSet()  # of this process
_open_lanes_lock = threading.Lock()  # a set that grows while it is read raises


def is_open(kafka: KafkaSettings, group_id: str) -> bool:
    """Return whether this process has a catch-up lane of the group open.

    Clusters that share an address are one.
    """
    servers = set(kafka.bootstrap_servers.split(","))
    with _open_lanes_lock:
        return any(one.group_id == group_id and not servers.isdisjoint(one.servers) for one in _open_lanes)


class PausedPartitionError(KafkaLivenessError):
    """Only crash lag of paused partitions remains; ``pause`` stops both lanes (KIP-333)."""


class CatchUpConsumer(BatchConsumer):
    """The consumer of the catch-up lane, for outstanding offsets of requested ranges.

    Use it as a context manager.

    Args:
        ranges: crash lag ranges, in any order; parts that are already done are left out.
        reprocess: ranges that are processed completely, done or not. Their rows are replaced; neither commit
            log changes.
        on_data_loss: whether offsets that expired before they were caught up raise an error, or are recorded
            and reported.
        ledger: ledger of the target's offsets; None if both commit logs decide alone.

    Attributes:
        quarantined: offsets that were left out because each is too slow even in a batch of its own.
        bad_offsets: offsets that were left out because each fails even alone.
        lost: ranges that expired before they were caught up, with ``on_data_loss="write_off"``.
        recovered: ranges that a dead run had written and not recorded; this run does not write them again.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        group_id: str,
        ranges: Sequence[OffsetRange],
        *,
        reprocess: Sequence[OffsetRange] = (),
        max_poll_records: int,
        budget: RunBudget,
        run_context: RunContext,
        on_data_loss: Literal["raise", "write_off"] = "raise",
        ledger: LaneLedger | None = None,
    ) -> None:
        self.budget = budget
        self.group_id = group_id
        self.servers = frozenset(kafka.bootstrap_servers.split(","))
        self.quarantined: list[OffsetRange] = []
        self.bad_offsets: list[OffsetRange] = []
        self.lost: list[OffsetRange] = []
        self._resume_report = ResumeReport()
        self.recovered = self._resume_report.recovered
        self._requested = spans_by_partition(ranges)
        self._reprocess = Reprocess(reprocess)
        self._max_records = max_poll_records
        self._on_data_loss = on_data_loss
        self._run_log = run_context.log
        self._cluster = Cluster(kafka)
        self._completion = CompletionCheck(self._cluster, group_id, self._requested, ledger=ledger)
        self._catch_up_log = CatchUpCommitLog(
            kafka, group_id, run_context.client_id, target=ledger.target if ledger else None
        )
        self._planned: dict[TopicPartition, tuple[Span, ...]] = {}
        self._rotation = Rotation()
        self._unrecovered = set(self._requested)
        self._written: list[OffsetRange] = []
        self._timer = PollTimer(round(budget.seconds * 1000), now_ms(), run_context.ends_at_ms)
        self._watchdog = Watchdog(self._timer, run_context, lambda _reason: None, outcome=_REMAINS_PENDING)
        fence = Fence(self._watchdog, "the batch was planned before its process timeout", has_started=True)
        super().__init__(fence, RecordReader(kafka, group_id, run_context.client_id))

    def __enter__(self) -> Self:
        try:
            states = self._completion.read_all()
            self._catch_up_log.require_pending(self._requested, states)
            self._reprocess.remaining(states)
            # Equal logs are not written; this only keeps them, in case an external commit replaces them later
            self._catch_up_log.write(
                {tp: (log, log) for tp, one in states.items() if not (log := one.catch_up_log).external}
            )
        except BaseException:
            self.close()
            raise
        failpoint(Failpoint.AFTER_JOIN)
        self._watchdog.start()
        with _open_lanes_lock:
            _open_lanes.add(self)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _at: object) -> None:
        if isinstance(error, RowsMissingError):
            self._catch_up_log.mark_missing_rows(error.ranges, self._run_log, self._completion.topic_ids)
        self.close()

    def require_room(self, batch: Batch) -> None:
        """Check that the catch-up commit log can record which offsets of a batch are done and which are not.

        Raises:
            BadRecordError: the commit metadata has no room; nothing was written.
        """
        self._catch_up_log.require_room(batch)

    def poll(self, max_records: int | None = None, *, ahead: bool = False) -> Batch | None:
        """Return the next outstanding batch, each partition's oldest offsets first; None if all is done.

        After a process timeout uncommitted ranges are planned again.

        Args:
            max_records: smaller bound for this batch than ``max_poll_records``.
            ahead: whether the batch before is not committed yet. None then does not mean that all is done.

        Raises:
            FencedError: the run has ended.
            DataExpiredError: the broker's retention deleted offsets of the range.
            TopicRecreatedError: the topic was recreated.
            RowsMissingError: the table lost rows that this run, or one before it, had written.
            PausedPartitionError: all remaining partitions are paused.
        """
        while True:
            try:
                return self._next(max_records, ahead=ahead)
            except FencedError as fenced:  # the deadline passed after the poll began
                if not fenced.reason.may_rejoin:
                    raise

    def _next(self, max_records: int | None, *, ahead: bool) -> Batch | None:
        began_ms = now_ms()
        self._replan_if_too_slow()
        states = self._completion.read_commits()
        if self._recover_unrecorded(states):
            states = self._completion.read_commits()
        left, states = self._update_outstanding(states)
        pending = {
            tp: difference(left[tp], self._planned.get(tp, ())) for tp in left if not states[tp].is_paused
        }
        bound = self._max_records if max_records is None else min(max_records, self._max_records)
        ranges, self._rotation.planned = plan_ranges(pending, bound, self._rotation.planned)
        if not ranges:
            if ahead:
                return None
            self._check_paused(
                [tp for tp in left if states[tp].is_paused and (left[tp] or tp in self._unrecovered)]
            )
            if self._completion.verify((*self.quarantined, *self.bad_offsets)):
                # Another run's record may have replaced this run's, so it is written again
                self._catch_up_log.mark_done(self._written, self._watchdog.check)
                return None
            self._reset_plan()
            return self._next(max_records, ahead=False)
        self._mark_planned(ranges)
        deadline_seconds = self._timer.remaining_ms(now_ms()) / 1000
        planning_seconds = (now_ms() - began_ms) / 1000
        every = sum(span.size for spans in pending.values() for span in spans)
        return Batch(
            ranges,
            deadline_seconds,
            self._fence.epoch,
            rotation_start=self._rotation.planned,
            planning_seconds=planning_seconds,
            offsets_left=every - sum(one.size for one in ranges),
        )

    def on_recovered(self, callback: OnRecovered) -> None:
        """Register a callback that repeats side effects which the dead writer of recovered ranges may lack.

        Caller: the first ``poll``, in its caller's thread. Affects: the ranges, which are recorded after it
        returned.
        """
        self._resume_report.on_recovered = callback

    def quarantine(self, poison: OffsetRange) -> None:
        """Leave out an offset that stops this lane; it stays pending for another run."""
        self.quarantined.append(poison)
        self._mark_planned((poison,))

    def replan(self) -> None:
        """Plan unrecorded ranges again with the next poll, which reads log bounds and topic id again."""
        self._reset_plan()

    def before_revoke(self, callback: Finish) -> None:
        """Do nothing: without a group no partition is ever revoked."""

    def confirm(self, batch: Batch) -> None:  # noqa: ARG002 - the live lane's signature
        """Check the fence only: pending ranges have no owner, and a second write of a range replaces it.

        Raises:
            FencedError: this process may not commit any more.
        """
        self._watchdog.check()

    def commit(self, batch: Batch) -> tuple[()]:
        """Record a processed batch in the catch-up commit log; repeat if another run's write replaced it.

        Returns:
            Always empty, because no partitions are handed over.

        Raises:
            FencedError: this process may not commit any more.
            CommitRefusedError: other runs' writes replaced the record; the range stays pending and is
                processed again.
        """
        self.check_batch(batch)
        self._completion.check_identity(batch.ranges)
        self._catch_up_log.mark_done(batch.processed, self._watchdog.check)
        self._completion.mark_written(batch.processed)
        self._reprocess.mark_written(batch.processed)
        self._written += batch.processed
        self.bad_offsets += batch.skipped
        self._rotation.committed = batch.rotation_start
        return ()

    def outstanding_ranges(self) -> list[OffsetRange]:
        """Return the requested ranges still to be processed or reprocessed, sorted.

        Both commit logs and the table decide.
        """
        left, _ = self._update_outstanding(self._completion.read_commits())
        return [OffsetRange(*tp, *span) for tp, spans in left.items() for span in spans]

    def done_ranges(self) -> list[OffsetRange]:
        """Return the requested ranges that are processed: neither pending, nor written off, nor lost."""
        return self._completion.done_ranges((*self.quarantined, *self.bad_offsets))

    def kept_former_rows(self) -> list[OffsetRange]:
        """Return the left-out ranges that were processed before; the table keeps their former rows."""
        done = self._completion.done_ranges(())
        return [
            one
            for one in (*self.quarantined, *self.bad_offsets)
            if any(one.overlaps(before) for before in done)
        ]

    def close(self) -> None:
        """Stop watching and disconnect; there is no group to leave."""
        with _open_lanes_lock:
            _open_lanes.discard(self)
        self._watchdog.stop()
        self._reader.close()
        self._catch_up_log.close()

    def _update_outstanding(
        self, states: PartitionStates
    ) -> tuple[dict[TopicPartition, tuple[Span, ...]], PartitionStates]:
        left = {tp: states[tp].not_done(spans) for tp, spans in self._requested.items()}
        expired = [
            OffsetRange(*tp, *span)
            for tp, spans in left.items()
            for span in intersection(spans, (Span(0, states[tp].log_start),))
        ]
        if expired:
            self._write_off_expired(expired, states)
            left = {tp: difference(spans, (Span(0, states[tp].log_start),)) for tp, spans in left.items()}
        again = self._reprocess.remaining(states)
        return {tp: union((*spans, *again.get(tp, ()))) for tp, spans in left.items()}, states

    def _write_off_expired(self, expired: list[OffsetRange], states: PartitionStates) -> None:
        first = expired[0]
        told = (
            f"{', '.join(map(str, expired))}: {sum(r.size for r in expired)} pending offsets expired before "
            f"they were caught up, {first.topic_partition}'s log starts at "
            f"{states[first.topic_partition].log_start}"
        )
        if self._on_data_loss == "raise":
            raise DataExpiredError(
                f"{told}. Nothing more was written or committed. Fix: raise the topic's retention. To "
                f"continue without them, run `kafka-liveness write-off {self.group_id} {first} --reason "
                "…`, or set on_data_loss='write_off'"
            )
        spans = spans_by_partition(expired)
        self._catch_up_log.write_off(spans, self._watchdog.check)
        self._completion.write_off(spans)
        self.lost += expired
        self._run_log.error("DATA LOSS: %s. Recorded as done, and reported as lost", told)

    def _recover_unrecorded(self, states: PartitionStates) -> bool:
        """Record offsets that the table had when this run began and that no run has recorded since.

        Done once for each partition. A rebuilt catch-up commit log is written after the recovery, because it
        marks all of these offsets as done.

        Returns:
            Whether a commit log was written.
        """
        due = sorted(tp for tp in self._unrecovered if not states[tp].is_paused)
        spans = {tp: states[tp].unrecorded_of(self._requested[tp]) for tp in due}
        rebuilt = {tp: intersection(states[tp].done_in_rebuilt_log, self._requested[tp]) for tp in due}
        both = {tp: (*spans[tp], *rebuilt[tp]) for tp in due}
        if found := self._resume_report.recover(both, {tp: states[tp].log_start for tp in due}):
            self._replan_if_too_slow()  # the time of the recovery does not count against the next batch
            self._run_log.warning(WRITTEN_UNCOMMITTED_LINE, join_some(found), sum(r.size for r in found))
        has_rebuilt = self._write_rebuilt_logs(due, states)
        recorded = {tp: done for tp, done in spans.items() if done and states[tp].can_record(done)}
        if recorded:
            ranges = [OffsetRange(*tp, *span) for tp, done in recorded.items() for span in done]
            self._catch_up_log.mark_done(ranges, self._watchdog.check)
        self._unrecovered.difference_update(due)
        return has_rebuilt or bool(recorded)

    def _write_rebuilt_logs(self, partitions: Sequence[TopicPartition], states: PartitionStates) -> bool:
        """Write the catch-up commit logs that external commits replaced; return whether there are any."""
        logs = {tp: states[tp].catch_up_log for tp in partitions if states[tp].catch_up_log.external}
        if logs:
            self._catch_up_log.write(
                {tp: (log, self._completion.with_target(log)) for tp, log in logs.items()}
            )
            warn_about_external_commits(
                self._run_log, self.group_id, {tp: log.external for tp, log in logs.items()}
            )
        return bool(logs)

    def _check_paused(self, paused: list[TopicPartition]) -> None:
        if paused:
            raise PausedPartitionError(
                f"{', '.join(map(str, paused))} of group {self.group_id} is paused, and so is its crash "
                "lag. All other selected offsets are done. Fix: resume() it in the live lane, then run "
                "this again"
            )

    def _replan_if_too_slow(self) -> None:
        if self._fence.record_poll():
            return
        self._fence.start_epoch(FenceReason.POLL_TIMEOUT)
        self._reset_plan()
        self._watchdog.reset()

    def _reset_plan(self) -> None:
        """Reset the plan, so that outstanding ranges are planned again."""
        self._planned.clear()
        self._rotation.reset()
        self._mark_planned((*self.quarantined, *self.bad_offsets))

    def _mark_planned(self, ranges: Iterable[OffsetRange]) -> None:
        for r in ranges:
            self._planned[r.topic_partition] = union((*self._planned.get(r.topic_partition, ()), r.span))
