"""The offsets of a window that a group has processed: without crash lag, lost and unread offsets."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.commit_metadata import DoneLog, LiveMark, Mark, Origin
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.partition_state import DataExpiredError, PartitionFacts
from kafka_liveness_dagster.kafka import timestamps as module
from kafka_liveness_dagster.kafka.group_description import Commit
from kafka_liveness_dagster.kafka.timestamps import processed

AT = TopicPartition("orders", 3)


class Cluster:
    """One partition: crash lag 70-100, written off 30-40, commit 150, log end 200."""

    log_start = 0

    def partitions(self, _topics):
        return [AT]

    def commits(self, _group_id, _partitions):
        return {AT: Commit(150, "")}

    def facts(self, _group_id, _partitions):
        mark = LiveMark(Mark.RUNNING, "0badcafe", (Span(70, 100),), origin=Origin(0))
        return {AT: PartitionFacts(150, mark, self.log_start, 200, DoneLog(0, (), (Span(30, 40),), Origin(0)))}

    def log_bounds(self, partitions):
        return dict.fromkeys(partitions, (0, 0))


@pytest.fixture
def cluster(monkeypatch):
    """A cluster in which offsets 20 to before 180 are of the window."""
    monkeypatch.setattr(module, "window_bounds", lambda *_: ({AT: 20}, {AT: 180}))
    return Cluster()


def test_crash_lag_and_unread_offsets_are_not_processed(cluster):
    """A window with them would look complete. Offsets that were written off have no rows to replace."""
    found = processed(cluster, "orders-etl", ["orders"], 0, 1)
    ranges = [OffsetRange("orders", 3, *span) for span in ((20, 30), (40, 70), (100, 150))]
    assert list(found.ranges) == ranges, "only processed offsets"
    assert (found.owed, found.ahead) == ((OffsetRange("orders", 3, 70, 100),), 30)


def test_a_window_is_not_whole_if_its_first_records_may_have_expired(cluster, monkeypatch):
    """The first offset that the broker has is of the window: those before it may have been, too."""
    monkeypatch.setattr(Cluster, "log_start", 25)
    monkeypatch.setattr(module, "window_bounds", lambda *_: ({AT: 25}, {AT: 180}))
    with pytest.raises(DataExpiredError, match="deleted the first 25 offsets of orders:3"):
        processed(cluster, "orders-etl", ["orders"], 0, 1)
