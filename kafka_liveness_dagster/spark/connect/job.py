"""Watch and cancel Spark work from another thread, with ``with SparkJob(...)``.

Never affects other jobs, even of the same session: an interrupt goes only to this job's own tag.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.errors import PySparkException

from kafka_liveness_dagster.concurrency import start_daemon_thread
from kafka_liveness_dagster.spark.connect.connection import connection_of
from kafka_liveness_dagster.spark.connect.session import as_active_session
from kafka_liveness_dagster.spark.error_classification import is_cancelled, lost_server_error
from kafka_liveness_dagster.spark.errors import SparkCancelledError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Any

    from pyspark.sql import SparkSession
    from typing_extensions import Self

_INTERRUPT_EVERY_SECONDS = 0.2
ABANDON_SECONDS = 20.0
"""Time limit for pending responses after a cancel.

A healthy server ends an operation in tenths of a second, a busy one in a few seconds.
"""
_MAX_CHECKS = 20


def now_ms() -> int:
    """Return milliseconds of the monotonic clock that ``last_progress_ms`` uses."""
    return time.monotonic_ns() // 1_000_000


class SparkJob:
    """All Spark operations of the entering thread until it leaves; they are watched and canceled together.

    It may be entered again, also by another thread; a canceled job stays canceled. A canceled job raises
    :class:`SparkCancelledError` when it is entered or left. It never looks like success. If a canceled job
    does not end, and a response is pending for all of ``ABANDON_SECONDS``, the job closes its session's
    connection. Its calls then raise :class:`SparkNotRespondingError`.

    Args:
        session: Spark Connect session of the work.
        on_progress: called with (completed tasks, total tasks) of the running operation, if more tasks have
            completed than before, or the operation has ended. Spark reports about every 2 s. Caller: the
            thread inside the job, in the middle of a Spark call. Affects: nothing; keep it short.
        on_report: called with the same numbers at each report of Spark, also without progress, after
            ``on_progress``. Caller and affects: as for ``on_progress``.
    """

    def __init__(
        self,
        session: SparkSession,
        on_progress: Callable[[int, int], None] | None = None,
        on_report: Callable[[int, int], None] | None = None,
    ) -> None:
        self.tag = f"kafka-liveness-{uuid4().hex}"
        self._session = session
        self._on_progress = on_progress
        self._on_report = on_report
        self._cancelled = threading.Event()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._active = ExitStack()
        self._seen_operations: tuple[str | None, int] = (None, 0)
        self._last_progress_ms = now_ms()

    @property
    def last_progress_ms(self) -> int:
        """Time of the last progress of Spark's tasks, by the clock of :func:`now_ms`; initially the start."""
        return self._last_progress_ms

    @property
    def is_abandoned(self) -> bool:
        """Whether the connection was closed, so that the job receives no response any more."""
        return connection_of(self._session).is_aborted

    def check(self) -> None:
        """Raise if the job was canceled; call it before each operation.

        Raises:
            SparkCancelledError: the job was canceled.
            SparkNotRespondingError: the job was canceled and did not end in time.
        """
        connection_of(self._session).check()
        if self._cancelled.is_set():
            raise SparkCancelledError(
                "Spark job was canceled, and no further operation was started. Its batch was not committed "
                "and is retried. No action is needed."
            )

    def cancel(self, timeout_seconds: float = 2.0) -> bool:
        """Cancel the job permanently, from any thread.

        Args:
            timeout_seconds: how long to wait for the end of the job; interrupts continue after that.

        Returns:
            Whether the job has ended. True: no operation of it runs or will start. False: its thread is busy
            outside Spark, or the server does not respond; no further operation passes ``check``.
        """
        with self._lock:
            first = not self._cancelled.is_set()
            entered = self._thread is not None and not self._ended.is_set()
            self._cancelled.set()
        if first and entered:
            # A separate thread, because a dead server must not block the watchdog, which must leave the group
            start_daemon_thread(self._abort_if_stuck, self.tag)
            if not start_daemon_thread(self._interrupt_until_ended, self.tag):  # no thread: interrupt once
                self._interrupt()
        return not entered or self._ended.wait(timeout_seconds)

    def __enter__(self) -> Self:
        with self._lock:
            self.check()
            self._thread = threading.get_ident()
            self._ended.clear()
        # PySpark's own queries must go to this session, not to the thread's former active one
        self._active.enter_context(as_active_session(self._session))
        self._session.addTag(self.tag)
        self._session.registerProgressHandler(self._on_progress_event)
        self._last_progress_ms = now_ms()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.removeProgressHandler(self._on_progress_event)
        self._session.removeTag(self.tag)
        self._active.close()
        self._ended.set()
        if is_cancelled(error):
            raise SparkCancelledError(
                "Spark operation was canceled"
                + ("" if self._cancelled.is_set() else " by another client, not by this process")
                + ". The table is unchanged, or has the whole batch. The batch is retried. No action is "
                "needed."
            ) from None
        if kind is None or isinstance(error, PySparkException):
            self.check()
        if isinstance(error, PySparkException) and (
            gone := lost_server_error(error, connection_of(self._session))
        ):
            raise gone from error

    def _interrupt_until_ended(self) -> None:
        """Interrupt repeatedly: one interrupt would miss an operation that is being sent at that moment."""
        while not (self._ended.is_set() or self.is_abandoned):
            self._interrupt()
            self._ended.wait(_INTERRUPT_EVERY_SECONDS)

    def _interrupt(self) -> None:
        with suppress(Exception):  # the server is unavailable: the thread inside the job gets that error
            self._session.interruptTag(self.tag)

    def _abort_if_stuck(self) -> None:
        """Close the connection if a response is pending at all checks; runs in a separate thread.

        An interrupt may wait for a response too, so the interrupting thread cannot do this. A transform may
        run in Python for much longer, with short calls to Spark. One check without a pending call therefore
        restarts the time limit.
        """
        line = connection_of(self._session)
        pending = 0
        while not self._ended.wait(ABANDON_SECONDS / _MAX_CHECKS):
            pending = pending + 1 if line.has_pending_call else 0
            if pending == _MAX_CHECKS:
                told = (
                    "a batch was canceled, by its deadline or by its run, and did not end in "
                    f"{ABANDON_SECONDS:g} s"
                )
                line.abort(told)
                return

    def _on_progress_event(
        self,
        stages: Iterable[Any] | None,
        inflight_tasks: int,  # noqa: ARG002 (pyspark calls by keyword)
        operation_id: str | None,
        done: bool,  # noqa: FBT001
    ) -> None:
        """Record progress. Caller: PySpark, in the operation's thread. Affects: ``last_progress_ms``."""
        if threading.get_ident() != self._thread:
            return  # another job of the same session
        infos = list(stages or ())
        counts = sum(info.num_completed_tasks for info in infos), sum(info.num_tasks for info in infos)
        before = self._seen_operations[1] if self._seen_operations[0] == operation_id else 0
        self._seen_operations = (operation_id, counts[0])
        if done or counts[0] > before:
            self._last_progress_ms = now_ms()
            if self._on_progress is not None:
                self._on_progress(*counts)
        if self._on_report is not None:
            self._on_report(*counts)
