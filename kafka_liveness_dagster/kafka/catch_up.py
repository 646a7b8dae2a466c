"""The catch-up lane: crash lag ranges in any order, progress in the second commit log.

Never a member of the live group: manual assignment has no group thread (KIP-62), its deadline is the
watchdog's. Two runs on one range do no harm: writes of the same range replace each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kafka_liveness_dagster.core.commit_log import CATCH_UP_SUFFIX, DoneLog
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.fairness import Batch, plan
from kafka_liveness_dagster.core.heartbeat import FenceReason, PollTimer
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition, difference, intersection, union
from kafka_liveness_dagster.core.resume import DataExpiredError, PartitionFacts
from kafka_liveness_dagster.kafka.admin import Cluster, logger_of
from kafka_liveness_dagster.kafka.errors import CommitRefusedError, FencedError, named
from kafka_liveness_dagster.kafka.watchdog import RunLink, Watchdog, Watched, now_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Self

    from kafka_liveness_dagster.core.timeouts import Budget
    from kafka_liveness_dagster.kafka.config import KafkaSettings

_WRITES = 5


class NotOwedError(InvalidSettingError):
    """A range was asked for that the group does not owe."""


class CatchUpConsumer(Watched):
    """Plans and commits what is outstanding of the asked ranges. Use it as a context manager.

    Args:
        ranges: crash lag ranges, in any order; parts that are done already are left out.

    Attributes:
        quarantined: offsets that were left out, each too slow for a batch of its own.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        group_id: str,
        ranges: Sequence[OffsetRange],
        *,
        max_poll_records: int,
        budget: Budget,
        link: RunLink,
    ) -> None:
        self.budget, self.group_id = budget, group_id
        self._asked = {tp: union(r.span for r in ranges if r.topic_partition == tp) for tp in _partitions(ranges)}
        self._max_records, self._kafka = max_poll_records, kafka
        self._cluster = Cluster(kafka)
        config = kafka.committer(group_id + CATCH_UP_SUFFIX, f"{link.client_id}/catch-up")
        self._log_client = Consumer(config, logger=logger_of(config))
        self.quarantined: list[OffsetRange] = []
        self._planned: dict[TopicPartition, tuple[Span, ...]] = {}
        self._last: TopicPartition | None = None
        self._last_committed: TopicPartition | None = None
        self._epoch = 0
        self._timer = PollTimer(round(budget.seconds * 1000), now_ms(), link.ends_at_ms)
        self._watchdog = Watchdog(self._timer, link, lambda _reason: None)

    def __enter__(self) -> Self:
        try:
            self._check_asked()
        except BaseException:
            self.close()
            raise
        self._watchdog.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def poll(self, max_records: int | None = None) -> Batch | None:
        """The next batch of outstanding offsets, the oldest of each partition first; None when all is done.

        After a process timeout what was not committed comes again.

        Args:
            max_records: a smaller bound for this batch than ``max_poll_records``.

        Raises:
            FencedError: the run is gone.
            DataExpiredError: offsets of the range were deleted by the broker's retention.
        """
        self._begin_again_if_too_slow()
        pending = {tp: difference(spans, self._planned.get(tp, ())) for tp, spans in self.outstanding().items()}
        bound = self._max_records if max_records is None else min(max_records, self._max_records)
        ranges, self._last = plan(pending, bound, self._last)
        self._plan(ranges)
        return Batch(ranges, self._timer.left_ms(now_ms()) / 1000, self._epoch, self._last) if ranges else None

    def quarantine(self, poison: OffsetRange) -> None:
        """Leave an offset out that stops this lane: it stays owed, and another run may try it."""
        self.quarantined.append(poison)
        self._plan((poison,))

    def commit(self, batch: Batch) -> None:
        """Record a processed batch in the second log; repeated when another run's write replaced it.

        Raises:
            FencedError: this process may not commit any more.
            CommitRefusedError: the record did not last; the range stays owed and is processed again.
        """
        done = {tp: union(r.span for r in batch.ranges if r.topic_partition == tp) for tp in _partitions(batch.ranges)}
        self._watchdog.check()
        if batch.epoch != self._epoch:
            raise FencedError(FenceReason.POLL_TIMEOUT, "the batch was planned before its process timeout")
        for _ in range(_WRITES):
            self._watchdog.check()
            facts = self._facts(list(done))
            missing = {tp: spans for tp, spans in done.items() if _still_owed(facts[tp], spans)}
            if not missing:
                self._last_committed = batch.last
                return
            self._write({tp: facts[tp].second.record(_owed(facts[tp]), spans) for tp, spans in missing.items()})
        raise CommitRefusedError(
            f"the second commit log {self.group_id + CATCH_UP_SUFFIX} lost {_WRITES} writes of {batch} to other runs: "
            "the range stays owed; run its backfill again"
        )

    def outstanding(self) -> dict[TopicPartition, tuple[Span, ...]]:
        """What of the asked ranges is still to be done, from both commit logs."""
        facts = self._facts(list(self._asked))
        left = {tp: intersection(_outstanding(facts[tp]), spans) for tp, spans in self._asked.items()}
        for tp, spans in left.items():
            _check_start(tp, spans, facts[tp].log_start)
        return left

    def outstanding_ranges(self) -> list[OffsetRange]:
        """The same as ranges, sorted."""
        return [OffsetRange(*tp, *span) for tp, spans in self.outstanding().items() for span in spans]

    def close(self) -> None:
        """Stop watching and disconnect; there is no group to leave."""
        self._watchdog.stop()
        self._log_client.close()

    def _begin_again_if_too_slow(self) -> None:
        if self._still_polling():
            return
        self._epoch += 1
        self._planned, self._last = {}, self._last_committed
        self._plan(self.quarantined)
        self._watchdog.rearm()

    def _plan(self, ranges: Iterable[OffsetRange]) -> None:
        for r in ranges:
            self._planned[r.topic_partition] = union((*self._planned.get(r.topic_partition, ()), r.span))

    def _facts(self, partitions: list[TopicPartition]) -> dict[TopicPartition, PartitionFacts]:
        return self._cluster.facts(self.group_id, partitions)

    def _check_asked(self) -> None:
        """A range that reaches above the first log was never skipped: someone mistyped a key.

        Below it every offset is in the table or owed, though either log may have forgotten how it came there.
        """
        facts = self._facts(list(self._asked))
        for tp, asked in self._asked.items():
            first = facts[tp].committed or 0
            if unknown := difference(asked, (Span(0, first),)):
                raise NotOwedError(
                    f"{OffsetRange(*tp, *unknown[0])} is not owed by group {self.group_id}: its live lane is at "
                    f"{first}, and it owes {', '.join(map(str, _outstanding(facts[tp]))) or 'nothing'} of {tp}. "
                    "Nothing was processed; if the partition was added by hand, delete it"
                )

    def _write(self, logs: Mapping[TopicPartition, DoneLog]) -> None:
        offsets = [
            KafkaTopicPartition(tp.topic, tp.partition, second.watermark, second.encode())
            for tp, second in logs.items()
        ]
        try:
            self._log_client.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            doing = f"committing to {self.group_id + CATCH_UP_SUFFIX}"
            raise named(error, doing, self._kafka.bootstrap_servers) from error


def _partitions(ranges: Sequence[OffsetRange]) -> list[TopicPartition]:
    return sorted({r.topic_partition for r in ranges})


def _owed(facts: PartitionFacts) -> tuple[Span, ...]:
    return facts.mark.owed if facts.mark else ()


def _outstanding(facts: PartitionFacts) -> tuple[Span, ...]:
    return facts.second.outstanding(_owed(facts))


def _still_owed(facts: PartitionFacts, spans: tuple[Span, ...]) -> bool:
    return bool(intersection(_outstanding(facts), spans))


def _check_start(tp: TopicPartition, spans: tuple[Span, ...], log_start: int) -> None:
    if spans and spans[0].start < log_start:
        raise DataExpiredError(
            f"{tp} owes offsets from {spans[0].start} but its log starts at {log_start}: up to "
            f"{log_start - spans[0].start} records expired before they were caught up. Raise the topic's retention"
        )
