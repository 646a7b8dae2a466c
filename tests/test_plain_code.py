"""Hold the package to plain code: one assignment a line, named arguments, no choice inside a choice.

Ruff holds the rest: branches (C901, PLR0912), returns (PLR0911), statements (PLR0915), parameters (PLR0917).
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "kafka_liveness_dagster"
MODULES = sorted(ROOT.rglob("*.py"))
MAX_POSITIONAL = 4
VARIADIC = {
    "add",
    "concat",
    "debug",
    "error",
    "info",
    "log",
    "max",
    "min",
    "partial",
    "selectExpr",
    "warning",
}
"""Functions whose arguments are all of one kind, or have no names."""


def is_tuple_assignment(node):
    """Return whether a statement assigns unrelated values.

    A swap, and keeping an old value, are one thought.
    """
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    [target, *others] = node.targets
    if others or not isinstance(target, ast.Tuple) or len(target.elts) != len(node.value.elts):
        return False
    return not {ast.unparse(one) for one in target.elts} & {ast.unparse(one) for one in node.value.elts}


def has_many_positional(node):
    """Return whether a call gives more arguments by position than a reader can tell apart."""
    if not isinstance(node, ast.Call) or any(isinstance(one, ast.Starred) for one in node.args):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return len(node.args) > MAX_POSITIONAL and name not in VARIADIC


def is_nested_choice(node):
    """Return whether a conditional expression has another one inside."""
    return isinstance(node, ast.IfExp) and any(
        isinstance(one, ast.IfExp) for one in ast.walk(node) if one is not node
    )


RULES = {
    "several values in one assignment": is_tuple_assignment,
    "more than four arguments by position": has_many_positional,
    "a choice inside of a choice": is_nested_choice,
}


def found(rule, source):
    """Return the lines of a source that break a rule."""
    return [node.lineno for node in ast.walk(ast.parse(source)) if rule(node)]


@pytest.mark.parametrize("name", RULES)
def test_code_is_plain(name):
    """No module has a line that has to be taken apart before it can be read."""
    wrong = {path: found(RULES[name], path.read_text(encoding="utf-8")) for path in MODULES}
    wrong = [f"{path.relative_to(ROOT)}:{line}: {name}" for path, lines in wrong.items() for line in lines]
    assert not wrong, "\n".join([f"{len(wrong)} in all", *wrong])


@pytest.mark.parametrize(
    ("name", "source", "count"),
    [
        (
            "several values in one assignment",
            "a, b = 1, 2\na, b = b, a\nold, new = new, f()\na, b = f()\n",
            1,
        ),
        (
            "more than four arguments by position",
            "f(1, 2, 3, 4, 5)\nf(1, 2, 3, 4)\nf(*many, 2, 3, 4, 5)\n",
            1,
        ),
        ("a choice inside of a choice", "a if b else c if d else e\n(a if b else c), (d if e else f)\n", 1),
    ],
)
def test_each_rule_finds_what_it_is_for(name, source, count):
    """A rule that finds nothing would pass on any code."""
    assert len(found(RULES[name], source)) == count
