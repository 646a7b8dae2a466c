"""Did the consumer behave as KIP-62 wants it? Holds what was seen against the law, with the numbers.

Never looks at a broker or a clock: it is told what was seen. What never happened happened at infinity.

>>> seen = [(0, "POLL_CALLED", ""), (1, "BATCH_POLLED", "p3:orders:70-100"), (3, "HEARTBEAT_SENT", "")]
>>> scene = Scenario("classic", session=10, poll_interval=60, stall=180)
>>> events = tuple(TimelineEvent(at, What[what], detail) for at, what, detail in seen)
>>> verdict = judge_recording(Recording(scene, events))
>>> verdict.all_met, verdict.expectations[1].observed
(False, 'never')
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from definitions.timeline.events import Recording, Scenario, TimelineEvent, What

if TYPE_CHECKING:
    from collections.abc import Sequence

_SLACK_SECONDS = 1.0  # how much later than the poll interval the member may leave
_CLOCK_SECONDS = 0.005  # clocks are read in whole milliseconds
_NEVER_EVENT = TimelineEvent(math.inf, What.BATCH_POLLED)


@dataclass(frozen=True)
class Expectation:
    """A sentence of the law, what was found, and whether that is lawful."""

    statement: str
    observed: str
    is_met: bool


@dataclass(frozen=True)
class Measurements:
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
class TimelineVerdict:
    """The law, sentence by sentence."""

    measurements: Measurements
    expectations: tuple[Expectation, ...]

    @property
    def all_met(self) -> bool:
        """Whether every law holds."""
        return all(law.is_met for law in self.expectations)

    def as_json(self) -> dict[str, Any]:
        """For ``--json FILE``; what never happened is null."""
        figures = {
            name: None if value == math.inf else value for name, value in vars(self.measurements).items()
        }
        broken = [f"{law.statement}: {law.observed}" for law in self.expectations if not law.is_met]
        return {"holds": self.all_met, "broken": broken, "figures": figures}


def judge_recording(recording: Recording) -> TimelineVerdict:
    """The verdict on a telling whose events are in the order of their time."""
    seen = _Moments.from_events(recording.events)
    stalled = _events_between(
        recording.events, What.HEARTBEAT_SENT, seen.polled.at, seen.removed_at + _CLOCK_SECONDS
    )
    echoes = _events_between(
        recording.events, What.HEARTBEAT_SENT, seen.left.at + _CLOCK_SECONDS, seen.joined.at
    )
    beats = [seen.polled.at, *(beat.at for beat in stalled), seen.removed_at]
    figures = Measurements(
        heartbeats_while_stalled=len(stalled),
        longest_silence=round(max(later - earlier for earlier, later in pairwise(beats)), 3),
        left_after=_elapsed(seen.polled, seen.left),
        gone_after=_elapsed(seen.polled, seen.removed),
        rejoined_after=_elapsed(seen.polled_again, seen.replay),
        replayed=seen.replay.detail,
    )
    return TimelineVerdict(
        figures,
        (
            *_stall_expectations(recording.scenario, seen, figures, len(echoes)),
            *_recovery_expectations(seen, figures),
        ),
    )


@dataclass(frozen=True)
class _Moments:
    """The turns of the story.

    ``polled_again`` is the second poll, ``removed_at`` the end of stall or membership.
    """

    called: TimelineEvent
    polled: TimelineEvent
    left: TimelineEvent
    removed: TimelineEvent
    refused: TimelineEvent
    polled_again: TimelineEvent
    joined: TimelineEvent
    replay: TimelineEvent
    in_time: TimelineEvent

    @classmethod
    def from_events(cls, events: Sequence[TimelineEvent]) -> _Moments:
        called = _first_event(events, What.POLL_CALLED, -math.inf)
        polled = _first_event(events, What.BATCH_POLLED, called.at)
        again = _first_event(events, What.POLL_CALLED, polled.at)
        later = (What.LEAVE_SENT, What.GROUP_EMPTY, What.COMMIT_REFUSED, What.JOIN_SENT, What.BATCH_COMMITTED)
        left, gone, refused, joined, in_time = (_first_event(events, what, polled.at) for what in later)
        replay = _first_event(events, What.BATCH_POLLED, again.at)
        return cls(called, polled, left, gone, refused, again, joined, replay, in_time)

    @property
    def removed_at(self) -> float:
        return min(self.left.at, self.polled_again.at)


def _stall_expectations(
    scenario: Scenario, seen: _Moments, figures: Measurements, echoes: int
) -> tuple[Expectation, ...]:
    # the interval begins inside the call: no sooner than it was called, no later than it gave the batch
    soonest, latest = (at + scenario.poll_interval for at in (seen.called.at, seen.polled.at))
    soonest, latest = soonest - _CLOCK_SECONDS, latest + _SLACK_SECONDS
    heartbeats, silence = figures.heartbeats_while_stalled, figures.longest_silence
    told = f"{heartbeats} sent, at most {silence:.2f} s apart" if heartbeats else "none"
    return (
        Expectation(
            "heartbeats go on while the op is stalled", told, heartbeats > 0 and silence < scenario.session
        ),
        Expectation(
            "it leaves at the poll interval",
            _format_seconds(figures.left_after),
            soonest <= seen.left.at <= latest,
        ),
        Expectation(
            "the broker sees it go then",
            _format_seconds(figures.gone_after),
            soonest <= seen.removed.at <= latest,
        ),
        Expectation("outside the group no heartbeat is sent", f"{echoes} sent", echoes == 0),
    )


def _recovery_expectations(seen: _Moments, figures: Measurements) -> tuple[Expectation, ...]:
    replayed, joined = (
        seen.replay,
        seen.polled_again.at - _CLOCK_SECONDS <= seen.joined.at <= seen.replay.at < math.inf,
    )
    return (
        Expectation(
            "the late commit is refused",
            seen.refused.detail or "never",
            seen.refused.at <= seen.polled_again.at < math.inf,
        ),
        Expectation(
            "the next poll, and nothing else, joins again", _format_seconds(figures.rejoined_after), joined
        ),
        Expectation(
            "the uncommitted batch comes again",
            replayed.detail or "never",
            bool(replayed.detail) and replayed.detail == seen.polled.detail,
        ),
        Expectation(
            "committed in time, it counts",
            seen.in_time.detail or "never",
            replayed.at < seen.in_time.at < math.inf,
        ),
    )


def _first_event(events: Sequence[TimelineEvent], what: What, after: float) -> TimelineEvent:
    return next((event for event in events if event.kind is what and event.at > after), _NEVER_EVENT)


def _events_between(
    events: Sequence[TimelineEvent], what: What, start: float, end: float
) -> list[TimelineEvent]:
    return [event for event in events if event.kind is what and start <= event.at < end]


def _elapsed(earlier: TimelineEvent, later: TimelineEvent) -> float:
    return math.inf if later is _NEVER_EVENT else round(later.at - earlier.at, 3)


def _format_seconds(seconds: float) -> str:
    return "never" if seconds == math.inf else f"after {seconds:.2f} s"
