"""The command line without any service: help, errors, exit codes."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

CLI = [sys.executable, "-c", "from kafka_liveness_dagster.cli import main; main()"]


def test_help_waits_for_no_heavy_import():
    """Asking for help imports neither Spark nor Kafka, and nothing heavy on top of the package itself."""
    code = (
        "import sys, kafka_liveness_dagster as _; before = set(sys.modules); import kafka_liveness_dagster.cli as _; "
        "print({'pyspark', 'confluent_kafka'} & set(sys.modules) "
        "| {'dagster', 'psutil', 'rich', 'filelock'} & (set(sys.modules) - before))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


@pytest.mark.parametrize("command", ["up", "down", "doctor", "demo", "timeline", "status", "forgive"])
def test_every_help_text_has_an_example(command):
    """A help text shows the command as one types it."""
    told = subprocess.check_output([*CLI, command, "--help"], text=True)
    assert f"Example:\n    kafka-liveness {command}" in told


def test_our_errors_are_a_message_and_exit_code_1(home):
    """What went wrong and what to do, on standard error, without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        up = subprocess.run([*CLI, "up", "--spark-port", port], capture_output=True, text=True, check=False)
    assert (up.returncode, up.stdout) == (1, "")
    assert f"Error: port {port} for Spark Connect is taken by another program" in up.stderr
    assert "Traceback" not in up.stderr


def test_the_doctor_tells_the_remedy_of_each_failure(home):
    """Without services each line that fails says which command helps; the exit code is 1."""
    doctor = subprocess.run([*CLI, "doctor"], stdout=subprocess.PIPE, text=True, check=False)
    failed = {line.split()[1]: line for line in doctor.stdout.splitlines() if line.startswith("FAIL")}
    assert {"kafka", "spark"} <= set(failed)
    assert all("`kafka-liveness up`" in line for line in failed.values())
    assert doctor.returncode == 1
