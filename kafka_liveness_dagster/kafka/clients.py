"""Keep clients open: one per cluster for read-only requests, and one per group to read its commits.

A client reads its certificates when it is created. If their files changed since, it is created again. Never
joins a group.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from kafka_liveness_dagster.concurrency import start_daemon_thread
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.kafka.errors import ErrorListener

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kafka_liveness_dagster.kafka.settings import KafkaSettings

MAX_OPEN_READERS = 16  # each has 3 threads, one more for every broker, and 2 connections
_MAX_OPEN_ADMINS = 16
_cached_readers: dict[tuple[str, KafkaSettings], tuple[int, Consumer]] = {}  # least recently used first
_cached_admins: dict[KafkaSettings, tuple[int, tuple[AdminClient, ErrorListener]]] = {}  # the same order
_lock = threading.Lock()
_Client = TypeVar("_Client", AdminClient, Consumer, Producer)
_Key = TypeVar("_Key")
_Cached = TypeVar("_Cached")
quiet_log = logging.getLogger("kafka_liveness_dagster.librdkafka")
quiet_log.addHandler(logging.NullHandler())
quiet_log.propagate = False  # our own error reports a refused connection, once


def logger_for(config: Mapping[str, Any]) -> logging.Logger | None:
    """Return the logger of a client; None lets librdkafka write by itself.

    That is so with ``debug`` set, because only polls serve a logger.
    """
    return None if "debug" in config else quiet_log


def create_client(kind: Callable[..., _Client], config: Mapping[str, Any]) -> _Client:
    """Create a client of this kind.

    Raises:
        InvalidSettingError: librdkafka refuses a setting; some settings only one kind of client refuses.
    """
    try:
        return kind(config, logger=logger_for(config))
    except KafkaException as error:
        raise InvalidSettingError(
            f"librdkafka refuses the settings: {error.args[0].str()}. Fix: correct this setting in "
            "extra of the resource, or in the file of --command-config"
        ) from error


def admin_client(settings: KafkaSettings) -> tuple[AdminClient, ErrorListener]:
    """Return the one admin client of this process for a cluster, and its error listener.

    Creating and closing a client costs more than the requests.
    """

    def make() -> tuple[AdminClient, ErrorListener]:
        heard = ErrorListener(settings)
        return create_client(
            AdminClient, {**settings.client_config("kafka-liveness/admin"), "error_cb": heard}
        ), heard

    return _cached_client(
        _cached_admins,
        settings,
        settings.security.certificates_fingerprint,
        create=make,
        max_clients=_MAX_OPEN_ADMINS,
    )


def commit_reader(group_id: str, settings: KafkaSettings) -> Consumer:
    """Return a consumer that reads a group's commits and never subscribes; it is cached.

    ``AdminClient.list_consumer_group_offsets`` of confluent-kafka 2.16.1 ends the process (SIGSEGV) when the
    broker answers NOT_COORDINATOR, which every cluster does when a coordinator moves.
    """
    return _cached_client(
        _cached_readers,
        (group_id, settings),
        settings.security.certificates_fingerprint,
        create=lambda: new_commit_reader(group_id, settings),
        max_clients=MAX_OPEN_READERS,
    )


def new_commit_reader(group_id: str, settings: KafkaSettings) -> Consumer:
    """Return a consumer like ``commit_reader``, which is closed when its last user drops it."""
    return create_client(Consumer, settings.committer_config(group_id, "kafka-liveness/reader"))


def close_readers(settings: KafkaSettings | None = None) -> None:
    """Close the readers of this cluster, or of all: each searches its coordinator all the time.

    If a broker is unavailable, they retry so often that 60 of them took half a processor.
    """
    with _lock:
        gone = [
            _cached_readers.pop(key)
            for key in list(_cached_readers)
            if settings is None or key[1] == settings
        ]
    _close_in_background(gone)


def _cached_client(
    cache: dict[_Key, tuple[int, _Cached]],
    key: _Key,
    fingerprint: int,
    create: Callable[[], _Cached],
    max_clients: int,
) -> _Cached:
    """Return the client cached under this key, or a new one if the certificates changed."""
    gone = []
    with _lock:
        found = cache.pop(key, None)
        if found is not None and found[0] != fingerprint:
            gone.append(found)
            found = None
        cache[key] = found = found or (fingerprint, create())
        if len(cache) > max_clients:
            gone.append(cache.pop(next(iter(cache))))
    _close_in_background(gone)
    return found[1]


def _close_in_background(clients: list[Any]) -> None:
    """Drop clients in a thread of its own, because closing may take a second.

    A client that is still in use is closed when its last user drops it.
    """
    if clients:
        # If no thread can be started, the clients end with the process
        start_daemon_thread(clients.clear, "kafka-liveness-forget")
