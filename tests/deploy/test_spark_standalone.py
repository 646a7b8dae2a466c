"""deploy/spark-standalone.

Both lanes go through a cluster, and an executor that dies in mid-write costs nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from kafka_liveness_dagster.embedded import jars
from kafka_liveness_dagster.embedded.jars import find_java
from kafka_liveness_dagster.embedded.processes import LOOPBACK, free_port, is_listening
from kafka_liveness_dagster.spark.connect.session import close, connect
from tests.deploy.lake import lake
from tests.integration.conftest import patient  # noqa: F401 - the same limits as there
from tests.integration.dagster_runs import is_alive
from tests.integration.group_with_table import GroupWithTable, written_rows
from tests.waiting import wait_for

pytestmark = pytest.mark.certify

SCRIPT = Path(__file__).parents[2] / "deploy" / "spark-standalone"
TOKEN, SECRET = "t0ken-of-the-cluster", "s3cret-of-the-cluster"
SLOW = "concat(cast(value AS string), if(java_method('java.lang.Thread', 'sleep', 50L) = 'null', '', ''))"


class Cluster:
    """What the script started."""

    def __init__(self, folder, catalog):
        self.port, self._log = free_port(), folder / "cluster.log"
        conf, self.env = folder / "of the cluster.conf", _environment()
        conf.write_text("".join(f"{key} {value}\n" for key, value in (catalog | self._settings()).items()))
        conf.chmod(0o640)
        (folder / "jars").symlink_to(jars.resolve_jars("spark"))
        self.command = (SCRIPT, "--conf", conf, "--jars", folder / "jars", "--master-port", str(free_port()))
        with self._log.open("wb") as log:
            self.script = subprocess.Popen(
                [*self.command, "--memory", "512m"],
                cwd=folder,
                env=self.env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._main = psutil.Process(self.script.pid)

    @property
    def remote(self):
        return f"sc://localhost:{self.port}/;token={TOKEN}"

    def is_up(self):
        assert self.script.poll() is None, self.said()
        return is_listening(self.port)

    def said(self):
        return self._log.read_text(errors="replace")[-4000:]

    def processes(self):
        return [one for one in self._main.children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE]

    def executors(self):
        """Who does the tasks."""
        return [one for one in self.processes() if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline())]

    def _settings(self):
        return {
            "spark.authenticate": "true",
            "spark.authenticate.secret": SECRET,
            "spark.connect.grpc.binding.address": LOOPBACK,
            "spark.connect.grpc.binding.port": self.port,
            "spark.connect.progress.reportInterval": "100ms",
            "spark.driver.memory": "512m",
            "spark.ui.enabled": "false",
        }


def _environment():
    """Ours, with what is started here on its path, and Java wherever it is."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    java = {"PATH": path, "JAVA_HOME": str(find_java().parent.parent)}
    return {**os.environ, **java, "SPARK_CONNECT_AUTHENTICATE_TOKEN": TOKEN}


@pytest.fixture(scope="module")
def cluster(services, tmp_path_factory):
    """Two workers and a Connect server, in a folder whose path has a space, on the other tests' catalog."""
    catalog = lake(services.catalog_uri.removeprefix("sqlite:///"), services.warehouse)
    found = Cluster(tmp_path_factory.mktemp("a cluster"), catalog)
    try:
        wait_for(found.is_up, what="the cluster answers", details=found.said)
        yield found
    finally:
        everyone = found.processes() if found.script.poll() is None else []
        found.script.terminate()
        found.script.wait(180)
        for one in filter(is_alive, everyone):
            one.kill()


@pytest.fixture(scope="module")
def of_the_cluster(cluster):
    """A session of its own."""
    session = connect(cluster.remote, timeout_seconds=120)
    yield session
    close(session)


@pytest.fixture
def world(services, cluster, of_the_cluster, produce, rows):
    """A group whose Spark is the cluster."""
    return GroupWithTable(replace(services, spark_remote=cluster.remote), produce, rows, of_the_cluster)


class Strikes:
    """Kills every executor with SIGKILL, once, as soon as a batch has a task under way."""

    def __init__(self, cluster):
        self._cluster, self.killed = cluster, []

    def __call__(self, batch):
        """Caller: the transform, with its batch. Affects: whoever writes it."""
        batch.sparkSession.registerProgressHandler(self._told)

    def _told(self, *, inflight_tasks, done, **_):
        """Caller: pyspark, on a thread of its own."""
        if inflight_tasks and not done and not self.killed:
            self.killed = self._cluster.executors()
            for executor in self.killed:
                executor.kill()


def test_both_lanes_lose_their_executors_in_the_middle_of_a_write(cluster, world):
    """A crash, its backfill, and the live lane that goes on: what is written again is there once."""
    world.value = SLOW
    world.crash_and_resume_at_120()
    of_the_backfill, of_the_live_lane = Strikes(cluster), Strikes(cluster)
    assert world.catch_up((70, 120), between=of_the_backfill) is None
    assert (world.offsets(), world.materialized_ranges()) == (written_rows(0, 120), [(70, 120)])
    world.grow_to(200)
    assert world.live(of_the_live_lane) is None
    assert (world.committed(), world.pending_by_live_log(), world.offsets()) == (
        200,
        [],
        written_rows(0, 200),
    )
    assert of_the_backfill.killed
    assert of_the_live_lane.killed


def test_a_port_that_is_taken(cluster, tmp_path):
    """Workers of another cluster do not join the one that has the port.

    They would share its secret, or fail indefinitely.
    """
    second = subprocess.run(
        cluster.command, cwd=tmp_path, env=cluster.env, capture_output=True, text=True, check=False
    )
    assert second.returncode != 0
    assert "Address already in use" in second.stderr
    assert cluster.is_up()


@pytest.mark.parametrize("missing", ["--conf", "--jars", "SPARK_CONNECT_AUTHENTICATE_TOKEN"])
def test_what_has_to_be_said(cluster, missing):
    """Nothing is started without it, and it is named."""
    at = cluster.command.index(missing) if missing in cluster.command else len(cluster.command)
    env = {key: value for key, value in cluster.env.items() if key != missing}
    told = [*cluster.command[:at], *cluster.command[at + 2 :]]
    done = subprocess.run(told, env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert missing in done.stderr


@pytest.mark.parametrize(
    ("lines", "mode", "says"),
    [
        pytest.param("", 0o600, "has to set spark.authenticate true", id="not set"),
        pytest.param(
            "true\nspark.authenticate=false", 0o600, "has to set spark.authenticate true", id="set back"
        ),
        pytest.param("true", 0o600, "has to set spark.authenticate.secret", id="no secret"),
        pytest.param(
            f"true\nspark.authenticate.secret {SECRET}", 0o644, "may read the secret", id="readable"
        ),
    ],
)
def test_a_cluster_that_any_user_could_drive_is_not_started(tmp_path, lines, mode, says):
    """Master, workers and driver obey any client that reaches their ports, unless a secret is required."""
    conf = tmp_path / "spark.conf"
    conf.write_text(f"spark.ui.enabled false\nspark.authenticate {lines}\n" if lines else "")
    conf.chmod(mode)
    command = [SCRIPT, "--conf", conf, "--jars", tmp_path]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr


def test_all_of_it_ends_in_good_order(cluster):
    """The script, the master, the workers, their executors and the Connect server.

    The last test of this file.
    """
    everyone = cluster.processes()
    assert len(everyone) >= 4
    cluster.script.terminate()
    assert cluster.script.wait(180) == 0, cluster.said()
    wait_for(lambda: not any(map(is_alive, everyone)))
