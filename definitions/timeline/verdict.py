"""Did the consumer behave as KIP-62 wants it? Holds what was seen against the law, with the numbers.

Never looks at a broker or a clock: it is told what was seen. What never happened happened at infinity.

>>> seen = [(0, "POLL_CALLED", ""), (1, "BATCH_POLLED", "orders:3:70-100"), (3, "HEARTBEAT_SENT", "")]
>>> scene = Scene("classic", session=10, poll_interval=60, stall=180)
>>> verdict = judge(Telling(scene, tuple(Event(at, What[what], detail) for at, what, detail in seen)))
>>> verdict.holds, verdict.laws[1].found
(False, 'never')
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from definitions.timeline.events import Event, Scene, Telling, What

if TYPE_CHECKING:
    from collections.abc import Sequence

_SLACK_SECONDS = 1.0  # how much later than the poll interval the member may leave
_CLOCK_SECONDS = 0.005  # clocks are read in whole milliseconds
_NEVER = Event(math.inf, What.BATCH_POLLED)


@dataclass(frozen=True)
class Law:
    """A sentence of the law, what was found, and whether that is lawful."""

    says: str
    found: str
    holds: bool


@dataclass(frozen=True)
class Figures:
    """What the picture and the docs quote, in seconds unless the name says otherwise; infinite for never.

    Attributes:
        heartbeats_while_stalled: from the batch until the member left.
        longest_silence: between two heartbeats of that time.
        left_after: LeaveGroup, after the poll had given the batch.
        gone_after: the first look at the broker that did not see the member any more, after the same.
        rejoined_after: the next batch, after the poll that gave it was called.
        replayed: the offset range that the second poll gave.
    """

    heartbeats_while_stalled: int
    longest_silence: float
    left_after: float
    gone_after: float
    rejoined_after: float
    replayed: str


@dataclass(frozen=True)
class Verdict:
    """The law, sentence by sentence."""

    figures: Figures
    laws: tuple[Law, ...]

    @property
    def holds(self) -> bool:
        """Whether every law holds."""
        return all(law.holds for law in self.laws)

    def as_json(self) -> dict[str, Any]:
        """For ``--json FILE``; what never happened is null."""
        figures = {name: None if value == math.inf else value for name, value in vars(self.figures).items()}
        broken = [f"{law.says}: {law.found}" for law in self.laws if not law.holds]
        return {"holds": self.holds, "broken": broken, "figures": figures}


def judge(telling: Telling) -> Verdict:
    """The verdict on a telling whose events are in the order of their time."""
    seen = _Moments.of(telling.events)
    stalled = _between(telling.events, What.HEARTBEAT_SENT, seen.polled.at, seen.out_at + _CLOCK_SECONDS)
    echoes = _between(telling.events, What.HEARTBEAT_SENT, seen.left.at + _CLOCK_SECONDS, seen.joined.at)
    beats = [seen.polled.at, *(beat.at for beat in stalled), seen.out_at]
    figures = Figures(
        heartbeats_while_stalled=len(stalled),
        longest_silence=round(max(later - earlier for earlier, later in pairwise(beats)), 3),
        left_after=_since(seen.polled, seen.left),
        gone_after=_since(seen.polled, seen.gone),
        rejoined_after=_since(seen.again, seen.replay),
        replayed=seen.replay.detail,
    )
    return Verdict(
        figures, (*_laws_of_the_stall(telling.scene, seen, figures, len(echoes)), *_laws_after(seen, figures))
    )


@dataclass(frozen=True)
class _Moments:
    """The turns of the story; ``again`` is the second call of poll, ``out_at`` the end of the stall or membership."""

    called: Event
    polled: Event
    left: Event
    gone: Event
    refused: Event
    again: Event
    joined: Event
    replay: Event
    in_time: Event

    @classmethod
    def of(cls, events: Sequence[Event]) -> _Moments:
        called = _first(events, What.POLL_CALLED, -math.inf)
        polled = _first(events, What.BATCH_POLLED, called.at)
        again = _first(events, What.POLL_CALLED, polled.at)
        later = (What.LEAVE_SENT, What.GROUP_EMPTY, What.COMMIT_REFUSED, What.JOIN_SENT, What.BATCH_COMMITTED)
        left, gone, refused, joined, in_time = (_first(events, what, polled.at) for what in later)
        replay = _first(events, What.BATCH_POLLED, again.at)
        return cls(called, polled, left, gone, refused, again, joined, replay, in_time)

    @property
    def out_at(self) -> float:
        return min(self.left.at, self.again.at)


def _laws_of_the_stall(scene: Scene, seen: _Moments, figures: Figures, echoes: int) -> tuple[Law, ...]:
    # the interval begins inside the call: no sooner than it was called, no later than it gave the batch
    soonest, latest = (at + scene.poll_interval for at in (seen.called.at, seen.polled.at))
    soonest, latest = soonest - _CLOCK_SECONDS, latest + _SLACK_SECONDS
    heartbeats, silence = figures.heartbeats_while_stalled, figures.longest_silence
    told = f"{heartbeats} sent, at most {silence:.2f} s apart" if heartbeats else "none"
    return (
        Law("heartbeats go on while the op is stalled", told, heartbeats > 0 and silence < scene.session),
        Law("it leaves at the poll interval", _told(figures.left_after), soonest <= seen.left.at <= latest),
        Law("the broker sees it go then", _told(figures.gone_after), soonest <= seen.gone.at <= latest),
        Law("outside the group no heartbeat is sent", f"{echoes} sent", echoes == 0),
    )


def _laws_after(seen: _Moments, figures: Figures) -> tuple[Law, ...]:
    replayed, joined = seen.replay, seen.again.at - _CLOCK_SECONDS <= seen.joined.at <= seen.replay.at < math.inf
    return (
        Law("the late commit is refused", seen.refused.detail or "never", seen.refused.at <= seen.again.at < math.inf),
        Law("the next poll, and nothing else, joins again", _told(figures.rejoined_after), joined),
        Law(
            "the uncommitted batch comes again",
            replayed.detail or "never",
            bool(replayed.detail) and replayed.detail == seen.polled.detail,
        ),
        Law("committed in time, it counts", seen.in_time.detail or "never", replayed.at < seen.in_time.at < math.inf),
    )


def _first(events: Sequence[Event], what: What, after: float) -> Event:
    return next((event for event in events if event.what is what and event.at > after), _NEVER)


def _between(events: Sequence[Event], what: What, start: float, end: float) -> list[Event]:
    return [event for event in events if event.what is what and start <= event.at < end]


def _since(earlier: Event, later: Event) -> float:
    return math.inf if later is _NEVER else round(later.at - earlier.at, 3)


def _told(seconds: float) -> str:
    return "never" if seconds == math.inf else f"after {seconds:.2f} s"
