"""Find Java, and download the jars of the embedded services once a machine.

Never installs Java.

Never continues a download that was cut off: each starts in an empty folder of its own and becomes visible by
one rename, so that a folder of jars is complete or absent. Each jar must have the SHA-256 that this package
was released with, wherever it came from: a repository, a mirror, the user's local Maven repository, another
machine. ``SHA256SUMS`` beside the jars is what `sha256sum --check` reads.

``KAFKA_LIVENESS_IVY_SETTINGS`` may name an ``ivysettings.xml`` that points to a mirror.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from filelock import FileLock

from kafka_liveness_dagster.embedded.state import JarsError, JavaNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


OLDEST_JAVA = 17
_REMEDY = (
    "install one (`apt-get install openjdk-17-jre-headless`, `brew install openjdk@17`) or set JAVA_HOME"
)


class _JavaInstallation(NamedTuple):
    path: Path
    version: str

    @property
    def major_version(self) -> int:
        """17 of ``17.0.15``, 8 of ``1.8.0_392``, 0 when it did not say."""
        numbers = [int(number) for number in re.findall(r"\d+", self.version)]
        if numbers[:1] == [1]:
            numbers = numbers[1:]
        return numbers[0] if numbers else 0


def find_java() -> Path:
    """The ``java`` binary itself, so that its grandparent is a ``JAVA_HOME``.

    Raises:
        JavaNotFoundError: there is none, or none of 17 or newer; says what was found where.
    """
    found = [_read_version(candidate) for candidate in _candidates()]
    for java in found:
        if java.major_version >= OLDEST_JAVA:
            return java.path
    seen = ", ".join(f"{java.path} is {java.version or 'no working Java'}" for java in found)
    raise JavaNotFoundError(
        f"Java {OLDEST_JAVA} or newer is needed; {seen or 'JAVA_HOME is unset and PATH has no java'}: "
        f"{_REMEDY}"
    )


def _candidates() -> list[Path]:
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    candidates = [Path(home) / "bin" / "java"] if home else []
    return candidates + ([Path(on_path)] if on_path else [])


def _read_version(java: Path) -> _JavaInstallation:
    """Ask Java itself: a ``java`` on the PATH is often a link or a version manager's script."""
    try:
        asked = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return _JavaInstallation(java, "")
    output = asked.stdout + asked.stderr
    version = re.search(r'java\.version = (\S+)|version "([^"]+)"', output)
    home = re.search(r"java\.home = (.+)", output)
    binary = Path(home[1].strip()) / "bin" / "java" if home else java
    return _JavaInstallation(
        binary if binary.exists() else java, (version[1] or version[2]) if version else ""
    )


Name = Literal["kafka", "spark"]
NAMES: tuple[Name, ...] = get_args(Name)
_HERE = Path(__file__).parent
MODULES: dict[str, Path] = {name: _HERE / f"ivy-{name}.xml" for name in NAMES}
"""What Ivy is to bring for each name; those who develop this package keep jars of theirs by another name."""
RELEASED = _HERE / "SHA256SUMS"
"""The SHA-256 of each jar for each pyspark."""
_LAST_LINES = 15
_CHECKSUMS_FILE = "SHA256SUMS"
PROVIDED_BY_SPARK = {
    "4.0.4": {"connector": "4.0.4", "iceberg": "1.11.0", "avro": "4.0.2"},
    "4.0.5": {"connector": "4.0.4", "iceberg": "1.11.0", "avro": "4.0.2"},
    "4.1.3": {"connector": "4.1.3", "iceberg": "1.12.0", "avro": "4.1.1"},
    "4.1.4": {"connector": "4.1.3", "iceberg": "1.12.0", "avro": "4.1.1"},
}
"""What each pyspark was run with, the last that were published: there is no connector 4.0.5 or 4.1.4."""


def jars_folder() -> Path:
    """``KAFKA_LIVENESS_JARS``, or ``kafka-liveness/jars`` in the user's cache: one for all state folders."""
    if named := os.environ.get("KAFKA_LIVENESS_JARS"):
        return Path(named).absolute()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "kafka-liveness" / "jars"


