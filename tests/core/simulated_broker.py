"""What does the broker say? One group and its partitions; the state that all processes of a simulated history share.

It answers as Apache Kafka was measured to answer, and decides nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core import commit_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from random import Random

    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.witnesses import PartitionFacts
    from tests.core.simulated_partition import SimulatedPartition


class Refusal(Enum):
    """How the broker refuses a commit."""

    NO_MEMBER = "UNKNOWN_MEMBER_ID"
    REBALANCING = "REBALANCE_IN_PROGRESS"
    TOO_LARGE = "OFFSET_METADATA_TOO_LARGE"
    FAILED = "no answer, nothing written"
    IN_DOUBT = "no answer, but written"


class SimulatedBroker:
    """Partitions and the coordinator of one group.

    It fences members, not partitions: a member's commit of what it gave up is written (measured).
    """

    def __init__(self, partitions: Iterable[SimulatedPartition], rng: Random, failure_rate: float) -> None:
        self.partitions = {partition.tp: partition for partition in partitions}
        self.joined: dict[int, int] = {}  # member -> the generation it knows
        self.generation, self.failure_rate = 0, failure_rate
        self._rng, self._members = rng, 0

    def facts(self, _group_id: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionFacts]:
        """Both commit logs, as the product's ``Cluster`` is asked for them.

        Raises:
            ForeignCommitError: another program committed to the first.
        """
        return {tp: self.partitions[tp].facts() for tp in partitions}

    def join(self) -> int:
        """A new member; gives its id. The others learn of it when they are served."""
        self._members += 1
        self.joined[self._members] = self.generation
        self.rebalance()
        return self._members

    def leave(self, member: int) -> None:
        """LeaveGroup, or the end of a session: what the member held is free at once."""
        if self.joined.pop(member, None) is None:
            return
        for partition in self.partitions.values():
            if partition.holder == member:
                partition.holder = None
        self.rebalance()

    def rebalance(self) -> None:
        """Deal the partitions out anew; cooperative, so holders keep them until they give them up."""
        self.generation += 1
        members = list(self.joined)
        turn = int(self._rng.random() * len(members))
        for place, partition in enumerate(self.partitions.values()):
            partition.owner = members[(place + turn) % len(members)] if members else None

    def to_give_up(self, member: int) -> list[TopicPartition]:
        """What the member holds and another one is to have."""
        return [tp for tp, p in self.partitions.items() if p.holder == member != p.owner]

    def assign(self, member: int) -> list[TopicPartition]:
        """Bring the member to this generation; gives what it holds from now on."""
        self.joined[member] = self.generation
        free = [p for p in self.partitions.values() if p.owner == member and p.holder is None]
        for partition in free:
            partition.holder = member
        return [partition.tp for partition in free]

    def commit(self, member: int, offsets: Mapping[TopicPartition, tuple[int, str]]) -> Refusal | None:
        """One OffsetCommit to the first log: all of it or nothing."""
        if member not in self.joined:
            return Refusal.NO_MEMBER
        if self.joined[member] != self.generation and self._rng.random() < 0.5:
            return Refusal.REBALANCING  # once all have joined; until then a commit is accepted
        if any(len(metadata) > commit_log.MAX_METADATA_BYTES for _, metadata in offsets.values()):
            return Refusal.TOO_LARGE
        failed = self.failure_rate > 0 and self._rng.random() < self.failure_rate
        if failed and self._rng.random() < 0.5:
            return Refusal.FAILED
        for tp, (offset, metadata) in offsets.items():
            self.partitions[tp].commit_first(offset, metadata)
            if not failed:
                self.partitions[tp].acknowledged = offset
        return Refusal.IN_DOUBT if failed else None
