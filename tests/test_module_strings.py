"""Every module, file and page that a string, a comment or a page names exists, with the named attribute."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from pymdownx.slugs import slugify

import kafka_liveness_dagster as kl

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / kl.__name__
FOLDERS = (kl.__name__, "tests", "benchmarks", "website", "definitions", "supply_chain")
TEXTS = {
    ".cfg",
    ".conf",
    ".env",
    ".json",
    ".md",
    ".py",
    ".service",
    ".sh",
    ".target",
    ".toml",
    ".xml",
    ".yaml",
    ".yml",
}
ROOMS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file())
# `spark.driver.memory` is no module
WITHOUT_SETTINGS = [room for room in ROOMS if room not in {"kafka", "spark"}]

OUTSIDE = r"(?<![\w./$-])"  # not in the middle of a longer name, path or URL
TOP = rf"(?:{'|'.join(FOLDERS)})"
SUFFIX = r"\.(?:cfg|html|json|md|png|proto|py|svg|toml|txt|xml|ya?ml)"
# `kafka_liveness_dagster.core.offsets.Span`, and an entry point's `kafka_liveness_dagster.cli.main:main`
DOTTED = re.compile(rf"{OUTSIDE}({TOP}(?:\.[A-Za-z_]\w*)+(?::[A-Za-z_]\w*)?)(?![\w/])")
IN_A_ROOM = re.compile(rf"`((?:{'|'.join(WITHOUT_SETTINGS)})(?:\.[A-Za-z_]\w*)+)(?:\(.*?\))?`")
PUBLIC = re.compile(rf"{OUTSIDE}kl\.([A-Za-z_]\w*)")
STARTED = re.compile(rf"-m[\s\"',]+({TOP}(?:\.\w+)*)(?!\.?[\w${{<*])")
FILE = re.compile(rf"{OUTSIDE}((?:{TOP}|docs|deploy)/[\w./-]*\w)(?:#([\w-]+))?")
FILE_OF_A_ROOM = re.compile(rf"{OUTSIDE}((?:{'|'.join(ROOMS)})/\w+\.py)\b")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")

WITH_OTHER_NAMES = {  # what the changes and the tests of searches name is gone, or never was
    "CHANGELOG.md",
    "tests/test_documented_names.py",
    "tests/test_module_strings.py",
}
NO_MODULES = {
    "kafka_liveness_dagster.librdkafka",  # a logger
    "kafka_liveness_dagster.definitions",  # a module that may not be imported
}
NO_FILES = {
    "kafka_liveness_dagster/example/definitions",  # in the wheel
    "kafka_liveness_dagster/example/workspace.yaml",
    "tests/core/test_x.py",  # an example
    "tests/test_definitions.py",  # in a project of `kafka-liveness init`
}


def sources():
    """Return the text of each file that may name a module, by its path."""
    found = [
        path
        for folder in (*FOLDERS, "docs", "deploy", ".ci", ".github")
        for path in (ROOT / folder).rglob("*")
    ]
    found = [
        path for path in (*found, *ROOT.iterdir()) if path.suffix in TEXTS or path.name in {"Makefile", "run"}
    ]
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in found
        if path.is_file()
    }
    return {name: text for name, text in sorted(texts.items()) if name not in WITH_OTHER_NAMES}


def filled(source):
    """Yield the text of each f-string, with the module's own constants put in."""
    tree = ast.parse(source)
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value for part in node.values)
            yield "".join(
                part if isinstance(part, str) else constants.get(ast.unparse(part), " ") for part in parts
            )


@cache
def is_module(name):
    """Return whether a dotted name is a module. Only the packages above it are imported."""
    parent = name.rpartition(".")[0]
    return (not parent or is_package(parent)) and find_spec(name) is not None


@cache
def is_package(name):
    """Return whether a dotted name is a package."""
    return is_module(name) and find_spec(name).submodule_search_locations is not None


def is_started(name):
    """Return whether ``python -m`` can run a module or a package."""
    return is_module(f"{name}.__main__" if is_package(name) else name)


def has(owner, name):
    """Return whether an object has an attribute; a field of a class counts, with a default or without."""
    fields = (
        getattr(owner, where, {}) for where in ("__annotations__", "__dataclass_fields__", "model_fields")
    )
    return hasattr(owner, name) or any(name in names for names in fields)


@cache
def resolves(name):
    """Return whether a dotted name is a module, or an attribute of one."""
    parts = re.split(r"[.:]", name)
    modules = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    module = next(filter(is_module, modules))
    owner = import_module(module) if module != modules[0] else None
    for part in parts[module.count(".") + 1 :]:
        if not has(owner, part):
            return False
        owner = getattr(owner, part, None)
    return True


@cache
def anchors(page):
    """Return the anchors of a page's headings, made as the site makes them."""
    slug, text = slugify(case="lower"), FENCE.sub("", page.read_text(encoding="utf-8"))
    return {slug(LINK.sub(r"\1", heading).replace("`", ""), "-") for heading in HEADING.findall(text)}


