"""What README and docs/ show is there.

Each Python fence is a file of docs/examples, each command one of ours.
"""

from __future__ import annotations

import re
import shlex
from io import StringIO
from pathlib import Path

import click
import dagster as dg
import pytest
import trustme
from click.testing import CliRunner

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.cli import main as cli
from kafka_liveness_dagster.cli.options import kafka_settings

ROOT = Path(__file__).parents[1]
PAGES = {
    page.relative_to(ROOT).as_posix().removeprefix("docs/"): page.read_text(encoding="utf-8")
    for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))
    if page.parent.name != "internals"  # as DESIGN.md: for who changes the code
}
EXAMPLES = {file.stem: file.read_text(encoding="utf-8") for file in ROOT.glob("docs/examples/*.py")}
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
IN_LINE = re.compile(r"`([^`\n]+)`")
TRIED_BY = {  # what stands in a fence that is no Python: a language, or the first word
    ("README.md", "make"): "test_make.py",
    ("README.md", "sh"): "end_to_end/test_tutorial.py",
    ("commands.md", "bash"): "test_commands.py",
    ("commands.md", "kill"): "test_commands.py",
    ("commands.md", "yaml"): "test_commands.py",
    ("component.md", "dg"): "test_component.py",
    ("component.md", "yaml"): "test_component.py",
    ("metrics.md", "sh"): "test_telemetry.py",
    ("metrics.md", "yaml"): "integration/test_telemetry_export.py",
    ("deployment.md", "sh"): "deploy/host.py",
    ("dagster-instance.md", "dagster"): "test_production.py",
    ("dagster-instance.md", "sh"): "production/recipes.py",
    ("dagster-instance.md", "yaml"): "test_production.py",
    ("json-records.md", "sh"): "integration/test_examples.py",
    ("transforms.md", "sh"): "integration/test_examples.py",
    ("spark.md", "spark.sql.extensions"): "object_store/servers.py",
    ("readers.md", "yaml"): "object_store/servers.py",
    ("security.md", "security.protocol=SASL_SSL"): "test_examples.py",
    ("sinks.md", "properties"): "integration/test_sinks.py",
    ("tutorial.md", "sh"): "test_examples.py",
    ("backfill.md", "KAFKA_LIVENESS_SCREENSHOTS=docs/images"): "end_to_end/test_tutorial.py",
}
OF_THE_READERS_OWN = {  # a Trino that no test has, and a tool of Kafka's
    ("readers.md", "properties"),
    ("backfill.md", "dagster"),  # tried by hand; dg's form needs a project
    ("component.md", "uv"),  # these download from a package index
    ("component.md", "uvx"),
    ("runbook.md", "kafka-configs.sh"),
}
COMMAND = re.compile(r"\bkafka-liveness ((?:\([^)\n]*\)|[^|&#)\n])+)")


def fences(page, *languages):
    """The text of a page's fences in these languages."""
    return [text for language, text in FENCE.findall(page) if language in languages]


def commands():
    """What the pages have a reader type behind ``kafka-liveness``.

    A synopsis without its brackets and dots.
    """
    found = set()
    for page in PAGES.values():
        for text in (*fences(page, "", "sh"), *IN_LINE.findall(FENCE.sub("", page))):
            found |= {
                re.sub(r"[\[\]…]", "", typed).strip()
                for typed in COMMAND.findall(re.sub(r"\\\n +|\n {8,}", " ", text))
            }
    return sorted(found)


def test_each_python_fence_is_an_example():
    """The whole text of one file, so that it can be loaded as it stands; and no file is shown nowhere."""
    shown = [text for page in PAGES.values() for text in fences(page, "python")]
    assert [text for text in shown if text not in EXAMPLES.values()] == []
    assert [name for name, text in EXAMPLES.items() if text not in shown] == []


def test_the_tutorial_types_what_a_new_project_offers(tmp_path, monkeypatch):
    """It installs, makes a project, uses the targets of its Makefile, and certifies as README does."""
    tutorial = [line.partition("  ")[0] for line in "".join(fences(PAGES["tutorial.md"], "sh")).splitlines()]
    assert tutorial[2] == 'pip install "PATH_OF_THIS_CHECKOUT[ui]"'
    assert f"`{tutorial[2]}`" in PAGES["README.md"]
    monkeypatch.chdir(tmp_path)
    assert tutorial[3] == "kafka-liveness init shop && cd shop"
    assert CliRunner().invoke(cli.main, ["init", "shop"]).exit_code == 0
    targets = re.findall(r"^([a-z]+):.*##", (tmp_path / "shop" / "Makefile").read_text(), re.MULTILINE)
    made = [line.split() for line in tutorial[4:] if line.startswith("make ")]
    assert [name for _, name in made] == ["test", "up", "dev", "feed", "doctor", "down"]
    assert {name for _, name in made} < set(targets)
    look = [line.partition("  ")[0] for line in fences(PAGES["README.md"], "sh")[1].splitlines()]
    assert [line for line in tutorial[4:] if not line.startswith("make ")] == look
    shown = (tmp_path / "shop" / "src" / "shop" / "definitions.py").read_text()
    assert shown == EXAMPLES["shop"]


