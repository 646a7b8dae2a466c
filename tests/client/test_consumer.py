"""Decisions of a consumer before it joins its group."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.batch_size import SlowRecordError
from kafka_liveness_dagster.core.fencing import RunState
from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
from kafka_liveness_dagster.core.timeouts import BrokerLimits, ConsumerGroupConfig, RunBudget, derive_timeouts
from kafka_liveness_dagster.kafka.live import consumer as module
from kafka_liveness_dagster.kafka.live.consumer import LivenessConsumer
from kafka_liveness_dagster.kafka.live.session import GroupSession
from kafka_liveness_dagster.kafka.run_context import RunContext, now_ms
from kafka_liveness_dagster.kafka.settings import KafkaSettings, LiveSettings

AT = TopicPartition("orders", 3)


@pytest.fixture
def link():
    """The run of the consumer."""
    return RunContext(
        "0badcafe", "dagster/job/0badcafe/step", lambda: RunState.IN_PROGRESS, on_first_commit=Mock()
    )


@pytest.fixture
def consumer(link, monkeypatch):
    """A consumer that has not joined its group; a batch may take a minute."""
    monkeypatch.setattr(module, "Cluster", lambda _kafka: None)
    limits = BrokerLimits(1_000, 60_000)
    timeouts = derive_timeouts(
        RunBudget(60, "argument"), session_seconds=None, heartbeat_seconds=None, limits=limits
    )
    with LivenessConsumer(
        KafkaSettings("127.0.0.1:1"), LiveSettings(("orders",), "g"), timeouts, link
    ) as made:
        yield made


def test_an_offset_that_the_live_lane_could_not_pass_ends_the_run(consumer):
    """The commit metadata has no room for one range more: the run would meet the offset with each poll."""
    poison = OffsetRange("orders", 3, 70, 71)
    consumer.quarantine(poison)
    consumer.quarantine(OffsetRange("orders", 3, 80, 81))
    with pytest.raises(SlowRecordError, match="has too many pending ranges"):
        consumer.quarantine(poison)


def test_what_settling_took_is_not_the_next_batchs(consumer, monkeypatch):
    """Late records of a dead run are counted in it, from Kafka."""
    elapsed = []

    def forget_done():
        consumer._timer.polled_at_ms -= 50_000

    def plan(_wanted):
        elapsed.append(consumer._timer.elapsed_ms(now_ms()))

    lane = SimpleNamespace(prune_pending=forget_done, plan=plan)
    monkeypatch.setattr(consumer._session, "join_and_poll", lambda _seconds: lane)
    assert consumer.poll(0.0) is None
    assert elapsed[0] < 40_000


def test_the_turn_goes_on_behind_the_partition_of_the_last_commit(consumer, link, monkeypatch):
    """Else one partition would come first in every batch.

    ``on_first_commit`` is called at the first commit only.
    """
    monkeypatch.setattr(GroupSession, "commit", lambda _session, _batch: ())
    for _ in range(2):
        consumer.commit(Batch((OffsetRange("orders", 3, 120, 150),), 60.0, rotation_start=AT))
    assert consumer._rotation.committed == AT
    link.on_first_commit.assert_called_once_with()


@pytest.mark.parametrize(
    "settings",
    [{"session_timeout_seconds": 45.0}, {"group_protocol": "consumer"}],
    ids=["classic", "KIP-848"],
)
def test_a_process_timeout_that_was_raised_is_a_warning_in_the_log(monkeypatch, caplog, settings):
    """A budget of 30 s under a session of 45 s: one behavior on both protocols, before anything is joined."""
    cluster = SimpleNamespace(
        broker_limits=lambda: BrokerLimits(6_000, 1_800_000),
        consumer_group_config=lambda _group: ConsumerGroupConfig(45_000, 5_000),
    )
    monkeypatch.setattr(kl.KafkaLivenessResource, "cluster", lambda _self: cluster)
    monkeypatch.setattr(module, "Cluster", lambda _kafka: None)
    kafka = kl.KafkaLivenessResource(bootstrap_servers="127.0.0.1:1", **settings)
    with (
        caplog.at_level(logging.WARNING),
        kafka.consumer(topics=["orders"], group_id="g", max_batch_seconds=30) as one,
    ):
        assert one.timeouts.process_timeout_ms == 45_000
    assert caplog.messages == [one.timeouts.warning]
    assert "30 s (argument max_batch_seconds) to the session timeout, 45 s" in one.timeouts.warning
