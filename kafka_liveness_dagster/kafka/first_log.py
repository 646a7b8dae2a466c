"""Who writes down how far the live lane is? KIP-333's first commit log: the group's offsets, each with a mark.

Written by members alone, and only of what they own: the broker fences members, not partitions.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.commit_log import LiveMark, Mark
from kafka_liveness_dagster.core.member_state import Commit, Event
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError, is_held_up, is_no_longer_a_member

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka import KafkaError

    from kafka_liveness_dagster.core.member_state import Standing
    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.resume import Owned
    from kafka_liveness_dagster.kafka.committing import Committing
    from kafka_liveness_dagster.kafka.ownership import Ownership

_RELEASE_SECONDS = 2.0
AGAIN_SECONDS = 0.05


class FirstLog:
    """The first commit log, as one member writes it.

    Args:
        committing: of the member's client, to its group.
        standing: the member's; ``ownership``: what it owns.
        run: 8 hex digits that name its run.
        log: the run's.
    """

    def __init__(
        self, committing: Committing, standing: Standing, ownership: Ownership, run: str, log: logging.Logger
    ) -> None:
        self._committing, self._standing, self._ownership = committing, standing, ownership
        self._run, self._log = run, log

    def commit(
        self, positions: Mapping[TopicPartition, tuple[int, Owned]], until: float = math.inf, mark: Mark = Mark.RUNNING
    ) -> KafkaError | None:
        """Commit positions with what their partitions owe, once; returns the first refusal.

        Raises:
            BrokerUnreachableError: nothing came back. The membership is over: its client is left behind.
        """
        texts = {tp: (offset, self._mark(owned, mark).encode()) for tp, (offset, owned) in positions.items()}
        in_callback = self._standing.calls.commit is Commit.IN_THE_CALLBACK
        try:
            return self._committing.commit(texts, until=until, in_callback=in_callback)
        except BrokerUnreachableError:
            self._standing.happened(Event.FELL_SILENT)
            self._ownership.clear()
            raise

    def release(self, partitions: Sequence[TopicPartition]) -> None:
        """Mark partitions as given up at their last committed position; failing to costs a replay, no data."""
        owned = self._ownership.owned
        ours = {tp: (owned[tp].committed, owned[tp]) for tp in partitions if tp in owned}
        give_up_at = time.monotonic() + _RELEASE_SECONDS
        try:
            while ours and (error := self.commit(ours, mark=Mark.RELEASED)) is not None:
                if not is_held_up(error) or time.monotonic() >= give_up_at:
                    level = logging.INFO if is_no_longer_a_member(error) else logging.WARNING
                    self._log.log(level, "could not mark %d partitions as released: %s", len(ours), error.str())
                    return
                time.sleep(AGAIN_SECONDS)  # until the other members have synchronised
        except BrokerUnreachableError as silence:
            self._log.warning("could not mark %d partitions as released: %s", len(ours), silence)

    def _mark(self, owned: Owned, mark: Mark) -> LiveMark:
        return LiveMark(Mark.PAUSED if owned.paused else mark, self._run, owned.owed, owned.again, owned.origin)
