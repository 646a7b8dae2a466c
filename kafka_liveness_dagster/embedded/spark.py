"""Start the embedded Spark Connect server from the pyspark wheel, on loopback.

The server accepts only clients with its token. The token is in the environment of the process and in the
state file, never on a command line or in a log. Files that Spark writes to its current folder (warehouse,
artifacts, temporary files) are in the state folder.

``KAFKA_LIVENESS_SPARK_CONF`` may name a file of further settings, written as in ``spark-defaults.conf``:
another catalog, packages, memory. They override this package's settings, except the few by which it reaches
and recognizes the server. Options for the server's Java go into ``spark.driver.defaultJavaOptions``. Classes
that Iceberg itself needs, like the clients of a store, go into ``spark.driver.extraClassPath``: Iceberg is on
that path, and does not see packages.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.embedded.jars import find_java, ivy_settings, pyspark_folder, resolve_jars
from kafka_liveness_dagster.embedded.processes import LOOPBACK, Launch, process_marker_option
from kafka_liveness_dagster.embedded.state import empty_folder, folder_of

if TYPE_CHECKING:
    from collections.abc import Callable

CATALOG = "lake"
_OWN_SETTINGS = (
    "spark.connect.grpc.binding.address",
    "spark.connect.grpc.binding.port",
    "spark.driver.extraClassPath",
    "spark.driver.extraJavaOptions",  # has the marker that identifies the process
)
_CLASS_PATH = re.compile(r"^\s*spark\.driver\.extraClassPath[\s=:]+(?P<theirs>.*\S)", re.MULTILINE)
_FOREIGN_VARIABLES = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_")
_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


def prepare_launch(
    home: Path, port: int, token: str, process_marker: str, show: Callable[[str], None], *, cores: int = 2
) -> Launch:
    """Write the server's settings; return the command to start it.

    Raises:
        InvalidSettingError: the file that ``KAFKA_LIVENESS_SPARK_CONF`` names cannot be read.
        JarsError, JavaNotFoundError: see `resolve_jars`.
    """
    folder = folder_of(home, "spark")
    jars = resolve_jars("spark", show=show)
    conf = folder / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    empty_folder(folder / "local")
    (conf / "log4j2.properties").write_text(_LOGGING)
    theirs = _user_settings()
    settings = _server_settings(
        home, port, process_marker, class_path=[f"{jars}/*", *_CLASS_PATH.findall(theirs)[-1:]], cores=cores
    )
    lines = {name: f"{name} {value}".replace("\\", "\\\\") for name, value in settings.items()}
    every = [*lines.values(), theirs, *(lines[name] for name in _OWN_SETTINGS)]
    written = conf / "spark-defaults.conf"
    written.touch(mode=0o600)  # the user's settings may hold the secrets of a store
    written.write_text("\n".join(every) + "\n")
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    submit = str(pyspark_folder() / "bin" / "spark-submit")  # execs java, so its pid is the server's
    return Launch(
        (submit, "--class", server, "--name", process_marker, "spark-internal"),
        folder,
        _environment(conf, token),
    )


def _server_settings(home: Path, port: int, mark: str, class_path: list[str], cores: int) -> dict[str, str]:
    catalog = f"spark.sql.catalog.{CATALOG}"
    scratch = home / "spark" / "local"
    return {
        "spark.master": f"local[{cores}]",
        "spark.driver.memory": "1g",
        # For short-lived objects on few cores the parallel collector takes half of G1's time
        "spark.driver.defaultJavaOptions": "-XX:+UseParallelGC",
        # Each job broadcasts its code; with the default a broadcast takes 4 MB of the heap
        "spark.broadcast.blockSize": "64k",
        # Hadoop's own class starts a process (`chmod`) for each file that it creates; this one uses Java
        "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
        "spark.driver.extraClassPath": ":".join(class_path),
        "spark.driver.extraJavaOptions": f'{process_marker_option(mark)} "-Djava.io.tmpdir={scratch}"',
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.ui.enabled": "false",
        # For the driver's RPC and the block manager. Without authentication every user of this machine could
        # stop them, and make them deserialize Java objects. With a local master Spark generates the secret
        # and keeps it in memory
        "spark.authenticate": "true",
        "spark.jars.ivySettings": ivy_settings().as_uri(),
        "spark.local.dir": "local",  # relative: a comma in an absolute path would divide it
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.progress.reportInterval": "500ms",
        # By default the server works for a dead client for 5 min
        "spark.connect.execute.manager.detachedTimeout": "60s",
        # Executors keep fetched, unread records for the next read: by default for 5 min, without a limit.
        # Small batches that were checked before they were appended left 2.3 million records, and filled the
        # heap
        "spark.kafka.consumer.fetchedData.cache.timeout": "10s",
        "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "5s",
        # By default a batch waits until each earlier batch, of any group, has begun its last tasks
        "spark.scheduler.mode": "FAIR",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": f"{home}/spark/spark-warehouse",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{home}/catalog.db?busy_timeout=10000",
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.warehouse": f"{home}/warehouse",
        f"{catalog}.cache-enabled": "false",  # else a session sees others' commits up to 30 s late
    }


def _user_settings() -> str:
    """Return the user's settings as text; empty without a file.

    They may repeat a name: Java uses the last of two lines that set the same.
    """
    named = os.environ.get("KAFKA_LIVENESS_SPARK_CONF")
    try:
        return Path(named).read_text() if named else ""
    except OSError as error:
        raise InvalidSettingError(
            f"KAFKA_LIVENESS_SPARK_CONF names {named!r}, which cannot be read ({error.strerror}). Fix: name "
            "a file like spark-defaults.conf, or unset the variable"
        ) from None


def _environment(conf: Path, token: str) -> dict[str, str]:
    """Return this environment without variables for another Spark or Hadoop."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN_VARIABLES)}
    return kept | {
        "JAVA_HOME": str(find_java().parent.parent),
        "SPARK_HOME": str(pyspark_folder()),
        "SPARK_CONF_DIR": str(conf),
        "PYSPARK_PYTHON": sys.executable,  # the user's functions import what the transform can import
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
    }
