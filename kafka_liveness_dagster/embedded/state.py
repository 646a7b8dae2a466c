"""What has been started in this state folder? Read without a lock, written in one step, for the owner's eyes only.

Never decides whether a process is still the one that was started: see ``process.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

_DOWN = "down"


@dataclass(frozen=True)
class Started:
    """One service as it was last started; port and token outlive it, so that clients find it again."""

    port: int
    pid: int | None = None
    mark: str = ""
    """On the command line of the process, so that no other program's pid is mistaken for it."""
    ready: bool = False
    token: str = ""

    def __repr__(self) -> str:
        return f"Started(port={self.port}, pid={self.pid}, ready={self.ready})"


def home_folder(home: Path | None = None) -> Path:
    """The state folder: the argument, ``KAFKA_LIVENESS_HOME``, or ``.kafka_liveness`` where we are."""
    return (home or Path(os.environ.get("KAFKA_LIVENESS_HOME") or ".kafka_liveness")).absolute()


def folder_of(home: Path, name: str) -> Path:
    """Where a service runs: its current folder, by which its process is known to belong to this state folder."""
    return home / name


def create_home(home: Path) -> None:
    """Make the state folder: closed to other users and ignored by git."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.chmod(0o700)
    for folder in ("logs", "warehouse"):
        (home / folder).mkdir(exist_ok=True)
    (home / ".gitignore").write_text("*\n")


def is_down(home: Path) -> bool:
    """Return whether ``kafka-liveness down`` was the last command about this folder."""
    return (home / _DOWN).exists()


def set_down(home: Path, *, down: bool) -> None:
    """Write or remove the marker of ``kafka-liveness down``; the caller holds the lock of the folder."""
    if down:
        (home / _DOWN).touch()  # without text: it needs no room on a full disk
    else:
        (home / _DOWN).unlink(missing_ok=True)


def empty(folder: Path) -> Path:
    """An empty folder for temporary files; a service that was killed has left its own there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def read(home: Path) -> dict[str, Started]:
    """What was started by name; empty when nothing was or when the file is another version's."""
    try:
        stored = json.loads((home / "services.json").read_text())
        return {name: Started(**fields) for name, fields in stored.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write(home: Path, started: dict[str, Started]) -> None:
    """Replace the file in one step; mode 0600 from the start, since it holds the token."""
    text = json.dumps({name: asdict(one) for name, one in started.items()}, indent=2)
    handle, path = tempfile.mkstemp(dir=home, prefix=".services-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(path).replace(home / "services.json")
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise
