"""A PostgreSQL server of Debian's package, in a folder of its own, run by a user who is not root."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psycopg2

from kafka_liveness_dagster.embedded.processes import LOOPBACK, free_port
from tests.production.recipes import URL
from tests.waiting import wait_for

USER, PASSWORD = (
    "dagster",
    "s3cret",
)  # docs/dagster-instance.md names the user, and a database of the same name
# Debian keeps its commands out of the path: one folder for each version
_INSTALLED = Path("/usr/lib/postgresql")
_USERS = ("postgres", "nobody")


def commands():
    """Return the folder with the newest server's commands."""
    found = sorted(_INSTALLED.glob("*/bin/postgres"), key=lambda command: int(command.parts[-3]))
    assert found, "PostgreSQL is missing: apt-get install postgresql"
    return found[-1].parent


class Postgres:
    """Use it as a context manager; ``stop`` and ``start`` may be repeated, the data stays."""

    def __init__(self):
        self._folder = Path(tempfile.mkdtemp(prefix="kafka-liveness-postgres-"))
        self._data, self._log = self._folder / "data", self._folder / "postgres.log"
        self._port, self._commands, self._server = free_port(), commands(), None
        self._as = _another_user()
        if self._as:
            shutil.chown(self._folder, self._as["user"])

    @property
    def url(self):
        """The URL as docs/dagster-instance.md writes it, with the place and the password of this server."""
        return URL.replace("SECRET@db.example:5432", f"{PASSWORD}@{LOOPBACK}:{self._port}")

    @property
    def address(self):
        """``postgresql://host:port/database``, as a driver of Java's takes it."""
        return f"postgresql://{LOOPBACK}:{self._port}/{USER}"

    def __enter__(self):
        (self._folder / "password").write_text(PASSWORD)
        self._run(
            "initdb", "-D", self._data, "-U", USER, "-A", "scram-sha-256", f"--pwfile={self._folder}/password"
        )
        self.start()
        self._run("createdb", "-h", LOOPBACK, "-p", str(self._port), "-U", USER, USER, PGPASSWORD=PASSWORD)
        return self

    def __exit__(self, *_):
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self._folder)

    def start(self):
        """Start the server, and wait until it answers."""
        options = (
            "-c",
            f"listen_addresses={LOOPBACK}",
            "-p",
            str(self._port),
            "-k",
            self._folder,
            "-c",
            "fsync=off",
        )
        with self._log.open("ab") as log:
            command = [self._commands / "postgres", "-D", self._data, *options]
            self._server = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log, **self._as)
        wait_for(self._answers, what="PostgreSQL answers")

    def stop(self, how=signal.SIGINT):
        """End the server: SIGINT ends every connection at once, SIGKILL and SIGQUIT are a crash."""
        if self._server is not None and self._server.poll() is None:
            self._server.send_signal(how)
            self._server.wait()

    def _answers(self):
        assert self._server.poll() is None, self._log.read_text()
        try:
            psycopg2.connect(
                host=LOOPBACK, port=self._port, user=USER, password=PASSWORD, dbname="postgres"
            ).close()
        except psycopg2.OperationalError:
            return False
        return True

    def _run(self, name, *arguments, **env):
        done = subprocess.run(
            [self._commands / name, *arguments],
            cwd=self._folder,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
            **self._as,
        )
        assert done.returncode == 0, done.stderr


def _another_user():
    """Return the arguments of Popen by which a command is another user's, if we are root.

    The server refuses root.
    """
    if os.geteuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = next(known[name] for name in _USERS if name in known)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
