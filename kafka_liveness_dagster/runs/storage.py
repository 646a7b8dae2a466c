"""Calls into Dagster's storage (runs, tags, event log), which may be full, read-only, locked or unavailable.

A call that only informs is retried concurrently with the run. A call that the run depends on is retried for a
while, and then ends the run with one named error. This module must not decide anything about offsets or rows.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from weakref import WeakValueDictionary

import dagster as dg

from kafka_liveness_dagster.concurrency import start_daemon_thread
from kafka_liveness_dagster.core.errors import KafkaLivenessError, summary_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

NEEDED_SECONDS = 120.0
"""Longest wait of a run for a response that it depends on."""
SETTLE_SECONDS = 600.0
"""Longest wait of a run at its end for a failing storage: a person may have to free space first."""
_MAX_CALLER_WAIT_SECONDS = 2.0
"""Longest wait of a caller for its call: SQLite waits up to 30 s for a lock, a connection longer."""
RETRY_PAUSE_SECONDS = 1.0
"""Pause before a failed call of the storage is retried."""
_LONGEST_PAUSE_SECONDS = 8.0
MAX_QUEUED_LINES = 1_000  # log lines kept in memory
_FIX = (
    "Fix: free space for Dagster's storage, make it writable, or start its database (DAGSTER_HOME and "
    "`storage` of dagster.yaml show where it is)"
)
_STORAGES = (
    "dagster._core.storage",
    "dagster_postgres",
    "dagster_mysql",
    "dagster_cloud",
    "dagster_cloud_cli",
)
# Dagster reads all tags and writes them back, so without the lock one of two threads loses its tags
_tagging = threading.Lock()
_log = logging.getLogger("kafka_liveness_dagster")
_T = TypeVar("_T")


class DagsterStorageError(KafkaLivenessError):
    """Dagster's storage is full, read-only, locked or unavailable; the message has the state of the data."""


def add_tags(instance: dg.DagsterInstance, run_id: str, tags: Mapping[str, str]) -> None:
    """Add tags to a run at once.

    Raises:
        Exception: the storage failed.
    """
    with _tagging:
        instance.add_run_tags(run_id, dict(tags))


def call_with_retries(
    call: Callable[[], _T], operation: str, data_state: str, seconds: float | None = None
) -> _T:
    """Return the result of a call that the run depends on; retry while Dagster's storage fails.

    Args:
        call: call of the storage.
        operation: purpose of the call, as a noun phrase for the error.
        data_state: state of rows and offsets now, as a clause for the error.
        seconds: longest time of retries; ``NEEDED_SECONDS`` unless set.

    Raises:
        DagsterStorageError: the storage failed all the time.
    """
    began = time.monotonic()
    limit = NEEDED_SECONDS if seconds is None else seconds
    is_first = True
    while True:
        try:
            return call()
        except Exception as error:
            if not _is_storage_error(error):
                raise
            waited = time.monotonic() - began
            if waited >= limit:
                raise DagsterStorageError(
                    f"Dagster's storage failed for {waited:.0f} s, at {operation} "
                    f"({summary_line(error)}). Rows and offsets are safe: {data_state}. {_FIX}; then "
                    "start the run again, or wait for the sensor to start it"
                ) from None
            if is_first:
                _log_in_process(
                    "Dagster's storage failed at %s; retrying for %.0f s: %s",
                    operation,
                    limit - waited,
                    error,
                )
            is_first = False
        time.sleep(RETRY_PAUSE_SECONDS)


@contextmanager
def storage_errors(state: str) -> Iterator[None]:
    """Raise each error of Dagster's storage in this block as one named error.

    Args:
        state: what the block has done and not done by then, as a clause.

    Raises:
        DagsterStorageError: the storage failed.
    """
    try:
        yield
    except Exception as error:
        if not _is_storage_error(error):
            raise
        raise DagsterStorageError(
            f"Dagster's storage failed ({summary_line(error)}). Rows and offsets are safe: {state}. {_FIX}"
        ) from None


