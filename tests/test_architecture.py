"""Imports only go down: core <- kafka, core <- spark, all <- the Dagster face <- the example.

As docs/internals/rooms.md draws it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = "kafka_liveness_dagster"
ROOT = Path(__file__).parents[1] / PACKAGE
MODULES = sorted(ROOT.rglob("*.py"))
ROOMS = {path.relative_to(ROOT).with_suffix("").parts[0] for path in MODULES} - {"__init__"}
ROOMS_PAGE = (ROOT.parent / "docs" / "internals" / "rooms.md").read_text(encoding="utf-8")
MAX_LINES = 800
SHARED = {f"{PACKAGE}.core", f"{PACKAGE}.concurrency", f"{PACKAGE}.failpoints"}
FLOORS = {  # folder: what its modules may import besides the standard library
    "core": {f"{PACKAGE}.core"},
    "kafka": {f"{PACKAGE}.kafka", *SHARED, "confluent_kafka"},
    # grpc, google.protobuf, pyarrow: pyspark[connect]'s own transport
    "spark": {f"{PACKAGE}.spark", *SHARED, "pyspark", "grpc", "google.protobuf", "pyarrow"},
}
PURE = {  # modules outside of core that only decide: tested to the last branch, as core is
    "audit/certificate.py": {f"{PACKAGE}.audit.rows", f"{PACKAGE}.audit.overlaps", f"{PACKAGE}.core"},
    "audit/rows.py": {f"{PACKAGE}.core"},
    "audit/overlaps.py": {f"{PACKAGE}.core"},
    "doctor/rules.py": {f"{PACKAGE}.core"},
    "doctor/dagster_rules.py": {f"{PACKAGE}.doctor.rules", f"{PACKAGE}.core"},
    "doctor/kafka_rules.py": {f"{PACKAGE}.doctor.rules", f"{PACKAGE}.core"},
    "doctor/spark_rules.py": {f"{PACKAGE}.doctor.rules", f"{PACKAGE}.core"},
}
TYPING_ONLY = {"typing_extensions"}  # named for mypy, never imported when the program runs


@cache
def imports(path):
    """Every module a file of the package names in an import."""
    return tuple(
        imports_of(path.read_text(encoding="utf-8"), [PACKAGE, *path.relative_to(ROOT).with_suffix("").parts])
    )


def imports_of(source, here):
    """Every module that a source names, those for type checkers too.

    Relative imports count as their target.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = [*(here[: -node.level] if node.level else ()), *(node.module or "").split(".")]
            module = ".".join(filter(None, origin))
            # `from package import kafka` names a module as `import package.kafka` does
            yield from (f"{module}.{alias.name}" for alias in node.names)


def is_under(name, roots):
    """Whether a dotted name is one of the roots or inside one."""
    return any(f"{name}.".startswith(f"{root}.") for root in roots)


def is_standard(name):
    """Whether a dotted name belongs to Python itself."""
    return name.split(".")[0] in sys.stdlib_module_names


def arrows():
    """Which room imports from which: an arrow is a pair.

    The root's own names are everybody's, and no room.
    """
    found = {
        (path.relative_to(ROOT).with_suffix("").parts[0], name.split(".")[1])
        for path in MODULES
        for name in imports(path)
        if is_under(name, {f"{PACKAGE}.{room}" for room in ROOMS})
    }
    return {(above, below) for above, below in found if above in ROOMS and above != below}


def below(room, among):
    """Every room that arrows lead to from this one, over others too."""
    found, waiting = set(), [room]
    while waiting:
        further = {end for start, end in among if start == waiting[-1]} - found
        waiting[-1:] = further
        found |= further
    return found


def not_over_others(among):
    """The arrows without those whose end is reached over a third room anyway: what a picture needs."""
    return {
        (above, end)
        for above, end in among
        if not any(end in below(other, among) for start, other in among if start == above and other != end)
    }


def drawn(text):
    """The arrows of a flowchart: ``cli --> metadata & resources`` is two."""
    lines = re.findall(r"^ +(\w+) --> (\w+(?: & \w+)*)$", text, re.MULTILINE)
    return [(above, end) for above, ends in lines for end in ends.split(" & ")]


def named(path):
    """A module as the folder listing shows it."""
    return str(path.relative_to(ROOT))


