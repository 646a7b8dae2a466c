"""Hold the package to plain code: one assignment a line, named arguments, no choice inside a choice.

Tests patch public names of the package only.

Ruff holds the rest: branches (C901, PLR0912), returns (PLR0911), statements (PLR0915), parameters (PLR0917).
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "kafka_liveness_dagster"
MODULES = sorted(ROOT.rglob("*.py"))
TESTS = Path(__file__).parent
MUTANTS = {"mutants/spark_and_sensor.py", "mutants/kafka_and_lanes.py"} | {
    f"simulation/{name}_mutants.py" for name in ("core", "shell")
}
"""Modules that replace code of the package by a defect: a mutant may be of any function."""
PATCHES = {"delattr", "multiple", "object", "patch", "setattr"}
PRIVATE = re.compile(r"_[A-Za-z]\w*")
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


def private_names(source):
    """Return the private names that a module defines: functions, classes, variables, and fields of objects.

    A name that no module of the package defines is not the package's: a test may patch pyspark's
    ``_server_session_id``, which has no public name.
    """
    defined = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif is_field(node) and is_of_self(node):
            defined.add(node.attr)
    return {name for name in defined if PRIVATE.fullmatch(name)}


def is_field(node):
    """Return whether a node sets or deletes an attribute."""
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del))


def is_of_self(node):
    """Return whether an attribute belongs to the object whose method this is."""
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def replaces(node):
    """Return whether a node replaces an attribute: a call of ``PATCHES``, or a row of a table of seams."""
    if isinstance(node, ast.Call):
        return getattr(node.func, "attr", getattr(node.func, "id", "")) in PATCHES
    return isinstance(node, ast.Tuple) and isinstance(
        node.elts[0] if node.elts else None, (ast.Name, ast.Attribute)
    )


def texts_in(node):
    """Return the nodes that may name what ``node`` patches: its arguments, or the values of its loop."""
    if isinstance(node, ast.Call) and replaces(node):
        return node.args
    if isinstance(node, ast.Tuple) and replaces(node):
        return node.elts
    if isinstance(node, (ast.For, ast.GeneratorExp, ast.ListComp)) and any(map(replaces, ast.walk(node))):
        loops = [node] if isinstance(node, ast.For) else node.generators
        return [one for loop in loops for one in getattr(loop.iter, "elts", ())]
    if isinstance(node, ast.Constant) and str(node.value).startswith(f"{ROOT.name}."):
        return [node]
    return []


def patched_names(source):
    """Return the names that a test patches: each line with the last part of the name.

    They are an attribute that the test sets, a text in a call of ``PATCHES`` or in a table of seams, a value
    of a loop over names, and a whole name that begins with the package.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if is_field(node) and not is_of_self(node):
            found.add((node.lineno, node.attr))
        if isinstance(node, ast.Call) and replaces(node):
            found |= {(node.lineno, one.arg) for one in node.keywords if one.arg}
        names = [
            one for one in texts_in(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
        ]
        found |= {(one.lineno, one.value.rpartition(".")[2]) for one in names}
    return found


def test_no_test_patches_a_private_name():
    """A refactoring may rename or move each private name of the package, and no test fails.

    What tests replace has a public name: a constant, a function, a class, or an argument.
    """
    private = set().union(*(private_names(path.read_text(encoding="utf-8")) for path in MODULES))
    names = {path.relative_to(TESTS).as_posix(): path for path in sorted(TESTS.rglob("*.py"))}
    assert names.keys() >= MUTANTS
    patched = {
        name: sorted(patched_names(path.read_text(encoding="utf-8")))
        for name, path in names.items()
        if name not in MUTANTS
    }
    wrong = [
        f"tests/{at}:{line}: {name}"
        for at, found in patched.items()
        for line, name in found
        if name in private
    ]
    assert not wrong, "\n".join([f"{len(wrong)} in all", *wrong])


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('monkeypatch.setattr(module, "_LIMIT", 1)\nmonkeypatch.setattr(module, "LIMIT", 1)\n', 1),
        (f'patch("{ROOT.name}.module._LIMIT", 1)\npatch("other.LIMIT")\n', 1),
        ('monkeypatch.setattr(\n    module,\n    "_LIMIT",\n    1,\n)\npatch.object(it, "_method")\n', 2),
        ("patch.multiple(module, _LIMIT=1)\n", 1),
        ('SEAMS = [(module, "_LIMIT", 1), (module, "LIMIT", 1)]\n', 1),
        ('for name in ("_LIMIT", "_method"):\n    setattr(module, name, 1)\n', 2),
        (f'LIMITS = {{"{ROOT.name}.module._LIMIT": 1, "the _LIMIT": 2}}\n', 1),
        ("it._field = 1\nself._field = 1\nit.field = it._field\nspark._theirs = 1\n", 1),
        ('SEAMS = [(module, name, 1) for name in ("_LIMIT", "LIMIT")]\n', 1),
        ('f"{name}_method"\n{f"{name}{end}" for end in ("_method", "")}\n', 0),
    ],
)
def test_a_patch_of_a_private_name_is_found(source, count):
    """Each way to patch a name is found; a name that the package does not define is none of its names."""
    module = "_LIMIT = 0\nclass One:\n    def _method(self):\n        self._field, spark._theirs = 1, 2\n"
    private = private_names(module)
    assert private == {"_LIMIT", "_method", "_field"}
    assert len([name for _, name in patched_names(source) if name in private]) == count
