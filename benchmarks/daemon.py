"""Dagster's daemon with its code server, as processes: how a benchmark has sensors, a queue and run workers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import dagster as dg
import psutil

from kafka_liveness_dagster.embedded import process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from typing_extensions import Self

T = TypeVar("T")
_PATIENCE = 180.0


class Daemon:
    """The daemon of one code location; it and its runs end with the block.

    Args:
        home: a new folder for Dagster's records and its log.
        location: the module.
        env: what the module finds in its environment.

    Attributes:
        instance: Dagster's records.
        pid: of the daemon, whose child the code server is.
    """

    def __init__(self, home: Path, location: str, env: Mapping[str, str]) -> None:
        home.mkdir()
        (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        self.instance = dg.DagsterInstance.from_config(str(home))
        self._log = home / "daemon.log"
        told = {**os.environ, "PYTHONPATH": str(Path.cwd()), "DAGSTER_HOME": str(home), **env}
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "dagster._daemon", "run", "-m", location],
                env=told, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.pid = self._child.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        process.end([psutil.Process(self._child.pid)])
        self._child.wait()
        self.instance.dispose()

    def await_(self, what: str, found: Callable[[], T | None]) -> T:
        """Look until there is something.

        Raises:
            RuntimeError: the daemon has ended, or there was nothing in three minutes.
        """
        give_up_at = time.monotonic() + _PATIENCE
        while (one := found()) is None:
            if self._child.poll() is not None or time.monotonic() > give_up_at:
                raise RuntimeError(f"no {what} in {_PATIENCE:.0f} s:\n{process.last_lines(self._log)}")
            time.sleep(0.1)
        return one
