"""Render a report as one HTML page: inline SVG and CSS, no script, and nothing from another host.

Computes nothing. Every text is escaped: names of runs and groups are text of users.
"""

from __future__ import annotations

from datetime import datetime, timezone
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kafka_liveness_dagster.cli.report_output import incident_cells, shares
from kafka_liveness_dagster.cli.report_sources import format_time
from kafka_liveness_dagster.core.names import format_duration
from kafka_liveness_dagster.core.report import BUCKETS, format_share, total

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kafka_liveness_dagster.core.report import Interval, Point, Report

_STYLE = Path(__file__).with_name("report.css")
_HEIGHT = 100.0
_TICK_SECONDS = (
    *(10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200),
    *(86_400, 172_800, 604_800, 2_592_000),
)
_MAX_TICKS = 8
_MINUTE_SECONDS = 60
_MIN_LABEL_PERCENT = 4  # of the width, between two numbers of incidents
_MIN_NAMED_SECONDS = 1
_DAY_SECONDS = 86_400
_WORDS = {"good": "SLA kept", "bad": "SLA missed", "none": "no SLA"}
_NICE_STEPS = (1, 2, 2.5, 5, 10)


def report_as_html(report: Report) -> str:
    """Return the page."""
    return "\n".join(_page(report)) + "\n"


def _page(report: Report) -> Iterator[str]:
    history = report.history
    title = f"Report of {history.group_id}"
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="color-scheme" content="light dark">'
    yield f"<title>{escape(title)}</title>"
    yield f"<style>{_STYLE.read_text(encoding='utf-8')}</style></head><body><main>"
    yield from _header(report)
    yield from _tiles(report)
    yield from _timeline(report)
    yield from _plots(report)
    yield from _incidents(report)
    yield from _backfills(report)
    yield from _notes(report)
    yield from _method()
    yield "</main></body></html>"


def _header(report: Report) -> Iterator[str]:
    history = report.history
    known = report.known_seconds
    state = "good" if report.is_well else "bad"
    if not report.sla.is_set or not known:
        state = "none"
    word = _WORDS[state] if known else "unknown"
    yield (
        f'<header><p class="kind">Consumer group</p><h1>{escape(history.group_id)}</h1>'
        f'<p class="span">{format_time(history.since)} to {format_time(history.until)} '
        f"({format_duration(history.until - history.since)})</p></header>"
    )
    yield (
        f'<section class="verdict {state}"><strong>{word}</strong>'
        f"<span>{escape(report.verdict)}<br>{escape(report.summary)}</span></section>"
    )


def _tiles(report: Report) -> Iterator[str]:
    tiles = [(name, format_share(share), share is not None and share < 1) for name, share in shares(report)]
    worst = report.worst_behind
    tiles += [
        ("furthest behind", "unknown" if worst is None else format_duration(worst), False),
        ("pending at the end", f"{report.pending_offsets:,} offsets", report.pending_offsets > 0),
        ("crashes", f"{len(report.crashes):,}", False),
        ("fences", f"{len(report.fences):,}", False),
        ("backfill runs", f"{len(report.history.backfills):,}", False),
        ("live commits", f"{len(report.live_commit_times):,}", False),
    ]
    yield '<section class="tiles">'
    for name, value, is_bad in tiles:
        yield f"<div{' class=bad' if is_bad else ''}><b>{escape(value)}</b><span>{escape(name)}</span></div>"
    yield "</section>"


def _timeline(report: Report) -> Iterator[str]:
    rows: list[tuple[str, Sequence[Interval]]] = []
    if report.sla.fresh_seconds is not None:
        rows.append(("fresh", report.fresh_missed))
    if report.sla.complete_seconds is not None:
        rows.append(("complete", report.complete_missed))
    if not rows:
        return
    yield '<section class="card"><h2>SLA over time</h2>'
    for name, missed in rows:
        yield f'<div class="plot band"><span class="name">{name}</span><div class="area">'
        yield _svg(
            f'<rect class="good" width="{BUCKETS}" height="{_HEIGHT:g}"/>',
            *_blocks(report, report.unknown, "unknown"),
            *_blocks(report, missed, "bad"),
            name=f"{name}: times within the limit, outside of it, and unknown",
        )
        yield "</div></div>"
    yield _time_axis(report)
    yield (
        '<p class="legend"><i class="good"></i>within the limit <i class="bad"></i>outside '
        '<i class="unknown"></i>unknown</p></section>'
    )


class _Plot(NamedTuple):
    """One plot of the page.

    Attributes:
        unit: unit of its values, as a suffix.
        value: value of a point; None if it is unknown.
        limit: the SLA's limit, as a line.
        second: value of a second color, stacked on the first.
    """

    title: str
    about: str
    value: Callable[[Point], float | None]
    unit: str = ""
    limit: float | None = None
    second: Callable[[Point], float | None] | None = None


