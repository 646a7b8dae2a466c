"""How does one watch a timeline?

Row by row as it happens, then the verdict; heartbeats are ticks of one row.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from definitions.timeline.events import Recording, Scenario, TimelineEvent, What
from definitions.timeline.picture import draw_svg
from definitions.timeline.recorder import record_events, temporary_topic
from definitions.timeline.verdict import TimelineVerdict, judge_recording
from kafka_liveness_dagster.cli.status_output import create_console

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path

    from rich.console import Console
    from typing_extensions import Self

    from kafka_liveness_dagster.kafka.settings import KafkaSettings

_COLORS = {"op": "yellow", "librdkafka": "green", "watchdog": "red", "broker": "cyan"}
_MAX_TICKS = 40


def run_timeline(
    settings: KafkaSettings,
    scenario: Scenario,
    *,
    json_file: Path | None,
    picture: Path | None,
    as_json: bool = False,
) -> TimelineVerdict:
    """Watch one stalled consumer on a topic of its own, show it, and judge it.

    Args:
        settings: the cluster.
        scenario: the timeouts and how long to stall.
        json_file: where to write verdict and events.
        picture: where to draw them, as SVG.
        as_json: print verdict and events on stdout as one JSON document, and all else on stderr.

    Raises:
        TimelineError: the consumer ended before its story did.
    """
    console = create_console(stderr=as_json)
    _show_introduction(console, scenario)
    with temporary_topic(settings, scenario) as name:
        telling = Recording(scenario, tuple(_show_live(console, record_events(settings, name, scenario))))
    verdict = judge_recording(telling)
    _show_verdict(console, verdict)
    document = {**verdict.as_json(), **telling.as_json()}
    if json_file is not None:
        json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if as_json:
        sys.stdout.write(json.dumps(document) + "\n")
    if picture is not None:
        picture.write_text(draw_svg(telling), encoding="utf-8")
    return verdict


def _show_live(console: Console, events: Generator[TimelineEvent]) -> Iterator[TimelineEvent]:
    with closing(events), _EventRows(console) as rows:
        for event in events:
            rows.add(event)
            yield event


class _EventRows:
    """One row for each event. What librdkafka sends again and again stays one row that grows in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._growing: list[TimelineEvent] = []
        self._started_at = 0.0
        self._live = Live(get_renderable=self._foot, console=console, transient=True, refresh_per_second=10)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        self._print_growing()

    def add(self, event: TimelineEvent) -> None:
        """Another event: one more of the growing row, or a row of its own."""
        self._started_at = self._started_at or time.monotonic() - event.at
        if self._growing and event.kind is not self._growing[0].kind:
            self._print_growing()
        self._growing.append(event)
        if event.kind.actor != "librdkafka":
            self._print_growing()
        self._live.refresh()

    def _print_growing(self) -> None:
        if self._growing:
            self._console.print(_event_row(self._growing), soft_wrap=True)
            self._growing = []

    def _foot(self) -> Group:
        """Caller: rich, on its own thread, ten times a second. Affects: nothing."""
        now = (
            f"{time.monotonic() - self._started_at:7.1f}"
            if self._started_at
            else "waiting for the first poll"
        )
        growing = list(self._growing)
        return Group(*([_event_row(growing)] if growing else ()), Text(now, style="dim"))


def _event_row(events: Sequence[TimelineEvent]) -> Text:
    first, times = events[0], len(events)
    until = f" to {events[-1].at:.2f}" if times > 1 else ""
    row = Text(f"{first.at:7.2f}{until:<10} ")
    row.append(f"{first.kind.actor:<11}", style=_COLORS[first.kind.actor])
    row.append(first.kind.value + (f", {times} times" if times > 1 else ""))
    if first.kind is What.HEARTBEAT_SENT:
        row.append(" " + "♥" * min(times, _MAX_TICKS), style="green")
    return row.append(f": {first.detail}" if first.detail else "")


def _show_introduction(console: Console, scenario: Scenario) -> None:
    console.print(
        f"A consumer ({scenario.protocol} protocol) polls a batch and stalls for {scenario.stall:g} s: "
        f"longer than its poll interval of {scenario.poll_interval:g} s, and much longer than its session "
        f"timeout of {scenario.session:g} s.\n",
        soft_wrap=True,
    )


def _show_verdict(console: Console, verdict: TimelineVerdict) -> None:
    table = Table("", "what must be (KIP-62)", "what was", title="Verdict", title_justify="left")
    for law in verdict.expectations:
        table.add_row("[green]ok[/]" if law.is_met else "[red]FAIL[/]", law.statement, Text(law.observed))
    console.print()
    console.print(table)
    console.print(
        f"This is the timeline of KIP-62: {'[bold green]yes[/]' if verdict.all_met else '[bold red]NO[/]'}"
    )
