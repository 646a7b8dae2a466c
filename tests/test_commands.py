"""The commands as a whole: sections of the help, JSON, exit codes, completion, and their page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from kafka_liveness_dagster.audit.certificate import GroupCertificate
from kafka_liveness_dagster.cli import audit_command, exit_codes, marks, status_output
from kafka_liveness_dagster.cli.main import SECTIONS, main
from kafka_liveness_dagster.cli.produce_progress import ProduceProgress
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.group_verdict import GroupRuns, LiveRun
from kafka_liveness_dagster.core.ledger import UnknownLedgerFormatError
from kafka_liveness_dagster.core.partition_state import DataExpiredError, TopicRecreatedError
from kafka_liveness_dagster.embedded.state import JarsError, ServicesDownError
from kafka_liveness_dagster.kafka.errors import (
    AccessRefusedError,
    BrokerUnreachableError,
    KafkaRefusedError,
    TopicNotFoundError,
)
from kafka_liveness_dagster.kafka.group_status import GroupStatus, NoSuchGroupError
from kafka_liveness_dagster.runs.storage import DagsterStorageError
from kafka_liveness_dagster.spark.errors import (
    SparkFailedError,
    SparkNotRespondingError,
    SparkUnreachableError,
    StorageError,
    TableSchemaError,
    TableUnreadableError,
)

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
RUN = "from kafka_liveness_dagster.cli.main import main; main(prog_name='kafka-liveness')"
SHELLS = ("bash", "zsh", "fish")


def leaves(command, name=""):
    """Yield each command that does something, by its full name."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    for inner in command.commands:
        yield from leaves(command.commands[inner], f"{name} {inner}".strip())


LEAVES = dict(leaves(main))
NEEDS_KAFKA = {
    "status": ["etl"],
    "health": ["etl"],
    "audit": ["etl"],
    "write-off": ["etl", "p0:orders:0-1", "--reason", "why"],
    "move": ["etl", "lake.shop.orders"],
    "adopt": ["etl", "lake.shop.orders"],
    "start": ["etl", "--from-group", "other"],
    "replay": ["etl", "--from", "2026-11-22T10:00:00Z"],
    "topic create": ["orders"],
    "topic describe": ["orders"],
    "topic list": [],
    "produce": ["orders"],
}


def test_each_command_is_in_one_section():
    """The help lists each command once, under a title."""
    listed = [name for names in SECTIONS.values() for name in names]
    assert len(listed) == len(set(listed))
    assert set(main.commands) <= set(listed)
    told = CliRunner().invoke(main, ["--help"]).output
    assert "Commands:" not in told
    for title, names in SECTIONS.items():
        section = told.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        known = [name for name in names if name in main.commands]
        assert [line.split()[0] for line in section.splitlines()] == known


def test_no_summary_is_cut():
    """At the 80 columns of a pipe: one line for each command, in one column."""
    told = CliRunner().invoke(main, ["--help"], terminal_width=80).output
    assert "..." not in told.partition("Options:")[2]
    rows = [re.search(rf"^  {name} +(.*)$", told, re.MULTILINE) for name in main.commands]
    assert [row[1] for row in rows] == [
        command.get_short_help_str(limit=200) for command in main.commands.values()
    ]
    assert len({row.start(1) - row.start() for row in rows}) == 1


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_has_json(name):
    """One document on stdout, for programs."""
    assert "--json" in {option for one in LEAVES[name].params for option in one.opts}


@pytest.mark.parametrize("name", LEAVES)
def test_every_option_has_help_and_shows_its_default(name):
    """A flag has no default to show, and a file has none."""
    context = click.Context(LEAVES[name])
    options = [one for one in LEAVES[name].params if isinstance(one, click.Option)]
    assert [one.name for one in options if not one.help] == []
    assert [
        one.name
        for one in options
        if isinstance(one.get_default(context), (str, int, float))
        and not (one.is_flag or "[default: " in one.get_help_record(context)[1])
    ] == []


def test_the_json_of_the_services_is_one_document(tmp_path, monkeypatch):
    monkeypatch.setenv("KAFKA_LIVENESS_HOME", str(tmp_path))
    told = CliRunner().invoke(main, ["down", "--json"])
    assert (told.exit_code, json.loads(told.stdout)) == (0, {"stopped": []})
    assert CliRunner().invoke(main, ["down"]).stdout == "stopped: nothing ran\n"


