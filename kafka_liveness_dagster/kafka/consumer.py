"""The live lane: a group member that plans fair batches, and commits them with what it owes.

Joins at the first poll, after everything that can be checked was checked. Nothing is fetched, so nothing that
is planned and not committed is ever lost: it is planned again by whoever owns the partition next.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.commit_log import committed
from kafka_liveness_dagster.core.fairness import Batch, plan
from kafka_liveness_dagster.core.heartbeat import FenceReason, PollTimer
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.resume import check_log, resume
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError, FencedError
from kafka_liveness_dagster.kafka.member import Member, Owned
from kafka_liveness_dagster.kafka.watchdog import RunLink, Watchdog, now_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from kafka_liveness_dagster.core.timeouts import Timeouts
    from kafka_liveness_dagster.kafka.config import KafkaSettings, LiveSettings

_FORGET_SECONDS = 60.0
_LOG_END_SECONDS = 0.2  # how often an idle poll asks for new data


class LivenessConsumer:
    """A heartbeat-enabled consumer whose poll interval is its run's budget. Use it as a context manager.

    Leaving the block normally releases the partitions: the next owner resumes in order. Leaving it by an error
    leaves the group too, but the partitions keep the mark of a crash: with ``enable_parallel_rebalance`` the
    open batch becomes crash lag and the live lane goes on at the log end.
    """

    def __init__(self, kafka: KafkaSettings, live: LiveSettings, timeouts: Timeouts, link: RunLink) -> None:
        self.timeouts, self.settings = timeouts, live
        self.jumped: list[OffsetRange] = []
        self._kafka, self._link = kafka, link
        self._cluster = Cluster(kafka)
        self._member: Member | None = None
        self._last: TopicPartition | None = None
        self._epoch, self._forgot_at = 0, time.monotonic()
        self._watchdog = Watchdog(
            PollTimer(timeouts.process_ms, now_ms(), link.ends_at_ms), link, lambda reason: self._leave(reason.releases)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # KeyboardInterrupt and Dagster's interrupt are someone's wish to stop, no failures
        self.close(release=kind is None or not issubclass(kind, Exception))

    def poll(self, timeout_seconds: float = 5.0, max_records: int | None = None) -> Batch | None:
        """The next batch, or None when nothing new came in time. The first poll joins the group.

        After a poll timeout the next poll joins again and what was not committed comes again (KIP-62).

        Args:
            timeout_seconds: how long to wait for data.
            max_records: a smaller bound for this batch than ``max_poll_records`` (KIP-41's rejected argument).

        Raises:
            FencedError: this process is finished with the group.
            KafkaLivenessError: the broker, a topic or a commit is not as it must be; the text says how.
        """
        self._join_if_needed()
        give_up_at = time.monotonic() + timeout_seconds
        bound = self.settings.max_poll_records
        while True:
            batch = self._look(bound if max_records is None else min(max_records, bound))
            if batch is not None or time.monotonic() >= give_up_at:
                return batch
            asked_at = time.monotonic()
            while time.monotonic() < min(asked_at + _LOG_END_SECONDS, give_up_at):
                self._serve()

    def has_time_for_a_batch(self) -> bool:
        """Whether the run's own budget still covers a batch's: time to stop and release when it does not."""
        ends_at_ms = self._link.ends_at_ms
        return ends_at_ms is None or ends_at_ms - now_ms() >= min(self.timeouts.process_ms, 10_000)

    def commit(self, batch: Batch) -> None:
        """Commit a processed batch: position, mark and owed ranges in one request.

        Partitions that were handed over meanwhile are left to their new owner, who processes them again.

        Raises:
            FencedError: this process may not commit any more.
            CommitRefusedError: the broker refused, or the batch is out of order. Nothing was lost.
        """
        self._watchdog.check()
        if self._member is None or batch.epoch != self._epoch:
            raise FencedError(FenceReason.POLL_TIMEOUT, "the batch was planned before the consumer rejoined")
        handed_over = self._member.commit({r.topic_partition: r.span for r in batch.ranges})
        self._watchdog.check()
        if handed_over:
            self._link.log.info(
                "handed over before the commit, replayed by the new owner: %s", ", ".join(map(str, handed_over))
            )

    def check(self) -> None:
        """Raise ``FencedError`` when this process may not commit any more: ask before starting anything long."""
        self._watchdog.check()

    def on_fence(self, cancel: Callable[[], None]) -> None:
        """Register what to cancel when the fence goes up, a Spark job for one.

        Caller: the watchdog's thread, once per fence. Affects: work already under way.
        """
        self._watchdog.on_fence(cancel)

    @property
    def joined(self) -> bool:
        """Whether the group has let this consumer in; a rebalance may wait for others' batches or dead sessions."""
        return self._member is not None and self._member.joined

    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions owned now."""
        return tuple(sorted(self._member.owned)) if self._member else ()

    def position(self, topic: str, partition: int) -> int | None:
        """Where the live lane's next batch begins; None for a partition not owned (KIP-333: live lane only)."""
        owned = self._member.owned.get(TopicPartition(topic, partition)) if self._member else None
        return owned.position if owned else None

    def committed(self, topic: str, partition: int) -> int | None:
        """Every offset before it is processed, in whichever lane (KIP-333: ``committed()``); None for none."""
        tp = TopicPartition(topic, partition)
        first = self._cluster.commits(self.settings.group_id, [tp]).get(tp)
        return committed(first.offset if first else None, self._outstanding(tp))

    def owed(self, topic: str, partition: int) -> tuple[OffsetRange, ...]:
        """The offset ranges the live lane jumped over that no catch-up run has done yet."""
        return tuple(OffsetRange(topic, partition, *s) for s in self._outstanding(TopicPartition(topic, partition)))

    def close(self, *, release: bool = True) -> None:
        """Leave the group at once. ``release=False`` leaves the partitions as a crash would."""
        try:
            self._watchdog.stop()
        finally:
            self._leave(release)

    def _outstanding(self, tp: TopicPartition) -> tuple[Span, ...]:
        facts = self._cluster.facts(self.settings.group_id, [tp])[tp]
        return facts.second.outstanding(facts.mark.owed if facts.mark else ())

    def _join_if_needed(self) -> None:
        reason = self._watchdog.reason
        if reason is not None and not reason.may_rejoin:
            self._watchdog.check()
        if self._member is not None and reason is None and self._still_polling():
            return
        self._check_before_joining()
        first_time = self._member is None
        live = self.settings
        config = self._kafka.member(live.group_id, self._link.client_id, self.timeouts)
        self._member = Member(self._kafka, config, live.topics, live.group_id, self._link)
        self._watchdog.rearm()
        self._epoch += 1
        if first_time:
            self._watchdog.start()

    def _still_polling(self) -> bool:
        """Report a poll; False when it comes too late and this membership is over."""
        try:
            self._watchdog.polled()
        except FencedError as error:
            if not error.reason.may_rejoin:
                raise
            return False
        return True

    def _check_before_joining(self) -> None:
        facts = self._cluster.facts(self.settings.group_id, self._cluster.partitions(self.settings.topics))
        for tp, found in facts.items():
            resume(tp, found, self.settings.policy)

    def _look(self, max_records: int) -> Batch | None:
        """One look at the log ends; brokers that are away are waited for as long as a batch may take."""
        give_up_at = time.monotonic() + self.timeouts.process_ms / 1000
        while True:
            try:
                self._serve()
                self._forget_done()
                return self._plan(max_records)
            except BrokerUnreachableError as error:
                if time.monotonic() >= give_up_at:
                    raise
                self._link.log.warning("still a member, looking again: %s", error)

    def _forget_done(self) -> None:
        """Now and then drop owed ranges that are done: the second log may expire before this member ends."""
        if self._member is None or time.monotonic() - self._forgot_at < _FORGET_SECONDS:
            return
        self._forgot_at = time.monotonic()
        owing = {tp: owned for tp, owned in self._member.owned.items() if owned.owed}
        facts = self._cluster.facts(self.settings.group_id, list(owing))
        for tp, owned in owing.items():
            owned.owed = facts[tp].second.outstanding(owned.owed)

    def _serve(self) -> None:
        assert self._member is not None  # noqa: S101 - joined at the top of poll
        self._watchdog.polled()
        self._member.serve()
        self._watchdog.polled()
        if self._member.arrived:
            self._settle(self._member, sorted(self._member.arrived))

    def _settle(self, member: Member, arrived: Sequence[TopicPartition]) -> None:
        """Decide where arrived partitions go on, and make it durable before the first record of theirs."""
        facts = self._cluster.facts(self.settings.group_id, arrived)
        resumed = {tp: resume(tp, facts[tp], self.settings.policy) for tp in arrived}
        member.adopt({tp: Owned(r.position, r.position, r.owed) for tp, r in resumed.items()})
        for tp in (tp for tp in arrived if tp in member.owned):
            if (skipped := resumed[tp].skipped) is not None:
                self.jumped.append(OffsetRange(*tp, *skipped))
                told = "crash lag %s, %d offsets, is owed and becomes a partition; live goes on at %d"
                self._link.log.warning(told, self.jumped[-1], skipped.size, resumed[tp].position)
            if (overflow := resumed[tp].overflow) is not None:
                told = "%s resumes in order at %d: its owed ranges are too many for a commit"
                self._link.log.warning(told, tp, overflow.start)

    def _plan(self, max_records: int) -> Batch | None:
        assert self._member is not None  # noqa: S101 - joined at the top of poll
        owned = dict(self._member.owned)
        bounds = self._cluster.log_bounds(owned)
        for tp, o in owned.items():  # the log may be deleted, or made anew, under a live member too
            check_log(tp, o.position, *bounds[tp])
        pending = {tp: (Span(o.position, bounds[tp][1]),) for tp, o in owned.items()}
        ranges, self._last = plan(pending, max_records, self._last)
        if not ranges:
            return None
        for r in ranges:
            owned[r.topic_partition].position = r.end
        return Batch(ranges, self.timeouts.process_ms / 1000, self._epoch)

    def _leave(self, release: bool) -> None:  # noqa: FBT001
        if self._member is not None:
            self._member.leave(release=release)
