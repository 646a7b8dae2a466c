"""Open and end sessions on a Spark Connect server.

Waits for a busy server; fails at once where there is none. Never shares a session, and never uses the
process's own. Each caller's own is interrupted, configured and stopped without touching another's.
"""

from __future__ import annotations

import atexit
import math
import re
import socket
import threading
import time
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession as ConnectSession

from kafka_liveness_dagster.concurrency import run_in_daemon_thread, start_daemon_thread
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.spark.connect.connection import SparkConnection, connection_of, redact
from kafka_liveness_dagster.spark.errors import SparkUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

CONNECT_TIMEOUT_SECONDS = 120.0
"""For a server that accepts connections.

Under load, or while it collects garbage, it opens a session in minutes.
"""
ACCEPT_TIMEOUT_SECONDS = 10.0
"""Time limit of ``connect`` for an address that accepts no connection."""
_ACCEPT_CHECK_SECONDS = 2.0
_UNREACHABLE = re.compile(
    "Connection refused|errors resolving|DNS resolution failed|No route to host|Network is unreach"
)
_SLOW_RESPONSE = re.compile("before receiving SETTINGS|Handshake read failed|[Tt]imed? ?out")
_WHILE_WORKING = DefaultPolicy(max_retries=12, max_backoff=3_000)
"""Half a minute; pyspark's default is over ten, and a server that restarted has lost the session anyway."""
CLOSE_TIMEOUT_SECONDS = 5.0
"""Time limit of ``close`` for the server, once more after it gives the connection up."""
_open_sessions: list[SparkSession] = []
"""Every session of this process, stopped ones too. pyspark closes a session again in ``__del__``, waiting for
threads it shares with all sessions; when the garbage collector does that inside another session's gRPC call,
both wait indefinitely (seen with 4.1.3). So none is ever collected."""
_SECRETS_IN_PLANS = r"""(?:LoginModule required|PRIVATE KEY-----|ssl\.key\.password"\s*value:)[^\n]*"""
"""Spark Connect shows the options of a read in its UI and its event log, as text: a line of it each."""
_REDACTED = "spark.sql.redaction.string.regex"
_V1_SOURCES_SETTING = "spark.sql.sources.useV1SourceList"
"""Sources that Spark reads by its first interface.

Kafka's turns each record into an object of Java's and back.
"""


