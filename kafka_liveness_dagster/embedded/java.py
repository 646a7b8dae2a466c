"""Which Java runs the embedded services? ``JAVA_HOME`` first, then ``PATH``; the first that is new enough.

Never installs one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from kafka_liveness_dagster.embedded.errors import JavaNotFoundError

OLDEST_JAVA = 17
_REMEDY = "install one (`apt-get install openjdk-17-jre-headless`, `brew install openjdk@17`) or set JAVA_HOME"


class _Java(NamedTuple):
    path: Path
    version: str

    @property
    def major(self) -> int:
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
    found = [_ask(candidate) for candidate in _candidates()]
    for java in found:
        if java.major >= OLDEST_JAVA:
            return java.path
    seen = ", ".join(f"{java.path} is {java.version or 'no working Java'}" for java in found)
    raise JavaNotFoundError(
        f"Java {OLDEST_JAVA} or newer is needed; {seen or 'JAVA_HOME is unset and PATH has no java'}: {_REMEDY}"
    )


def _candidates() -> list[Path]:
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    candidates = [Path(home) / "bin" / "java"] if home else []
    return candidates + ([Path(on_path)] if on_path else [])


def _ask(java: Path) -> _Java:
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
        return _Java(java, "")
    output = asked.stdout + asked.stderr
    version = re.search(r'java\.version = (\S+)|version "([^"]+)"', output)
    home = re.search(r"java\.home = (.+)", output)
    binary = Path(home[1].strip()) / "bin" / "java" if home else java
    return _Java(binary if binary.exists() else java, (version[1] or version[2]) if version else "")
