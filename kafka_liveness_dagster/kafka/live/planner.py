"""Settle the partitions that are assigned to a member, and plan batches over them.

Decides nothing (``core.resume`` and ``core.batch_planning`` do); what it settles is committed before any record of it:
first to the second log, which may not say of another life of the group what this one still has to do.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from kafka_liveness_dagster.core.batch_planning import Batch, Wanted, plan
from kafka_liveness_dagster.core.commit_metadata import LiveMark, Mark
from kafka_liveness_dagster.core.fencing import FenceReason
from kafka_liveness_dagster.core.ledger import Account
from kafka_liveness_dagster.core.names import listed
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition, difference, intersection
from kafka_liveness_dagster.core.partition_state import TopicRecreatedError, check_log, recreated
from kafka_liveness_dagster.core.resume import Owned, resume, still_owed
from kafka_liveness_dagster.failpoints import Failpoint, failpoint
from kafka_liveness_dagster.kafka.catch_up.commit_log import warn_of_external
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError, FencedError
from kafka_liveness_dagster.kafka.partition_states import witnessed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from logging import Logger

    from kafka_liveness_dagster.core.batch_planning import Rotation
    from kafka_liveness_dagster.core.commit_metadata import DoneLog
    from kafka_liveness_dagster.core.partition_state import PartitionFacts, Witness
    from kafka_liveness_dagster.core.resume import Resumed
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.catch_up.commit_log import SecondLog
    from kafka_liveness_dagster.kafka.live.member import Member
    from kafka_liveness_dagster.kafka.settings import LiveSettings


CRASH_LAG = "crash lag %s, %d offsets, is owed, a partition for each range; live goes on behind it"
FORGOTTEN = (
    "%s, %d offsets, is below the committed offset and neither in the table nor owed: somebody's commit replaced what "
    "was owed, or the table lost it. It is owed again, a partition for each range"
)
LANDED = "recovered %s, %d offsets, from the table: a run died after it wrote them and before it committed them"
LOST = "lost: %s, %d offsets, expired before it was processed; going on without it"
IN_ORDER = "resumes in order, since there are too many owed ranges for a commit, or for max_ranges of CrashLag: %s"
PAUSED = "paused in both lanes until resume() lets it go on: %s"


class Recovery(Protocol):
    """Repeats what a dead writer of rows may have skipped between the table's commit and the commit of the offsets."""

    def __call__(self, ranges: Sequence[OffsetRange], deleted: Sequence[OffsetRange], /) -> None:
        """Repeat it for ``ranges``; the broker has ``deleted`` the records of the others."""


