"""Progress is told now and then: every row is one report of Spark's, and says why."""

from __future__ import annotations

from kafka_liveness_dagster.lanes.batch_reporting import BatchProgress


def test_a_long_batch_is_told_every_ten_seconds():
    """A short one never, and neither an operation that is done: the next one follows."""
    log = BatchProgress("p3:orders:70-120", began_seconds=100.0)
    reports = [
        (0, 0, 101.0, None, "nothing is planned"),
        (39, 40, 109.9, None, "soon done"),
        (0, 0, 111.0, None, "still nothing to count"),
        (40, 40, 112.0, None, "this operation is done"),
        (
            0,
            1200,
            115.0,
            "p3:orders:70-120: 0 of 1,200 tasks after 15 s",
            "long, and a task that hangs is told too",
        ),
        (7, 1200, 124.9, None, "told lately"),
        (8, 1200, 125.0, "p3:orders:70-120: 8 of 1,200 tasks after 25 s", "ten seconds later"),
    ]
    for completed, total, now, line, why in reports:
        assert log.next_line(completed, total, now) == line, why
