"""What does this host have under a pid, and where are we?

As Linux's /proc has it; elsewhere nothing is known.
"""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from functools import cache
from pathlib import Path

import psutil

from kafka_liveness_dagster.core.process_status import PidEntry, Process, ProcessNamespace

PROC_ROOT = Path("/proc")
_MACHINE_ID = Path("/etc/machine-id")
_NOT_IN_A_CONTAINER = "4026531836"  # the first pid namespace of every kernel has this number
_BOOT_ID_CHARS = 16
# Fields of /proc/<pid>/stat, counted from behind the command's name
_STATE_FIELD = 0
_START_TICKS_FIELD = 19
_DEAD_STATES = ("Z", "X")


@cache
def this_namespace() -> ProcessNamespace | None:
    """Where this process is; None where the system does not say."""
    try:
        boot = (PROC_ROOT / "sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:_BOOT_ID_CHARS]
        pids = _namespace_id("pid")
        times = _namespace_id("time")
    except OSError:
        return None
    if not boot or not pids:
        return None
    machine = _machine_hash() if pids == _NOT_IN_A_CONTAINER else ""
    return ProcessNamespace(boot, f"{pids}.{times}", machine)


def process(pid: int) -> Process | None:
    """A living process by its pid, so that it can be told from others; None where that cannot be said."""
    place = this_namespace()
    found = pid_entry(pid)
    return None if place is None or found.start_ticks is None else Process(place, pid, found.start_ticks)


def process_started_at() -> float:
    """When this process did, in seconds since the epoch."""
    return psutil.Process().create_time()


def pid_entry(pid: int) -> PidEntry:
    """What is here under a pid. A zombie is nothing: it has ended and waits to be collected."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return PidEntry(exists=False)
    except OSError:
        pass  # another user's: it exists
    try:
        fields = (PROC_ROOT / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # not shown to us
        return PidEntry(exists=True)
    if fields[_STATE_FIELD] in _DEAD_STATES:
        return PidEntry(exists=False)
    return PidEntry(exists=True, start_ticks=int(fields[_START_TICKS_FIELD]))


def _namespace_id(kind: str) -> str:
    """The number of one of our namespaces; the kernel may lack the kind."""
    link = PROC_ROOT / "self/ns" / kind
    return "".join(filter(str.isdecimal, str(link.readlink()))) if link.is_symlink() else ""


def _machine_hash() -> str:
    """A machine by all that tells it from its clones: its id, its name and its network card.

    Empty without an id.
    """
    try:
        machine = _MACHINE_ID.read_text().strip()
    except OSError:
        return ""
    names = f"{machine} {socket.gethostname()} {uuid.getnode()}"
    return hashlib.sha256(names.encode()).hexdigest()[:12] if machine else ""
