"""Anomalies of a history, by pure functions of its events.

It reads no clock, file, broker or table. It assumes one table, to which the transform writes one row for each
record. Records are counted by runs of offsets, so a history of 500,000 records takes about a second.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tests.history.events import HistoryError
from tests.history.spans import difference, intersection, union

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.history.events import Event
    from tests.history.spans import Span

    Partition = tuple[str, int]
    Spans = dict[Partition, list[Span]]

KINDS = (
    "lost",
    "doubled",
    "out_of_range",
    "changed",
    "seen_then_gone",
    "green_without_rows",
    "certified_but_absent",
    "committed_backwards",
)


_REPORT_SECONDS = 60.0
"""A run reports a batch up to so long after its commit, and may not know yet of a rollback in between.

It learns of one with its next read of the ledger: a hundred times as long after the last one as a read takes,
0.1 to 0.3 s under load. A run that was stopped in between (14 s were seen) reports that much later.
"""
_LINES, _LOOKED_UP = 5, 1_000
"""Lines of evidence for an anomaly, and anomalies that have such lines: each costs a search of all events."""


class Anomaly(NamedTuple):
    """A run of offsets for which the history contradicts itself, and the lines of the events that show it."""

    kind: str
    topic: str
    partition: int
    start: int
    end: int
    lines: tuple[int, ...]
    detail: str

    def __str__(self) -> str:
        lines = ", ".join(map(str, self.lines))
        return f"p{self.partition}:{self.topic}:{self.start}-{self.end}  {self.detail} (lines {lines})"


def check(events: Iterable[Event]) -> list[Anomaly]:
    """Return all anomalies of a history, by kind and partition.

    Raises:
        HistoryError: nothing was produced or nothing was read, so there is nothing to compare.
    """
    history = _History(sorted(events, key=lambda event: event.time))
    for needed in ("produced", "read"):
        if not history.events(needed):
            raise HistoryError(f"the history has no event {needed!r}: nothing can be compared")
    found = [
        *_lost(history),
        *_doubled(history),
        *_out_of_range(history),
        *_changed(history),
        *_seen_then_gone(history),
        *_without_rows(history, "green", "green_without_rows"),
        *_without_rows(history, "certified", "certified_but_absent"),
        *_committed_backwards(history),
    ]
    return sorted(found, key=lambda anomaly: (KINDS.index(anomaly.kind), anomaly))


class _History:
    """The events in the order of their times, by type, with the spans that several checks need."""

    def __init__(self, events: list[Event]) -> None:
        self._looked_up = 0
        self._by_type: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            self._by_type[event.type].append(event)
        self.produced = _spans(self.events("produced"))
        self.reads = [(event, _spans([event])) for event in self.events("read")]
        self._made: dict[Partition, list[tuple[int, int, int]]] = defaultdict(list)
        for event in (*self.events("produced"), *self.events("planned"), *self.events("written")):
            for topic, partition, start, end in event["ranges"]:
                self._made[topic, partition].append((start, end, event.line))

    def events(self, type: str, *, until: float = float("inf")) -> list[Event]:  # noqa: A002 - the file's word
        """Return the events of a type, up to a time."""
        return [event for event in self._by_type[type] if event.time <= until]

    def made(self, tp: Partition, offset: int) -> tuple[int, ...]:
        """Return the lines of the events that produced, planned and wrote an offset.

        The first, and the last few.
        """
        if self._looked_up >= _LOOKED_UP:
            return ()
        self._looked_up += 1
        lines = sorted(line for start, end, line in self._made[tp] if start <= offset < end)
        return (*lines[:1], *lines[1:][-_LINES:])


def _spans(events: Iterable[Event]) -> Spans:
    """Return the offsets of the events' ranges or rows, by partition."""
    return _spans_of(
        span for event in events for name in ("ranges", "rows") for span in event.fields.get(name, ())
    )


def _spans_of(ranges: Iterable[Sequence]) -> Spans:
    """Return the offsets of ranges, by partition."""
    found: Spans = defaultdict(list)
    for topic, partition, start, end, *_ in ranges:
        found[topic, partition].append((start, end))
    return {tp: union(spans) for tp, spans in found.items()}


