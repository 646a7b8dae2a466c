"""The live lane: a group member that plans fair batches, and commits them with what it owes.

Joins at the first poll, after everything that can be checked was checked. Nothing is fetched, so nothing that
is planned and not committed is ever lost: it is planned again by whoever owns the partition next.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.heartbeat import FenceReason, PollTimer
from kafka_liveness_dagster.core.pace import PoisonedOffsetError
from kafka_liveness_dagster.core.resume import resume
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.commits import Commits
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError, CommitRefusedError
from kafka_liveness_dagster.kafka.findings import Found
from kafka_liveness_dagster.kafka.link import RunLink, now_ms
from kafka_liveness_dagster.kafka.live import LiveLane
from kafka_liveness_dagster.kafka.member import SERVE_SECONDS, Member
from kafka_liveness_dagster.kafka.records import ReadsRecords, RecordReader
from kafka_liveness_dagster.kafka.watchdog import Watchdog
from kafka_liveness_dagster.kafka.watched import Watched
from kafka_liveness_dagster.kafka.witness import witnessed

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

    from kafka_liveness_dagster.core.fairness import Batch
    from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
    from kafka_liveness_dagster.core.timeouts import Timeouts
    from kafka_liveness_dagster.kafka.config import KafkaSettings, LiveSettings
    from kafka_liveness_dagster.kafka.rebalance import Finish

_LOG_END_SECONDS = 0.2  # how often an idle poll asks for new data


class LivenessConsumer(Watched, Commits, ReadsRecords):
    """A heartbeat-enabled consumer whose poll interval is its run's budget. Use it as a context manager.

    Leaving the block normally releases the partitions: the next owner resumes in order. Leaving it by an error
    leaves the group too, but the partitions keep the mark of a crash: with ``enable_parallel_rebalance`` the
    open batch becomes crash lag and the live lane goes on at the log end.

    Attributes:
        jumped: crash lag this consumer found, in the order of finding.
        lost: what expired before either lane processed it, with ``on_data_loss="skip"``.
        forgotten: what this consumer owes again: the commit that said so was replaced, or the table has lost it.
    """

    def __init__(self, kafka: KafkaSettings, live: LiveSettings, timeouts: Timeouts, link: RunLink) -> None:
        self.timeouts, self.settings = timeouts, live
        self._found = Found()
        self.jumped, self.lost, self.forgotten = self._found.jumped, self._found.lost, self._found.forgotten
        self._kafka, self._link, self._cluster = kafka, link, Cluster(kafka)
        self._reader = RecordReader(kafka, live.group_id, link.client_id)
        self._second = self._lane = None
        self._poison: set[OffsetRange] = set()
        self._last: TopicPartition | None = None
        self._last_committed: TopicPartition | None = None
        self._before_revoke: Finish | None = None
        self._epoch, self._ended_by = 0, FenceReason.POLL_TIMEOUT
        self._timer = PollTimer(timeouts.process_ms, now_ms(), link.ends_at_ms)
        serve = self._answer if live.serves_while_busy else None
        self._watchdog = Watchdog(self._timer, link, lambda _reason: None, serve)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # KeyboardInterrupt and Dagster's interrupt are someone's wish to stop, no failures
        self.close(release=kind is None or not issubclass(kind, Exception))

    def poll(
        self, timeout_seconds: float = 5.0, max_records: int | None = None, *, min_records: int = 1
    ) -> Batch | None:
        """The next batch, or None when nothing new came in time. The first poll joins the group.

        The batch before need not be committed yet. After a poll timeout the next poll joins again and what was not
        committed comes again (KIP-62).

        Args:
            timeout_seconds: how long to wait for data.
            max_records: a smaller bound than ``max_poll_records`` for this batch (KIP-41's rejected argument).
            min_records: fewer offsets are left where they are, like ``fetch.min.bytes`` leaves bytes at the broker.

        Raises:
            FencedError: this process is finished with the group.
            KafkaLivenessError: the broker, a topic or a commit is not as it must be; the text says how.
        """
        give_up_at, bound = time.monotonic() + timeout_seconds, self.settings.max_poll_records
        while True:
            batch = self._look(bound if max_records is None else min(max_records, bound), min_records)
            if batch is not None or time.monotonic() >= give_up_at:
                return batch
            asked_at = time.monotonic()
            with suppress(BrokerUnreachableError):  # the next look waits for it
                while time.monotonic() < min(asked_at + _LOG_END_SECONDS, give_up_at):
                    self._serve()

    def heartbeat(self) -> None:
        """Say that the work on the open batch goes on: the process timeout begins anew, a rebalance is answered.

        For ops whose batch may take longer than its budget as long as it moves (KIP-62's possible extension).

        Raises:
            FencedError: the process timeout had passed, or this process is finished with the group: stop the work.
        """
        super().heartbeat()
        self._answer()
        self.check()

    def before_revoke(self, finish: Finish) -> None:
        """Register what commits the open batches when a rebalance is about to take partitions of theirs.

        With ``liveness="progress"`` it is not called: there a rebalance never waits for a batch.

        Args:
            finish: gets what it has to call while it waits, which raises when it has to end: ``HandoverDueError`` when
                the group would soon throw this member out, ``FencedError`` when this process may not commit any more.

        Caller: ``poll``, in its caller's thread. Affects: a rebalance waits for it.
        """
        self._before_revoke = None if self.settings.serves_while_busy else finish

    def has_time_for_a_batch(self) -> bool:
        """Whether the run's own budget still covers a batch's: time to stop and release when it does not."""
        return self._timer.left_ms(now_ms()) >= min(self.timeouts.process_ms, 10_000)

    def quarantine(self, poison: OffsetRange) -> None:
        """Let the live lane pass an offset that stopped it: with the next poll it is owed, like crash lag.

        Raises:
            PoisonedOffsetError: it was to be passed before, but the commit metadata has no room for it.
        """
        if poison in self._poison:
            outcome = "The group owes too many ranges to owe it too: materialize crash lag partitions first"
            raise PoisonedOffsetError([poison], self.timeouts.process_ms / 1000, outcome)
        self._poison.add(poison)

    def close(self, *, release: bool = True) -> None:
        """Leave the group at once. ``release=False`` leaves the partitions as a crash would."""
        fenced = self._watchdog.reason  # its thread may be about to leave
        try:
            self._watchdog.stop()
        finally:
            if self._lane is not None:
                self._lane.member.leave(release=release if fenced is None else fenced.releases)
            self._reader.close()
            if self._second is not None:
                self._second.close()

    def _look(self, max_records: int, min_records: int) -> Batch | None:
        """One look at the log ends; brokers that are away are waited for as long as a batch may take."""
        give_up_at = time.monotonic() + self.timeouts.process_ms / 1000
        while True:
            try:
                lane = self._serve(0.0)  # who is a member already has nothing to wait for
                lane.forget_done()
                return self._plan(lane, max_records, min_records) if self._watchdog.reason is None else None
            except BrokerUnreachableError as error:
                if self._lane is None or time.monotonic() >= give_up_at:  # who has not joined yet hears it at once
                    raise
                self._link.log.warning("still a member, looking again: %s", error)

    def _serve(self, seconds: float = SERVE_SECONDS) -> LiveLane:
        """Be a member: join when there is no membership, answer the group, settle what it assigned."""
        lane = self._joined()
        finish = None if self._before_revoke is None else self._hand_over
        lane.member.serve(seconds if lane.member.joined else SERVE_SECONDS, finish)
        if not self._fence_if_ended(lane):
            self._still_polling()
            try:
                lane.settle(self._poison)
            except CommitRefusedError:
                if not self._fence_if_ended(lane):
                    raise
        return lane

    def _hand_over(self, in_time: Callable[[], None]) -> None:
        def may_wait() -> None:
            self.check()
            in_time()

        if self._before_revoke is not None:
            self._before_revoke(may_wait)

    def _plan(self, lane: LiveLane, max_records: int, min_records: int) -> Batch | None:
        batch = lane.plan(max_records, min_records, self._last)
        if batch is None:
            return None
        self._last = batch.last
        return replace(batch, deadline_seconds=self._timer.left_ms(now_ms()) / 1000, epoch=self._epoch)

    def _joined(self) -> LiveLane:
        before = self._lane
        if before is not None and self._still_polling():
            return before
        self._ended_by = self._watchdog.reason or FenceReason.POLL_TIMEOUT
        if not self._ended_by.may_rejoin:
            self._watchdog.check()
        if before is not None:
            before.leave(self._ended_by)  # who raised the fence may not have come to it yet
        partitions = self._cluster.partitions(self.settings.topics)
        facts = witnessed(self._cluster, self.settings.group_id, partitions, self.settings.witness)
        for tp, found in facts.items():  # what no resume can work with is said before the group is disturbed
            resume(tp, found, self.settings.policy)
        member = Member(self._kafka, self.settings, self.timeouts, self._link)
        of = (self._cluster, member, self.settings)
        self._lane = LiveLane(*of, found=self._found, second=self._second_log, log=self._link.log)
        self._last = self._last_committed  # the shares are dealt again as they were for the batch that failed
        self._epoch += 1
        self._watchdog.rearm(self._lane.leave)
        if before is None:
            self._watchdog.start()
        return self._lane

    def _answer(self) -> None:
        """Caller: ``heartbeat``, or the watchdog's answering thread. Affects: ownership, when there is a rebalance."""
        lane = self._lane
        if lane is not None:
            lane.member.serve_if_idle()
            self._fence_if_ended(lane)