def pyspark_folder() -> Path:
    """Where the pyspark wheel is; does not import it, which takes half a second."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsError("pyspark is not installed here: pip install 'pyspark[connect]'")
    return Path(spec.origin).parent


def connector_version(pyspark: str) -> str | None:
    """The version of the Kafka connector that this pyspark was run with.

    None for a pyspark that was not run.
    """
    return PROVIDED_BY_SPARK.get(pyspark, {}).get("connector")


def check_pyspark() -> str:
    """The version of pyspark here, one that the embedded Spark has jars for.

    Raises:
        JarsError: it is none of these.
    """
    found = version("pyspark")
    if found not in PROVIDED_BY_SPARK:
        known = " or ".join(PROVIDED_BY_SPARK)
        raise JarsError(
            f"the embedded Spark is made for pyspark {known}, and here is {found}: pip install "
            f"'pyspark[connect]=={max(PROVIDED_BY_SPARK)}', or use your own Spark Connect server "
            "(SparkConnectResource("
            "remote=…)) with the Kafka connector and the Iceberg runtime of its own version"
        )
    return found


def find_jars(name: Name) -> Path | None:
    """The folder of jars when each has its checksum; None when it has to be downloaded. Reads all of them."""
    return _jars_folder(name, jars_folder()) if is_downloaded(name) and not find_damaged(name) else None


def is_downloaded(name: Name) -> bool:
    """Whether a download has ended; reads no jar."""
    return bool(_downloaded_checksums(_jars_folder(name, jars_folder())))


def find_damaged(name: Name) -> list[str]:
    """The jars that are not those of the release, and what else is on the class path with them.

    Reads all of them.
    """
    folder = _jars_folder(name, jars_folder())
    downloaded = _downloaded_checksums(folder)
    wanted = _expected_checksums(name, downloaded)
    changed = [
        jar
        for jar in downloaded
        if not (folder / jar).is_file() or _checksum(folder / jar) != wanted.get(jar)
    ]
    return changed + sorted(jar.name for jar in folder.glob("*.jar") if jar.name not in downloaded)


def resolve_jars(name: Name, *, show: Callable[[str], None] = lambda _: None) -> Path:
    """The folder of jars of a service, downloaded when it is not there or damaged (10-40 s, 44 and 68 MB).

    Args:
        name: whose jars.
        show: told what is being done.

    Raises:
        JarsError: the download failed, or there is no place for it; the message ends with the last lines of
            its log.
        JavaNotFoundError: Ivy is a Java program.
    """
    if folder := find_jars(name):
        return folder
    root = jars_folder()
    try:
        root.mkdir(parents=True, exist_ok=True)
        is_ours = os.access(root, os.W_OK)
    except OSError:
        is_ours = False
    if not is_ours:
        raise JarsError(f"the jars cannot be kept in {root}: let KAFKA_LIVENESS_JARS name your own folder")
    with FileLock(root / f"{name}.lock"):
        return find_jars(name) or _download(name, root, show)


def ivy_settings() -> Path:
    """Where jars come from: what ``KAFKA_LIVENESS_IVY_SETTINGS`` names, or the public repository.

    Spark's own settings ask the user's local Maven repository first, which often has half of a module.
    """
    return Path(os.environ.get("KAFKA_LIVENESS_IVY_SETTINGS") or _HERE / "ivysettings.xml").absolute()


def _downloaded_checksums(folder: Path) -> dict[str, str]:
    """File name to checksum, as they were downloaded; none when the folder is not complete."""
    try:
        return _read_lines(folder / _CHECKSUMS_FILE)
    except OSError:
        return {}


def _expected_checksums(name: str, downloaded: Mapping[str, str]) -> Mapping[str, str]:
    """Those of the release; jars of those who develop this package have only those of their download."""
    return _read_lines(RELEASED) if name in NAMES else downloaded


def _read_lines(file: Path) -> dict[str, str]:
    lines = (line.partition("  ") for line in file.read_text(encoding="utf-8").splitlines())
    return {jar: checksum for checksum, _, jar in lines}


def _checksum(jar: Path) -> str:
    return hashlib.sha256(jar.read_bytes()).hexdigest()


def _coordinates(name: str) -> bytes:
    """What Ivy is to bring; of Spark's, what belongs to the pyspark that is here."""
    module = MODULES[name].read_text(encoding="utf-8")
    if name == "spark":
        pyspark = check_pyspark()
        for place, found in {"spark": pyspark.rpartition(".")[0], **PROVIDED_BY_SPARK[pyspark]}.items():
            module = module.replace(f"@{place}@", found)
    return module.encode()