def _plots(report: Report) -> Iterator[str]:
    sla = report.sla
    plots = (
        _Plot(
            title="Seconds behind",
            about="age of the oldest record that the live lane had not written, largest value of an interval",
            unit=" s",
            value=lambda point: point.seconds_behind,
            limit=sla.fresh_seconds,
        ),
        _Plot(
            title="Lag",
            about="offsets that the live lane had not written, at the end of an interval",
            value=lambda point: point.lag,
        ),
        _Plot(
            title="Pending offsets",
            about="crash lag: offsets that the live lane passed and the table lacked",
            value=lambda point: point.pending_offsets,
        ),
        _Plot(
            title="Age of the oldest pending record",
            about="by its timestamp, largest value of an interval",
            unit=" s",
            value=lambda point: point.pending_age_seconds,
            limit=sla.complete_seconds,
        ),
        _Plot(
            title="Rows committed",
            about="by table commits of the live lane and of backfills",
            value=lambda point: point.live_rows,
            second=lambda point: point.backfilled_rows,
        ),
    )
    for plot in plots:
        yield from _plot(report, plot)


def _plot(report: Report, plot: _Plot) -> Iterator[str]:
    points = report.points
    second = plot.second or (lambda _: 0)
    sums = [(plot.value(one) or 0) + (second(one) or 0) for one in points]
    highest = max(sums, default=0)
    top = _nice_top(max(highest, plot.limit if plot.limit and plot.limit <= 3 * highest else 0))
    is_limit_shown = plot.limit is not None and plot.limit <= top
    bars = []
    for index, one in enumerate(points):
        value = plot.value(one)
        if value is None:
            continue
        bars += _bar(index, value, top, "bar late" if _is_late(plot, value) else "bar")
        bars += _bar(index, second(one) or 0, top, "bar second", base=value)
    titles = [
        f'<rect class="hover" x="{index}" width="1" height="{_HEIGHT:g}"><title>'
        f"{_time_text(report, one.at)}: {_value_text(plot, one)}</title></rect>"
        for index, one in enumerate(points)
    ]
    y = _HEIGHT * (1 - (plot.limit or 0) / top)
    line = [f'<line class="limit" x2="{BUCKETS}" y1="{y:.2f}" y2="{y:.2f}"/>'] if is_limit_shown else []
    limit = f'<p class="limit">limit {_number(plot.limit or 0)}{plot.unit}</p>' if plot.limit else ""
    yield f'<section class="card"><h2>{plot.title}</h2><p class="about">{plot.about}</p>{limit}'
    yield '<div class="plot"><ol class="scale">'
    yield from (f"<li>{_number(top * part / 2)}{plot.unit}</li>" for part in (2, 1, 0))
    yield '</ol><div class="area">'
    yield _svg(
        f'<path class="grid" d="M0 0H{BUCKETS}M0 50H{BUCKETS}M0 100H{BUCKETS}"/>',
        *_blocks(report, report.unknown, "unknown"),
        *bars,
        *line,
        *_markers(report),
        *titles,
        name=f"{plot.title}: at most {_number(highest)}{plot.unit}",
    )
    yield from _marker_labels(report)
    yield "</div></div>"
    yield _time_axis(report)
    if plot.second is not None:
        yield '<p class="legend"><i class="bar"></i>live lane <i class="bar second"></i>backfills</p>'
    yield "</section>"


def _is_late(plot: _Plot, value: float) -> bool:
    return plot.limit is not None and value > plot.limit


def _value_text(plot: _Plot, point: Point) -> str:
    value = plot.value(point)
    if value is None:
        return "unknown"
    more = f" live, {_number(plot.second(point) or 0)} backfilled" if plot.second is not None else ""
    return f"{_number(value)}{plot.unit}{more}"


def _bar(index: int, value: float, top: float, kind: str, *, base: float = 0.0) -> list[str]:
    if value <= 0:
        return []
    height = _HEIGHT * value / top
    y = _HEIGHT - height - _HEIGHT * base / top
    return [f'<rect class="{kind}" x="{index}" y="{y:.2f}" width="1.02" height="{height:.2f}"/>']


def _x(report: Report, at: float) -> float:
    history = report.history
    return BUCKETS * (at - history.since) / (history.until - history.since)


def _blocks(report: Report, intervals: Sequence[Interval], kind: str) -> Iterator[str]:
    for one in intervals:
        x = _x(report, one.start)
        width = max(0.4, _x(report, one.end) - x)  # a short one is seen, too
        text = f"{kind}: {_time_text(report, one.start)}, {format_duration(one.end - one.start)}"
        yield (
            f'<rect class="{kind}" x="{x:.2f}" width="{width:.2f}" height="{_HEIGHT:g}">'
            f"<title>{text}</title></rect>"
        )


def _markers(report: Report) -> Iterator[str]:
    for one in report.incidents:
        x = _x(report, one.departure.at)
        if x < 0:  # a crash before the time span
            continue
        kind = "crash" if one.departure.is_crash else "fence"
        yield f'<line class="marker {kind}" x1="{x:.2f}" x2="{x:.2f}" y2="{_HEIGHT:g}"/>'


def _marker_labels(report: Report) -> Iterator[str]:
    """Yield the numbers of the incidents; one that would cover the one before is left out."""
    last = -10.0
    for number, one in enumerate(report.incidents, 1):
        percent = 100 * _x(report, one.departure.at) / BUCKETS
        if percent < 0 or percent - last < _MIN_LABEL_PERCENT:
            continue
        last = percent
        yield f'<span class="mark" style="left:{percent:.2f}%">{number}</span>'


