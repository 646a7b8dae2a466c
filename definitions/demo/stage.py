"""The processes of the demo: the services, and ``dagster dev`` with daemon and webserver as a child.

Everything started here carries a mark in its environment; leaving the stage ends whatever carries it.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import dagster as dg
import psutil
import requests

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.embedded import services, state

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

_EXAMPLE = Path(__file__).parents[2]
_MARK = "KAFKA_LIVENESS_DEMO"
_DAGSTER_YAML = (Path(__file__).parents[1] / "dagster.yaml").read_text()
_LAUNCH = """
mutation Launch($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}"""


class DemoError(KafkaLivenessError):
    """The story could not be told to its end."""


class Stage:
    """Services and Dagster for one telling, in a state folder that begins empty.

    Use it as a context manager.
    """

    def __init__(self) -> None:
        root = state.home_folder()
        self.home = root / "demo"
        self.dagster_home = self.home / "dagster"
        self.log = self.home / "logs" / "dagster.log"
        self._mark = uuid4().hex
        os.environ["KAFKA_LIVENESS_HOME"] = str(self.home)
        os.environ["DAGSTER_HOME"] = str(self.dagster_home)
        self.services: services.Services
        self.url = ""
        self._dagster: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        services.stop_services(self.home)  # of a telling that was killed
        state.remove_home(self.home)
        state.create_home(self.home)
        return self

    def __exit__(self, *_: object) -> None:
        self._end_dagster()
        services.stop_services(self.home)

    def start_services(self) -> services.Services:
        """A real Kafka and a real Spark Connect server: yours where the example's variables name them."""
        servers, remote = os.environ.get("KAFKA_BOOTSTRAP_SERVERS"), os.environ.get("SPARK_REMOTE")
        found = services.ensure_services(
            which=[name for name, yours in (("kafka", servers), ("spark", remote)) if not yours]
        )
        if servers:
            found = replace(found, bootstrap_servers=servers)
        if remote:
            found = replace(found, spark_remote=remote, catalog_uri="", warehouse="")
        self.services = found
        return found

    def start_dagster(self) -> None:
        """``dagster dev``: webserver, daemon and code server, as a user starts them."""
        self.dagster_home.mkdir(parents=True, exist_ok=True)
        (self.dagster_home / "dagster.yaml").write_text(_DAGSTER_YAML)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        with self.log.open("wb") as log:
            workspace = ["-w", str(_EXAMPLE / "workspace.yaml")]
            self._dagster = subprocess.Popen(
                [sys.executable, "-m", "dagster", "dev", *workspace, "-h", "127.0.0.1", "-p", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, _MARK: self._mark, **_finds_it(), "PYTHONWARNINGS": "ignore"},
            )
        self.wait_until("the Dagster UI answers", self._answers, 120)

    def wait_until(self, what: str, is_so: Callable[[], Any], seconds: float) -> Any:
        """Look until it is so; the thing found.

        Raises:
            DemoError: it was not so in time, or Dagster ended.
        """
        give_up_at = time.monotonic() + seconds
        while not (found := is_so()):
            if self._dagster is not None and self._dagster.poll() is not None:
                raise DemoError(f"dagster dev ended with code {self._dagster.returncode}: see {self.log}")
            if time.monotonic() > give_up_at:
                raise DemoError(f"waited {seconds:g} s in vain until {what}: see {self.log}")
            time.sleep(0.1)
        return found

    def instance(self) -> dg.DagsterInstance:
        """Dagster's records, read as any other process reads them."""
        return dg.DagsterInstance.from_config(str(self.dagster_home))

    def launch_backfill(self, asset: str, keys: list[str]) -> str:
        """As the UI does when someone selects partitions and presses the button; gives its id."""
        return launch_backfill(self.url, asset, keys)

    def _answers(self) -> bool:
        try:
            return requests.get(f"{self.url}/server_info", timeout=2).ok
        except requests.RequestException:
            return False

    def _end_dagster(self) -> None:
        """The parent first, so that it ends its children in order; then whatever still carries the mark."""
        if self._dagster is None:
            return
        marked = self._marked()
        self._dagster.terminate()
        _, alive = psutil.wait_procs(marked, timeout=10)
        for process in {*alive, *self._marked()}:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._dagster.wait()

    def _marked(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self._mark:
                    found.append(process)
            except psutil.Error:
                continue  # another user's, or gone
        return found


def _finds_it() -> dict[str, str]:
    """Where the example is, and what this process was told to look at."""
    told = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(_EXAMPLE), *([told] if told else [])])}


def launch_backfill(url: str, asset: str, keys: list[str]) -> str:
    """The mutation the UI sends when someone selects partitions and presses the button.

    Gives the backfill's id.
    """
    params = {"assetSelection": [{"path": [asset]}], "partitionNames": keys}
    question: dict[str, Any] = {"query": _LAUNCH, "variables": {"params": params}}
    answer = requests.post(f"{url}/graphql", json=question, timeout=60).json()
    found = (answer.get("data") or {}).get("launchPartitionBackfill") or {}
    if "backfillId" not in found:
        raise DemoError(f"the UI refused the backfill of {len(keys)} partitions: {found or answer}")
    return str(found["backfillId"])


def messages(instance: dg.DagsterInstance, run_id: str) -> list[tuple[float, str]]:
    """What a run said, and when, seconds since the epoch."""
    entries = instance.all_logs(run_id)
    return [(entry.timestamp, entry.user_message or entry.message) for entry in entries]


def worker_pid(instance: dg.DagsterInstance, run_id: str) -> int:
    """The process that works for a run, as Dagster's event log names it."""
    for _, text in messages(instance, run_id):
        if named := re.search(r"Executing steps in process \(pid: (\d+)\)", text):
            return int(named[1])
    raise DemoError(f"no event of run {run_id} names the process that executes its steps")
