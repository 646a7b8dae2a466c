"""Downloads that are cut off, refused or damaged: the real Ivy against a small repository on loopback."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

import pytest

from kafka_liveness_dagster.embedded import jars
from kafka_liveness_dagster.embedded.state import JarsError
from supply_chain.components import JARS, read_jars
from tests.waiting import wait_for

_RESOLVE = """
import os, pathlib
from kafka_liveness_dagster.embedded import jars
jars.RELEASED = pathlib.Path(os.environ["RELEASED_SUMS"])
print(jars.resolve_jars("kafka"))
"""
_IN_REPOSITORY = (
    "kafka_2.13-4.3.1", "slf4j-simple-1.7.36", "hadoop-bare-naked-local-fs-0.1.0", "sqlite-jdbc-3.54.1.0",
    "spark-avro_2.13-4.1.1", "spark-avro_2.13-4.1.7", "spark-sql-kafka-0-10_2.13-4.1.3",
    "spark-sql-kafka-0-10_2.13-4.1.8", "iceberg-spark-runtime-4.1_2.13-1.12.0",
    "iceberg-spark-runtime-4.1_2.13-1.9.9",
)  # fmt: skip


def _jar():
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as jar:
        jar.writestr("classes", bytes(100_000))
    return held.getvalue()


class _Repository(ThreadingHTTPServer):
    """Has every module at every version, none with dependencies."""

    daemon_threads = True
    jar = _jar()

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hold_back = 0
        self.halfway = threading.Event()
        self.go_on = threading.Event()
        self.asked = []


class _Handler(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self._begin()

    def do_GET(self):
        body = self._begin()
        cut = len(body) - (self.server.hold_back if self.path.endswith(".jar") else 0)
        self.wfile.write(body[:cut])
        self.wfile.flush()
        if cut < len(body):
            self.server.halfway.set()
            self.server.go_on.wait(600)

    def _begin(self):
        self.server.asked.append(self.path)
        *group, name, version, file = self.path.strip("/").split("/")
        pom = (
            f"<project><modelVersion>4.0.0</modelVersion><groupId>{'.'.join(group)}</groupId>"
            f"<artifactId>{name}</artifactId><version>{version}</version></project>"
        ).encode()
        body = {"pom": pom, "jar": self.server.jar}.get(file.rpartition(".")[2], b"")
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return body

    def log_message(self, *_):
        pass


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository that Ivy asks instead of the public one, and an empty folder for the jars."""
    with _Repository() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings = tmp_path / "ivysettings.xml"
        settings.write_text(
            "<ivysettings><settings defaultResolver='here'/><resolvers><ibiblio name='here' "
            f"m2compatible='true' root='http://127.0.0.1:{server.server_port}/'/></resolvers></ivysettings>"
        )
        monkeypatch.setenv("KAFKA_LIVENESS_IVY_SETTINGS", str(settings))
        monkeypatch.setenv("KAFKA_LIVENESS_JARS", str(tmp_path / "jars"))
        released = tmp_path / "SHA256SUMS"
        checksum = hashlib.sha256(server.jar).hexdigest()
        released.write_text("".join(f"{checksum}  {jar}.jar\n" for jar in _IN_REPOSITORY))
        monkeypatch.setattr(jars, "RELEASED", released)
        monkeypatch.setenv("RELEASED_SUMS", str(released))
        yield server
        server.go_on.set()
        server.shutdown()


def names(folder):
    """What is in a folder, hidden or not."""
    return sorted(jar.name for jar in folder.iterdir())


def test_a_download_killed_half_way_is_begun_anew(repository):
    """SIGKILL in the middle of a jar leaves no folder that looks complete; the next call downloads it all."""
    repository.hold_back = 500
    with subprocess.Popen([sys.executable, "-c", _RESOLVE], stderr=subprocess.DEVNULL) as cut_off:
        wait_for(repository.halfway.is_set)
        assert jars.find_jars("kafka") is None
        cut_off.kill()
    repository.hold_back = 0
    repository.go_on.set()
    assert names(jars.resolve_jars("kafka")) == [
        "SHA256SUMS",
        "kafka_2.13-4.3.1.jar",
        "slf4j-simple-1.7.36.jar",
    ]


