"""Compare everything that the package defines for others with the text files in this folder, byte by byte.

After an intended change, rewrite the files with ``python -m pytest tests/golden --golden-update``. Then read
the diff.
"""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.golden import interface
from tests.golden.definitions import as_text, described

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parent
EXAMPLES = FOLDER.parents[1] / "docs" / "examples"
LOCATIONS = sorted(
    file.stem for file in EXAMPLES.glob("*.py") if "\ndefs = " in file.read_text(encoding="utf-8")
)
INTERFACES = {
    "commands": interface.commands,
    "component": interface.component,
    "metrics": interface.metrics,
    "names": interface.names,
    "resources": interface.resources,
}
FILES = {"location-definitions", *(f"location-{name}" for name in LOCATIONS), *INTERFACES}


@pytest.fixture
def golden(pytestconfig: pytest.Config) -> Callable[[str, str], None]:
    """Compare a text with a file: ``golden(name, text)``; with ``--golden-update`` write the file first."""

    def compare(name: str, text: str) -> None:
        file = FOLDER / f"{name}.txt"
        if pytestconfig.getoption("golden_update"):
            file.write_text(text, encoding="utf-8")
        known = file.read_text(encoding="utf-8") if file.exists() else ""
        if known != text:
            lines = difflib.unified_diff(
                known.splitlines(), text.splitlines(), file.name, "now", n=2, lineterm=""
            )
            pytest.fail("\n".join(lines) or "line ends differ", pytrace=False)

    return compare


def test_the_example_of_the_repository(golden, monkeypatch):
    for variable in ("KAFKA_BOOTSTRAP_SERVERS", "SPARK_REMOTE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delitem(sys.modules, "definitions", raising=False)
    from definitions import defs  # noqa: PLC0415

    golden("location-definitions", as_text(described(defs)))


@pytest.mark.parametrize("name", LOCATIONS)
def test_an_example_of_the_docs(golden, example, name):
    golden(f"location-{name}", as_text(described(example(name).defs)))


@pytest.mark.parametrize("name", INTERFACES)
def test_an_interface(golden, name):
    golden(name, INTERFACES[name]())


def test_no_file_is_left_over():
    """Each file belongs to a test."""
    assert {file.stem for file in FOLDER.glob("*.txt")} == FILES
