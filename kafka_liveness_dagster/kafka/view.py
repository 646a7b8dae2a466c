"""What does KIP-333 let the owner of a consumer see and hold of both lanes and both commit logs?

Each method cites the sentence of the KIP's "Effects on Current API And Behavior" that it implements. Nothing here
joins a group or processes an offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.commit_log import committed
from kafka_liveness_dagster.core.membership import PartitionSnapshot, is_due_a_partition
from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
from kafka_liveness_dagster.kafka import catch_up
from kafka_liveness_dagster.kafka.errors import CommitRefusedError
from kafka_liveness_dagster.kafka.times import seconds_behind
from kafka_liveness_dagster.kafka.witness import witnessed

if TYPE_CHECKING:
    from kafka_liveness_dagster.core.witnesses import PartitionFacts
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.config import LiveSettings
    from kafka_liveness_dagster.kafka.link import RunLink
    from kafka_liveness_dagster.kafka.memberships import Memberships


class GroupView:
    """One consumer's view of its group.

    Args:
        cluster: where the group is.
        settings: which group, and on which topics.
        memberships: what of it is this consumer's.
        link: its run, who knows of the others.
    """

    def __init__(self, cluster: Cluster, settings: LiveSettings, memberships: Memberships, link: RunLink) -> None:
        self._cluster, self._settings, self._memberships, self._link = cluster, settings, memberships, link

    @property
    def joined(self) -> bool:
        """Whether the group has let this consumer in, and has not put it out again since."""
        lane = self._memberships.lane
        return lane is not None and lane.member.joined and lane.member.ended is None

    def partitions_to_come(self) -> str:
        """Why this member will have something to do: what the group has. Empty when it is as it will be.

        A rebalance that waits for others' batches may let a new member in first, with nothing to do (cooperative), or
        has given it partitions and refuses its commits until all have heard of it.

        Raises:
            BrokerUnreachableError: nobody can tell.
        """
        lane = self._memberships.lane
        if lane is None:
            return ""
        if self.is_held_up():
            return f"{len(lane.member.arrived)} partitions have come, and a rebalance holds their first commit up"
        if lane.member.owned:
            return ""
        members = self._cluster.members(self._settings.group_id)
        others = [len(member.partitions) for member in members if member.client_id != self._link.client_id]
        partitions = len(self._cluster.partitions(self._settings.topics))
        if not is_due_a_partition(partitions, others):
            return ""
        return f"{partitions} partitions, {sum(map(bool, others))} other members at work"

    def is_held_up(self) -> bool:
        """Whether partitions have come whose first commit a rebalance still refuses."""
        lane = self._memberships.lane
        return lane is not None and bool(lane.member.arrived)

    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions owned now; the live lane's alone, as "subscribe(), assign(), and unsubscribe()" are."""
        return tuple(sorted(self._memberships.owned))

    def position(self, topic: str, partition: int) -> int | None:
        """Where the live lane's next batch begins; None for a partition not owned.

        KIP-333: "position() - will call the user-created consumer's position, the second consumer [...] will not
        take any part in this call".
        """
        owned = self._memberships.owned.get(TopicPartition(topic, partition))
        return owned.position if owned else None

    def committed(self, topic: str, partition: int) -> int | None:
        """Every offset before it is processed, in whichever lane; None while nothing is committed.

        KIP-333: "any offset before the one returned by KafkaConsumer#committed has also been checkpointed as well".
        With a ``witness`` the table is queried too; without one, or without its response, both commit logs decide.

        Raises:
            OtherTableError: the group's commits are about another table.
            RowsMissingError: the table has lost rows that this process wrote.
        """
        seen = self._processed(topic, partition)
        return committed(seen.committed, seen.pending)

    def owed(self, topic: str, partition: int) -> tuple[OffsetRange, ...]:
        """The pending offset ranges: crash lag that no catch-up run has done, and rows that the table has lost.

        KIP-333: "we need to remember these two numbers [...] they need to be checkpointed as a token". The sources are
        those of ``committed``.
        """
        return tuple(OffsetRange(topic, partition, *span) for span in self._processed(topic, partition).pending)

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
        owned = dict(self._memberships.owned)
        bounds = self._cluster.log_bounds(owned)
        return sum(max(0, bounds[tp][1] - one.position) for tp, one in owned.items())

    def seconds_behind(self) -> float | None:
        """How much newer the log's newest record is than the newest processed one, by their own timestamps.

        Of the owned partition that is worst off; 0 where nothing waits, None where nobody can tell.

        Raises:
            BrokerUnreachableError: no broker answers.
        """
        positions = {tp: one.position for tp, one in dict(self._memberships.owned).items()}
        ends = {tp: end for tp, (_, end) in self._cluster.log_bounds(positions).items()}
        return seconds_behind(self._cluster, self._settings.group_id, positions, ends)

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
        """Return whether a catch-up lane of the group is at work: open in this process, or in a Dagster run.

        KIP-333: "a boolean value indicating if the secondary thread created has started or not". So a run that is
        queued or starting does not count. Scripts in other processes are not known.
        """
        group_id = self._settings.group_id
        return catch_up.is_open(self._cluster.settings, group_id) or self._link.catch_up_runs(group_id) > 0

    def _processed(self, topic: str, partition: int) -> PartitionSnapshot:
        tp, settings = TopicPartition(topic, partition), self._settings
        return PartitionSnapshot.of(tp, witnessed(self._cluster, settings.group_id, [tp], settings.witness)[tp])

    def _facts(self, topic: str, partition: int) -> PartitionFacts:
        tp = TopicPartition(topic, partition)
        return self._cluster.facts(self._settings.group_id, [tp])[tp]

    def _hold(self, tp: TopicPartition, *, paused: bool) -> None:
        lane = self._memberships.lane
        if lane is None or tp not in lane.member.owned:
            raise CommitRefusedError(
                f"{tp} is not owned by this consumer, so it cannot be paused or resumed here: poll() until it is in "
                "assignment(), or call this where it is owned"
            )
        lane.hold(tp, paused=paused)
        if tp not in lane.member.owned:
            raise CommitRefusedError(
                f"{tp} was handed over while it was to be {'paused' if paused else 'resumed'}: nothing was changed, "
                "call this where it is owned now"
            )
