"""What the doctor says of a Dagster instance and of a code location; no daemon runs, and nothing is made."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import (
    InProcessCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, TickData, TickStatus
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._daemon.types import DaemonHeartbeat

from kafka_liveness_dagster.doctor import dagster_facts
from kafka_liveness_dagster.doctor.dagster_rules import INSTANCE
from kafka_liveness_dagster.doctor.rules import Outcome, run_rules
from kafka_liveness_dagster.doctor.spark_rules import CATALOG, SERVER, SETTINGS, find_catalogs

DOCS = Path(__file__).parents[1] / "docs"
INSTANCE_PAGE, SPARK_PAGE = (
    (DOCS / page).read_text(encoding="utf-8") for page in ("dagster-instance.md", "spark.md")
)
ORDERS = DOCS / "examples" / "orders.py"


def examined(home, module=None, file=ORDERS):
    return {(one.area, one.check): one.result for one in dagster_facts.check_dagster(home, module, file)}


def not_well(found):
    return {at for at, answer in found.items() if answer.outcome is not Outcome.OK}


def test_a_location_on_an_instance_as_the_page_has_it(tmp_path):
    """Nothing to change but what the page leaves to Postgres; the instance's folder is as it was."""
    (tmp_path / "dagster.yaml").write_text(
        "".join(re.findall(r"^```yaml\n(.*?)^```", INSTANCE_PAGE, re.DOTALL | re.MULTILINE)[0])
    )
    found = examined(tmp_path)
    assert not_well(found) == {("dagster", "storage"), ("dagster", "daemon"), ("location", "period")}
    assert "no daemon has ever run" in found["dagster", "daemon"].message
    assert found["location", "period"].message == "never ticked: orders_sensor"
    assert found["location", "sensors"].message == "on: orders_sensor"
    assert [file.name for file in tmp_path.iterdir()] == ["dagster.yaml"]


def test_spark_as_the_page_has_it():
    """Every setting that the rules ask for is on the page, with a value that is well."""
    [conf] = re.findall(r"^```\n(spark\.sql\.extensions.*?)^```", SPARK_PAGE, re.DOTALL | re.MULTILINE)
    told = dict(line.split(maxsplit=1) for line in conf.replace("\\\n", "").splitlines())
    rules = [rule for rule in SERVER if set(rule.required_facts) <= set(SETTINGS)]
    [(name, lake)] = find_catalogs(told).items()
    found = [*run_rules("spark", rules, told), *run_rules(f"catalog {name}", CATALOG, lake)]
    assert len(found) == len(rules) + len(CATALOG) == 7
    assert {one.outcome for one in found} == {Outcome.OK}


def sensor_state(status, location_name="orders.py"):
    """What an instance remembers of the sensor of the example."""
    target = LoadableTargetOrigin(python_file=str(ORDERS))
    repository = RemoteRepositoryOrigin(
        InProcessCodeLocationOrigin(target, location_name=location_name), "__repository__"
    )
    return InstigatorState(RemoteInstigatorOrigin(repository, "orders_sensor"), InstigatorType.SENSOR, status)


def test_the_period_that_a_sensor_keeps(tmp_path):
    """By its latest ticks, whatever is set; those under the location's former name do not count."""
    now = time.time()
    former, latest = (
        sensor_state(status, name)
        for status, name in ((InstigatorStatus.STOPPED, "former.py"), (InstigatorStatus.RUNNING, "orders.py"))
    )
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        for state, every, newest in ((latest, 12, now - 3), (former, 5, now - 7_200)):
            instance.add_instigator_state(state)
            for nth in range(9):
                instance.create_tick(
                    TickData(
                        state.instigator_origin_id,
                        "orders_sensor",
                        InstigatorType.SENSOR,
                        TickStatus.SKIPPED,
                        newest - every * nth,
                        selector_id=state.selector_id,
                    )
                )
        instance.add_daemon_heartbeat(DaemonHeartbeat(now - 3_600, "SENSOR", "of this test"))
    found = examined(tmp_path)
    assert found["location", "period"].outcome is Outcome.WARN
    assert found["location", "period"].message == "orders_sensor ticks every 12 s; its interval is 5 s"
    assert found["location", "sensors"].outcome is Outcome.OK
    assert found["dagster", "daemon"].outcome is Outcome.FAIL
    assert "1 h ago" in found["dagster", "daemon"].message