def module_of(path):
    """Return the dotted name of a file of the package; that of a folder's ``__init__`` is the folder's."""
    parts = [PACKAGE, *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def circles(graph):
    """Return the groups of modules that reach each other, each in alphabetical order."""
    reached = {
        module: below(module, {(start, end) for start, ends in graph.items() for end in ends})
        for module in graph
    }
    groups = {tuple(sorted(other for other in reached[one] if one in reached[other])) for one in graph}
    return sorted(group for group in groups if group)


def test_a_floor_imports_only_what_is_below_it():
    """Core knows the standard library.

    Kafka and spark know core and their own client, and never each other.
    """
    assert {named(path) for path in MODULES} >= set(PURE)
    held = {f"{PACKAGE}.{name.removesuffix('.py').replace('/', '.')}" for name in PURE} | {f"{PACKAGE}.core"}
    section = (
        (ROOT.parent / "pyproject.toml")
        .read_text(encoding="utf-8")
        .split("[tool.coverage.run]")[1]
        .split("]")[0]
    )
    assert set(re.findall(r'"(.*)"', section)) == held, "the coverage gate has the same modules"
    wrong = []
    for path in MODULES:
        floor = path.relative_to(ROOT).parts[0]
        if floor in FLOORS or named(path) in PURE:
            allowed = (PURE.get(named(path)) or FLOORS[floor]) | TYPING_ONLY
            foreign = (
                name for name in imports(path) if not is_standard(name) and not is_under(name, allowed)
            )
            wrong += [f"{named(path)} imports {name}" for name in foreign]
    assert not wrong, "\n".join(wrong)


def test_nobody_imports_the_example():
    """The package works without its example; the demo names it as a string, for Dagster to load."""
    example = {"definitions", "tests", f"{PACKAGE}.definitions"}
    found = [
        f"{named(path)} imports {name}"
        for path in MODULES
        for name in imports(path)
        if is_under(name, example)
    ]
    assert not found, "\n".join(found)


def test_a_module_can_be_read_in_one_go():
    """800 lines hold every module that has one subject; a longer one has two."""
    lengths = {named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    too_long = [f"{name} has {lines} lines" for name, lines in lengths.items() if lines > MAX_LINES]
    assert not too_long, "\n".join(too_long)


def test_no_module_imports_itself_over_others():
    """Modules in a circle are one module in pieces: none can be read, moved or tested alone.

    An import for type checkers and one inside a function count too.
    """
    modules = {module_of(path): path for path in MODULES}
    graph = {module: set() for module in modules}
    for module, path in modules.items():
        for name in imports(path):
            target = name if name in modules else name.rpartition(".")[0]
            if target in modules and target != module:
                graph[module].add(target)
    assert sum(map(len, graph.values())) > len(modules)
    found = [" <-> ".join(circle) for circle in circles(graph)]
    assert not found, "\n".join(found)


def test_every_circle_is_found():
    """The search itself: two modules, a long circle, two circles with a module in common, and no circle."""
    assert circles({"a": {"b"}, "b": {"a"}, "c": {"a"}}) == [("a", "b")]
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"e"}, "e": {"d"}}) == [
        ("a", "b", "c"),
        ("d", "e"),
    ]
    assert circles({"a": {"b"}, "b": {"a", "c"}, "c": {"b"}}) == [("a", "b", "c")]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_the_floors_are_where_they_are_looked_for():
    """A renamed floor would pass every test above by not being there."""
    assert {path.relative_to(ROOT).parts[0] for path in MODULES} >= set(FLOORS)


def test_the_picture_is_what_the_imports_are():
    """The picture in rooms.md has each arrow once, and no other, but for what a third room explains."""
    [picture] = re.findall(r"^```mermaid\n(.*?)^```", ROOMS_PAGE, re.DOTALL | re.MULTILINE)
    assert sorted(drawn(picture)) == sorted(not_over_others(arrows()))
    assert len(drawn(picture)) == picture.count("-->") + picture.count("&")


def test_no_arrow_goes_up():
    """The table lists every room once, the highest first, and a room imports from lower ones alone.

    So no circle.
    """
    listed = re.findall(r"^\| `(\w+)` \|", ROOMS_PAGE, re.MULTILINE)
    assert sorted(listed) == sorted(ROOMS)
    assert [(above, end) for above, end in arrows() if listed.index(above) >= listed.index(end)] == []


def test_an_arrow_over_a_third_room_needs_no_line():
    """The look itself: what is reached over others is left out, a circle and what is near are not."""
    assert below("a", {("a", "b"), ("b", "c"), ("d", "a")}) == {"b", "c"}
    assert below("a", {("a", "b"), ("b", "a")}) == {"a", "b"}
    assert not_over_others({("a", "b"), ("b", "c"), ("c", "d"), ("a", "d"), ("b", "d")}) == {
        ("a", "b"), ("b", "c"), ("c", "d"),
    }  # fmt: skip
    assert drawn("flowchart TD\n    a --> b & c\n    b --> c\n") == [("a", "b"), ("a", "c"), ("b", "c")]


def test_importing_the_package_starts_neither_client():
    """Dagster imports every plug-in for its registry.

    Pyspark and librdkafka are loaded when they are used.
    """
    code = f"import sys, {PACKAGE}; print(*sorted({{'pyspark', 'confluent_kafka'}} & set(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    assert not loaded.stdout.split()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        pytest.param("import pyspark.sql", ["pyspark.sql"], id="import"),
        pytest.param("from pyspark import sql", ["pyspark.sql"], id="from"),
        pytest.param("def f():\n    import pyspark", ["pyspark"], id="inside a function"),
        pytest.param("if TYPE_CHECKING:\n    import pyspark", ["pyspark"], id="for type checkers"),
        pytest.param(f"from {PACKAGE} import spark", [f"{PACKAGE}.spark"], id="a floor by its name"),
        pytest.param(
            "from ..spark import source", [f"{PACKAGE}.spark.source"], id="relative, from another floor"
        ),
        pytest.param("from . import errors", [f"{PACKAGE}.core.errors"], id="relative, from the same floor"),
    ],
)
def test_no_way_to_import_goes_unseen(source, found):
    """The look itself: every form of import is seen."""
    assert list(imports_of(source, [PACKAGE, "core", "offsets"])) == found
