"""Answers of a cluster, and their meaning."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import OFFSET_INVALID
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.kafka import admin
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.group_description import CommittedOffset
from kafka_liveness_dagster.kafka.settings import KafkaSettings

AT, NEVER = (TopicPartition("orders", p) for p in range(2))


@pytest.mark.parametrize("offset", [0, 70])
def test_a_commit_at_the_first_offset_is_a_commit(monkeypatch, offset):
    """The client gives a negative offset for a partition without a commit.

    Only there the reset policy decides.
    """
    answer = [
        KafkaTopicPartition(*AT, offset, "kl1 running 0badcafe @-"),
        KafkaTopicPartition(*NEVER, OFFSET_INVALID),
    ]
    client = SimpleNamespace(committed=lambda _partitions, timeout: answer)
    monkeypatch.setattr(admin, "admin_client", lambda _settings: (None, None))
    monkeypatch.setattr(admin, "commit_reader", lambda _group_id, _settings: client)
    found = Cluster(KafkaSettings("127.0.0.1:1")).commits("orders-etl", [AT, NEVER])
    assert found == {AT: CommittedOffset(offset, "kl1 running 0badcafe @-")}, "a commit at 0 counts"
