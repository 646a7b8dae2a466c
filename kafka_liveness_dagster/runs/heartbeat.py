"""Does somebody work for a run?

The signs that it gives of itself, and what its host and its launcher say of it.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import dagster as dg

from kafka_liveness_dagster.core.process_status import (
    HEARTBEAT_SECONDS,
    HeartbeatTag,
    ProcessStatus,
    is_start_lost,
    process_status,
)
from kafka_liveness_dagster.core.run_ids import short_run_id
from kafka_liveness_dagster.runs import proc
from kafka_liveness_dagster.runs.storage import DagsterStorageError, add_tags, call_with_retries, storage_of
from kafka_liveness_dagster.runs.tags import (
    DATA_STATE_AT_END,
    DATA_STATE_AT_START,
    PROCESS_TAG,
    STEP_TAG,
    heartbeat_of,
    op_context_of,
    worker_process,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

_STOP_SECONDS = 5.0
# The keys are names of Dagster's WorkerStatus
_WORKERS = {
    "RUNNING": ProcessStatus.ALIVE,
    "FAILED": ProcessStatus.GONE,
    "NOT_FOUND": ProcessStatus.GONE,
}
log = logging.getLogger("kafka_liveness_dagster")


class RunHeartbeat:
    """Shows that a run is at work, from its op's first line to its last.

    Use it as a context manager. At its end it waits until Dagster's storage has all that the run told it,
    before Dagster stores the step's outcome.

    Args:
        context: the op's or asset's.
        tags: of the run, to be told with the first sign.
    """

    def __init__(self, context: dg.AssetExecutionContext, tags: Mapping[str, str]) -> None:
        self._instance = context.instance
        self._run_id = context.run.run_id
        self._tags = {**tags, STEP_TAG: str(op_context_of(context).op_handle)}
        self._storage = storage_of(context)
        self._process = worker_process(context)
        self._stopped = threading.Event()
        self._ended = threading.Event()
        self._has_ended = False
        self._thread = threading.Thread(
            target=self._run_loop, name="kafka-liveness-signs-of-life", daemon=True
        )

    def __enter__(self) -> Self:
        tags = {**self._tags, PROCESS_TAG: self._tag_text(0)}
        call_with_retries(
            lambda: add_tags(self._instance, self._run_id, tags),
            "the first sign of life of the run",
            DATA_STATE_AT_START,
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        # A step that fails may be retried in the same run, by its retry policy
        self._has_ended = kind is None
        self._stopped.set()
        self._ended.wait(_STOP_SECONDS)  # not indefinitely: Dagster's database may not answer
        if isinstance(error, DagsterStorageError):
            self._warn(error)
        elif kind is None or issubclass(kind, Exception):
            try:
                self._storage.flush(DATA_STATE_AT_END)
            except DagsterStorageError as failed:
                self._warn(failed)
                if kind is None:
                    raise

    def _run_loop(self) -> None:
        beat = 0
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            beat += 1
            self._write_tag(beat)
        self._write_tag(None)  # other steps of the run may go on, which give no signs
        self._ended.set()

    def _write_tag(self, beat: int | None) -> None:
        try:
            self._storage.add_tags({PROCESS_TAG: self._tag_text(beat)})
        except Exception:  # somebody deleted the run: its watchdog ends it
            log.exception("could not give a sign of life of run %s", self._run_id)

    def _warn(self, error: DagsterStorageError) -> None:
        """Log an error in the process.

        Dagster may fail to store it, and ends the process by an error of its own.
        """
        with suppress(Exception):  # it takes the place of an error that is about to be raised
            log.error("run %s: %s", self._run_id, error)

    def _tag_text(self, beat: int | None) -> str:
        return HeartbeatTag(
            short_run_id(self._run_id), beat, self._process, has_ended=self._has_ended
        ).encode()


def process_status_of(
    instance: dg.DagsterInstance, record: dg.RunRecord, now: float, *, fence_report: bool
) -> ProcessStatus:
    """What can be known of the process of a run in progress.

    Args:
        instance: knows the run's launcher.
        record: the run.
        now: seconds since the epoch.
        fence_report: it is no member of its group: only then is the launcher asked, which may take a while.
    """
    run = record.dagster_run
    if run.status is dg.DagsterRunStatus.QUEUED:
        return ProcessStatus.UNKNOWN
    if run.status in (dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING):
        return _status_of_start(instance, record, now)
    process = heartbeat_of(run).process
    here = proc.this_namespace()
    word = (
        process_status(process, here, proc.pid_entry(process.pid))
        if process and here
        else ProcessStatus.UNKNOWN
    )
    return _status_from_launcher(instance, run) if word is ProcessStatus.UNKNOWN and fence_report else word


def _status_of_start(instance: dg.DagsterInstance, record: dg.RunRecord, now: float) -> ProcessStatus:
    """Of a run whose worker has not come up yet."""
    launched = record.update_timestamp.timestamp()
    limit = float(instance.run_monitoring_start_timeout_seconds)
    if isinstance(instance.run_launcher, dg.DefaultRunLauncher):
        limit = max(limit, instance.code_server_process_startup_timeout) if limit else limit
        ours = proc.process_started_at()  # the code server's, which starts the run workers
        if is_start_lost(launched, now, server_started_at=ours, limit_seconds=limit):
            return ProcessStatus.GONE
        return ProcessStatus.UNKNOWN
    if is_start_lost(launched, now, server_started_at=None, limit_seconds=limit):
        return _status_from_launcher(instance, record.dagster_run)
    return ProcessStatus.UNKNOWN


def _status_from_launcher(instance: dg.DagsterInstance, run: dg.DagsterRun) -> ProcessStatus:
    """Kubernetes, Docker and their like know their workers."""
    try:
        launcher = instance.run_launcher
        resumes = instance.run_monitoring_enabled and instance.run_monitoring_max_resume_run_attempts > 0
        # With resumes Dagster starts a new worker for the same run
        if not launcher.supports_check_run_worker_health or resumes:
            return ProcessStatus.UNKNOWN
        health = launcher.check_run_worker_health(run)
    except Exception:  # of the launcher's client: it may not be allowed to ask from here
        log.exception("could not ask the launcher how the worker of run %s is", run.run_id)
        return ProcessStatus.UNKNOWN
    return (
        ProcessStatus.UNKNOWN
        if health.transient
        else _WORKERS.get(health.status.value, ProcessStatus.UNKNOWN)
    )