def _jars_folder(name: str, root: Path) -> Path:
    """Named after what is asked for, so that other versions are another folder."""
    return root / f"{name}-{hashlib.sha256(_coordinates(name)).hexdigest()[:8]}"


def _download(name: str, root: Path, show: Callable[[str], None]) -> Path:
    folder = _jars_folder(name, root)
    log = root / f"{name}-download.log"
    with _scratch_folder(name, root) as scratch:
        failed = _run_ivy(name, scratch, log, show=show)
        found = sorted((scratch / "jars").glob("*"))  # tests have a server that comes as a .zip
        broken = [jar.name for jar in found if not zipfile.is_zipfile(jar)]
        if failed or broken or not found:
            raise JarsError(_failure_message(name, broken, log))
        sums = {jar.name: _checksum(jar) for jar in found}
        wanted = _expected_checksums(name, sums)
        if others := [jar for jar, checksum in sums.items() if wanted.get(jar) != checksum]:
            raise JarsError(
                f"{', '.join(others[:3])} of the {name} jars do not have the SHA-256 that this package was "
                "released with. Nothing of the download was kept. Fix: look at the mirror that "
                "KAFKA_LIVENESS_IVY_SETTINGS names, and at ~/.m2/repository; one of them has other files "
                "under these names"
            )
        shutil.rmtree(folder, ignore_errors=True)
        (scratch / "jars" / _CHECKSUMS_FILE).write_text(
            "".join(f"{checksum}  {jar}\n" for jar, checksum in sums.items())
        )
        (scratch / "jars").rename(folder)
    return folder


@contextmanager
def _scratch_folder(name: str, root: Path) -> Iterator[Path]:
    """An empty folder, gone afterwards; those of processes that were killed go first."""
    for left in root.glob(f".{name}-*"):
        shutil.rmtree(left, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run_ivy(name: str, scratch: Path, log: Path, show: Callable[[str], None]) -> bool:
    """Whether Ivy failed; its words are in ``log``."""
    show(f"downloading the {name} jars")
    (scratch / "ivy.xml").write_bytes(_coordinates(name))
    with (
        log.open("w") as lines,
        subprocess.Popen(
            _ivy_command(scratch),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as ivy,
    ):
        try:
            done = 0
            for line in ivy.stdout or ():
                lines.write(line)
                done += "[SUCCESSFUL ]" in line
                show(f"downloading the {name} jars ({done} so far)")
            return ivy.wait() != 0
        finally:
            ivy.kill()


def _ivy_command(scratch: Path) -> list[str]:
    spark_jars = pyspark_folder() / "jars"
    ivy = next(iter(spark_jars.glob("ivy-2*.jar")), None)
    if ivy is None:
        raise JarsError(
            f"there is no ivy-2*.jar in {spark_jars}: pip install --force-reinstall 'pyspark[connect]'"
        )
    return [
        str(find_java()), "-cp", str(ivy), "org.apache.ivy.Main",
        "-settings", str(ivy_settings()),
        "-ivy", str(scratch / "ivy.xml"),
        "-cache", str(scratch / "cache"),
        "-retrieve", str(scratch / "jars" / "[artifact]-[revision](-[classifier]).[ext]"),
    ]  # fmt: skip


def _failure_message(name: str, damaged: list[str], log: Path) -> str:
    what = f"damaged: {', '.join(damaged)}" if damaged else "Ivy failed"
    last = "".join(log.read_text(errors="replace").splitlines(keepends=True)[-_LAST_LINES:])
    return (
        f"the {name} jars could not be downloaded ({what}): check the network and run the command again, or "
        "let KAFKA_LIVENESS_IVY_SETTINGS name an ivysettings.xml with a mirror. Without a network copy the "
        f"folder {_jars_folder(name, log.parent).name} from the same place of a machine that has one into "
        f"{log.parent}. {log} ends with:\n{last}"
    )
