"""Dagster as production runs it: storage in PostgreSQL, and each service in a process of its own.

Services are a daemon, a webserver, and a code server for each pipeline. Dagster starts the run workers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import dagster as dg
import psutil
import pytest
import requests

from kafka_liveness_dagster.embedded.processes import LOOPBACK, free_port
from tests.production.pipeline import Pipeline
from tests.production.recipes import DOCTOR, dagster_yaml, workspace_yaml
from tests.waiting import wait_for

_ROOT = Path(__file__).parents[2]
_MARK = "KAFKA_LIVENESS_PRODUCTION_TEST"
_BIN = Path(sys.executable).parent
_LAST_CHARACTERS = 4_000
_LOCATIONS = """{ workspaceOrError { ... on Workspace { locationEntries {
  name locationOrLoadError { __typename ... on PythonError { message } } } } } }"""
_RELOAD = """mutation ($name: String!) { reloadRepositoryLocation(repositoryLocationName: $name) {
  __typename ... on WorkspaceLocationEntry { locationOrLoadError { __typename } } } }"""


class Production:
    """Use it as a context manager: it ends every process that it started, and all that came of them.

    Args:
        services: Kafka and Spark.
        postgres: a server that runs; its storage has to be this instance's alone.
        settings: of dagster.yaml, instead of those on the page.
    """

    def __init__(self, services, postgres, **settings):
        self.services, self.postgres = services, postgres
        # Short: a socket's path has a limit
        self.home = Path(tempfile.mkdtemp(prefix="kafka-liveness-production-"))
        self.controls = self.home / "controls"
        self._mark, self._port, self.pipelines = uuid4().hex, free_port(), {}
        self._commands, self._services, self._patch = {}, {}, pytest.MonkeyPatch()
        for folder in ("dagster", "controls", "code", "run"):
            (self.home / folder).mkdir()
        (self.home / "dagster" / "dagster.yaml").write_text(dagster_yaml(**settings))
        self._env = {
            **os.environ,
            "DAGSTER_HOME": str(self.home / "dagster"),
            "DAGSTER_PG_URL": postgres.url,
            "DAGSTER_DISABLE_TELEMETRY": "yes",
            "PYTHONWARNINGS": "ignore",
            "KAFKA_BOOTSTRAP_SERVERS": services.bootstrap_servers,
            "SPARK_REMOTE": services.spark_remote,
            "PRODUCTION_CONTROLS": str(self.controls),
            _MARK: self._mark,
        }

    def add(self, topic, table, *, partitions=1, auto_catch_up=True, sensor=None, **settings):
        """Give a pipeline a code server; before the first ``start``. Its asset is named as its location."""
        asset = {
            "name": f"orders_{uuid4().hex[:6]}",
            "topics": [topic],
            "group_id": f"etl-{topic}",
            "table": table,
            "max_poll_records": 20,
            "auto_catch_up": auto_catch_up,
            "sensor": sensor or {},
            **settings,
        }
        found = self.pipelines[asset["name"]] = Pipeline(self, asset, partitions)
        return found

    def __enter__(self):
        self._patch.setenv("DAGSTER_PG_URL", self.postgres.url)
        self.instance = dg.DagsterInstance.from_config(str(self.home / "dagster"))  # creates Dagster's tables
        return self

    def __exit__(self, *_):
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.suspend()  # none starts another meanwhile
        left = self._processes()
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for service in self._services.values():
            service.wait()
        psutil.wait_procs(left)
        self.instance.dispose()
        self._patch.undo()
        shutil.rmtree(self.home)

    def start(self):
        """Start all services, and wait until each code location is loaded."""
        sockets = {name: self.home / "run" / f"{name}.sock" for name in self.pipelines}
        workspace = self.home / "workspace.yaml"
        workspace.write_text(workspace_yaml(sockets))
        for name, socket in sockets.items():
            code = self.home / "code" / f"{name}.py"
            shutil.copy(Path(__file__).with_name("orders.py"), code)
            command = ("dagster", "code-server", "start", "--socket", socket, "--python-file", code)
            self._commands[name] = command, self.environment(name)
        self._commands["daemon"] = ("dagster-daemon", "run", "--workspace", workspace), {}
        where = ("--host", LOOPBACK, "--port", str(self._port), "--workspace", workspace)
        self._commands["webserver"] = ("dagster-webserver", *where), {}
        for name in sockets:
            self.start_service(name)
        wait_for(lambda: all(socket.exists() for socket in sockets.values()), details=self.logs)
        for name in ("daemon", "webserver"):
            self.start_service(name)
        wait_for(self.are_loaded, what="each code location is loaded", details=self.logs)

    def start_service(self, name):
        """Start a service: ``daemon``, ``webserver``, or the code server of a pipeline."""
        (command, *arguments), env = self._commands[name]
        with (self.home / f"{name}.log").open("ab") as log:
            self._services[name] = subprocess.Popen(
                [_BIN / command, *arguments],
                cwd=_ROOT,
                env={**self._env, **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def environment(self, name=""):
        """Return the environment of a pipeline's processes, as a change of the services' own."""
        return {"PRODUCTION_ASSET": json.dumps(self.pipelines[name].asset)} if name else {}

    def kill(self, name):
        """SIGKILL of a service and of the processes that it needs, which leaves run workers alone."""
        self._services[name].kill()
        self.kill_inner(name)
        self._services[name].wait()

    def kill_inner(self, name):
        """SIGKILL of the process in which a code server has the code; of other services nothing."""
        mark, code = str(self.home / "code" / f"{name}.py"), "api"
        inner = [one for one in self._processes() if {mark, code} <= _words(one)]
        for process in inner:
            process.kill()
        psutil.wait_procs(inner)

    def doctor(self, pipeline, code=0):
        """Return what the page's command prints of this instance, a group and its code location."""
        config = self.home / "client.properties"
        config.touch()
        here = {
            "broker:9093": self.services.bootstrap_servers,
            "client.properties": str(config),
            "sc://spark.example:15002": self.services.spark_remote,
            "orders-etl": pipeline.group,
        }
        words = [here.get(word, word) for word in DOCTOR.split()]
        file = self.home / "code" / f"{pipeline.name}.py"
        return self.command(*words, "-f", file, pipeline=pipeline, code=code)

    def command(self, *words, pipeline=None, code=0):
        """Run a command as a user of this instance; return what it printed."""
        env = {**self._env, **self.environment(pipeline.name if pipeline else "")}
        done = subprocess.run(
            [_BIN / words[0], *words[1:]], cwd=_ROOT, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def query(self, query, **variables):
        """Ask the webserver as the UI does; None while it does not answer."""
        with suppress(requests.RequestException):
            answer = requests.post(
                f"http://{LOOPBACK}:{self._port}/graphql",
                json={"query": query, "variables": variables},
                timeout=60,
            )
            return answer.json()["data"]
        return None

    def are_loaded(self):
        """Return whether the webserver has each code location."""
        for name, service in self._services.items():
            assert service.poll() is None, (name, self.logs())
        found = (self.query(_LOCATIONS) or {}).get("workspaceOrError", {}).get("locationEntries", [])
        loaded = [
            one["name"]
            for one in found
            if (one["locationOrLoadError"] or {}).get("__typename") == "RepositoryLocation"
        ]
        return sorted(loaded) == sorted(self.pipelines)

    def reload(self, name):
        """Press *Reload* until the location is loaded.

        Where its process is gone, the first answer is an error.
        """

        def is_loaded():
            answer = (self.query(_RELOAD, name=name) or {}).get("reloadRepositoryLocation") or {}
            return (answer.get("locationOrLoadError") or {}).get("__typename") == "RepositoryLocation"

        wait_for(is_loaded, pause=1.0, details=self.logs)

    def logs(self):
        """Return the end of each service's log."""
        logs = sorted(self.home.glob("*.log"))
        return "\n".join(
            f"== {log.name}\n{log.read_text(errors='replace')[-_LAST_CHARACTERS:]}" for log in logs
        )

    def _processes(self):
        """Return all processes that carry the mark in their environment and are no zombies."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(_MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def _words(process):
    """Return the words of a process's command; none of a process that has ended since it was listed."""
    with suppress(psutil.Error):
        return {*process.cmdline()}
    return set()
