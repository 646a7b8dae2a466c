"""What README and docs/ show is there: each Python fence is a file of docs/examples, each command one of ours."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import dagster as dg
import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.cli import main as cli

ROOT = Path(__file__).parents[1]
PAGES = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))}
EXAMPLES = {file.stem: file.read_text(encoding="utf-8") for file in ROOT.glob("docs/examples/*.py")}
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
IN_LINE = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(r"\bkafka-liveness ((?:\([^)\n]*\)|[^|&#)\n])+)")


def fences(page, *languages):
    """The text of a page's fences in these languages."""
    return [text for language, text in FENCE.findall(page) if language in languages]


def commands():
    """What the pages have a reader type behind ``kafka-liveness``; a synopsis without its brackets and dots."""
    found = set()
    for page in PAGES.values():
        for text in (*fences(page, "", "sh"), *IN_LINE.findall(FENCE.sub("", page))):
            found |= {re.sub(r"[\[\]…]", "", typed).strip() for typed in COMMAND.findall(re.sub(r"\n {8,}", " ", text))}
    return sorted(found)


def test_each_python_fence_is_an_example():
    """The whole text of one file, so that it can be loaded as it stands; and no file is shown nowhere."""
    shown = [text for page in PAGES.values() for text in fences(page, "python")]
    assert [text for text in shown if text not in EXAMPLES.values()] == []
    assert [name for name, text in EXAMPLES.items() if shown.count(text) != 1] == []


def test_each_example_is_tried_by_a_test():
    """On the real components, with a look at what it gives."""
    tests = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("*/**/test_*.py"))
    assert set(re.findall(r'(?:example\("|"examples" / ")(\w+)', tests)) == set(EXAMPLES)


@pytest.mark.parametrize("name", sorted(name for name, text in EXAMPLES.items() if "\ndefs = " in text))
def test_an_example_is_a_code_location(example, name):
    """It loads and validates, without a service and without an address."""
    defs = example(name).defs
    dg.Definitions.validate_loadable(defs)
    assert {job.name for job in defs.get_repository_def().get_all_jobs()} >= {"orders_job", "orders_crash_lag_job"}


def test_the_pipeline_gives_what_the_readme_says(example):
    """External asset, live asset, crash lag asset, and the sensor, which is on; the addresses are the embedded ones."""
    repository = example("orders").defs.get_repository_def()
    assets = {key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()}
    assert assets == {"kafka/orders_topic", "orders", "orders_crash_lag"}
    [sensor] = repository.sensor_defs
    assert (sensor.name, sensor.default_status) == ("orders_group", dg.DefaultSensorStatus.RUNNING)
    assert kl.KafkaLivenessResource().bootstrap_servers == kl.SparkConnectResource().remote == "embedded"


@pytest.mark.parametrize("typed", commands())
def test_a_command_of_the_pages_is_ours(typed):
    """It has these options and takes so many arguments; what they mean is judged where it is run."""
    command, words = cli.main, shlex.split(typed)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        command = command.commands[words.pop(0)]
    context = click.Context(command, info_name=typed, resilient_parsing=True)
    command.parse_args(context, words)
    assert context.args == []


def test_the_commands_of_the_pages_are_found():
    """Of each kind of place one: behind a pipe, in a synopsis, in an output, inside of a sentence."""
    synopsis = "audit GROUP --topic T --table catalog.namespace.table --deep --json "
    assert set(commands()) >= {
        f"{synopsis}--bootstrap-servers host:port --command-config FILE --spark sc://host:port",
        "produce orders --rate 100",
        "status orders-etl",
        "audit etl-orders_eu --deep",
        "up --json",
    }
