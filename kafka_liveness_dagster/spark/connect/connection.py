"""Limit how long a session waits for Spark; any thread can close its connection.

A network may drop packets without a TCP reset, and a service that Spark waits for may never respond.
PySpark's calls have no time limit. When the connection is closed, every pending and later call on it raises
:class:`SparkNotRespondingError` at once.

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
    # The pings detect a connection that a firewall dropped; PySpark then reattaches to its operation over a
    # new one. Spark's server drops a connection with more than two pings in 5 min while it sends no data on
    # it. With 3 s the server dropped an analysis after 9 s, and it was restarted. An execution sends data
    # every 2 s
    "grpc.keepalive_time_ms": 30_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.http2.max_pings_without_data": 0,
    # Detect soon that the network works again: by default gRPC waits 20 s for a handshake, and up to 120 s
    # before the next one
    "grpc.min_reconnect_backoff_ms": 5_000,
    "grpc.max_reconnect_backoff_ms": 5_000,
}
_CONTROL_CALL_SECONDS = {"Interrupt": 2.0, "ReleaseExecute": 5.0, "ReleaseSession": 5.0}
"""Time limits in seconds for calls that no work depends on.

Without limits a silent server would block the threads that all sessions share, and Python's exit, which joins
them.
"""
_NO_RESPONSE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_SILENT_SECONDS = 5.0
_SETTERS = ("set", "unset")
_SETS_NOTHING = "write_operation_v2"


class SumsReceiver(Protocol):
    """A receiver of sums that Spark computes with the rows."""

    @property
    def name(self) -> str:
        """Name of the sums in Spark's plans."""

    def report(self, sums: Mapping[str, Any], /) -> None:
        """Receive the sums of one execution, by name."""


