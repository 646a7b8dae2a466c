"""Decisions of a consumer before it joins its group."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.batch_sizer import PoisonedOffsetError
from kafka_liveness_dagster.core.heartbeat import RunState
from kafka_liveness_dagster.core.limits import BrokerLimits
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.timeouts import Budget, derive
from kafka_liveness_dagster.kafka import consumer as module
from kafka_liveness_dagster.kafka.config import KafkaSettings, LiveSettings
from kafka_liveness_dagster.kafka.consumer import LivenessConsumer
from kafka_liveness_dagster.kafka.link import RunLink


@pytest.fixture
def consumer(monkeypatch):
    """A consumer that has not joined its group; a batch may take a minute."""
    monkeypatch.setattr(module, "Cluster", lambda _kafka: None)
    limits = BrokerLimits(1_000, 60_000)
    timeouts = derive(Budget(60, "argument"), session_seconds=None, heartbeat_seconds=None, limits=limits)
    link = RunLink("0badcafe", "dagster/job/0badcafe/step", lambda: RunState.IN_PROGRESS)
    with LivenessConsumer(KafkaSettings("127.0.0.1:1"), LiveSettings(("orders",), "g"), timeouts, link) as made:
        yield made


def test_an_offset_that_the_live_lane_could_not_pass_ends_the_run(consumer):
    """The commit metadata has no room for one range more: the run would meet the offset with each poll."""
    poison = OffsetRange("orders", 3, 70, 71)
    consumer.quarantine(poison)
    consumer.quarantine(OffsetRange("orders", 3, 80, 81))
    with pytest.raises(PoisonedOffsetError, match="owes too many ranges"):
        consumer.quarantine(poison)
