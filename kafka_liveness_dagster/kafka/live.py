"""What does one membership work on? It settles the partitions that arrive and plans batches over what it owns.

Decides nothing (``core.resume`` and ``core.fairness`` do); what it settles is committed before any record of it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.fairness import Batch, plan
from kafka_liveness_dagster.core.heartbeat import FenceReason
from kafka_liveness_dagster.core.offsets import OffsetRange, Span
from kafka_liveness_dagster.core.resume import Owned, check_log, resume, still_owed
from kafka_liveness_dagster.failpoints import Failpoint, reach
from kafka_liveness_dagster.kafka.errors import FencedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from logging import Logger

    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.resume import Resumed
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.config import LiveSettings
    from kafka_liveness_dagster.kafka.member import Member

_FORGET_SECONDS = 60.0


class LiveLane:
    """The partitions of one member.

    Args:
        found: take the crash lag that this membership finds, and what expired unprocessed.
    """

    def __init__(
        self,
        cluster: Cluster,
        member: Member,
        live: LiveSettings,
        found: tuple[list[OffsetRange], list[OffsetRange]],
        log: Logger,
    ) -> None:
        self.member = member
        self._cluster, self._live, self._log = cluster, live, log
        self._jumped, self._lost = found
        self._forgot_at = self._planned_at = time.monotonic()

    def settle(self, poison: Collection[OffsetRange]) -> None:
        """Decide where arrived partitions go on, and make it durable before the first record of theirs.

        Args:
            poison: offsets that may not stop the live lane again: owed from now on.
        """
        arrived = dict(self.member.arrived)
        if not arrived:
            return
        reach(Failpoint.AFTER_JOIN)
        facts = self._cluster.facts(self._live.group_id, sorted(arrived))
        resumed = {tp: resume(tp, facts[tp], self._live.policy, _spans(tp, poison)) for tp in arrived}
        self.member.adopt(
            {tp: Owned(r.position, r.position, r.owed, arrived[tp], r.paused) for tp, r in resumed.items()}
        )
        for tp in (tp for tp in sorted(arrived) if tp in self.member.owned):
            reach(Failpoint.AFTER_TOKEN_COMMIT)
            self._tell(tp, resumed[tp])

    def plan(self, max_records: int, min_records: int, last: TopicPartition | None) -> Batch | None:
        """The next ranges of what is owned, None when there is less; they count as planned from now on."""
        self._planned_at = time.monotonic()
        owned = {tp: o for tp, o in dict(self.member.owned).items() if not o.paused}
        bounds = self._cluster.log_bounds(owned)
        for tp, o in owned.items():  # the log may be deleted, or made anew, under a live member too
            self._pass_expired(tp, o, bounds[tp][0])
            check_log(tp, o.position, *bounds[tp])
        pending = {tp: (Span(o.position, bounds[tp][1]),) for tp, o in owned.items()}
        if sum(span.size for (span,) in pending.values()) < min_records:
            return None
        ranges, last = plan(pending, max_records, last, greedy=self._live.greedy)
        for r in ranges:
            owned[r.topic_partition].position = r.end
        arrivals = {r.topic_partition: owned[r.topic_partition].arrival for r in ranges}
        return Batch(ranges, 0.0, last=last, arrivals=arrivals) if ranges else None

    def commit(
        self,
        spans: Mapping[TopicPartition, Span],
        arrivals: Mapping[TopicPartition, int],
        waiting: Callable[[], None],
    ) -> None:
        """Commit done spans; those that were handed over meanwhile are their new owner's to do again."""
        handed_over = self.member.commit(spans, arrivals, waiting)
        if handed_over:
            told = "handed over before the commit, replayed by the new owner: %s"
            self._log.info(told, ", ".join(map(str, handed_over)))

    def confirm(self, batch: Batch, waiting: Callable[[], None]) -> None:
        """Commit nothing new, unless something was planned so lately that nobody can have been given the batch since.

        Raises:
            FencedError: a part of it is another member's: all of it is planned again, as far as it is still ours.
            CommitRefusedError: the group goes on without this member.
        """
        if time.monotonic() - self._planned_at < self.member.sure_seconds and self.member.still_owns(batch.arrivals):
            return
        handed_over = self.member.confirm(batch.arrivals, waiting)
        if handed_over:
            for owned in dict(self.member.owned).values():
                owned.position = owned.committed
            names = ", ".join(map(str, handed_over))
            raise FencedError(FenceReason.PARTITIONS_LOST, f"{names} handed over before the batch was written")

    def hold(self, tp: TopicPartition, *, paused: bool) -> None:
        """Pause or resume an owned partition, for whoever owns it later too.

        Raises:
            CommitRefusedError: the mark could not be committed; nothing is paused or resumed.
        """
        owned = self.member.owned[tp]
        before, owned.paused = owned.paused, paused
        try:
            self.member.commit({tp: Span(owned.committed, owned.committed)}, {tp: owned.arrival})
        except BaseException:
            owned.paused = before
            raise

    def forget_done(self) -> None:
        """Now and then drop owed ranges that are done: the second log may expire before this member ends."""
        if time.monotonic() - self._forgot_at < _FORGET_SECONDS:
            return
        self._forgot_at = time.monotonic()
        owing = {tp: owned for tp, owned in dict(self.member.owned).items() if owned.owed}
        facts = self._cluster.facts(self._live.group_id, list(owing))
        for tp, owned in owing.items():
            owned.owed = still_owed(facts[tp].second, owned.owed)

    def _pass_expired(self, tp: TopicPartition, owned: Owned, log_start: int) -> None:
        """With ``on_data_loss="skip"``, between two batches: go on at the log start, and report what is gone."""
        if self._live.policy.on_data_loss == "skip" and owned.committed == owned.position < log_start:
            self._lose(tp, Span(owned.position, log_start))
            owned.committed = owned.position = log_start

    def _lose(self, tp: TopicPartition, lost: Span) -> None:
        self._lost.append(OffsetRange(*tp, *lost))
        told = "lost: %s, %d offsets, expired before it was processed; going on without it"
        self._log.error(told, self._lost[-1], lost.size)

    def _tell(self, tp: TopicPartition, resumed: Resumed) -> None:
        for lost in resumed.lost:
            self._lose(tp, lost)
        if resumed.paused:
            self._log.warning("%s is paused at %d, in both lanes: resume() lets it go on", tp, resumed.position)
        if resumed.skipped is not None:
            self._jumped.append(OffsetRange(*tp, *resumed.skipped))
            told = "crash lag %s, %d offsets, is owed and becomes a partition; live goes on at %d"
            self._log.warning(told, self._jumped[-1], resumed.skipped.size, resumed.position)
        if resumed.overflow is not None:
            told = "%s resumes in order at %d: its owed ranges are too many for a commit, or for max_owed_ranges"
            self._log.warning(told, tp, resumed.overflow.start)


def _spans(tp: TopicPartition, ranges: Collection[OffsetRange]) -> tuple[Span, ...]:
    return tuple(r.span for r in ranges if r.topic_partition == tp)
