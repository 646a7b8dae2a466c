"""Who writes down that owed offsets are done? KIP-333's second commit log: the committed offsets of ``G.catch-up``.

Several runs may write it at once and none of them is a member of a group, so each write is looked at afterwards and
repeated when another's replaced it. A write that is lost for good costs rework, never data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kafka_liveness_dagster.core.commit_log import CATCH_UP_SUFFIX
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition, difference, intersection, union
from kafka_liveness_dagster.kafka.admin import Cluster, logger_of
from kafka_liveness_dagster.kafka.errors import CommitRefusedError, named
from kafka_liveness_dagster.kafka.portions import portions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kafka_liveness_dagster.core.commit_log import DoneLog
    from kafka_liveness_dagster.kafka.config import KafkaSettings

_WRITES = 5


class NotOwedError(InvalidSettingError):
    """A range was named that the group does not owe."""


class SecondLog:
    """The second commit log of one group."""

    def __init__(self, kafka: KafkaSettings, group_id: str, client_id: str) -> None:
        config = kafka.committer(group_id + CATCH_UP_SUFFIX, f"{client_id}/catch-up")
        self._cluster, self._kafka, self._group_id = Cluster(kafka), kafka, group_id
        self._client = Consumer(config, logger=logger_of(config))

    def record(self, ranges: Iterable[OffsetRange], may_go_on: Callable[[], None] = lambda: None) -> None:
        """Write down that owed ranges are done; what is not owed any more is left as it is.

        Raises:
            CommitRefusedError: the record did not last; the ranges stay owed.
        """
        done = by_partition(ranges)
        for _ in range(_WRITES):
            may_go_on()
            facts = self._cluster.facts(self._group_id, list(done))
            missing = {tp: spans for tp, spans in done.items() if intersection(facts[tp].outstanding, spans)}
            if not missing:
                return
            self._write({tp: facts[tp].second.record(facts[tp].owed, spans) for tp, spans in missing.items()})
        raise CommitRefusedError(
            f"the second commit log {self._group_id + CATCH_UP_SUFFIX} lost {_WRITES} writes to other runs: what was "
            "done stays owed; run its backfill again"
        )

    def check_owed(self, asked: Mapping[TopicPartition, tuple[Span, ...]]) -> None:
        """Whether the ranges may be owed: one that reaches above the first log was never skipped, someone mistyped it.

        Below it every offset is in the table or owed, though either log may have forgotten how it came there.

        Raises:
            NotOwedError: with what is owed.
        """
        facts = self._cluster.facts(self._group_id, list(asked))
        for tp, spans in asked.items():
            first = facts[tp].committed or 0
            if unknown := difference(spans, (Span(0, first),)):
                raise NotOwedError(
                    f"{OffsetRange(*tp, *unknown[0])} is not owed by group {self._group_id}: its live lane is at "
                    f"{first}, and it owes {', '.join(map(str, facts[tp].outstanding)) or 'nothing'} of {tp}. Nothing "
                    "was processed; if the partition was added by hand, delete it"
                )

    def close(self) -> None:
        """Disconnect; there is no group to leave."""
        self._client.close()

    def _write(self, logs: Mapping[TopicPartition, DoneLog]) -> None:
        offsets = [
            KafkaTopicPartition(tp.topic, tp.partition, second.watermark, second.encode())
            for tp, second in logs.items()
        ]
        group = self._group_id + CATCH_UP_SUFFIX
        try:
            for portion in portions(offsets, group):
                self._client.commit(offsets=portion, asynchronous=False)
        except KafkaException as error:
            raise named(error, f"committing to {group}", self._kafka.bootstrap_servers) from error


def by_partition(ranges: Iterable[OffsetRange]) -> dict[TopicPartition, tuple[Span, ...]]:
    """The same offsets, as the fewest spans of each partition."""
    found: dict[TopicPartition, tuple[Span, ...]] = {}
    for r in sorted(ranges):
        found[r.topic_partition] = union((*found.get(r.topic_partition, ()), r.span))
    return found
