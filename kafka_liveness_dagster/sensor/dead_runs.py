"""Notice that the process of a live run ended, and end runs in Dagster for which no process works.

Dagster's daemon starts a tick every 5 s, so on average a crash would be noticed after half of that. The
kernel signals a pidfd the moment its process ends, for any cause. So a tick first watches the processes on
its host. It observes the group when one of them has ended, or shortly before the next tick is due. So the
interval of observations is the same as without the watch. A tick that took longer than 5 s would lose the
next one, so a watch leaves the time that recent ticks took after theirs.

A waiting tick occupies a thread of the daemon and one of the code server. So it waits only if the daemon has
threads (``sensors: {use_threads: true}``). Only a few ticks wait at once, which leaves threads for the other
sensors of the code location. Never ends a run whose end is not certain, unless the settings say so.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import dagster as dg

from kafka_liveness_dagster.concurrency import start_daemon_thread
from kafka_liveness_dagster.core.errors import summary_line
from kafka_liveness_dagster.core.orphaned_runs import ghost_event, is_certainly_dead, not_counted_as_live
from kafka_liveness_dagster.core.process_status import ProcessStatus, process_status
from kafka_liveness_dagster.runs import proc
from kafka_liveness_dagster.runs.tags import heartbeat_of, in_progress_filter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kafka_liveness_dagster.core.orphaned_runs import Absence
    from kafka_liveness_dagster.core.process_status import Process
    from kafka_liveness_dagster.sensor.observation import GroupObservation
    from kafka_liveness_dagster.sensor.table_ledger import TableLedgerReader


log = logging.getLogger("kafka_liveness_dagster")
_SLOT_KEPT_SECONDS = 60.0  # a run that ends returns its slots itself, a little later


@dataclass(frozen=True)
class OrphanedRuns:
    """Runs in progress without a working process, which do not block a successor.

    Attributes:
        after_seconds: time without a heartbeat before a run counts as a ghost.
        always: whether every ghost is reported as failed; else only one whose end is certain.
    """

    observed: GroupObservation
    absences: Mapping[str, Absence]
    now: float
    _: KW_ONLY
    after_seconds: float
    always: bool

    def live_runs(self, max_live_runs: int) -> list[str]:
        """Return the orphaned runs of the live lane."""
        return not_counted_as_live(
            self.observed.snapshot.runs,
            self.absences,
            self.now,
            ghost_after_seconds=self.after_seconds,
            max_alive=max_live_runs,
        )

    def catch_up_runs(self) -> list[str]:
        """Return the orphaned runs of the catch-up lane."""
        return not_counted_as_live(
            self.observed.snapshot.catch_up, self.absences, self.now, ghost_after_seconds=self.after_seconds
        )

    def end_dead_runs(self, instance: dg.DagsterInstance, sensor_name: str, log: logging.Logger) -> bool:
        """End the dead runs in Dagster; return whether there was any. Repeated at each tick."""
        ended = False
        runs = self.observed.snapshot.runs_of_both_lanes
        for mark, absence in self.absences.items():
            if is_certainly_dead(
                runs[mark],
                absence,
                self.now,
                ghost_after_seconds=self.after_seconds,
                always_report=self.always,
            ):
                why = f"{ghost_event(mark, runs[mark], absence, now=self.now)}: reported by {sensor_name}"
                try:
                    ended |= _end_run(instance, self.observed.run_of_mark(mark), why)
                except Exception:  # the next tick retries; the successor must not wait for that
                    log.exception("Could not report to Dagster that run %s is over", mark)
        return ended


def _end_run(instance: dg.DagsterInstance, known: dg.DagsterRun | None, reason: str) -> bool:
    run = instance.get_run_by_id(known.run_id) if known is not None else None
    if run is None or run.is_finished:  # it ended after the observation
        return False
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, reason)
    else:
        instance.report_run_failed(run, reason)
    if instance.event_log_storage.supports_global_concurrency_limits:
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    return True


def end_spark_session(table: TableLedgerReader, session_id: str, mark: str) -> None:
    """End the Spark session of a crashed run in a thread, because a tick does not wait for Spark.

    The server would finish the dead client's job, and commit it, while the successor needs the cores. If it
    fails, only the cores are shared: the ledger shows what a dead run has written.
    """

    def end() -> None:
        try:
            table.end_session(session_id)
            log.info("Ended the Spark session of crashed run %s", mark)
        except Exception as error:  # noqa: BLE001 - of Spark or its transport; the server ends the session later
            log.warning("The Spark session of crashed run %s did not end: %s", mark, summary_line(error))

    start_daemon_thread(end, "kafka-liveness-end-session")


def free_pool_slots(instance: dg.DagsterInstance, asset: dg.AssetsDefinition, now: float) -> None:
    """Free slots of an asset's pool that finished runs still hold.

    A killed run worker cannot free its own slots.
    """
    storage = instance.event_log_storage
    pool = getattr(asset.node_def, "pool", None)
    if pool is None or not storage.supports_global_concurrency_limits:
        return
    info = storage.get_concurrency_info(pool)
    for run_id in {
        *(slot.run_id for slot in info.claimed_slots),
        *(step.run_id for step in info.pending_steps),
    }:
        record = instance.get_run_record_by_id(run_id)
        is_over = record is None or record.dagster_run.is_finished
        if is_over and now - ((record.end_time if record else None) or 0.0) >= _SLOT_KEPT_SECONDS:
            storage.free_concurrency_slots_for_run(run_id)


_ROUND_SECONDS = 5.0  # from one check of the daemon to the next; it skips a sensor while its tick runs
_MARGIN_SECONDS = 0.5  # for the daemon and its request to the code server
_MIN_RESERVE_SECONDS = 0.5  # an observation takes 0.1 or 0.2 s
_RESERVE_KEPT = 0.7  # a slow tick is forgotten in about ten ticks
_MAX_WATCHING = 2
_MIN_WORKERS = 2 * _MAX_WATCHING
_slots = threading.BoundedSemaphore(_MAX_WATCHING)


class ExitWatch:
    """The watch at the beginning of each tick of one sensor, and how long it may take."""

    def __init__(self) -> None:
        self._reserve = _MIN_RESERVE_SECONDS

    @property
    def seconds(self) -> float:
        """The longest watch after which the tick should end before the daemon's next check."""
        return max(0.0, _ROUND_SECONDS - _MARGIN_SECONDS - self._reserve)

    @contextmanager
    def before_observation(self, instance: dg.DagsterInstance, group_ids: Sequence[str]) -> Iterator[None]:
        """Watch as long as there is time, and then measure this block, which observes the groups."""
        wait_for_process_exit(instance, group_ids, self.seconds)
        began = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - began
            self._reserve = max(took, _RESERVE_KEPT * self._reserve, _MIN_RESERVE_SECONDS)


