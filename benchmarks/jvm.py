"""How large is a JVM's heap, how often was it collected, and what did its compiler take?

From the counters that each JVM shows in a file: what ``jcmd PID PerfCounter.print`` shows; and from Linux's
count of each thread. The process itself is not asked, and nothing of the JDK is needed.
"""

from __future__ import annotations

import struct
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

_COMPILERS = ("C1 Compiler", "C2 Compiler")  # names of threads
# Used, overflow, (when it was changed), where entries begin, how many there are
_HEADER = struct.Struct("<ii8xii")
# Length, name at, length of the vector, type, flags, units, variability, data at
_ENTRY = struct.Struct("<iii4Bi")
_MAGIC, _LITTLE, _HEADER_AT = b"\xca\xfe\xc0\xc0", 1, 8
_LONG = ord("J")


def counters(pid: int) -> dict[str, int]:
    """The numbers of a JVM of this machine by their names; none where it shows none."""
    name = f"hsperfdata_{psutil.Process(pid).username()}"
    file = Path(tempfile.gettempdir()) / name / str(pid)
    return parsed(file.read_bytes()) if file.exists() else {}


def compiler_cpu(process: psutil.Process) -> float:
    """CPU seconds of the threads that compile Java's code while it runs."""
    return sum(
        one.user_time + one.system_time
        for one in process.threads()
        if _thread_name(process.pid, one.id).startswith(_COMPILERS)
    )


def _thread_name(pid: int, thread: int) -> str:
    with suppress(OSError):  # it has ended
        return Path(f"/proc/{pid}/task/{thread}/comm").read_text()
    return ""


def parsed(data: bytes) -> dict[str, int]:
    """The numbers of a file of counters, version 2; none of what is no such file."""
    if data[:4] != _MAGIC or data[4] != _LITTLE:
        return {}
    _, _, at, number = _HEADER.unpack_from(data, _HEADER_AT)
    found = {}
    for _ in range(number):
        length, name_at, vector, kind, *_, data_at = _ENTRY.unpack_from(data, at)
        if kind == _LONG and not vector:
            name = data[at + name_at : data.index(b"\0", at + name_at)].decode()
            found[name] = int.from_bytes(data[at + data_at : at + data_at + 8], "little", signed=True)
        at += length
    return found
