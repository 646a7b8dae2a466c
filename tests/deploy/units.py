"""deploy/systemd as systemd reads it: what each unit says, once with what all of them have in common."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
# Each unit after those before it
UNITS = ("pipeline-spark", "pipeline-code-server", "pipeline-daemon", "pipeline-webserver")
ANALYZE = shutil.which("systemd-analyze") or "systemd-analyze"


class Unit:
    """One service. A drop-in is read after it, and what is told several times adds up, as systemd has it."""

    def __init__(self, name):
        self.name = name
        common = FOLDER / "pipeline-.service.d" / "common.conf"
        lines = [
            line for file in (FOLDER / f"{name}.service", common) for line in file.read_text().splitlines()
        ]
        self._told = [line.partition("=")[::2] for line in lines if re.match(r"\w+=", line)]

    def told(self, key):
        """Each value of a key, in order."""
        return [value for told, value in self._told if told == key]

    def words(self, key):
        """The words of all values of a key."""
        return [word for value in self.told(key) for word in shlex.split(value)]

    def good_codes(self):
        """The exit codes that are no failure; a SIGTERM is none by itself."""
        return {0, -15, *map(int, self.told("SuccessExitStatus"))}

    def system_calls(self):
        """The names that its filter lets pass."""
        allowed = set()
        for value in self.told("SystemCallFilter"):
            names = {call for word in value.removeprefix("~").split() for call in _calls(word)}
            allowed = allowed - names if value.startswith("~") else allowed | names
        return sorted(allowed)


@cache
def _sets():
    """Every ``@set`` of systemd, and what is in it."""
    said = subprocess.run(
        [ANALYZE, "syscall-filter", "--no-pager"], check=True, capture_output=True, text=True
    ).stdout
    found = {}
    for line in said.splitlines():
        if line.startswith("@"):
            inside = found.setdefault(line.strip(), [])
        elif line.startswith("    ") and not line.lstrip().startswith("#"):
            inside.append(line.strip())
    return found


def _calls(word):
    """The system calls of a word, whose sets may hold others."""
    if not word.startswith("@"):
        return {word}
    return {call for inner in _sets()[word] for call in _calls(inner)}
