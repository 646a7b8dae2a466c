"""How large is a JVM's heap, and how often was it collected? From the counters that each JVM shows in a file.

The process itself is not asked, and nothing of the JDK is needed: what ``jcmd PID PerfCounter.print`` shows.
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import psutil

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
