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
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from py4j.java_gateway import GatewayParameters, JavaGateway
from pyspark.serializers import UTF8Deserializer, read_int
from pyspark.sql.connect.session import SparkSession as ConnectSession

from kafka_liveness_dagster.embedded.jars import find_java, pyspark_folder
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
_POLL_SECONDS = 0.05
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
    folder = Path(tempfile.mkdtemp(prefix="kafka-liveness-testing-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    token = uuid.uuid4().hex
    process, gateway = _launch(folder, token)
    gateway.jvm.org.apache.spark.sql.classic.SparkSession.builder().getOrCreate()
    server = getattr(gateway.jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    found = connect(f"sc://localhost:{getattr(server, 'MODULE$').localPort()}/;token={token}")

    def stop() -> None:
        close(found)
        with suppress(Exception):  # Java may have ended already
            gateway.shutdown()
        cast("IO[bytes]", process.stdin).close()  # which ends Java
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)

    atexit.register(stop)
    return found


def _launch(folder: Path, token: str) -> tuple[subprocess.Popen[bytes], JavaGateway]:
    """Start Java, and connect to its gateway.

    pyspark's ``launch_gateway`` does not fit, because it runs Python code in a forked child. That child
    sometimes died if gRPC had a channel in this process (grpcio 1.85, pyspark 4.1.3).
    """
    address = folder / "gateway"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN_VARIABLES)}
    environment = kept | {
        "JAVA_HOME": str(find_java().parent.parent),
        "SPARK_HOME": str(pyspark_folder()),
        "SPARK_CONNECT_MODE": "0",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
        "PYSPARK_PIN_THREAD": "false",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(str(Path(one).resolve()) for one in sys.path),  # for Python functions
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(address),
    }
    settings = [word for name, value in _SPARK_SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    command = [str(pyspark_folder() / "bin" / "spark-submit"), *settings, "pyspark-shell"]
    with (folder / "spark.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=environment,
            start_new_session=True,  # Ctrl-C ends the tests first, and they end Spark
        )
    while not address.exists():
        if process.poll() is not None:
            end = (folder / "spark.log").read_text(errors="replace").strip()[-_LOG_CHARS:]
            raise ServiceNotStartedError(
                f"Spark for tests did not start. Its log ends with: {end}\nFix: check JAVA_HOME, the memory "
                "of this machine, and the reason in the log."
            )
        time.sleep(_POLL_SECONDS)
    with address.open("rb") as info:
        port = read_int(info)
        secret = UTF8Deserializer().loads(info)
    parameters = GatewayParameters(port=port, auth_token=secret, auto_convert=True)
    return process, JavaGateway(gateway_parameters=parameters)
