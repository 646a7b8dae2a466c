"""Determine which offsets of a catch-up run are proven done, from both commit logs and the ledger.

The ledger is read when a run begins, and again before its partitions may become green. In between the run
adds its own writes. The commit logs are read each time. Never plans and never commits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.ledger import LedgerEntry, merge_entries
from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition, difference, intersection
from kafka_liveness_dagster.core.partition_state import (
    PartitionState,
    RowsMissingError,
    TopicRecreatedError,
    check_identity,
    topic_recreated_message,
)
from kafka_liveness_dagster.kafka.catch_up.commit_log import spans_by_partition
from kafka_liveness_dagster.kafka.partition_states import (
    check_catch_up_log,
    partition_states_with_ledger,
    with_ledger_entries,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kafka_liveness_dagster.core.commit_metadata import CatchUpCommitMetadata
    from kafka_liveness_dagster.core.offsets import Span
    from kafka_liveness_dagster.core.sink_ledger import LaneLedger
    from kafka_liveness_dagster.kafka.admin import Cluster

PartitionStates = dict[TopicPartition, PartitionState]


class CompletionCheck:
    """The states of one catch-up run's partitions.

    Args:
        asked: offsets that the run is to process.
        ledger: ledger of the target; None if both commit logs decide alone.

    Attributes:
        topic_ids: ids of the topics at their first read.
    """

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        asked: Mapping[TopicPartition, tuple[Span, ...]],
        ledger: LaneLedger | None,
    ) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._requested = asked
        self._ledger = ledger
        self._ledger_entries: dict[TopicPartition, LedgerEntry] = {}
        self.topic_ids: dict[str, str] = {}

    def read_all(self) -> PartitionStates:
        """Read both commit logs and the ledger."""
        states = self._require_same_topics(
            partition_states_with_ledger(self._cluster, self._group_id, list(self._requested), self._ledger)
        )
        if self._ledger is None:
            return states
        begun = {tp: one.origin.start if one.origin else None for tp, one in states.items()}
        self._ledger.add_known(
            {
                tp: LedgerEntry((), one.catch_up_log.written_off, begun[tp], topic_id=one.topic_id)
                for tp, one in states.items()
            }
        )
        self._ledger_entries = {
            tp: self._with_own_writes(tp, one.ledger_entry or LedgerEntry()) for tp, one in states.items()
        }
        return self._with_ledger_entries(states)

    def read_commits(self) -> PartitionStates:
        """Read both commit logs; use the ledger of its last read, with this run's writes since."""
        return self._with_ledger_entries(
            self._require_same_topics(self._cluster.partition_states(self._group_id, list(self._requested)))
        )

    def with_target(self, log: CatchUpCommitMetadata) -> CatchUpCommitMetadata:
        """Return the catch-up commit log; if it was rebuilt from the ledger, with the ledger's target."""
        if self._ledger is None or log.external is None:
            return log
        return replace(log, target=self._ledger.target)

    def check_identity(self, ranges: Iterable[OffsetRange]) -> None:
        """Check, after a batch was written, that no topic was recreated since its first read.

        Raises:
            TopicRecreatedError: it is unknown which topic's records were written.
        """
        written = sorted(ranges)
        ids = self._cluster.topic_ids({r.topic for r in written})
        outcome = (
            f"nothing more is recorded as done. Rows of {written[0]} were written meanwhile; check "
            "which topic they came from"
        )
        self._compare_topic_ids(written[0].topic_partition, ids, outcome)

    def mark_written(self, ranges: Iterable[OffsetRange]) -> None:
        """Record that this run has written these ranges."""
        self._ledger_entries = merge_entries(
            (self._ledger_entries, {tp: LedgerEntry(s) for tp, s in spans_by_partition(ranges).items()})
        )

    def write_off(self, spans: Mapping[TopicPartition, tuple[Span, ...]]) -> None:
        """Record that these offsets are lost for good; the next write stores that in the table."""
        if self._ledger is not None:
            self._ledger.add_known({tp: LedgerEntry(written_off=gone) for tp, gone in spans.items()})

    def done_ranges(self, left_out: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the requested ranges that are processed: not pending, written off, lost or left out."""
        states = self.read_commits()
        without = spans_by_partition(left_out)
        return [
            OffsetRange(*tp, *span)
            for tp, spans in self._requested.items()
            for span in difference(
                spans, (*states[tp].not_done(spans), *states[tp].written_off, *without.get(tp, ()))
            )
        ]

    def verify(self, left_out: Iterable[OffsetRange]) -> bool:
        """Read the ledger again after all writes, so that no partition becomes green without proof.

        Returns:
            False if another run's record has replaced this run's, or if offsets done before this run are no
            longer proven. These offsets are processed again.

        Raises:
            RowsMissingError: the ledger lacks some of the requested offsets.
        """
        if self._ledger is None:
            return True
        states = self.read_all()
        without = spans_by_partition(left_out)
        left = {
            tp: difference(states[tp].not_done(s), without.get(tp, ())) for tp, s in self._requested.items()
        }
        there = {tp: one.ledger_entry.written if one.ledger_entry else () for tp, one in states.items()}
        # The ledger has no information outside its scope
        told = {tp: intersection(spans, states[tp].ledger_scope) for tp, spans in left.items()}
        lacking = [
            OffsetRange(*tp, *span) for tp, spans in told.items() for span in difference(spans, there[tp])
        ]
        if lacking:
            raise RowsMissingError(
                f"{self._ledger.target} lacks {', '.join(map(str, lacking[:5]))}, "
                f"{sum(r.size for r in lacking):,} offsets, though they were written: it was dropped, "
                "replaced or rolled back meanwhile. Fix: materialize the partitions again",
                lacking,
            )
        return not any(left.values())

    def _require_same_topics(self, states: PartitionStates) -> PartitionStates:
        """Return the states after the check that no topic was recreated.

        Raises:
            TopicRecreatedError: the topic differs from that of the first read, the commits or the table.
        """
        for tp, one in states.items():
            self._compare_topic_ids(tp, {tp.topic: one.topic_id}, "nothing was written or committed")
            check_identity(tp, one)
        return states

    def _compare_topic_ids(self, tp: TopicPartition, ids: Mapping[str, str], outcome: str) -> None:
        for topic, now in ids.items():
            was = self.topic_ids.setdefault(topic, now)
            if was and now and was != now:
                raise TopicRecreatedError(
                    topic_recreated_message(tp, was, now, where="this run", outcome=outcome)
                )

    def _with_own_writes(self, tp: TopicPartition, entry: LedgerEntry) -> LedgerEntry:
        """Return the entry, with those of its unknown offsets that this run wrote."""
        own = self._ledger_entries.get(tp, LedgerEntry())
        return entry + replace(own, written=intersection(own.written, entry.unknown), unknown=())

    def _with_ledger_entries(self, states: PartitionStates) -> PartitionStates:
        if self._ledger is not None:
            states = with_ledger_entries(states, self._ledger_entries)
        check_catch_up_log(self._cluster, self._group_id, states)
        return states
