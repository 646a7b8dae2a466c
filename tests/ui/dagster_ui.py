"""A real Dagster with the example code location: webserver, daemon, and what they start; nothing of it outlives it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import dagster as dg
import psutil
import requests

from kafka_liveness_dagster.failpoints import VARIABLE, Failpoint

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0  # seconds
_MARK = "KAFKA_LIVENESS_UI_TEST"
_YAML = """
telemetry: {enabled: false}
nux: {enabled: false}  # no invitation over the first page
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config: {dequeue_interval_seconds: 1}
"""
# The daemon looks at backfills twice a minute, once to start their runs and once to see that they ended: too long here
_DAEMON = """
from dagster._daemon import controller
from dagster._daemon.cli import cli
controller.DEFAULT_DAEMON_INTERVAL_SECONDS = 1
cli(["run", "-w", "workspace.yaml"])
"""
_LIVE_RUN = """
import dagster as dg
from definitions import defs
defs.resolve_job_def("orders_job").execute_in_process(instance=dg.DagsterInstance.get())
"""


def wait_until(what, is_so):
    """Look until it is so; the thing found."""
    give_up_at = time.monotonic() + PATIENCE
    while not (found := is_so()):
        assert time.monotonic() < give_up_at, f"waited {PATIENCE:g} s in vain until {what}"
        time.sleep(0.05)
    return found


class DagsterUi:
    """Use it as a context manager: the webserver runs inside, the daemon from ``start_daemon`` on."""

    def __init__(self, home):
        self.home, self._mark, self._children = home, uuid4().hex, []
        (home / "dagster.yaml").write_text(_YAML)
        self.instance = dg.DagsterInstance.from_config(str(home))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = str(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self._port}"

    def __enter__(self):
        arguments = ["-m", "dagster_webserver", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", self._port]
        self._webserver = self._start("webserver", arguments)
        return self

    def __exit__(self, *_):
        marked = self._marked()
        for process in marked:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        for left in {*psutil.wait_procs(marked, timeout=5)[1], *self._marked()}:
            with suppress(psutil.NoSuchProcess):
                left.kill()
        for child in self._children:
            child.wait()
        self.instance.dispose()

    def start_daemon(self):
        """From now on the sensor looks at the group, and backfills are worked on."""
        self._start("daemon", ["-c", _DAEMON])

    def start_live_run_that_is_killed(self):
        """The process of a live run: SIGKILL ends it when it has planned its second batch."""
        return self._start("live_run", ["-c", _LIVE_RUN], **{VARIABLE: f"{Failpoint.AFTER_PLAN.value}:2"})

    def answers(self):
        """Whether the webserver can be asked; it may not have ended."""
        assert self._webserver.poll() is None, (self.home / "webserver.log").read_text()
        try:
            return requests.get(f"{self.url}/server_info", timeout=2).ok
        except requests.RequestException:
            return False

    def _start(self, name, arguments, **env):
        env = {**os.environ, "DAGSTER_HOME": str(self.home), _MARK: self._mark, "PYTHONWARNINGS": "ignore", **env}
        with (self.home / f"{name}.log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, *arguments], cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT
            )
        self._children.append(child)
        return child

    def _marked(self):
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self._mark:
                    found.append(process)
            except psutil.Error:
                continue  # another user's, or gone
        return found
