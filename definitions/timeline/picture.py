"""Draw a timeline as an SVG: op, client and broker as three lanes over one axis of seconds.

``python -m definitions.timeline.picture RUN.json > RUN.svg`` draws what ``--json-file`` wrote.
"""

from __future__ import annotations

import json
import sys
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from definitions.timeline.events import Recording, TimelineEvent, What

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEFT, _RIGHT, _WIDTH, _HEIGHT = 110, 975, 1000, 300
_OP, _CLIENT, _BROKER, _AXIS = 82, 152, 210, 258
_LANES = {"op": _OP, "librdkafka": _CLIENT, "broker says": _BROKER}
_LABEL_WIDTH = 150  # about its width
_TICKS = 12
_AMBER, _GREEN, _BLUE, _RED, _GREY, _BLACK = "#f0ad4e", "#5cb85c", "#4a86c5", "#c9302c", "#666", "#222"
_REQUESTS = {What.JOIN_SENT: "JoinGroup", What.LEAVE_SENT: "LeaveGroup"}  # those that have a label
_COLORS = {What.HEARTBEAT_SENT: _GREEN, What.JOIN_SENT: _BLUE, What.LEAVE_SENT: _RED}


def draw_svg(recording: Recording) -> str:
    """The picture of a telling whose consumer polled at least once."""
    picture = _SvgPicture(max(event.at for event in recording.events))
    events = {
        who: [event for event in recording.events if event.kind.actor == who]
        for who in ("op", "librdkafka", "broker")
    }
    picture.draw_frame(
        f"{recording.scenario.protocol} protocol, session timeout {recording.scenario.session:g} s"
    )
    picture.draw_work(events["op"])
    picture.draw_requests(events["librdkafka"])
    picture.draw_membership(events["broker"])
    polled = next(event.at for event in events["op"] if event.kind is What.BATCH_POLLED)
    picture.draw_deadline(
        polled + recording.scenario.poll_interval, f"poll interval {recording.scenario.poll_interval:g} s"
    )
    return str(picture)


class _SvgPicture:
    def __init__(self, end: float) -> None:
        self._end = end
        self._parts = [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
                'font-family="sans-serif">'
            ),
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="8" fill="#fff"/>',
        ]

    def __str__(self) -> str:
        return "\n".join([*self._parts, "</svg>\n"])

    def draw_frame(self, title: str) -> None:
        self._text(16, 24, title, "start", _GREY)
        for name, y in _LANES.items():
            self._text(_LEFT - 12, y + 4, name, "end", _BLACK)
        step = next(
            (step for step in (1, 2, 5, 10, 20, 30, 60, 120, 300) if self._end / step <= _TICKS), 3600
        )
        self._parts.append(f'<path d="M{_LEFT} {_AXIS}H{_RIGHT}" stroke="{_GREY}"/>')
        self._text(_LEFT - 12, _AXIS + 20, "seconds", "end", _GREY)
        for second in range(0, int(self._end) + 1, step):
            self._line(second, _AXIS, _AXIS + 5, _GREY)
            self._text(self._x(second), _AXIS + 20, f"{second}", "middle", _GREY)

    def draw_work(self, events: Sequence[TimelineEvent]) -> None:
        for event, after in pairwise(events):
            if event.kind is What.BATCH_POLLED:
                late = after.kind is What.COMMIT_REFUSED
                words = (
                    f"stalled for {after.at - event.at:.0f} s; its commit is refused" if late else "in time"
                )
                self._bar(event.at, after.at, _OP, _AMBER if late else _GREEN)
                self._text(self._x(after.at) - 8, _OP + 4, words, "end", _BLACK)
                self._label(
                    event.at, _OP - 18, f"poll() gives offsets {event.detail.rpartition(':')[2]}", _BLACK
                )

    def draw_requests(self, events: Sequence[TimelineEvent]) -> None:
        labelled = -1.0 * _LABEL_WIDTH
        for event in events[:1]:
            self._label(event.at, _CLIENT + 31, "heartbeats go on", _GREEN)
        for event in events:
            heartbeat, colour = event.kind is What.HEARTBEAT_SENT, _COLORS[event.kind]
            reach = 9 if heartbeat else 18
            self._line(event.at, _CLIENT - reach, _CLIENT + reach, colour)
            # A label that follows at once has no room
            if not heartbeat and self._x(event.at) > labelled + _LABEL_WIDTH:
                labelled = self._x(event.at)
                self._label(event.at, _CLIENT - 23, _REQUESTS[event.kind], colour)

    def draw_membership(self, events: Sequence[TimelineEvent]) -> None:
        for event, after in pairwise([*events, TimelineEvent(self._end, What.GROUP_EMPTY)]):
            member, has_room = (
                event.kind is What.MEMBER_SEEN,
                self._x(after.at) - self._x(event.at) > _LABEL_WIDTH,
            )
            if member:
                self._bar(event.at, after.at, _BROKER, _BLUE)
            words = f"member {event.detail}" if member else "the group is empty"
            if has_room:
                middle = self._x((event.at + after.at) / 2)
                self._text(middle, _BROKER + 4, words, "middle", "#fff" if member else _GREY)

    def draw_deadline(self, at: float, words: str) -> None:
        self._line(at, 34, _AXIS, _RED, 'stroke-dasharray="4 4"')
        self._text(self._x(at), 24, words, "middle", _RED)

    def _x(self, at: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * at / self._end

    def _bar(self, start: float, stop: float, y: int, colour: str) -> None:
        x, width = self._x(start), self._x(stop) - self._x(start)
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y - 12}" width="{width:.1f}" height="24" rx="3" fill="{colour}"/>'
        )

    def _line(self, at: float, top: int, bottom: int, colour: str, more: str = "") -> None:
        stroke = f'stroke="{colour}" stroke-width="2"{more and " "}{more}'
        self._parts.append(f'<path d="M{self._x(at):.1f} {top}V{bottom}" {stroke}/>')

    def _label(self, at: float, y: int, text: str, colour: str) -> None:
        """Beside a moment, on the side where there is room."""
        early = at < self._end / 2
        self._text(self._x(at) + (5 if early else -5), y, text, "start" if early else "end", colour)

    def _text(
        self, x: float, y: int, text: str, anchor: Literal["start", "middle", "end"], colour: str
    ) -> None:
        how = f'font-size="13" text-anchor="{anchor}" fill="{colour}"'
        self._parts.append(f'<text x="{x:.1f}" y="{y}" {how}>{escape(text)}</text>')


if __name__ == "__main__":
    sys.stdout.write(draw_svg(Recording.from_json(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