class _StorageCall(NamedTuple):
    """A call that waits for the storage; ``description`` names its content, empty for a log line."""

    store: Callable[[], None]
    description: str
    future: Future[None]
    queued_at: float


class RunStorage:
    """The calls of a running step to Dagster's storage: in order, and late while the storage fails.

    With a healthy storage each call returns when it is stored. When the storage fails or takes too long, the
    call returns at once. A thread then stores this call and all later ones when it can. A retried write may
    be stored twice.

    Args:
        context: context of the op or asset.

    Attributes:
        log: the run's log.
    """

    def __init__(self, context: dg.AssetExecutionContext | dg.OpExecutionContext) -> None:
        self._context = context
        self.log: logging.Logger = _StorageLog(context.log, self)
        self._queue = deque[_StorageCall]()
        self._condition = threading.Condition()
        self._failed_at: float | None = None
        self._error = ""
        self._dropped = 0

    def add_tags(self, tags: Mapping[str, str]) -> Future[None]:
        """Add tags to the run."""
        instance = self._context.instance
        run_id = self._context.run.run_id
        return self._enqueue(lambda: add_tags(instance, run_id, tags), "tags")

    def store_event(self, event: dg.AssetMaterialization | dg.AssetObservation, what: str) -> Future[None]:
        """Store an event; ``what`` names it in an error. The future is done when Dagster has it."""
        return self._enqueue(lambda: self._context.log_event(event), what)

    def store_line(self, record: logging.LogRecord) -> None:
        """Store a line of the run's log."""
        record.msg = record.getMessage()
        record.args = ()
        # A copy for each attempt, because Dagster marks a record and ignores marked ones
        self._enqueue(lambda: self._context.log.handle(copy.copy(record)), "")

    def add_metadata(self, key: str, metadata: Mapping[str, Any], outcome: str) -> None:
        """Add metadata to the materialization of a partition, at the end of the run.

        Dagster reads the run's partition keys for it.

        Args:
            key: key of the partition.
            metadata: metadata of the partition.
            outcome: what the run has written and committed, as a clause for the error.

        Raises:
            DagsterStorageError: the storage failed all the time.
        """
        asset = cast("dg.AssetExecutionContext", self._context)  # a partition is an asset's
        add = partial(asset.add_asset_metadata, metadata, partition_key=key)
        call_with_retries(add, f"the metadata of {key}", outcome, seconds=SETTLE_SECONDS)

    @property
    def is_behind(self) -> bool:
        """Whether the storage fails, or calls wait for it."""
        return bool(self._queue)

    def flush(self, outcome: str) -> None:
        """Wait until Dagster has stored all calls, at the end of the run's work.

        Args:
            outcome: what the run has written and committed, as a clause for the error.

        Raises:
            DagsterStorageError: the storage failed all the time.
        """
        with self._condition:
            if not self._condition.wait_for(lambda: not self._queue, SETTLE_SECONDS):
                raise DagsterStorageError(
                    f"Dagster's storage failed at the end of the run, which waited {SETTLE_SECONDS:.0f} s "
                    f"for it ({self._error or 'no response'}). Rows and offsets are safe: {outcome}. Not "
                    f"stored: {self._describe_waiting()}. {_FIX}"
                )

    def _enqueue(self, store: Callable[[], None], what: str) -> Future[None]:
        one = _StorageCall(store, what, Future(), queued_at=time.monotonic())
        with self._condition:
            was_behind = bool(self._queue)
            if was_behind and not what and len(self._queue) >= MAX_QUEUED_LINES:
                self._dropped += 1
                return one.future
            self._queue.append(one)
            if was_behind:
                return one.future
            if start_daemon_thread(self._store_waiting, "kafka-liveness-storage"):
                self._condition.wait_for(
                    lambda: one.future.done() or self._failed_at is not None, _MAX_CALLER_WAIT_SECONDS
                )
            else:  # without a thread the caller stores it, and gets the storage's error
                self._queue.clear()
                store()
                one.future.set_result(None)
        if one.future.done():
            one.future.result()  # raises an error that is not the storage's to the caller
        return one.future

    def _store_waiting(self) -> None:
        pause = RETRY_PAUSE_SECONDS
        while True:
            one = self._queue[0]
            error = None
            try:
                one.store()
            except BaseException as raised:  # noqa: BLE001 - raised where the caller waits
                error = raised
            if isinstance(error, Exception) and _is_storage_error(error):
                self._on_error(one, error)
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            elif self._dequeue(one, error):
                return
            else:
                pause = RETRY_PAUSE_SECONDS

    def _on_error(self, one: _StorageCall, error: Exception) -> None:
        with self._condition:
            is_first = self._failed_at is None
            self._error = summary_line(error)
            self._failed_at = self._failed_at or one.queued_at
            self._condition.notify_all()
        if is_first:
            _log_in_process(
                "Dagster's storage failed (%s). The run continues: batches are written and committed, "
                "and its log lines, tags and materializations are stored later. %s",
                self._error,
                _FIX,
            )

    def _dequeue(self, one: _StorageCall, error: BaseException | None) -> bool:
        """Take a call off the queue; return whether it was the last one."""
        with self._condition:
            self._queue.popleft()
            failed_at = self._failed_at
            is_last = not self._queue
            dropped, self._dropped = (self._dropped, 0) if is_last else (0, self._dropped)
            if is_last:
                self._failed_at = None
            if error is None:
                one.future.set_result(None)
            else:
                one.future.set_exception(error)
            self._condition.notify_all()
        if is_last and failed_at is not None:
            lost = f"; {dropped:,} log lines were dropped" if dropped else ""
            self.log.warning(
                "Dagster's storage responds again after %.0f s%s", time.monotonic() - failed_at, lost
            )
        return is_last

    def _describe_waiting(self) -> str:
        """Describe the waiting calls: events and tags by their names, lines by their number."""
        named = list(dict.fromkeys(one.description for one in self._queue if one.description))
        lines = self._dropped + sum(not one.description for one in self._queue)
        if lines:
            named.append(f"{lines:,} log line{'s' if lines > 1 else ''}")
        return ", ".join(named)


