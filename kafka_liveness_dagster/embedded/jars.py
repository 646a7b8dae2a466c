"""Find Java, and download the jars of the embedded services once per machine.

Never installs Java, and never continues an interrupted download. Each download starts in its own empty folder
and becomes visible by one rename. A folder of jars is therefore complete or absent.

Each jar must have the SHA-256 that this package was released with. Its source may be a repository, a mirror,
the user's local Maven repository or another machine. The file ``SHA256SUMS`` next to the jars has the format
of `sha256sum --check`.

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
    "install one (`apt-get install openjdk-17-jre-headless`, `brew install openjdk@17`), or set JAVA_HOME"
)


class _JavaInstallation(NamedTuple):
    path: Path
    version: str

    @property
    def major_version(self) -> int:
        """The major version: 17 of ``17.0.15``, 8 of ``1.8.0_392``, 0 if Java reported none."""
        numbers = [int(number) for number in re.findall(r"\d+", self.version)]
        if numbers[:1] == [1]:
            numbers = numbers[1:]
        return numbers[0] if numbers else 0


def find_java() -> Path:
    """Return the ``java`` binary itself, so that its grandparent is a ``JAVA_HOME``.

    Raises:
        JavaNotFoundError: no Java is of version 17 or newer; the message lists the versions that were found.
    """
    found = [_read_version(candidate) for candidate in _candidates()]
    for java in found:
        if java.major_version >= OLDEST_JAVA:
            return java.path
    seen = ", ".join(f"{java.path} is {java.version or 'no working Java'}" for java in found)
    raise JavaNotFoundError(
        f"Java {OLDEST_JAVA} or newer is needed; {seen or 'JAVA_HOME is unset and PATH has no java'}. Fix: "
        f"{_REMEDY}"
    )


def _candidates() -> list[Path]:
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    candidates = [Path(home) / "bin" / "java"] if home else []
    return candidates + ([Path(on_path)] if on_path else [])


def _read_version(java: Path) -> _JavaInstallation:
    """Run Java to read its version and its home.

    A ``java`` on the PATH is often a link or a version manager's script.
    """
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
"""The Ivy file of each name, with the jars to download. Tests add files under other names."""
RELEASED = _HERE / "SHA256SUMS"
"""The SHA-256 of each jar for each pyspark."""
_LAST_LINES = 15
_CHECKSUMS_FILE = "SHA256SUMS"
TESTED_VERSIONS = {
    "4.0.4": {"connector": "4.0.4", "iceberg": "1.11.0", "avro": "4.0.2"},
    "4.0.5": {"connector": "4.0.4", "iceberg": "1.11.0", "avro": "4.0.2"},
    "4.1.3": {"connector": "4.1.3", "iceberg": "1.12.0", "avro": "4.1.1"},
    "4.1.4": {"connector": "4.1.3", "iceberg": "1.12.0", "avro": "4.1.1"},
}
"""The versions that each pyspark was tested with, the last ones published.

There is no connector 4.0.5 or 4.1.4.
"""


def jars_folder() -> Path:
    """Return ``KAFKA_LIVENESS_JARS``, or ``kafka-liveness/jars`` in the user's cache.

    All state folders share this folder.
    """
    if named := os.environ.get("KAFKA_LIVENESS_JARS"):
        return Path(named).absolute()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "kafka-liveness" / "jars"


def pyspark_folder() -> Path:
    """Return the folder of the pyspark wheel, without the import, which takes half a second.

    Raises:
        JarsError: pyspark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsError("pyspark is not installed here. Fix: pip install 'pyspark[connect]'")
    return Path(spec.origin).parent


def connector_version(pyspark: str) -> str | None:
    """Return the version of the Kafka connector that this pyspark was tested with.

    None for a pyspark that was not tested.
    """
    return TESTED_VERSIONS.get(pyspark, {}).get("connector")


def check_pyspark() -> str:
    """Return the version of the installed pyspark.

    Raises:
        JarsError: the embedded Spark has no jars for this version.
    """
    found = version("pyspark")
    if found not in TESTED_VERSIONS:
        known = " or ".join(TESTED_VERSIONS)
        raise JarsError(
            f"The embedded Spark has jars for pyspark {known}, but {found} is installed. Fix: pip install "
            f"'pyspark[connect]=={max(TESTED_VERSIONS)}', or use your own Spark Connect server "
            "(SparkConnectResource(remote=…)) with the Kafka connector and the Iceberg runtime of its own "
            "version"
        )
    return found


def find_jars(name: Name) -> Path | None:
    """Return the folder of jars if each jar has its checksum; None if the jars must be downloaded.

    Reads all jars.
    """
    return _jars_folder(name, jars_folder()) if is_downloaded(name) and not find_damaged(name) else None


def is_downloaded(name: Name) -> bool:
    """Return whether a download is complete; reads no jar."""
    return bool(_downloaded_checksums(_jars_folder(name, jars_folder())))


