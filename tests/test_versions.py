"""What the metadata promises is what docs/versions.md says was run."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from kafka_liveness_dagster.embedded import jars
from tests import versions

ROOT = Path(__file__).parents[1]
METADATA = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8").partition(versions.HEADING)[2]
REQUIRED = [
    Requirement(line)
    for line in re.findall(
        r'^  "(.+?)"', METADATA.partition("\ndependencies = [\n")[2].partition("\n]")[0], re.MULTILINE
    )
]


def table(title):
    """A table of the page: by what stands in a line's first cell, its cells by their column."""
    lines = PAGE.partition(f"**{title}**\n\n")[2].partition("\n\n")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def bound(requirement):
    """The oldest version that is allowed."""
    [oldest] = [one.version for one in requirement.specifier if one.operator == ">="]
    return Version(oldest)


def test_each_row_passed_with_the_versions_it_is_for():
    """As the script has it today: a row that was changed has to be tried again."""
    told = table(versions.RESULTS)
    assert list(told) == [row.name for row in versions.ROWS]
    for row in versions.ROWS:
        found = told[row.name]
        assert (found["pyspark"], found["broker"]) == (row.spark, row.broker)
        assert found["Python"].startswith(f"{row.python}.")
        assert [check for check in versions.CHECKS if found[check]] == list(row.checks)
        assert [found[check] for check in row.checks if not versions.PASSED.match(found[check])] == []


def test_every_bound_of_the_metadata_was_run():
    """The oldest that is allowed exactly, and nothing older than what the lock has as the newest."""
    told = table(versions.EXTREMES)
    lock = dict(re.findall(r"^([\w-]+)==([^ ;\n]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert [one.name for one in REQUIRED if one.name not in told] == []
    for one in REQUIRED:
        assert Version(told[one.name]["oldest"]) == bound(one), one
        assert Version(told[one.name]["newest"]) >= Version(lock[one.name]), one
        assert Version(told[one.name]["newest"]) in one.specifier, one


def test_every_python_spark_and_broker_that_is_named_was_run():
    """Those of the classifiers, those the embedded Spark has jars for, and the embedded broker."""
    claimed = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', METADATA)
    assert {row.python for row in versions.ROWS} == set(claimed)
    assert {row.spark for row in versions.ROWS} == set(jars.TESTED_VERSIONS)
    [broker] = re.findall(
        r'name="kafka_2.13" rev="([^"]+)"', jars.MODULES["kafka"].read_text(encoding="utf-8")
    )
    assert broker in {row.broker for row in versions.ROWS}
