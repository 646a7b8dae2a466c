"""For how long may Spark say nothing? The connection of one session, which any thread can cut.

A network may fall silent without a reset, and what Spark itself waits for may never answer; pyspark's calls
have no time limit. Once the line is cut every call on it ends at once with :class:`SparkNotRespondingError`,
and every later one too.

>>> redact("sc://spark.example:15002/;token=s3cr3t;user_id=etl")
'sc://spark.example:15002/;token=***;user_id=etl'
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

import grpc
from pyspark.sql.connect.client.core import DefaultChannelBuilder
from pyspark.sql.connect.expressions import LiteralExpression

from kafka_liveness_dagster.concurrency import run_off_main_thread
from kafka_liveness_dagster.spark.errors import SparkNotRespondingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

_SECRET = re.compile(r"(?<=;)([^;=]*(?:token|secret|password)[^;=]*)=[^;]*", re.IGNORECASE)
_OPTIONS = {
    # A connection that a firewall forgot is found dead, and pyspark attaches to its operation by a new one.
    # Spark's server drops a connection that is pinged more than twice in 5 min while it has nothing to say on
    # it: with 3 s an analysis was cut off after 9 s and begun again. In an execution it talks every 2 s
    "grpc.keepalive_time_ms": 30_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.http2.max_pings_without_data": 0,
    # So that a network that talks again is noticed: gRPC waits 20 s for a handshake, and up to 120 s before
    # the next
    "grpc.min_reconnect_backoff_ms": 5_000,
    "grpc.max_reconnect_backoff_ms": 5_000,
}
_CONTROL_CALL_SECONDS = {"Interrupt": 2.0, "ReleaseExecute": 5.0, "ReleaseSession": 5.0}
"""Seconds for what no work depends on.

All sessions share the threads that wait for it, which Python joins at exit.
"""
_NO_RESPONSE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_SILENT_SECONDS = 5.0


class SumsReceiver(Protocol):
    """A receiver of what Spark sums up while it computes rows."""

    @property
    def name(self) -> str:
        """The name of the sums in Spark's plans."""

    def report(self, sums: Mapping[str, Any], /) -> None:
        """Take the sums of one execution, by name."""


