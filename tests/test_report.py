"""How a report looks in a terminal and as a page, and which command lines are rejected."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from kafka_liveness_dagster.cli.main import main
from kafka_liveness_dagster.cli.report import declared_sla
from kafka_liveness_dagster.cli.report_html import report_as_html
from kafka_liveness_dagster.cli.report_output import report_as_text
from kafka_liveness_dagster.core.events import LeaveReason
from kafka_liveness_dagster.core.freshness import ServiceLevel
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.report import Backfill, Departure, GroupHistory, Report, wanted_positions
from kafka_liveness_dagster.core.table_history import TableCommit, partition_steps

AT, BEGAN = TopicPartition("orders", 0), 1_795_800_000.0
SLA = ServiceLevel(fresh_seconds=20.0, complete_seconds=60.0)
ROOT = Path(__file__).parents[1]
VOID = {"meta", "br"}


def report(sla=SLA, *, minutes=4, group="orders-etl", notes=(), departures=None):
    """A group that crashes at 40 s, is live again at 110 s, and whose crash lag stays pending."""
    times = [*range(10, 40, 10), *range(110, 240, 10)]
    commits = [TableCommit(BEGAN + at, {AT: (Span(at - 10, at),)}, rows=10) for at in times]
    until = BEGAN + 60 * minutes
    steps = {AT: partition_steps(AT, commits, until=until, origin=0)}
    if departures is None:
        departures = [
            Departure(BEGAN + 40, "0badcafe", LeaveReason.CRASHED),
            Departure(BEGAN + 180, "0000beef", LeaveReason.POLL_TIMEOUT),
        ]
    history = GroupHistory(
        group,
        BEGAN,
        until,
        known_since=BEGAN + 10,
        steps=steps,
        commits=commits,
        timestamps={(tp, offset): BEGAN + offset for tp, offset in wanted_positions(steps[AT])},
        log_ends=[(until, {AT: 240})],
        departures=departures,
        backfills=[Backfill(BEGAN + 120, None, "00c0ffee", "STARTED")] if departures else [],
        notes=notes,
    )
    return Report(history, sla)


def text_of(found):
    """The lines in a terminal without a width."""
    console = Console(width=10_000, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(report_as_text(found))
    return [line.rstrip() for line in console.export_text().splitlines()]


class Page(HTMLParser):
    """The page, with what it would load and whether each element ends."""

    def __init__(self, text):
        super().__init__()
        self.open, self.loads, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.open += [] if tag in VOID else [tag]
        self.loads += [value for name, value in attrs if name in {"src", "href", "xlink:href", "action"}]
        assert tag not in {"script", "link", "img", "iframe"}
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_the_text():
    """The verdict is the first line; an incident has two."""
    lines = text_of(report(notes=["a fact is missing"]))
    assert lines[0].startswith(
        "orders-etl missed its SLA for 3 min 10 s of the known 3 min 50 s: kept 17.39 %"
    )
    at = lines.index("2026-11-27 17:20:40 UTC  run 0badcafe crashed")
    assert lines[at + 1 : at + 3] == [
        "  live again after 1 min 10 s; skipped 70 offsets",
        "  not caught up yet: 70 offsets pending; SLA missed for 3 min 10 s",
    ]
    assert max(map(len, lines)) <= 80
    assert "fresh within 20 s      73.91 %" in lines
    assert lines[-1] == "note: a fact is missing"
    assert text_of(report(ServiceLevel()))[0].startswith("no SLA is known for orders-etl: declare sla")
    assert any(
        line.startswith("SLA missed without a crash or fence: ") for line in text_of(report(departures=[]))
    )


def test_the_page():
    """Whole, with nothing from another host, no script, and each plot with its values as text."""
    text = report_as_html(report(notes=["a fact is missing"]))
    page = Page(text)
    assert (page.open, page.loads) == ([], [])
    assert not re.search(r"https?:|url[(]|@import", text)
    words = " ".join(page.words)
    for title in (
        "SLA over time",
        "Seconds behind",
        "Lag",
        "Pending offsets",
        "Rows committed",
        "Missing facts",
    ):
        assert title in words
    assert "17:21:50: 80 s" in words, "the largest value before the next commit"
    assert "a fact is missing" in words
    assert len(text) < 300_000


@pytest.mark.parametrize("minutes", [4, 60 * 30])
def test_a_page_of_little(minutes):
    """Without an SLA, incidents and backfills, and over more than a day."""
    text = report_as_html(report(ServiceLevel(), minutes=minutes, departures=[]))
    words = " ".join(Page(text).words)
    assert "None is recorded in this time span." in words
    assert "SLA over time" not in words
    assert ("11-28 00:00" in words) is (minutes > 60)


def test_crash_lag_that_was_caught_up_before_the_history():
    """Dagster has the skipped range, and no snapshot shows when the table got it."""
    crashed = Departure(BEGAN + 5, "0badcafe", LeaveReason.CRASHED)
    history = GroupHistory(
        "orders-etl", BEGAN, BEGAN + 60, known_since=BEGAN + 10, steps={}, departures=[crashed],
        skipped={OffsetRange("orders", 0, 30, 100): "0badcafe"},
    )  # fmt: skip
    lines = text_of(Report(history, SLA))
    assert "  not live again yet; skipped 70 offsets" in lines
    assert "  caught up before the known history; SLA missed for 0 s" in lines


def idle_group(*, joins=(), commits=(), sla=SLA):
    """A group whose run crashes at 40 s, 10 s after its last record; a record arrives at 200 s."""
    found = [TableCommit(BEGAN + at, {AT: (Span(at - 10, at),)}, rows=10) for at in (10, 20, 30)]
    found += [TableCommit(BEGAN + at, {AT: (Span(30, 40),)}, rows=10) for at in commits]
    steps = {AT: partition_steps(AT, found, until=BEGAN + 240, origin=0)}
    arrivals = {(AT, offset): BEGAN + offset for offset in (0, 10, 20)}
    history = GroupHistory(
        "orders-etl", BEGAN, BEGAN + 240, known_since=BEGAN + 10, steps=steps, commits=found,
        timestamps={**arrivals, **({(AT, 30): BEGAN + 200} if commits else {})},
        departures=[Departure(BEGAN + 40, "0badcafe", LeaveReason.CRASHED)],
        joins=[(BEGAN + at, run) for at, run in joins],
    )  # fmt: skip
    return Report(history, sla)


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        pytest.param(
            {"joins": [(41, "0badcafe"), (44, "0000beef")]},
            "  live again after 4 s (idle topic); skipped none",
            id="a successor joined",
        ),
        pytest.param(
            {"joins": [(44, "0000beef")], "commits": [203]},
            "  live again after 4 s (idle topic); skipped none",
            id="records came later",
        ),
        pytest.param(
            {"commits": [203]},
            "  live again after 2 min 43 s, 3 s after the first unread record; skipped none",
            id="no join is known",
        ),
        pytest.param({}, "  not live again yet, with no record to read; skipped none", id="no successor yet"),
    ],
)
def test_a_crash_on_an_idle_topic(facts, line):
    """Nothing was behind, so the time to the next commit is no outage."""
    lines = text_of(idle_group(**facts))
    at = lines.index("2026-11-27 17:20:40 UTC  run 0badcafe crashed")
    assert lines[at + 1] == line
    assert lines[at + 2] == "  SLA missed for 0 s"


def test_without_an_sla_no_missed_time_is_shown():
    """Neither in the terminal nor on the page."""
    found = idle_group(sla=ServiceLevel(), commits=[203])
    assert "SLA missed" not in "\n".join(text_of(found))
    assert "SLA missed" not in " ".join(Page(report_as_html(found)).words)


def test_names_of_users_are_text():
    """No group and no note becomes an element of the page."""
    page = Page(report_as_html(report(group="<b>a & b</b>", notes=["<script>alert(1)</script>"])))
    assert "<b>a & b</b>" in page.words
    assert "<script>alert(1)</script>" in page.words


def test_the_sla_of_a_code_location(tmp_path):
    """By the group; a location without it, or with an error, is no SLA."""
    file = tmp_path / "orders.py"
    text = (ROOT / "docs" / "examples" / "sla.py").read_text(encoding="utf-8")
    file.write_text(text.replace("orders-etl", "sla-etl").replace("lake.shop.orders", "lake.sla.orders"))
    assert declared_sla(None, file, "sla-etl") == ServiceLevel(30, 900)
    with pytest.raises(click.UsageError, match="declares no asset of group other-etl"):
        declared_sla(None, file, "other-etl")
    file.write_text("1 / 0")
    with pytest.raises(click.UsageError, match="could not be loaded"):
        declared_sla(None, file, "sla-etl")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--since", "yesterday"), "wanted a time like"),
        (("--since", "1h", "--until", "2h"), "The time span is empty"),
        (("--since", "2999-01-01"), "The time span is empty"),
        (("-m", "orders", "-f", __file__), "-m and -f both name"),
        (("-m", "no_such_module"), "could not be loaded"),
        (("--html", "no/such/folder/report.html"), "The folder of --html"),
        (("--fresh-seconds", "0"), "0.0 is not in the range 0<x"),
        (("--complete-minutes", "nan"), "is not a finite number"),
    ],
)
def test_wrong_options(options, message):
    """Exit code 2, before anything is read."""
    found = CliRunner().invoke(main, ["report", "orders-etl", *options])
    assert found.exit_code == 2, found.output
    assert message in found.output