def test_a_pipe_gets_the_whole_table_of_an_audit(monkeypatch):
    """No column is cut, whatever COLUMNS is."""
    monkeypatch.setenv("COLUMNS", "40")
    console = status_output.create_console()
    console.file = StringIO()
    certificate = GroupCertificate("etl", "sink", False, snapshot_id=None, partitions=())
    console.print(audit_command.certificate_as_text(certificate), soft_wrap=True)
    header = console.file.getvalue().splitlines()[0]
    assert header.split()[:4] == ["partition", "log", "from", "committed"]
    assert header.rstrip().endswith("written twice")


# --- exit codes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NEEDS_KAFKA)
def test_no_response_is_exit_code_3(name, tmp_path, monkeypatch):
    """No broker runs: a message on stderr, nothing on stdout."""
    monkeypatch.setenv("KAFKA_LIVENESS_HOME", str(tmp_path))
    told = CliRunner().invoke(main, [*name.split(), *NEEDS_KAFKA[name]], input="")
    assert (told.exit_code, told.stdout) == (3, "")
    assert "The embedded Kafka does not run" in told.stderr
    assert "Traceback" not in told.stderr


def test_every_command_that_reads_kafka_is_tested():
    assert {
        name for name, one in LEAVES.items() if "bootstrap_servers" in {param.name for param in one.params}
    } == {*NEEDS_KAFKA, "doctor", "timeline"} | ({"report"} & set(LEAVES))


@pytest.mark.parametrize(
    ("error", "code", "code_of_reader"),
    [
        (BrokerUnreachableError, 3, 3),
        (AccessRefusedError, 3, 3),
        (SparkUnreachableError, 3, 3),
        (SparkNotRespondingError, 3, 3),
        (StorageError, 3, 3),
        (DagsterStorageError, 3, 3),
        (ServicesDownError, 3, 3),
        (exit_codes.NotRunningError, 3, 3),
        (KafkaRefusedError, 1, 3),
        (SparkFailedError, 1, 3),
        (TableUnreadableError, 1, 3),
        (UnknownLedgerFormatError, 1, 3),
        (DataExpiredError, 1, 3),
        (InvalidSettingError, 1, 2),
        (NoSuchGroupError, 1, 1),
        (TableSchemaError, 1, 2),
        (TopicNotFoundError, 1, 1),
        (TopicRecreatedError, 1, 1),
        (JarsError, 1, 1),
    ],
)
def test_each_error_has_its_exit_code(error, code, code_of_reader):
    """A command that reads has no verdict where one that writes has not done its work."""
    for reads_only, expected in ((False, code), (True, code_of_reader)):
        with (
            pytest.raises(click.ClickException, match="the reason") as told,
            exit_codes.errors_as_exit_codes(reads_only=reads_only),
        ):
            raise error("the reason")
        assert told.value.exit_code == expected


# --- marks and progress -------------------------------------------------------------------------------------


class Stream:
    """A stream of this encoding, on a terminal or not."""

    def __init__(self, encoding, *, is_terminal):
        self.encoding, self._is_terminal = encoding, is_terminal

    def isatty(self):
        return self._is_terminal


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (Stream("utf-8", is_terminal=True), ("\u2713", "\u2717")),
        (Stream("ascii", is_terminal=True), ("ok  ", "FAIL")),
        (Stream("no-such-encoding", is_terminal=True), ("ok  ", "FAIL")),
        (Stream("utf-8", is_terminal=False), ("ok  ", "FAIL")),
    ],
)
def test_marks_are_symbols_where_they_can_be_shown(monkeypatch, stream, expected):
    monkeypatch.setattr(marks.sys, "stdout", stream)
    assert tuple(marks.marks()) == expected


