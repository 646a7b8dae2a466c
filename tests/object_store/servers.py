"""A REST catalog and an S3 store as child processes, and what Spark and pyiceberg are told to reach them.

They are told what docs/spark.md and docs/readers.md show, with the addresses and keys of here.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from pathlib import Path

import psutil
import yaml
from pyarrow import fs

from kafka_liveness_dagster.embedded import jars, processes
from kafka_liveness_dagster.embedded.jars import find_java
from kafka_liveness_dagster.embedded.processes import LOOPBACK, free_port, is_listening
from tests.waiting import wait_for

ACCESS_KEY, SECRET_KEY = "orders", "s3cr3t-of-the-store"
BUCKET, REGION = "lake-of-orders", "eu-central-1"
_LOG = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", _LOG)
_S3PROXY = """\
s3proxy.endpoint=http://{loopback}:{port}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={identity}
s3proxy.credential={credential}
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir={objects}
"""


class StorageServers:
    """Both servers, in a folder, on ports of their own."""

    def __init__(self, folder):
        self.folder, self.objects = folder, folder / "objects"
        self.rest_port, self.s3_port = free_port(), free_port()
        self._children = []

    @property
    def rest(self):
        return f"http://{LOOPBACK}:{self.rest_port}"

    @property
    def s3(self):
        return f"http://{LOOPBACK}:{self.s3_port}"

    def spark_settings(self, name, **others):
        """The catalog as docs/spark.md has it in ``spark-defaults.conf``, by this name."""
        [page] = re.findall(
            r"^```\n(spark\.sql\.extensions .*?)^```",
            _page("spark.md"),
            re.DOTALL | re.MULTILINE,
        )
        lines = page.replace("\\\n", "")  # a backslash continues a line
        told = dict(line.split() for line in self._of_here(lines).splitlines())
        catalog, ours = "spark.sql.catalog.lake", f"spark.sql.catalog.{name}"
        told |= {f"{catalog}.{key}": value for key, value in others.items()}
        return {key.replace(catalog, ours): value for key, value in told.items()}

    def pyiceberg_settings(self):
        """The same for pyiceberg, as docs/readers.md has it."""
        [page] = re.findall(r"^```yaml\n(catalog:.*?)^```", _page("readers.md"), re.DOTALL | re.MULTILINE)
        return yaml.safe_load(self._of_here(page))["catalog"]["lake"]

    def _of_here(self, page):
        for theirs, ours in (
            ("https://catalog.example/api", self.rest),
            ("https://login.example/oauth/tokens", f"{self.rest}/v1/oauth/tokens"),
            ("https://s3.example", self.s3),
            ("ACCESS_KEY", ACCESS_KEY),
            ("SECRET_KEY", SECRET_KEY),
        ):
            assert theirs in page
            page = page.replace(theirs, ours)
        return page

    def class_path(self):
        """What Spark's Iceberg needs besides itself to reach S3."""
        [bundle] = _jars().glob("iceberg-aws-bundle-*.jar")
        return str(bundle)

    def start(self):
        """Start both and return when they answer."""
        self.objects.mkdir(exist_ok=True)
        properties = self.folder / "s3proxy.properties"
        properties.write_text(
            _S3PROXY.format(
                loopback=LOOPBACK,
                port=self.s3_port,
                identity=ACCESS_KEY,
                credential=SECRET_KEY,
                objects=self.objects,
            )
        )
        s3 = self._run("s3", ("org.gaul.s3proxy.Main", "--properties", str(properties)), {})
        rest = self._run("rest", ("org.apache.iceberg.rest.RESTCatalogServer",), self._rest_settings())
        self._wait("s3", s3, self.s3_port)
        self._wait("rest", rest, self.rest_port)
        fs.S3FileSystem(
            endpoint_override=self.s3,
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            region=REGION,
            allow_bucket_creation=True,
        ).create_dir(BUCKET)

    def stop(self):
        processes.end_processes(psutil.Process(child.pid) for child in self._children if child.poll() is None)

    def _rest_settings(self):
        settings = {
            "uri": f"jdbc:sqlite:{self.folder}/rest.db",
            "jdbc.schema-version": "V1",
            "warehouse": f"s3://{BUCKET}/warehouse",
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "rest.port": str(self.rest_port),
            "s3.endpoint": self.s3,
            "s3.path-style-access": "true",
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            "client.region": REGION,
        }
        # The server reads its settings by these names
        names = {key: key.upper().replace("-", "__").replace(".", "_") for key in settings}
        return {f"CATALOG_{names[key]}": value for key, value in settings.items()}

    def _run(self, name, main, env):
        path = os.pathsep.join([f"{_jars()}/*", *map(str, _of_spark())])
        command = (str(find_java()), *_OPTIONS, "-cp", path, *main)
        launch = processes.Launch(command, self.folder, {**os.environ, **env})
        self._children.append(processes.start_process(launch, self.folder / f"{name}.log"))
        return self._children[-1]

    def _wait(self, name, child, port):
        log = self.folder / f"{name}.log"

        def is_up():
            assert child.poll() is None, processes.last_lines(log)
            return is_listening(port)

        wait_for(is_up, what=f"{name} answers", details=lambda: processes.last_lines(log), pause=0.05)


@contextmanager
def started(folder):
    """Both servers, for as long as the block lasts, however it ends."""
    stores = StorageServers(folder)
    try:
        stores.start()
        yield stores
    finally:
        stores.stop()


def _page(name):
    return (Path(__file__).parents[2] / "docs" / name).read_text(encoding="utf-8")


def _jars():
    jars.MODULES.setdefault("stores", Path(__file__).parent / "ivy-stores.xml")
    return jars.resolve_jars("stores")


def _of_spark():
    """What the catalog shares with Spark: Hadoop's settings, and the driver of its database."""
    hadoop = jars.pyspark_folder() / "jars"
    return (*hadoop.glob("hadoop-client-*.jar"), *jars.resolve_jars("spark").glob("sqlite-jdbc-*.jar"))
