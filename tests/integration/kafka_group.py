"""One topic, one group and both lanes on them, offset by offset: what the tests of KIP-333 are told with."""

from __future__ import annotations

from uuid import uuid4

import pytest
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata
from kafka_liveness_dagster.core.offsets import TopicPartition
from tests.timeouts import seconds
from tests.waiting import wait_for

SECONDS = seconds(120.0)  # of a poll that ends with the first batch
# Nobody answers: a look goes on without the table
NO_SPARK = kl.SparkConnectResource(remote="sc://localhost:1")
SESSION, HEARTBEAT = seconds(6.0), 0.5
"""How long the group waits for a member that left while it joined, and how soon a member hears of others."""


class KafkaGroup:
    """One topic with the records in partition 3, one group, and both lanes on them."""

    def __init__(self, services, topic, produce):
        self.kafka = kl.KafkaLivenessResource(
            bootstrap_servers=services.bootstrap_servers,
            session_timeout_seconds=SESSION,
            heartbeat_interval_seconds=HEARTBEAT,
        )
        self.topic, self.group = topic, f"etl-{uuid4().hex[:8]}"
        self.tp = TopicPartition(topic, 3)
        self._produce, self._servers, self.log_end = produce, services.bootstrap_servers, 0

    def grow_to(self, log_end):
        self._produce(self._servers, self.topic, 3, map(str, range(self.log_end, log_end)))
        self.log_end = log_end

    def live(self, **settings):
        settings = {"enable_parallel_rebalance": True, "max_batch_seconds": 60, **settings}
        return self.kafka.consumer(topics=[self.topic], group_id=self.group, **settings)

    def catch_up(self, *ranges, **settings):
        owed = [kl.OffsetRange(self.topic, 3, *r) for r in ranges]
        return self.kafka.catch_up(group_id=self.group, ranges=owed, max_batch_seconds=60, **settings)

    def process(self, consumer, upto):
        """Poll and commit until the live lane has committed ``upto``."""
        while consumer.position(self.topic, 3) != upto:
            batch = consumer.poll(SECONDS, upto - (consumer.position(self.topic, 3) or 0))
            consumer.commit(batch)

    def crash(self, **settings):
        """Commit 70, be in the middle of 70-100, and die of an error."""
        self.grow_to(100)
        with pytest.raises(ZeroDivisionError), self.live(**settings) as consumer:
            self.process(consumer, 70)
            assert self.spans(consumer.poll(SECONDS).ranges) == [(70, 100)]
            raise ZeroDivisionError

    def recreate_topic(self, records):
        """Deleted and created again, with so many records."""
        recreate(AdminClient({"bootstrap.servers": self._servers, "log_level": 0}), self.topic)
        self.log_end = 0
        self.grow_to(records)

    def expire(self, log_start):
        """What the broker's retention does, at once."""
        at = KafkaTopicPartition(self.topic, 3, log_start)
        admin = AdminClient({"bootstrap.servers": self._servers, "log_level": 0})
        admin.delete_records([at])[at].result()

    def members(self):
        return self.kafka.cluster().members(self.group)

    def live_log(self):
        commit = self.kafka.cluster().commits(self.group, [self.tp])[self.tp]
        return commit.offset, LiveCommitMetadata.decode(commit.metadata)

    def spans(self, ranges):
        assert all(r.topic_partition == self.tp for r in ranges)
        return [tuple(r.span) for r in ranges]


def recreate(admin, topic):
    """Delete a topic and create it again, with as many partitions."""
    partitions = len(admin.list_topics(topic, timeout=60).topics[topic].partitions)
    admin.delete_topics([topic])[topic].result()
    wait_for(lambda: topic not in admin.list_topics(timeout=60).topics)
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()
    wait_for(lambda: topic in admin.list_topics(timeout=60).topics)


def join(world, consumer):
    """Poll until partition 3 is assigned; nothing new is in the log."""
    assert consumer.poll(0.0) is None or consumer.position(world.topic, 3) is not None

    def is_assigned():
        return consumer.position(world.topic, 3) is not None or consumer.poll(0.2)

    assert wait_for(is_assigned, what="partition 3 is assigned") is True, "nothing new is in the log"
