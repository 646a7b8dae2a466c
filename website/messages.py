"""What do the errors of the package say? Read from its source, with … for what varies.

>>> found = texts_of('''
... def late(seconds):
...     return f"it came {seconds:.0f} s late"
... def check(offset):
...     if offset < 0:
...         raise WrongError(f"offset {offset} is below 0; " "commit what poll() gave")
...     raise LateError(late(3))
... ''', {})
>>> found["LateError"], found["WrongError"]
(['it came … s late'], ['offset … is below 0; commit what poll() gave'])
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import kafka_liveness_dagster as kl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_JUDGES = {
    "contradictions",
    "find_contradictions",
    "refused_settings",
    "unknown_setting_message",
    "_sentence",
    "_sink_contradictions",
    "_unused_settings",
    "_window_contradictions",
}
"""Functions whose texts are lines of an InvalidSettingError, which tells all that is wrong at once."""
_VARIES = "…"


@cache
def said() -> Mapping[str, Sequence[str]]:
    """Return the texts of each error by its name, in the order of the modules.

    Reading all sources takes 2 s.
    """
    sources = [file.read_text(encoding="utf-8") for file in sorted(Path(kl.__file__).parent.rglob("*.py"))]
    made = {
        name: texts for source in sources for name, texts in _made(source).items() if not name.startswith("_")
    }
    found: defaultdict[str, list[str]] = defaultdict(list)
    for source in sources:
        for name, texts in texts_of(source, made).items():
            found[name] = list(dict.fromkeys((*found[name], *texts)))
    return found | {"FencedError": [reason.value for reason in kl.FenceReason]}  # what each begins with


def texts_of(source: str, elsewhere: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """The same of one module.

    Args:
        source: of the module.
        elsewhere: what functions of other modules make.
    """
    made = {**elsewhere, **_made(source)}
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, given in _told(ast.parse(source)):
        texts = _literal(given) or ([] if isinstance(given, ast.Name) else made.get(_last_name(given), []))
        found[name] += [text for text in texts if re.search(r"\w{3}", text)]
    return found


def _told(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """What each error is made with, or its class says itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from ((node.name, given) for given in _says_itself(node))
        elif isinstance(node, ast.FunctionDef) and node.name in _JUDGES:
            yield from (("InvalidSettingError", given) for given in _given(node))
        elif isinstance(node, ast.Call) and (name := _last_name(node)).endswith("Error"):
            yield from ((name, given) for given in node.args[:1])


def _says_itself(error: ast.ClassDef) -> list[ast.expr]:
    """What the class of an error gives its base: its text, of which callers tell but a part."""
    calls = (
        node for node in ast.walk(error) if isinstance(node, ast.Call) and _last_name(node) == "__init__"
    )
    return [given for call in calls for given in call.args] if error.name.endswith("Error") else []


def _made(source: str) -> dict[str, list[str]]:
    """By the name of a function, or of what is assigned to, the texts that it has."""
    made: defaultdict[str, list[str]] = defaultdict(list)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            made[node.name] += [text for given in _given(node) for text in _literal(given)]
        elif isinstance(node, ast.Assign):
            made[_last_name(node.targets[0])] += _literal(node.value)
    return {name: texts for name, texts in made.items() if texts}


def _given(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """What it returns or yields."""
    for node in ast.walk(function):
        if isinstance(node, (ast.Return, ast.Yield)) and node.value is not None:
            yield node.value


def _literal(node: ast.expr) -> list[str]:
    """The text of a string in the source; none of anything else."""
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    if not is_text and not isinstance(node, (ast.JoinedStr, ast.BinOp)):
        return []
    return [re.sub(f"{_VARIES}( ?{_VARIES})*", _VARIES, " ".join(_text(node).split()))]


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return _VARIES


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
