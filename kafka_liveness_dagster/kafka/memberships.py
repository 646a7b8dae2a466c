"""Is this consumer a member of its group, and by which membership? By one after the other: a fence ends each.

Joins when there is no membership, answers the group, and settles what it assigned. Never plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from kafka_liveness_dagster.core.heartbeat import RETRIED, FenceReason
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError, CommitRefusedError
from kafka_liveness_dagster.kafka.fence import Fence
from kafka_liveness_dagster.kafka.member import SERVE_SECONDS
from kafka_liveness_dagster.kafka.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kafka_liveness_dagster.core.heartbeat import PollTimer
    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.resume import Owned
    from kafka_liveness_dagster.kafka.link import RunLink
    from kafka_liveness_dagster.kafka.live import LiveLane
    from kafka_liveness_dagster.kafka.rebalance import Finish

Committed = TypeVar("Committed")


class Memberships:
    """The memberships of one consumer.

    Args:
        timer: the poll timer, and the run it works for (``link``): what its watchdog looks at.
        serves_while_busy: the group is answered all the time, on a thread of the watchdog's.
        join: makes a new member, once everything that can be checked was checked.
        outcome: of a batch whose membership has ended, as a clause of the error.

    Attributes:
        lane: what the last one works on; None before the first.
        watchdog: ends the one that goes on; ``fence``: what it raises.
    """

    def __init__(
        self,
        timer: PollTimer,
        link: RunLink,
        join: Callable[[], LiveLane],
        *,
        serves_while_busy: bool,
        outcome: str = RETRIED,
    ) -> None:
        self.lane: LiveLane | None = None
        serve = self.answer if serves_while_busy else None
        self.watchdog = Watchdog(timer, link, lambda _reason: None, serve, outcome)
        self.fence = Fence(self.watchdog, "the batch was planned before the consumer rejoined", begun=False)
        self._join, self._serves_while_busy = join, serves_while_busy
        self._before_revoke: Finish | None = None

    @property
    def owned(self) -> Mapping[TopicPartition, Owned]:
        """The settled partitions."""
        return {} if self.lane is None else self.lane.member.owned

    def before_revoke(self, finish: Finish) -> None:
        """Register what commits the open batches when a rebalance is about to take partitions of theirs.

        With ``liveness="progress"`` it is not called: there a rebalance never waits for a batch.

        Args:
            finish: gets what it has to call while it waits, which raises when it has to end: ``HandoverDueError`` when
                the group would soon throw this member out, ``FencedError`` when this process may not commit any more.

        Caller: ``poll``, in its caller's thread. Affects: a rebalance waits for it.
        """
        self._before_revoke = None if self._serves_while_busy else finish

    def serve(self, seconds: float | None = None) -> LiveLane:
        """Be a member: join when there is no membership, answer the group, settle what it assigned.

        Args:
            seconds: how long a member waits for news, None for a moment; who is none yet always does.
        """
        lane = self._joined()
        finish = None if self._before_revoke is None else self._hand_over
        lane.member.serve(SERVE_SECONDS if seconds is None or not lane.member.joined else seconds, finish)
        if not self._fence_if_ended(lane):
            self.fence.still_polling()
            try:
                lane.settle()
            except CommitRefusedError:
                if not self._fence_if_ended(lane):
                    raise
        return lane

    def answer(self) -> None:
        """Answer the group, if nobody does at this moment.

        Caller: ``heartbeat``, or the watchdog's answering thread. Affects: ownership, when there is a rebalance.
        """
        lane = self.lane
        if lane is not None:
            lane.member.serve_if_idle()
            self._fence_if_ended(lane)

    def with_group(self, commit: Callable[[LiveLane], Committed]) -> Committed:
        """Commit by the membership that goes on. A refusal says what it means: the fence goes up when it has ended.

        Raises:
            FencedError: it has, or had before.
        """
        lane = self.lane
        assert lane is not None  # noqa: S101 - it has a position
        try:
            committed = commit(lane)
        except BrokerUnreachableError:
            raise  # to wait for it once more, as a new member, would take as long again
        except BaseException:
            self._check(lane)  # says more than the broker's refusal
            raise
        self._check(lane)
        return committed

    def close(self, *, release: bool, why: FenceReason = FenceReason.CLOSED) -> None:
        """Leave for good; a fence that is up already says itself whether the partitions are released."""
        fenced = self.watchdog.reason  # its thread may be about to leave
        try:
            self.watchdog.stop(why)
        finally:
            if self.lane is not None:
                self.lane.member.leave(release=release if fenced is None else fenced.releases)

    def _joined(self) -> LiveLane:
        before = self.lane
        if before is not None and self.fence.still_polling():
            return before
        why = self.watchdog.reason or FenceReason.POLL_TIMEOUT
        if not why.may_rejoin:
            self.watchdog.check()
        if before is not None:
            before.leave(why)  # who raised the fence may not have come to it yet
        self.lane = self._join()
        self.fence.cut_off(why)
        self.watchdog.rearm(self.lane.leave)
        if before is None:
            self.watchdog.start()
        return self.lane

    def _check(self, lane: LiveLane) -> None:
        self._fence_if_ended(lane)
        self.watchdog.check()

    def _fence_if_ended(self, lane: LiveLane) -> bool:
        if lane.member.ended is not None:
            self.watchdog.fence(lane.member.ended, lane.leave)
        return lane.member.ended is not None

    def _hand_over(self, in_time: Callable[[], None]) -> None:
        def may_wait() -> None:
            self.fence.check()
            in_time()

        if self._before_revoke is not None:
            self._before_revoke(may_wait)