@dataclass
class Found:
    """What one consumer found.

    Attributes:
        jumped: crash lag, in the order of finding.
        lost: what expired before it was processed.
        forgotten: what is owed again: the commit that said so was replaced, or the table has lost it.
        recovered: ranges that were in the table and in neither commit log.
        on_recovered: repeats what their dead writer may have skipped; called before they are committed.
        debts: what this consumer last wrote down as owed, of each partition it ever had.
        topic_ids: of the topics as it first saw them.
        began: positions at which its live lane began to read, as far as they matter: the last, and those inside of
            crash lag.
    """

    jumped: list[OffsetRange] = field(default_factory=list)
    lost: list[OffsetRange] = field(default_factory=list)
    forgotten: list[OffsetRange] = field(default_factory=list)
    recovered: list[OffsetRange] = field(default_factory=list)
    on_recovered: Recovery | None = None
    debts: dict[TopicPartition, tuple[Span, ...]] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    began: dict[TopicPartition, frozenset[int]] = field(default_factory=dict)

    def recover(
        self, spans: Mapping[TopicPartition, Iterable[Span]], log_starts: Mapping[TopicPartition, int]
    ) -> list[OffsetRange]:
        """Repeat what the dead writer of these offsets may have skipped, once.

        Args:
            spans: offsets that are in the table and in neither commit log; the caller commits them after this.
            log_starts: the broker has deleted what lies below.

        Returns:
            The ranges of which it was repeated now. Nothing is logged yet: a slow handler would hold up the group.
        """
        known = self.recovered
        new = {tp: difference(found, [r.span for r in known if r.topic_partition == tp]) for tp, found in spans.items()}
        ranges = _ranges(new)
        if not ranges:
            return []
        if self.on_recovered is not None:
            deleted = {tp: intersection(found, (Span(0, log_starts[tp]),)) for tp, found in new.items()}
            there = {tp: difference(found, deleted[tp]) for tp, found in new.items()}
            self.on_recovered(_ranges(there), _ranges(deleted))
        self.recovered += ranges
        return ranges

    def tell(self, settled: Mapping[TopicPartition, Resumed], log: Logger) -> None:
        """These partitions were settled."""
        self.debts.update({tp: resumed.owed for tp, resumed in settled.items()})
        self.began.update({tp: self._began(tp, resumed) for tp, resumed in settled.items()})
        self.lose({tp: resumed.lost for tp, resumed in settled.items()}, log)
        forgotten = _ranges({tp: resumed.forgotten for tp, resumed in settled.items()})
        jumped = _ranges({tp: resumed.crash_lag for tp, resumed in settled.items()})
        landed = _ranges({tp: resumed.landed for tp, resumed in settled.items()})
        self.forgotten += forgotten
        self.jumped += jumped
        for told, ranges in ((LANDED, landed), (FORGOTTEN, forgotten), (CRASH_LAG, jumped)):
            if ranges:
                log.warning(told, listed(ranges), sum(found.size for found in ranges))
        paused = [f"{tp} at {resumed.position}" for tp, resumed in settled.items() if resumed.paused]
        in_order = [f"{tp} at {resumed.overflow.start}" for tp, resumed in settled.items() if resumed.overflow]
        for told, partitions in ((PAUSED, paused), (IN_ORDER, in_order)):
            if partitions:
                log.warning(told, listed(partitions))

    def lose(self, spans: Mapping[TopicPartition, Iterable[Span]], log: Logger) -> None:
        """These offsets expired before they were processed."""
        self.lost += (lost := _ranges(spans))
        if lost:
            log.error(LOST, listed(lost), sum(found.size for found in lost))

    def _began(self, tp: TopicPartition, resumed: Resumed) -> frozenset[int]:
        before = self.began.get(tp, ())
        inside = {start for start in before if any(span.start < start < span.end for span in resumed.owed)}
        return frozenset({*inside, resumed.position})


def _ranges(spans: Mapping[TopicPartition, Iterable[Span]]) -> list[OffsetRange]:
    return [OffsetRange(*tp, *span) for tp, found in spans.items() for span in found]


_FORGET_SECONDS = 60.0
BEYOND = (
    "Ignored pending offsets in the first commit log of group %s, at or above its committed offset, which the live "
    "lane reads: %s"
)


