"""Watch and stop a piece of Spark work from another thread, inside ``with SparkJob(...)``.

Never touches other jobs, not even of the same session: an interrupt goes to this job's own tag.
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
"""Of answers pending after a cancel.

A server that lives ends an operation in tenths of a second, a busy one in a few.
"""
_MAX_CHECKS = 20


def now_ms() -> int:
    """Milliseconds of the monotonic clock ``last_progress_ms`` is told in."""
    return time.monotonic_ns() // 1_000_000


class SparkJob:
    """Everything the entering thread asks of Spark until it leaves, as one thing to watch and to cancel.

    It may be entered again, by another thread too: what is cancelled stays so. A cancelled job raises
    :class:`SparkCancelledError` when it is entered or left, whatever it was doing: it never looks like
    success. One that does not end, while Spark owes an answer for all of ``ABANDON_SECONDS``, takes its
    session's connection with it: :class:`SparkNotRespondingError`.

    Args:
        session: the Spark Connect session the work runs in.
        on_progress: called with (completed tasks, total tasks) of the running operation when more of its
            tasks have finished than before, or all of it; Spark tells about every 2 s. Caller: the thread
            inside the job, in the middle of a Spark call. Affects: nothing; keep it short.
        on_report: called with the same numbers whenever Spark tells, also when nothing has finished, after
            ``on_progress``. Caller and affects: as there.
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
        """When a Spark task was last seen to have finished, by the clock of :func:`now_ms`.

        First: the start.
        """
        return self._last_progress_ms

    @property
    def is_abandoned(self) -> bool:
        """Whether nothing of it can be heard any more."""
        return connection_of(self._session).is_aborted

    def check(self) -> None:
        """Pass, or raise because the job was cancelled; call it before each operation.

        Raises:
            SparkCancelledError: the job was cancelled.
            SparkNotRespondingError: it was, and did not end in time.
        """
        connection_of(self._session).check()
        if self._cancelled.is_set():
            raise SparkCancelledError(
                "Spark job was cancelled: nothing more is started; its batch was not committed and will be "
                "replayed"
            )

    def cancel(self, timeout_seconds: float = 2.0) -> bool:
        """Stop the job from any thread, for good.

        Args:
            timeout_seconds: how long to wait for the job to end; interrupting goes on behind that.

        Returns:
            Whether the job has ended: True means that nothing of it runs or will start. False: its thread is
            busy outside Spark, or the server does not answer; no further operation passes ``check``.
        """
        with self._lock:
            first = not self._cancelled.is_set()
            entered = self._thread is not None and not self._ended.is_set()
            self._cancelled.set()
        if first and entered:
            # A thread of its own: a dead server must not hold up the watchdog that has a group to leave.
            start_daemon_thread(self._abort_if_stuck, self.tag)
            if not start_daemon_thread(self._interrupt_until_ended, self.tag):  # once, then
                self._interrupt()
        return not entered or self._ended.wait(timeout_seconds)

    def __enter__(self) -> Self:
        with self._lock:
            self.check()
            self._thread = threading.get_ident()
            self._ended.clear()
        # What pyspark asks is asked of this session, and no other
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
                "Spark operation was cancelled"
                + ("" if self._cancelled.is_set() else " by somebody else, not by this process")
                + ": the table is as it was, or has the whole batch; the batch will be replayed"
            ) from None
        if kind is None or isinstance(error, PySparkException):
            self.check()
        if isinstance(error, PySparkException) and (
            gone := lost_server_error(error, connection_of(self._session))
        ):
            raise gone from error

    def _interrupt_until_ended(self) -> None:
        """One interrupt is not enough: an operation that was just being sent would not be hit by it."""
        while not (self._ended.is_set() or self.is_abandoned):
            self._interrupt()
            self._ended.wait(_INTERRUPT_EVERY_SECONDS)

    def _interrupt(self) -> None:
        with suppress(Exception):  # the server is away: the thread inside the job learns that by itself
            self._session.interruptTag(self.tag)

    def _abort_if_stuck(self) -> None:
        """In a thread of its own: an interrupt may wait for an answer too.

        A transform may be at work in Python for much longer, and ask Spark short questions: one look in
        between at which Spark owes nothing, and the time begins again.
        """
        line = connection_of(self._session)
        pending = 0
        while not self._ended.wait(ABANDON_SECONDS / _MAX_CHECKS):
            pending = pending + 1 if line.has_pending_call else 0
            if pending == _MAX_CHECKS:
                told = (
                    "a batch was cancelled, by its deadline or by its run, and did not end in "
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
        """Caller: pyspark, in the thread whose operation it is. Affects: ``last_progress_ms``."""
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
