"""Is the process that works for a run still there? What the run said of it, held against what a host has.

Sure, or silent: a pid says nothing on another kernel or in another container, and then the answer is ``UNKNOWN``.

>>> here = Place(boot="48df4ead", cell="4026531836")
>>> process = Process(here, pid=4242, began=1_311_164)
>>> judge(process, here, Entry(exists=False)).value, judge(process, here, Entry(exists=True, began=1_311_164)).value
('gone', 'there')
>>> judge(process, Place(boot="0c0ffee0", cell="4026531836"), Entry(exists=False)).value
'unknown'
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

BEAT_SECONDS = 30.0
"""How often a run gives a sign of life."""
_VERSION = "1"
_NOTHING = "-"
_OVER = "ended"
_SERVER_LEAD_SECONDS = 30.0


class Word(Enum):
    """What the host, or who launched it, says of the process of a run."""

    THERE = "there"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Place:
    """Where a pid means something.

    Attributes:
        boot: of the kernel; each boot of each machine has another.
        cell: the namespaces that number and date processes there: a container's, or the machine's own.
        machine: of which that is a boot; empty in containers, which may be anywhere the next time.
    """

    boot: str
    cell: str
    machine: str = ""


@dataclass(frozen=True)
class Process:
    """One process: a pid may come again, with another beginning (in the kernel's ticks since its boot)."""

    place: Place
    pid: int
    began: int


@dataclass(frozen=True)
class Entry:
    """What a host has under a pid now; ``began`` is None where it does not let us see more than that it exists."""

    exists: bool
    began: int | None = None


def judge(process: Process, here: Place, now: Entry) -> Word:
    """Whether a process is gone for sure.

    Args:
        process: as the run told it.
        here: where we look.
        now: what is here under its pid.
    """
    # Rule 1: nothing outlives its kernel, and a machine has one at a time
    if process.place.boot != here.boot:
        return Word.GONE if process.place.machine and process.place.machine == here.machine else Word.UNKNOWN
    # Rule 2: in another container the pid is another process's
    if process.place.cell != here.cell:
        return Word.UNKNOWN
    # Rule 3: ended, or ended and its pid given to a younger one
    if not now.exists or now.began not in (None, process.began):
        return Word.GONE
    return Word.THERE


def start_is_lost(launched: float, now: float, *, server_began: float | None, limit_seconds: float) -> bool:
    """Whether a run that was launched and has not started never will; all in seconds since the epoch.

    Args:
        launched: when it was.
        now: the time.
        server_began: when the process began that loads the code and starts run workers; None where it starts none.
        limit_seconds: how long a start may take at most; 0 for any time.
    """
    # Rule 1: whoever launched it is gone, and its worker has had longer to load the code than we took ourselves
    if server_began is not None and launched < server_began and now - server_began >= _SERVER_LEAD_SECONDS:
        return True
    # Rule 2: Dagster's own limit
    return 0 < limit_seconds <= now - launched


@dataclass(frozen=True)
class Sign:
    """What a run says of itself in a tag.

    Attributes:
        mark: the run's 8 hex digits: a run that repeats another one has the other's tags.
        beat: counts up every ``BEAT_SECONDS`` while it works; None when it does not say so, or no more.
        process: the one whose end is the run's end; None where that cannot be named.
        is_over: whether the run's step in the lane has ended; other steps of the run may go on.
    """

    mark: str
    beat: int | None = None
    process: Process | None = None
    is_over: bool = False

    def encode(self) -> str:
        """The tag.

        >>> Sign("0badcafe", 7, Process(Place("48df4ead", "4026531836"), 4242, 1_311_164)).encode()
        '1 0badcafe 7 4242 1311164 48df4ead 4026531836 -'
        """
        beat = _OVER if self.is_over else _NOTHING if self.beat is None else self.beat
        if self.process is None:
            return f"{_VERSION} {self.mark} {beat}"
        at = self.process.place
        where = f"{self.process.pid} {self.process.began} {at.boot} {at.cell} {at.machine or _NOTHING}"
        return f"{_VERSION} {self.mark} {beat} {where}"

    @classmethod
    def decode(cls, tag: str, mark: str) -> Sign:
        """Read the tag of a run; another run's, another version's or none says nothing."""
        match tag.split():
            case [version, whose, beat, *where] if (version, whose) == (_VERSION, mark):
                return cls(mark, int(beat) if beat.isdecimal() else None, _process(where), beat == _OVER)
        return cls(mark)


def _process(words: list[str]) -> Process | None:
    match words:
        case [pid, began, boot, cell, machine] if pid.isdecimal() and began.isdecimal():
            return Process(Place(boot, cell, "" if machine == _NOTHING else machine), int(pid), int(began))
    return None
