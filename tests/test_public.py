"""What a user sees of the package when they look at it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import trove_classifiers

import kafka_liveness_dagster as kl

ROOT = Path(__file__).parents[1]


def test_what_completion_offers_is_public():
    """The names of ``__all__`` and no helper; each can be had, and has a docstring."""
    offered = [name for name in dir(kl) if not name.startswith("_")]
    assert offered == sorted(kl.__all__)
    assert all(getattr(kl, name).__doc__ for name in offered)


def test_a_package_index_is_told_nothing_that_it_has_not():
    """The built description has the README's words, no pictures, and files by name; classifiers are real."""
    words = [sys.executable, "-m", "hatchling", "metadata"]
    built = json.loads(subprocess.check_output(words, cwd=ROOT, text=True))
    shown = built["readme"]["text"]
    assert re.findall(r"\]\((?!https?:)[^)]*\)", shown) == []
    assert "What is refused, by the error's name, and what to do: docs/errors.md." in shown
    assert "[a consumer that hangs]" not in shown
    assert "a consumer that hangs (docs/liveness-timeline.md)" in shown
    code = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
    assert code.findall(shown) == code.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert set(built["classifiers"]) <= trove_classifiers.classifiers


def test_the_package_says_which_it_is():
    """Its version is the distribution's, and it is marked as typed (PEP 561)."""
    assert kl.__version__ == version("kafka-liveness-dagster")
    assert (Path(kl.__file__).parent / "py.typed").is_file()
