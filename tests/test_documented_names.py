"""Every name that a developer's page or a docstring shows in code font exists in the code."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

import kafka_liveness_dagster as kl

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "kafka_liveness_dagster"
FOLDERS = (
    "kafka_liveness_dagster",
    "definitions",
    "supply_chain",
    "website",
    "tests/simulation",
    "tests/end_to_end",
)
ROOMS = sorted(
    {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in PACKAGE.rglob("*.py")} - {"__init__"}
)
OLD_NAMES = {"modules.md", "names.md"}  # lists of what had another name before
PAGES = sorted(
    [
        ROOT / "DESIGN.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("docs/decisions/*.md"),
        *(path for path in ROOT.glob("docs/internals/*.md") if path.name not in OLD_NAMES),
    ]
)
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
IN_LINE = re.compile(r"`([^`]+)`")
CODE_NAME = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)(?:\(.*\))?")
CAMEL_CASE = re.compile(r"\b[A-Z]\w*[a-z]\w*[A-Z]\w*|\b[A-Z][a-z]+$")
VARIABLE = re.compile(r"KAFKA_LIVENESS_\w+|SIMULATION_\w+")  # of the environment
# A line of an indented list of classes
LISTED = re.compile(r"^ *([A-Z]\w+(?:, [A-Z]\w+)*)  +\S", re.MULTILINE)
SECTION = re.compile(r"^(Args|Attributes):\n((?:(?: {4}.*)?\n)*)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}(\*{0,2}\w+(?:, \w+)*)(?: \(.*?\))?:", re.MULTILINE)
FOREIGN = {  # names that other programs define, by their owner
    "Dagster": ["max_runtime_seconds", "run_monitoring", "run_retries"],
    "Iceberg": [
        "mergeSchema",
        "remove_orphan_files",
        "rewrite_data_files",
        "rewrite_manifests",
        "rewrite_position_delete_files",
    ],
    "Kafka": [
        "FENCED_INSTANCE_ID",
        "FENCED_MEMBER_EPOCH",
        "LeaveGroup",
        "OffsetCommit",
        "UNKNOWN_MEMBER_ID",
        "UNRELEASED_INSTANCE_ID",
        "earliest",
        "internal.termination.signal",
        "max.poll.interval.ms",
        "read_committed",
        "reconnect.backoff.ms",
        "removeMembersFromConsumerGroup",
    ],
    "confluent-kafka": [
        "AdminClient.list_consumer_group_offsets",
        "Consumer.committed",
        "list_consumer_group_offsets",
        "rd_kafka_ListConsumerGroupOffsetsResponse_parse",
    ],
    "Spark and gRPC": ["DataFrame", "readStream", "too_many_pings"],
    "the pages": ["G", "python", "v"],  # a placeholder, a language of fences, a prefix of tags
}
NOT_OURS = set(chain.from_iterable(FOREIGN.values()))


def code_names(page):
    """Yield each identifier in code font, dotted ones in full, and each class of a plain fence."""
    for language, text in FENCE.findall(page):
        if not language:
            yield from chain.from_iterable(names.split(", ") for names in LISTED.findall(text))
            yield from re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b", text)
    for span in IN_LINE.findall(FENCE.sub("", page)):
        found = CODE_NAME.fullmatch(" ".join(span.split()))
        if found and not (ROOT / found[1]).is_file():
            yield found[1]


@cache
def defined(path):
    """Return the names that a source file defines: (classes, all names)."""
    classes, names = set(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            classes.add(node.name)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and VARIABLE.fullmatch(node.value)
        ):
            names.add(node.value)
    return classes, names | classes


@pytest.fixture(scope="module")
def code():
    """All classes, and all names, of the folders that the pages describe.

    A module and a folder are names too.
    """
    classes, names = set(), set()
    for path in chain(ROOT.glob("tests/*.py"), *((ROOT / folder).rglob("*.py") for folder in FOLDERS)):
        of_classes, of_all = defined(path)
        classes |= of_classes
        names |= of_all | set(path.relative_to(ROOT).with_suffix("").parts)
    return classes, names


def is_in_room(name):
    """Return whether a dotted name, which begins with a room, is a module or is defined in that module."""
    folder, inside = PACKAGE, name.split(".")
    while inside and (folder / inside[0]).is_dir():
        folder /= inside.pop(0)
    path = folder / f"{inside.pop(0)}.py" if inside else folder / "__init__.py"
    return path.is_file() and set(inside) <= defined(path)[1]


def exists(name, classes, names):
    """Return whether the code defines a name as a page writes it."""
    first, *more = name.split(".")
    if first == "kl" and more:
        return hasattr(kl, more[0])
    if first in ROOMS and more:
        return is_in_room(name)
    return all(part in (classes if CAMEL_CASE.fullmatch(part) else names) for part in (first, *more))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_name_in_code_font_exists(page, code):
    """A class, function, argument or module that was removed or moved is found, with its page."""
    shown = set(code_names(page.read_text(encoding="utf-8")))
    own = {name for name in shown - NOT_OURS if name.split(".")[0] != "dg"}
    assert sorted(name for name in own if not exists(name, *code)) == []


def test_a_name_of_another_program_is_still_shown():
    """The list of foreign names keeps no name that no page shows, and none that the code defines."""
    shown = set(chain.from_iterable(code_names(page.read_text(encoding="utf-8")) for page in PAGES))
    assert sorted(NOT_OURS - shown) == []


@pytest.mark.parametrize(
    ("page", "found"),
    [
        pytest.param("the `Flight` of a run", ["Flight"], id="class"),
        pytest.param(
            "`core.resume.decide_resume`, `close()`",
            ["core.resume.decide_resume", "close"],
            id="module and call",
        ),
        pytest.param("`kl.Offsets(on_data_loss=1)`", ["kl.Offsets"], id="public name"),
        pytest.param("`over\ntwo` lines, `two words`, `tests/core`", [], id="no identifier"),
        pytest.param("```\n  Watchdog, Fence   ends it\n```\n", ["Watchdog", "Fence"], id="list of classes"),
        pytest.param("```\nop ── LivenessConsumer ──► it\n```\n", ["LivenessConsumer"], id="drawing"),
        pytest.param("```python\nMyClass()\n```\n", [], id="example"),
        pytest.param("`CONTRIBUTING.md`", [], id="file"),
    ],
)
def test_every_form_of_a_name_is_seen(page, found):
    """The search itself."""
    assert list(code_names(page)) == found


@pytest.mark.parametrize(
    ("name", "is_there"),
    [
        ("core.batch_size", True),
        ("core.resume.decide_resume", True),
        ("core.resume.check_target", False),
        ("core.flight", False),
        ("doctor.rules", True),
        ("kl.Offsets", True),
        ("kl.Gone", False),
        ("Pipeline.in_flight", True),
        ("Flight", False),
        ("in_flight", True),
        ("never_was_defined_" + "here", False),
    ],
)
def test_a_name_is_looked_up_where_it_belongs(name, is_there, code):
    """The lookup itself: a class is no argument, and a function of one module is not one of another."""
    assert exists(name, *code) is is_there


def described(node, section):
    """Return the names that a section of a docstring describes."""
    docstring = f"{ast.get_docstring(node) or ''}\n"
    entries = (ENTRY.findall(text) for title, text in SECTION.findall(docstring) if title == section)
    return [name.strip("*") for names in chain.from_iterable(entries) for name in names.split(", ")]


def parameters(node):
    """Return the names of a function's parameters."""
    arguments = node.args
    some = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    return {one.arg for one in some if one is not None}