def _unknown(spans: Spans, known: Spans) -> Iterator[tuple[Partition, int, int]]:
    """Return the spans that are not known yet, and add them to the known ones.

    Each offset is reported once.
    """
    for tp, some in spans.items():
        for start, end in difference(some, known.get(tp, [])):
            yield tp, start, end
        known[tp] = union([*known.get(tp, []), *some])


def _due(history: _History, until: float) -> dict[Partition, tuple[int, Event]]:
    """Return the end below which each record is due, and the event from which that follows."""
    ends: dict[Partition, tuple[int, Event]] = {}

    def extend(tp: Partition, end: int, event: Event) -> None:
        if tp not in ends or ends[tp][0] < end:
            ends[tp] = (end, event)

    for event in history.events("committed", until=until):
        extend((event["topic"], event["partition"]), event["offset"], event)
    for event in history.events("green", until=until):
        for topic, partition, _, end in event["ranges"]:
            extend((topic, partition), end, event)
    return ends


def _lost(history: _History) -> Iterator[Anomaly]:
    """Find records below a commit, or before the end of a green range, that are not in the last read."""
    read, rows = history.reads[-1]
    begins = {(event["topic"], event["partition"]): event["offset"] for event in history.events("started")}
    pending = {event["group"]: event for event in history.events("pending", until=read.time)}
    excused = _spans(
        [
            *history.events("written_off", until=read.time),
            *history.events("quarantined", until=read.time),
            *pending.values(),
        ]
    )
    for tp, (end, due) in _due(history, read.time).items():
        below = intersection(history.produced.get(tp, []), [(begins.get(tp, 0), end)])
        absent = difference(difference(below, excused.get(tp, [])), rows.get(tp, []))
        for start, stop in absent:
            lines = (*history.made(tp, start), due.line, read.line)
            claim = f"committed {end}" if due.type == "committed" else f"green up to {end}"
            yield Anomaly("lost", *tp, start, stop, lines, f"produced, {claim}, absent from the last read")


def _doubled(history: _History) -> Iterator[Anomaly]:
    """Find offsets that one read has more than once; the first such read is the evidence."""
    known: Spans = {}
    for read, _ in history.reads:
        several = _spans_of(row for row in read["rows"] if row[4] > 1)
        for tp, start, end in _unknown(several, known):
            lines = (*history.made(tp, start), read.line)
            yield Anomaly("doubled", *tp, start, end, lines, "more than once in one read")


def _out_of_range(history: _History) -> Iterator[Anomaly]:
    """Find rows that no record was produced for; the first read that has them is the evidence."""
    known = dict(history.produced)
    for read, rows in history.reads:
        for tp, start, end in _unknown(rows, known):
            yield Anomaly("out_of_range", *tp, start, end, (read.line,), "in the table, and never produced")


def _changed(history: _History) -> Iterator[Anomaly]:
    """Find rows with another value than the record of their offset; only where both events have values."""
    produced: dict[Partition, list[tuple[int, list]]] = defaultdict(list)
    for event in history.events("produced"):
        for tp, start, values in _valued(event, event["ranges"]):
            produced[tp].append((start, values))
    known: Spans = {}
    for read, _ in history.reads:
        wrong: Spans = defaultdict(list)
        for tp, start, values in _valued(read, read["rows"]):
            for first, originals in produced.get(tp, ()):
                wrong[tp] += _differing(start, values, first, originals)
        for tp, start, end in _unknown({tp: union(spans) for tp, spans in wrong.items()}, known):
            lines = (*history.made(tp, start), read.line)
            yield Anomaly("changed", *tp, start, end, lines, "another value than was produced")


