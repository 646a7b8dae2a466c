"""Start a local Spark with Spark Connect in it, for this process. Never uses a session of the user's.

The Java process has a gateway of its own, so a Spark session that the same Python process has is not touched.
It reads the pipe to this process, and ends when the pipe closes, also after SIGKILL.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.conf import SparkConf
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql.connect.session import SparkSession as ConnectSession

from kafka_liveness_dagster.embedded.jars import find_java
from kafka_liveness_dagster.embedded.state import ServiceNotStartedError
from kafka_liveness_dagster.spark.connect.session import close, connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPARK_SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # half of the start
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.warehouse.dir": "warehouse",
    "spark.local.dir": "local",
    "spark.ui.enabled": "false",
    # Spark would compute a batch of literals while it plans: an error in a row came before the write
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation",
}
_FOREIGN_VARIABLES = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_")
_STOP_SECONDS = 10.0
_LOG_CHARS = 1_000
_lock = threading.Lock()
_session: SparkSession | None = None


def session() -> SparkSession:
    """Return the local Spark session, of the same API as in production; the first call starts it.

    Its time zone is UTC. Settings that are changed stay changed for later tests:
    ``testing.session().conf.set("spark.sql.session.timeZone", "Europe/Berlin")``.

    Raises:
        JavaNotFoundError: there is no Java 17 or newer.
        ServiceNotStartedError: Java ended before Spark was ready.
    """
    global _session  # noqa: PLW0603 - one Java process for all tests of this process
    with _lock:
        if _session is None:
            _session = _start()
        active: Any = ConnectSession._active_session  # noqa: SLF001 - Spark parses a type that is text by it
        active.session = _session
        return _session


def _start() -> SparkSession:
    java_home = str(find_java().parent.parent)
    folder = tempfile.mkdtemp(prefix="kafka-liveness-testing-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    settings = SparkConf(loadDefaults=False)
    for name, value in _SPARK_SETTINGS.items():
        settings.set(name, value)
    token = uuid.uuid4().hex
    ours = {
        "JAVA_HOME": java_home,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(str(Path(one).resolve()) for one in sys.path),  # for Python functions
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
    }
    before = dict(os.environ)
    try:
        for name in before:
            if name.startswith(_FOREIGN_VARIABLES):
                del os.environ[name]
        os.environ.update(ours)
        with Path(folder, "spark.log").open("wb") as log:
            gateway = launch_gateway(settings, {"cwd": folder, "stdout": log, "stderr": log})
    except PySparkRuntimeError as error:
        end = Path(folder, "spark.log").read_text(errors="replace").strip()[-_LOG_CHARS:]
        raise ServiceNotStartedError(
            f"Spark for tests did not start. Its log ends with: {end}\nFix: check JAVA_HOME, the memory of "
            "this machine, and the reason in the log."
        ) from error
    finally:
        os.environ.clear()
        os.environ.update(before)
    gateway.jvm.org.apache.spark.sql.classic.SparkSession.builder().getOrCreate()
    server = getattr(gateway.jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    found = connect(f"sc://localhost:{getattr(server, 'MODULE$').localPort()}/;token={token}")

    def stop() -> None:
        close(found)
        with suppress(Exception):  # Java may have ended already
            gateway.shutdown()
        gateway.proc.stdin.close()  # which ends Java
        with suppress(subprocess.TimeoutExpired):
            gateway.proc.wait(_STOP_SECONDS)

    atexit.register(stop)
    return found
