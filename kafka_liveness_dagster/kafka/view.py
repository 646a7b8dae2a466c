"""What does KIP-333 let the owner of a consumer see and hold of both lanes and both commit logs?

Each method cites the sentence of the KIP's "Effects on Current API And Behavior" that it implements. Nothing here
joins a group or processes an offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.commit_log import committed, owed_before
from kafka_liveness_dagster.core.membership import is_due_a_partition
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.kafka.errors import CommitRefusedError
from kafka_liveness_dagster.kafka.second_log import SecondLog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafka_liveness_dagster.core.resume import Owned
    from kafka_liveness_dagster.core.witnesses import PartitionFacts
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.config import KafkaSettings, LiveSettings
    from kafka_liveness_dagster.kafka.link import RunLink
    from kafka_liveness_dagster.kafka.live import LiveLane
    from kafka_liveness_dagster.kafka.watchdog import Watchdog


class TwoLanes:
    """The consumer's view of its group."""

    settings: LiveSettings
    _kafka: KafkaSettings
    _cluster: Cluster
    _watchdog: Watchdog
    _second: SecondLog | None
    _lane: LiveLane | None
    _link: RunLink

    @property
    def joined(self) -> bool:
        """Whether the group has let this consumer in, and has not put it out again since.

        A rebalance may wait for others' batches or dead sessions.
        """
        return self._lane is not None and self._lane.member.joined and self._lane.member.ended is None

    def partitions_to_come(self) -> str:
        """Why this member will have something to do: what the group has. Empty when it is as it will be.

        A rebalance that waits for others' batches may let a new member in first, with nothing to do (cooperative), or
        has given it partitions and refuses its commits until all have heard of it.

        Raises:
            BrokerUnreachableError: nobody can tell.
        """
        if self._lane is None:
            return ""
        if self._lane.member.arrived:
            return f"{len(self._lane.member.arrived)} partitions have come, and a rebalance holds their first commit up"
        if self._lane.member.owned:
            return ""
        members = self._cluster.members(self.settings.group_id)
        others = [len(member.partitions) for member in members if member.client_id != self._link.client_id]
        partitions = len(self._cluster.partitions(self.settings.topics))
        if not is_due_a_partition(partitions, others):
            return ""
        return f"{partitions} partitions, {sum(map(bool, others))} other members at work"

    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions owned now; the live lane's alone, as "subscribe(), assign(), and unsubscribe()" are."""
        return tuple(sorted(self._lane.member.owned)) if self._lane else ()

    def position(self, topic: str, partition: int) -> int | None:
        """Where the live lane's next batch begins; None for a partition not owned.

        KIP-333: "position() - will call the user-created consumer's position, the second consumer [...] will not
        take any part in this call".
        """
        owned = self._lane.member.owned.get(TopicPartition(topic, partition)) if self._lane else None
        return owned.position if owned else None

    def committed(self, topic: str, partition: int) -> int | None:
        """Every offset before it is processed, in whichever lane; None while nothing is committed.

        KIP-333: "any offset before the one returned by KafkaConsumer#committed has also been checkpointed as well".
        """
        facts = self._facts(topic, partition)
        return committed(facts.committed, facts.outstanding)

    def owed(self, topic: str, partition: int) -> tuple[OffsetRange, ...]:
        """The offset ranges the live lane jumped over that no catch-up run has done yet.

        KIP-333: "we need to remember these two numbers [...] they need to be checkpointed as a token".
        """
        return tuple(OffsetRange(topic, partition, *span) for span in self._facts(topic, partition).outstanding)

    def beginning_offsets(self, topic: str, partition: int) -> int:
        """The first offset there is to read for either lane: the log start.

        KIP-333: "beginningOffsets(), endOffsets() - Will check both consumer threads". They read one log, so the
        earlier of the two beginnings is the log's; what each lane has done is ``committed`` and ``owed``.
        """
        return self._facts(topic, partition).log_start

    def end_offsets(self, topic: str, partition: int) -> int:
        """The offset behind the last there is to read for either lane: the last stable offset (``read_committed``)."""
        return self._facts(topic, partition).log_end

    def lag(self) -> int:
        """Offsets that the owned partitions have behind their positions, up to the log end; in two requests."""
        owned = dict(self._lane.member.owned) if self._lane else {}
        bounds = self._cluster.log_bounds(owned)
        return sum(max(0, bounds[tp][1] - one.position) for tp, one in owned.items())

    def pause(self, topic: str, partition: int) -> None:
        """Hold both lanes of an owned partition until ``resume``; the first commit log keeps it over restarts.

        KIP-333: "when we call pause() or resume(), both consumer threads will stop or restart processing on
        partitions accordingly". A batch under way is not stopped; its commit passes.

        Raises:
            CommitRefusedError: the partition is not owned, or the mark could not be committed.
        """
        self._hold(TopicPartition(topic, partition), paused=True)

    def resume(self, topic: str, partition: int) -> None:
        """Let both lanes of a paused partition go on, in order from where they were.

        Raises:
            CommitRefusedError: the partition is not owned, or the mark could not be committed.
        """
        self._hold(TopicPartition(topic, partition), paused=False)

    def child_consumer_is_alive(self) -> bool:
        """Whether a run of the catch-up lane is in progress; without Dagster nobody knows of one: False.

        KIP-333: "a boolean value indicating if the secondary thread created has started or not".
        """
        return self._link.catch_up_runs(self.settings.group_id) > 0

    def _commit_offsets(self, offsets: Mapping[TopicPartition, int]) -> tuple[TopicPartition, ...]:
        facts = self._cluster.facts(self.settings.group_id, list(offsets))
        owed = {tp: owed_before(offset, facts[tp].outstanding) for tp, offset in offsets.items()}
        mine = {tp: self._in_hand(tp, offset) for tp, offset in offsets.items() if owed[tp] is None}
        if caught_up := [OffsetRange(*tp, *span) for tp, span in owed.items() if span is not None]:
            self._second_log().record(caught_up, self._watchdog.check)
        if not mine:
            return ()
        spans = {tp: Span(owned.committed, offsets[tp]) for tp, owned in mine.items()}
        return self._commit_live(spans, {tp: owned.arrival for tp, owned in mine.items()})

    def _second_log(self) -> SecondLog:
        self._second = self._second or SecondLog(self._kafka, self.settings.group_id, self._link.client_id)
        return self._second

    def _in_hand(self, tp: TopicPartition, offset: int) -> Owned:
        """The ownership that ``offset`` lies in; counted from this member's own commit, which may have skipped data."""
        owned = self._lane.member.owned.get(tp) if self._lane else None
        if owned is None or not owned.committed <= offset <= owned.position:
            raise CommitRefusedError(
                f"commit of offset {offset} of {tp}: it is not in this consumer's hands, whose position is "
                f"{owned.position if owned else None} and whose commit {owned.committed if owned else None}. Commit "
                "what poll() gave; nothing was committed, in either log"
            )
        return owned

    def _facts(self, topic: str, partition: int) -> PartitionFacts:
        tp = TopicPartition(topic, partition)
        return self._cluster.facts(self.settings.group_id, [tp])[tp]

    def _hold(self, tp: TopicPartition, *, paused: bool) -> None:
        if self._lane is None or tp not in self._lane.member.owned:
            raise CommitRefusedError(
                f"{tp} is not owned by this consumer, so it cannot be paused or resumed here: poll() until it is in "
                "assignment(), or call this where it is owned"
            )
        self._lane.hold(tp, paused=paused)
        if tp not in self._lane.member.owned:
            raise CommitRefusedError(
                f"{tp} was handed over while it was to be {'paused' if paused else 'resumed'}: nothing was changed, "
                "call this where it is owned now"
            )

    def _commit_live(
        self, spans: Mapping[TopicPartition, Span], arrivals: Mapping[TopicPartition, int]
    ) -> tuple[TopicPartition, ...]:
        raise NotImplementedError
