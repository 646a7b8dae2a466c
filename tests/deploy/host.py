"""A host with the pipeline on it, as docs/deployment.md sets it up, in a folder whose path has a space.

There is no systemd that could start the units: each command is started as its unit says, in the environment
that a service has, under its system call filter, and by another user where we are root.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil
import requests

from kafka_liveness_dagster.embedded.jars import find_java
from kafka_liveness_dagster.embedded.processes import LOOPBACK, free_port, is_listening
from tests.deploy.units import FOLDER, UNITS, Unit
from tests.timeouts import seconds
from tests.waiting import PATIENCE, wait_for

TOKEN = "t0ken-of-the-host"
PAGE = FOLDER.parents[1] / "docs" / "deployment.md"
TOPS = ("/opt/pipeline", "/etc/pipeline", "/etc/systemd/system", "/var/lib/pipeline", "/run/pipeline")
CONFINED = Path(__file__).with_name("confined.py")
ANOTHER_USER = "nobody"


class Host:
    """Use it as a context manager: nothing that was started here outlives it."""

    def __init__(self, code, dagster_yaml, bootstrap_servers, spark_settings):
        # Others may enter this folder, unlike pytest's
        self.root = Path(tempfile.mkdtemp(prefix="a host of ours "))
        self.root.chmod(0o755)
        self.ports = {"3000": free_port(), "15002": free_port()}
        self.becomes = _another_user()
        self.services, self._all = {}, []
        self.state = self.path("/var/lib/pipeline")
        self._set_up(code, dagster_yaml)
        self._edit(bootstrap_servers, spark_settings)
        # As systemd does with a state or runtime folder
        for told in (self.state, self.catalog, self.socket.parent):
            told.mkdir(parents=True, exist_ok=True)
            if self.becomes:
                for one in (told, *told.iterdir()):
                    shutil.chown(one, ANOTHER_USER)

    def _set_up(self, code, dagster_yaml):
        """What the page has root type.

        What asks the system, or takes minutes and is tried elsewhere, is said to it.
        """
        checkout, commands = self.root / "checkout", self.root / "said"
        checkout.mkdir()
        commands.mkdir()
        (checkout / "deploy").symlink_to(FOLDER.parent)
        (checkout / "orders.py").write_text(code)
        (checkout / "dagster.yaml").write_text(dagster_yaml)
        for name in ("useradd", "systemctl", *(() if self.becomes else ("chgrp",))):
            (commands / name).write_text("#!/bin/sh\n")
            (commands / name).chmod(0o755)
        [typed] = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        link = f"ln -s {shlex.quote(sys.prefix)} /opt/pipeline/venv\n"
        typed, installed = re.subn(
            r"^python3 -m venv .*\n.*pip install .*\n", link, typed, flags=re.MULTILINE
        )
        assert installed == 1
        typed = typed.replace("chgrp pipeline", "chgrp nogroup")
        assert not re.search(r"(?<!\w)/(opt|etc|var)", re.sub("|".join(TOPS), "", typed)), (
            "all of it is under our root"
        )
        for top in TOPS:
            typed = typed.replace(top, shlex.quote(f"{self.root}{top}"))
        self.path("/etc/systemd/system").mkdir(parents=True)
        env = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
        shell = [shutil.which("bash"), "-euc", typed]
        done = subprocess.run(shell, cwd=checkout, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def _edit(self, bootstrap_servers, spark_settings):
        """What the reader changes in /etc, and what is another one's on this machine: ports, paths, Java."""
        etc = self.path("/etc/pipeline")
        for file in etc.iterdir():
            told = (
                file.read_text()
                .replace("CHANGE_ME", TOKEN)
                .replace("broker-1.example.com:9092", bootstrap_servers)
            )
            file.write_text(self._of_here(told))
        with (etc / "spark.env").open("a") as more:
            more.write(
                f"JAVA_HOME={find_java().parent.parent}\nJAVA_TOOL_OPTIONS={os.environ['JAVA_TOOL_OPTIONS']}\n"
            )
        with (etc / "spark-defaults.conf").open("a") as more:
            more.writelines(f"{key} {value}\n" for key, value in spark_settings(self.catalog).items())

    @property
    def catalog(self):
        """Where the tables are; Spark's unit may write there."""
        return self.state.with_name("pipeline-spark")

    @property
    def socket(self):
        """Where the code server answers."""
        return self.path("/run/pipeline-code-server/grpc.sock")

    def start(self, name):
        """What systemd does when a unit is started: what is to come before it has ended.

        It need not answer yet.
        """
        self.services[name] = self.start_beside(name)

    def start_beside(self, name):
        """Another one of the same unit, which finds its port taken."""
        self._all.append(Service(self, Unit(name)))
        return self._all[-1]

    def start_all(self):
        for name in UNITS:
            self.start(name)
        wait_for(self._is_up, what="each unit answers")

    def _is_up(self):
        for service in self.services.values():
            assert service.main.poll() is None, service.said()
        return self.socket.exists() and all(map(is_listening, self.ports.values()))

    def ask(self, query, **variables):
        """What the UI asks its server; None while that is away."""
        url = f"http://{LOOPBACK}:{self.ports['3000']}/graphql"
        with suppress(requests.RequestException):
            answer = requests.post(url, json={"query": query, "variables": variables}, timeout=60)
            return answer.json()["data"]
        return None

    def path(self, told):
        """A path of a unit's, under our root, with our ports."""
        return Path(self._of_here(told))

    def words(self, told):
        """The same of each word."""
        return [str(self.ports.get(word, self._of_here(word))) for word in told]

    def _of_here(self, text):
        for top in TOPS:
            text = text.replace(top, f"{self.root}{top}")
        for theirs, ours in self.ports.items():
            for mark in (f": {theirs}", f":{theirs}/", f" {theirs}\n"):
                text = text.replace(mark, mark.replace(theirs, str(ours)))
        return text

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for service in self._all:
            service.kill()
        shutil.rmtree(self.root)


