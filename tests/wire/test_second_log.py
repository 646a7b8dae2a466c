"""The second log has many writers, the last one wins: what is told is told again when another's write took it away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_liveness_dagster.core.commit_log import DoneLog, LiveMark, Mark, Origin
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.core.witnesses import PartitionFacts
from kafka_liveness_dagster.kafka.config import KafkaSettings
from kafka_liveness_dagster.kafka.errors import CommitRefusedError
from kafka_liveness_dagster.kafka.second_log import SecondLog

AT = TopicPartition("orders", 3)
LOST = Span(70, 80)


class Broker:
    """Both commit logs of one partition; ``late`` writes of another run replace the next ones."""

    silent = False

    def __init__(self, late):
        mark = LiveMark(Mark.RUNNING, "0badcafe", (Span(70, 120),), origin=Origin(0))
        self.facts_now = PartitionFacts(120, mark, 80, 120, DoneLog(origin=Origin(0), target="lake.shop.orders"))
        self.late = late

    def facts(self, _group_id, _partitions):
        """As ``Cluster``."""
        return {AT: self.facts_now}

    def commit(self, offsets):
        """As ``Committing``."""
        before, (offset, text) = self.facts_now.second, offsets[AT]
        after = before if self.late else DoneLog.decode(offset, text)
        self.late = max(0, self.late - 1)
        self.facts_now = replace(self.facts_now, second=after)


@pytest.fixture
def told(monkeypatch):
    """What the second log says after so many late writes of another run."""

    def tell(late):
        broker = Broker(late)
        log = SecondLog(KafkaSettings("127.0.0.1:1"), "orders-etl", "test")
        log.close()
        monkeypatch.setattr(log, "_cluster", broker)
        monkeypatch.setattr(log, "_committing", broker)
        log.tell({AT: (LOST,)})
        return broker.facts_now.second

    return tell


@pytest.mark.parametrize("late", [0, 1, 3])
def test_what_was_told_lasts(told, late):
    """Done, and not in silence."""
    second = told(late)
    assert second.reported == (LOST,)
    assert second.outstanding((Span(70, 120),)) == (Span(80, 120),)


def test_what_cannot_be_told_is_no_secret(told):
    """Who is always late raises: what was to be told stays owed."""
    with pytest.raises(CommitRefusedError, match="lost 5 writes to other runs"):
        told(99)
