"""Decide whether a run's process still exists, from the run's tag and the process table of a host.

Never guesses: a pid has no meaning on another kernel or in another container. There the result is
``UNKNOWN``.

>>> here = ProcessNamespace(boot_id="48df4ead", namespaces="4026531836")
>>> process = Process(here, pid=4242, start_ticks=1_311_164)
>>> process_status(process, here, PidEntry(exists=False)).value
'gone'
>>> process_status(process, here, PidEntry(exists=True, start_ticks=1_311_164)).value
'there'
>>> elsewhere = ProcessNamespace(boot_id="0c0ffee0", namespaces="4026531836")
>>> process_status(process, elsewhere, PidEntry(exists=False)).value
'unknown'
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

HEARTBEAT_SECONDS = 30.0
"""Interval of a run's heartbeats."""
_VERSION = "1"
_NOT_SET = "-"
_ENDED = "ended"
_SERVER_LEAD_SECONDS = 30.0


class ProcessStatus(Enum):
    """The status of a run's process, from its host or its launcher."""

    ALIVE = "there"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ProcessNamespace:
    """The scope in which a pid is valid.

    Attributes:
        boot_id: boot id of the kernel; each boot of each machine has its own.
        namespaces: namespaces for pids and start times: a container's, or the machine's own.
        machine_id: id of the booted machine; empty in containers, which may run elsewhere the next time.
    """

    boot_id: str
    namespaces: str
    machine_id: str = ""


@dataclass(frozen=True)
class Process:
    """A process by its pid and its start, in the kernel's ticks since boot, because pids are reused."""

    namespace: ProcessNamespace
    pid: int
    start_ticks: int


@dataclass(frozen=True)
class PidEntry:
    """A host's entry for a pid now.

    ``start_ticks`` is None if the host only shows that the process exists.
    """

    exists: bool
    start_ticks: int | None = None


def process_status(process: Process, this_namespace: ProcessNamespace, now: PidEntry) -> ProcessStatus:
    """Return the status of a process: gone, there, or unknown.

    Args:
        process: process in the run's tag.
        this_namespace: scope of ``now``.
        now: entry for its pid here.
    """
    # Rule 1: no process outlives its kernel, and a machine runs one kernel at a time
    if process.namespace.boot_id != this_namespace.boot_id:
        if process.namespace.machine_id and process.namespace.machine_id == this_namespace.machine_id:
            return ProcessStatus.GONE
        return ProcessStatus.UNKNOWN
    # Rule 2: in another container the pid belongs to another process
    if process.namespace.namespaces != this_namespace.namespaces:
        return ProcessStatus.UNKNOWN
    # Rule 3: the process has ended; a younger process may have its pid
    if not now.exists or now.start_ticks not in (None, process.start_ticks):
        return ProcessStatus.GONE
    return ProcessStatus.ALIVE


def is_start_lost(
    launched_at: float, now: float, *, server_started_at: float | None, limit_seconds: float
) -> bool:
    """Return whether a launched run that has not started never will; times in seconds since the epoch.

    Args:
        launched_at: time of the launch.
        now: current time.
        server_started_at: start of the process that loads the code and starts run workers; None if it starts
            none.
        limit_seconds: longest time of a start; 0 without a limit.
    """
    # Rule 1: the process that launched the run is gone, and its worker has had more time to load the code
    # than this process took
    if (
        server_started_at is not None
        and launched_at < server_started_at
        and now - server_started_at >= _SERVER_LEAD_SECONDS
    ):
        return True
    # Rule 2: Dagster's own limit
    return 0 < limit_seconds <= now - launched_at


@dataclass(frozen=True)
class HeartbeatTag:
    """The heartbeat of a run, stored in a tag.

    Attributes:
        short_run_id: the run's 8 hex digits, because a re-execution gets the tags of the other run.
        heartbeat_at: counter that increases every ``HEARTBEAT_SECONDS`` while the run works; None without a
            heartbeat, or after it has stopped.
        process: process whose end is the run's end; None if it cannot be named.
        has_ended: whether the run's step in the lane has ended; other steps of the run may continue.
    """

    short_run_id: str
    heartbeat_at: int | None = None
    process: Process | None = None
    has_ended: bool = False

    def encode(self) -> str:
        """Return the text of the tag.

        >>> process = Process(ProcessNamespace("48df4ead", "4026531836"), 4242, 1_311_164)
        >>> HeartbeatTag("0badcafe", 7, process).encode()
        '1 0badcafe 7 4242 1311164 48df4ead 4026531836 -'
        """
        beat: str | int
        if self.has_ended:
            beat = _ENDED
        elif self.heartbeat_at is None:
            beat = _NOT_SET
        else:
            beat = self.heartbeat_at
        if self.process is None:
            return f"{_VERSION} {self.short_run_id} {beat}"
        at = self.process.namespace
        where = (
            f"{self.process.pid} {self.process.start_ticks} {at.boot_id} {at.namespaces} "
            f"{at.machine_id or _NOT_SET}"
        )
        return f"{_VERSION} {self.short_run_id} {beat} {where}"

    @classmethod
    def decode(cls, tag: str, mark: str) -> HeartbeatTag:
        """Read the tag of a run; the result is empty without one, or for another run or version."""
        match tag.split():
            case [version, whose, beat, *where] if (version, whose) == (_VERSION, mark):
                return cls(
                    mark,
                    int(beat) if beat.isdecimal() else None,
                    _decode_process(where),
                    has_ended=beat == _ENDED,
                )
        return cls(mark)


def _decode_process(words: list[str]) -> Process | None:
    match words:
        case [pid, began, boot, cell, machine] if pid.isdecimal() and began.isdecimal():
            return Process(
                ProcessNamespace(boot, cell, "" if machine == _NOT_SET else machine), int(pid), int(began)
            )
    return None
