"""What may the live lane commit, and has it still the right to? Only what is its member's, in the order it was planned.

Never plans. A refusal says what it means and fences when the group goes on without this member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from kafka_liveness_dagster.core.fairness import Batch
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError, FencedError
from kafka_liveness_dagster.kafka.view import TwoLanes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kafka_liveness_dagster.core.heartbeat import FenceReason
    from kafka_liveness_dagster.core.offsets import Span, TopicPartition
    from kafka_liveness_dagster.kafka.live import LiveLane


Committed = TypeVar("Committed")


class Commits(TwoLanes):
    """The commits of a consumer, its view of both logs included."""

    _epoch: int
    _ended_by: FenceReason
    _last_committed: TopicPartition | None
    _told_work = False

    def commit(self, done: Batch | Mapping[TopicPartition, int]) -> tuple[TopicPartition, ...]:
        """Commit a processed batch: position, mark and owed ranges in one request.

        Partitions that were handed over meanwhile are left to their new owner, who processes them again. Plain
        offsets are split by lane, as KIP-333 has it: "if an offset to be committed is within one of the offset lags
        created by a crash", it goes to the second commit log, the others to the first.

        Returns:
            The partitions that were handed over: nothing of them was committed.

        Raises:
            FencedError: this process may not commit any more.
            CommitRefusedError: the broker refused, or the batch is out of order. Nothing was lost.
        """
        self._watchdog.check()
        if isinstance(done, Batch):
            self._check_epoch(done)
            handed_over = self._commit_live(done.spans, done.arrivals)
            self._last_committed = done.last
            if not self._told_work:
                self._told_work = True
                self._link.worked()
            return handed_over
        return self._commit_offsets(done)

    def confirm(self, batch: Batch) -> None:
        """Ask the broker whether an open batch is still this member's: a process that was frozen cannot know.

        Raises:
            FencedError: others have it by now, or this process may not commit any more.
        """
        self._watchdog.check()
        self._check_epoch(batch)
        try:
            self._with_group(lambda lane: lane.confirm(batch, self._watchdog.polled))
        except FencedError as fenced:  # what was planned after it comes again too
            self._epoch, self._ended_by = self._epoch + 1, fenced.reason
            raise

    def _check_epoch(self, batch: Batch) -> None:
        if self._lane is None or batch.epoch != self._epoch:
            raise FencedError(self._ended_by, "the batch was planned before the consumer rejoined")

    def _commit_live(
        self, spans: Mapping[TopicPartition, Span], arrivals: Mapping[TopicPartition, int]
    ) -> tuple[TopicPartition, ...]:
        # the work is done: waiting for the group is no stall
        return self._with_group(lambda lane: lane.commit(spans, arrivals, self._watchdog.polled))

    def _with_group(self, commit: Callable[[LiveLane], Committed]) -> Committed:
        lane = self._lane
        assert lane is not None  # noqa: S101 - it has a position
        unreachable = False
        try:
            return commit(lane)
        except BrokerUnreachableError:
            unreachable = True  # to wait for it once more, as a new member, would take as long again
            raise
        finally:
            if not unreachable:
                self._fence_if_ended(lane)
                self._watchdog.check()  # says more than the broker's refusal

    def _fence_if_ended(self, lane: LiveLane) -> bool:
        if lane.member.ended is not None:
            self._watchdog.fence(lane.member.ended, lane.leave)
        return lane.member.ended is not None