class LiveLane:
    """The partitions of one member.

    Args:
        found: takes what this membership comes upon.
        poison: offsets that may not stop the live lane again: owed as soon as they are settled.
        rotation: whose turn it is.
        second: the second log, opened when it has to be written.

    Attributes:
        waits_since: by ``time.monotonic``, when offsets were first seen that are in no batch yet; None with none.
    """

    def __init__(
        self,
        cluster: Cluster,
        member: Member,
        live: LiveSettings,
        *,
        found: Found,
        poison: Collection[OffsetRange],
        rotation: Rotation,
        second: Callable[[], SecondLog],
        log: Logger,
    ) -> None:
        self.member = member
        self._cluster, self._live, self._log = cluster, live, log
        self._found, self._poison, self._rotation, self._second = found, poison, rotation, second
        self.waits_since: float | None = None
        self._forgot_at = self._planned_at = self._renewed_at = time.monotonic()

    def leave(self, reason: FenceReason) -> FenceReason:
        """End this membership, as its fence has it; return the reason as the client's last callbacks name it."""
        self.member.leave(release=reason.releases)
        return self.member.ended or reason if reason is FenceReason.PARTITIONS_LOST else reason

    def settle(self) -> None:
        """Decide where arrived partitions go on, and make it durable before the first record of theirs."""
        arrived = dict(self.member.arrived)
        if not arrived:
            return
        failpoint(Failpoint.AFTER_JOIN)
        facts = self._facts(sorted(arrived))
        resumed = {tp: resume(tp, facts[tp], self._live.policy, _spans(tp, self._poison)) for tp in arrived}
        self._recover(facts, {tp: r.landed for tp, r in resumed.items()})
        self._second().put({tp: (facts[tp].second, self._second_of(r)) for tp, r in resumed.items()})
        self._warn(facts)
        self.member.adopt(
            {
                tp: Owned(
                    r.position, r.position, r.owed, arrived[tp], r.paused, r.again, r.origin if self._witness else None
                )
                for tp, r in resumed.items()
            }
        )
        adopted = [tp for tp in sorted(arrived) if tp in self.member.owned]
        self._learn({tp: (facts[tp], resumed[tp]) for tp in adopted})
        failpoint(Failpoint.AFTER_TOKEN_COMMIT)
        self._found.tell({tp: resumed[tp] for tp in adopted}, self._log)

    def plan(self, wanted: Wanted) -> Batch | None:
        """The next ranges of what is owned, None when there is less; they count as planned from now on."""
        self._planned_at = now = time.monotonic()
        owned = {tp: o for tp, o in dict(self.member.owned).items() if not o.paused}
        bounds = self._cluster.log_bounds(owned)
        expired = {tp: bounds[tp][0] for tp, o in owned.items() if o.committed == o.position < bounds[tp][0]}
        if expired and self._live.policy.on_data_loss == "write_off":
            self._pass_expired(owned, expired)
        for tp, o in owned.items():  # the log may be deleted, or made anew, under a live member too
            check_log(tp, o.position, *bounds[tp])
        pending = {tp: (Span(o.position, bounds[tp][1]),) for tp, o in owned.items()}
        records = sum(span.size for (span,) in pending.values())
        self.waits_since = (self.waits_since or now) if records else None
        self.member.listening.looked({} if records else {tp: o.position for tp, o in owned.items()})
        if not wanted.is_met(records, now - (self.waits_since or now)):
            return None
        ranges, last = plan(pending, wanted.max_records, self._rotation.planned, greedy=self._live.greedy)
        self._check_identity([r.topic_partition for r in ranges], "nothing was written or committed")
        for r in ranges:
            owned[r.topic_partition].position = r.end
        arrivals = {r.topic_partition: owned[r.topic_partition].arrival for r in ranges}
        self._rotation.planned, self.waits_since = last, None
        return Batch(ranges, 0.0, last=last, arrivals=arrivals)

    def commit(
        self,
        spans: Mapping[TopicPartition, Span],
        arrivals: Mapping[TopicPartition, int],
        waiting: Callable[[], None],
        left_out: Callable[[TopicPartition], tuple[Span, ...]] = lambda _: (),
    ) -> tuple[TopicPartition, ...]:
        """Commit done spans; gives those that were handed over meanwhile, which are their new owner's to do again.

        Raises:
            TopicRecreatedError: the topic was made anew since they were planned: nobody knows whose records they are.
        """
        done = ", ".join(f"{tp}:{span}" for tp, span in spans.items())
        outcome = f"nothing was committed; rows of {done} were written meanwhile, look whose they are"
        with suppress(BrokerUnreachableError):  # the commit itself waits for a broker that is away
            self._check_identity(spans, outcome)
        handed_over = self.member.commit(spans, arrivals, waiting, left_out)
        self._found.debts.update({tp: self.member.owned[tp].owed for tp in spans if tp in self.member.owned})
        if handed_over:
            message = "handed over before the commit, replayed by the new owner: %s"
            self._log.info(message, ", ".join(map(str, handed_over)))
        return handed_over

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
            self.plan_again()
            names = ", ".join(map(str, handed_over))
            raise FencedError(FenceReason.HANDED_OVER, f"{names}, before the batch was written")

    def plan_again(self) -> None:
        """What is planned and not committed comes again."""
        for owned in dict(self.member.owned).values():
            owned.position = owned.committed

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
        """Now and then drop owed ranges that are done, and keep the second log from expiring: it has no members."""
        now = time.monotonic()
        if now - self._renewed_at >= self._live.renew_seconds:
            self._renewed_at = now
            warn_of_external(self._log, self._live.group_id, self._second().renew(list(self.member.owned)))
        if now - self._forgot_at < _FORGET_SECONDS:
            return
        self._forgot_at = now
        owing = {tp: owned for tp, owned in dict(self.member.owned).items() if owned.owed}
        facts = self._facts(list(owing))
        if self._witness is not None:
            self._witness.learn({tp: Account(reported=one.second.reported) for tp, one in facts.items()})
        self._rewrite(facts)
        for tp, owned in owing.items():
            self._found.debts[tp] = owned.owed = still_owed(_as_owned(facts[tp], owned))

    @property
    def _witness(self) -> Witness | None:
        return self._live.witness

    def _second_of(self, found: Resumed | PartitionFacts) -> DoneLog:
        target = found.second.target if self._witness is None else self._witness.target
        return replace(found.second, target=target)

    def _recover(
        self, facts: Mapping[TopicPartition, PartitionFacts], landed: Mapping[TopicPartition, tuple[Span, ...]]
    ) -> None:
        """Repeat what dead runs of both lanes may have skipped, before a commit says that their rows are done."""
        spans = {tp: (*landed.get(tp, ()), *one.rebuilt_done) for tp, one in facts.items()}
        self._found.recover(spans, {tp: one.log_start for tp, one in facts.items()})

    def _rewrite(self, facts: Mapping[TopicPartition, PartitionFacts]) -> None:
        """Write the second logs that were rebuilt; the others stay as they are."""
        if logs := {tp: (one.second, self._second_of(one)) for tp, one in facts.items() if one.second.external}:
            self._recover(facts, {})
            self._second().put(logs)
            self._warn(facts)

    def _warn(self, facts: Mapping[TopicPartition, PartitionFacts]) -> None:
        """Log what other clients have written into both commit logs."""
        warn_of_external(self._log, self._live.group_id, {tp: one.second.external for tp, one in facts.items()})
        if beyond := [str(OffsetRange(*tp, *span)) for tp, one in facts.items() for span in one.beyond]:
            self._log.warning(BEYOND, self._live.group_id, listed(beyond))

    def _facts(self, partitions: list[TopicPartition]) -> dict[TopicPartition, PartitionFacts]:
        facts = witnessed(self._cluster, self._live.group_id, partitions, self._witness)
        self._identify({tp: one.topic_id for tp, one in facts.items()}, "nothing was written or committed")
        return {tp: replace(one, remembered=self._found.debts.get(tp, ())) for tp, one in facts.items()}

    def _learn(self, settled: Mapping[TopicPartition, tuple[PartitionFacts, Resumed]]) -> None:
        """What is known besides what the table says goes into it with the next write.

        Where it cannot tell, and nothing is owed, all below the position is done: by the last commit's word, or by its
        own. Of what is owed a catch-up run may have written what is in no log yet.
        """
        if self._witness is None:
            return
        known, believed = {}, {}
        for tp, (facts, r) in settled.items():
            assert r.origin is not None  # noqa: S101 - resume gave it
            known[tp] = Account((), r.second.reported, r.origin.start, r.origin.topic_id)
            if not (facts.account is None or facts.account.complete or r.owed):
                done = intersection(facts.said_done(r.second.reported), (Span(0, r.position),))
                believed[tp] = replace(known[tp], done=done)
        self._witness.learn(known)
        self._witness.believe(believed)

    def _check_identity(self, partitions: Collection[TopicPartition], outcome: str) -> None:
        if partitions:
            ids = self._cluster.topic_ids({tp.topic for tp in partitions})
            self._identify({tp: ids[tp.topic] for tp in partitions}, outcome)

    def _identify(self, ids: Mapping[TopicPartition, str], outcome: str) -> None:
        for tp, now in ids.items():
            was = self._found.topic_ids.setdefault(tp.topic, now)
            if was and now and was != now:
                raise TopicRecreatedError(recreated(tp, was, now, "this run", outcome))

    def _pass_expired(self, owned: Mapping[TopicPartition, Owned], starts: Mapping[TopicPartition, int]) -> None:
        """Between two batches: go on at the log starts, and report what is gone."""
        lost = {tp: (Span(owned[tp].position, start),) for tp, start in starts.items()}
        self._second().tell(lost)
        if self._witness is not None:
            self._witness.learn({tp: Account(reported=spans) for tp, spans in lost.items()})
        self._found.lose(lost, self._log)
        for tp in starts:
            owned[tp].committed = owned[tp].position = starts[tp]


def _as_owned(facts: PartitionFacts, owned: Owned) -> PartitionFacts:
    """The facts as they will be with the owner's next commit."""
    mark = LiveMark(Mark.RUNNING, "0" * 8, owned.owed, owned.again, owned.origin)
    return replace(facts, committed=owned.committed, mark=mark)


def _spans(tp: TopicPartition, ranges: Collection[OffsetRange]) -> tuple[Span, ...]:
    return tuple(r.span for r in ranges if r.topic_partition == tp)
