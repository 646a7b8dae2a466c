"""Read and write the state file of the embedded services; define the errors of their start.

Never decides whether a process is still the one that was started: ``embedded.processes`` does.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path

from kafka_liveness_dagster.core.errors import InvalidSettingError, KafkaLivenessError


class JavaNotFoundError(KafkaLivenessError):
    """There is no Java, or none new enough."""


class JarsError(KafkaLivenessError):
    """The jars could not be downloaded; a partial download is dropped."""


class PortTakenError(KafkaLivenessError):
    """Another program uses a requested port."""


class ServiceNotStartedError(KafkaLivenessError):
    """A service ended, or did not respond in time; no process of it is left."""


class ServicesDownError(KafkaLivenessError):
    """``kafka-liveness down`` stopped the services, and only ``kafka-liveness up`` starts them again."""


LOCK = "services.lock"
"""Also the marker of a state folder: the first file that is created in one, and never removed."""
CATALOG_FILE = "catalog.db"
_DOWN = "down"
_STARTED = "services.json"
_NAMES = ("kafka", "spark", "logs", "warehouse", CATALOG_FILE, _STARTED, _DOWN)


@dataclass(frozen=True)
class StartedService:
    """One service as it was last started. The next start reuses port and token, which clients know."""

    port: int
    pid: int | None = None
    process_marker: str = ""
    """An argument on the process's command line, which another program with the same pid lacks."""
    _: KW_ONLY
    ready: bool = False
    token: str = ""

    def __repr__(self) -> str:
        return f"StartedService(port={self.port}, pid={self.pid}, ready={self.ready})"


def home_folder(home: Path | None = None) -> Path:
    """Return the state folder.

    It is the argument, ``KAFKA_LIVENESS_HOME``, or ``.kafka_liveness`` in the current folder.
    """
    return (home or Path(os.environ.get("KAFKA_LIVENESS_HOME") or ".kafka_liveness")).absolute()


def folder_of(home: Path, name: str) -> Path:
    """Return the current folder of a service.

    The folder shows that the service's process belongs to this state folder.
    """
    return home / name


def create_home(home: Path) -> None:
    """Create the state folder, closed to other users and ignored by git, or use an existing one.

    An existing folder keeps its mode and its ``.gitignore``. Files and folders that are created in it are
    closed to other users.

    Raises:
        InvalidSettingError: `check_home` rejects the folder.
    """
    check_home(home)
    try:
        home.mkdir(mode=0o700, parents=True)
        (home / ".gitignore").write_text("*\n")
    except FileExistsError:
        if not home.is_dir():
            raise
    (home / LOCK).touch(mode=0o600)  # first: without it the next start rejects the rest as the user's
    for folder in ("kafka", "spark", "logs", "warehouse"):
        (home / folder).mkdir(mode=0o700, exist_ok=True)
    (home / CATALOG_FILE).touch(mode=0o600)  # SQLite itself would create a file that everyone may read


def check_home(home: Path) -> None:
    """Reject a folder with content that this package did not create: a start empties folders in it.

    Raises:
        InvalidSettingError: the folder has the services' file names, but is no state folder; or every user
            may write in it.
    """
    if not home.is_dir():
        return
    _require_state_folder(home, [name for name in _NAMES if os.path.lexists(home / name)])
    if home.stat().st_mode & stat.S_IWOTH:
        raise InvalidSettingError(
            f"{home} is a folder in which every user of this machine may write, and so could change what "
            f"the embedded services run. Nothing was started. Fix: chmod o-w '{home}', or set "
            "KAFKA_LIVENESS_HOME to a new folder"
        )


def remove_home(home: Path) -> None:
    """Remove a state folder with all its content.

    Raises:
        InvalidSettingError: the folder has content and is no state folder.
    """
    if home.is_dir():
        _require_state_folder(home, sorted(path.name for path in home.iterdir()))
    shutil.rmtree(home, ignore_errors=True)


def _require_state_folder(home: Path, names: list[str]) -> None:
    if names and not (home / LOCK).exists() and not read_state(home):
        raise InvalidSettingError(
            f"{home} holds {', '.join(names[:3])}, which this package did not create. Nothing in the folder "
            "was changed. Fix: set KAFKA_LIVENESS_HOME to a new folder"
        )


def is_down(home: Path) -> bool:
    """Return whether ``kafka-liveness down`` was the last command about this folder."""
    return (home / _DOWN).exists()


def mark_down(home: Path, *, down: bool) -> None:
    """Write or remove the marker of ``kafka-liveness down``; the caller holds the lock of the folder."""
    if down:
        (home / _DOWN).touch()  # empty: it needs no space on a full disk
    else:
        (home / _DOWN).unlink(missing_ok=True)


def empty_folder(folder: Path) -> Path:
    """Create an empty folder for temporary files; remove those that a killed service left there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def read_state(home: Path) -> dict[str, StartedService]:
    """Return the started services by name; empty if none was started or another version wrote the file."""
    try:
        stored = json.loads((home / _STARTED).read_text())
        return {name: StartedService(**fields) for name, fields in stored.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write_state(home: Path, started: dict[str, StartedService]) -> None:
    """Replace the file in one step. Its mode is 0600 from the start, since it contains the token."""
    text = json.dumps({name: asdict(one) for name, one in started.items()}, indent=2)
    handle, path = tempfile.mkstemp(dir=home, prefix=".services-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(path).replace(home / _STARTED)
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise
