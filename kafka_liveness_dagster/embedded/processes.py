"""Start, recognize and end child processes, and find free loopback ports for them.

A process is known by its pid, a random mark that is a whole argument of its command line, its user, and the
folder it runs in. The mark, unlike a start time, survives a clock that was set, and a pid that now belongs to
another program never carries it; the folder tells a state folder from its copy. What is not recognised is
never signalled.
"""

from __future__ import annotations

import math
import os
import random
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from kafka_liveness_dagster.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


LOOPBACK = "127.0.0.1"
_PORTS = range(20_000, 30_000)


def is_free(port: int) -> bool:
    """Whether a service could listen there now; a connection that is only closing does not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """A port nobody listens on.

    Not port 0: the system's answer lies where a client's next connection may take it before the service does.
    """
    tried = random.SystemRandom()
    return next(port for port in iter(lambda: tried.choice(_PORTS), None) if is_free(port))


def is_listening(port: int, host: str = LOOPBACK) -> bool:
    """Whether something accepts a connection within a second."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


START_SECONDS = "KAFKA_LIVENESS_START_SECONDS"
_DEFAULT_START_SECONDS = 120.0
_INIT_PID = 1
_GRACE_SECONDS = 15.0
_KILLED_SECONDS = 5.0
_LAST_LINES = 20
_children: list[subprocess.Popen[bytes]] = []
"""Kept, so that a dead one is reaped with the next start and the interpreter does not warn about the rest."""


@dataclass(frozen=True)
class Launch:
    """How to start a service: an argument list, where, and the whole environment."""

    command: tuple[str, ...]
    folder: Path
    env: Mapping[str, str]


def process_marker_option(process_marker: str) -> str:
    """The Java option that carries the mark; it means nothing to Java."""
    return f"-Dkafka_liveness.process_marker={process_marker}"


def start_process(launch: Launch, log: Path) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own: Ctrl-C in this terminal does not reach a shared service."""
    if log.exists():
        log.replace(log.with_suffix(".previous.log"))
    with log.open("wb") as output:
        child = subprocess.Popen(
            launch.command,
            cwd=launch.folder,
            env=launch.env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _children[:] = [*(other for other in _children if other.poll() is None), child]
    return child


def find_process(pid: int | None, process_marker: str, folder: Path) -> psutil.Process | None:
    """The living service with that pid and mark that runs in that folder.

    None when it is gone, a zombie, another program, another user's, of another state folder (a copy has the
    state file too), the first process of all, or one that we descend from: such a one was not started by us.
    """
    if not process_marker or pid is None or pid <= _INIT_PID:
        return None
    try:
        process = psutil.Process(pid)
        is_ours = (
            process.uids().effective == os.geteuid()
            and not {process_marker, process_marker_option(process_marker)}.isdisjoint(process.cmdline())
            # Equal also for a folder that was removed
            and os.path.realpath(process.cwd()) == os.path.realpath(folder)
            and pid not in _own_ancestors()
        )
    except psutil.Error:
        return None
    return process if is_ours else None


def end_processes(processes: Iterable[psutil.Process]) -> None:
    """Ask them and their children to end, and kill those that have not after 15 s. Never who asks for it."""
    asking = _own_ancestors()
    everyone = [
        one for process in processes for one in (*_descendants(process), process) if one.pid not in asking
    ]
    for process in everyone:
        _signal_each(process.terminate)
    _, alive = psutil.wait_procs(everyone, timeout=_GRACE_SECONDS)
    for process in alive:
        _signal_each(process.kill)
    psutil.wait_procs(alive, timeout=_KILLED_SECONDS)


def start_seconds() -> float:
    """Return how long a service may take until it responds, and a broker to format its storage.

    It is 120 s unless set otherwise.

    Raises:
        InvalidSettingError: ``KAFKA_LIVENESS_START_SECONDS`` is no number of seconds.
    """
    said = os.environ.get(START_SECONDS)
    if not said:
        return _DEFAULT_START_SECONDS
    with suppress(ValueError):
        if 0 < float(said) < math.inf:
            return float(said)
    raise InvalidSettingError(
        f"{START_SECONDS} is {said!r}: wanted a number of seconds above 0, like 300, or leave it out for "
        f"{_DEFAULT_START_SECONDS:g}"
    )


def last_lines(log: Path) -> str:
    """The end of a log file, for an error message."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-_LAST_LINES:]) or "(nothing)"


def _own_ancestors() -> set[int]:
    """This process and all that it descends from."""
    return {_INIT_PID, os.getpid(), *(parent.pid for parent in psutil.Process().parents())}


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _signal_each(send: Callable[[], None]) -> None:
    with suppress(psutil.NoSuchProcess):
        send()
