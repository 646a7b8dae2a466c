"""The command line without any service: help, errors, exit codes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

CLI = [sys.executable, "-c", "from kafka_liveness_dagster.cli.main import main; main()"]


def test_help_waits_for_no_heavy_import():
    """Asking for help imports neither Spark nor Kafka, and nothing heavy on top of the package itself."""
    code = (
        "import sys, kafka_liveness_dagster as _; before = set(sys.modules); "
        "import kafka_liveness_dagster.cli.main as _; "
        "print({'pyspark', 'confluent_kafka'} & set(sys.modules) "
        "| {'dagster', 'psutil', 'rich', 'filelock'} & (set(sys.modules) - before))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


# one process for all commands: each would spend a second on its imports
MANY = """
import json, sys
from click.testing import CliRunner
from kafka_liveness_dagster.cli.main import main
done = [CliRunner().invoke(main, words) for words in json.load(sys.stdin)]
print(json.dumps([[one.exit_code, one.output, repr(one.exception)] for one in done]))
"""
NOBODY = ["--bootstrap-servers", "127.0.0.1:1"]
WHY = ["--reason", "why"]
HALF = os.fsdecode(b"\xff")  # as a shell hands over what is no UTF-8
SECRET = "sc://h:1/;token=hunter2 "  # a blank behind it


COMMANDS = [
    "up",
    "down",
    "doctor",
    "demo",
    "timeline",
    "status",
    "health",
    "write-off",
    "move",
    "adopt",
    "start",
]


@pytest.mark.parametrize("command", COMMANDS)
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
    assert f"Error: Port {port} for Spark Connect is taken by another program" in up.stderr
    assert "Traceback" not in up.stderr


def test_a_broker_that_does_not_respond_is_exit_code_3():
    """Nothing on stdout, so that a script takes it for no verdict."""
    told = subprocess.run([*CLI, "status", "etl", *NOBODY], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout) == (3, "")
    assert "Traceback" not in told.stderr


def test_the_doctor_tells_the_remedy_of_each_failure(home):
    """Without services each line that fails says which command helps; the exit code is 1."""
    doctor = subprocess.run([*CLI, "doctor"], stdout=subprocess.PIPE, text=True, check=False)
    failed = {line.split()[1]: line for line in doctor.stdout.splitlines() if line.startswith("FAIL")}
    assert {"kafka", "spark"} <= set(failed)
    assert all("`kafka-liveness up`" in failed[area] for area in ("kafka", "spark"))
    assert doctor.returncode == 1


def test_what_cannot_be_meant_is_exit_code_2(tmp_path):
    """A group, topic, range, address or time that is none is told as such; some would end the process."""
    (tmp_path / "group.conf").write_text("group.id=other")
    (tmp_path / "latin.conf").write_bytes(b"sasl.password=\xff")
    groups = ["", " ", "\t", "\v", HALF, "a\nb", "x" * 250, "etl.catch-up"]
    asked = {
        "wanted 1 to 249 printable characters": [
            *(["status", group, *NOBODY] for group in groups),
            *(["audit", group, *NOBODY] for group in groups),
            *(["health", group, *NOBODY] for group in groups),
            *(["move", group, "lake.shop.orders", *NOBODY] for group in groups),
            *(["adopt", group, "lake.shop.orders", *NOBODY] for group in groups),
            *(["write-off", group, "p0:orders:0-1", *WHY, *NOBODY] for group in groups),
        ],
        "wanted a Kafka topic": [
            [command, "etl", "--topic", topic, *NOBODY]
            for command in ("status", "audit", "health")
            for topic in ("", " ", "a:b", HALF, "x" * 600)
        ],
        "is not a crash lag key": [
            ["write-off", "etl", one, *WHY, *NOBODY]
            for one in (
                "orders",
                f"p0:{HALF}:0-1",
                "p9999999999:orders:0-1",
                "p0:orders:0-9999999999999999999",
            )
        ],
        "wanted text without": [["write-off", "etl", "p0:orders:0-1", "--reason", HALF, *NOBODY]],
        "wanted catalog.namespace.table": [
            [one, "etl", "--table", "a;b", *NOBODY] for one in ("status", "audit")
        ],
        "wanted host:port,host:port": [
            [*command, "--bootstrap-servers", servers]
            for command in (["status", "etl"], ["audit", "etl"], ["doctor"], ["timeline"])
            for servers in (" ", "h", "h:99999")
        ],
        "wanted a Spark Connect address": [
            ["audit", "etl", "--spark", SECRET, *NOBODY],
            ["doctor", "--spark", "sc://"],
        ],
        "is not a number of seconds": [
            ["status", "etl", "--watch", "nan", *NOBODY],
            ["timeline", "--session", "nan"],
        ],
        "is not in the range": [["status", "etl", "--watch", "inf", *NOBODY], ["timeline", "--stall", "inf"]],
        "extra setting group.id='other' is refused": [
            ["status", "etl", *NOBODY, "--command-config", str(tmp_path / "group.conf")]
        ],
        "the file is not UTF-8": [
            ["status", "etl", *NOBODY, "--command-config", str(tmp_path / "latin.conf")]
        ],
    }
    commands = [words for several in asked.values() for words in several]
    child = [sys.executable, "-c", MANY]
    told = subprocess.run(child, input=json.dumps(commands), capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    wanted = [words for words, several in asked.items() for _ in several]
    for command, says, (code, output, error) in zip(commands, wanted, json.loads(told.stdout), strict=True):
        assert (code, error) == (2, "SystemExit(2)"), (command, error)
        assert says in output, (command, output)
        assert "hunter2" not in output
