"""Try the package with what its metadata allows: Pythons, dependencies, Spark and brokers, row by row.

A row is a clone of the last commit with an environment of its own, in ``.kafka_liveness/versions``; both are
gone when it is done. What came out stays there: a row that passed is not tried again, so that what was
interrupted goes on.

    python -m tests.versions --write docs/versions.md
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.report import Table

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".kafka_liveness" / "versions"
UV = Path(sys.executable).parent / "uv"
PASSED = re.compile(r"^(\d+ passed|holds)$")
PACKAGES = {  # what uv is told of those that pyproject.toml allows
    "oldest": ["--resolution", "lowest-direct"],
    "newest": ["--resolution", "highest"],
    "locked": ["--requirements", "requirements.lock"],
}
OVERRIDES = {"oldest": ["pydantic==2.10"]}  # `dg`, of the development's tools alone, wants a newer one
OF_THE_SINK = ("spark_iceberg", "spark_job", "spark_session", "layouts", "refused", "decoded", "functions")
TIMELINE = ["kafka-liveness", "timeline", "--poll-interval", "6", "--stall", "18"]
CHECKS = {
    "fast tier": ["make", "fast", "ARGS=--deselect=tests/test_versions.py"],  # that one asks for all rows
    "sink": ["python", "-m", "pytest", "-q", *(f"tests/integration/test_{name}.py" for name in OF_THE_SINK)],
    "demo": ["kafka-liveness", "demo"],
    "classic": [*TIMELINE, "--protocol", "classic"],
    "KIP-848": [*TIMELINE, "--protocol", "consumer"],
}
LONGEST_SECONDS = 900
HEADING = "## Last results"
RESULTS, EXTREMES = "Each row", "What oldest and newest are"
SHOWN = ("Python", "dagster", "confluent-kafka", "pyspark", "broker")
INSTALLED = """
import json, platform, re, sys
from importlib.metadata import requires, version
requirements = [line for line in requires("kafka-liveness-dagster") if "extra ==" not in line]
names = [re.match(r"[\\w.-]+", line)[0] for line in requirements]
json.dump({"Python": platform.python_version(), **{name: version(name) for name in names}}, sys.stdout)
"""


@dataclass(frozen=True)
class Row:
    """What is put together, and what is tried with it. ``name`` is what the row is for."""

    name: str
    python: str
    packages: str
    spark: str
    broker: str
    checks: tuple[str, ...]

    @property
    def place(self) -> str:
        """Its name, as that of a file."""
        return re.sub(r"\W+", "-", self.name)

    def found(self) -> dict[str, Any] | None:
        """What came out when it was tried last."""
        file = FOLDER / f"{self.place}.json"
        return json.loads(file.read_text()) if file.exists() else None

    def keep(self, found: dict[str, Any]) -> None:
        """Write down what came out."""
        (FOLDER / f"{self.place}.json").write_text(json.dumps(found, indent=2))


ALL = tuple(CHECKS)
# Each Python, Spark and broker that is allowed stands in one of them, and the corners are tried most
ROWS = (
    Row("oldest of all", "3.10", "oldest", "4.0.4", "3.3.2", ("fast tier", "sink", "demo", "classic")),
    Row("newest of all", "3.13", "newest", "4.1.4", "4.4.0", ALL),
    Row("requirements.lock", "3.11", "locked", "4.1.3", "4.3.1", ("fast tier", "demo", "classic", "KIP-848")),
    Row("older Spark and broker", "3.12", "newest", "4.0.5", "3.9.2", ("fast tier", "demo", "classic")),
    Row(
        "newest Python, oldest packages",
        "3.13",
        "oldest",
        "4.0.4",
        "4.0.2",
        ("fast tier", "classic", "KIP-848"),
    ),
    Row(
        "oldest Python, newest packages",
        "3.10",
        "newest",
        "4.1.4",
        "4.1.2",
        ("fast tier", "classic", "KIP-848"),
    ),
    Row("Kafka 4.2", "3.11", "locked", "4.1.3", "4.2.2", ("classic", "KIP-848")),
    Row("Kafka 3.8", "3.11", "locked", "4.1.3", "3.8.1", ("classic",)),
    Row("Kafka 3.7", "3.11", "locked", "4.1.3", "3.7.2", ("classic",)),
)


class Workshop:
    """Where one row is tried: the checkout, its environment, and the log of each command."""

    def __init__(self, row: Row) -> None:
        self._row, self._folder = row, FOLDER / row.place
        commands = self._folder / ".venv" / "bin"
        self._env = os.environ | {
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(commands.parent),
            "KAFKA_LIVENESS_HOME": str(self._folder / "state"),
        }

    def build(self, python: str) -> dict[str, str]:
        """Make all of it; the versions of what the metadata names."""
        self.remove()
        subprocess.run(["git", "clone", "--quiet", ROOT, self._folder], check=True)  # noqa: S607
        broker = self._folder / "kafka_liveness_dagster" / "embedded" / "ivy-kafka.xml"
        module, found = re.subn(
            r'(name="kafka_2.13" rev=)"[^"]+"', rf'\1"{self._row.broker}"', broker.read_text()
        )
        assert found == 1
        broker.write_text(module)
        overrides = [f"pyspark[connect]=={self._row.spark}", *OVERRIDES.get(self._row.packages, ())]
        (self._folder / "overrides.txt").write_text("\n".join(overrides))
        wanted = ["--overrides", "overrides.txt", *PACKAGES[self._row.packages], "--editable", ".[dev]"]
        self._run("install", [str(UV), "venv", "--python", python, ".venv"])
        self._run("install", [str(UV), "pip", "install", *wanted])
        (self._folder / ".venv" / "installed").touch()  # make has nothing to build
        return json.loads(self._run("versions", ["python", "-c", INSTALLED])) | {"broker": self._row.broker}

    def outcome(self, check: str) -> str:
        """What came out of one check, in a word or two."""
        try:
            said = self._run(check, CHECKS[check])
        except subprocess.SubprocessError:
            return "failed"
        counted = re.findall(r"^(\d+ passed(?:, \d+ skipped)?)\b.* in [\d.]+s", said, re.MULTILINE)
        return counted[-1] if counted else "holds"

    def remove(self) -> None:
        """End its services, and give the disk its room back; the logs stay."""
        if self._folder.exists():
            with suppress(FileNotFoundError):
                subprocess.run(["kafka-liveness", "down"], env=self._env, check=False, capture_output=True)  # noqa: S607
            shutil.rmtree(self._folder)

    def _run(self, name: str, words: list[str]) -> str:
        log = FOLDER / f"{self._row.place}-{name.replace(' ', '-')}.log"
        with (
            log.open("w+") as told,
            subprocess.Popen(
                words, cwd=self._folder, env=self._env, stdout=told, stderr=subprocess.STDOUT
            ) as child,
        ):
            try:
                code = child.wait(LONGEST_SECONDS)
            except BaseException:
                child.send_signal(signal.SIGINT)  # what it started ends with it
                raise
        if code:
            raise subprocess.SubprocessError(f"exit code {code}, {log}")
        return log.read_text()


@click.command()
@click.option(
    "--only", multiple=True, type=click.Choice([row.name for row in ROWS]), help="Try this row alone."
)
@click.option("--again", is_flag=True, help="Try what passed before, too.")
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Keep the results in this page."
)
def main(only: tuple[str, ...], write: Path | None, *, again: bool) -> None:
    """Try the package as committed with each combination of versions that represents its metadata's ranges.

    What passed is not tried again: what was interrupted goes on, and what was mended is tried alone. An hour
    in all, most of it the demos; 1.5 GB of disk while a row is tried, and up to as much for each in uv's
    cache, which `uv cache clean` gives back. With pyenv, let PYENV_VERSION name a Python of each. Exit code 1
    unless all passed.

    \b
    Example:
      PYENV_VERSION=3.10.13:3.11.7:3.12.1:3.13.0 python -m tests.versions --write docs/versions.md
    """  # noqa: D301  click's own mark: do not rewrap what follows
    console = Console()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for row in ROWS:
        if row.name in (only or [row.name]) and (again or not passed(row)):
            console.print(f"[bold]{row.name}[/]: Python {row.python}, Spark {row.spark}, Kafka {row.broker}")
            try_row(row, console, again=again)
    if write is not None:
        write_into(write)
    missing = [row.name for row in ROWS if not passed(row)]
    console.print(f"not passed: {', '.join(missing)}: logs in {FOLDER}" if missing else "all passed")
    sys.exit(bool(missing))


def try_row(row: Row, console: Console, *, again: bool) -> None:
    """Build it, try its checks, keep what came out of each, and remove it."""
    python = subprocess.run([UV, "python", "find", row.python], capture_output=True, text=True, check=False)
    if python.returncode:
        console.print(f"  there is no Python {row.python} here that `uv python find` finds")
        return
    workshop, before = Workshop(row), row.found()
    try:
        versions = workshop.build(python.stdout.strip())
        outcomes = before["outcomes"] if before and before["versions"] == versions else {}
        for check in row.checks:
            if again or not PASSED.match(outcomes.get(check, "")):
                outcomes[check] = workshop.outcome(check)
                console.print(f"  {check}: {outcomes[check]}")
                row.keep(
                    {
                        "day": f"{datetime.now(timezone.utc):%Y-%m-%d}",
                        "versions": versions,
                        "outcomes": outcomes,
                    }
                )
    except subprocess.SubprocessError as error:
        console.print(f"  could not be built: {error}")
    finally:
        workshop.remove()


def passed(row: Row) -> bool:
    """Whether all its checks did, with the versions that it names today."""
    found = row.found()
    return (
        found is not None
        and (found["versions"]["pyspark"], found["versions"]["broker"]) == (row.spark, row.broker)
        and all(PASSED.match(found["outcomes"].get(check, "")) for check in row.checks)
    )


def write_into(page: Path) -> None:
    """Write the rows, and what oldest and newest are, behind the page's last heading."""
    results = Table(RESULTS, ("", *SHOWN, *CHECKS, "day"))
    versions: dict[str, dict[str, str]] = {}
    for row in ROWS:
        found = row.found() or {"versions": {}, "outcomes": {}, "day": ""}
        named = {"Python": row.python, "pyspark": row.spark, "broker": row.broker}
        versions[row.name] = {**named, **found["versions"]}
        outcomes = dict.fromkeys(row.checks, "not yet") | found["outcomes"]
        told = [versions[row.name].get(name, "") for name in SHOWN]
        results.add(
            row.name, *told, *(outcomes.get(check, "").partition(":")[0] for check in CHECKS), found["day"]
        )
    oldest, newest = (versions[row.name] for row in ROWS[:2])
    others = Table(EXTREMES, ("", "oldest", "newest"))
    for name in newest:
        others.add(name, oldest.get(name, ""), newest[name])
    kept, _, _ = page.read_text().partition(HEADING)
    page.write_text(f"{kept}{HEADING}\n\n{results.markdown}\n{others.markdown.rstrip()}\n")


if __name__ == "__main__":
    main()
