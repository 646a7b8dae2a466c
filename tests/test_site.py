"""The site is built strictly, asks no other host for anything, and its reference is all of the code's."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import click
import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.cli import main as cli
from kafka_liveness_dagster.settings.asset import KafkaAssetSettings
from tests.built_site import build_site
from website import messages, reference

ROOT = Path(__file__).parents[1]
FETCHED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}
HEADINGS = re.compile(r"^(###|####) (.*)$", re.MULTILINE)
GROUPS = {
    name: group for name in KafkaAssetSettings.model_fields if (group := KafkaAssetSettings.group(name))
}
OF_COMMANDS = {"NoSuchGroupError", "NothingToAuditError", "NotProducedError"}
SAYS_ALL_ITSELF = "InvalidSettingError"  # a hundred texts, each with what to do


class Page(HTMLParser):
    """What a browser would fetch for a page, and the ids that links may lead to."""

    def __init__(self, html):
        super().__init__()
        self.fetched, self.ids, self.classes, self.text = [], set(), set(), []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        told = dict(attrs)
        self.ids.add(told.get("id"))
        self.classes.update((told.get("class") or "").split())
        if tag in FETCHED and told.get(FETCHED[tag]):
            self.fetched.append(told[FETCHED[tag]])

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built as ``make docs`` does."""
    return build_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def pages(site):
    found = {
        str(file.relative_to(site)): Page(file.read_text(encoding="utf-8")) for file in site.rglob("*.html")
    }
    assert len(found) > 40
    return found


def test_nothing_is_fetched_from_elsewhere(site, pages):
    """No font, no script, no picture: who reads the site is told to nobody."""
    assert [
        (name, url) for name, page in pages.items() for url in page.fetched if re.match(r"(\w+:)?//", url)
    ] == []
    styles = "".join(file.read_text(encoding="utf-8") for file in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']*", styles) == []
    # The theme would fetch a drawer
    assert [name for name, page in pages.items() if "mermaid" in page.classes] == []


def test_every_page_of_the_checkout_is_there(pages):
    """Also those outside of docs/."""
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]:
        at = page.relative_to(ROOT).with_suffix("").as_posix().removeprefix("docs/")
        assert ("index.html" if at == "README" else f"{at}.html") in pages


def test_the_reference_has_every_setting(pages):
    """Of the asset, of each group, of the component and of the resources."""
    ids = pages["reference/settings.html"].ids
    assert len(GROUPS) > 5
    settings = {f"{name}{field}" for name, group in GROUPS.items() for field in group.model_fields}
    settings |= set(kl.KafkaAssetComponent.model_fields) | set(kl.AssetArguments.__annotations__)
    for resource in (kl.KafkaLivenessResource, kl.SparkConnectResource, kl.SchemaRegistryResource):
        settings |= set(resource.settings_class.model_fields)
    assert sorted(settings - ids) == []


def test_the_reference_has_every_event_error_and_class(pages):
    """Each under its name."""
    events = {event.__name__ for event in get_args(kl.GroupEvent)}
    told = {
        str(one).removeprefix("kafka_liveness_dagster.core.events.")
        for one in pages["reference/events.html"].ids
    }
    assert told >= events | {f"LeaveReason.{reason.name}" for reason in kl.LeaveReason}
    assert told >= {
        f"{one.__name__}.{field.name}" for one in get_args(kl.GroupEvent) for field in fields(one)
    }
    errors = {name for name in kl.__all__ if name.endswith("Error")}
    assert errors <= {text.strip() for text in pages["reference/errors.html"].text}
    shown = {str(one).rpartition(".")[2] for one in pages["reference/python.html"].ids}
    groups = {group.__name__ for group in GROUPS.values()}
    assert set(kl.__all__) - shown == events | errors | groups | {
        "AssetArguments",
        "GroupEvent",
        "LeaveReason",
    }


def commands(group, before=""):
    """Every command's name in full, with its options."""
    for name, command in group.commands.items():
        yield (
            f"{before}{name}",
            [option for one in command.params for option in one.opts if option.startswith("--")],
        )
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")


def test_the_reference_has_every_command(pages):
    """With each of its options."""
    text = " ".join(pages["reference/commands.html"].text)
    found = list(commands(cli.main))
    assert len(found) > 10
    assert [name for name, _ in found if f"Usage: kafka-liveness {name} " not in text] == []
    assert sorted({option for _, options in found for option in options if option not in text}) == []


def explained():
    """By the name of an error, how its texts begin, as docs/errors.md has it."""
    found, page = {}, (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    for level, heading in HEADINGS.findall(page):
        if level == "###":
            texts = found.setdefault(heading.strip("`"), []) if heading.startswith("`") else []
        else:
            texts.append(heading)
    return found


def test_every_error_and_every_text_is_a_heading():
    """So that a search for what is seen leads there.

    None of the code's is left out, and none is of another time.
    """
    said, headings = messages.said(), explained()
    public = {name for name in kl.__all__ if name.endswith("Error")}
    assert set(headings) == public - {"KafkaLivenessError"} | OF_COMMANDS
    for name in headings.keys() - {SAYS_ALL_ITSELF}:
        dead = [begin for begin in headings[name] if not any(text.startswith(begin) for text in said[name])]
        left_out = [
            text for text in said[name] if not any(text.startswith(begin) for begin in headings[name])
        ]
        assert (name, dead, left_out) == (name, [], [])


def test_every_warning_of_the_page_of_errors_is_a_text_of_the_source():
    """Each part between two ``…`` is in one text: a line that changes leaves no other one on the page."""
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    table = page.partition("## Warnings in the log of a run")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    texts = {
        re.sub(r"%[.\w]+|\{[^{}]*\}", "…", ast.unparse(node))
        for path in Path(kl.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    }
    gone = [one for one in lines if not any(all(part in t for part in one.split("…")) for t in texts)]
    assert (len(lines) > 10, gone) == (True, [])


def test_every_text_has_a_heading_in_the_reference(pages):
    """What the source raises, all of it; and what is read from it is no fragment."""
    said = messages.said()
    assert len(said[SAYS_ALL_ITSELF]) > 80
    text = " ".join(" ".join(pages["reference/errors.html"].text).split())
    assert [
        one for name in kl.__all__ for one in said.get(name, ()) if " ".join(one.split()) not in text
    ] == []


def test_a_setting_wants_what_its_refusal_says():
    """The words come from the same declaration."""
    assert (
        reference.wanted(KafkaAssetSettings, "idle_seconds") == "a number of seconds from 0 to 1,000,000,000"
    )
    assert reference.wanted(KafkaAssetSettings, "complete_every") == "'15min', '1h' or '1d'"


def test_a_page_has_one_name_in_its_file_its_title_and_the_navigation():
    """So that a reader who searches for one of them finds the page."""
    navigation = re.findall(
        r"^ +- ([\w -]+): ([\w-]+)\.md$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE
    )
    pages = {file.stem: file.read_text(encoding="utf-8") for file in (ROOT / "docs").glob("*.md")}
    titles = {stem: text.split("\n", 1)[0].removeprefix("# ") for stem, text in pages.items()}
    assert {stem: title for title, stem in navigation if stem in pages} == titles
    assert {stem: title.lower().replace(" ", "-") for stem, title in titles.items()} == {s: s for s in pages}
