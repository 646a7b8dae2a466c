"""Start, recognize and end child processes, and find free loopback ports for them.

A process is recognized by its pid, its user, its current folder, and a random marker that is a whole argument
of its command line. The marker, unlike a start time, survives a change of the clock. If another program gets
the pid, its command line lacks the marker. The folder distinguishes a state folder from its copy. A process
that is not recognized gets no signal.
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
    """Return whether a service could listen on the port now; a closing connection does not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """Return a port on which no program listens.

    Not port 0: the system would choose from the ports of outgoing connections. A client's next connection
    could then take the port before the service does.
    """
    tried = random.SystemRandom()
    return next(port for port in iter(lambda: tried.choice(_PORTS), None) if is_free(port))


def is_listening(port: int, host: str = LOOPBACK) -> bool:
    """Return whether a program accepts a connection on the port within a second."""
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
"""The child processes of this process.

The list lets the next start reap dead ones, and stops the interpreter from warning about the others.
"""


@dataclass(frozen=True)
class Launch:
    """The command to start a service: an argument list, its folder, and the whole environment."""

    command: tuple[str, ...]
    folder: Path
    env: Mapping[str, str]


def process_marker_option(process_marker: str) -> str:
    """Return the Java option that has the marker; Java ignores the option."""
    return f"-Dkafka_liveness.process_marker={process_marker}"


def start_process(launch: Launch, log: Path) -> subprocess.Popen[bytes]:
    """Start a process in its own session, so that Ctrl-C in this terminal does not end a shared service."""
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
    """Return the running service with this pid and marker in this folder; None if there is none.

    None also for a zombie, another program, another user's process, and a process of another state folder (a
    copy has the state file too). None for the first process of the system and for ancestors of this process,
    which this package did not start.
    """
    if not process_marker or pid is None or pid <= _INIT_PID:
        return None
    try:
        process = psutil.Process(pid)
        is_ours = (
            process.uids().effective == os.geteuid()
            and not {process_marker, process_marker_option(process_marker)}.isdisjoint(process.cmdline())
            # Equal even if the folder was removed
            and os.path.realpath(process.cwd()) == os.path.realpath(folder)
            and pid not in _own_ancestors()
        )
    except psutil.Error:
        return None
    return process if is_ours else None


def end_processes(processes: Iterable[psutil.Process]) -> None:
    """Send SIGTERM to the processes and their children, and SIGKILL to those that remain after 15 s.

    Never signals this process or its ancestors.
    """
    asking = _own_ancestors()
    everyone = [
        one for process in processes for one in (*_descendants(process), process) if one.pid not in asking
    ]
    for process in everyone:
        _send_signal(process.terminate)
    _, alive = psutil.wait_procs(everyone, timeout=_GRACE_SECONDS)
    for process in alive:
        _send_signal(process.kill)
    psutil.wait_procs(alive, timeout=_KILLED_SECONDS)


def start_seconds() -> float:
    """Return the time limit for a service to respond, and for a broker to format its storage.

    The default is 120 s.

    Raises:
        InvalidSettingError: ``KAFKA_LIVENESS_START_SECONDS`` is not a number of seconds.
    """
    said = os.environ.get(START_SECONDS)
    if not said:
        return _DEFAULT_START_SECONDS
    with suppress(ValueError):
        if 0 < float(said) < math.inf:
            return float(said)
    raise InvalidSettingError(
        f"{START_SECONDS} is {said!r}: wanted a number of seconds above 0, like 300, or unset it for the "
        f"default of {_DEFAULT_START_SECONDS:g}"
    )


def last_lines(log: Path) -> str:
    """Return the last lines of a log file, for an error message."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-_LAST_LINES:]) or "(nothing)"


def _own_ancestors() -> set[int]:
    """Return the pids of this process and of its ancestors."""
    return {_INIT_PID, os.getpid(), *(parent.pid for parent in psutil.Process().parents())}


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _send_signal(send: Callable[[], None]) -> None:
    with suppress(psutil.NoSuchProcess):
        send()
