"""The demo of an installed wheel tells the truth, and leaves nothing behind."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from contextlib import contextmanager

import dagster as dg
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from kafka_liveness_dagster.embedded import services
from tests.end_to_end.processes import processes_of
from tests.history.checker import check
from tests.history.observer import Observer


@contextmanager
def demo_in(folder, installed, *arguments):
    """Start the demo with a state folder of its own; whatever happens, its processes do not outlive this."""
    env = {**installed.env, "KAFKA_LIVENESS_HOME": str(folder / "state")}
    command = [shutil.which("kafka-liveness", path=env["PATH"]), "demo", *arguments]
    output = subprocess.PIPE
    try:
        with subprocess.Popen(
            command, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT, text=True
        ) as told:
            try:
                yield told
            except BaseException:
                told.kill()
                raise
    finally:
        left = list(processes_of(folder))
        for process in left:
            process.kill()
    assert [process.info["cmdline"] for process in left] == []


def wait_for(line, told):
    """Read what the demo shows until it shows this; all that it has shown."""
    shown = []
    for row in told.stdout:
        shown.append(row)
        if line in row:
            return "".join(shown)
    raise AssertionError(f"never showed {line!r}: {''.join(shown)}")


@pytest.fixture(scope="module")
def story(tmp_path_factory, installed):
    """The whole story.

    Much of it is Dagster's daemons waiting: it is told while the others are interrupted.
    """
    folder = tmp_path_factory.mktemp("a story")
    with demo_in(folder, installed, "--json-file", str(folder / "verdict.json")) as told:
        opening = wait_for("Dagster's UI", told)

        def the_end():
            output = opening + told.communicate(timeout=1000)[0]
            return told.returncode, output, folder / "verdict.json"

        yield the_end
        if told.poll() is None:  # nobody wanted to hear the end
            told.send_signal(signal.SIGINT)


@pytest.mark.usefixtures("story")
@pytest.mark.certify
@pytest.mark.parametrize("moment", ["Kafka at", "Dagster's UI"])
def test_ctrl_c_leaves_no_process_behind(tmp_path, installed, moment):
    """Interrupted at any moment, the demo ends what it started: nothing that names its folder is left."""
    with demo_in(tmp_path, installed) as told:
        wait_for(moment, told)
        told.send_signal(signal.SIGINT)
        told.communicate(timeout=600)
    assert told.returncode == 1


def test_the_story_holds(story):
    """A worker killed in mid-batch costs no order and doubles none.

    The skipped ranges are partitions, all done.
    """
    code, output, json_file = story()
    it_holds(code, output, json_file)
    folder = json_file.parent
    with broker_of(folder / "state" / "demo") as found:
        catalog = SqlCatalog(found.catalog_name, uri=found.catalog_uri, warehouse=found.warehouse)
        check_history(folder, found.bootstrap_servers, lambda: catalog.load_table("shop.orders"))


@contextmanager
def broker_of(home):
    """Start the broker of a demo that has ended.

    Its topic and both commit logs are still in the state folder.
    """
    try:
        yield services.ensure_services(home=home, which=("kafka",))
    finally:
        services.stop_services(home)


def check_history(folder, bootstrap_servers, load_table):
    """Compare the topic's records, both commit logs and Dagster's reports with the table of an ended demo."""
    observer = Observer(
        folder / "history.jsonl",
        bootstrap_servers=bootstrap_servers,
        topics=["orders"],
        group="orders-etl",
        load_table=load_table,
        value_column="order_json",
    )
    observer.produced()
    observer.committed()
    with dg.DagsterInstance.from_config(str(folder / "state" / "demo" / "dagster")) as instance:
        observer.dagster(instance, "orders", "orders_crash_lag")
    observer.read()
    events = observer.file.events()
    assert {"produced", "committed", "green", "read"} <= {event.type for event in events}
    assert check(events) == []


def it_holds(code, output, json_file):
    """What the demo says at its end, in words and in figures."""
    assert code == 0, output
    verdict = json.loads(json_file.read_text())
    assert verdict["lost"] == verdict["duplicated"] == 0
    assert verdict["in_table"] == verdict["produced"] > 200_000
    assert len(verdict["crash_lag"]) >= 1
    assert verdict["crash_lag_state"] == "all materialized"
    assert 0 < verdict["crash_to_fresh_seconds"] < verdict["in_order_seconds"] < verdict["seconds"]
    assert re.fullmatch(r"its batches, [\d,]+ orders behind", verdict["killed_in_the_middle_of"])
    assert "crashed" in output, "the sensor named the cause"
    assert verdict["certified"] is True
    last_line = output.rstrip().splitlines()[-1]
    assert last_line == verdict["certificate"]
    assert last_line.startswith("certified: group ")
    assert f"{verdict['produced']:,} in all" in last_line, "nothing is owed, and nothing lost"
