"""Read processes and namespaces of this host from Linux's /proc.

Never guesses: on another system the results are empty.
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
# Fields of /proc/<pid>/stat, counted after the command's name
_STATE_FIELD = 0
_START_TICKS_FIELD = 19
_DEAD_STATES = ("Z", "X")


@cache
def this_namespace() -> ProcessNamespace | None:
    """Return the namespace of this process; None if the system does not show it."""
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
    """Return a living process with its start, which distinguishes it from others; None if unknown."""
    place = this_namespace()
    found = pid_entry(pid)
    return None if place is None or found.start_ticks is None else Process(place, pid, found.start_ticks)


def process_started_at() -> float:
    """Return the start of this process in seconds since the epoch."""
    return psutil.Process().create_time()


def pid_entry(pid: int) -> PidEntry:
    """Return this host's entry for a pid; a zombie does not count, because it has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return PidEntry(exists=False)
    except OSError:
        pass  # the process of another user exists
    try:
        fields = (PROC_ROOT / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # this process may not read it
        return PidEntry(exists=True)
    if fields[_STATE_FIELD] in _DEAD_STATES:
        return PidEntry(exists=False)
    return PidEntry(exists=True, start_ticks=int(fields[_START_TICKS_FIELD]))


def _namespace_id(kind: str) -> str:
    """Return the number of a namespace of this process; the kernel may lack the kind."""
    link = PROC_ROOT / "self/ns" / kind
    return "".join(filter(str.isdecimal, str(link.readlink()))) if link.is_symlink() else ""


def _machine_hash() -> str:
    """Return a hash of a machine's id, name and network card, which distinguish it from its clones.

    Empty without an id.
    """
    try:
        machine = _MACHINE_ID.read_text().strip()
    except OSError:
        return ""
    names = f"{machine} {socket.gethostname()} {uuid.getnode()}"
    return hashlib.sha256(names.encode()).hexdigest()[:12] if machine else ""
