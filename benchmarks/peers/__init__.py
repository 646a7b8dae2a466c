"""Provide the jars and the Java processes of Flink and Kafka Connect, the peers of some benchmarks.

Never trusts a jar: each has the SHA-256 of the file ``SHA256SUMS`` in this folder.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kafka_liveness_dagster.embedded import jars

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE = Path(__file__).parent
CHECKSUMS = HERE / "SHA256SUMS"
_HADOOP = ("hadoop-client-api", "hadoop-client-runtime", "jcl-over-slf4j")
_END_SECONDS = 10
_FIRST_RECORDS_PER_MS = 1_000
_GREATEST_CHANGE = 3
_SHORTEST_MS = 20
# As the embedded Spark has
_MEMORY = ("-Xmx1g", "-XX:+UseParallelGC")


class Pace:
    """The interval of a peer that commits by time, tuned until its commits have about the wanted records.

    Attributes:
        interval_ms: the interval of the next run.

    >>> pace = Pace(500_000, tuned_runs=1)
    >>> pace.tune(records=4_000_000, commits=4)
    >>> pace.tune(records=4_000_000, commits=16)
    >>> pace.interval_ms
    250
    """

    def __init__(self, batch: int, tuned_runs: int) -> None:
        self._batch, self._left = batch, tuned_runs
        self.interval_ms = batch // _FIRST_RECORDS_PER_MS

    def tune(self, records: int, commits: int) -> None:
        """Adjust the interval to the commits that a run made; not after the last of the runs to tune."""
        if self._left <= 0:
            return
        self._left -= 1
        change = self._batch * max(commits, 1) / records
        change = min(max(change, 1 / _GREATEST_CHANGE), _GREATEST_CHANGE)
        self.interval_ms = max(round(self.interval_ms * change), _SHORTEST_MS)


@cache
def class_path(name: str, *, of_spark: tuple[str, ...] = ()) -> str:
    """Return the class path of a peer, whose jars are downloaded at first use and checked once a process.

    Args:
        name: ``flink`` or ``connect``.
        of_spark: the names of further jars from the pyspark wheel, which has Hadoop's client, too.

    Raises:
        RuntimeError: a jar has another SHA-256 than the one in ``SHA256SUMS``.
    """
    jars.MODULES.setdefault(name, HERE / f"ivy-{name}.xml")
    folder = jars.resolve_jars(cast("jars.Name", name))
    wanted = set(CHECKSUMS.read_text(encoding="utf-8").splitlines())
    found = (f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}" for jar in folder.glob("*.jar"))
    if others := sorted(set(found) - wanted):
        raise RuntimeError(
            f"{len(others)} jars of {name} in {folder} do not have their SHA-256 of {CHECKSUMS.name}: "
            f"{others[0]}. Nothing was started. Fix: remove the folder"
        )
    wheel = jars.pyspark_folder() / "jars"
    theirs = [str(jar) for name in (*_HADOOP, *of_spark) for jar in wheel.glob(f"{name}-[0-9]*.jar")]
    return ":".join([f"{folder}/*", *theirs])


def compiled(source: Path, path: str) -> Path:
    """Return the folder with the classes of a Java file, compiled at first use.

    Raises:
        RuntimeError: there is no ``javac``, or it failed.
    """
    name = hashlib.sha256(source.read_bytes() + path.encode()).hexdigest()[:8]
    folder = jars.jars_folder().parent / "peers" / f"{source.stem}-{name}"
    if (folder / f"{source.stem}.class").exists():
        return folder
    javac = jars.find_java().with_name("javac")
    if not javac.exists():
        raise RuntimeError(f"{javac} is missing. Fix: install a JDK, or use --no-peers")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as scratch:
        command = [str(javac), "-d", f"{scratch}/classes", "-cp", path, str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{source.name} was not compiled:\n{done.stderr[-2000:]}")
        Path(scratch, "classes").rename(folder)  # complete or absent
    return folder


@contextmanager
def java(
    options: Sequence[str], arguments: Sequence[str], folder: Path, log: Path
) -> Iterator[subprocess.Popen[str]]:
    """Run a Java process with pipes to and from it, which ends with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(jars.find_java()), *_MEMORY, f"-Djava.io.tmpdir={folder}", *options, *arguments]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command, cwd=folder, start_new_session=True, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
