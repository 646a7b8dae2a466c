"""What may the live lane commit, and has it still the right to? Only what is its member's, in the order it was planned.

Never plans. Plain offsets are split between the two logs, as KIP-333 has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.commit_log import owed_before
from kafka_liveness_dagster.core.fairness import Batch
from kafka_liveness_dagster.core.offsets import OffsetRange, Span
from kafka_liveness_dagster.kafka.errors import CommitRefusedError, FencedError
from kafka_liveness_dagster.kafka.second_log import no_room

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kafka_liveness_dagster.core.fairness import Rotation
    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.resume import Owned
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.findings import Found
    from kafka_liveness_dagster.kafka.link import RunLink
    from kafka_liveness_dagster.kafka.memberships import Memberships
    from kafka_liveness_dagster.kafka.second_log import SecondLog


class Commits:
    """The commits of one consumer.

    Args:
        cluster: where the group is; ``group_id``: its name.
        memberships: by which it commits to the first log.
        rotation: is told whose turn it was in what is committed.
        found: where the live lane of this consumer began.
        second: the second log, opened when it has to be written.
        link: the run, which is told of its first commit.
    """

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        memberships: Memberships,
        rotation: Rotation,
        *,
        found: Found,
        second: Callable[[], SecondLog],
        link: RunLink,
    ) -> None:
        self._cluster, self._group_id, self._memberships = cluster, group_id, memberships
        self._rotation, self._found, self._second, self._link = rotation, found, second, link
        self._fence, self._told_work = memberships.fence, False

    def commit(self, done: Batch | Mapping[TopicPartition, int]) -> tuple[TopicPartition, ...]:
        """Commit a processed batch: position, mark and owed ranges in one request.

        Partitions that were handed over meanwhile are left to their new owner, who processes them again. Plain
        offsets are split by lane, as KIP-333 has it: "if an offset to be committed is within one of the offset lags
        created by a crash", it goes to the second commit log, the others to the first. The live lane's own commit
        changes nothing, though a pending range ends there: it does not show that anyone has read the range.

        Returns:
            The partitions that were handed over: nothing of them was committed.

        Raises:
            FencedError: this process may not commit any more.
            CommitRefusedError: the broker refused, the batch is out of order, or an offset belongs to neither lane.
                Nothing was lost.
        """
        self._fence.check()
        if not isinstance(done, Batch):
            return self._commit_offsets(done)
        self._fence.check_epoch(done)
        handed_over = self._commit_live(done.spans, done.arrivals, done.owing)
        self._rotation.committed = done.last
        if not self._told_work:
            self._told_work = True
            self._link.worked()
        return handed_over

    def confirm(self, batch: Batch) -> None:
        """Ask the broker whether an open batch is still this member's: a process that was frozen cannot know.

        Raises:
            FencedError: others have it by now, or this process may not commit any more.
        """
        self._fence.check_open(batch)
        try:
            self._memberships.with_group(lambda lane: lane.confirm(batch, self._fence.heartbeat))
        except FencedError as fenced:  # what was planned after it comes again too
            self._fence.cut_off(fenced.reason)
            raise

    def check_room(self, batch: Batch) -> None:
        """Ask whether the commit of this batch can say what it leaves out, before that is passed.

        Raises:
            BadRecordError: it cannot.
            FencedError: this process may not commit any more.
        """
        self._fence.check_open(batch)
        if not all(owned.has_room(batch.owing(tp)) for tp, owned in dict(self._memberships.owned).items()):
            raise no_room(batch.left_out)

    def _commit_offsets(self, offsets: Mapping[TopicPartition, int]) -> tuple[TopicPartition, ...]:
        held = dict(self._memberships.owned)
        new = {tp: offset for tp, offset in offsets.items() if tp not in held or offset != held[tp].committed}
        facts = self._cluster.facts(self._group_id, list(new))
        pending = {tp: one.outstanding for tp, one in facts.items()}
        owed = {tp: owed_before(offset, pending[tp], self._found.began.get(tp, ())) for tp, offset in new.items()}
        mine = {tp: self._in_hand(tp, offset, pending[tp]) for tp, offset in new.items() if owed[tp] is None}
        if caught_up := [OffsetRange(*tp, *span) for tp, span in owed.items() if span is not None]:
            self._second().record(caught_up, self._fence.check)
        if not mine:
            return ()
        spans = {tp: Span(owned.committed, new[tp]) for tp, owned in mine.items()}
        return self._commit_live(spans, {tp: owned.arrival for tp, owned in mine.items()})

    def _in_hand(self, tp: TopicPartition, offset: int, pending: tuple[Span, ...]) -> Owned:
        """The ownership that ``offset`` lies in; counted from this member's own commit, which may have skipped data."""
        owned = self._memberships.owned.get(tp)
        if behind := [span for span in pending if span.start < offset <= span.end]:
            raise CommitRefusedError(
                f"offset {offset} of {tp} is where the live lane went on behind {behind[0]}: it does not show that "
                f"these {behind[0].size:,} offsets were read. Nothing was committed, in either log. Fix: commit the "
                "batches of kafka.catch_up, which record the whole range, or an offset inside of it"
            )
        if owned is None or not owned.committed <= offset <= owned.position:
            raise CommitRefusedError(
                f"commit of offset {offset} of {tp}: it is not in this consumer's hands, whose position is "
                f"{owned.position if owned else None} and whose commit {owned.committed if owned else None}. Commit "
                "what poll() gave; nothing was committed, in either log"
            )
        return owned

    def _commit_live(
        self,
        spans: Mapping[TopicPartition, Span],
        arrivals: Mapping[TopicPartition, int],
        left_out: Callable[[TopicPartition], tuple[Span, ...]] = lambda _: (),
    ) -> tuple[TopicPartition, ...]:
        # the work is done: waiting for the group is no stall
        return self._memberships.with_group(lambda lane: lane.commit(spans, arrivals, self._fence.heartbeat, left_out))
