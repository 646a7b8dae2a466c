"""Which clients are kept open, to look at a cluster with? One per cluster, and one per group to read its commits."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.kafka.errors import Heard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kafka_liveness_dagster.kafka.config import KafkaSettings

_OPEN_READERS = 64  # each has 3 threads, one more for every broker, and 2 connections
_Client = TypeVar("_Client", AdminClient, Consumer, Producer)
_READER_BACKOFF_MS = 20  # a new client waits half of it for its coordinator; librdkafka's 100 ms cost 50 a look
quiet_log = logging.getLogger("kafka_liveness_dagster.librdkafka")
quiet_log.addHandler(logging.NullHandler())
quiet_log.propagate = False  # a refused connection is reported once, by our own error


def logger_of(config: Mapping[str, Any]) -> logging.Logger | None:
    """Where a client logs to; with ``debug`` set librdkafka writes by itself, for a logger is served by polls alone."""
    return None if "debug" in config else quiet_log


def made(kind: Callable[..., _Client], config: Mapping[str, Any]) -> _Client:
    """A client of this kind.

    Raises:
        InvalidSettingError: librdkafka refuses a setting; some are refused by one kind of client alone.
    """
    try:
        return kind(config, logger=logger_of(config))
    except KafkaException as error:
        raise InvalidSettingError(f"librdkafka refuses the settings: {error.args[0].str()}") from error


@functools.lru_cache(maxsize=16)
def admin_client(settings: KafkaSettings) -> tuple[AdminClient, Heard]:
    """One connection per cluster and process: making and closing one costs more than the questions asked."""
    heard = Heard(settings)
    config = {**settings.client("kafka-liveness/admin"), "error_cb": heard}
    return made(AdminClient, config), heard


@functools.lru_cache(maxsize=_OPEN_READERS)
def reader(group_id: str, settings: KafkaSettings) -> Consumer:
    """A consumer that never subscribes, to read a group's commits with.

    ``AdminClient.list_consumer_group_offsets`` of confluent-kafka 2.16.1 ends the process (SIGSEGV) when the broker
    answers NOT_COORDINATOR, which every cluster does when a coordinator moves.
    """
    config = {"reconnect.backoff.ms": _READER_BACKOFF_MS, **settings.committer(group_id, "kafka-liveness/reader")}
    return made(Consumer, config)
