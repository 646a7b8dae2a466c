"""Logs, commits of both groups, the coordinator of one group, and requests of clients that are no members.

It answers as Apache Kafka was measured to answer, and decides nothing.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import OffsetSpec
from greenlet import getcurrent

from kafka_liveness_dagster.core import commit_metadata
from kafka_liveness_dagster.core.commit_metadata import CATCH_UP_SUFFIX
from kafka_liveness_dagster.core.offsets import TopicPartition
from tests.simulation.client import refused
from tests.simulation.group import ClassicGroup
from tests.simulation.group_848 import ConsumerGroup
from tests.simulation.scheduler import Killed, clock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from random import Random

    from tests.simulation.client import MemberClient
    from tests.simulation.group import Group
    from tests.simulation.partition import SimulatedPartition

TOPIC = "orders"
_NOTHING = -1001
_EARLIEST = type(OffsetSpec.earliest())


class SimulatedBroker:
    """Partitions, and the coordinator of one group."""

    def __init__(
        self, partitions: Iterable[SimulatedPartition], rng: Random, failure_rate: float, protocol: str
    ) -> None:
        self.partitions = {p.tp: p for p in partitions}
        self.failure_rate, self._rng = failure_rate, rng
        self.cooperative = protocol == "cooperative"
        self.group: Group = (
            ConsumerGroup(self.partitions, rng)
            if protocol == "consumer"
            else ClassicGroup(self.partitions, rng, cooperative=self.cooperative)
        )

    def commit_first(self, client: MemberClient, offsets: list[KafkaTopicPartition]) -> int | None:
        """By a member: written, or why not. It fences members, not partitions (measured)."""
        refusal = self.group.refusal(client)
        if refusal is not None:
            return refusal
        if any(len(tp.metadata) > commit_metadata.MAX_METADATA_BYTES for tp in offsets):
            return int(KafkaError.OFFSET_METADATA_TOO_LARGE)
        failed = self.fails()
        if failed and self._rng.random() < 0.5:
            return int(KafkaError._TIMED_OUT)
        for one in offsets:
            p = self.partitions[TopicPartition(one.topic, one.partition)]
            p.adopt(client, one.offset, one.metadata, client.world.table.entries()[p.tp])
            p.commit_first(one.offset, one.metadata)
            p.given_up |= p.tp not in client.assigned
        clock.changed = True
        return int(KafkaError._TIMED_OUT) if failed else None

    def acknowledge(self, client: MemberClient, offsets: list[KafkaTopicPartition]) -> None:
        """The member knows now that it was written."""
        for one in offsets:
            p = self.partitions[TopicPartition(one.topic, one.partition)]
            if p.holder is client and not p.erased:
                p.acknowledged = one.offset

    def commit_second(self, offsets: Iterable[KafkaTopicPartition], process: object) -> None:
        """By anybody."""
        failed = self.fails()
        if not failed or self._rng.random() < 0.5:
            for one in offsets:
                p = self.partitions[TopicPartition(one.topic, one.partition)]
                p.commit_second(one.offset, one.metadata, process)
            clock.changed = True
        if failed:
            raise refused(int(KafkaError._TRANSPORT))

    def commits(self, group_id: str, partitions: Iterable[KafkaTopicPartition]) -> list[KafkaTopicPartition]:
        """OffsetFetch."""
        is_second = group_id.endswith(CATCH_UP_SUFFIX)
        found = []
        for one in partitions:
            p = self.partitions[TopicPartition(one.topic, one.partition)]
            offset, metadata = (p.catch_up_commit if is_second else p.live_commit) or (_NOTHING, "")
            found.append(KafkaTopicPartition(one.topic, one.partition, offset, metadata))
        return found

    def fails(self) -> bool:
        """Whether no answer comes."""
        return self.failure_rate > 0 and self._rng.random() < self.failure_rate


def _broker() -> Any:
    me: Any = getcurrent()
    if me.process.dead:
        raise Killed
    return me.process.world.broker


class Committer:
    """A consumer that never subscribes: it commits to the catch-up commit log, or reads either."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id

    def commit(self, offsets: list[KafkaTopicPartition], asynchronous: bool) -> list[KafkaTopicPartition]:  # noqa: FBT001
        """One OffsetCommit."""
        clock.point(0.4)
        me: Any = getcurrent()
        _broker().commit_second(offsets, me.process)
        clock.point(0.2)
        return offsets

    def committed(self, partitions: list[KafkaTopicPartition], timeout: float) -> list[KafkaTopicPartition]:
        """One OffsetFetch."""
        clock.point()
        broker = _broker()
        if broker.fails():
            raise refused(int(KafkaError._TRANSPORT))
        found: list[KafkaTopicPartition] = broker.commits(self.group_id, partitions)
        return found

    def close(self) -> None:
        """Nothing to leave."""
        _broker()


class ImmediateFuture:
    """A future whose answer is there."""

    __slots__ = ("_answer",)

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def result(self) -> Any:
        """The answer."""
        return self._answer


class Admin:
    """An ``AdminClient``."""

    def poll(self, _seconds: float) -> None:
        """Nothing to tell beside its answers."""

    def list_topics(self, timeout: float) -> Any:
        """The one topic."""
        clock.point(0.1)
        partitions = {tp.partition: None for tp in _broker().partitions}
        return SimpleNamespace(topics={TOPIC: SimpleNamespace(partitions=partitions)}, brokers={1: None})

    def list_offsets(
        self, asked: Mapping[KafkaTopicPartition, Any], isolation_level: Any, request_timeout: float
    ) -> dict[KafkaTopicPartition, ImmediateFuture]:
        """Log starts, or log ends."""
        clock.point(0.2)
        found, partitions = {}, _broker().partitions
        for one, spec in asked.items():
            p = partitions[TopicPartition(one.topic, one.partition)]
            found[one] = ImmediateFuture(
                SimpleNamespace(offset=p.log_start if isinstance(spec, _EARLIEST) else p.log_end)
            )
        return found

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, ImmediateFuture]:
        """Their ids."""
        clock.point(0.1)
        me: Any = getcurrent()
        topic_id = me.process.topic_id = me.process.world.topic_id
        return {TOPIC: ImmediateFuture(SimpleNamespace(topic_id=topic_id))}

    def describe_consumer_groups(
        self, groups: list[str], request_timeout: float
    ) -> dict[str, ImmediateFuture]:
        """The members, and what they have."""
        clock.point()
        group = _broker().group
        members = [
            SimpleNamespace(
                member_id=client.name,
                client_id=client.client_id,
                host="",
                assignment=SimpleNamespace(topic_partitions=group.held(client)),
                group_instance_id=None,
            )
            for client in group.members
        ]
        answer = SimpleNamespace(members=members, state=SimpleNamespace(name="STABLE"))
        return {groups[0]: ImmediateFuture(answer)}
