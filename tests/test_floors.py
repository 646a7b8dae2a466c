"""Imports only go down: core <- kafka, core <- spark, all <- the Dagster face <- the example."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = "kafka_liveness_dagster"
ROOT = Path(__file__).parents[1] / PACKAGE
MODULES = sorted(ROOT.rglob("*.py"))
MAX_LINES = 250
FLOORS = {  # folder: what its modules may import beside the standard library
    "core": {f"{PACKAGE}.core"},
    "kafka": {f"{PACKAGE}.kafka", f"{PACKAGE}.core", f"{PACKAGE}.failpoints", "confluent_kafka"},
    # grpc: pyspark[connect]'s own transport
    "spark": {f"{PACKAGE}.spark", f"{PACKAGE}.core", f"{PACKAGE}.failpoints", "pyspark", "grpc"},
}
TYPING_ONLY = {"typing_extensions"}  # named for mypy, never imported when the program runs


def imports(path):
    """Every module a file of the package names in an import."""
    return imports_of(path.read_text(encoding="utf-8"), [PACKAGE, *path.relative_to(ROOT).with_suffix("").parts])


def imports_of(source, here):
    """Every module that a source names, those for type checkers too; relative imports count as their target."""
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


def named(path):
    """A module as the folder listing shows it."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [p for p in MODULES if p.relative_to(ROOT).parts[0] in FLOORS], ids=named)
def test_a_floor_imports_only_what_is_below_it(path):
    """Core knows the standard library; kafka and spark know core and their own client, and never each other."""
    allowed = FLOORS[path.relative_to(ROOT).parts[0]] | TYPING_ONLY
    assert not [name for name in imports(path) if not is_standard(name) and not is_under(name, allowed)]


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_nobody_imports_the_example(path):
    """The package works without its example; the demo names it as a string, for Dagster to load."""
    assert not [name for name in imports(path) if is_under(name, {"definitions", "tests", f"{PACKAGE}.definitions"})]


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_module_fits_on_a_few_screens(path):
    """250 lines are a wall: what grows beyond is two things."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_the_floors_are_where_they_are_looked_for():
    """A renamed floor would pass every test above by not being there."""
    assert {path.relative_to(ROOT).parts[0] for path in MODULES} >= set(FLOORS)


def test_importing_the_package_starts_neither_client():
    """Dagster imports every plug-in for its registry; pyspark and librdkafka are loaded when they are used."""
    code = f"import sys, {PACKAGE}; print(*sorted({{'pyspark', 'confluent_kafka'}} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert not loaded.stdout.split()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        pytest.param("import pyspark.sql", ["pyspark.sql"], id="import"),
        pytest.param("from pyspark import sql", ["pyspark.sql"], id="from"),
        pytest.param("def f():\n    import pyspark", ["pyspark"], id="inside a function"),
        pytest.param("if TYPE_CHECKING:\n    import pyspark", ["pyspark"], id="for type checkers"),
        pytest.param(f"from {PACKAGE} import spark", [f"{PACKAGE}.spark"], id="a floor by its name"),
        pytest.param("from ..spark import source", [f"{PACKAGE}.spark.source"], id="relative, from another floor"),
        pytest.param("from . import errors", [f"{PACKAGE}.core.errors"], id="relative, from the same floor"),
    ],
)
def test_no_way_to_import_goes_unseen(source, found):
    """The look itself: every form of import is seen."""
    assert list(imports_of(source, [PACKAGE, "core", "offsets"])) == found
