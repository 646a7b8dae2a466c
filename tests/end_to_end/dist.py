"""Check that wheel and sdist are whole: build each as it is released, install it alone, and try it.

``python -m tests.end_to_end.dist dist`` is ``make dist``. The environment is empty at first. Dependencies
come from the package index, at the versions of requirements.lock: a dependency that is not declared is
missing here, however many tests have found it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = shutil.which("uv", path=Path(sys.executable).parent)
OURS = (
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "DAGSTER_HOME",
    "KAFKA_LIVENESS_HOME",
    "KAFKA_BOOTSTRAP_SERVERS",
)
IN_THE_WHEEL = {"py.typed", "embedded/ivy-kafka.xml", "embedded/ivy-spark.xml", "embedded/ivysettings.xml",
                "example/workspace.yaml", "example/definitions/orders.py"}  # fmt: skip
IN_THE_SDIST = {"README.md", "LICENSE", "CHANGELOG.md", "DESIGN.md", "CONTRIBUTING.md", "requirements.lock",
                "docs/errors.md", "docs/examples/orders.py", "benchmarks/RESULTS.md", "Makefile"}  # fmt: skip
PUBLIC = """
import kafka_liveness_dagster as kl
print(kl.__version__, len([getattr(kl, name) for name in kl.__all__]), "public names", kl.__file__)
"""


def ran(*words, **options):
    """What a command prints; it has to end well, and its errors are shown."""
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def build(folder, *kinds, source=ROOT):
    """Build these kinds, "wheel" or "sdist", with the backend that requirements.lock has; no network.

    Their paths.
    """
    asked = [f"--{kind}" for kind in kinds]
    offline = ["--no-build-isolation", "--offline", "--quiet", "--python", sys.executable]
    ran(UV, "build", *asked, *offline, "--out-dir", folder, source)
    found = {"wheel": Path(folder).glob("*.whl"), "sdist": Path(folder).glob("*.tar.gz")}
    return [path for kind in kinds for path in found[kind]]


def contents(wheel):
    """Every file of a wheel, by its name."""
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def look_into(wheel, sdist, scratch):
    """What has to be in them is; and the sdist gives the wheel that the checkout gives, file by file."""
    held = contents(wheel)
    assert {f"kafka_liveness_dagster/{name}" for name in IN_THE_WHEEL} <= set(held)
    with tarfile.open(sdist) as opened:
        inside = {name.partition("/")[2] for name in opened.getnames()}
    assert inside >= IN_THE_SDIST
    [again] = build(scratch, "wheel", source=sdist)
    assert contents(again) == held


def tried(file, folder):
    """Install it alone, and use it in a folder where no checkout is near."""
    env = {name: value for name, value in os.environ.items() if name not in OURS}
    venv = folder / "an environment"
    ran(UV, "venv", "--quiet", "--python", sys.executable, venv)
    locked = ["--constraint", ROOT / "requirements.lock", "--build-constraint", ROOT / "requirements.lock"]
    ran(UV, "pip", "install", "--quiet", "--python", venv, *locked, file, env=env)
    command = venv / "bin" / "kafka-liveness"
    env["KAFKA_LIVENESS_HOME"] = str(folder / "state")
    told = ran(venv / "bin" / "python", "-I", "-c", PUBLIC, cwd=folder, env=env)
    assert str(venv) in told, told
    assert "Commands:" in ran(command, "--help", cwd=folder, env=env)
    try:
        ran(command, "up", cwd=folder, env=env)
        told += ran(command, "doctor", cwd=folder, env=env)
    finally:
        ran(command, "down", cwd=folder, env=env)
    return told


def main(folder):
    """Build both into the folder, in place of what it has; look into them; try them."""
    for old in [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]:
        old.unlink()
    files = build(folder, "wheel", "sdist")
    with tempfile.TemporaryDirectory(prefix="kafka-liveness-dist-") as scratch:
        look_into(*files, Path(scratch) / "again")
        for file in files:
            own = Path(scratch) / file.name
            own.mkdir()
            print(f"{file.name}: {file.stat().st_size:,} bytes\n{tried(file, own)}")  # noqa: T201 - a command


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