def is_file(name, anchor=""):
    """Return whether a path is there, from the checkout or from its tests.

    ``tests/integration/test_`` begins many.
    """
    path = next((path for path in (ROOT / name, ROOT / "tests" / name) if path.exists()), None)
    if path is None:
        return not re.search(rf"{SUFFIX}$", name) and any((ROOT / name).parent.glob(f"{Path(name).name}*"))
    return not anchor or path.suffix != ".md" or anchor in anchors(path)


def missing(text):
    """Yield each name of a text that is not there.

    Modules and their attributes, files, pages and their headings.
    """
    dotted = (name for name in DOTTED.findall(text) if not re.fullmatch(rf"\w+{SUFFIX}", name))
    yield from (name for name in dotted if name not in NO_MODULES and not resolves(name))
    yield from (name for name in IN_A_ROOM.findall(text) if not resolves(f"{kl.__name__}.{name}"))
    yield from (f"-m {name}" for name in STARTED.findall(text) if not is_started(name))
    yield from (f"kl.{name}" for name in PUBLIC.findall(text) if not hasattr(kl, name))
    files = (where for where in FILE.findall(text) if where[0] not in NO_FILES)
    yield from (f"{name}#{anchor}".rstrip("#") for name, anchor in files if not is_file(name, anchor))
    yield from (name for name in FILE_OF_A_ROOM.findall(text) if not is_file(f"{kl.__name__}/{name}"))


def places(name, text, gone):
    """Return where a file has a name, for whoever has to correct it."""
    word = gone.removeprefix("-m ")
    numbers = [str(number) for number, line in enumerate(text.splitlines(), 1) if word in line]
    return f"{name}:{','.join(numbers) or 'in an f-string'}: {gone}"


def test_what_a_string_names_is_there():
    """A moved module is found where a patch, a command, a logger, a comment or a page still names it."""
    texts = sources()
    assert {
        "Makefile",
        ".ci/run",
        "pyproject.toml",
        "workspace.yaml",
        "README.md",
        "tests/timeouts.py",
    } <= set(texts)
    assert sum(len(DOTTED.findall(text)) for text in texts.values()) > len(texts)
    wrong = []
    for name, text in texts.items():
        strings = "\n".join(filled(text)) if name.endswith(".py") else ""
        wrong += [places(name, text, gone) for gone in {*missing(text), *missing(strings)}]
    assert not wrong, "\n".join(sorted(wrong))


def test_each_public_name_is_where_the_package_looks_for_it():
    """The package loads its public names by strings."""
    assert set(kl._HOMES) == set(kl.__all__)
    assert [name for name, home in kl._HOMES.items() if not resolves(f"{kl.__name__}.{home}.{name}")] == []


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ('patch("kafka_liveness_dagster.core.offsets.Gone")', ["kafka_liveness_dagster.core.offsets.Gone"]),
        ("kafka_liveness_dagster.core.gone", ["kafka_liveness_dagster.core.gone"]),
        ("kafka_liveness_dagster.KafkaAsset.gone", ["kafka_liveness_dagster.KafkaAsset.gone"]),
        ('x = "kafka_liveness_dagster.cli.main:gone"', ["kafka_liveness_dagster.cli.main:gone"]),
        (
            "kafka_liveness_dagster.kafka.run_context.Gone, as before.",
            ["kafka_liveness_dagster.kafka.run_context.Gone"],
        ),
        ("  - python_module: definitions.gone", ["definitions.gone"]),
        ("python -m tests.gone PARTS", ["tests.gone", "-m tests.gone"]),
        ('[sys.executable, "-m", "tests.integration", *more]', ["-m tests.integration"]),
        ("as ``core.gone`` decides, and ``core.offsets``", ["core.gone"]),
        ("`kl.Gone` and kl.Batch", ["kl.Gone"]),
        ("tests/core/test_gone.py and tests/core", ["tests/core/test_gone.py"]),
        ("see docs/errors.md#gone, docs/gone.md and DESIGN.md", ["docs/errors.md#gone", "docs/gone.md"]),
        ("see core/gone.py", ["core/gone.py"]),
        (
            (
                "kafka_liveness_dagster.core.offsets, kafka_liveness_dagster.KafkaAssetComponent, -m "
                "tests.chaos."
            ),
            [],
        ),
        ("kafka_liveness_dagster.core.offsets.OffsetRange.start and https://example.org/docs/gone.md", []),
        (
            "docs/spark.md#settings, tests/integration/test_, definitions.py, -m benchmarks.$$name",
            [],
        ),
    ],
)
def test_each_kind_of_name_that_is_not_there_is_found(text, gone):
    """The search itself, with names planted that are not there, and with names that are."""
    assert list(missing(text)) == gone


def test_a_constant_in_an_f_string_is_read():
    """The search itself: ``f"{PACKAGE}.core"`` names a module as a whole string does."""
    source = 'PACKAGE = "kafka_liveness_dagster"\nNAMES = f"{PACKAGE}.core.gone", f"{other}.core"\n'
    assert list(missing("\n".join(filled(source)))) == ["kafka_liveness_dagster.core.gone"]