def test_progress_is_shown_on_a_terminal_alone(tmp_path, monkeypatch, capsys):
    """A bar for a file, a count for a pipe; nothing in a log file."""
    file = tmp_path / "orders.jsonl"
    file.write_bytes(b"one\ntwo\n")
    for is_terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda shown=is_terminal: shown)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("FORCE_COLOR", "1")
        with file.open("rb") as lines, ProduceProgress(lines, is_shown=True) as progress:
            for number, _ in enumerate(progress.lines, 1):
                progress.update(number)
            time.sleep(0.2)  # longer than the interval of updates
            progress.update(2)
        shown = capsys.readouterr().err
        assert ("2 records, " in shown, "100%" in shown) == (is_terminal, is_terminal)


def test_the_lines_of_commands_md_for_kubernetes_and_kill():
    """The probe is a command line of ours, and the path for jq names fields of the JSON."""
    [probe] = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    program, name, *words = yaml.safe_load(probe)["livenessProbe"]["exec"]["command"]
    assert program == "kafka-liveness"
    command = LEAVES[name]
    context = click.Context(command, info_name=name, resilient_parsing=True)
    command.parse_args(context, words)
    assert (context.args, context.params["max_lag"]) == ([], 100_000)
    runs = GroupRuns(live=(LiveRun("0badcafe", "0badcafe-1", 4711),))
    report = status_output.StatusReport(GroupStatus("etl", (), ()), runs, oldest_seconds={}, now_seconds=0.0)
    [path] = re.findall(r"kill -9 .*?jq '(.*?)'", PAGE, re.DOTALL)
    assert path == ".live_runs[0].pid"
    assert report.as_json()["live_runs"][0]["pid"] == 4711


# --- completion ---------------------------------------------------------------------------------------------


@pytest.fixture
def complete(tmp_path):
    """Complete the last word of a command line in a real bash, set up as the page shows it."""
    program = tmp_path / "kafka-liveness"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{RUN}" "$@"\n')
    program.chmod(0o755)
    [setup] = re.findall(r"^eval .*bash_source.*$", PAGE, re.MULTILINE)

    def run(*words):
        quoted = " ".join(f"'{word}'" for word in words)
        script = (
            f"{setup}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n"
            f"_kafka_liveness_completion kafka-liveness\n"
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        bash = ["bash", "--norc", "-c", script]
        told = subprocess.check_output(bash, text=True, cwd=ROOT, env={**os.environ, "PATH": path})
        return told.split()

    return run


def test_bash_completes_commands_and_options(complete):
    """As the page sets it up: a command, a command of a group, an option, and a choice."""
    assert complete("kafka-liveness", "st") == ["start", "status"]
    assert complete("kafka-liveness", "topic", "cr") == ["create"]
    assert complete("kafka-liveness", "health", "etl", "--max-p") == ["--max-pending"]
    assert complete("kafka-liveness", "timeline", "--protocol", "cl") == ["classic"]


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_its_completion(shell):
    """The variable that the page names makes the command print a script for the shell."""
    assert f"_KAFKA_LIVENESS_COMPLETE={shell}_source kafka-liveness" in PAGE
    environment = {**os.environ, "_KAFKA_LIVENESS_COMPLETE": f"{shell}_source"}
    told = subprocess.check_output([sys.executable, "-c", RUN], text=True, env=environment, cwd=ROOT)
    assert f"_KAFKA_LIVENESS_COMPLETE={shell}_complete" in told


# --- the page -----------------------------------------------------------------------------------------------


def test_the_page_has_each_command_in_its_section():
    """In the order of the help, and no command that does not exist."""
    for title, names in SECTIONS.items():
        section = PAGE.partition(f"\n### {title}\n")[2].partition("\n#")[0]
        rows = re.findall(r"^\| `([\w-]+)` ", section, re.MULTILINE)
        assert rows == [name for name in names if name in main.commands], title
        for name in rows:
            assert f"| `{name}` | {main.commands[name].get_short_help_str(limit=200)[:-1]} |" in section


def test_the_page_has_the_exit_codes():
    """Each code once, and the commands that can end with 1."""
    table = PAGE.partition("## Exit codes")[2].partition("\n## ")[0]
    assert re.findall(r"^\| (\d) \|", table, re.MULTILINE) == [
        str(code) for code in (exit_codes.WELL, exit_codes.NOT_WELL, exit_codes.USAGE, exit_codes.NO_RESPONSE)
    ]
    for name in SECTIONS["Inspect"]:
        assert name not in main.commands or f"| `{name}`" in table
