"""``dagster dev`` with the README's pipeline, as its user starts it.

And all of its processes killed at once.
"""

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

ROOT = Path(__file__).parents[2]
_MARK = "KAFKA_LIVENESS_POWER_TEST"
_START_SENSOR = (
    """mutation ($sensor: SensorSelector!) { startSensor(sensorSelector: $sensor) { __typename } }"""
)


def pipeline(topic, group, table):
    """The README's, on a topic, a group and a table that no other test has."""
    code = (ROOT / "docs" / "examples" / "orders.py").read_text(encoding="utf-8")
    for there, here in (
        ('topics=["orders"]', f'topics=["{topic}"]'),
        ("orders-etl", group),
        ("lake.shop.orders", table),
    ):
        assert there in code
        code = code.replace(there, here)
    return code


class DagsterDev:
    """Use it as a context manager; ``start`` may be called again after ``power_loss``."""

    def __init__(self, home, code, services):
        self.home, self._mark, self._code = home, uuid4().hex, home / "orders.py"
        self._code.write_text(code)
        (home / "dagster").mkdir()
        self._env = {
            **os.environ,
            "DAGSTER_HOME": str(home / "dagster"),  # without a dagster.yaml: Dagster's own defaults
            "DAGSTER_DISABLE_TELEMETRY": "yes",
            "PYTHONWARNINGS": "ignore",
            "KAFKA_BOOTSTRAP_SERVERS": services.bootstrap_servers,
            "SPARK_REMOTE": services.spark_remote,
            _MARK: self._mark,
        }
        self._children = []

    def __enter__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = str(free.getsockname()[1])
        self.instance = dg.DagsterInstance.from_config(str(self.home / "dagster"))
        return self

    def __exit__(self, *_):
        self.power_loss()
        self.instance.dispose()

    @property
    def url(self):
        """Its webserver's."""
        return f"http://127.0.0.1:{self._port}"

    def start(self):
        """``dagster dev -f orders.py``; when, in seconds since the epoch."""
        command = [sys.executable, "-m", "dagster", "dev", "-f", str(self._code), "-p", self._port]
        with (self.home / f"dev{len(self._children)}.log").open("wb") as log:
            child = subprocess.Popen(command, cwd=ROOT, env=self._env, stdout=log, stderr=subprocess.STDOUT)
        self._children.append(child)
        return time.time()

    def power_loss(self):
        """SIGKILL of every process at the same time, whoever started it."""
        marked = self.processes()
        for process in marked:
            with suppress(psutil.NoSuchProcess):
                process.suspend()  # so that none has time to see another one die
        for process in {*marked, *self.processes()}:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for child in self._children:
            child.wait()
        psutil.wait_procs(marked, timeout=120)
        assert self.processes() == []

    def switch_sensor_on(self):
        """As people do in the UI; whether it could be done yet."""
        where = {
            "repositoryLocationName": "orders.py",
            "repositoryName": "__repository__",
            "sensorName": "orders_sensor",
        }
        asked = {"query": _START_SENSOR, "variables": {"sensor": where}}
        try:
            answer = requests.post(f"{self.url}/graphql", json=asked, timeout=5).json()
        except requests.RequestException:
            return False
        return answer.get("data", {}).get("startSensor", {}).get("__typename") == "Sensor"

    def runs(self, *statuses):
        """The live runs that Dagster knows, the newest first."""
        return self.instance.get_runs(dg.RunsFilter(job_name="orders_job", statuses=list(statuses)))

    def status(self, run):
        """How a run is now."""
        return self.instance.get_run_by_id(run.run_id).status

    def why(self, run):
        """What the run's page says of its failure."""
        return self.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)[
            0
        ].dagster_event.message

    def first_tick(self, since):
        """The first tick of the sensor that came to an end since then."""
        [sensor] = self.instance.all_instigator_state()
        ticks = self.instance.get_ticks(sensor.instigator_origin_id, sensor.selector_id, after=since)
        return [tick for tick in ticks if tick.status.value in ("SUCCESS", "SKIPPED")][-1]

    def log_messages(self):
        """The end of what it wrote."""
        return "\n".join(
            log.read_text(errors="replace")[-4000:] for log in sorted(self.home.glob("dev*.log"))
        )

    def processes(self):
        """All that carry its mark in their environment and are no zombies."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue  # another user's, or gone
        return found
