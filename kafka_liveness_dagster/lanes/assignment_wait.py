"""Decide whether a live run without partitions will still get some, or may end.

A member that joins while others process long batches gets its partitions only when those end. Never commits.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from kafka_liveness_dagster.runs.tags import WAITS_TAG

if TYPE_CHECKING:
    from kafka_liveness_dagster.kafka.live.consumer import LivenessConsumer
    from kafka_liveness_dagster.runs.storage import RunStorage

_CHECK_SECONDS = 1.0


class AssignmentWait:
    """The wait of a run that has joined its group and has no partitions yet.

    The run's log reports the wait, and so does a tag on its page. Other members hold partitions for at most
    their process timeout and a session timeout, which are assumed to equal this member's. After that the
    cause is another one: possibly no member can release a partition. When partitions have come, a new wait
    begins. If no broker responds, the wait lasts as long as a batch may take, as in ``poll``.
    """

    def __init__(self, consumer: LivenessConsumer, storage: RunStorage) -> None:
        self._consumer = consumer
        self._storage = storage
        self._max_wait_seconds = (
            consumer.timeouts.process_timeout_ms + consumer.timeouts.session_timeout_ms
        ) / 1000
        self._process_seconds = consumer.timeouts.process_timeout_ms / 1000
        self._since: float | None = None
        self._is_assignment_pending = False
        self._failing_since: float | None = None
        self._checked_at = -math.inf

    def should_continue(self) -> bool:
        """Return whether a partition will still come, or Dagster's storage lacks events of this run.

        Queries the group once a second.

        Raises:
            BrokerUnreachableError: no broker has responded for as long as a batch may take.
        """
        now = time.monotonic()
        if self._since is not None and now - self._checked_at < _CHECK_SECONDS:
            return True
        self._checked_at = now
        why = self._pending_reason()
        if why and self._since is None:
            self._since = now
            self._storage.log.info(
                "Waiting for partitions: %s. The other members finish their batches first", why
            )
            self._tag_run(f"partitions: {why}")
        was_held_up, self._is_assignment_pending = (
            self._is_assignment_pending,
            self._consumer.is_assignment_pending(),
        )
        if self._is_assignment_pending and not was_held_up:
            self._since = now
        if not self._consumer.is_joined:
            return True
        waited = 0.0 if self._since is None else now - self._since
        if why and waited > self._max_wait_seconds:
            told = (
                "No partition was assigned within %.0f s, longer than process timeout and session "
                "timeout together: %s"
            )
            self._storage.log.warning(told, waited, why)
            why = ""
        if not why:
            self.finish()
        return bool(why) or self._storage.is_behind  # reading on meanwhile costs no time

    def _pending_reason(self) -> str:
        from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError  # noqa: PLC0415 - stays lazy

        try:
            why = self._consumer.why_partitions_pending()
            self._failing_since = None
        except BrokerUnreachableError as error:
            now = time.monotonic()
            self._failing_since = now if self._failing_since is None else self._failing_since
            if now - self._failing_since >= self._process_seconds:
                raise
            return f"no broker responded ({error})"
        return why

    def finish(self) -> None:
        """End the wait: partitions came, or none will."""
        if self._since is not None:
            self._since = None
            self._tag_run("")

    def _tag_run(self, what: str) -> None:
        self._storage.add_tags({WAITS_TAG: what})