def _time_axis(report: Report) -> str:
    """Return the axis, with a label at each full step of the clock."""
    since = report.history.since
    until = report.history.until
    step = next((one for one in _TICK_SECONDS if (until - since) / one <= _MAX_TICKS), _TICK_SECONDS[-1])
    ticks = []
    at = -(-since // step) * step
    while at <= until:
        percent = 100 * _x(report, at) / BUCKETS
        ticks.append(f'<li style="left:{percent:.2f}%">{_time_text(report, at, step)}</li>')
        at += step
    return f'<ol class="axis">{"".join(ticks)}</ol>'


def _time_text(report: Report, at: float, precision: float = 1.0) -> str:
    """Return a time, with its date in a long span and with seconds if the precision needs them."""
    is_long = report.history.until - report.history.since > _DAY_SECONDS
    form = ("%m-%d " if is_long else "") + ("%H:%M" if precision >= _MINUTE_SECONDS else "%H:%M:%S")
    return datetime.fromtimestamp(at, timezone.utc).strftime(form)


def _nice_top(highest: float) -> float:
    """Return a round number that is at least so large."""
    scale = 1.0
    while scale * 10 < highest:
        scale *= 10
    return next(scale * step for step in _NICE_STEPS if scale * step >= highest)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value > _NICE_STEPS[-1] else f"{value:.1f}"


def _svg(*content: str, name: str) -> str:
    return (
        f'<svg viewBox="0 0 {BUCKETS} {_HEIGHT:g}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(name)}">{"".join(content)}</svg>'
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield '<div class="scroll"><table><thead><tr>'
    yield "".join(f"<th>{escape(one)}</th>" for one in columns)
    yield "</tr></thead><tbody>"
    for row in rows:
        cells = (
            f'<td data-name="{escape(name)}">{escape(cell)}</td>'
            for name, cell in zip(columns, row, strict=True)
        )
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"


def _incidents(report: Report) -> Iterator[str]:
    yield '<section class="card"><h2>Crashes and fences</h2>'
    if not report.incidents:
        yield '<p class="about">None is recorded in this time span.</p></section>'
        return
    cost = ("SLA missed for", "share") if report.sla.is_set else ()
    columns = ("#", "time", "run", "event", "live again", "skipped", "caught up", *cost)
    known = report.known_seconds
    rows = []
    for number, one in enumerate(report.incidents, 1):
        at, run, event, resumed, skipped, caught_up, missed = incident_cells(one)
        share = f"{100 * one.missed_seconds / known:.2f} %" if known and one.missed_seconds else "none"
        costs = (missed, share) if report.sla.is_set else ()
        rows.append((str(number), at, run, event, resumed, skipped, caught_up or "nothing to do", *costs))
    yield from _table(columns, rows)
    rest = report.unattributed_seconds
    if rest >= _MIN_NAMED_SECONDS:
        yield (
            f'<p class="about">The SLA was missed for {format_duration(rest)} of '
            f"{format_duration(total(report.missed))} without a crash or fence.</p>"
        )
    yield "</section>"


def _backfills(report: Report) -> Iterator[str]:
    if not report.history.backfills:
        return
    yield '<section class="card"><h2>Backfills</h2>'
    rows = [
        (
            format_time(one.start),
            one.run,
            one.status.lower(),
            "in progress" if one.end is None else format_duration(max(0.0, one.end - one.start)),
        )
        for one in report.history.backfills
    ]
    yield from _table(("begin", "run", "status", "duration"), rows)
    yield "</section>"


def _notes(report: Report) -> Iterator[str]:
    if report.history.notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in report.history.notes)
        yield f'<section class="card notes"><h2>Missing facts</h2><ul>{items}</ul></section>'


def _method() -> Iterator[str]:
    yield '<section class="card"><details><summary>How these numbers are computed</summary>'
    yield from (f"<p><b>{title}.</b> {escape(text)}</p>" for title, text in _METHOD.items())
    yield "</details></section>"


_METHOD = {
    "Sources": (
        "The table's snapshots have the time and the offsets of each commit. Kafka has the timestamp of each "
        "record. Dagster has the runs, and the events that the group's sensor reported."
    ),
    "Seconds behind": (
        "After each commit the first offset that the live lane has not written is known. Until the next "
        "commit the table is behind by the age of that record. So the value is exact between two commits."
    ),
    "Complete": (
        "The age of the oldest record that the table lacks, in either lane. A backfill of an old range does "
        "not make a table complete while a newer range is pending."
    ),
    "Cost of a crash": (
        "A missed time counts for the last crash or fence since the commit before it. It goes on counting "
        "while the live lane catches up. Crash lag counts for the crash that Dagster recorded as its cause. "
        "Times of two crashes may overlap."
    ),
    "Unknown": (
        "This is the time before the oldest snapshot, and the time whose oldest records Kafka has deleted. "
        "It counts neither as kept nor as missed."
    ),
}