def test_a_sensor_that_somebody_switched_off(tmp_path):
    """By what the instance remembers, whatever its code says; Dagster's own executor is told too."""
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        instance.add_instigator_state(sensor_state(InstigatorStatus.STOPPED))
    found = examined(tmp_path)
    assert found["location", "sensors"].outcome is Outcome.FAIL
    assert found["location", "sensors"].message == "off: orders_sensor (orders-etl)"


@pytest.mark.parametrize(
    ("source", "at", "words"),
    [
        (
            "import dagster as dg\n@dg.definitions\ndef defs():\n    return dg.Definitions()",
            "sensors",
            "no group sensor",
        ),
        ("x = 1", "definitions", "the code location has no dg.Definitions"),
        ("1 / 0", "definitions", "ZeroDivisionError"),
    ],
)
def test_a_code_location_without_groups(tmp_path, source, at, words):
    """A lazy one is asked; one that cannot be loaded is a failure, and not the command's end."""
    file = tmp_path / "location.py"
    file.write_text(source)
    answer = examined(None, file=file)["location", at]
    assert words in answer.message
    assert answer.outcome is (Outcome.FAIL if at == "definitions" else Outcome.WARN)


def test_an_instance_whose_settings_or_storage_cannot_be_read(tmp_path):
    """It is said so: of the sensors nothing is known then, and of no location neither."""
    (tmp_path / "dagster.yaml").write_text("storage:\n  postgres:\n    postgres_url: nonsense\n")
    assert examined(tmp_path)["location", "sensors"].outcome is Outcome.UNKNOWN
    known = examined(tmp_path, file=None)
    assert known["dagster", "limits"].outcome is known["location", "settings"].outcome is Outcome.UNKNOWN
    assert "-m or -f" in known["location", "settings"].advice
    for broken in ("[", "- 1"):
        (tmp_path / "dagster.yaml").write_text(broken)
        found = examined(tmp_path)
        assert {at for at, one in found.items() if one.outcome is Outcome.FAIL} == {("dagster", "settings")}
        assert found["location", "sensors"].outcome is found["location", "period"].outcome is Outcome.UNKNOWN
    for nowhere in (tmp_path / "nowhere", Path("relative")):
        assert "must be the absolute path of a folder" in examined(nowhere)["dagster", "settings"].message


def test_what_is_not_named_is_unknown():
    """Neither an instance nor a code location: nothing is well, each line has the setting that is missing."""
    found = examined(None, file=None)
    assert {at: one.outcome for at, one in found.items()} == {
        ("dagster", "settings"): Outcome.UNKNOWN,
        ("location", "settings"): Outcome.UNKNOWN,
    }
    assert "set DAGSTER_HOME" in found["dagster", "settings"].advice
    assert all(rule.check in found["dagster", "settings"].message for rule in INSTANCE)


def test_a_module_is_found_where_one_stands(tmp_path, monkeypatch):
    """As ``dagster dev -m`` finds it."""
    (tmp_path / "of_a_module_of_mine.py").write_text(ORDERS.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = examined(None, "of_a_module_of_mine", None)
    assert {at: one.outcome for at, one in found.items()} == {
        ("dagster", "settings"): Outcome.UNKNOWN,
        ("location", "executor"): Outcome.OK,
        ("location", "sensors"): Outcome.UNKNOWN,
        ("location", "period"): Outcome.UNKNOWN,
    }
