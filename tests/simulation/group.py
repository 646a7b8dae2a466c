"""What does a group coordinator do? One group, on the classic protocol, eager or cooperative.

It answers as Apache Kafka was measured to answer: a rebalance waits for those that have not joined, for as
long as their rebalance timeout counted from its beginning, and then goes on without them. It fences members,
not partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError

from tests.simulation.scheduler import clock

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from kafka_liveness_dagster.core.offsets import TopicPartition
    from tests.simulation.client import MemberClient
    from tests.simulation.partition import SimulatedPartition

Target = dict["MemberClient", set["TopicPartition"]]


class Group:
    """What both protocols have in common.

    Attributes:
        members: in the order of joining.
        shuffled: the next target takes no care of who has what.
        on_eviction: told who was thrown out of a rebalance that it kept waiting.
    """

    def __init__(self, partitions: dict[TopicPartition, SimulatedPartition], rng: Random) -> None:
        self.partitions, self.rng = partitions, rng
        self.members: list[MemberClient] = []
        self.generation = 0
        self.shuffled = False
        self.on_eviction: Any = lambda _client: None

    def leave(self, client: MemberClient) -> None:
        """LeaveGroup, or the end of a session: what the member held is free at once."""
        if client not in self.members:
            return
        self.members.remove(client)
        for p in self.partitions.values():
            if p.holder is client:
                p.holder = None
        self._gone(client)

    def put_out(self, client: MemberClient) -> None:
        """The member is out, and hears of it with its next heartbeat."""
        self.leave(client)
        self.soon(client, client.hear_of_loss)

    def silent(self, client: MemberClient) -> None:
        """No heartbeat comes any more: SIGKILL, SIGSTOP, or its client has given up under KIP-848."""
        since, left = client.silences, client.session - self.rng.random() * client.heartbeat

        def expire() -> None:
            if client.silences == since and client in self.members:
                client.process.world.note("session expired", client.name)
                self.put_out(client)

        clock.call(left, expire)

    def soon(self, client: MemberClient, what: Any) -> None:
        """With the member's next heartbeat, as long as it sends any."""

        def hear() -> None:
            if client.process.stopped:
                client.unheard.append(what)
            elif not client.process.dead:
                what()

        clock.call(self.rng.random() * client.heartbeat, hear)

    def target(self) -> Target:
        """Who is to have what: as even as possible, and sticky unless shuffled."""
        members = list(self.members)
        self.rng.shuffle(members)
        most = -(-len(self.partitions) // len(members)) if members else 0
        found: Target = {m: set() for m in members}
        free = set(self.partitions)
        for m in () if self.shuffled else members:
            kept = sorted(m.assigned & free)[:most]
            found[m].update(kept)
            free.difference_update(kept)
        for tp in sorted(free):
            if members:
                least = min(members, key=lambda m: len(found[m]))
                found[least].add(tp)
        self.shuffled = False
        return found

    def held(self, client: MemberClient) -> list[TopicPartition]:
        """What the coordinator shows as the member's."""
        return [tp for tp, p in self.partitions.items() if p.holder is client]

    def join(self, client: MemberClient) -> None:
        """A member comes, or comes again."""
        raise NotImplementedError

    def rebalance(self) -> None:
        """Deal anew."""
        raise NotImplementedError

    def revoked(self, client: MemberClient, partitions: Iterable[TopicPartition]) -> None:
        """The member has given these up."""
        raise NotImplementedError

    def refusal(self, client: MemberClient) -> int | None:
        """Why the member may not commit now."""
        raise NotImplementedError

    def _gone(self, client: MemberClient) -> None:
        raise NotImplementedError


class ClassicGroup(Group):
    """JoinGroup, SyncGroup: all members come, or are thrown out."""

    def __init__(self, partitions: Any, rng: Random, *, cooperative: bool) -> None:
        super().__init__(partitions, rng)
        self.cooperative = cooperative
        self._joined: set[MemberClient] = set()
        self._preparing = self._completing = False
        self._round = 0

    def join(self, client: MemberClient) -> None:
        """JoinGroup."""
        if client not in self.members:
            self.members.append(client)
            client.is_member = True
        self._joined.add(client)
        client.joining = True
        self._prepare()
        self._complete_if_all()

    def rebalance(self) -> None:
        """Somebody joins and leaves, or the leader's metadata changed."""
        if self.members:
            self._prepare()

    def revoked(self, client: MemberClient, partitions: Iterable[TopicPartition]) -> None:
        """The member joins again."""
        for tp in partitions:
            if self.partitions[tp].holder is client:
                self.partitions[tp].holder = None
        if client in self.members and not client.process.dead:
            self.join(client)

    def refusal(self, client: MemberClient) -> int | None:
        """In the middle of a rebalance a commit is accepted until all have joined."""
        if client not in self.members:
            return int(KafkaError.UNKNOWN_MEMBER_ID)
        if self._completing:
            return int(KafkaError.REBALANCE_IN_PROGRESS)
        if client.generation != self.generation:
            return int(KafkaError.ILLEGAL_GENERATION)
        if client.joining and self.rng.random() < 0.3:
            return int(KafkaError._TIMED_OUT)  # it waits behind the member's own JoinGroup
        return None

    def _gone(self, client: MemberClient) -> None:
        self._joined.discard(client)
        if self.members:
            self._prepare()
            self._complete_if_all()
        else:
            self._preparing = self._completing = False

    def _prepare(self) -> None:
        if self._preparing:
            return
        self._preparing, self._completing = True, False
        self._round += 1
        at, limit = self._round, max(m.rebalance_timeout for m in self.members)
        clock.call(limit, lambda: self._expire(at))
        for member in self.members:
            if member not in self._joined:
                self.soon(member, lambda m=member: self._hear(m, at))

    def _hear(self, client: MemberClient, at: int) -> None:
        if at == self._round and self._preparing and client in self.members and client not in self._joined:
            client.rejoin()

    def _expire(self, at: int) -> None:
        if at != self._round or not self._preparing:
            return
        for late in [m for m in self.members if m not in self._joined]:
            self.on_eviction(late)
            self.put_out(late)

    def _complete_if_all(self) -> None:
        if not self._preparing or not self.members or any(m not in self._joined for m in self.members):
            return
        self._preparing, self._completing = False, True
        self.generation += 1
        self._joined.clear()
        generation, target = self.generation, self.target()
        clock.call(self.rng.random() * 0.1, lambda: self._synced(generation, target))

    def _synced(self, generation: int, target: Target) -> None:
        if generation != self.generation or not self._completing:
            return
        self._completing = False
        for client, wanted in target.items():
            if client not in self.members:
                continue
            client.generation, client.joining = generation, False
            if not self.cooperative:
                new, gone = sorted(wanted), []
            else:
                gone = sorted(client.assigned - wanted)
                new = [tp for tp in sorted(wanted - client.assigned) if self.partitions[tp].holder is None]
            for tp in new:
                self.partitions[tp].hold(client)
            client.receive_assignment(new, gone)
