"""How the freshness and completeness of a table are judged: every row says why."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.commit_metadata import ExternalCommit, LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.freshness import (
    ServiceLevel,
    judge_freshness,
    pending_positions,
    unread_positions,
)
from kafka_liveness_dagster.core.health import Severity
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
FINE, WARNING, ERROR = Severity.FINE, Severity.WARNING, Severity.ERROR
BOTH = ServiceLevel(fresh_seconds=30.0, complete_seconds=900.0)
NOW = 2_000_000


def partition(committed=120, log_end=120, tp=P0, *, paused=False, **more):
    state = OwnerState.PAUSED if paused else OwnerState.RUNNING
    return PartitionSnapshot(tp, committed, LiveCommitMetadata(state, "0badcafe"), log_end=log_end, **more)


IDLE = partition()
BEHIND = partition(log_end=150)
PENDING = partition(outstanding=(Span(70, 120),))
ROLLED_BACK = partition(missing_rows=(Span(20, 60),))
RECOVERED = partition(outstanding=(Span(70, 120),), unrecorded=(Span(70, 120),))
EXPIRED = partition(outstanding=(Span(70, 120),), log_start=100)
UNSURE = partition(
    outstanding=(Span(70, 120),), is_upper_bound=True, external=ExternalCommit("second", 5, "")
)


def at(seconds):
    """The timestamp of a record that is so old."""
    return NOW - 1000 * seconds


@pytest.mark.parametrize(
    ("partitions", "timestamps", "sla", "severity", "message"),
    [
        pytest.param([IDLE], {}, BOTH, FINE, "the table is 0 s behind the log", id="an idle topic is fresh"),
        pytest.param([BEHIND], {(P0, 120): at(30)}, BOTH, FINE, "30 s behind", id="at the limit"),
        pytest.param(
            [BEHIND], {(P0, 120): at(31)}, BOTH, ERROR, "is at orders:0:120, lag 30. Fix: check group_alive",
            id="the live lane is behind",
        ),
        pytest.param(
            [BEHIND, partition(tp=P1, log_end=121)], {(P0, 120): at(5), (P1, 120): at(40)}, BOTH, ERROR,
            "is at orders:1:120, lag 31", id="the partition with the oldest record counts",
        ),
        pytest.param([BEHIND], {(P0, 120): NOW + 5_000}, BOTH, FINE, "0 s behind", id="from the future"),
        pytest.param([BEHIND], {}, BOTH, WARNING, "unknown: Kafka returned no timestamp of orders:0:120",
                     id="an unknown age is not green"),
        pytest.param(
            [BEHIND, partition(tp=P1, log_end=121)], {(P1, 120): at(40)}, BOTH, ERROR, "40 s behind",
            id="one late record is enough",
        ),
        pytest.param([partition(log_end=150, paused=True)], {}, BOTH, FINE, "0 s behind", id="paused"),
        pytest.param(
            [partition(None, 150, log_start=20)], {(P0, 20): at(40)}, BOTH, ERROR, "at orders:0:20",
            id="nothing committed: the log's first record",
        ),
        pytest.param([PENDING], {(P0, 70): at(900)}, BOTH, FINE, "table is 900 s old, the limit is 900 s",
                     id="pending, at the limit"),
        pytest.param(
            [PENDING], {(P0, 70): at(901)}, BOTH, ERROR,
            "901 s old, the limit is 900 s (complete_minutes): it is at orders:0:70, 50 offsets are pending. "
            "Fix: materialize", id="pending for too long",
        ),
        pytest.param(
            [ROLLED_BACK], {(P0, 20): at(901)}, BOTH, ERROR, "at orders:0:20", id="rows are missing"
        ),
        pytest.param([RECOVERED], {}, BOTH, FINE, "is 0 s old", id="in the table, and not recorded yet"),
        pytest.param([EXPIRED], {(P0, 100): at(5)}, BOTH, FINE, "is 5 s old", id="what the broker still has"),
        pytest.param([UNSURE], {(P0, 70): at(5)}, BOTH, WARNING, "unknown: orders:0: an external commit",
                     id="a replaced log hides what is pending"),
        pytest.param(
            [partition(log_end=150, outstanding=(Span(70, 120),))], {(P0, 120): at(950), (P0, 70): at(10)},
            ServiceLevel(complete_seconds=900.0), ERROR, "it is at orders:0:120, 50 offsets are pending",
            id="the live lane alone makes a table incomplete",
        ),
        pytest.param([PENDING], {}, ServiceLevel(fresh_seconds=30.0), FINE, "(fresh_seconds)",
                     id="no limit for crash lag"),
    ],
)  # fmt: skip
def test_both_limits(partitions, timestamps, sla, severity, message):
    """By the oldest record of each lane."""
    found = judge_freshness(partitions, timestamps, sla, now_ms=NOW)
    assert (found.severity, message in found.message) == (severity, True), found


def test_the_numbers():
    """An unknown age is no number."""
    partitions = [partition(log_end=150, outstanding=(Span(70, 120),))]
    found = judge_freshness(partitions, {(P0, 70): at(10)}, BOTH, now_ms=NOW)
    assert found.numbers == {
        "lag": 30, "pending_offsets": 50, "pending_age_seconds": 10.0, "fresh_limit_seconds": 30.0,
        "complete_limit_seconds": 900.0,
    }  # fmt: skip
    found = judge_freshness(partitions, {(P0, 120): at(10)}, BOTH, now_ms=NOW)
    assert found.numbers["seconds_behind"] == 10.0
    assert "pending_age_seconds" not in found.numbers


def test_positions():
    """One offset of each partition and lane."""
    both = [partition(log_end=150, outstanding=(Span(70, 80), Span(90, 100))), partition(tp=P1)]
    assert (unread_positions(both), pending_positions(both)) == ([(P0, 120)], [(P0, 70)])
    assert (ServiceLevel().is_set, BOTH.is_set) == (False, True)
