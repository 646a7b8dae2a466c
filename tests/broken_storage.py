"""Break the SQLite storage of a real Dagster instance for a while, as disks, people and processes do."""

from __future__ import annotations

import os
import sqlite3
from contextlib import ExitStack, contextmanager
from pathlib import Path

import sqlalchemy
from sqlalchemy import event

READ_ONLY, AWAY, LOCKED, FULL = "read-only", "away", "locked", "full"


@contextmanager
def broken(instance, how):
    """Every write to the storage of an instance fails in this block.

    With ``AWAY`` and ``LOCKED`` every read too.
    """
    ways = {READ_ONLY: _read_only, AWAY: _away, LOCKED: _locked, FULL: _full}
    with ways[how](Path(instance.root_directory)):
        yield


@contextmanager
def _read_only(_root):
    """SQLite refuses each write of a new connection; Dagster opens one for each call."""

    def refuse(connection, _record):
        connection.execute("PRAGMA query_only = ON")

    event.listen(sqlalchemy.Engine, "connect", refuse)
    try:
        yield
    finally:
        event.remove(sqlalchemy.Engine, "connect", refuse)


@contextmanager
def _away(root):
    """The folder is not mounted: a file is in its place."""
    folder, kept = root / "history", root / "history.unmounted"
    folder.rename(kept)
    folder.touch()
    try:
        yield
    finally:
        folder.unlink()
        kept.rename(folder)


@contextmanager
def _locked(root):
    """Another process works on the files; needs a short ``SQLITE_BUSY_TIMEOUT_SECONDS``."""
    with ExitStack() as stack:
        for path in root.rglob("*.db"):
            other = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
            stack.callback(other.close)
            other.execute("BEGIN EXCLUSIVE")
        yield


@contextmanager
def _full(root):
    """Something else has taken the rest of the disk, which is a small one."""
    ballast = root / "ballast"
    with ballast.open("wb", buffering=0) as file:
        size = 1 << 16
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2
        os.fsync(file.fileno())
    try:
        yield
    finally:
        ballast.unlink()
