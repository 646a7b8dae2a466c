"""Run what takes longer than the gate may: ``make certify``, or ``make certify PARTS="tests chaos"``.

Each part runs even if one before it failed. The last lines are a table of all parts; the exit code is 1 if
one failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PYTEST = ("pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "-q")
_HISTORIES = ("tests/simulation/test_first_half.py", "tests/simulation/test_second_half.py")


@dataclass(frozen=True)
class Part:
    """One command, run as ``python -m``."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


PARTS = (
    Part("tests", (*_PYTEST, "-m", "certify")),
    Part("histories", (*_PYTEST, *_HISTORIES), {"SIMULATION_SEEDS": "0-100000"}),
    Part("mutants", ("tests.mutants",)),
    Part("chaos", ("tests.chaos", "--seed", "8", "--minutes", "10")),
    Part("chaos-848", ("tests.chaos", "--seed", "7", "--minutes", "10")),
    Part("versions", ("tests.versions",)),
)


def certify(parts: Sequence[Part]) -> int:
    """Run the parts; print the table; return how many failed."""
    rows, failed = [], 0
    for part in parts:
        click.echo(f"== {part.name}: python -m {' '.join(part.command)}")
        started = time.monotonic()
        code = subprocess.run(
            [sys.executable, "-m", *part.command], env={**os.environ, **part.env}, check=False
        ).returncode
        minutes = (time.monotonic() - started) / 60
        rows.append(
            f"{part.name:10} {'passed' if code == 0 else f'FAILED, exit code {code}':22} {minutes:6.1f} min"
        )
        failed += code != 0
    click.echo("\n".join(["== certify", *rows, f"{len(parts) - failed} passed, {failed} failed"]))
    return failed


def main() -> None:
    """Run the parts named on the command line, or all."""
    names = sys.argv[1:] or [part.name for part in PARTS]
    by_name = {part.name: part for part in PARTS}
    if unknown := [name for name in names if name not in by_name]:
        sys.exit(f"No part is named {', '.join(unknown)}. Parts: {', '.join(by_name)}.")
    sys.exit(1 if certify([by_name[name] for name in names]) else 0)


if __name__ == "__main__":
    main()