def _differing(start: int, values: list, first: int, originals: list) -> list[Span]:
    """Return the offsets that both lists have, with different values.

    The lists begin at ``start`` and ``first``.
    """
    low, high = max(start, first), min(start + len(values), first + len(originals))
    ours, theirs = (
        values[low - start : max(low, high) - start],
        originals[low - first : max(low, high) - first],
    )
    if ours == theirs:
        return []
    return [
        (low + i, low + i + 1)
        for i, (our, their) in enumerate(zip(ours, theirs, strict=True))
        if our != their
    ]


def _valued(event: Event, ranges: list) -> Iterator[tuple[Partition, int, list]]:
    """Return the value of each offset of each range.

    Of an offset with several rows, the first value alone.
    """
    values, place = event.fields.get("values"), 0
    for topic, partition, start, end, *count in ranges if values is not None else ():
        times = count[0] if count else 1
        stop = place + (end - start) * times
        yield (topic, partition), start, values[place:stop:times]
        place = stop


def _seen_then_gone(history: _History) -> Iterator[Anomaly]:
    """Find rows of an earlier read that a later one lacks, without a rollback of the table in between."""
    seen: Spans = {}
    known: Spans = {}
    before: Event | None = None
    for read, rows in history.reads:
        rollbacks = [
            event
            for event in history.events("rolled_back")
            if before and before.time < event.time <= read.time
        ]
        gone = (
            {tp: difference(spans, rows.get(tp, [])) for tp, spans in seen.items()} if not rollbacks else {}
        )
        for tp, start, end in _unknown(gone, known):
            lines = (before.line, read.line)
            yield Anomaly(
                "seen_then_gone", *tp, start, end, lines, "in an earlier read, absent from a later one"
            )
        seen, before = rows, read


def _without_rows(history: _History, type: str, kind: str) -> Iterator[Anomaly]:  # noqa: A002 - the file's word
    """Find records of a reported range that the first read after the report lacks.

    A rollback shortly before the report of a run, or after it, excuses them; the last read has to have them
    anyway.
    """
    known: Spans = {}
    rollbacks = [event.time for event in history.events("rolled_back")] if type == "green" else []
    for event in history.events(type):
        following = next(((read, rows) for read, rows in history.reads if read.time >= event.time), None)
        if following is None:
            continue
        read, rows = following
        if any(event.time - _REPORT_SECONDS < time <= read.time for time in rollbacks):
            continue
        excused = _spans(history.events("written_off", until=read.time)) if type == "green" else {}
        absent = {}
        for tp, spans in _spans([event]).items():
            records = difference(intersection(history.produced.get(tp, []), spans), excused.get(tp, []))
            absent[tp] = difference(records, rows.get(tp, []))
        for tp, start, end in _unknown(absent, known):
            yield Anomaly(
                kind, *tp, start, end, (event.line, read.line), f"{type}, absent from the next read"
            )


def _committed_backwards(history: _History) -> Iterator[Anomaly]:
    """Find commits below an earlier commit of the same log.

    Only observations of one process have a certain order. Each external commit in a log excuses one lower
    commit of each partition. So does a rollback in the catch-up log, since missing rows are not done any
    more.
    """
    last: dict[tuple, Event] = {}
    used: dict[tuple, float] = {}
    for event in history.events("committed"):
        group, log, topic, partition = (event[name] for name in ("group", "log", "topic", "partition"))
        key = (event.process, group, log, topic, partition)
        before = last.get(key)
        last[key] = event
        if before is None or event["offset"] >= before["offset"]:
            continue
        excuses = [*history.events("rolled_back", until=event.time)] if log == "catch-up" else []
        external = history.events("external_commit", until=event.time)
        excuses += [one for one in external if (one["group"], one["log"]) == (group, log)]
        newest = max((one.time for one in excuses), default=0.0)
        if newest > used.get(key, 0.0):
            used[key] = newest
            continue
        if any(
            reset["group"] == group and before.time < reset.time <= event.time
            for reset in history.events("reset")
        ):
            continue
        detail = f"{log} log of {group}: {before['offset']}, then {event['offset']}"
        lines = (before.line, event.line)
        yield Anomaly(
            "committed_backwards", topic, partition, event["offset"], before["offset"], lines, detail
        )
