"""What of these ranges is proven done? Both commit logs as they are now, and the witness as it was last asked.

The witness is asked when a run begins, and once more before anything of it may be called done: what the run writes
itself is known without asking. Never plans and never commits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.ledger import Account, total
from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition, difference, intersection
from kafka_liveness_dagster.core.partition_state import (
    PartitionFacts,
    RowsMissingError,
    TopicRecreatedError,
    check_identity,
    recreated,
)
from kafka_liveness_dagster.kafka.catch_up.commit_log import by_partition
from kafka_liveness_dagster.kafka.partition_states import check_second_log, with_accounts, witnessed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kafka_liveness_dagster.core.commit_metadata import DoneLog
    from kafka_liveness_dagster.core.offsets import Span
    from kafka_liveness_dagster.core.partition_state import Witness
    from kafka_liveness_dagster.kafka.admin import Cluster

Facts = dict[TopicPartition, PartitionFacts]


class Proof:
    """The witnesses of one catch-up run.

    Args:
        asked: the offsets it is to do.
        witness: None where the two commit logs are all there is to ask.
    """

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        asked: Mapping[TopicPartition, tuple[Span, ...]],
        witness: Witness | None,
    ) -> None:
        self._cluster, self._group_id, self._asked, self._witness = cluster, group_id, asked, witness
        self._accounts: dict[TopicPartition, Account] = {}
        self._ids: dict[str, str] = {}

    def look(self) -> Facts:
        """All of them, asked now."""
        facts = self._identified(witnessed(self._cluster, self._group_id, list(self._asked), self._witness))
        if self._witness is None:
            return facts
        begun = {tp: one.origin.start if one.origin else None for tp, one in facts.items()}
        self._witness.learn(
            {tp: Account((), one.second.reported, begun[tp], one.topic_id) for tp, one in facts.items()}
        )
        self._accounts = {tp: self._believed(tp, one.account or Account()) for tp, one in facts.items()}
        return self._with_accounts(facts)

    def known(self) -> Facts:
        """Both commit logs as they are now, and the witness as it was last asked, with what was written since."""
        return self._with_accounts(self._identified(self._cluster.facts(self._group_id, list(self._asked))))

    def about(self, log: DoneLog) -> DoneLog:
        """The same second log, with the witness as its target if it was rebuilt from that."""
        if self._witness is None or log.external is None:
            return log
        return replace(log, target=self._witness.target)

    def check_identity(self, ranges: Iterable[OffsetRange]) -> None:
        """Whether the topics are still those that were looked at first; after a batch was written.

        Raises:
            TopicRecreatedError: nobody knows whose records they are.
        """
        written = sorted(ranges)
        ids = self._cluster.topic_ids({r.topic for r in written})
        outcome = f"nothing more is recorded as done; rows of {written[0]} were written meanwhile, look whose they are"
        self._compare(written[0].topic_partition, ids, outcome)

    def wrote(self, ranges: Iterable[OffsetRange]) -> None:
        """These are done now, by this run."""
        self._accounts = total((self._accounts, {tp: Account(s) for tp, s in by_partition(ranges).items()}))

    def lost(self, spans: Mapping[TopicPartition, tuple[Span, ...]]) -> None:
        """These are gone for good: the witness tells it with the next write."""
        if self._witness is not None:
            self._witness.learn({tp: Account(reported=gone) for tp, gone in spans.items()})

    def done(self, left_out: Iterable[OffsetRange]) -> list[OffsetRange]:
        """What was asked for and is processed by now, by whomever: not owed, forgiven, lost or left out."""
        facts, without = self.known(), by_partition(left_out)
        return [
            OffsetRange(*tp, *span)
            for tp, spans in self._asked.items()
            for span in difference(spans, (*facts[tp].left_of(spans), *facts[tp].reported, *without.get(tp, ())))
        ]

    def holds(self, left_out: Iterable[OffsetRange]) -> bool:
        """Ask once more, after all was written: nothing is green that is not proven.

        Returns:
            False where another run's record has replaced this one's since, or nobody vouches any more for what was done
            before this run: it is processed once more.

        Raises:
            RowsMissingError: the witness lacks some of it.
        """
        if self._witness is None:
            return True
        facts, without = self.look(), by_partition(left_out)
        left = {tp: difference(facts[tp].left_of(s), without.get(tp, ())) for tp, s in self._asked.items()}
        there = {tp: one.account.done if one.account else () for tp, one in facts.items()}
        told = {tp: intersection(spans, facts[tp].judged) for tp, spans in left.items()}  # of the rest nobody knows
        lacking = [OffsetRange(*tp, *span) for tp, spans in told.items() for span in difference(spans, there[tp])]
        if lacking:
            raise RowsMissingError(
                f"{self._witness.target} lacks {', '.join(map(str, lacking[:5]))}, "
                f"{sum(r.size for r in lacking):,} offsets, though they were written: it was dropped, replaced or "
                "rolled back meanwhile. Fix: materialize the partitions again",
                lacking,
            )
        return not any(left.values())

    def _identified(self, facts: Facts) -> Facts:
        """The facts, if they are of the topics that were looked at first.

        Raises:
            TopicRecreatedError: they are not, or not of the commits' and the table's.
        """
        for tp, one in facts.items():
            self._compare(tp, {tp.topic: one.topic_id}, "nothing was written or committed")
            check_identity(tp, one)
        return facts

    def _compare(self, tp: TopicPartition, ids: Mapping[str, str], outcome: str) -> None:
        for topic, now in ids.items():
            was = self._ids.setdefault(topic, now)
            if was and now and was != now:
                raise TopicRecreatedError(recreated(tp, was, now, "this run", outcome))

    def _believed(self, tp: TopicPartition, account: Account) -> Account:
        """Where the witness cannot tell, what this run wrote counts."""
        return account if account.complete else account + self._accounts.get(tp, Account())

    def _with_accounts(self, facts: Facts) -> Facts:
        if self._witness is not None:
            facts = with_accounts(facts, self._accounts)
        check_second_log(self._cluster, self._group_id, facts)
        return facts
