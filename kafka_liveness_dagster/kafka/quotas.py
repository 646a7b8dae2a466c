"""Find out whether the broker throttles the reads of a login.

A fetch response contains the delay that a quota imposes. The client library cannot list quotas (librdkafka
2.16 has no DescribeClientQuotas). Never changes anything and never fails: without a response the result is no
throttling.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_END, Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.kafka.clients import create_client

if TYPE_CHECKING:
    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.kafka.settings import KafkaSettings

CONNECT_SECONDS = 15.0  # for the first response
WAIT_SECONDS = 3.0  # for more responses
_CERTAIN_SECONDS = 1.0  # a delay that needs no further response
_LEAST_SECONDS = 0.01  # the shortest delay that is reported
CLIENT_ID = "kafka-liveness/throttling"


def measure_throttle_seconds(
    settings: KafkaSettings, tp: TopicPartition, seconds: float = WAIT_SECONDS
) -> float:
    """Return the delay that a quota imposes on this login's fetches now.

    0 without a quota, or without a response in time. All clients of a user share the user's quota, Spark's
    readers too. A quota per client id is not detected, because each of Spark's readers has its own id. The
    fetch is at the log end, so it uses nothing of the quota.

    Args:
        settings: settings of the cluster.
        tp: any partition that this login may read.
        seconds: how long to wait for more than one response.
    """
    delays: list[float] = []

    def hear(event: Any) -> None:
        """Caller: the client's poll. Affects: the returned delay."""
        delays.append(event.throttle_time)

    config = {**settings.reader_config(CLIENT_ID, CLIENT_ID), "fetch.wait.max.ms": 300, "throttle_cb": hear}
    try:
        client = create_client(Consumer, config)
        try:
            client.assign([KafkaTopicPartition(*tp, OFFSET_END)])
            give_up_at = time.monotonic() + CONNECT_SECONDS
            while max(delays, default=0.0) < _CERTAIN_SECONDS and time.monotonic() < give_up_at:
                if client.poll(0.1) is not None:  # connected; some responses may come without a delay
                    give_up_at = min(give_up_at, time.monotonic() + seconds)
        finally:
            client.close()
    except (KafkaException, KafkaLivenessError):
        return 0.0
    longest = max(delays, default=0.0)
    return longest if longest >= _LEAST_SECONDS else 0.0
