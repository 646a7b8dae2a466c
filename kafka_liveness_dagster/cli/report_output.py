"""Show a report in a terminal and as JSON. Computes nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from kafka_liveness_dagster.cli.report_sources import format_time
from kafka_liveness_dagster.core.names import format_duration
from kafka_liveness_dagster.core.report import format_share, total

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kafka_liveness_dagster.core.report import Incident, Interval, Report

_NOT_YET = "not yet"
_SHORT_IDLE_SECONDS = 1.0  # a busy topic has a record sooner


def report_as_json(report: Report) -> dict[str, Any]:
    """Return one object; times are seconds since the epoch, shares are from 0 to 1, None is unknown."""
    history = report.history
    return {
        "group": history.group_id,
        "since": history.since,
        "until": history.until,
        "known_since": history.known_since,
        "verdict": report.verdict,
        "summary": report.summary,
        "sla": asdict(report.sla),
        "within_sla": report.share,
        "within_fresh_limit": report.fresh_share,
        "within_complete_limit": report.complete_share,
        "missed_seconds": total(report.missed),
        "missed_seconds_without_incident": report.unattributed_seconds,
        "known_seconds": report.known_seconds,
        "max_seconds_behind": report.worst_behind,
        "pending_offsets": report.pending_offsets,
        "live_commits": len(report.live_commit_times),
        "crashes": len(report.crashes),
        "fences": len(report.fences),
        "fresh_limit_missed": _pairs(report.fresh_missed),
        "complete_limit_missed": _pairs(report.complete_missed),
        "unknown": _pairs(report.unknown),
        "incidents": [_incident_json(one) for one in report.incidents],
        "backfills": [asdict(one) for one in history.backfills],
        "points": [asdict(one) for one in report.points],
        "notes": list(history.notes),
    }


def _incident_json(one: Incident) -> dict[str, Any]:
    return {
        "at": one.departure.at,
        "run": one.departure.run,
        "reason": one.departure.reason.code if one.departure.reason else None,
        "is_crash": one.departure.is_crash,
        "resumed_after_seconds": one.resumed_after_seconds,
        "unread_after_seconds": one.unread_after_seconds,
        "skipped_offsets": one.skipped_offsets,
        "pending_offsets": one.pending_offsets,
        "caught_up_after_seconds": one.caught_up_after_seconds,
        "fresh_missed_seconds": total(one.fresh_missed),
        "complete_missed_seconds": total(one.complete_missed),
        "missed_seconds": one.missed_seconds,
    }


def _pairs(intervals: Sequence[Interval]) -> list[list[float]]:
    return [[one.start, one.end] for one in intervals]


def report_as_text(report: Report) -> Group:
    """Return the verdict, the numbers and the incidents for a terminal."""
    history = report.history
    style = "bold green" if report.is_well else "bold red"
    if not report.known_seconds:
        style = "bold yellow"
    lines = [
        ("since", format_time(history.since)),
        ("until", format_time(history.until)),
        ("known", format_duration(report.known_seconds) if report.known_seconds else "none"),
        *((name, format_share(share)) for name, share in shares(report)),
        (
            "seconds behind",
            "unknown" if report.worst_behind is None else f"{report.worst_behind:,.1f} at most",
        ),
        ("live commits", f"{len(report.live_commit_times):,}"),
        ("backfill runs", f"{len(history.backfills):,}"),
        ("pending offsets", f"{report.pending_offsets:,}"),
    ]
    width = max(len(name) for name, _ in lines) + 2
    facts = [Text.assemble(f"{name:<{width}}", value) for name, value in lines]
    incidents = [
        Text(line) for one in report.incidents for line in _incident_lines(one, has_sla=report.sla.is_set)
    ]
    rest = report.unattributed_seconds
    other = [Text(f"SLA missed without a crash or fence: {format_duration(rest)}")] if rest >= 1 else []
    notes = [Text(f"note: {note}", "yellow") for note in history.notes]
    return Group(Text(report.verdict, style), Text(report.summary), *facts, *incidents, *other, *notes)


def _incident_lines(one: Incident, *, has_sla: bool) -> Iterator[str]:
    at, run, event, resumed, skipped, caught_up, missed = incident_cells(one)
    yield f"{at}  run {run} {event}"
    yield f"  {_clause('live again', resumed)}; skipped {skipped}"
    consequences = [
        *([_clause("caught up", caught_up)] if caught_up else []),
        *([f"SLA missed for {missed}"] if has_sla else []),
    ]
    if consequences:
        yield f"  {'; '.join(consequences)}"


def _clause(state: str, cell: str) -> str:
    """Return a cell with its state as a clause.

    >>> _clause("caught up", "not yet: 70 offsets pending"), _clause("caught up", "after 3.2 s")
    ('not caught up yet: 70 offsets pending', 'caught up after 3.2 s')
    """
    if cell.startswith(_NOT_YET):
        return f"not {state} yet{cell.removeprefix(_NOT_YET)}"
    return f"{state} {cell}"


def shares(report: Report) -> list[tuple[str, float | None]]:
    """Return the shares of time within each limit that is set."""
    sla = report.sla
    found = []
    if sla.fresh_seconds is not None:
        found.append((f"fresh within {format_duration(sla.fresh_seconds)}", report.fresh_share))
    if sla.complete_seconds is not None:
        found.append((f"complete within {format_duration(sla.complete_seconds)}", report.complete_share))
    return found


def incident_cells(one: Incident) -> tuple[str, ...]:
    """Return the row of an incident."""
    return (
        format_time(one.departure.at),
        one.departure.run,
        one.departure.text,
        _resumed(one),
        f"{one.skipped_offsets:,} offsets" if one.skipped_offsets else "none",
        _caught_up(one),
        format_duration(one.missed_seconds) if one.missed_seconds else "0 s",
    )


def _resumed(one: Incident) -> str:
    if one.is_earlier:
        return "before the time span"
    unread = one.unread_after_seconds
    if one.resumed_after_seconds is None:
        return _NOT_YET if unread is not None else f"{_NOT_YET}, with no record to read"
    after = f"after {format_duration(one.resumed_after_seconds)}"
    if unread is None:
        return f"{after} (idle topic)"
    if unread < _SHORT_IDLE_SECONDS:
        return after
    late = format_duration(max(0.0, one.resumed_after_seconds - unread))
    return f"{after}, {late} after the first unread record"


def _caught_up(one: Incident) -> str:
    if not one.skipped_offsets:
        return ""
    if one.caught_up_after_seconds is None and not one.pending_offsets:
        return "before the known history"
    if one.caught_up_after_seconds is None:
        return f"{_NOT_YET}: {one.pending_offsets:,} offsets pending"
    return f"after {format_duration(one.caught_up_after_seconds)}"
