"""Every command that CONTRIBUTING.md and ``make help`` show works.

Quick ones run, others are parsed or collected.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent
FENCE = re.compile(r"^ *```\w*\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
IN_LINE = re.compile(r"`([^`\n]+)`")
SETTING = re.compile(r"([A-Z_]+)=(.*)")
OPTION = re.compile(r"--[a-z][a-z-]*")
# Variables of the make that started these tests
OF_MAKE = ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS")


def is_command(span):
    """Return whether text in code font is a command and no name, path or pattern."""
    return " " in span or span.startswith(".venv/bin/")


def shown(text):
    """Return the commands of a page: each line of a fence, and each command in code font, in their order."""
    fences = [re.sub(r"\\\n +", "", fence) for fence in FENCE.findall(text)]  # a backslash continues a line
    lines = [line.strip() for fence in fences for line in fence.splitlines() if line.strip()]
    spans = [span for span in IN_LINE.findall(FENCE.sub("", text)) if is_command(span)]
    return list(dict.fromkeys([*lines, *spans]))


def parsed(command):
    """Return the settings in front of a command, its program and its words."""
    words = shlex.split(command)
    settings = {}
    while words and (setting := SETTING.fullmatch(words[0])):
        settings[setting[1]] = setting[2]
        words.pop(0)
    return settings, words[0].removeprefix(".venv/bin/"), words[1:]


def is_path(word):
    """Return whether a word of a command of pytest names tests."""
    return word.startswith("tests/")


def is_quick(settings, words):
    """Return whether a command of pytest takes a moment: tests of the core by their file, or one history."""
    paths = [word for word in words if is_path(word)]
    is_core = bool(paths) and all(re.match(r"tests/core/\w+\.py", path) for path in paths)
    return is_core or settings.get("SIMULATION_SEEDS", "").isdigit()


def for_one_process(command):
    """Return what ``tests.commands`` has to do for a command.

    (settings, words), or None if it has nothing to do.
    """
    settings, program, words = parsed(command)
    if program == "python" and words[:1] == ["-m"]:
        module, arguments = words[1], words[2:]
        if module != "pytest":
            return settings, [module, *arguments]
        if arguments == ["…"]:
            return settings, ["pytest", "--version"]
        assert any(map(is_path, arguments)), f"all tests would run: {command}"
        return settings, ["pytest", *arguments, *(["--run"] if is_quick(settings, arguments) else [])]
    if program == "make" and (arguments := shlex.split(made(words)[1].get("ARGS", ""))):
        return settings, ["pytest", *(arguments if any(map(is_path, arguments)) else ["--help"])]
    return None


def made(words):
    """Return the targets and the variables of a command of make."""
    variables = dict(setting.groups() for word in words if (setting := SETTING.fullmatch(word)))
    return [word for word in words if not SETTING.fullmatch(word)], variables


HELP = (ROOT / "Makefile").read_text(encoding="utf-8")
OF_HELP = [
    f"make {target} {words}"
    for target, words in re.findall(r'^([a-z-]+):.*## .*(ARGS="[^"]*")', HELP, re.MULTILINE)
]
COMMANDS = [*dict.fromkeys([*shown(TEXT), *OF_HELP])]


@pytest.fixture(scope="module")
def outcomes():
    """The outcome of each command that Python runs, by the command: (exit code, selected tests, output)."""
    work = {command: json.dumps(what) for command in COMMANDS if (what := for_one_process(command))}
    distinct = list(dict.fromkeys(work.values()))  # two commands may select the same tests
    child = subprocess.run(
        [sys.executable, "-m", "tests.commands"],
        input=f"[{','.join(distinct)}]",
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert child.returncode == 0, child.stderr
    found = dict(zip(distinct, json.loads(child.stdout.splitlines()[-1]), strict=True))
    return {command: found[what] for command, what in work.items()}


def run(*words):
    """Return what a command prints; it has to end well."""
    env = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, env=env)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def check_make(words):
    """Have make name what it would do; each target is one that its help lists."""
    targets, _ = made(words)
    listed = re.findall(r"^ +make ([a-z-]+)", run(shutil.which("make"), "help"), re.MULTILINE)
    assert targets
    assert [target for target in targets if target not in listed] == []
    run(shutil.which("make"), "--dry-run", *words)


def check_pytest(arguments, outcome):
    """The command selects tests, and each word behind ``-k`` is a word of a selected test's name."""
    code, selected, output = outcome
    assert code == 0, output
    if not any(map(is_path, arguments)):  # the command shows options, or dots for any path
        assert {word for word in arguments if word.startswith("--")} <= set(OPTION.findall(output))
        return
    assert selected, output
    names = " ".join(name.rpartition("::")[2] for name in selected)
    words = re.findall(r"\w+", arguments[arguments.index("-k") + 1]) if "-k" in arguments else []
    words = [word for word in words if word not in {"and", "or", "not"}]
    assert [word for word in words if not re.search(rf"(?<![a-z]){word}(?![a-z])", names)] == []