def members(node):
    """Return what a class itself has.

    Fields, methods, attributes of self, and parameters of its constructor.
    """
    found = set()
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef):
            found.add(statement.name)
            found |= parameters(statement) if statement.name == "__init__" else set()
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    stored = (
        one for one in ast.walk(node) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)
    )
    return found | {one.attr for one in stored if isinstance(one.value, ast.Name) and one.value.id == "self"}


def wrong_sections(source):
    """Yield (class or function, name) for each name that a docstring describes and that is not there."""
    nodes = tuple(ast.walk(ast.parse(source)))
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            bases = [
                classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes
            ]
            found = set().union(*map(members, (node, *bases)))
            names = [*described(node, "Attributes"), *described(node, "Args")]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found, names = parameters(node), described(node, "Args")
        else:
            continue
        yield from ((node.name, name) for name in names if name not in found)


def test_a_docstring_describes_what_is_there():
    """Each name under ``Attributes:`` is an attribute of its class, each under ``Args:`` is a parameter."""
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    wrong = [
        (str(path.relative_to(ROOT)), *where)
        for path, text in sources.items()
        for where in wrong_sections(text)
    ]
    assert wrong == []


def test_a_section_of_a_docstring_is_read_as_it_is_written():
    """The search itself: several names in one entry, stars, types, and entries of more than one line."""
    source = '''
        class Batch:
            """Offsets.

            Attributes:
                first, last: both inclusive;
                    see: the notes.
                gone (int): removed long ago.

            Raises:
                ValueError: never.
            """

            first: int

            def __init__(self, last):
                """Make a batch.

                Args:
                    last: the end.
                    *more: not there.
                """
                gone = self.last = last
    '''
    assert list(wrong_sections(inspect.cleandoc(source))) == [("Batch", "gone"), ("__init__", "more")]