class Service:
    """A unit that was started: its main process, and all that came of it."""

    def __init__(self, host, unit):
        self.unit, self.invocation = unit, uuid4().hex
        self.log = host.root / f"{unit.name}-{self.invocation[:4]}.log"
        families = ",".join(unit.words("RestrictAddressFamilies"))
        confined = [*host.becomes, sys.executable, "-I", CONFINED, ",".join(unit.system_calls()), families]
        with self.log.open("wb") as log:
            way = {
                "cwd": host.path(*unit.told("WorkingDirectory")),
                "env": self._environment(host),
                "stdin": subprocess.DEVNULL,
                "stdout": log,
                "stderr": subprocess.STDOUT,
                "start_new_session": True,
                "umask": int(*unit.told("UMask"), 8),
            }
            if first := host.words(unit.words("ExecStartPre")):
                done = subprocess.run([*confined, *first], timeout=seconds(PATIENCE), check=False, **way)
                assert done.returncode == 0, self.said()
            self.main = subprocess.Popen([*confined, *host.words(unit.words("ExecStart"))], **way)

    def _environment(self, host):
        """What systemd gives a service, and nothing else."""
        env = {
            "INVOCATION_ID": self.invocation,
            "LANG": "C.UTF-8",
            "HOME": str(host.state),
            "SHELL": "/bin/sh",
        }
        for word in self.unit.words("Environment"):
            key, _, value = word.partition("=")
            env[key] = host._of_here(value)
        for file in self.unit.told("EnvironmentFile"):
            lines = [line for line in host.path(file).read_text().splitlines() if not line.startswith("#")]
            env |= {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}
        return {key: value for key, value in env.items() if key not in self.unit.words("UnsetEnvironment")}

    def processes(self):
        """Its control group: whatever was started with its invocation in the environment and is no zombie."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                ours = process.environ().get("INVOCATION_ID") == self.invocation
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def stop(self):
        """What ``systemctl stop`` does: SIGTERM to each process of it.

        Its exit code, when all of them have ended.
        """
        assert self.unit.told("KillMode") == self.unit.told("KillSignal") == []
        [seconds] = self.unit.told("TimeoutStopSec") or ["90"]
        group = self.processes()
        self._signal(group, signal.SIGTERM)
        wait_for(lambda: self.main.poll() is not None and not self.processes(), float(seconds))
        return self.main.returncode

    def kill(self):
        """SIGKILL to whatever is left."""
        self._signal(self.processes(), signal.SIGKILL)
        self.main.wait()

    def said(self):
        return self.log.read_text(errors="replace")

    @staticmethod
    def _signal(processes, number):
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def _another_user():
    """What makes a command another user's, if we are root.

    Where the checkout is closed to him he may read all.
    """
    if os.geteuid() != 0:
        return ()
    plain = ("setpriv", f"--reuid={ANOTHER_USER}", "--regid=nogroup", "--clear-groups")
    reading = (*plain, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    probe = ("sh", "-c", '"$0" -c "import kafka_liveness_dagster"', sys.executable)
    for way in (plain, reading):
        if subprocess.run([*way, *probe], check=False, capture_output=True).returncode == 0:
            return way
    raise AssertionError(
        f"user {ANOTHER_USER} cannot run {sys.executable}: let others read the checkout and its Python"
    )
