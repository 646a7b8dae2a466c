"""Has a live run nothing to do, or not yet?

Who joins beside long batches is let in first, and given its part later.
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
    """The wait of a run that was let into its group and has nothing to do yet.

    Its log reports the wait, and by a tag its page. The others hold what is to come no longer than their
    process timeout and a session, which are taken to be as ours: past that something else is wrong, a
    partition may be nobody's to give. What has come they no longer hold, and it is waited for again. A broker
    that says nothing at all is waited for as long as a batch may take, as ``poll`` does.
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
        """Return whether a partition is still to come, or the storage lacks some of this run.

        Queries the group once a second.

        Raises:
            BrokerUnreachableError: nobody has answered for as long as a batch may take.
        """
        now = time.monotonic()
        if self._since is not None and now - self._checked_at < _CHECK_SECONDS:
            return True
        self._checked_at = now
        why = self._pending_reason()
        if why and self._since is None:
            self._since = now
            self._storage.log.info("waits for partitions: %s; the others finish their batches first", why)
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
            told = "no partition came in %.0f s, longer than a process timeout and a session: %s"
            self._storage.log.warning(told, waited, why)
            why = ""
        if not why:
            self.finish()
        return bool(why) or self._storage.is_behind  # who reads on meanwhile loses no time

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
            return f"no broker says what is to come ({error})"
        return why

    def finish(self) -> None:
        """Partitions came, or none will."""
        if self._since is not None:
            self._since = None
            self._tag_run("")

    def _tag_run(self, what: str) -> None:
        self._storage.add_tags({WAITS_TAG: what})
