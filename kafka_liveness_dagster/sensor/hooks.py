"""Which runs does a user want when something happened to a group? Asks ``on_event``; a mistake in it stops nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from kafka_liveness_dagster.core.events import identity

if TYPE_CHECKING:
    import logging
    from collections.abc import Sequence

    from kafka_liveness_dagster.core.events import GroupEvent
    from kafka_liveness_dagster.sensor.cursor import GroupCursor
    from kafka_liveness_dagster.settings.kinds import Hook


@dataclass(frozen=True)
class EventHook:
    """What a sensor's ``on_event`` answers.

    Attributes:
        sensor_name: begins every run key, since two sensors may see the same event.
        job_name: of requests that name none.
    """

    sensor_name: str
    hook: Hook | None
    job_name: str | None

    def to(
        self, events: Sequence[GroupEvent], cursor: GroupCursor, log: logging.Logger
    ) -> tuple[list[dg.RunRequest], list[str]]:
        """The runs to request for the events of one tick, and what went wrong with which event."""
        requests: list[dg.RunRequest] = []
        failed: list[str] = []
        met: Counter[str] = Counter()
        for event in events if self.hook is not None else ():
            name = identity(event)
            met[name] += 1
            # Not the event's place among the others: a tick that is repeated may see more of them
            key = f"{self.sensor_name} {cursor.started_at}.{cursor.event_count} {name} {met[name]}"
            try:
                requests += self._asked(event, key)
            except Exception as error:
                log.exception("on_event of %s failed, nothing was requested for: %s", self.sensor_name, event)
                failed.append(f"on_event failed with {type(error).__name__}, nothing was requested for: {event}")
        return requests, failed

    def _asked(self, event: GroupEvent, key: str) -> list[dg.RunRequest]:
        answer = self.hook(event) if self.hook is not None else None
        several = [answer] if isinstance(answer, dg.RunRequest) else list(answer or ())
        return [
            one._replace(run_key=one.run_key or f"{key}.{number}", job_name=one.job_name or self.job_name)
            for number, one in enumerate(several)
        ]
