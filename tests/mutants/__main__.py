"""Apply each mutant to a copy of the checkout and run the test that has to fail for it.

A mutant counts as killed only if the mutated line ran, the named test failed, and the failure printed the
named invariant. It changes nothing in the checkout itself.

    python -m tests.mutants --list
    python -m tests.mutants --only ownership
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.mutants import ALL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
PACKAGE = "kafka_liveness_dagster"
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".kafka_liveness", "build", "dist", ".*_cache")
_TEST_SECONDS = 600


def mutated(source: str, mutant: Mutant, reached: Path) -> str:
    """Return the module's source with the defect, and before it a statement that creates ``reached``."""
    if source.count(mutant.old) != 1:
        raise ValueError(
            f"{mutant.name}: {mutant.file} contains the old text {source.count(mutant.old)} times, not once"
        )
    start = source.index(mutant.old) + len(mutant.old) - len(mutant.old.lstrip())
    changed = source.replace(mutant.old, mutant.new)
    # the first line that differs: what stands before it in the old text is only there to make it unique
    while start < len(source) and changed[start : start + 1] == source[start : start + 1]:
        start += 1
    line = changed.count("\n", 0, start) + 1
    statement = max(
        (node for node in _statements(ast.parse(changed)) if node.lineno <= line),
        key=lambda node: node.lineno,
    )
    lines = changed.splitlines(keepends=True)
    indent = " " * statement.col_offset
    lines.insert(statement.lineno - 1, f"{indent}__import__('pathlib').Path({str(reached)!r}).touch()\n")
    return "".join(lines)


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements inside functions, none of them a function, a class or a docstring itself."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                is_nested = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                if isinstance(node, ast.stmt) and not is_nested:
                    yield node


def outcome(mutant: Mutant, copy: Path) -> str:
    """Run one mutant in the copy; return ``killed`` or why it was not."""
    module, reached = copy / PACKAGE / mutant.file, copy / "reached"
    whole = module.read_text(encoding="utf-8")
    reached.unlink(missing_ok=True)
    module.write_text(mutated(whole, mutant, reached), encoding="utf-8")
    # Children of the test import the copy, too
    env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", **mutant.env}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        mutant.killed_by,
    ]
    try:
        done = subprocess.run(
            command, cwd=copy, env=env, capture_output=True, text=True, check=False, timeout=_TEST_SECONDS
        )
    finally:
        module.write_text(whole, encoding="utf-8")
    printed = done.stdout + done.stderr
    if not reached.exists():
        return f"NOT REACHED (pytest exited with {done.returncode})\n{printed[-2000:]}"
    if done.returncode == 0:
        return "SURVIVED"
    if done.returncode != 1:
        return f"NO TEST RAN (pytest exited with {done.returncode})\n{printed[-2000:]}"
    # Lines of the error alone: the source of the test, which pytest prints too, has the text of every
    # assertion
    failure = "\n".join(line for line in printed.splitlines() if line.startswith("E "))
    if mutant.invariant not in failure:
        return f"ANOTHER FAILURE: {mutant.invariant!r} is not in\n{printed[-2000:]}"
    return "killed"


def run(mutants: Iterable[Mutant]) -> int:
    """Run the mutants one after the other; print a line each; return how many were not killed."""
    left = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=_LEFT_OUT)
        for mutant in mutants:
            started = time.monotonic()
            verdict = outcome(mutant, copy)
            left += verdict != "killed"
            row = (
                f"{verdict.splitlines()[0]:10} {time.monotonic() - started:5.1f} s  {mutant.name}  "
                f"[{mutant.killed_by}]"
            )
            print("\n".join([row, *verdict.splitlines()[1:]]), flush=True)  # noqa: T201
    return left


def main() -> None:
    """Parse the arguments and run; exit 1 if a mutant was not killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "--only", default="", help="run the mutants that have this text in name, file or test"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants and run none")
    asked = parser.parse_args()
    chosen = [one for one in ALL if asked.only in f"{one.name} {one.file} {one.killed_by}"]
    if asked.list:
        for one in chosen:
            print(f"{one.file:28} {one.name}  [{one.killed_by}]")  # noqa: T201
        return
    left = run(chosen)
    print(f"{len(chosen) - left} of {len(chosen)} mutants killed")  # noqa: T201
    sys.exit(1 if left or not chosen else 0)


if __name__ == "__main__":
    main()
