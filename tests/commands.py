"""Run or check commands of a page in one process, which loads Dagster, Spark and pytest once for all of them.

``python -m tests.commands`` reads a JSON list of (environment, words) and prints a JSON list of outcomes.
It collects tests; it runs them only where the words hold ``--run``, and never without a path.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest


class Selected:
    """A plugin of pytest that notes which tests were selected."""

    def __init__(self):
        self.ids = []

    def pytest_collection_finish(self, session):
        self.ids = [item.nodeid for item in session.items]


def run_pytest(words):
    """Collect the tests that a command selects, or run them if it says ``--run``.

    (exit code, ids, output).
    """
    selected, output = Selected(), io.StringIO()
    options = [word for word in words if word != "--run"]
    if "--run" not in words:
        options.append("--collect-only")
    with redirect_stdout(output), redirect_stderr(output):
        code = pytest.main(["-q", "-p", "no:cacheprovider", *options], plugins=[selected])
    return int(code), selected.ids, output.getvalue()


def show_help(module, words):
    """Let a module parse its arguments and print its help: (exit code, [], output)."""
    output, before = io.StringIO(), sys.argv
    sys.argv = [module, *words, "--help"]
    try:
        with redirect_stdout(output), redirect_stderr(output):
            runpy.run_module(module, run_name="__main__")
    except SystemExit as end:
        code = end.code
    else:
        code = "the module went on after --help"
    finally:
        sys.argv = before
    return code, [], output.getvalue()


def outcomes(commands):
    """Yield the outcome of each command: the words begin with a module's name."""
    for environment, (module, *words) in commands:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            yield run_pytest(words) if module == "pytest" else show_help(module, words)


if __name__ == "__main__":
    for name in [name for name in os.environ if name.startswith(("PYTEST_", "COV_"))]:
        del os.environ[name]  # of the pytest that started this process
    results = list(outcomes(json.load(sys.stdin)))
    print(json.dumps(results))  # noqa: T201 - the caller reads it