def test_a_damaged_jar_is_downloaded_again(repository):
    """A jar that was truncated later (full disk, lost power supply) is detected, and the folder replaced."""
    jar = jars.resolve_jars("kafka") / "kafka_2.13-4.3.1.jar"
    jar.write_bytes(jar.read_bytes()[:50_000])
    assert jars.find_jars("kafka") is None
    assert (jars.resolve_jars("kafka") / jar.name).read_bytes() == repository.jar


def test_the_jars_are_those_of_the_installed_pyspark(repository, monkeypatch):
    """A connector for each, in a folder of its own.

    For one that nobody has tried, what to install is said.
    """
    here = jars.resolve_jars("spark")
    beside = jars.TESTED_VERSIONS[metadata.version("pyspark")]
    assert f"spark-sql-kafka-0-10_2.13-{beside['connector']}.jar" in names(here)
    monkeypatch.setattr(
        jars, "TESTED_VERSIONS", {"4.1.9": {"connector": "4.1.8", "iceberg": "1.9.9", "avro": "4.1.7"}}
    )
    with pytest.raises(
        JarsError,
        match=r"has jars for pyspark 4\.1\.9, but .* is installed.* pip install 'pyspark\[connect\]==4",
    ):
        jars.resolve_jars("spark")
    monkeypatch.setattr(jars, "version", lambda _: "4.1.9")
    assert set(names(jars.resolve_jars("spark"))) >= {
        "spark-sql-kafka-0-10_2.13-4.1.8.jar", "iceberg-spark-runtime-4.1_2.13-1.9.9.jar",
        "spark-avro_2.13-4.1.7.jar",
    }  # fmt: skip
    assert jars.find_jars("spark") != here


def _other_jar():
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as jar:
        jar.writestr("other", b"")
    return held.getvalue()


def test_a_jar_that_was_exchanged_or_added_is_not_run(repository):
    """It is a jar like any other, with a name of the release: only its checksum tells."""
    folder = jars.resolve_jars("kafka")
    assert jars.find_damaged("kafka") == []
    (folder / "slf4j-simple-1.7.36.jar").write_bytes(_other_jar())
    (folder / "added.jar").write_bytes(_other_jar())
    sums = (folder / "SHA256SUMS").read_text()
    other = hashlib.sha256(_other_jar()).hexdigest()
    # An attacker that replaces a jar replaces its checksum, too
    (folder / "SHA256SUMS").write_text(re.sub(r"\w+(?=  slf4j)", other, sums))
    assert jars.find_damaged("kafka") == ["slf4j-simple-1.7.36.jar", "added.jar"]
    assert jars.find_jars("kafka") is None
    assert names(jars.resolve_jars("kafka")) == [
        "SHA256SUMS",
        "kafka_2.13-4.3.1.jar",
        "slf4j-simple-1.7.36.jar",
    ]
    assert jars.find_damaged("kafka") == []


@pytest.mark.parametrize("local", [False, True], ids=["a mirror", "a local Maven repository"])
def test_a_jar_with_another_checksum_is_never_taken(repository, tmp_path, local):
    """A mirror, or a build on this machine, may have another file under a name of the release."""
    if local:
        for module in ("org/apache/kafka/kafka_2.13/4.3.1", "org/slf4j/slf4j-simple/1.7.36"):
            *group, name, version = module.split("/")
            file = tmp_path / "m2" / module / f"{name}-{version}"
            file.parent.mkdir(parents=True)
            Path(f"{file}.pom").write_text(
                f"<project><modelVersion>4.0.0</modelVersion><groupId>{'.'.join(group)}</groupId>"
                f"<artifactId>{name}</artifactId><version>{version}</version></project>"
            )
            Path(f"{file}.jar").write_bytes(_other_jar())
        settings = Path(os.environ["KAFKA_LIVENESS_IVY_SETTINGS"])
        settings.write_text(re.sub(r"root='[^']*'", f"root='file:{tmp_path}/m2/'", settings.read_text()))
    else:
        repository.jar = _other_jar()
    with pytest.raises(JarsError, match=r"kafka_2\.13-4\.3\.1\.jar, .* do not have the SHA-256"):
        jars.resolve_jars("kafka")
    assert jars.find_jars("kafka") is None


