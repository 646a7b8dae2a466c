"""What can go wrong before the embedded services answer. Nothing was consumed, committed or written by then."""

from __future__ import annotations

from kafka_liveness_dagster.core.errors import KafkaLivenessError


class JavaNotFoundError(KafkaLivenessError):
    """There is no Java, or none new enough."""


class JarsError(KafkaLivenessError):
    """The jars could not be downloaded; what was downloaded so far is dropped."""


class PortTakenError(KafkaLivenessError):
    """A port that was asked for by number is in use by another program."""


class ServiceNotStartedError(KafkaLivenessError):
    """A service ended or did not answer in time; nothing of it is left running."""


class ServicesDownError(KafkaLivenessError):
    """``kafka-liveness down`` stopped the services, and only ``kafka-liveness up`` starts them again."""
