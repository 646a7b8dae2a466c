"""A member of a group: what it owns, and what it may commit of it.

Lives from its join to its leave; who comes back after a fence is a new member. It fetches nothing: its
partitions are paused, Spark reads the planned ranges. Every call of the client is made under one lock, since a
synchronous commit beside a blocking poll deadlocks in librdkafka's Python client.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError

from kafka_liveness_dagster.core.commit_log import LiveMark, Mark
from kafka_liveness_dagster.core.heartbeat import FenceReason
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.kafka.clients import made
from kafka_liveness_dagster.kafka.committing import Committing
from kafka_liveness_dagster.kafka.errors import (
    BrokerUnreachableError,
    CommitRefusedError,
    is_held_up,
    is_no_longer_a_member,
    is_passing,
    named,
)
from kafka_liveness_dagster.kafka.rebalance import Rebalanced

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kafka_liveness_dagster.core.errors import KafkaLivenessError
    from kafka_liveness_dagster.core.resume import Owned
    from kafka_liveness_dagster.core.timeouts import Timeouts
    from kafka_liveness_dagster.kafka.config import KafkaSettings, LiveSettings
    from kafka_liveness_dagster.kafka.link import RunLink
    from kafka_liveness_dagster.kafka.rebalance import Finish

    Marked = Mapping[TopicPartition, tuple[int, LiveMark]]

SERVE_SECONDS = 0.1
_RELEASE_SECONDS = 2.0
_AGAIN_SECONDS = 0.05


class Member(Rebalanced):
    """One membership in one group.

    Attributes:
        sure_seconds: whoever was a member so long ago still is one: the session timeout has not passed.
    """

    def __init__(self, settings: KafkaSettings, live: LiveSettings, timeouts: Timeouts, link: RunLink) -> None:
        config = settings.member(live, link.client_id, timeouts)
        strategy = config.get("partition.assignment.strategy", "cooperative, as every assignment of KIP-848")
        super().__init__(timeouts, incremental="cooperative" in str(strategy), log=link.log)
        self._servers, self._group_id, self._run = settings.bootstrap_servers, live.group_id, link.mark
        self.sure_seconds = timeouts.session_ms / 2000
        self._patience_seconds = timeouts.process_ms / 1000  # the others' is not known, and rarely another
        self._lock, self._closed, self._polling = threading.RLock(), False, False
        self._to_leave: bool | None = None  # with this release, once no callback is on the stack
        self._static = live.group_instance_id is not None
        self._client = made(Consumer, config)
        self._committing = Committing(self._client, self._group_id, self._servers, self._patience_seconds)
        self._client.subscribe(
            list(live.topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def serve(self, seconds: float = SERVE_SECONDS, before_revoke: Finish | None = None) -> None:
        """Poll the client once: rebalances happen in here.

        Args:
            seconds: how long to wait for news.
            before_revoke: called with ``may_wait`` when partitions are about to go: the last chance to commit them.

        Raises:
            KafkaRefusedError: the group or a topic may not be used any more.
        """
        with self._lock:
            if self._closed:
                return
            if self._revoking:  # a commit is repeated inside of a poll: there is only one at a time
                self.may_wait()
                time.sleep(_AGAIN_SECONDS)
                return
            error = message.error() if (message := self._poll(seconds, before_revoke)) is not None else None
            if error is None or self._has_ended(error) or is_passing(error):
                return
            raise named(error, f"consuming as a member of {self._group_id}", self._servers)

    def serve_if_idle(self) -> None:
        """The same without waiting, neither for news nor for the thread that uses the client now."""
        if self._lock.acquire(blocking=False):
            try:
                self.serve(0.0)
            finally:
                self._lock.release()

    def adopt(self, settled: Mapping[TopicPartition, Owned]) -> None:
        """Commit where arrived partitions go on and what they owe, then own them: one OffsetCommit.

        Does nothing while a rebalance is under way: serve it, look again, settle that. What went and came back since it
        was looked at is left out: another member may have committed it meanwhile.

        Raises:
            CommitRefusedError: nothing is owned that was not owned before.
        """
        with self._lock:
            mine = {tp: owned for tp, owned in settled.items() if self.arrived.get(tp) == owned.arrival}
            if not mine:
                return
            error = self._commit_once({tp: (o.committed, self._mark(o)) for tp, o in mine.items()})
            if error is None:
                self.owned.update(mine)
                for tp in mine:
                    del self.arrived[tp]
            elif not is_held_up(error):
                raise self._refused(error)

    def commit(
        self,
        done: Mapping[TopicPartition, Span],
        arrivals: Mapping[TopicPartition, int],
        waiting: Callable[[], None] = lambda: None,
    ) -> tuple[TopicPartition, ...]:
        """Commit done spans of owned partitions; returns those that were not ours any more.

        While a rebalance is under way it is served and the commit repeated with what is still owned: the
        broker would accept the rest and overwrite its new owner.

        Args:
            done: what to commit of each partition.
            arrivals: by which ownership each of them was planned.
            waiting: called before each repetition; may raise.

        Raises:
            CommitRefusedError: out of order, or the broker refused.
            HandoverDueError: a rebalance that waits for it can wait no longer.
        """
        with self._lock:
            was_owned = {tp: o for tp, o in self.owned.items() if tp in done and o.arrival == arrivals.get(tp)}
            for tp, owned in was_owned.items():
                _check_order(tp, owned.committed, done[tp])
            give_up_at = time.monotonic() + self._patience_seconds
            while mine := {tp: o for tp, o in was_owned.items() if self.owned.get(tp) is o}:
                error = self._commit_once({tp: (done[tp].end, self._mark(o)) for tp, o in mine.items()}, give_up_at)
                if error is None:
                    break
                if not is_held_up(error) or time.monotonic() > give_up_at:
                    for owned in self.owned.values():
                        owned.position = owned.committed  # this batch, and all that was planned after it, comes again
                    raise self._refused(error)
                waiting()
                self.serve()
            for tp, owned in mine.items():
                owned.committed = done[tp].end
            return tuple(tp for tp in done if tp not in mine)

    def still_owns(self, arrivals: Mapping[TopicPartition, int]) -> bool:
        """Whether each partition is ours by the same ownership as then, as far as this member knows."""
        with self._lock:
            return all(tp in self.owned and self.owned[tp].arrival == number for tp, number in arrivals.items())

    def confirm(
        self, arrivals: Mapping[TopicPartition, int], waiting: Callable[[], None]
    ) -> tuple[TopicPartition, ...]:
        """Ask the broker by a commit of what is committed; returns those of them that are not ours any more."""
        with self._lock:
            at = {tp: self.owned[tp].committed if tp in self.owned else 0 for tp in arrivals}
            return self.commit({tp: Span(offset, offset) for tp, offset in at.items()}, arrivals, waiting)

    def leave(self, *, release: bool) -> None:
        """LeaveGroup, from whichever thread. ``release`` marks the partitions as given up in good order.

        Inside of a callback it waits for the poll's end: there ``close()`` never returns, or raises SystemError.
        """
        with self._committing.hurried(self._lock):
            if self._polling:
                self._to_leave = release
            elif not self._closed:
                if release:
                    self._release(list(self.owned))
                if not self._closed:
                    self._end()
                    self._client.close()

    def _end(self) -> None:
        self._closed = True
        self.owned.clear()
        self.arrived.clear()

    def _poll(self, seconds: float, before_revoke: Finish | None) -> Any:
        self._before_revoke, self._polling = before_revoke, True
        try:
            return self._client.poll(seconds)
        finally:
            self._before_revoke, self._polling = None, False
            self._end_of_poll()
            if self._to_leave is not None:
                self.leave(release=self._to_leave)

    def _mark(self, owned: Owned, mark: Mark = Mark.RUNNING) -> LiveMark:
        return LiveMark(Mark.PAUSED if owned.paused else mark, self._run, owned.owed, owned.again, owned.origin)

    def _refused(self, error: KafkaError) -> KafkaLivenessError:
        self._has_ended(error)
        return named(error, f"committing to group {self._group_id}", self._servers)

    def _has_ended(self, error: KafkaError) -> bool:
        """Whether the group goes on without this member from now on."""
        if self._static and error.code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID):  # noqa: SLF001
            self.ended = FenceReason.REPLACED
        elif is_no_longer_a_member(error):
            self.ended = FenceReason.PARTITIONS_LOST
        return self.ended is not None

    def _commit_once(self, offsets: Marked, until: float = math.inf) -> KafkaError | None:
        texts = {tp: (offset, mark.encode()) for tp, (offset, mark) in offsets.items()}
        try:
            return self._committing.commit(texts, until=until, in_callback=self._polling)
        except BrokerUnreachableError:
            self._end()
            raise

    def _release(self, partitions: Sequence[TopicPartition]) -> None:
        """Mark partitions as given up at their last committed position; failing to costs a replay, no data."""
        ours = {tp: self.owned[tp] for tp in partitions if tp in self.owned}
        marks = {tp: (owned.committed, self._mark(owned, Mark.RELEASED)) for tp, owned in ours.items()}
        give_up_at = time.monotonic() + _RELEASE_SECONDS
        try:
            while marks and (error := self._commit_once(marks)) is not None:
                if not is_held_up(error) or time.monotonic() >= give_up_at:
                    level = logging.INFO if is_no_longer_a_member(error) else logging.WARNING
                    self._log.log(level, "could not mark %d partitions as released: %s", len(marks), error.str())
                    return
                time.sleep(_AGAIN_SECONDS)  # until the other members have synchronised
        except BrokerUnreachableError as silence:
            self._log.warning("could not mark %d partitions as released: %s", len(marks), silence)


def _check_order(tp: TopicPartition, committed: int, span: Span) -> None:
    if span.start != committed:
        raise CommitRefusedError(
            f"commit of {tp}:{span} is out of order: {committed} is committed, so the batch before it is still open "
            "or this one was committed already. Commit batches in the order poll() gave them"
        )
