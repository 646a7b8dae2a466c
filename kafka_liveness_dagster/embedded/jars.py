"""Where are the jars of the embedded services? Downloaded once, by the Ivy that the pyspark wheel ships.

Never continues a download that was cut off: each starts in an empty folder of its own and becomes visible by one
rename, so that a folder of jars is complete or absent.

``KAFKA_LIVENESS_IVY_SETTINGS`` may name an ``ivysettings.xml`` that points to a mirror.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from filelock import FileLock

from kafka_liveness_dagster.embedded.errors import JarsError
from kafka_liveness_dagster.embedded.java import find_java
from kafka_liveness_dagster.embedded.state import home_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Name = Literal["kafka", "spark"]
NAMES: tuple[Name, ...] = get_args(Name)
_HERE = Path(__file__).parent
_LAST_LINES = 15


def jars_folder(home: Path | None = None) -> Path:
    """``KAFKA_LIVENESS_JARS``, or ``jars`` in the state folder."""
    named = os.environ.get("KAFKA_LIVENESS_JARS")
    return Path(named).absolute() if named else home_folder(home) / "jars"


def pyspark_folder() -> Path:
    """Where the pyspark wheel is; does not import it, which takes half a second."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsError("pyspark is not installed here: pip install 'pyspark[connect]'")
    return Path(spec.origin).parent


def resolved(name: Name, home: Path | None = None) -> Path | None:
    """The folder of jars when it is complete, and every jar in it readable; None when it has to be downloaded."""
    folder = _folder(name, jars_folder(home))
    jars = list(folder.glob("*.jar"))
    return folder if jars and all(map(zipfile.is_zipfile, jars)) else None


def resolve(
    name: Name,
    *,
    home: Path | None = None,
    show: Callable[[str], None] = lambda _: None,
) -> Path:
    """The folder of jars of a service, downloaded when it is not there or damaged (10-40 s, 44 and 68 MB).

    Args:
        name: whose jars.
        home: the state folder, when it is not the default one.
        show: told what is being done.

    Raises:
        JarsError: the download failed; the message ends with the last lines of its log.
        JavaNotFoundError: Ivy is a Java program.
    """
    if folder := resolved(name, home):
        return folder
    root = jars_folder(home)
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f"{name}.lock"):
        return resolved(name, home) or _download(name, root, show)


def _folder(name: str, root: Path) -> Path:
    """Named after what is asked for, so that other versions are another folder."""
    wanted = hashlib.sha256((_HERE / f"ivy-{name}.xml").read_bytes()).hexdigest()
    return root / f"{name}-{wanted[:8]}"


def _download(name: str, root: Path, show: Callable[[str], None]) -> Path:
    folder, log = _folder(name, root), root / f"{name}-download.log"
    with _scratch(name, root) as scratch:
        failed = _run_ivy(name, scratch, log, show)
        damaged = [jar.name for jar in (scratch / "jars").glob("*.jar") if not zipfile.is_zipfile(jar)]
        if failed or damaged or not (scratch / "jars").is_dir():
            raise JarsError(_why(name, damaged, log))
        shutil.rmtree(folder, ignore_errors=True)
        (scratch / "jars").rename(folder)
    return folder


@contextmanager
def _scratch(name: str, root: Path) -> Iterator[Path]:
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
    with (
        log.open("w") as lines,
        subprocess.Popen(
            _ivy_command(name, scratch),
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


def _ivy_command(name: str, scratch: Path) -> list[str]:
    spark_jars = pyspark_folder() / "jars"
    ivy = next(iter(spark_jars.glob("ivy-2*.jar")), None)
    if ivy is None:
        raise JarsError(f"there is no ivy-2*.jar in {spark_jars}: pip install --force-reinstall 'pyspark[connect]'")
    settings = os.environ.get("KAFKA_LIVENESS_IVY_SETTINGS")
    return [
        str(find_java()), "-cp", str(ivy), "org.apache.ivy.Main",
        *(["-settings", settings] if settings else []),
        "-ivy", str(_HERE / f"ivy-{name}.xml"),
        "-cache", str(scratch / "cache"),
        "-retrieve", str(scratch / "jars" / "[artifact]-[revision](-[classifier]).[ext]"),
    ]  # fmt: skip


def _why(name: str, damaged: list[str], log: Path) -> str:
    what = f"damaged: {', '.join(damaged)}" if damaged else "Ivy failed"
    last = "".join(log.read_text(errors="replace").splitlines(keepends=True)[-_LAST_LINES:])
    return (
        f"the {name} jars could not be downloaded ({what}): check the network and run the command again, or let "
        f"KAFKA_LIVENESS_IVY_SETTINGS name an ivysettings.xml with a mirror. {log} ends with:\n{last}"
    )