class _StorageLog(logging.Logger):
    """A run's log that does not raise the errors of a failing storage."""

    def __init__(self, log: logging.Logger, storage: RunStorage) -> None:
        super().__init__(log.name, log.level)
        self._storage = storage

    def handle(self, record: logging.LogRecord) -> None:
        """Store a record."""
        self._storage.store_line(record)


_storage_by_step: WeakValueDictionary[tuple[str, str], RunStorage] = WeakValueDictionary()


def storage_of(context: dg.AssetExecutionContext | dg.OpExecutionContext) -> RunStorage:
    """Return the storage of a step, the same one for each caller."""
    op = context.op_execution_context if isinstance(context, dg.AssetExecutionContext) else context
    key = op.run_id, str(op.op_handle)
    found = _storage_by_step.get(key)
    if found is None:
        found = _storage_by_step[key] = RunStorage(context)
    return found


def _is_storage_error(error: Exception) -> bool:
    """Return whether Dagster's storage raised an error; its traceback decides, as drivers have many classes.

    An error may also follow one of the storage: Dagster prints the storage's error, and on a full disk the
    captured output cannot be written.
    """
    if isinstance(error, (KafkaLivenessError, dg.DagsterError)):
        return False
    found: BaseException | None = error
    while found is not None:
        frames = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(found.__traceback__))
        if any(name == one or name.startswith(f"{one}.") for name in frames for one in _STORAGES):
            return True
        found = found.__cause__ or found.__context__
    return False


def _log_in_process(text: str, *values: object) -> None:
    """Write to the process's log.

    Dagster may turn it into lines of the run's log, which its storage cannot store.
    """
    # The failed call is retried, whether the line is logged or not
    with suppress(Exception):  # handlers of the user may raise
        _log.warning(text, *(summary_line(one) if isinstance(one, Exception) else one for one in values))
