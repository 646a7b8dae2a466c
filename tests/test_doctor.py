"""What the doctor says of a Dagster instance and of a code location; no daemon runs, and nothing is made."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import (
    InProcessCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from kafka_liveness_dagster.cli import checkup_dagster
from kafka_liveness_dagster.core.checkup import Outcome, judged
from kafka_liveness_dagster.core.checkup_spark import CATALOG, SERVER, SETTINGS, catalogs_of

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "production.md").read_text(encoding="utf-8")
ORDERS = DOCS / "examples" / "orders.py"


def examined(home, module=None, file=ORDERS):
    return {(one.area, one.check): one.answer for one in checkup_dagster.examine(home, module, file)}


def not_well(found):
    return {at for at, answer in found.items() if answer.outcome is not Outcome.OK}


def test_a_location_on_an_instance_as_the_page_has_it(tmp_path):
    """Nothing to change but what the page leaves to Postgres; the instance's folder is as it was."""
    (tmp_path / "dagster.yaml").write_text(
        "".join(re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0])
    )
    found = examined(tmp_path)
    assert not_well(found) == {("dagster", "storage")}
    assert found["location", "sensors"].found == "on: orders_group"
    assert [file.name for file in tmp_path.iterdir()] == ["dagster.yaml"]


def test_spark_as_the_page_has_it():
    """Every setting that the rules ask for is on the page, with a value that is well."""
    [conf] = re.findall(r"^```\n(spark\.sql\.extensions.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    told = dict(line.split(maxsplit=1) for line in conf.splitlines())
    rules = [rule for rule in SERVER if set(rule.needs) <= set(SETTINGS)]
    [(name, lake)] = catalogs_of(told).items()
    found = [*judged("spark", rules, told), *judged(f"catalog {name}", CATALOG, lake)]
    assert len(found) == len(rules) + len(CATALOG) == 6
    assert {one.outcome for one in found} == {Outcome.OK}


def test_a_sensor_that_somebody_switched_off(tmp_path):
    """By what the instance remembers, whatever its code says; Dagster's own executor is told too."""
    target = LoadableTargetOrigin(python_file=str(ORDERS))
    repository = RemoteRepositoryOrigin(
        InProcessCodeLocationOrigin(target, location_name="orders.py"), "__repository__"
    )
    off = InstigatorState(
        RemoteInstigatorOrigin(repository, "orders_group"), InstigatorType.SENSOR, InstigatorStatus.STOPPED
    )
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        instance.add_instigator_state(off)
    found = examined(tmp_path)
    assert found["location", "sensors"].outcome is Outcome.FAIL
    assert found["location", "sensors"].found == "off: orders_group (orders-etl)"


@pytest.mark.parametrize(
    ("source", "at", "words"),
    [
        (
            "import dagster as dg\n@dg.definitions\ndef defs():\n    return dg.Definitions()",
            "sensors",
            "no group sensor",
        ),
        ("x = 1", "definitions", "it has no dg.Definitions"),
        ("1 / 0", "definitions", "ZeroDivisionError"),
    ],
)
def test_a_code_location_without_groups(tmp_path, source, at, words):
    """A lazy one is asked; one that cannot be loaded is a failure, and not the command's end."""
    file = tmp_path / "location.py"
    file.write_text(source)
    answer = examined(None, file=file)["location", at]
    assert words in answer.found
    assert answer.outcome is (Outcome.FAIL if at == "definitions" else Outcome.WARN)


def test_an_instance_whose_settings_or_storage_cannot_be_read(tmp_path):
    """It is said so: of the sensors nothing is known then, and of no location neither."""
    (tmp_path / "dagster.yaml").write_text("storage:\n  postgres:\n    postgres_url: nonsense\n")
    assert examined(tmp_path)["location", "sensors"].outcome is Outcome.UNKNOWN
    known = examined(tmp_path, file=None)
    assert (known["dagster", "limits"].outcome, ("location", "sensors") in known) == (Outcome.UNKNOWN, False)
    for broken in ("[", "- 1"):
        (tmp_path / "dagster.yaml").write_text(broken)
        [(_, answer)] = examined(tmp_path).items()
        assert answer.outcome is Outcome.FAIL


def test_a_module_is_found_where_one_stands(tmp_path, monkeypatch):
    """As ``dagster dev -m`` finds it."""
    (tmp_path / "of_a_module_of_mine.py").write_text(ORDERS.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = examined(None, "of_a_module_of_mine", None)
    assert not_well(found) == set()
