"""What a user sees of the package when they look at it."""

from __future__ import annotations

import json
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import trove_classifiers

import kafka_liveness_dagster as kl

ROOT = Path(__file__).parents[1]
NO_CLASS = {"GroupEvent"}  # a union has no docstring
OF_COMMANDS = (
    "kafka_liveness_dagster.audit.",
    "kafka_liveness_dagster.cli.",
    "kafka_liveness_dagster.kafka.group_status",
    "kafka_liveness_dagster.kafka.topics",
)
INSIDE = {"RebalanceTimeoutError"}  # raised to who waits within a poll, and caught there


def test_what_completion_offers_is_public():
    """The names of ``__all__`` without those that would load Kafka's client or Spark, and no helper.

    Each is there, with a docstring.
    """
    offered = [name for name in dir(kl) if not name.startswith("_")]
    public = {name: getattr(kl, name) for name in kl.__all__}
    assert kl.__all__ == sorted(public, key=lambda name: (not name[0].isupper(), name))
    left_out = {
        name
        for name, it in public.items()
        if getattr(it, "__module__", "").startswith((f"{kl.__name__}.kafka.", f"{kl.__name__}.spark.decode."))
    }
    assert left_out >= {"LivenessConsumer", "CatchUpConsumer", "FencedError", "from_json"}
    assert offered == sorted(set(public) - left_out)
    assert all(it.__doc__ for name, it in public.items() if name not in NO_CLASS)
    assert get_args(kl.GroupEvent)


def errors(known=kl.KafkaLivenessError):
    """Every error of the package below this one, when all its modules are loaded."""
    for module in pkgutil.walk_packages(kl.__path__, f"{kl.__name__}."):
        import_module(module.name)
    found, waiting = set(), [known]
    while waiting:
        error = waiting.pop()
        found.add(error)
        waiting += [
            below for below in error.__subclasses__() if below.__module__.startswith(f"{kl.__name__}.")
        ]
    return found


def test_every_error_that_code_may_meet_can_be_named_in_an_except():
    """But those of commands, which print them and end; and each public one is explained in docs/errors.md."""
    met = {error.__name__: error for error in errors() if not error.__module__.startswith(OF_COMMANDS)}
    public = {name: getattr(kl, name) for name in kl.__all__ if name.endswith("Error")}
    assert public == {name: error for name, error in met.items() if name not in INSIDE}
    explained = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert [name for name in sorted(public) if f"`{name}`" not in explained] == []


def test_each_public_name_is_listed_once_as_stable_or_as_preview():
    """In docs/upgrading.md, which promises what may change when."""
    page = (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8")
    section = page.partition("### Stable and preview names\n")[2].partition("\n## ")[0]
    stable, preview = (re.findall(r"`kl\.(\w+)`", part) for part in section.split("A **preview** name"))
    assert sorted([*stable, *preview]) == sorted(kl.__all__)
    assert {"kafka_asset", "KafkaLivenessError"} <= set(stable)


def test_a_package_index_is_told_nothing_that_it_has_not():
    """The built description has the README's words, no pictures, and files by name; classifiers are real."""
    words = [sys.executable, "-m", "hatchling", "metadata"]
    built = json.loads(subprocess.check_output(words, cwd=ROOT, text=True))
    shown = built["readme"]["text"]
    assert re.findall(r"\]\((?!https?:)[^)]*\)", shown) == []
    assert "CONTRIBUTING.md, DESIGN.md" in shown
    assert "[liveness and timeouts" not in shown
    assert "liveness and timeouts (docs/liveness.md)" in shown
    code = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
    assert code.findall(shown) == code.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert set(built["classifiers"]) <= trove_classifiers.classifiers


def test_the_package_says_which_it_is():
    """Its version is the distribution's, and it is marked as typed (PEP 561)."""
    assert kl.__version__ == version("kafka-liveness-dagster")
    assert (Path(kl.__file__).parent / "py.typed").is_file()
