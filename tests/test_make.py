"""The Makefile's own words, in a folder whose path has a space; what it calls is recorded, not run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests import certify

ROOT = Path(__file__).parents[1]
RECORD = '#!/bin/sh\necho "$(basename "$0") $*" >> called\necho "$DAGSTER_HOME" > home\n'
GATE = "python -m pytest -n 5 --max-worker-restart=0 --dist loadfile --no-loadscope-reorder -m not certify"
WHOLE = [
    "python -m pytest -q -n 2 tests/core --cov --cov-report=term-missing:skip-covered --cov-fail-under=100",
    f"{GATE} --ignore=tests/core",
]


@pytest.fixture
def checkout(tmp_path):
    """A checkout whose environment is there, and whose commands only say that they were called."""
    folder = tmp_path / "a new user's Project"
    commands = folder / ".venv" / "bin"
    commands.mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "definitions").mkdir()
    shutil.copy(ROOT / "definitions" / "dagster.yaml", folder / "definitions")
    for name in ("python", "dagster", "kafka-liveness", "ruff", "mypy"):
        (commands / name).write_text(RECORD)
        (commands / name).chmod(0o755)
    (folder / ".venv" / "installed").touch()
    return folder


def called(checkout, *words):
    """What ``make`` calls, line by line; a ``make`` that these tests are run by has no say in it."""
    typed, theirs = (
        [shutil.which("make"), *words],
        ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "ARGS"),
    )
    env = {name: value for name, value in os.environ.items() if name not in theirs}
    made = subprocess.run(typed, cwd=checkout, capture_output=True, text=True, check=False, env=env)
    assert made.returncode == 0, made.stderr
    return (checkout / "called").read_text().splitlines()


def test_the_ui_opens_in_a_folder_with_a_space(checkout, tmp_path):
    """Dagster's home is one folder, in the checkout, with the example's settings.

    Nothing is made beside it.
    """
    before = {path.name for path in checkout.iterdir()}
    assert called(checkout, "ui") == [
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


def test_the_gate_requires_all_branches_of_the_core(checkout):
    """The core's own tests run under coverage, all others without its tracer, which slows what it traces."""
    assert called(checkout, "test") == WHOLE


@pytest.mark.parametrize(
    "some", ["tests/core/test_batch_planning.py", "-k x", '-k "fairness or turns"', "-m certify"]
)
def test_some_tests_are_held_to_no_coverage(checkout, some):
    """A run of one file covers one file; a second ``-m`` replaces the first."""
    [line] = called(checkout, "test", f"ARGS={some}")
    assert line == f"{GATE} {some.replace(chr(34), '')}"


def test_certify_runs_its_parts(checkout):
    """All of them, or those that are named."""
    assert called(checkout, "certify") == ["python -m tests.certify"]
    assert called(checkout, "certify", "PARTS=tests chaos")[-1] == "python -m tests.certify tests chaos"


def test_certify_runs_every_part_although_one_fails(capfd):
    """Its last lines say which failed; a name that is not a part is refused."""
    parts = [certify.Part("bad", ("no_such_module_of_python",)), certify.Part("good", ("this",))]
    assert certify.certify(parts) == 1
    *_, bad, good, total = capfd.readouterr().out.splitlines()
    assert re.match(r"bad +FAILED, exit code 1 ", bad)
    assert re.match(r"good +passed ", good)
    assert total == "1 passed, 1 failed"
    known = {part.name for part in certify.PARTS}
    assert known >= {"tests", "histories", "mutants", "chaos", "versions"}
    for part in certify.PARTS:
        assert find_spec(part.command[0]) is not None


def test_the_fast_ones_need_no_java(checkout):
    """The core's, the client's without a broker, those beside them, and the doctests; each name is there."""
    (checkout / "README.md").touch()
    [line] = called(checkout, "fast", "ARGS=-x")
    words = line.split()
    assert (
        " ".join(words[:12])
        == "python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m not certify"
    )
    assert words[12:] == [
        "tests/core",
        "tests/client",
        "tests/test_*.py",
        "kafka_liveness_dagster",
        "README.md",
        "docs/*.md",
        "-x",
    ]
    assert [word for word in words[12:-1] if not list(ROOT.glob(word))] == []


def test_without_uv_pip_installs_exactly_the_lock(checkout):
    """The lock is complete.

    With dependencies, pip refuses it: a dependency with an extra is not pinned for pip.
    """
    commands = checkout / ".venv" / "bin"
    (checkout / ".venv" / "installed").unlink()
    for name, end in (("pip", ""), ("uv", "exit 1\n")):
        (commands / name).write_text(RECORD + end)
        (commands / name).chmod(0o755)
    words = called(checkout, ".venv/installed", "PYTHON=.venv/bin/python")
    install = "pip install --quiet --disable-pip-version-check"
    assert [line for line in words if line.startswith("pip")] == [
        f"{install} --require-hashes -r .venv/uv.lock",
        f"{install} --no-deps --require-hashes -r requirements.lock",
        f"{install} --no-deps -e .",
    ]


def test_components_are_listed_and_audited(checkout):
    """The list goes where the site of the docs goes, which git ignores."""
    assert called(checkout, "sbom") == ["python -m supply_chain.sbom build/sbom.cdx.json"]
    assert called(checkout, "audit")[-1] == "python -m supply_chain.audit"


def test_a_pull_request_is_checked_by_the_same_lines(checkout):
    """The workflow calls ``.ci/run``, which is lint and the whole test.

    The Pythons that it tries are claimed.
    """
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text())["jobs"]
    assert [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step] == [
        ".ci/run",
        "make fast",
    ]
    made = re.findall(r"^make (\w+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert made == ["lint", "test"]
    lint = ["ruff check", "ruff format --check", "mypy", "python -m website.prose"]
    assert [line.strip() for line in called(checkout, "check")] == [*lint, *WHOLE]
    [whole] = re.findall(r"python:([\d.]+)-", jobs["check"]["container"])
    claimed = re.findall(
        r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text()
    )
    assert sorted([whole, *jobs["fast"]["strategy"]["matrix"]["python"]]) == sorted(claimed)


def test_help_tells_every_command():
    """Each target that a person types has its words, and is known as no file."""
    makefile = (ROOT / "Makefile").read_text()
    told = re.findall(r"^([a-z]+):.*## ", makefile, re.MULTILINE)
    [phony] = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert set(phony.split()) == {*told, "java", "chromium", "prometheus", "systemd-analyze", "postgresql"}
    assert set(told) >= {"demo", "fast", "test", "certify", "dist"}
