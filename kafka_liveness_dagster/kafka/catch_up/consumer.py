"""The catch-up lane: process crash lag ranges in any order, with progress in the second commit log.

Reprocessing changes neither commit log: a run that dies leaves rows of both transforms, each offset's once.

Never a member of the live group: manual assignment has no group thread (KIP-62), its deadline is the
watchdog's. Two runs on one range do no harm: writes of the same range replace each other.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal
from weakref import WeakSet

from kafka_liveness_dagster.core.batch_planning import Batch, Rotation, plan
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.fencing import FenceReason, PollTimer
from kafka_liveness_dagster.core.names import listed
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition, difference, intersection, union
from kafka_liveness_dagster.core.partition_state import DataExpiredError, RowsMissingError
from kafka_liveness_dagster.failpoints import Failpoint, failpoint
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.catch_up.commit_log import SecondLog, by_partition, warn_of_external
from kafka_liveness_dagster.kafka.catch_up.completion import Proof
from kafka_liveness_dagster.kafka.delegated import delegated
from kafka_liveness_dagster.kafka.errors import FencedError
from kafka_liveness_dagster.kafka.live.planner import LANDED, Found
from kafka_liveness_dagster.kafka.record_reader import RecordReader, Records
from kafka_liveness_dagster.kafka.run_context import RunLink, now_ms
from kafka_liveness_dagster.kafka.watchdog import Fence, Watchdog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Self

    from kafka_liveness_dagster.core.partition_state import Witness
    from kafka_liveness_dagster.core.timeouts import Budget
    from kafka_liveness_dagster.kafka.catch_up.completion import Facts
    from kafka_liveness_dagster.kafka.live.assignment import Finish
    from kafka_liveness_dagster.kafka.live.planner import Recovery
    from kafka_liveness_dagster.kafka.settings import KafkaSettings


class Again:
    """The ranges of one catch-up run that are processed whole, whatever is owed of them.

    Args:
        ranges: some of those that the run was asked for; what of them was lost or forgiven stays so.
    """

    def __init__(self, ranges: Iterable[OffsetRange]) -> None:
        self._asked = by_partition(ranges)
        self._did: dict[TopicPartition, tuple[Span, ...]] = {}

    def left(self, facts: Facts) -> dict[TopicPartition, tuple[Span, ...]]:
        """What of them is still to be processed.

        Raises:
            DataExpiredError: the broker has deleted some of it; what is there stays.
        """
        left = {
            tp: difference(spans, (*self._did.get(tp, ()), *facts[tp].reported)) for tp, spans in self._asked.items()
        }
        gone = [
            OffsetRange(*tp, *span)
            for tp, spans in left.items()
            for span in intersection(spans, (Span(0, facts[tp].log_start),))
        ]
        if gone:
            at = gone[0].topic_partition
            raise DataExpiredError(
                f"{listed(gone)}, {sum(r.size for r in gone):,} offsets, are to be processed again and cannot be: "
                f"{at}'s log starts at {facts[at].log_start}. Their rows stay as they are. Fix: materialize the "
                "other partitions without these; `kafka-liveness write-off GROUP PARTITION --reason …` closes these"
            )
        return left

    def wrote(self, ranges: Iterable[OffsetRange]) -> None:
        """These are done, now."""
        for tp, spans in by_partition(ranges).items():
            self._did[tp] = union((*self._did.get(tp, ()), *spans))


_STAYS = "the batch stays pending: it is retried with the next poll, or by the next run of its partitions"
_open: WeakSet[CatchUpConsumer] = WeakSet()  # of this process
_opening = threading.Lock()  # a set that grows while it is read raises


def is_open(kafka: KafkaSettings, group_id: str) -> bool:
    """Return whether this process has a catch-up lane of the group open; clusters that share an address are one."""
    servers = set(kafka.bootstrap_servers.split(","))
    with _opening:
        return any(one.group_id == group_id and not servers.isdisjoint(one.servers) for one in _open)


class PausedPartitionError(KafkaLivenessError):
    """Only crash lag of paused partitions is left: ``pause`` holds both lanes (KIP-333)."""


class CatchUpConsumer:
    """Plans and commits what is outstanding of the asked ranges. Use it as a context manager.

    Args:
        ranges: crash lag ranges, in any order; parts that are done already are left out.
        again: those of them that are processed whole, done or not. Their rows are replaced, neither commit log changes.
        on_data_loss: offsets that expired before they were caught up are an error, or are recorded and reported.
        witness: who knows what is in the table; None where the two commit logs alone say what is done.

    Attributes:
        quarantined: offsets that were left out, each too slow for a batch of its own.
        bad: offsets that were left out, each of which fails alone.
        lost: what expired before it was caught up, with ``on_data_loss="write_off"``.
        recovered: ranges that a dead run had written and not recorded, and that this run does not write again.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        group_id: str,
        ranges: Sequence[OffsetRange],
        *,
        again: Sequence[OffsetRange] = (),
        max_poll_records: int,
        budget: Budget,
        link: RunLink,
        on_data_loss: Literal["raise", "write_off"] = "raise",
        witness: Witness | None = None,
    ) -> None:
        self.budget, self.group_id, self.servers = budget, group_id, frozenset(kafka.bootstrap_servers.split(","))
        self.quarantined: list[OffsetRange] = []
        self.bad: list[OffsetRange] = []
        self.lost: list[OffsetRange] = []
        self._found = Found()
        self.recovered = self._found.recovered
        self._asked, self._again = by_partition(ranges), Again(again)
        self._max_records, self._on_data_loss, self._log = max_poll_records, on_data_loss, link.log
        self._cluster = Cluster(kafka)
        self._proof = Proof(self._cluster, group_id, self._asked, witness)
        self._second = SecondLog(kafka, group_id, link.client_id)
        self._planned: dict[TopicPartition, tuple[Span, ...]] = {}
        self._rotation, self._unrecovered = Rotation(), set(self._asked)
        self._wrote: list[OffsetRange] = []
        self._timer = PollTimer(round(budget.seconds * 1000), now_ms(), link.ends_at_ms)
        self._watchdog = Watchdog(self._timer, link, lambda _reason: None, outcome=_STAYS)
        self._fence = Fence(self._watchdog, "the batch was planned before its process timeout", begun=True)
        self._reader = RecordReader(kafka, group_id, link.client_id)
        self._records = Records(self._reader, self._fence)

    check = delegated("_fence", Fence.check)
    check_open = delegated("_fence", Fence.check_open)
    is_open = delegated("_fence", Fence.is_open)
    on_fence = delegated("_fence", Fence.on_fence)
    heartbeat = delegated("_fence", Fence.heartbeat)
    records = delegated("_records", Records.records)
    check_room = delegated("_second", SecondLog.check_room)

    def __enter__(self) -> Self:
        try:
            facts = self._proof.look()
            self._second.check_owed(self._asked, facts)
            self._again.left(facts)
            # Nothing is written: they are noted, for the case that a later one has to be
            self._second.put({tp: (log, log) for tp, one in facts.items() if not (log := one.second).external})
        except BaseException:
            self.close()
            raise
        failpoint(Failpoint.AFTER_JOIN)
        self._watchdog.start()
        with _opening:
            _open.add(self)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _at: object) -> None:
        if isinstance(error, RowsMissingError):
            self._second.record_missing(error.ranges, self._log)
        self.close()

    def poll(self, max_records: int | None = None, *, ahead: bool = False) -> Batch | None:
        """The next batch of outstanding offsets, the oldest of each partition first; None when all is done.

        After a process timeout what was not committed is planned again.

        Args:
            max_records: a smaller bound for this batch than ``max_poll_records``.
            ahead: the batch before is not committed yet, so None says nothing of what was asked for.

        Raises:
            FencedError: the run is gone.
            DataExpiredError: offsets of the range were deleted by the broker's retention.
            TopicRecreatedError: the topic was made anew.
            RowsMissingError: the table lost what this run, or one before it, had written.
            PausedPartitionError: what is left may not be processed now.
        """
        while True:
            try:
                return self._next(max_records, ahead=ahead)
            except FencedError as fenced:  # its deadline has passed since the poll began
                if not fenced.reason.may_rejoin:
                    raise

    def _next(self, max_records: int | None, *, ahead: bool) -> Batch | None:
        began_ms = now_ms()
        self._begin_again_if_too_slow()
        facts = self._proof.known()
        if self._recover(facts):
            facts = self._proof.known()
        left, facts = self._outstanding(facts)
        pending = {tp: difference(left[tp], self._planned.get(tp, ())) for tp in left if not facts[tp].is_paused}
        bound = self._max_records if max_records is None else min(max_records, self._max_records)
        ranges, self._rotation.planned = plan(pending, bound, self._rotation.planned)
        if not ranges:
            if ahead:
                return None
            self._check_paused([tp for tp in left if facts[tp].is_paused and (left[tp] or tp in self._unrecovered)])
            if self._proof.holds((*self.quarantined, *self.bad)):
                self._second.record(self._wrote, self._watchdog.check)  # another run's record may have replaced it
                return None
            self._begin_again()
            return self._next(max_records, ahead=False)
        self._plan(ranges)
        deadline_seconds, planning_seconds = self._timer.left_ms(now_ms()) / 1000, (now_ms() - began_ms) / 1000
        of_now = (self._fence.epoch, self._rotation.planned)
        return Batch(ranges, deadline_seconds, *of_now, planning_seconds=planning_seconds)

    def on_recovered(self, repeat: Recovery) -> None:
        """Register what repeats the side effects that the dead writer of recovered ranges may have skipped.

        Caller: the first ``poll``, in its caller's thread. Affects: the ranges are recorded after it returned.
        """
        self._found.on_recovered = repeat

    def quarantine(self, poison: OffsetRange) -> None:
        """Leave an offset out that stops this lane: it stays owed, and another run may try it."""
        self.quarantined.append(poison)
        self._plan((poison,))

    def plan_again(self) -> None:
        """Plan what is not recorded again with the next poll, which reads the log's ends and the topic's id anew."""
        self._begin_again()

    def before_revoke(self, finish: Finish) -> None:
        """Nothing is ever revoked: there is no group."""

    def confirm(self, batch: Batch) -> None:  # noqa: ARG002 - the live lane's signature
        """Owed ranges have no owner: who writes one twice writes the same.

        Raises:
            FencedError: this process may not commit any more.
        """
        self._watchdog.check()

    def commit(self, batch: Batch) -> tuple[()]:
        """Record a processed batch in the second log; repeated when another run's write replaced it.

        Returns:
            Nothing: there is nobody to whom partitions are handed over.

        Raises:
            FencedError: this process may not commit any more.
            CommitRefusedError: the record did not last; the range stays owed and is processed again.
        """
        self.check_open(batch)
        self._proof.check_identity(batch.ranges)
        self._second.record(batch.done, self._watchdog.check)
        self._proof.wrote(batch.done)
        self._again.wrote(batch.done)
        self._wrote += batch.done
        self.bad += batch.left_out
        self._rotation.committed = batch.last
        return ()

    def outstanding_ranges(self) -> list[OffsetRange]:
        """What of the asked ranges is still to be done, by both commit logs and the table, or once more; sorted."""
        left, _ = self._outstanding(self._proof.known())
        return [OffsetRange(*tp, *span) for tp, spans in left.items() for span in spans]

    def done_ranges(self) -> list[OffsetRange]:
        """What of the asked ranges is processed by now, by whomever: neither owed, nor forgiven, nor lost."""
        return self._proof.done((*self.quarantined, *self.bad))

    def kept_ranges(self) -> list[OffsetRange]:
        """What this run left out although it was processed before: its former rows are in the table."""
        done = self._proof.done(())
        return [one for one in (*self.quarantined, *self.bad) if any(one.overlaps(before) for before in done)]

    def close(self) -> None:
        """Stop watching and disconnect; there is no group to leave."""
        with _opening:
            _open.discard(self)
        self._watchdog.stop()
        self._reader.close()
        self._second.close()

    def _outstanding(self, facts: Facts) -> tuple[dict[TopicPartition, tuple[Span, ...]], Facts]:
        left = {tp: facts[tp].left_of(spans) for tp, spans in self._asked.items()}
        expired = [
            OffsetRange(*tp, *span)
            for tp, spans in left.items()
            for span in intersection(spans, (Span(0, facts[tp].log_start),))
        ]
        if expired:
            self._lose(expired, facts)
            left = {tp: difference(spans, (Span(0, facts[tp].log_start),)) for tp, spans in left.items()}
        again = self._again.left(facts)
        return {tp: union((*spans, *again.get(tp, ()))) for tp, spans in left.items()}, facts

    def _lose(self, expired: list[OffsetRange], facts: Facts) -> None:
        first = expired[0]
        told = (
            f"{', '.join(map(str, expired))}: {sum(r.size for r in expired)} owed offsets expired before they were "
            f"caught up, {first.topic_partition}'s log starts at {facts[first.topic_partition].log_start}"
        )
        if self._on_data_loss == "raise":
            raise DataExpiredError(
                f"{told}. Raise the topic's retention. To go on without them: `kafka-liveness write-off "
                f"{self.group_id} {first} --reason …`, or on_data_loss='write_off'"
            )
        spans = by_partition(expired)
        self._second.tell(spans, self._watchdog.check)
        self._proof.lost(spans)
        self.lost += expired
        self._log.error("lost: %s; recorded as done", told)

    def _recover(self, facts: Facts) -> bool:
        """Record what the table had when this run began and no run has recorded since; once for each partition.

        A rebuilt second log is written after that, since it says that all of it is done.

        Returns:
            Whether it wrote anything.
        """
        due = sorted(tp for tp in self._unrecovered if not facts[tp].is_paused)
        spans = {tp: facts[tp].recovered(self._asked[tp]) for tp in due}
        rebuilt = {tp: intersection(facts[tp].rebuilt_done, self._asked[tp]) for tp in due}
        both = {tp: (*spans[tp], *rebuilt[tp]) for tp in due}
        if found := self._found.recover(both, {tp: facts[tp].log_start for tp in due}):
            self._begin_again_if_too_slow()  # what it took is not the next batch's
            self._log.warning(LANDED, listed(found), sum(r.size for r in found))
        logs = {tp: facts[tp].second for tp in due if facts[tp].second.external}
        if logs:
            self._second.put({tp: (log, self._proof.about(log)) for tp, log in logs.items()})
            warn_of_external(self._log, self.group_id, {tp: log.external for tp, log in logs.items()})
        recorded = {tp: done for tp, done in spans.items() if done and facts[tp].can_record(done)}
        if recorded:
            ranges = [OffsetRange(*tp, *span) for tp, done in recorded.items() for span in done]
            self._second.record(ranges, self._watchdog.check)
        self._unrecovered.difference_update(due)
        return bool(logs or recorded)

    def _check_paused(self, paused: list[TopicPartition]) -> None:
        if paused:
            raise PausedPartitionError(
                f"{', '.join(map(str, paused))} of group {self.group_id} is paused, and so is its crash lag: "
                "everything else that was asked for is done. resume() it in the live lane, then run this again"
            )

    def _begin_again_if_too_slow(self) -> None:
        if self._fence.still_polling():
            return
        self._fence.cut_off(FenceReason.POLL_TIMEOUT)
        self._begin_again()
        self._watchdog.rearm()

    def _begin_again(self) -> None:
        """What is not done comes again."""
        self._planned.clear()
        self._rotation.deal_again()
        self._plan((*self.quarantined, *self.bad))

    def _plan(self, ranges: Iterable[OffsetRange]) -> None:
        for r in ranges:
            self._planned[r.topic_partition] = union((*self._planned.get(r.topic_partition, ()), r.span))
