"""Dagster's daemon with its code server, as processes.

How a benchmark has sensors, a queue and run workers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import dagster as dg
import psutil

from kafka_liveness_dagster.embedded import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from typing_extensions import Self

T = TypeVar("T")
_PATIENCE = 180.0


QUEUE = (
    "run_coordinator: {module: dagster, class: QueuedRunCoordinator, config: {dequeue_interval_seconds: 1}}\n"
)
"""The recommended queue: a run waits for a second at most."""


class Daemon:
    """The daemon of one code location; it and its runs end with the block.

    Args:
        home: a new folder for Dagster's records and its log.
        location: the module.
        env: what the module finds in its environment.
        settings: more of ``dagster.yaml``.
        code_server: start one that lives as long as the daemon does, as `dagster dev` and production have it;
            else the daemon has its own, and a new one each minute.

    Attributes:
        instance: Dagster's records.
        server: the lasting code server, which has the sensors' threads and starts run workers.
        daemon: who asks it.

    Raises:
        RuntimeError: the code server does not start.
    """

    def __init__(
        self,
        home: Path,
        location: str,
        env: Mapping[str, str],
        *,
        settings: str = "",
        code_server: bool = False,
    ) -> None:
        home.mkdir()
        (home / "dagster.yaml").write_text(f"telemetry: {{enabled: false}}\n{settings}")
        self.instance = dg.DagsterInstance.from_config(str(home))
        self._log, self._started = home / "daemon.log", list[subprocess.Popen[bytes]]()
        self._env = {**os.environ, "PYTHONPATH": str(Path.cwd()), "DAGSTER_HOME": str(home), **env}
        self.server: psutil.Process | None = None
        try:
            where = ["-m", location]
            if code_server:
                socket, workspace = home / "code.sock", home / "workspace.yaml"
                workspace.write_text(
                    f"load_from: [{{grpc_server: {{socket: '{socket}', location_name: benchmark}}}}]\n"
                )
                self.server = self._start("dagster", "api", "grpc", "-m", location, "--socket", str(socket))
                self.await_("code server", lambda: socket.exists() or None)
                where = ["-w", str(workspace)]
            self.daemon = self._start("dagster._daemon", "run", *where)
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._end()

    def _start(self, *module: str) -> psutil.Process:
        with self._log.open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", *module],
                env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._started.append(child)
        return psutil.Process(child.pid)

    def _end(self) -> None:
        processes.end_processes(
            [psutil.Process(child.pid) for child in self._started if child.poll() is None]
        )
        for child in self._started:
            child.wait()
        self.instance.dispose()

    def await_(self, what: str, found: Callable[[], T | None]) -> T:
        """Look until there is something.

        Raises:
            RuntimeError: the daemon has ended, or its code server, or there was nothing in three minutes.
        """
        give_up_at = time.monotonic() + _PATIENCE
        while (one := found()) is None:
            if any(child.poll() is not None for child in self._started) or time.monotonic() > give_up_at:
                raise RuntimeError(f"no {what} in {_PATIENCE:.0f} s:\n{processes.last_lines(self._log)}")
            time.sleep(0.1)
        return one
