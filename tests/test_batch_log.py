"""What a run's log says of its batches.

Little, however many they are and however many partitions they have.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
from kafka_liveness_dagster.lanes import batch_reporting
from kafka_liveness_dagster.lanes.batch_reporting import BatchLog
from kafka_liveness_dagster.spark.table.write import WriteResult


class Log(list):
    """A run's log."""

    def debug(self, line, *values):
        self.append(line % values)

    info = debug


@pytest.fixture
def clock(monkeypatch):
    """The time, to be set."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(batch_reporting, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def batch(partitions, start=0):
    """Five offsets of each partition."""
    return Batch(tuple(OffsetRange("orders", p, start, start + 5) for p in range(partitions)), 60.0)


def written(rows, attempts=1):
    """What one wrote."""
    return WriteResult(rows, attempts, rewrote_files=False)


def test_the_first_is_told_at_once_and_the_others_together(clock):
    """A line in ten seconds, and none of a batch is lost at the end."""
    log = Log()
    with BatchLog(log) as lines:
        for second in range(13):
            clock.seconds = 100.0 + second
            lines.log_committed(batch(1, 5 * second), written(5), 0.5)
    assert log == [
        "Committed p0:orders:0-5: 5 rows in 0.50 s",
        "Committed 10 batches up to p0:orders:50-55: 50 rows in 5.00 s",
        "Committed 2 batches up to p0:orders:60-65: 10 rows in 1.00 s",
    ]


def test_what_is_unusual_is_told_at_once(clock):
    """Another writer, and partitions that went before the commit."""
    log = Log()
    with BatchLog(log) as lines:
        lines.log_committed(batch(1), written(5), 0.5)
        lines.log_committed(batch(2, 5), written(10, attempts=2), 0.5, [TopicPartition("orders", 1)])
    assert log[1:] == [
        "Another writer committed rows of the same offsets: written at attempt 2",
        (
            f"Written {batch(2, 5)}, and committed without orders:1, which its new owner writes again: 10 "
            "rows in 0.50 s"
        ),
    ]


def test_a_line_is_as_short_for_a_thousand_partitions(clock):
    """Which offsets these were is in the snapshot's summary."""
    log = Log()
    with BatchLog(log) as lines:
        lines.log_committed(batch(1_000), written(5_000), 0.5)
        lines.log_committed(
            batch(1_000), written(5_000), 0.5, [TopicPartition("orders", p) for p in range(1_000)]
        )
    assert max(map(len, log)) < 200