def wait_for_process_exit(instance: dg.DagsterInstance, group_ids: Sequence[str], seconds: float) -> bool:
    """Watch the groups' live runs that work on this host, until a process ends or the time is over.

    Does nothing if no process is known to be on this host, or if the daemon has too few threads. The same if
    the system has no pidfd (only Linux has it), or if two other ticks of this code server are waiting.

    Args:
        instance: Dagster instance, with the runs and the daemon's settings.
        group_ids: groups of live lanes.
        seconds: longest wait.

    Returns:
        Whether a process has ended.
    """
    if not (hasattr(os, "pidfd_open") and _has_enough_threads(instance)) or not _slots.acquire(
        blocking=False
    ):
        return False
    try:
        signs = (
            heartbeat_of(record.dagster_run)
            for record in instance.get_run_records(in_progress_filter(group_ids, "live"))
        )
        return _wait_for_any_exit([sign.process for sign in signs if sign.process], seconds)
    finally:
        _slots.release()


def _has_enough_threads(instance: dg.DagsterInstance) -> bool:
    """Return whether the daemon evaluates enough sensors concurrently.

    By default it has more than four threads.
    """
    settings = instance.get_sensor_settings() or {}
    return bool(settings.get("use_threads")) and (settings.get("num_workers") or _MIN_WORKERS) >= _MIN_WORKERS


def _wait_for_any_exit(processes: list[Process], seconds: float) -> bool:
    """Wait until a process on this host has ended; return at once if none is on this host."""
    here = proc.this_namespace()
    words = (
        [(process_status(process, here, proc.pid_entry(process.pid)), process) for process in processes]
        if here
        else []
    )
    if any(word is ProcessStatus.GONE for word, _ in words):
        return True
    there = [process.pid for word, process in words if word is ProcessStatus.ALIVE]
    poll = select.poll()
    with ExitStack() as opened:
        for pid in there:
            try:
                pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                return True  # it ended after its status was read
            opened.callback(os.close, pidfd)
            poll.register(pidfd, select.POLLIN)
        return bool(there and poll.poll(seconds * 1000))