class SparkConnection(
    DefaultChannelBuilder,  # type: ignore[misc]
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
):
    """The connection of one session: a channel builder of pyspark's that listens on its channel."""

    def __init__(self, remote: str) -> None:
        super().__init__(remote, list(_OPTIONS.items()))
        self.address = redact(remote)
        self._channel: grpc.Channel | None = None
        self._abort_message: str | None = None
        self._lock = threading.Lock()
        self._open_lock = threading.Lock()
        self._is_closed = False
        self._pending_calls = 0
        self._pending_since = 0.0
        self._silent_since = False
        self._sums_receivers: WeakValueDictionary[str, SumsReceiver] = WeakValueDictionary()
        # This process ended the session, for itself or by `spark.stop()` of a user's
        self.is_released = False
        self.add_interceptor(self)

    def toChannel(self) -> grpc.Channel:  # noqa: N802 - pyspark's name
        """Caller: pyspark, once a session. Affects: which channel is cut.

        pyspark closes it at the end of the session, while a job that was given up may still open streams.
        """
        channel = self._channel = super().toChannel()
        close_channel = channel.close

        def close() -> None:
            with self._open_lock:
                self._is_closed = True
                close_channel()

        channel.close = close
        return channel

    @property
    def is_aborted(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._abort_message is not None

    @property
    def silent_seconds(self) -> float:
        """For how long Spark has owed an answer and said nothing; 0 while nothing is asked."""
        with self._lock:
            return time.monotonic() - self._pending_since if self.has_pending_call else 0.0

    @property
    def has_pending_call(self) -> bool:
        """Whether work waits for an answer.

        An interrupt, say, is none, and neither is what Python does by itself.
        """
        return self._pending_calls > 0 or self._silent_since

    def check(self) -> None:
        """Pass, or raise because the line was cut.

        Raises:
            SparkNotRespondingError: it was.
        """
        if self._abort_message is not None:
            raise SparkNotRespondingError(self._abort_message)

    def abort(self, message: str) -> None:
        """End every call at once and for good; nothing is done when it is cut already.

        Args:
            message: what was waited for, for people to see.
        """
        if self._abort_message is not None:
            return
        silent = self.silent_seconds
        says = (
            f"sent nothing for {silent:.0f} s" if silent >= _SILENT_SECONDS else "responds, but not to this"
        )
        self._abort_message = (
            f"Spark at {self.address} {says}: {message}. The connection was closed and nothing was "
            "committed. The batch is retried, and replaces what Spark may still write. Fix: check the "
            "network, the server's load, and what the server waits for (a thread dump shows it): catalog, "
            "storage or Kafka."
        )
        if self._channel is not None:
            self._channel.close()

    def report_to(self, sums: SumsReceiver) -> None:
        """Pass on what Spark reports under the name of these sums, as long as somebody holds them."""
        self._sums_receivers[sums.name] = sums

    def abort_after(self, seconds: float, message: str) -> AbstractContextManager[None]:
        """Cut the line when the block does not end in so many seconds, whether Spark says something or not.

        While an operation waits, for its catalog say, Spark goes on telling that it does.

        Args:
            seconds: how long the block may take.
            message: what is asked in it.
        """
        give_up_at = time.monotonic() + seconds
        return self._watchdog_thread(lambda: give_up_at - time.monotonic(), message)

    def abort_if_silent(self, seconds: float, message: str) -> AbstractContextManager[None]:
        """Cut the line when Spark owes an answer and says nothing at all for so long; the block may last.

        Args:
            seconds: how long it may say nothing.
            message: what is asked meanwhile.
        """
        with self._lock:
            # A call that was given up earlier is no wait now
            self._silent_since = self._silent_since and self._pending_calls > 0
        return self._watchdog_thread(lambda: seconds - self.silent_seconds, message)

    @contextmanager
    def _watchdog_thread(self, left_seconds: Callable[[], float], what: str) -> Iterator[None]:
        ended = threading.Event()

        def watch() -> None:
            while (left := left_seconds()) > 0:
                if ended.wait(left):
                    return
            self.abort(what)

        threading.Thread(target=watch, name="kafka-liveness-line", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Caller: gRPC, for each question. Affects: for how long Spark has said nothing."""
        method = details.method.rpartition("/")[2]
        limit = _CONTROL_CALL_SECONDS.get(method)
        self.is_released = self.is_released or method == "ReleaseSession"
        with self._pending_response(of_work=limit is None):
            asked = details if limit is None else details._replace(timeout=limit)
            answered = run_off_main_thread(lambda: continuation(asked, request))
            self._on_response(answered.exception())
        return answered

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Caller: gRPC, for each operation. Affects: for how long Spark has said nothing."""
        with self._pending_response():
            return self._iterate_responses(
                run_off_main_thread(lambda: self._open_stream(continuation, details, request))
            )

    def _open_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Open a stream; gRPC 1.85 ends the process with SIGSEGV when its channel is closed already."""
        with self._open_lock:
            self.check()
            if self._is_closed:
                raise ValueError("the session has ended, and its channel is closed")
            return continuation(details, request)

    def _iterate_responses(self, answers: Any) -> Iterator[Any]:
        while True:
            with self._pending_response():
                try:
                    one = run_off_main_thread(lambda: next(answers, None))
                except grpc.RpcError as error:
                    self._on_response(error)
                    raise
                self._on_response(None)
            if one is None:
                return
            for told in getattr(one, "observed_metrics", ()):
                if sums := self._sums_receivers.get(told.name):
                    values = map(LiteralExpression._to_value, told.values)  # noqa: SLF001 - as pyspark reads them
                    sums.report(dict(zip(told.keys, values, strict=True)))
            yield one

    @contextmanager
    def _pending_response(self, *, of_work: bool = True) -> Iterator[None]:
        """An answer is pending; who waits for it on a line that was cut is told so, whatever gRPC says."""
        self.check()
        with self._lock:
            if not self.has_pending_call:
                self._pending_since = time.monotonic()
            self._pending_calls += of_work
        try:
            yield
        except ValueError:  # the channel was closed after the check
            self.check()
            raise
        finally:
            with self._lock:
                self._pending_calls -= of_work

    def _on_response(self, error: Any) -> None:
        """Spark said something; or gRPC gave up waiting, and pyspark may ask again."""
        self.check()
        with self._lock:
            self._silent_since = isinstance(error, grpc.RpcError) and error.code() in _NO_RESPONSE
            if not self._silent_since:
                self._pending_since = time.monotonic()


def connection_of(session: SparkSession) -> SparkConnection:
    """The line of a session that ``connect`` opened."""
    line: SparkConnection = session.client._builder  # noqa: SLF001
    return line


def redact(remote: str) -> str:
    """The URL without its secrets, fit for a log or an error."""
    return _SECRET.sub(r"\1=***", remote)
