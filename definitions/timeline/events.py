"""What happened, and when? The closed set of events of a timeline, and how they are read from a client's log.

librdkafka's own threads write a line for each request they send, whatever the op is doing: in words, which is
all there is. What the op and the watchdog do is written in the same form, by codes, so that one stream holds
it all in order. Never looks at a clock.

>>> log = ClientLog()
>>> log.read(
...     "%7|1795266881.120|SEND|etl#consumer-8| [thrd:GroupCoordinator]: …: Sent LeaveGroupRequest (v1, …)"
... )
TimelineEvent(at=1795266881.12, kind=<What.LEAVE_SENT: 'LeaveGroup sent'>, detail='')
>>> log.read(format_op_line(1795266881.07, What.BATCH_POLLED, "p3:orders:70-100"))
TimelineEvent(at=1795266881.07, kind=<What.BATCH_POLLED: 'poll() gave a batch'>, detail='p3:orders:70-100')
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import StoredByName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

DEBUG = "protocol,cgrp"  # what librdkafka must be told for `ClientLog`; cgrp tells KIP-848's heartbeats apart
_LINE = re.compile(r"%\d\|(?P<at>\d+\.\d+)\|(?P<facility>\w+)\|(?P<source>[^|]*)\| ?(?P<text>.*)")
_REQUEST_SENT = re.compile(r": Sent (\w+)Request ")
_EPOCH = re.compile(r"ConsumerGroupHeartbeat of member id .* generation id (-?\d+)")


class What(StoredByName):
    """Everything a timeline tells; the value is what people read."""

    CONSUMER_CREATED = "consumer created"
    POLL_CALLED = "poll() called"
    BATCH_POLLED = "poll() gave a batch"
    COMMIT_REFUSED = "commit() refused"
    BATCH_COMMITTED = "commit() accepted"
    JOIN_SENT = "JoinGroup sent"
    HEARTBEAT_SENT = "heartbeat sent"
    LEAVE_SENT = "LeaveGroup sent"
    FENCED = "fenced"
    MEMBER_SEEN = "member in the group"
    GROUP_EMPTY = "group is empty"

    @property
    def actor(self) -> Literal["op", "librdkafka", "watchdog", "broker"]:
        """Who did it, or, for the broker, who says so."""
        if self in (What.JOIN_SENT, What.HEARTBEAT_SENT, What.LEAVE_SENT):
            return "librdkafka"
        if self in (What.MEMBER_SEEN, What.GROUP_EMPTY):
            return "broker"
        return "watchdog" if self is What.FENCED else "op"


_REQUESTS = {"JoinGroup": What.JOIN_SENT, "Heartbeat": What.HEARTBEAT_SENT, "LeaveGroup": What.LEAVE_SENT}


@dataclass(frozen=True)
class TimelineEvent:
    """One thing that happened.

    ``at`` is in seconds: since the epoch in a log, since the first poll in a timeline.
    """

    at: float
    kind: What
    detail: str = ""


@dataclass(frozen=True)
class Scenario:
    """What a timeline is to show: the group protocol, two timeouts, and how long the op stalls, in seconds.

    Raises:
        InvalidSettingError: nothing would stall.
    """

    protocol: Literal["classic", "consumer"]
    session: float
    poll_interval: float
    stall: float

    def __post_init__(self) -> None:
        if self.stall <= self.poll_interval:
            raise InvalidSettingError(
                f"a stall of {self.stall:g} s is within the poll interval of {self.poll_interval:g} s: the "
                "op would be in time. Raise --stall or lower --poll-interval"
            )


@dataclass(frozen=True)
class Recording:
    """A scene and what was seen of it."""

    scenario: Scenario
    events: tuple[TimelineEvent, ...]

    def as_json(self) -> dict[str, Any]:
        """What ``from_json`` makes the same telling of."""
        events = [
            {"seconds": e.at, "source": e.kind.actor, "event": e.kind.code, "detail": e.detail}
            for e in self.events
        ]
        return {"scene": asdict(self.scenario), "events": events}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The telling that was written."""
        known = ((e, What.of_code(e["event"])) for e in fields["events"])
        events = tuple(
            TimelineEvent(e["seconds"], what, e["detail"]) for e, what in known if what is not None
        )
        return cls(Scenario(**fields["scene"]), events)


def format_op_line(at: float, what: What, detail: str) -> str:
    """How the op's process writes an event, in librdkafka's own form."""
    return f"%6|{at:.3f}|OP|{what.code}| {detail}"


class ClientLog:
    """Reads what one process writes, line by line.

    Under KIP-848 joining, staying and leaving are one request, told apart by the member epoch that librdkafka
    names in the line before: 0 joins, -1 leaves.
    """

    def __init__(self) -> None:
        self._epoch = 0

    def read(self, line: str) -> TimelineEvent | None:
        """The event of a line; None for a line that tells none."""
        if (found := _LINE.match(line)) is None:
            return None
        at, facility, source, text = float(found["at"]), found["facility"], found["source"], found["text"]
        if facility == "OP":
            what = What.of_code(source)
            return None if what is None else TimelineEvent(at, what, text)
        if epoch := _EPOCH.search(text):
            self._epoch = int(epoch[1])
        return self._parse_request(at, text) if facility == "SEND" else None

    def _parse_request(self, at: float, text: str) -> TimelineEvent | None:
        sent = _REQUEST_SENT.search(text)
        if sent is not None and sent[1] == "ConsumerGroupHeartbeat":
            what = {-1: What.LEAVE_SENT, 0: What.JOIN_SENT}.get(self._epoch, What.HEARTBEAT_SENT)
            detail = "" if what is What.HEARTBEAT_SENT else f"a heartbeat with member epoch {self._epoch}"
            return TimelineEvent(at, what, detail)
        what_else = _REQUESTS.get(sent[1]) if sent is not None else None
        return None if what_else is None else TimelineEvent(at, what_else)