def find_damaged(name: Name) -> list[str]:
    """Return the jars that differ from the release's, and other jars in their folder.

    All jars of the folder are on the class path. Reads all jars.
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
    """Return the folder of a service's jars; download missing or damaged jars (10-40 s, 44 and 68 MB).

    Args:
        name: the service.
        show: called with each step as text.

    Raises:
        JarsError: the download failed, and the message ends with the last lines of its log; or the folder
            is not writable.
        JavaNotFoundError: there is no Java. Ivy is a Java program.
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
        raise JarsError(
            f"The jars cannot be written to {root}. Nothing was downloaded. Fix: set KAFKA_LIVENESS_JARS to "
            "a writable folder"
        )
    with FileLock(root / f"{name}.lock"):
        return find_jars(name) or _download(name, root, show)


def ivy_settings() -> Path:
    """Return the Ivy settings: ``KAFKA_LIVENESS_IVY_SETTINGS``, or those of the public repository.

    Spark's own settings search the user's local Maven repository first, which often has half of a module.
    """
    return Path(os.environ.get("KAFKA_LIVENESS_IVY_SETTINGS") or _HERE / "ivysettings.xml").absolute()


def _downloaded_checksums(folder: Path) -> dict[str, str]:
    """Return the checksums of a download by file name; empty if the folder is not complete."""
    try:
        return _read_checksums(folder / _CHECKSUMS_FILE)
    except OSError:
        return {}


def _expected_checksums(name: str, downloaded: Mapping[str, str]) -> Mapping[str, str]:
    """Return the release's checksums; a name that tests added has only those of its download."""
    return _read_checksums(RELEASED) if name in NAMES else downloaded


def _read_checksums(file: Path) -> dict[str, str]:
    lines = (line.partition("  ") for line in file.read_text(encoding="utf-8").splitlines())
    return {jar: checksum for checksum, _, jar in lines}


def _checksum(jar: Path) -> str:
    return hashlib.sha256(jar.read_bytes()).hexdigest()


def _ivy_file(name: str) -> bytes:
    """Return the Ivy file of a name; for Spark with the versions of the installed pyspark."""
    module = MODULES[name].read_text(encoding="utf-8")
    if name == "spark":
        pyspark = check_pyspark()
        for place, found in {"spark": pyspark.rpartition(".")[0], **TESTED_VERSIONS[pyspark]}.items():
            module = module.replace(f"@{place}@", found)
    return module.encode()


def _jars_folder(name: str, root: Path) -> Path:
    """Return the folder of a name's jars. Its name has a hash of the Ivy file, so versions never mix."""
    return root / f"{name}-{hashlib.sha256(_ivy_file(name)).hexdigest()[:8]}"


def _download(name: str, root: Path, show: Callable[[str], None]) -> Path:
    folder = _jars_folder(name, root)
    log = root / f"{name}-download.log"
    with _scratch_folder(name, root) as scratch:
        failed = _run_ivy(name, scratch, log, show=show)
        found = sorted((scratch / "jars").glob("*"))  # not only .jar: tests download a server as a .zip
        broken = [jar.name for jar in found if not zipfile.is_zipfile(jar)]
        if failed or broken or not found:
            raise JarsError(_failure_message(name, broken, log))
        sums = {jar.name: _checksum(jar) for jar in found}
        wanted = _expected_checksums(name, sums)
        if others := [jar for jar, checksum in sums.items() if wanted.get(jar) != checksum]:
            raise JarsError(
                f"{', '.join(others[:3])} of the {name} jars do not have the SHA-256 that this package was "
                "released with. Nothing of the download was kept. Fix: check the mirror that "
                "KAFKA_LIVENESS_IVY_SETTINGS names, and ~/.m2/repository; one of them has other files under "
                "these names"
            )
        shutil.rmtree(folder, ignore_errors=True)
        (scratch / "jars" / _CHECKSUMS_FILE).write_text(
            "".join(f"{checksum}  {jar}\n" for jar, checksum in sums.items())
        )
        (scratch / "jars").rename(folder)
    return folder


@contextmanager
def _scratch_folder(name: str, root: Path) -> Iterator[Path]:
    """Yield an empty folder and remove it afterwards; remove the folders of killed processes first."""
    for left in root.glob(f".{name}-*"):
        shutil.rmtree(left, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run_ivy(name: str, scratch: Path, log: Path, show: Callable[[str], None]) -> bool:
    """Run Ivy and write its output to ``log``; return whether it failed."""
    show(f"downloading the {name} jars")
    (scratch / "ivy.xml").write_bytes(_ivy_file(name))
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
            f"No ivy-2*.jar is in {spark_jars}. Fix: pip install --force-reinstall 'pyspark[connect]'"
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
        f"The {name} jars could not be downloaded ({what}). Nothing of the download was kept. Fix: check the "
        "network and run the command again, or set KAFKA_LIVENESS_IVY_SETTINGS to an ivysettings.xml with a "
        f"mirror. Without a network, copy the folder {_jars_folder(name, log.parent).name} from the same "
        f"folder of another machine into {log.parent}. {log} ends with:\n{last}"
    )
