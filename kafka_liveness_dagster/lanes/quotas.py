"""Name a broker's quota as the cause of a slow batch, while it is slow.

Decides nothing about offsets or rows.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from kafka_liveness_dagster.concurrency import start_daemon_thread
from kafka_liveness_dagster.telemetry.metrics import GROUP, LANE, THROTTLE_TIME
from kafka_liveness_dagster.telemetry.otel import record

if TYPE_CHECKING:
    from collections.abc import Callable
    from logging import Logger

    from typing_extensions import Self

    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.lanes.in_flight import InFlightWrites

SLOW_SECONDS = 20.0
"""Time from which a batch is slow enough for a query."""
CHECK_EVERY_SECONDS = 10.0
"""Interval of queries. A broker counts over 11 s, so older reads of Spark delay no other client any more."""
_LOG_SECONDS = 60.0
_REMEDY = (
    "Fix: raise the quota (consumer_byte_rate or request_percentage; `kafka-configs --describe "
    "--entity-type users` lists it). A smaller batch reads no faster"
)


class ThrottlingWatch:
    """A watch that checks, while a batch is slow, whether the broker throttles this login.

    As a context manager it ends with the lane.

    Args:
        delay: returns the seconds by which a quota delays a fetch from a partition now.
        in_flight: the batches of the lane.
        group_id: group of the lane, for the metric; ``lane``: name of the lane.
        log: log of the run.
    """

    def __init__(
        self,
        delay: Callable[[TopicPartition], float],
        in_flight: InFlightWrites,
        *,
        group_id: str,
        lane: str,
        log: Logger,
    ) -> None:
        self._throttle_seconds = delay
        self._in_flight = in_flight
        self._log = log
        self._labels = {GROUP: group_id, LANE: lane}
        self._delayed_batch: tuple[str, float] | None = None
        self._stop_event = threading.Event()

    def __enter__(self) -> Self:
        start_daemon_thread(self._watch, "kafka-liveness-throttling")  # without a thread nothing is checked
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_event.set()

    def describe_for(self, batch: object) -> str:
        """Return a sentence about a batch that was too slow; empty if no quota was found to delay it."""
        found = self._delayed_batch
        if found is None or found[0] != str(batch):
            return ""
        return f"The broker throttles this login: a quota delayed a fetch by {found[1]:,.2f} s. {_REMEDY}"

    def _watch(self) -> None:
        logged_at: float | None = None
        while not self._stop_event.wait(CHECK_EVERY_SECONDS):
            oldest = next(iter(tuple(self._in_flight)), None)
            seconds = 0.0 if oldest is None else time.monotonic() - oldest.began_at
            if oldest is None or seconds < SLOW_SECONDS:
                continue
            delay = self._throttle_seconds(oldest.batch.ranges[0].topic_partition)
            if not delay:
                continue
            self._delayed_batch = str(oldest.batch), delay
            record(THROTTLE_TIME, delay, self._labels)
            if logged_at is None or time.monotonic() - logged_at >= _LOG_SECONDS:
                logged_at = time.monotonic()
                self._log.warning(
                    "%s has run for %.0f s. %s", oldest.batch, seconds, self.describe_for(oldest.batch)
                )