class _RetryWhileStarting(DefaultPolicy):  # type: ignore[misc]
    """Retry every 0.2 s, but not where nobody listens.

    Attributes:
        problem: of the last attempt that failed, in gRPC's words.
        is_absent: whether nobody listens.
    """

    def __init__(self, endpoint: str) -> None:
        super().__init__(max_retries=10_000, backoff_multiplier=1, initial_backoff=200)
        self._host, _, self._port = endpoint.rpartition(":")
        self.problem = ""
        self.is_absent = False
        self._checked_at = -math.inf
        self._accepts = False

    def can_retry(self, e: BaseException) -> bool:
        """Caller: pyspark, after an attempt. Affects: what ``connect`` says in the end."""
        self.problem = str(getattr(e, "details", lambda: e)())
        # Of several addresses gRPC names the last one: ::1 refuses, and 127.0.0.1 may be slow
        self.is_absent = bool(_UNREACHABLE.search(self.problem)) and not self.has_listener()
        return bool(super().can_retry(e)) and not self.is_absent

    def has_listener(self) -> bool:
        """Whether something listens there.

        Looked at once in 2 s, since a busy server is not to be asked more often.
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
        """Whether something listens there, and has refused nothing so far."""
        is_patient = (
            not self.problem or _SLOW_RESPONSE.search(self.problem) or _UNREACHABLE.search(self.problem)
        )
        return bool(is_patient) and self.has_listener()


def connect(
    remote: str,
    *,
    timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    report: Callable[[str], object] = lambda _: None,
) -> SparkSession:
    """Open a session of the caller's own on the server at ``remote``; end it with ``close(session)``.

    Args:
        remote: a Spark Connect URL, like ``sc://localhost:15002/;token=…``.
        timeout_seconds: how long a server that accepts connections may take. One that is not there fails at
            once, and an address that does not respond at all after 10 s.
        report: gets a sentence when a slow server is waited for.

    Raises:
        SparkUnreachableError: there is no server, it was not ready in time, or it refused the token.
        InvalidSettingError: ``remote`` is not a Spark Connect URL.
    """
    line = _open_connection(remote)
    session = _create_session(line)
    _open_sessions.append(session)
    # At exit pyspark would tidy a cache of MLlib models that nobody here has: minutes of retries if the
    # server died. Spark 4.0 has none, and asks nothing then
    if tidy := getattr(session.client, "_cleanup_ml_cache", None):
        atexit.unregister(tidy)
    starting = _RetryWhileStarting(line.endpoint)
    session.client.set_retry_policies([starting])
    refused = _first_query(session, starting, timeout_seconds, say=report)
    if refused is not None:
        line.abort("it was to open a session")
        raise SparkUnreachableError(
            _unreachable_error(remote, refused, starting, timeout_seconds=timeout_seconds)
        )
    session.client.set_retry_policies([_WHILE_WORKING])
    return session


def close(session: SparkSession) -> None:
    """End a session, in seconds: what a server that does not answer holds of it expires there by itself."""
    ended = threading.Event()

    def stop() -> None:
        with suppress(Exception):  # the server is away: what it holds of the session expires there
            session.stop()
        ended.set()

    session.client.set_retry_policies([])
    if start_daemon_thread(stop, "spark-connect-bye") and not ended.wait(CLOSE_TIMEOUT_SECONDS):
        connection_of(session).abort("its session was to be ended")
        ended.wait(CLOSE_TIMEOUT_SECONDS)


@contextmanager
def as_active_session(session: SparkSession) -> Iterator[None]:
    """Let this be the session that pyspark asks where it is given none, in this thread.

    For a type that is text.
    """
    threads: Any = ConnectSession._active_session  # noqa: SLF001 - it can be set there alone
    before = getattr(threads, "session", None)
    threads.session = session
    try:
        yield
    finally:
        threads.session = before


def _create_session(line: SparkConnection) -> SparkSession:
    """A session that pyspark takes for nobody's.

    It asks the active one for settings, also one that was refused.
    """
    threads: Any = ConnectSession._active_session  # noqa: SLF001
    before = getattr(threads, "session", None), ConnectSession._default_session  # noqa: SLF001
    try:
        session: SparkSession = ConnectSession.builder.channelBuilder(line).create()
        return session
    finally:
        threads.session, ConnectSession._default_session = before  # noqa: SLF001


def _open_connection(remote: str) -> SparkConnection:
    try:
        return SparkConnection(remote)
    except (PySparkException, ValueError) as error:
        raise InvalidSettingError(
            f"{redact(remote)!r} is not a Spark Connect URL ({_refusal_reason(error, remote)}): wanted "
            "sc://host:port/;token=…"
        ) from None


def _hide_secrets(session: SparkSession) -> None:
    """Hide the secrets of Kafka options in what the server shows of this session's requests.

    It does not matter who set the server up.
    """
    theirs = session.conf.get(_REDACTED, None)
    session.conf.set(_REDACTED, f"{theirs}|{_SECRETS_IN_PLANS}" if theirs else _SECRETS_IN_PLANS)


def _use_new_kafka_reader(session: SparkSession) -> None:
    """The one that Structured Streaming has.

    Of a batch of 100,000 records it takes a fifth less processor time.
    """
    sources = str(session.conf.get(_V1_SOURCES_SETTING)).split(",")
    session.conf.set(_V1_SOURCES_SETTING, ",".join(one for one in sources if one.strip().lower() != "kafka"))


def _first_query(
    session: SparkSession, starting: _RetryWhileStarting, timeout_seconds: float, say: Callable[[str], object]
) -> BaseException | None:
    """Why the server refuses this session, or None; pyspark's calls have no time limit, hence the thread."""

    def greet() -> None:
        # pyspark asks the active session, once in a process, how functions are to be called: here there is
        # none. Elsewhere it may be one of a notebook's that died with its server: [NO_ACTIVE_SESSION], with
        # 4.1.3
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
            f"in {at_first:.0f} s. Waiting for it, up to {timeout_seconds:.0f} s (connect_timeout_seconds)"
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
    detail = re.search(r'details = "(.*)"', text)  # of a bare gRPC error, whose first line says nothing
    line = detail[1] if detail else text.splitlines()[0]
    token = re.search(r";token=([^;]+)", remote)
    return line.replace(token[1], "***") if token else line
