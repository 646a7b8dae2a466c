"""Measured seconds of each test file, by which test runs are ordered.

``make test ARGS=--write-durations`` measures them again and rewrites ``durations.json``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_FILE = Path(__file__).with_name("durations.json")


def order_by_duration(items: list[pytest.Item]) -> None:
    """Sort the longest files first, so that no worker waits for another one at the end."""
    seconds = json.loads(_FILE.read_text(encoding="utf-8"))
    items.sort(key=lambda item: -seconds.get(_file_of(item.nodeid), 0))


class DurationRecorder:
    """A pytest plugin of the controller that adds up the seconds of each file, fixtures included."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of one test."""
        self._seconds[_file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write the files that take a second or more, the longest first.

        Those that did not run keep their seconds.
        """
        known = {**json.loads(_FILE.read_text(encoding="utf-8")), **self._seconds}
        rows = sorted(known.items(), key=lambda row: -row[1])
        seconds = {file: round(one) for file, one in rows if one >= 1}
        _FILE.write_text(json.dumps(seconds, indent=1) + "\n", encoding="utf-8")


def _file_of(node_id: str) -> str:
    return node_id.partition("::")[0]
