"""Which clients are kept open, to look at a cluster with? One per cluster, and one per group to read its commits."""

from __future__ import annotations

import functools
import logging
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.kafka.errors import Heard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kafka_liveness_dagster.kafka.config import KafkaSettings

_OPEN_READERS = 16  # each has 3 threads, one more for every broker, and 2 connections
_readers: dict[tuple[str, KafkaSettings], Consumer] = {}  # the longest unused first
_lock = threading.Lock()
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


def reader(group_id: str, settings: KafkaSettings) -> Consumer:
    """A consumer that never subscribes, to read a group's commits with; the same one again while it is kept.

    ``AdminClient.list_consumer_group_offsets`` of confluent-kafka 2.16.1 ends the process (SIGSEGV) when the broker
    answers NOT_COORDINATOR, which every cluster does when a coordinator moves.
    """
    with _lock:
        found = _readers.pop((group_id, settings), None)
        if found is None:
            config = settings.committer(group_id, "kafka-liveness/reader")
            found = made(Consumer, {"reconnect.backoff.ms": _READER_BACKOFF_MS, **config})
        _readers[group_id, settings] = found
        over = [_readers.pop(next(iter(_readers)))] if len(_readers) > _OPEN_READERS else []
    _end(over)
    return found


def forget(settings: KafkaSettings | None = None) -> None:
    """Keep no reader of this cluster, or of any: each looks for its coordinator all the time.

    Of a broker that is away they would ask so often that 60 of them took half a processor.
    """
    with _lock:
        gone = [_readers.pop(key) for key in list(_readers) if settings is None or key[1] == settings]
    _end(gone)


def _end(clients: list[Consumer]) -> None:
    """In a thread of its own, for it may take a second: whoever is still using one ends it in the end."""
    if clients:
        threading.Thread(target=clients.clear, name="kafka-liveness-forget", daemon=True).start()
