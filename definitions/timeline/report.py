"""How does one watch a timeline? Row by row as it happens, then the verdict; heartbeats are ticks of one row."""

from __future__ import annotations

import json
import time
from contextlib import closing
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from definitions.timeline.events import Event, Scene, Telling, What
from definitions.timeline.picture import draw
from definitions.timeline.recorder import throw_away_topic, watch
from definitions.timeline.verdict import Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from kafka_liveness_dagster.kafka.settings import KafkaSettings

_COLOURS = {"op": "yellow", "librdkafka": "green", "watchdog": "red", "broker": "cyan"}
_MOST_TICKS = 40


def tell(settings: KafkaSettings, scene: Scene, *, json_file: Path | None, picture: Path | None) -> Verdict:
    """Watch one stalled consumer on a topic of its own, show it, and judge it.

    Args:
        settings: the cluster.
        scene: the timeouts and how long to stall.
        json_file: where to write verdict and events.
        picture: where to draw them, as SVG.

    Raises:
        TimelineError: the consumer ended before its story did.
    """
    console = Console(highlight=False)
    _introduce(console, scene)
    with throw_away_topic(settings, scene) as name:
        telling = Telling(scene, tuple(_shown(console, watch(settings, name, scene))))
    verdict = judge(telling)
    _show(console, verdict)
    if json_file is not None:
        json_file.write_text(json.dumps({**verdict.as_json(), **telling.as_json()}, indent=1) + "\n", encoding="utf-8")
    if picture is not None:
        picture.write_text(draw(telling), encoding="utf-8")
    return verdict


def _shown(console: Console, events: Generator[Event]) -> Iterator[Event]:
    with closing(events), _Rows(console) as rows:
        for event in events:
            rows.add(event)
            yield event


class _Rows:
    """One row for each event. What librdkafka sends again and again stays one row that grows in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._growing: list[Event] = []
        self._zero = 0.0
        self._live = Live(get_renderable=self._foot, console=console, transient=True, refresh_per_second=10)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        self._print_growing()

    def add(self, event: Event) -> None:
        """Another event: one more of the growing row, or a row of its own."""
        self._zero = self._zero or time.monotonic() - event.at
        if self._growing and event.what is not self._growing[0].what:
            self._print_growing()
        self._growing.append(event)
        if event.what.who != "librdkafka":
            self._print_growing()
        self._live.refresh()

    def _print_growing(self) -> None:
        if self._growing:
            self._console.print(_row(self._growing), soft_wrap=True)
            self._growing = []

    def _foot(self) -> Group:
        """Caller: rich, on its own thread, ten times a second. Affects: nothing."""
        now = f"{time.monotonic() - self._zero:7.1f}" if self._zero else "waiting for the first poll"
        growing = list(self._growing)
        return Group(*([_row(growing)] if growing else ()), Text(now, style="dim"))


def _row(events: Sequence[Event]) -> Text:
    first, times = events[0], len(events)
    until = f" to {events[-1].at:.2f}" if times > 1 else ""
    row = Text(f"{first.at:7.2f}{until:<10} ")
    row.append(f"{first.what.who:<11}", style=_COLOURS[first.what.who])
    row.append(first.what.value + (f", {times} times" if times > 1 else ""))
    if first.what is What.HEARTBEAT_SENT:
        row.append(" " + "♥" * min(times, _MOST_TICKS), style="green")
    return row.append(f": {first.detail}" if first.detail else "")


def _introduce(console: Console, scene: Scene) -> None:
    console.print(
        f"A consumer ({scene.protocol} protocol) polls a batch and stalls for {scene.stall:g} s: longer than its poll "
        f"interval of {scene.poll_interval:g} s, and much longer than its session timeout of {scene.session:g} s.\n",
        soft_wrap=True,
    )


def _show(console: Console, verdict: Verdict) -> None:
    table = Table("", "what must be (KIP-62)", "what was", title="Verdict", title_justify="left")
    for law in verdict.laws:
        table.add_row("[green]ok[/]" if law.holds else "[red]FAIL[/]", law.says, Text(law.found))
    console.print()
    console.print(table)
    console.print(f"This is the timeline of KIP-62: {'[bold green]yes[/]' if verdict.holds else '[bold red]NO[/]'}")
