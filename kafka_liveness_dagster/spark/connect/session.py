"""Open and end sessions on a Spark Connect server: a busy one is waited for, one that is not there fails at once.

Never shares a session, and never uses the process's own.
Each caller's own is interrupted, configured and stopped without touching another's.
"""

from __future__ import annotations

import atexit
import math
import re
import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession as ConnectSession

from kafka_liveness_dagster.concurrency import start
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.spark.connect.connection import Line, line_of, redacted
from kafka_liveness_dagster.spark.errors import SparkUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

CONNECT_TIMEOUT_SECONDS = 120.0
"""For a server that accepts connections: under load, or while it collects garbage, it opens a session in minutes."""
_ACCEPTED_WITHIN_SECONDS = 10.0
_LOOK_SECONDS = 2.0
_NOT_THERE = re.compile("Connection refused|errors resolving|DNS resolution failed|No route to host|Network is unreach")
_SLOW = re.compile("before receiving SETTINGS|Handshake read failed|[Tt]imed? ?out")
_WHILE_WORKING = DefaultPolicy(max_retries=12, max_backoff=3_000)
"""Half a minute; pyspark's default is over ten, and a server that restarted has lost the session anyway."""
_END_SECONDS = 5.0
_opened: list[SparkSession] = []
"""Every session of this process, stopped ones too. pyspark closes a session again in ``__del__``, waiting for threads
it shares with all sessions; when the garbage collector does that inside another session's gRPC call, both wait for
ever (seen with 4.1.3). So none is ever collected."""
_IN_PLANS = r"""(?:LoginModule required|PRIVATE KEY-----|ssl\.key\.password"\s*value:)[^\n]*"""
"""Spark Connect shows the options of a read in its UI and its event log, as text: a line of it each."""
_REDACTED = "spark.sql.redaction.string.regex"
_BY_THE_OLD_READERS = "spark.sql.sources.useV1SourceList"
"""Sources that Spark reads by its first interface: Kafka's turns each record into an object of Java's and back."""


class _WhileStarting(DefaultPolicy):  # type: ignore[misc]
    """Retry every 0.2 s, but not where nobody listens.

    Attributes:
        problem: of the last attempt that failed, in gRPC's words.
        is_absent: whether nobody listens.
    """

    def __init__(self, endpoint: str) -> None:
        super().__init__(max_retries=10_000, backoff_multiplier=1, initial_backoff=200)
        self._host, _, self._port = endpoint.rpartition(":")
        self.problem, self.is_absent = "", False
        self._looked_at, self._accepts = -math.inf, False

    def can_retry(self, e: BaseException) -> bool:
        """Caller: pyspark, after an attempt. Affects: what ``connect`` says in the end."""
        self.problem = str(getattr(e, "details", lambda: e)())
        # Of several addresses gRPC names the last one: ::1 refuses, and 127.0.0.1 may be slow
        self.is_absent = bool(_NOT_THERE.search(self.problem)) and not self.accepts()
        return bool(super().can_retry(e)) and not self.is_absent

    def accepts(self) -> bool:
        """Whether something listens there; looked at once in 2 s, since a busy server is not to be asked more often."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at, self._accepts = now, self._is_accepted()
        return self._accepts

    def _is_accepted(self) -> bool:
        try:
            socket.create_connection((self._host.strip("[]"), int(self._port)), timeout=1).close()
        except OSError:
            return False
        return True

    def is_slow(self) -> bool:
        """Whether something listens there, and has refused nothing so far."""
        is_patient = not self.problem or _SLOW.search(self.problem) or _NOT_THERE.search(self.problem)
        return bool(is_patient) and self.accepts()


def connect(
    remote: str,
    *,
    timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    say: Callable[[str], object] = lambda _: None,
) -> SparkSession:
    """Open a session of the caller's own on the server at ``remote``; end it with ``end(session)``.

    Args:
        remote: a Spark Connect URL, like ``sc://localhost:15002/;token=…``.
        timeout_seconds: how long a server that accepts connections may take. One that is not there fails at once, and
            an address that does not respond at all after 10 s.
        say: gets a sentence when a slow server is waited for.

    Raises:
        SparkUnreachableError: there is no server, it was not ready in time, or it refused the token.
        InvalidSettingError: ``remote`` is not a Spark Connect URL.
    """
    line = _line(remote)
    session = _created(line)
    _opened.append(session)
    # At exit pyspark would tidy a cache of MLlib models that nobody here has: minutes of retries if the server died.
    if tidy := getattr(session.client, "_cleanup_ml_cache", None):  # Spark 4.0 has none, and asks nothing then
        atexit.unregister(tidy)
    starting = _WhileStarting(line.endpoint)
    session.client.set_retry_policies([starting])
    refused = _greet(session, starting, timeout_seconds, say)
    if refused is not None:
        line.cut("it was to open a session")
        raise SparkUnreachableError(_unreachable(remote, refused, starting, timeout_seconds))
    session.client.set_retry_policies([_WHILE_WORKING])
    return session


def end(session: SparkSession) -> None:
    """End a session, in seconds: what a server that does not answer holds of it expires there by itself."""
    ended = threading.Event()

    def stop() -> None:
        with suppress(Exception):  # the server is away: what it holds of the session expires there
            session.stop()
        ended.set()

    session.client.set_retry_policies([])
    if start(stop, "spark-connect-bye") and not ended.wait(_END_SECONDS):
        line_of(session).cut("its session was to be ended")
        ended.wait(_END_SECONDS)


@contextmanager
def active(session: SparkSession) -> Iterator[None]:
    """Let this be the session that pyspark asks where it is given none, in this thread: for a type that is text."""
    threads: Any = ConnectSession._active_session  # noqa: SLF001 - it can be set there alone
    before = getattr(threads, "session", None)
    threads.session = session
    try:
        yield
    finally:
        threads.session = before


def _created(line: Line) -> SparkSession:
    """A session that pyspark takes for nobody's: it asks the active one for settings, also one that was refused."""
    threads: Any = ConnectSession._active_session  # noqa: SLF001
    before = getattr(threads, "session", None), ConnectSession._default_session  # noqa: SLF001
    try:
        session: SparkSession = ConnectSession.builder.channelBuilder(line).create()
        return session
    finally:
        threads.session, ConnectSession._default_session = before  # noqa: SLF001