def test_the_release_has_the_checksum_of_each_jar():
    """Of each pyspark. The file is the SHA256SUMS of all folders of jars: ``LC_ALL=C sort -uk2``."""
    released = jars._read_checksums(jars.RELEASED)
    for name in jars.NAMES:
        folder = jars.resolve_jars(name)
        assert {jar.name for jar in folder.glob("*.jar")} <= released.keys()
    for pyspark, beside in jars.TESTED_VERSIONS.items():
        line = pyspark.rpartition(".")[0]
        assert {
            f"spark-sql-kafka-0-10_2.13-{beside['connector']}.jar",
            f"spark-avro_2.13-{beside['avro']}.jar",
            f"iceberg-spark-runtime-{line}_2.13-{beside['iceberg']}.jar",
        } <= released.keys()


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"KAFKA_LIVENESS_JARS": "/jars", "XDG_CACHE_HOME": "/cache"}, "/jars"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/kafka-liveness/jars"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/ada"}, "/ada/.cache/kafka-liveness/jars"),
        ({"HOME": "/ada"}, "/ada/.cache/kafka-liveness/jars"),
    ],
)
def test_they_are_kept_once_a_machine(monkeypatch, environment, folder):
    """Not in a state folder: each would hold 110 MB."""
    for name in ("KAFKA_LIVENESS_JARS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KAFKA_LIVENESS_HOME", "/state")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(jars.jars_folder()) == folder


def test_a_folder_that_nobody_may_write_to_is_told(monkeypatch, tmp_path):
    """With the variable that names another."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("KAFKA_LIVENESS_JARS", str(tmp_path / "file" / "jars"))
    with pytest.raises(JarsError, match="KAFKA_LIVENESS_JARS to a writable folder"):
        jars.resolve_jars("kafka")


def test_a_jar_that_is_none_is_never_taken(repository):
    """What a captive portal sends instead of a jar does not become part of the class path."""
    repository.jar = b"<html>please log in</html>"
    with pytest.raises(JarsError, match=r"damaged: .*kafka_2\.13-4\.3\.1\.jar"):
        jars.resolve_jars("kafka")
    assert jars.find_jars("kafka") is None


def test_no_network_is_an_error_with_log_and_remedy(repository, tmp_path):
    """The error says what to do and shows the end of Ivy's log; nothing is left but the log."""
    repository.shutdown()
    repository.server_close()
    with pytest.raises(
        JarsError,
        match=r"(?s)the network.*copy the folder kafka-[0-9a-f]{8} .*kafka-download\.log ends"
        r".*Connection refused",
    ):
        jars.resolve_jars("kafka")
    assert names(tmp_path / "jars") == ["kafka-download.log", "kafka.lock"]


def test_processes_that_ask_at_once_download_once(repository, monkeypatch):
    """The others wait for the first and take what it has downloaded.

    The next call starts no Ivy and asks nothing.
    """
    asking = [subprocess.Popen([sys.executable, "-c", _RESOLVE], stderr=subprocess.DEVNULL) for _ in range(3)]
    assert [one.wait(600) for one in asking] == [0, 0, 0]
    assert sum(path.endswith("kafka_2.13-4.3.1.jar") for path in repository.asked) <= 2  # HEAD and GET
    repository.asked.clear()
    monkeypatch.setattr(jars.subprocess, "Popen", pytest.fail)
    assert names(jars.resolve_jars("kafka"))
    assert repository.asked == []


def test_the_page_has_what_goes_with_each_pyspark():
    """The four versions of a line, as the embedded Spark has them."""
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| (\d\S*) \| (\d\S*) ?[^|]*\| (\d\S*) \| (\d\S*) \|$", page, re.MULTILINE)
    assert {
        line[0]: dict(zip(("connector", "iceberg", "avro"), line[1:], strict=True)) for line in lines
    } == jars.TESTED_VERSIONS


def test_the_list_of_components_has_the_group_of_each_jar():
    """Most jars have a file of Maven with it.

    An audit under another group would find nothing, and be green.
    """
    listed = {
        f"{one.purl.name}-{one.purl.version}.jar": one.purl
        for one in read_jars(JARS.read_text(encoding="utf-8"))
    }
    compared = 0
    for jar in (jar for name in jars.NAMES for jar in jars.resolve_jars(name).glob("*.jar")):
        purl = listed[jar.name]
        with zipfile.ZipFile(jar) as opened:  # a jar with others inside has a file of each
            poms = [name for name in opened.namelist() if name.endswith(f"/{purl.name}/pom.properties")]
            groups = [
                re.findall(r"^groupId=(.+?)\s*$", opened.read(pom).decode(), re.MULTILINE) for pom in poms
            ]
        assert groups in ([], [[purl.namespace]]), jar
        compared += len(groups)
    assert compared > len(listed) / 3
