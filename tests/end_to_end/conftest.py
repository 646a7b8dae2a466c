"""The package as a new user has it.

The wheel alone, in a folder whose path has a space, and no checkout near.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig

import pytest

from tests.end_to_end.dist import OURS, UV, build

# Dagster's daemon looks at backfills twice a minute, once to start their runs and once to see that they ended
HURRY = """
import sys
if "dagster._daemon" in sys.orig_argv:
    from dagster._daemon import controller
    controller.DEFAULT_DAEMON_INTERVAL_SECONDS = 1
"""


class Installed:
    """A virtual environment with the wheel alone.

    What it needs is borrowed from ours: a download takes minutes.
    """

    def __init__(self, folder):
        venv, [wheel] = folder / ".venv", build(folder, "wheel")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        install = [
            UV,
            "pip",
            "install",
            "--no-deps",
            "--offline",
            "--quiet",
            "--python",
            venv / "bin" / "python",
        ]
        subprocess.run([*install, wheel], check=True)
        packages = venv / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
        (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
        (packages / "sitecustomize.py").write_text(HURRY)
        dagster = venv / "bin" / "dagster"
        dagster.write_text('#!/bin/sh\nexec "$(dirname "$0")/python" -m dagster "$@"\n')
        dagster.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if name not in OURS}
        path = os.pathsep.join([str(venv / "bin"), os.environ["PATH"]])
        self.env = {**kept, "PATH": path, "DAGSTER_DISABLE_TELEMETRY": "yes", "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """Commands find the package by the ``PATH`` of its ``env``."""
    return Installed(tmp_path_factory.mktemp("of a new user"))
