"""The Makefile's own words, in a folder whose path has a space; what it calls is recorded, not run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = '#!/bin/sh\necho "$(basename "$0") $*" >> called\necho "$DAGSTER_HOME" > home\n'


def test_the_ui_opens_in_a_folder_with_a_space(tmp_path):
    """Dagster's home is one folder, in the checkout, with the example's settings; nothing is made beside it."""
    checkout = tmp_path / "a new user's Project"
    commands = checkout / ".venv" / "bin"
    commands.mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, checkout / name)
    (checkout / "definitions").mkdir()
    shutil.copy(ROOT / "definitions" / "dagster.yaml", checkout / "definitions")
    for name in ("python", "dagster", "kafka-liveness"):
        (commands / name).write_text(RECORD)
        (commands / name).chmod(0o755)
    (checkout / ".venv" / "installed").touch()
    before = {path.name for path in checkout.iterdir()}
    made = subprocess.run([shutil.which("make"), "ui"], cwd=checkout, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert (checkout / "called").read_text().splitlines() == [
        "kafka-liveness up",
        "python -m definitions.feed --seconds 5",
        "dagster dev -w workspace.yaml",
        "kafka-liveness down",
    ]
    home = checkout / ".kafka_liveness" / "dagster"
    assert (home / "dagster.yaml").read_text() == (ROOT / "definitions" / "dagster.yaml").read_text()
    assert {path.name for path in checkout.iterdir()} - before == {"called", "home", ".kafka_liveness"}
    assert (tmp_path / checkout.name).samefile(checkout)
    assert [path.name for path in tmp_path.iterdir()] == [checkout.name]
