"""The events of a history, and their file: JSON lines, to which several processes append.

It judges nothing. Each event has ``time`` (seconds since the epoch), ``process`` and ``type``; the other
fields are those of its type. A range is ``[topic, partition, start, end]``, half-open.

The time of a ``read`` is the moment before the table was loaded. The time of every other event is a moment
after the fact. So a row that a commit or a report covers has to be in each read that follows it. Reads must
not overlap: else an earlier one may have a later snapshot.
"""

from __future__ import annotations

import json
import os
import time as clock
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

FIELDS = {
    # Records of the topic; optional `values`: an id of each record, in the ranges' order
    "produced": {"ranges"},
    "started": {"group", "topic", "partition", "offset"},  # the group begins here, 0 without this event
    "planned": {"run", "lane", "ranges"},  # evidence alone, as `written` is
    "written": {"run", "ranges", "snapshot"},
    "committed": {"group", "log", "topic", "partition", "offset"},  # `log`: live or catch-up
    "pending": {"group", "ranges"},  # all crash lag that is not processed yet; replaces the event before
    "green": {"run", "ranges"},  # a run or a partition reported success over these
    "certified": {"ranges"},  # an audit reported that each record of these is in the table once
    "written_off": {"ranges", "reason"},  # given up by name: forgiven, expired, deleted by retention
    "quarantined": {"ranges", "reason"},  # left out by name: too slow or bad
    "rolled_back": {"reason"},  # the table was returned to an earlier snapshot
    "reset": {"group"},  # an operator committed an earlier offset
    "external_commit": {"group", "log"},  # another client committed there
    # `rows`: [topic, partition, start, end, count]; optional `values`, one for each row
    "read": {"snapshot", "rows"},
}


class HistoryError(ValueError):
    """A file or a history that cannot be checked."""


@dataclass(frozen=True)
class Event:
    """One event; ``line`` is its place in the file, the first is 1."""

    line: int
    time: float
    process: str
    type: str
    fields: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


def event(line: int, time: float, process: str, type: str, **fields: Any) -> Event:  # noqa: A002 - the file's word
    """Return a valid event.

    Raises:
        HistoryError: the type is unknown, a field is missing, or a range is empty.
    """
    if type not in FIELDS:
        raise HistoryError(f"line {line}: unknown type {type!r}; known: {', '.join(FIELDS)}")
    if missing := FIELDS[type] - fields.keys():
        raise HistoryError(f"line {line}: {type} lacks {', '.join(sorted(missing))}")
    for _, _, start, end, *_ in [*fields.get("ranges", ()), *fields.get("rows", ())]:
        if not 0 <= start < end:
            raise HistoryError(f"line {line}: {type} has the range {start}-{end}")
    return Event(line, time, process, type, fields)


class HistoryFile:
    """A file to append to.

    Each event is one write to a file opened with O_APPEND: lines of processes never mix.
    """

    def __init__(self, path: Path, process: str = "") -> None:
        self.path, self._process = path, process or f"pid {os.getpid()}"

    def append(self, type: str, *, time: float | None = None, **fields: Any) -> None:  # noqa: A002 - the file's word
        """Write an event, of this moment unless ``time`` is given."""
        checked = event(0, clock.time() if time is None else time, self._process, type, **fields)
        shown = {"time": checked.time, "process": checked.process, "type": checked.type, **checked.fields}
        line = (json.dumps(shown, separators=(",", ":")) + "\n").encode()
        file = os.open(self.path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
        try:
            written = os.write(file, line)
        finally:
            os.close(file)
        if written != len(line):
            raise HistoryError(
                f"{self.path}: {written} of {len(line)} bytes were written; the disk may be full"
            )

    def events(self) -> list[Event]:
        """Return all events of the file, in its order."""
        with self.path.open(encoding="utf-8") as lines:
            return list(parse(lines))


def parse(lines: Iterable[str]) -> Iterator[Event]:
    """Return the event of each line.

    Raises:
        HistoryError: a line is no event; with its number.
    """
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            yield event(number, **fields)
        except (ValueError, TypeError) as error:
            if isinstance(error, HistoryError):
                raise
            raise HistoryError(f"line {number}: {error}") from error
