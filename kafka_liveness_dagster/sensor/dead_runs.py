"""Notice that the process of a live run ended, and end runs in Dagster for which no process works.

Dagster's daemon comes by every 5 s: on average a crash would be noticed after half of that. The kernel tells whoever
holds a pidfd the moment a process ends, whatever ended it. So a tick first watches the processes that are on its host,
and looks at the group when one of them has ended, or shortly before the daemon comes by again: looks are as frequent as
without it, and what needs no haste is told as early or late as before.

A tick that stays keeps a thread of the daemon and one of the code server, so it is done only where the daemon has
threads (``sensors: {use_threads: true}``), and by few at once: the other sensors of the code location have theirs.
"""

from __future__ import annotations

import os
import select
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from kafka_liveness_dagster.core.orphaned_runs import ghost, is_over, uncounted
from kafka_liveness_dagster.core.process_status import Word, judge
from kafka_liveness_dagster.runs import proc
from kafka_liveness_dagster.runs.tags import sign_of, unfinished

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping

    from kafka_liveness_dagster.core.orphaned_runs import Absence
    from kafka_liveness_dagster.core.process_status import Process
    from kafka_liveness_dagster.sensor.observation import GroupLook


_KEPT_SECONDS = 60.0  # a run that ends gives its slots back itself, a little later


@dataclass(frozen=True)
class Ghosts:
    """Runs in progress that keep no place, at one look.

    Attributes:
        after_seconds: a run that gives no sign of life is no ghost before that.
        always: report every ghost as failed; else only one whose end is certain.
    """

    look: GroupLook
    absent: Mapping[str, Absence]
    now: float
    after_seconds: float
    always: bool

    def live(self, max_live_runs: int) -> list[str]:
        """Those of the live lane."""
        return uncounted(self.look.snapshot.runs, self.absent, self.now, self.after_seconds, max_live_runs)

    def catch_up(self) -> list[str]:
        """Those of the catch-up lane."""
        return uncounted(self.look.snapshot.catch_up, self.absent, self.now, self.after_seconds)

    def end(self, instance: dg.DagsterInstance, by: str, log: logging.Logger) -> bool:
        """Tell Dagster which of them are over; whether any was. At every look while it is so."""
        ended = False
        runs = {**self.look.snapshot.runs, **self.look.snapshot.catch_up}
        for mark, absence in self.absent.items():
            if is_over(runs[mark], absence, self.now, self.after_seconds, always=self.always):
                why = f"{ghost(mark, runs[mark], absence, self.now)}: reported by {by}"
                try:
                    ended |= _end(instance, self.look.run(mark), why)
                except Exception:  # the next look tries again; the successor must not wait for that
                    log.exception("could not tell Dagster that run %s is over", mark)
        return ended


def _end(instance: dg.DagsterInstance, known: dg.DagsterRun | None, why: str) -> bool:
    run = instance.get_run_by_id(known.run_id) if known is not None else None
    if run is None or run.is_finished:  # it ended since the look
        return False
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, why)
    else:
        instance.report_run_failed(run, why)
    if instance.event_log_storage.supports_global_concurrency_limits:
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    return True


def free_slots(instance: dg.DagsterInstance, asset: dg.AssetsDefinition, now: float) -> None:
    """Give back what runs that are over left taken of an asset's pool: a run worker that was killed cannot."""
    storage, pool = instance.event_log_storage, getattr(asset.node_def, "pool", None)
    if pool is None or not storage.supports_global_concurrency_limits:
        return
    info = storage.get_concurrency_info(pool)
    for run_id in {*(slot.run_id for slot in info.claimed_slots), *(step.run_id for step in info.pending_steps)}:
        record = instance.get_run_record_by_id(run_id)
        is_over = record is None or record.dagster_run.is_finished
        if is_over and now - ((record.end_time if record else None) or 0.0) >= _KEPT_SECONDS:
            storage.free_concurrency_slots_for_run(run_id)


STAY_SECONDS = 4.0  # of the daemon's 5; the look behind it takes a tenth or two
_AT_ONCE = 2
_FEWEST_WORKERS = 2 * _AT_ONCE
_places = threading.BoundedSemaphore(_AT_ONCE)


def keep_vigil(instance: dg.DagsterInstance, group_id: str, seconds: float = STAY_SECONDS) -> bool:
    """Watch the live runs of a group that are at work on this host, until one's process ends or the time is over.

    Does nothing where no process is known to be here, the daemon has no threads to spare, the system has no pidfd
    (which is Linux's), or two other ticks of this code server are at it.

    Args:
        instance: knows the runs, and what the daemon is like.
        group_id: the live lane's group.
        seconds: how long to stay at most.

    Returns:
        Whether a process has ended.
    """
    if not (hasattr(os, "pidfd_open") and _has_threads(instance)) or not _places.acquire(blocking=False):
        return False
    try:
        signs = (sign_of(record.dagster_run) for record in instance.get_run_records(unfinished(group_id, "live")))
        return _ends([sign.process for sign in signs if sign.process], seconds)
    finally:
        _places.release()


def _has_threads(instance: dg.DagsterInstance) -> bool:
    """Whether the daemon evaluates enough sensors side by side; unless told how many, it has more than four threads."""
    settings = instance.get_sensor_settings() or {}
    return bool(settings.get("use_threads")) and (settings.get("num_workers") or _FEWEST_WORKERS) >= _FEWEST_WORKERS


def _ends(processes: list[Process], seconds: float) -> bool:
    """Whether one of those that are on this host has ended, or does in time; at once where none is."""
    here = proc.here()
    words = [(judge(process, here, proc.entry(process.pid)), process) for process in processes] if here else []
    if any(word is Word.GONE for word, _ in words):
        return True
    there = [process.pid for word, process in words if word is Word.THERE]
    poll = select.poll()
    with ExitStack() as opened:
        for pid in there:
            try:
                pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                return True  # since it was judged
            opened.callback(os.close, pidfd)
            poll.register(pidfd, select.POLLIN)
        return bool(there and poll.poll(seconds * 1000))
