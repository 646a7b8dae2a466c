"""Is the process with that number still the one we started? Starts, recognises and ends child processes.

A process is known by its pid and a random mark on its command line. The mark, unlike a start time, survives a
clock that was set, and a pid that now belongs to another program never carries it. What is not recognised is never
signalled.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

_GRACE_SECONDS = 15.0
_KILLED_SECONDS = 5.0
_LAST_LINES = 20
_children: list[subprocess.Popen[bytes]] = []
"""Kept, so that one that dies is reaped with the next start and the interpreter does not warn about the rest."""


@dataclass(frozen=True)
class Launch:
    """How to start a service: an argument list, where, and the whole environment."""

    command: tuple[str, ...]
    folder: Path
    env: Mapping[str, str]


def mark_option(mark: str) -> str:
    """The Java option that carries the mark; it means nothing to Java."""
    return f"-Dkafka_liveness.mark={mark}"


def start(launch: Launch, log: Path) -> subprocess.Popen[bytes]:
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


def find(pid: int | None, mark: str) -> psutil.Process | None:
    """The living process with that pid and mark; None when it is gone, a zombie, or another program."""
    if pid is None or not mark:
        return None
    try:
        process = psutil.Process(pid)
        return process if any(mark in argument for argument in process.cmdline()) else None
    except psutil.Error:
        return None


def end(processes: Iterable[psutil.Process]) -> None:
    """Ask them and their children to end, and kill those that have not after 15 s."""
    everyone = [one for process in processes for one in (*_descendants(process), process)]
    for process in everyone:
        _signal(process.terminate)
    _, alive = psutil.wait_procs(everyone, timeout=_GRACE_SECONDS)
    for process in alive:
        _signal(process.kill)
    psutil.wait_procs(alive, timeout=_KILLED_SECONDS)


def last_lines(log: Path) -> str:
    """The end of a log file, for an error message."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-_LAST_LINES:]) or "(nothing)"


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _signal(send: Callable[[], None]) -> None:
    with suppress(psutil.NoSuchProcess):
        send()
