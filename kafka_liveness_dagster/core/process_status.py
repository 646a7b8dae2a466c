"""Is the process that works for a run still there? What the run said of it, held against what a host has.

Sure, or silent: a pid says nothing on another kernel or in another container, and then the answer is
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
"""How often a run gives a sign of life."""
_VERSION = "1"
_NO_PROCESS = "-"
_ENDED = "ended"
_SERVER_LEAD_SECONDS = 30.0


class ProcessStatus(Enum):
    """What the host, or who launched it, says of the process of a run."""

    ALIVE = "there"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ProcessNamespace:
    """Where a pid means something.

    Attributes:
        boot_id: of the kernel; each boot of each machine has another.
        namespaces: the namespaces that number and date processes there: a container's, or the machine's own.
        machine_id: of which that is a boot; empty in containers, which may be anywhere the next time.
    """

    boot_id: str
    namespaces: str
    machine_id: str = ""


@dataclass(frozen=True)
class Process:
    """One process: a pid may come again, with another beginning (in the kernel's ticks since its boot)."""

    namespace: ProcessNamespace
    pid: int
    start_ticks: int


@dataclass(frozen=True)
class PidEntry:
    """What a host has under a pid now.

    ``start_ticks`` is None where it shows no more than that the process exists.
    """

    exists: bool
    start_ticks: int | None = None


def process_status(process: Process, this_namespace: ProcessNamespace, now: PidEntry) -> ProcessStatus:
    """Whether a process is gone for sure.

    Args:
        process: as the run told it.
        this_namespace: where we look.
        now: what is here under its pid.
    """
    # Rule 1: nothing outlives its kernel, and a machine has one at a time
    if process.namespace.boot_id != this_namespace.boot_id:
        if process.namespace.machine_id and process.namespace.machine_id == this_namespace.machine_id:
            return ProcessStatus.GONE
        return ProcessStatus.UNKNOWN
    # Rule 2: in another container the pid is another process's
    if process.namespace.namespaces != this_namespace.namespaces:
        return ProcessStatus.UNKNOWN
    # Rule 3: ended, or ended and its pid given to a younger one
    if not now.exists or now.start_ticks not in (None, process.start_ticks):
        return ProcessStatus.GONE
    return ProcessStatus.ALIVE


def is_start_lost(
    launched_at: float, now: float, *, server_started_at: float | None, limit_seconds: float
) -> bool:
    """Whether a run that was launched and has not started never will; all in seconds since the epoch.

    Args:
        launched_at: when it was.
        now: the time.
        server_started_at: when the process began that loads the code and starts run workers; None where it
            starts none.
        limit_seconds: how long a start may take at most; 0 for any time.
    """
    # Rule 1: whoever launched it is gone, and its worker has had longer to load the code than we took
    # ourselves
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
    """What a run says of itself in a tag.

    Attributes:
        short_run_id: the run's 8 hex digits: a run that repeats another one has the other's tags.
        heartbeat_at: counts up every ``HEARTBEAT_SECONDS`` while it works; None when it does not say so, or
            no more.
        process: the one whose end is the run's end; None where that cannot be named.
        has_ended: whether the run's step in the lane has ended; other steps of the run may go on.
    """

    short_run_id: str
    heartbeat_at: int | None = None
    process: Process | None = None
    has_ended: bool = False

    def encode(self) -> str:
        """The tag.

        >>> process = Process(ProcessNamespace("48df4ead", "4026531836"), 4242, 1_311_164)
        >>> HeartbeatTag("0badcafe", 7, process).encode()
        '1 0badcafe 7 4242 1311164 48df4ead 4026531836 -'
        """
        beat: str | int
        if self.has_ended:
            beat = _ENDED
        elif self.heartbeat_at is None:
            beat = _NO_PROCESS
        else:
            beat = self.heartbeat_at
        if self.process is None:
            return f"{_VERSION} {self.short_run_id} {beat}"
        at = self.process.namespace
        where = (
            f"{self.process.pid} {self.process.start_ticks} {at.boot_id} {at.namespaces} "
            f"{at.machine_id or _NO_PROCESS}"
        )
        return f"{_VERSION} {self.short_run_id} {beat} {where}"

    @classmethod
    def decode(cls, tag: str, mark: str) -> HeartbeatTag:
        """Read the tag of a run; another run's, another version's or none says nothing."""
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
                ProcessNamespace(boot, cell, "" if machine == _NO_PROCESS else machine), int(pid), int(began)
            )
    return None
