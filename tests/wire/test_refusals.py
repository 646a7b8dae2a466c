"""What a broker's silence is called, in whichever of librdkafka's words it comes."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError, is_held_up, is_passing, named

SILENCE = {
    KafkaError._TIMED_OUT: "sent, and no answer",
    KafkaError._TIMED_OUT_QUEUE: "not sent: those before it on the connection had no answer",
}


@pytest.mark.parametrize("code", SILENCE, ids=SILENCE.values())
def test_silence_may_pass(code):
    """No refusal: a look asks again, a commit of a member in rebalance too, and a consumer polls on."""
    error = KafkaError(code)
    assert isinstance(named(error, "reading", "kafka:9092"), BrokerUnreachableError)
    assert is_held_up(error)
    assert is_passing(error)
