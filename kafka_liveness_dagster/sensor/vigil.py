"""Has a live run's process just died? A tick that watches it for most of a round notices at once, not at the next look.

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
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.processes import Word, judge
from kafka_liveness_dagster.runs import host
from kafka_liveness_dagster.runs.tags import sign_of, unfinished

if TYPE_CHECKING:
    import dagster as dg

    from kafka_liveness_dagster.core.processes import Process

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
    here = host.here()
    words = [(judge(process, here, host.entry(process.pid)), process) for process in processes] if here else []
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
