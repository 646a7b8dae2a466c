"""The offsets of a window that a group has processed: without crash lag, lost and unread offsets."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.commit_metadata import (
    CatchUpCommitMetadata,
    GroupOrigin,
    LiveCommitMetadata,
    OwnerState,
)
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.partition_state import DataExpiredError, PartitionState
from kafka_liveness_dagster.kafka import timestamps as module
from kafka_liveness_dagster.kafka.group_description import CommittedOffset
from kafka_liveness_dagster.kafka.timestamps import processed_ranges

AT = TopicPartition("orders", 3)


class Cluster:
    """One partition: crash lag 70-100, written off 30-40, commit 150, log end 200."""

    log_start = 0

    def partitions(self, _topics):
        return [AT]

    def commits(self, _group_id, _partitions):
        return {AT: CommittedOffset(150, "")}

    def partition_states(self, _group_id, _partitions):
        mark = LiveCommitMetadata(OwnerState.RUNNING, "0badcafe", (Span(70, 100),), origin=GroupOrigin(0))
        return {
            AT: PartitionState(
                150,
                mark,
                self.log_start,
                log_end=200,
                catch_up_log=CatchUpCommitMetadata(0, (), (Span(30, 40),), origin=GroupOrigin(0)),
            )
        }

    def log_bounds(self, partitions):
        return dict.fromkeys(partitions, (0, 0))


@pytest.fixture
def cluster(monkeypatch):
    """A cluster in which offsets 20 to before 180 are of the window."""
    monkeypatch.setattr(module, "window_bounds", lambda *_: ({AT: 20}, {AT: 180}))
    return Cluster()


def test_crash_lag_and_unread_offsets_are_not_processed(cluster):
    """A window with them would look complete. Offsets that were written off have no rows to replace."""
    found = processed_ranges(cluster, "orders-etl", ["orders"], 0, 1)
    ranges = [OffsetRange("orders", 3, *span) for span in ((20, 30), (40, 70), (100, 150))]
    assert list(found.ranges) == ranges, "only processed offsets"
    assert (found.pending, found.unread) == ((OffsetRange("orders", 3, 70, 100),), 30)


def test_a_window_is_not_whole_if_its_first_records_may_have_expired(cluster, monkeypatch):
    """The first offset that the broker has is of the window: those before it may have been, too."""
    monkeypatch.setattr(Cluster, "log_start", 25)
    monkeypatch.setattr(module, "window_bounds", lambda *_: ({AT: 25}, {AT: 180}))
    with pytest.raises(DataExpiredError, match="deleted the first 25 offsets of orders:3"):
        processed_ranges(cluster, "orders-etl", ["orders"], 0, 1)