def _line(remote: str) -> Line:
    try:
        return Line(remote)
    except (PySparkException, ValueError) as error:
        raise InvalidSettingError(
            f"{redacted(remote)!r} is not a Spark Connect URL ({_reason(error, remote)}): wanted sc://host:port/;token=…"
        ) from None


def _hide_secrets(session: SparkSession) -> None:
    """Let the server show what this session asks for without the secrets of its Kafka options, whoever set it up."""
    theirs = session.conf.get(_REDACTED, None)
    session.conf.set(_REDACTED, f"{theirs}|{_IN_PLANS}" if theirs else _IN_PLANS)


def _read_kafka_by_the_new_reader(session: SparkSession) -> None:
    """The one that Structured Streaming has: of a batch of 100,000 records it takes a fifth less processor time."""
    sources = str(session.conf.get(_BY_THE_OLD_READERS)).split(",")
    session.conf.set(_BY_THE_OLD_READERS, ",".join(one for one in sources if one.strip().lower() != "kafka"))


def _greet(
    session: SparkSession, starting: _WhileStarting, timeout_seconds: float, say: Callable[[str], object]
) -> Exception | None:
    """Why the server refuses this session, or None; pyspark's calls have no time limit, hence the thread."""
    answer: list[Exception | None] = []
    answered = threading.Event()  # a signal of Dagster's interrupts a wait for it; not one for the thread's end

    def greet() -> None:
        try:
            # pyspark asks the active session, once in a process, how functions are to be called: here there is none.
            # Elsewhere it may be one of a notebook's that died with its server: [NO_ACTIVE_SESSION], with 4.1.3
            F.col("value")
            _ = session.version
            _hide_secrets(session)
            _read_kafka_by_the_new_reader(session)
            answer.append(None)
        except Exception as error:  # noqa: BLE001 (handed to the waiting thread)
            answer.append(error)
        answered.set()

    threading.Thread(target=greet, name="spark-connect-hello", daemon=True).start()
    at_first = min(_ACCEPTED_WITHIN_SECONDS, timeout_seconds)
    if not answered.wait(at_first) and timeout_seconds > at_first and starting.is_slow():
        say(
            f"Spark Connect at {line_of(session).address} accepts connections, and opened no session in "
            f"{at_first:.0f} s. Waiting for it, up to {timeout_seconds:.0f} s (connect_timeout_seconds)"
        )
        answered.wait(timeout_seconds - at_first)
    return answer[0] if answer else TimeoutError()


def _unreachable(remote: str, refused: Exception, starting: _WhileStarting, timeout_seconds: float) -> str:
    if isinstance(refused, TimeoutError) or starting.is_absent:
        within = "" if starting.is_absent else f" within {timeout_seconds:.0f} s"
        of_last = f" ({_reason(Exception(starting.problem), remote)})" if starting.problem else ""
        return (
            f"no Spark Connect server answered at {redacted(remote)}{within}{of_last}: start one (`kafka-liveness up` "
            "starts one on this machine), correct the address, or look at the server's log and load; a busy one may "
            "take connect_timeout_seconds of SparkConnectResource; with a token, a server on another host needs "
            "use_ssl=true as well"
        )
    return (
        f"Spark Connect at {redacted(remote)} gave no session ({_reason(refused, remote)}): check the token in the "
        "URL, that client and server are the same Spark version, and the server's log: one that ran out of memory "
        "answers like this until its process is gone; `kafka-liveness up` restarts the embedded one"
    )


def _reason(error: Exception, remote: str) -> str:
    text = str(error).strip() or type(error).__name__
    detail = re.search(r'details = "(.*)"', text)  # of a bare gRPC error, whose first line says nothing
    line = detail[1] if detail else text.splitlines()[0]
    token = re.search(r";token=([^;]+)", remote)
    return line.replace(token[1], "***") if token else line
