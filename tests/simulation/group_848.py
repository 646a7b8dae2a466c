"""Simulate a coordinator under KIP-848, which assigns by itself and informs each member by its heartbeats.

A member that does not give up in time what it was told to is fenced; commits are held against the member's
epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from tests.simulation.group import Group
from tests.simulation.scheduler import clock

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from kafka_liveness_dagster.core.offsets import TopicPartition
    from tests.simulation.client import MemberClient
    from tests.simulation.group import Target
    from tests.simulation.partition import SimulatedPartition

_ON_ITS_WAY_SECONDS = 0.1


class ConsumerGroup(Group):
    """ConsumerGroupHeartbeat: nobody waits for all."""

    def __init__(self, partitions: dict[TopicPartition, SimulatedPartition], rng: Random) -> None:
        super().__init__(partitions, rng)
        self._target: Target = {}
        self._giving_up: dict[MemberClient, set[TopicPartition]] = {}
        self._epochs: dict[MemberClient, int] = {}

    def join(self, client: MemberClient) -> None:
        """The first heartbeat."""
        if client not in self.members:
            self.members.append(client)
            client.is_member = True
            self._epochs[client] = client.generation = self.generation
        self.rebalance()

    def rebalance(self) -> None:
        """A new target; each member comes to it by itself."""
        self.generation += 1
        self._target = self.target()
        self._tell_all()

    def revoked(self, client: MemberClient, partitions: Iterable[TopicPartition]) -> None:
        """Acknowledged with a heartbeat that is sent at once."""
        self._giving_up.pop(client, None)
        for tp in partitions:
            if self.partitions[tp].holder is client:
                self.partitions[tp].holder = None
        self._tell_all()

    def refusal(self, client: MemberClient) -> int | None:
        """The member's epoch decides."""
        if client not in self.members:
            return int(KafkaError.UNKNOWN_MEMBER_ID)
        if self._epochs[client] != client.generation:
            return int(KafkaError.STALE_MEMBER_EPOCH)
        return None

    def _gone(self, client: MemberClient) -> None:
        self._giving_up.pop(client, None)
        self._epochs.pop(client, None)
        if self.members:
            self.rebalance()

    def _tell_all(self) -> None:
        for member in self.members:
            self.soon(member, lambda m=member: self._answer(m))

    def _answer(self, client: MemberClient) -> None:
        """To one heartbeat."""
        if client not in self.members or client in self._giving_up or client.is_mute:
            return
        held, wanted = set(self.held(client)), self._target.get(client, set())
        if gone := held - wanted:
            self._giving_up[client] = gone
            clock.call(client.rebalance_timeout, lambda: self._expire(client, gone))
            client.receive_assignment([], sorted(gone))
            return
        new = sorted(tp for tp in wanted - held if self.partitions[tp].holder is None)
        if self._epochs[client] != self.generation:
            epoch = self._epochs[client] = self.generation
            clock.call(self.rng.random() * _ON_ITS_WAY_SECONDS, lambda: client.hear_of_epoch(epoch))
        if new or not client.was_told:
            for tp in new:
                self.partitions[tp].hold(client)
            client.receive_assignment(new, [])

    def _expire(self, client: MemberClient, gone: set[TopicPartition]) -> None:
        if self._giving_up.get(client) is gone:
            self.on_eviction(client)
            self.put_out(client)