class SparkConnection(
    DefaultChannelBuilder,  # type: ignore[misc]
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
):
    """The connection of one session: a PySpark channel builder that intercepts the calls on its channel."""

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
        self._has_given_up = False
        self._sums_receivers: WeakValueDictionary[str, SumsReceiver] = WeakValueDictionary()
        # True after this process ended the session by itself, or a transform or sink called `spark.stop()`
        self.is_released = False
        # Another object after each request that may change a setting of the session
        self.settings_version = object()
        self.add_interceptor(self)

    def toChannel(self) -> grpc.Channel:  # noqa: N802 - pyspark's name
        """Create the channel. Caller: PySpark, once per session. Affects: the channel that ``abort`` closes.

        PySpark closes the channel at the end of the session, while an abandoned job may still open streams.
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
        """Whether the connection was closed by ``abort``."""
        return self._abort_message is not None

    @property
    def silent_seconds(self) -> float:
        """Seconds for which a call has been pending without a response; 0 if no call is pending."""
        with self._lock:
            return time.monotonic() - self._pending_since if self.has_pending_call else 0.0

    @property
    def has_pending_call(self) -> bool:
        """Whether work waits for a response.

        Calls that no work depends on, such as an interrupt, and computation in Python do not count.
        """
        return self._pending_calls > 0 or self._has_given_up

    def check(self) -> None:
        """Raise if the connection was closed by ``abort``.

        Raises:
            SparkNotRespondingError: the connection was closed.
        """
        if self._abort_message is not None:
            raise SparkNotRespondingError(self._abort_message)

    def abort(self, message: str) -> None:
        """Close the connection, which ends every pending and later call; do nothing if it is closed already.

        Args:
            message: description of the pending work, for the error.
        """
        if self._abort_message is not None:
            return
        silent = self.silent_seconds
        says = (
            f"sent nothing for {silent:.0f} s"
            if silent >= _SILENT_SECONDS
            else "responds, but did not end an operation in time"
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
        """Pass the sums that Spark reports under this name to the receiver, while references to it exist."""
        self._sums_receivers[sums.name] = sums

    def abort_after(self, seconds: float, message: str) -> AbstractContextManager[None]:
        """Close the connection if the block does not end in time, even if Spark sends responses.

        While an operation waits, for example for its catalog, Spark keeps sending progress.

        Args:
            seconds: time limit of the block.
            message: description of the block, for the error.
        """
        give_up_at = time.monotonic() + seconds
        return self._abort_when_due(lambda: give_up_at - time.monotonic(), message)

    def abort_if_silent(self, seconds: float, message: str) -> AbstractContextManager[None]:
        """Close the connection if a call is pending and Spark sends nothing for so long.

        The block itself has no time limit.

        Args:
            seconds: time limit without a response.
            message: description of the block, for the error.
        """
        with self._lock:
            # A call that gRPC gave up before this block is not pending any more
            self._has_given_up = self._has_given_up and self._pending_calls > 0
        return self._abort_when_due(lambda: seconds - self.silent_seconds, message)

    @contextmanager
    def _abort_when_due(self, left_seconds: Callable[[], float], what: str) -> Iterator[None]:
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
        """Pass on a call. Caller: gRPC, for each request with one response. Affects: ``silent_seconds``."""
        method = details.method.rpartition("/")[2]
        limit = _CONTROL_CALL_SECONDS.get(method)
        changes_settings = method == "Config" and request.operation.WhichOneof("op_type") in _SETTERS
        self._note_settings(may_have_changed=changes_settings)
        self.is_released = self.is_released or method == "ReleaseSession"
        with self._pending_response(of_work=limit is None):
            asked = details if limit is None else details._replace(timeout=limit)
            answered = run_off_main_thread(lambda: continuation(asked, request))
            self._note_settings(may_have_changed=changes_settings)  # settings read meanwhile may be old
            self._on_response(answered.exception())
        return answered

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Pass on a stream. Caller: gRPC, for each operation. Affects: ``silent_seconds``."""
        may_change = _may_change_settings(request)
        self._note_settings(may_have_changed=may_change)
        with self._pending_response():
            return self._iterate_responses(
                run_off_main_thread(lambda: self._open_stream(continuation, details, request)),
                may_change_settings=may_change,
            )

    def _note_settings(self, *, may_have_changed: bool) -> None:
        if may_have_changed:
            self.settings_version = object()

    def _open_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Open a stream, but not on a closed channel: gRPC 1.85 would end the process with SIGSEGV."""
        with self._open_lock:
            self.check()
            if self._is_closed:
                raise ValueError("the Spark session has ended and its channel is closed")
            return continuation(details, request)

    def _iterate_responses(self, answers: Any, *, may_change_settings: bool) -> Iterator[Any]:
        while True:
            with self._pending_response():
                try:
                    one = run_off_main_thread(lambda: next(answers, None))
                except grpc.RpcError as error:
                    self._on_response(error)
                    raise
                self._on_response(None)
            self._note_settings(may_have_changed=may_change_settings)
            if one is None:
                return
            for told in getattr(one, "observed_metrics", ()):
                if sums := self._sums_receivers.get(told.name):
                    values = map(LiteralExpression._to_value, told.values)  # noqa: SLF001 - as pyspark reads them
                    sums.report(dict(zip(told.keys, values, strict=True)))
            yield one

    @contextmanager
    def _pending_response(self, *, of_work: bool = True) -> Iterator[None]:
        """Count a pending response; after ``abort`` raise its error instead of gRPC's."""
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
        """Record a response, or that gRPC gave up waiting; PySpark may then retry the call."""
        self.check()
        with self._lock:
            self._has_given_up = isinstance(error, grpc.RpcError) and error.code() in _NO_RESPONSE
            if not self._has_given_up:
                self._pending_since = time.monotonic()


def _may_change_settings(request: Any) -> bool:
    """Return whether an operation may change settings of its session, as the SQL command SET does.

    A query and a write with pyspark's ``writeTo`` cannot. A reattached operation may be any.
    """
    if request.DESCRIPTOR.name != "ExecutePlanRequest":
        return True
    plan = request.plan
    return bool(plan.HasField("command") and plan.command.WhichOneof("command_type") != _SETS_NOTHING)


def connection_of(session: SparkSession) -> SparkConnection:
    """Return the connection of a session that ``connect`` opened."""
    line: SparkConnection = session.client._builder  # noqa: SLF001
    return line


def redact(remote: str) -> str:
    """Return the URL without its secrets, for logs and errors."""
    return _SECRET.sub(r"\1=***", remote)