def check_settings(settings):
    """The tests read each variable of the environment that a command sets."""
    sources = "".join(
        path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/*.py") if path != Path(__file__)
    )
    assert [name for name in settings if f'"{name}"' not in sources] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_works(command, outcomes):
    """A command that is of no known kind fails: it needs a line here that tries it."""
    settings, program, words = parsed(command)
    check_settings(settings)
    if program == "make":
        check_make(words)
        if command in outcomes:
            check_pytest(shlex.split(made(words)[1]["ARGS"]), outcomes[command])
    elif program == "python" and words[:2] == ["-m", "pytest"]:
        check_pytest(words[2:], outcomes[command])
    elif program == "python" and words[:1] == ["-m"]:
        code, _, output = outcomes[command]
        assert code == 0, output
        assert set(OPTION.findall(" ".join(words))) <= set(OPTION.findall(output))
    elif program in {"pre-commit", "kafka-liveness"}:
        assert "usage: " in run(str(BIN / program), *words, *(["--help"] * ("--help" not in words))).lower()
    else:
        pytest.fail(f"no test knows how to try this command: {command}")


def test_commands_are_found_in_fences_and_in_code_font():
    """The search itself: a name, a path and a pattern are no commands."""
    text = (
        "```\nmake fast\nA=1 python \\\n  -m x\n```\n"
        "`make help`, `tests/core`, `*.md`, `.venv/bin/tool`, `make help`\n"
    )
    assert shown(text) == ["make fast", "A=1 python -m x", "make help", ".venv/bin/tool"]
    assert len(COMMANDS) > 10


def test_all_tests_are_never_started():
    """A command of pytest without a path is refused before anything is started; dots stand for any path."""
    with pytest.raises(AssertionError, match="all tests would run"):
        for_one_process(".venv/bin/python -m pytest -x")
    assert for_one_process(".venv/bin/python -m pytest …") == ({}, ["pytest", "--version"])
    assert for_one_process("SIMULATION_SEEDS=7 python -m pytest tests/simulation")[1][-1] == "--run"
    assert "--run" not in for_one_process("SIMULATION_SEEDS=7-9 python -m pytest tests/simulation")[1]
    assert "--run" not in for_one_process("python -m pytest tests/core")[1]
    assert "--run" not in for_one_process('make test ARGS="tests/core/test_names.py"')[1]
    assert for_one_process("make test ARGS=--lf") == ({}, ["pytest", "--help"])
    assert for_one_process("make test") is None


@pytest.mark.parametrize(
    ("arguments", "selected", "is_right"),
    [
        pytest.param(["tests/core", "-k", "half"], ["a.py::test_half_of_it"], True, id="a word of the name"),
        pytest.param(
            ["tests/core", "-k", "pace"], ["a.py::test_x[still space]"], False, id="a part of a word"
        ),
        pytest.param(["tests/core", "-k", "half"], [], False, id="no test"),
    ],
)
def test_a_selection_by_accident_is_refused(arguments, selected, is_right):
    """``-k pace`` selects a test of "still space": a reader would believe that it ran what he meant."""
    if is_right:
        check_pytest(arguments, (0, selected, ""))
    else:
        with pytest.raises(AssertionError):
            check_pytest(arguments, (0, selected, ""))


@pytest.mark.parametrize(
    "record", sorted((ROOT / "docs" / "decisions").glob("*.md")), ids=lambda path: path.stem[:4]
)
def test_a_decision_record_has_its_parts(record):
    """The number of the file, a status, and the three parts in their order."""
    lines = record.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith(f"# {int(record.name[:4])}. ")
    assert lines[2].startswith("**Status**: ")
    assert [line for line in lines if line.startswith("## ")] == [
        "## Context",
        "## Decision",
        "## Consequences",
    ]
