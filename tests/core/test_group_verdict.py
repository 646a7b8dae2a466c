"""What a person is told of a group: its problems and the next steps."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.events import LeaveReason, MemberLeft
from kafka_liveness_dagster.core.group_verdict import (
    Departure,
    GroupRuns,
    PendingCause,
    PendingReason,
    next_steps,
    problems,
)
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot

P3 = TopicPartition("orders", 3)
PENDING = Span(70, 120)
SENSOR = "the group's sensor starts the next live run; if it does not, turn the sensor on"


WRITE_OFF = "kafka-liveness write-off etl p3:orders:75-76 --reason …"
REASONS = (
    PendingReason(OffsetRange("orders", 3, 75, 76), PendingCause.BAD_RECORD, "X: no", failures=1),
    PendingReason(OffsetRange("orders", 3, 76, 77), PendingCause.BAD_RECORD),
    PendingReason(OffsetRange("orders", 3, 77, 120), PendingCause.SKIPPED, failures=2),
)


def seen(end=120, *pending, start=0, missing=(), unrecorded=()):
    return PartitionSnapshot(
        P3,
        120,
        LiveCommitMetadata(OwnerState.RUNNING, "fdeff1df"),
        log_end=end,
        outstanding=pending,
        log_start=start,
        missing_rows=missing,
        unrecorded=unrecorded,
    )


def gone(reason=LeaveReason.CRASHED, seconds=40.4, partitions=(P3,)):
    return Departure(MemberLeft("fdeff1df", reason, partitions), seconds)


def runs(*departures, dagster=True, **facts):
    return GroupRuns(departures, is_dagster_read=dagster, **facts)


@pytest.mark.parametrize(
    ("partition", "members", "known", "expected"),
    [
        pytest.param(seen(), 1, runs(), [], id="well"),
        pytest.param(seen(120, PENDING), 1, runs(), [], id="pending, and a member works"),
        pytest.param(
            seen(120, PENDING),
            0,
            runs(),
            ["the group has 50 offsets pending, and no member"],
            id="no backfill",
        ),
        pytest.param(seen(120, PENDING), 0, runs(catching_up=("0badcafe",)), [], id="a backfill works"),
        pytest.param(
            seen(130, PENDING),
            0,
            runs(catching_up=("0badcafe",)),
            ["the group has 10 offsets of lag and 50 offsets pending, and no member"],
            id="a backfill reads no lag",
        ),
        pytest.param(
            seen(), 1, runs(gone()), ["run fdeff1df crashed 40 s ago; it had orders:3"], id="killed"
        ),
        pytest.param(
            seen(), 1, runs(gone(seconds=None, partitions=())), ["run fdeff1df crashed"], id="no end is known"
        ),
        pytest.param(
            seen(),
            1,
            runs(gone(LeaveReason.POLL_TIMEOUT, 600)),
            ["run fdeff1df left by poll timeout 10 min ago; it had orders:3"],
            id="too slow",
        ),
        pytest.param(
            seen(),
            0,
            runs(gone(), dagster=False),
            ["run fdeff1df left the group and did not release its partitions; it had orders:3"],
            id="Kafka alone has no reason",
        ),
        pytest.param(
            seen(missing=(Span(0, 1_200),)), 1, runs(), ["the table lacks 1,200 committed offsets"], id="lost"
        ),
        pytest.param(
            seen(130),
            0,
            runs(),
            ["the group has 10 offsets of lag, and no member"],
            id="a check of health",
        ),
    ],
)
def test_a_group_is_well_without_a_problem(partition, members, known, expected):
    """Departures first, then rows that the table lacks, then what `health` finds."""
    assert problems([partition], members, known) == expected


@pytest.mark.parametrize(
    ("partition", "members", "known", "expected"),
    [
        pytest.param(seen(), 1, runs(), [], id="nothing"),
        pytest.param(seen(130), 1, runs(), [], id="a member reads the lag"),
        pytest.param(seen(130), 0, runs(), [SENSOR], id="lag and no member"),
        pytest.param(seen(), 2, runs(gone()), [SENSOR], id="a run crashed among others"),
        pytest.param(
            seen(),
            0,
            runs(gone(), dagster=False),
            ["set DAGSTER_HOME to the instance of the run to see why the run left", SENSOR],
            id="a run left, by Kafka alone",
        ),
        pytest.param(
            seen(), 0, runs(gone(), starting=("0badcafe",)), ["live run 0badcafe is starting"], id="one"
        ),
        pytest.param(
            seen(130), 0, runs(starting=("a", "b")), ["live run a, b are starting"], id="two are starting"
        ),
        pytest.param(
            seen(120, PENDING),
            1,
            runs(crash_lag_asset="orders_crash_lag", partitions_to_backfill=2),
            ["launch a backfill of 2 partitions of orders_crash_lag"],
            id="by Dagster's partitions",
        ),
        pytest.param(
            seen(120, PENDING),
            1,
            runs(
                crash_lag_asset="orders_crash_lag",
                partitions_to_backfill=3,
                pending_reasons=REASONS,
                backfill_command="dagster asset materialize",
            ),
            [
                f"correct the transform for 2 dead letters, or write off: {WRITE_OFF}",
                "remove the cause of the error of 1 partition that failed (column why)",
                "launch a backfill of 3 partitions of orders_crash_lag: dagster asset materialize",
            ],
            id="dead letters, and a run that failed",
        ),
        pytest.param(
            seen(120, PENDING),
            1,
            runs(dagster=False),
            ["launch a backfill of 1 partition of the group's crash lag asset"],
            id="by Kafka alone",
        ),
        pytest.param(
            seen(120, PENDING),
            1,
            runs(crash_lag_asset="orders_crash_lag", partitions_to_backfill=0),
            ["the group's sensor adds 1 partition to orders_crash_lag to backfill"],
            id="no partition yet",
        ),
        pytest.param(
            seen(120, PENDING),
            1,
            runs(catching_up=("0badcafe",)),
            ["run 0badcafe processes pending ranges"],
            id="at work",
        ),
        pytest.param(
            seen(200, PENDING, start=120),
            1,
            runs(),
            ["write off what has expired: kafka-liveness write-off etl p3:orders:70-120 --reason …"],
            id="nothing to read",
        ),
        pytest.param(
            seen(200, PENDING, start=120, unrecorded=(PENDING,)),
            1,
            runs(),
            ["launch a backfill of 1 partition of the group's crash lag asset"],
            id="its rows are in the table",
        ),
    ],
)
def test_the_next_steps(partition, members, known, expected):
    """Of the sensor, and of a person."""
    assert next_steps("etl", [partition], members, known) == expected


def test_a_run_that_left_has_a_state():
    """By Dagster its reason; by Kafka alone no more than that it is gone."""
    slow = gone(LeaveReason.POLL_TIMEOUT)
    assert runs(slow).state_of("fdeff1df") == "poll timeout"
    assert runs(slow, dagster=False).state_of("fdeff1df") == "gone"
    assert runs(slow).state_of("0badcafe") is None


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ((), ""),
        ((PendingCause.SKIPPED,), "skipped by the live lane"),
        ((PendingCause.SKIPPED, "run 0badcafe crashed"), "run 0badcafe crashed"),
        ((PendingCause.SKIPPED, "run 0badcafe crashed", 1), "failed 1 time"),
        ((PendingCause.SKIPPED, "run 0badcafe crashed", 2, "X: no"), "failed 2 times: X: no"),
        ((None, "", 2, "X: no"), "failed 2 times: X: no"),
        ((PendingCause.BAD_RECORD, "X: no"), "dead letter: X: no"),
        ((PendingCause.BAD_RECORD, "X: no", 2, "Y: no"), "dead letter: X: no; failed 2 times"),
        ((PendingCause.SLOW_RECORD,), "too slow alone"),
    ],
)
def test_why_a_range_is_pending(facts, text):
    """The error of a record comes before that of a run, which repeats it."""
    assert PendingReason(OffsetRange("orders", 3, 75, 76), *facts).text == text
    whole = runs(pending_reasons=REASONS)
    assert whole.reasons_of(OffsetRange("orders", 3, 70, 77)) == [*REASONS[:2]]
