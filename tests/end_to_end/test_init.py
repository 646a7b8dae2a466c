"""A project of ``kafka-liveness init``: its test, its commands, a crash, and a doctor without a warning."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from kafka_liveness_dagster.cli.main import main
from tests.end_to_end.browser import PATIENCE
from tests.end_to_end.processes import processes_of
from tests.waiting import wait_for

MAKE = shutil.which("make")
ROOT = Path(__file__).parents[2]


class Project:
    """A new user's project in a folder whose path has a space."""

    def __init__(self, folder, installed):
        self.folder, self.env = folder, installed.env
        self._started = []

    def run(self, *command):
        """Run a command to its end; its output, in which a failure is an error."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def make(self, target):
        return self.run(MAKE, target)

    def start(self, target):
        """Start a target that works until it is ended; the file with its output."""
        log = self.folder.parent / f"{target}.log"
        with log.open("wb") as out:
            started = subprocess.Popen(
                [MAKE, target], cwd=self.folder, env=self.env, stdout=out, stderr=out, start_new_session=True
            )
        self._started.append(started)
        return log

    def status(self):
        """The JSON of ``kafka-liveness status``, with the runs of this project's Dagster."""
        env = {**self.env, "DAGSTER_HOME": str(self.folder / ".dagster")}
        asked = ["kafka-liveness", "status", "orders-etl", "--json"]
        done = subprocess.run(asked, cwd=self.folder, env=env, capture_output=True, text=True, check=False)
        return json.loads(done.stdout) if done.returncode in (0, 1) and done.stdout else {}

    def end(self):
        for started in self._started:
            os.killpg(started.pid, signal.SIGINT)
        for started in self._started:
            started.wait(PATIENCE)


@pytest.fixture
def project(tmp_path, installed):
    """The project after ``init``; whatever happens, nothing of it outlives this."""
    folder = tmp_path / "my projects" / "shop"
    folder.parent.mkdir()
    made = Project(folder.parent, installed)
    told = made.run("kafka-liveness", "init", "shop")
    assert told.startswith("Created shop: .gitignore, Makefile, README.md, dagster-instance.yaml, ")
    made.folder = folder
    yield made
    for process in processes_of(folder):
        process.kill()


def test_the_first_hour(project):
    """Its commands, a run that is killed and followed by the next one, and no warning of the doctor."""
    assert re.search(r"\b2 passed\b", project.make("test"))
    assert "make feed" in project.make("help")
    project.make("up")
    project.make("up")  # again, when all of it is there
    project.start("dev")
    project.start("feed")

    def live_pid(*others):
        pids = [run["pid"] for run in project.status().get("live_runs", ()) if run["pid"]]
        return next((pid for pid in pids if pid not in others), None)

    first = wait_for(live_pid, what="a live run", pause=0.5)
    wait_for(lambda: project.status().get("well"), what="a group that is well", pause=0.5)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: live_pid(first), what="the next live run", pause=0.5)
    wait_for(lambda: project.status().get("well"), what="a group that is well again", pause=0.5)
    assert "is well: " in project.make("health")
    doctor = project.make("doctor")
    warned = set(re.findall(r"^(?:warn|FAIL|\?) +(\w+ \w+)", doctor, re.MULTILINE))
    assert warned <= {"location period"}, doctor  # ticks are late on a machine that is busy with other tests
    project.end()
    assert "stopped: " in project.make("down")

    def commands_left():
        return [process.info["cmdline"] for process in processes_of(project.folder)]

    wait_for(
        lambda: not commands_left(), patience=30, details=lambda: f"still there: {commands_left()}", pause=0.1
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["Shop"], "is not a name for a project"),
        (["tests"], "is not a name for a project"),
        (["shop", "--topic", "5orders"], "gives no name for an asset"),
        (["shop", "--table", "a b"], "catalog.namespace.table"),
        (["taken"], "taken exists. Choose a new folder."),
    ],
)
def test_what_cannot_be_a_project_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, arguments, says
):
    """A name that is no package, a topic that is no function, a folder that is there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    done = CliRunner().invoke(main, ["init", *arguments])
    assert done.exit_code == 2
    assert says in done.output
    assert [path.name for path in tmp_path.rglob("*")] == ["taken"]


def test_the_settings_are_those_of_the_page(tmp_path, monkeypatch):
    """``dagster.yaml`` of a project is the one of docs/dagster-instance.md."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["init", "my-shop", "--topic", "web-orders", "--json"])
    folder = tmp_path / json.loads(done.output)["folder"]
    written = (folder / "dagster-instance.yaml").read_text(encoding="utf-8")
    definitions = (folder / "src" / "my_shop" / "definitions.py").read_text(encoding="utf-8")
    assert CliRunner().invoke(main, ["init", "shop"]).exit_code == 0
    shown = ROOT / "docs" / "examples" / "shop.py"
    assert (tmp_path / "shop" / "src" / "shop" / "definitions.py").read_bytes() == shown.read_bytes()
    page = (ROOT / "docs" / "dagster-instance.md").read_text(encoding="utf-8")
    assert re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1] in written
    assert "def web_orders(batch):" in definitions
    assert 'group_id="web-orders-etl"' in definitions
    compile(definitions, "definitions.py", "exec")
