"""The demo tells the truth, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def demo(tmp_path):
    """Start the demo with a state folder of its own; whatever happens, its processes do not outlive the test."""
    env = {
        **os.environ,
        "KAFKA_LIVENESS_HOME": str(tmp_path / "state"),
        "KAFKA_LIVENESS_JARS": str(ROOT / ".kafka_liveness" / "jars"),
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-c", "from kafka_liveness_dagster.cli import main; main()", "demo"]

    def start(*arguments):
        return subprocess.Popen(
            [*command, *arguments], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    yield start
    left = list(processes_of(tmp_path))
    for process in left:
        process.kill()
    assert [process.info["cmdline"] for process in left] == []


def processes_of(folder):
    """Living processes whose command line or environment names the folder."""
    for process in psutil.process_iter(["pid", "cmdline", "environ", "status"]):
        told = [*(process.info["cmdline"] or ()), *(process.info["environ"] or {}).values()]
        ours = process.info["pid"] != os.getpid() and process.info["status"] != psutil.STATUS_ZOMBIE
        if ours and any(str(folder) in text for text in told):
            yield process


def test_the_story_holds(demo, tmp_path):
    """A worker killed in mid-batch costs no order and doubles none; the skipped ranges are partitions, all done."""
    with demo("--json", str(tmp_path / "verdict.json")) as told:
        output = told.communicate(timeout=480)[0]
    assert told.returncode == 0, output
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert verdict["lost"] == verdict["duplicated"] == 0
    assert verdict["in_table"] == verdict["produced"] > 200_000
    assert len(verdict["crash_lag"]) >= 1
    assert verdict["crash_lag_state"] == "all materialized"
    assert 0 < verdict["crash_to_fresh_seconds"] < verdict["in_order_seconds"]
    assert verdict["killed_in_the_middle_of"].startswith("orders:")
    assert "crashed" in output, "the sensor named the cause"


@pytest.mark.parametrize("moment", ["Kafka at", "Dagster's UI"])
def test_ctrl_c_leaves_no_process_behind(demo, moment):
    """Interrupted at any moment, the demo ends what it started: the fixture finds nothing."""
    with demo() as told:
        for line in told.stdout:
            if moment in line:
                break
        told.send_signal(signal.SIGINT)
        told.communicate(timeout=120)
    assert told.returncode == 1