def others():
    """Fences that are no Python, no doctest and none of our commands; those are parsed below."""
    for name, page in PAGES.items():
        for language, text in FENCE.findall(page):
            what = language or text.split()[0]
            if what not in {"python", "pycon", "kafka-liveness", "$"}:
                yield name, what


def test_no_fence_is_left_untried():
    """Each YAML, shell, properties or plain fence has a test, which looks at that page."""
    assert set(others()) == set(TRIED_BY) | OF_THE_READERS_OWN
    for (page, what), test in TRIED_BY.items():
        source = (ROOT / "tests" / test).read_text(encoding="utf-8")
        assert page in source or "README" in source, (page, what, test)


def test_doctests_of_the_pages_are_collected(pytestconfig):
    """A fence with ``>>>`` runs, wherever it stands."""
    shown = {name for name, page in PAGES.items() if ">>> " in page}
    assert shown == {name for name, page in PAGES.items() if fences(page, "pycon")}
    collected = {
        path.name for glob in pytestconfig.getini("testpaths") for path in ROOT.glob(glob) if path.is_file()
    }
    assert shown <= collected
    assert "--doctest-glob=*.md" in pytestconfig.getini("addopts")


def test_the_lines_for_command_config_are_ours(tmp_path):
    """What docs/security.md shows is read as it stands there.

    What it names is looked for, so there is a file.
    """
    [lines] = [text for text in fences(PAGES["security.md"], "") if "sasl.mechanism" in text]
    authority = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(authority)
    told = kafka_settings(
        "broker-1.example.com:9092", StringIO(lines.replace("/etc/kafka/ca.pem", str(authority)))
    )
    assert told.security.sasl_mechanism == "SCRAM-SHA-512"


def anchors(page):
    """What a forge calls the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere():
    """To a file of the checkout, and to a heading that it has."""
    dead = []
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]:
        for link in re.findall(
            r"\]\((?!https?:)([^)\s]+)\)", FENCE.sub("", page.read_text(encoding="utf-8"))
        ):
            file, _, heading = link.partition("#")
            to = (page.parent / file).resolve() if file else page
            if not to.exists() or (heading and heading not in anchors(to)):
                dead.append((page.name, link))
    assert dead == []


def test_the_glossary_has_each_word_once_with_its_source():
    """In the order of the alphabet, so that a second entry would stand beside the first."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", PAGES["glossary.md"], re.MULTILINE)[1:]
    words = [word for told, *_ in rows for word in told.split(", ")]
    assert [told for told, *_ in rows] == sorted(told for told, *_ in rows)
    assert len(set(words)) == len(words) > 40
    owners = r"(Kafka|KIP-\d+|Dagster|Spark|Iceberg|both Kafka and Dagster|the field|this package)\b"
    assert [told for told, source, _ in rows if not re.match(owners, source)] == []


def test_each_example_is_tried_by_a_test():
    """On the real components, with a look at what it gives."""
    tests = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("*/**/test_*.py"))
    assert set(re.findall(r'(?:example\("|"examples" / ")(\w+)', tests)) == set(EXAMPLES)


@pytest.mark.parametrize("name", sorted(name for name, text in EXAMPLES.items() if "\ndefs = " in text))
def test_an_example_is_a_code_location(example, name):
    """It loads and validates, without a service and without an address."""
    defs = example(name).defs
    dg.Definitions.validate_loadable(defs)
    jobs = {job.name.removeprefix("shop__") for job in defs.get_repository_def().get_all_jobs()}
    assert jobs >= {"orders_job", "orders_crash_lag_job"}


def test_the_pipeline_gives_what_the_readme_says(example):
    """External asset, live asset, crash lag asset, and the sensor, which is on.

    The addresses are the embedded ones.
    """
    repository = example("orders").defs.get_repository_def()
    assets = {key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()}
    assert assets == {"kafka/orders_topic", "orders", "orders_crash_lag"}
    [sensor] = repository.sensor_defs
    assert (sensor.name, sensor.default_status) == ("orders_sensor", dg.DefaultSensorStatus.RUNNING)
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
    synopsis = "audit GROUP --topic T --table catalog.namespace.table --sink MODULE:NAME --deep --json "
    assert set(commands()) >= {
        f"{synopsis}--bootstrap-servers host:port --command-config FILE --spark sc://host:port",
        "produce orders --rate 100",
        "status orders-etl",
        "audit etl-orders_eu --deep",
        "up --json",
    }
