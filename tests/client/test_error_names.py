"""What a broker's silence is called, in whichever of librdkafka's words it comes."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from kafka_liveness_dagster.kafka.errors import (
    AccessRefusedError,
    BrokerUnreachableError,
    ErrorListener,
    is_rebalance_in_progress,
    is_transient,
    to_package_error,
)
from kafka_liveness_dagster.kafka.settings import KafkaSettings

SILENCE = {
    KafkaError._TIMED_OUT: "sent, and no answer",
    KafkaError._TIMED_OUT_QUEUE: "not sent: those before it on the connection had no answer",
}


@pytest.mark.parametrize("code", SILENCE, ids=SILENCE.values())
def test_silence_may_pass(code):
    """No refusal: a look asks again, a commit of a member in rebalance too, and a consumer polls on."""
    error = KafkaError(code)
    assert isinstance(to_package_error(error, "reading", "kafka:9092"), BrokerUnreachableError)
    assert is_rebalance_in_progress(error)
    assert is_transient(error)


def test_a_login_that_is_renewed_ends_no_membership():
    """A token that expires soon makes a session of a second, in which the broker refuses another login."""
    cut_off = KafkaError(
        KafkaError._AUTHENTICATION, "FindCoordinator response error: Local: Authentication failure"
    )
    assert is_transient(cut_off)
    assert is_rebalance_in_progress(cut_off)
    assert isinstance(to_package_error(cut_off, "committing", "b:9092"), BrokerUnreachableError)
    heard = ErrorListener(KafkaSettings("b:9092"))
    heard(
        KafkaError(
            KafkaError._AUTHENTICATION, "handshake failed: Broker: Request not valid in current SASL state"
        )
    )
    silence = KafkaError(KafkaError._TRANSPORT)
    assert isinstance(heard.to_package_error(silence, "looking"), BrokerUnreachableError)
    heard(KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error: invalid_token"))
    assert isinstance(heard.to_package_error(silence, "looking"), AccessRefusedError)
    assert isinstance(heard.to_package_error(cut_off, "looking"), AccessRefusedError)


def test_a_refusal_of_long_ago_explains_no_silence(monkeypatch):
    """A short failure of a token server is no reason to end a run that waits for a broker an hour later."""
    heard = ErrorListener(KafkaSettings("b:9092"))
    heard(KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error: invalid_token"))
    monkeypatch.setattr("kafka_liveness_dagster.kafka.errors.RECENT_REFUSAL_SECONDS", 0.0)
    assert isinstance(
        heard.to_package_error(KafkaError(KafkaError._TRANSPORT), "looking"), BrokerUnreachableError
    )
