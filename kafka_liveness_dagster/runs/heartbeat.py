"""Write the heartbeats of a run, and find the status of its process by heartbeat, host and launcher.

Never ends a run.
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
# The keys are the names of Dagster's WorkerStatus
_WORKERS = {
    "RUNNING": ProcessStatus.ALIVE,
    "FAILED": ProcessStatus.GONE,
    "NOT_FOUND": ProcessStatus.GONE,
}
log = logging.getLogger("kafka_liveness_dagster")


class RunHeartbeat:
    """The heartbeats of a run, from the first line of its op to the last.

    Use it as a context manager. At its end it waits until Dagster's storage has all events of the run, before
    Dagster stores the step's outcome.

    Args:
        context: context of the op or asset.
        tags: tags to add to the run with the first heartbeat.
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
            "the first heartbeat of the run",
            DATA_STATE_AT_START,
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        # A failed step may be retried in the same run by its retry policy, so it has not ended
        self._has_ended = kind is None
        self._stopped.set()
        self._ended.wait(_STOP_SECONDS)  # with a limit, because Dagster's database may not respond
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
        self._write_tag(None)  # other steps of the run may continue, without heartbeats
        self._ended.set()

    def _write_tag(self, beat: int | None) -> None:
        try:
            self._storage.add_tags({PROCESS_TAG: self._tag_text(beat)})
        except Exception:  # the run was deleted; its watchdog ends it
            log.exception("Could not write the heartbeat of run %s", self._run_id)

    def _warn(self, error: DagsterStorageError) -> None:
        """Log an error in the process.

        Dagster may fail to store it, and then ends the process with its own error.
        """
        with suppress(Exception):  # an error here would replace the one that is about to be raised
            log.error("Run %s: %s", self._run_id, error)

    def _tag_text(self, beat: int | None) -> str:
        return HeartbeatTag(
            short_run_id(self._run_id), beat, self._process, has_ended=self._has_ended
        ).encode()


def process_status_of(
    instance: dg.DagsterInstance, record: dg.RunRecord, now: float, *, fence_report: bool
) -> ProcessStatus:
    """Return the status of the process of a run in progress.

    Args:
        instance: Dagster instance, with the run's launcher.
        record: record of the run.
        now: current time in seconds since the epoch.
        fence_report: whether the run is no member of its group. Only then the launcher is queried, because
            that may be slow.
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
    """Return the status of a run whose worker has not started yet."""
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
    """Return the status from a launcher that can check its workers, such as Kubernetes' or Docker's."""
    try:
        launcher = instance.run_launcher
        resumes = instance.run_monitoring_enabled and instance.run_monitoring_max_resume_run_attempts > 0
        # With resumes Dagster starts a new worker for the same run, so a dead one proves nothing
        if not launcher.supports_check_run_worker_health or resumes:
            return ProcessStatus.UNKNOWN
        health = launcher.check_run_worker_health(run)
    except Exception:  # the launcher's client failed; it may lack the permission in this process
        log.exception("Could not query the launcher for the worker of run %s", run.run_id)
        return ProcessStatus.UNKNOWN
    return (
        ProcessStatus.UNKNOWN
        if health.transient
        else _WORKERS.get(health.status.value, ProcessStatus.UNKNOWN)
    )
