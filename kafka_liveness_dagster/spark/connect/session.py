"""Open and close sessions on a Spark Connect server.

Waits for a busy server; fails at once if there is no server. Never shares a session, and never uses PySpark's
active one. So a caller can interrupt, configure and stop its session without an effect on other sessions.
"""

from __future__ import annotations

import atexit
import math
import os
import re
import socket
import threading
import time
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 (PySpark's usual alias)
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.proto import ReleaseSessionRequest, SparkConnectServiceStub
from pyspark.sql.connect.session import SparkSession as ConnectSession

from kafka_liveness_dagster.concurrency import run_in_daemon_thread, start_daemon_thread
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.spark.connect.connection import SparkConnection, connection_of, redact
from kafka_liveness_dagster.spark.errors import SparkUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

CONNECT_TIMEOUT_SECONDS = 120.0
"""Time limit of ``connect`` for a server that accepts connections.

Under load, or during garbage collection, a server takes minutes to open a session.
"""
ACCEPT_TIMEOUT_SECONDS = 10.0
"""Time limit of ``connect`` for an address that accepts no connection."""
_ACCEPT_CHECK_SECONDS = 2.0
_UNREACHABLE = re.compile(
    "Connection refused|errors resolving|DNS resolution failed|No route to host|Network is unreach"
)
_SLOW_RESPONSE = re.compile("before receiving SETTINGS|Handshake read failed|[Tt]imed? ?out")
_WHILE_WORKING = DefaultPolicy(max_retries=12, max_backoff=3_000)
"""Retries for half a minute. PySpark's default is over ten, but a restart loses the session anyway."""
CLOSE_TIMEOUT_SECONDS = 5.0
"""Time limit of ``close`` for the server; after it aborts the connection, it waits once more as long."""
_open_sessions: list[SparkSession] = []
"""All sessions of this process, including stopped ones, so that none is ever garbage collected.

PySpark closes a session again in ``__del__`` and waits for threads that all sessions share. If the garbage
collector does that inside another session's gRPC call, both wait indefinitely (seen with 4.1.3).
"""
_SECRETS_IN_PLANS = r"""(?:LoginModule required|PRIVATE KEY-----|ssl\.key\.password"\s*value:)[^\n]*"""
"""Lines with secrets: Spark Connect shows the options of a read in its UI and event log, one per line."""
_REDACTED = "spark.sql.redaction.string.regex"
_V1_SOURCES_SETTING = "spark.sql.sources.useV1SourceList"
"""Setting with the sources that Spark reads by its V1 interface.

Kafka's V1 source converts each record into a Java object and back.
"""


class _RetryWhileStarting(DefaultPolicy):  # type: ignore[misc]
    """A retry policy: every 0.2 s, but not at an address without a listener.

    Attributes:
        problem: gRPC's message of the last failed attempt.
        is_absent: whether nothing listens at the address.
    """

    def __init__(self, endpoint: str) -> None:
        super().__init__(max_retries=10_000, backoff_multiplier=1, initial_backoff=200)
        self._host, _, self._port = endpoint.rpartition(":")
        self.problem = ""
        self.is_absent = False
        self._checked_at = -math.inf
        self._accepts = False

    def can_retry(self, e: BaseException) -> bool:
        """Return whether to retry. Caller: PySpark, after an attempt. Affects: the error of ``connect``."""
        self.problem = str(getattr(e, "details", lambda: e)())
        # gRPC reports only the last of several addresses: ::1 refuses, although 127.0.0.1 may just be slow
        self.is_absent = bool(_UNREACHABLE.search(self.problem)) and not self.has_listener()
        return bool(super().can_retry(e)) and not self.is_absent

    def has_listener(self) -> bool:
        """Return whether something listens at the address.

        The check runs once in 2 s at most, because more connections would slow a busy server.
        """
        now = time.monotonic()
        if now - self._checked_at >= _ACCEPT_CHECK_SECONDS:
            self._checked_at = now
            self._accepts = self._try_connect()
        return self._accepts

    def _try_connect(self) -> bool:
        try:
            socket.create_connection((self._host.strip("[]"), int(self._port)), timeout=1).close()
        except OSError:
            return False
        return True

    def is_slow(self) -> bool:
        """Return whether a server listens at the address, and has refused nothing so far."""
        is_patient = (
            not self.problem or _SLOW_RESPONSE.search(self.problem) or _UNREACHABLE.search(self.problem)
        )
        return bool(is_patient) and self.has_listener()


def connect(
    remote: str,
    *,
    timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    session_id: str | None = None,
    report: Callable[[str], object] = lambda _: None,
) -> SparkSession:
    """Open a session for the caller alone on the server at ``remote``; end it with ``close(session)``.

    Args:
        remote: a Spark Connect URL, like ``sc://localhost:15002/;token=…``.
        timeout_seconds: time limit for a server that accepts connections. An address without a server fails
            at once, and an address that does not respond at all after 10 s.
        session_id: a UUID that no session has had, unless ``remote`` names one; None for a random one. Others
            can end the session by it.
        report: called with a sentence when ``connect`` starts to wait for a slow server.

    Raises:
        SparkUnreachableError: there is no server, it was not ready in time, or it refused the token.
        InvalidSettingError: ``remote`` is not a Spark Connect URL.
    """
    line = _open_connection(remote, session_id)
    session = _create_session(line)
    _open_sessions.append(session)
    # At exit PySpark would clean a cache of MLlib models, which this package never fills. If the server died,
    # that takes minutes of retries. Spark 4.0 has no such cache
    if tidy := getattr(session.client, "_cleanup_ml_cache", None):
        atexit.unregister(tidy)
    starting = _RetryWhileStarting(line.endpoint)
    session.client.set_retry_policies([starting])
    refused = _first_query(session, starting, timeout_seconds, say=report)
    if refused is not None:
        line.abort("a session was being opened")
        raise SparkUnreachableError(
            _unreachable_error(remote, refused, starting, timeout_seconds=timeout_seconds)
        )
    session.client.set_retry_policies([_WHILE_WORKING])
    return session


def close(session: SparkSession) -> None:
    """End a session in seconds; on a server that does not respond, the session expires by itself."""
    ended = threading.Event()

    def stop() -> None:
        with suppress(Exception):  # the server is unavailable; it lets the session expire
            session.stop()
        ended.set()

    session.client.set_retry_policies([])
    if start_daemon_thread(stop, "spark-connect-bye") and not ended.wait(CLOSE_TIMEOUT_SECONDS):
        connection_of(session).abort("a session was being closed")
        ended.wait(CLOSE_TIMEOUT_SECONDS)


def end_session(remote: str, session_id: str) -> None:
    """End a session of a process that is gone, which stops its jobs. Ended or unknown sessions are left.

    The server keeps a job without its client for minutes, and the job takes the cores from others.

    Raises:
        grpc.RpcError: the server refused, or did not respond in time.
    """
    line = _open_connection(remote, session_id)
    request = ReleaseSessionRequest(session_id=session_id, client_type=line.userAgent)
    # As PySpark chooses it: the server knows a session by its user and its id
    request.user_context.user_id = line.userId or os.getenv("SPARK_USER", os.getenv("USER", ""))
    channel = (
        line.toChannel()
    )  # without PySpark's client, whose end waits for threads that all sessions share
    try:
        SparkConnectServiceStub(channel).ReleaseSession(request, metadata=line.metadata())
    finally:
        channel.close()


@contextmanager
def as_active_session(session: SparkSession) -> Iterator[None]:
    """Make this the active session of PySpark in this thread.

    PySpark uses the active session for calls without a session, for example to parse a type given as text.
    """
    threads: Any = ConnectSession._active_session  # noqa: SLF001 - PySpark has no public setter
    before = getattr(threads, "session", None)
    threads.session = session
    try:
        yield
    finally:
        threads.session = before


def _create_session(line: SparkConnection) -> SparkSession:
    """Create a session that does not become PySpark's active or default session.

    PySpark reads settings from the active session, even from one that the server refused.
    """
    threads: Any = ConnectSession._active_session  # noqa: SLF001
    before = getattr(threads, "session", None), ConnectSession._default_session  # noqa: SLF001
    try:
        session: SparkSession = ConnectSession.builder.channelBuilder(line).create()
        return session
    finally:
        threads.session, ConnectSession._default_session = before  # noqa: SLF001


def _open_connection(remote: str, session_id: str | None = None) -> SparkConnection:
    try:
        line = SparkConnection(remote)
        if session_id is not None and line.session_id is None:
            line.set(line.PARAM_SESSION_ID, session_id)
    except (PySparkException, ValueError) as error:
        raise InvalidSettingError(
            f"{redact(remote)!r} is not a Spark Connect URL ({_refusal_reason(error, remote)}). No session "
            "was opened. Fix: write it as sc://host:port/;token=…"
        ) from None
    return line


def _hide_secrets(session: SparkSession) -> None:
    """Hide the secrets of Kafka options in the server's UI and event log, whatever the server's settings."""
    theirs = session.conf.get(_REDACTED, None)
    session.conf.set(_REDACTED, f"{theirs}|{_SECRETS_IN_PLANS}" if theirs else _SECRETS_IN_PLANS)


def _use_new_kafka_reader(session: SparkSession) -> None:
    """Use the Kafka reader of Structured Streaming (V2) for this session.

    For a batch of 100,000 records it needs a fifth less processor time.
    """
    sources = str(session.conf.get(_V1_SOURCES_SETTING)).split(",")
    session.conf.set(_V1_SOURCES_SETTING, ",".join(one for one in sources if one.strip().lower() != "kafka"))


def _first_query(
    session: SparkSession, starting: _RetryWhileStarting, timeout_seconds: float, say: Callable[[str], object]
) -> BaseException | None:
    """Return why the server refused this session, or None.

    The query runs in a thread, because PySpark's calls have no time limit.
    """

    def greet() -> None:
        # Once per process, PySpark reads from the active session how to call functions. This thread has no
        # active session. In another thread it may be a notebook's, lost with its server: 4.1.3 then fails
        # with [NO_ACTIVE_SESSION]
        F.col("value")
        _ = session.version
        _hide_secrets(session)
        _use_new_kafka_reader(session)

    answer = run_in_daemon_thread(greet, "spark-connect-hello")
    at_first = min(ACCEPT_TIMEOUT_SECONDS, timeout_seconds)
    wait([answer], at_first)
    if not answer.done() and timeout_seconds > at_first and starting.is_slow():
        say(
            f"Spark Connect at {connection_of(session).address} accepts connections, and opened no session "
            f"in {at_first:.0f} s. Waiting up to {timeout_seconds:.0f} s (connect_timeout_seconds)"
        )
        wait([answer], timeout_seconds - at_first)
    if not answer.done():
        return TimeoutError()
    return answer.exception()


def _unreachable_error(
    remote: str, refused: BaseException, starting: _RetryWhileStarting, timeout_seconds: float
) -> str:
    if isinstance(refused, TimeoutError) or starting.is_absent:
        within = "" if starting.is_absent else f" within {timeout_seconds:.0f} s"
        of_last = f" ({_refusal_reason(Exception(starting.problem), remote)})" if starting.problem else ""
        return (
            f"no Spark Connect server answered at {redact(remote)}{within}{of_last}. Fix: start one "
            "(`kafka-liveness up` starts one on this machine), correct the address, or check the server's "
            "log and load. For a busy server raise connect_timeout_seconds of SparkConnectResource. With a "
            "token, a server on another host needs use_ssl=true as well."
        )
    return (
        f"Spark Connect at {redact(remote)} gave no session ({_refusal_reason(refused, remote)}). Fix: "
        "check the token in the URL, that client and server have the same Spark version, and the server's "
        "log. A server that ran out of memory answers like this until its process is gone. "
        "`kafka-liveness up` restarts the embedded one."
    )


def _refusal_reason(error: BaseException, remote: str) -> str:
    text = str(error).strip() or type(error).__name__
    detail = re.search(r'details = "(.*)"', text)  # the first line of a bare gRPC error has no cause
    line = detail[1] if detail else text.splitlines()[0]
    token = re.search(r";token=([^;]+)", remote)
    return line.replace(token[1], "***") if token else line
