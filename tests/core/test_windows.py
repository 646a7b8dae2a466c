"""Which windows of time are complete: judged from offsets alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
from kafka_liveness_dagster.core.windows import WindowStatus, are_processed, judge_window

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 7)


def partition(committed=100, log_end=100, tp=ORDERS, **facts):
    return PartitionSnapshot(tp, committed, None, log_end=log_end, **{"origin": 0, **facts})


def judge(one, begin, end, *, started_in_group_lifetime=False):
    return judge_window(
        [one], {ORDERS: begin}, {ORDERS: end}, started_in_group_lifetime=started_in_group_lifetime
    )


@pytest.mark.parametrize(
    ("one", "end", "waits_for"),
    [
        pytest.param(partition(), 60, "", id="read beyond it"),
        pytest.param(partition(), 100, "", id="read to its end"),
        pytest.param(partition(committed=59), 60, "1 offsets of orders:0", id="one short"),
        pytest.param(partition(committed=None, origin=None), 60, "60 offsets of orders:0", id="never read"),
        pytest.param(
            partition(committed=None, log_start=100),
            100,
            "a commit that records where orders:0 began",
            id="expired unread",
        ),
        pytest.param(
            partition(origin=None), 60, "a commit that records where orders:0 began", id="a stranger's commit"
        ),
        pytest.param(partition(outstanding=(Span(70, 80),)), 60, "", id="owed behind it"),
        pytest.param(
            partition(outstanding=(Span(50, 80),)),
            60,
            "10 offsets of orders:0, 10 of them pending",
            id="cut by a crash",
        ),
        pytest.param(
            partition(outstanding=(Span(1, 2), Span(90, 95))),
            60,
            "1 offsets of orders:0, 1 of them pending",
            id="owed long before",
        ),
        pytest.param(
            partition(missing_rows=(Span(10, 20),)), 60, "10 offsets of orders:0", id="lost by the table"
        ),
        pytest.param(
            partition(log_end=90, committed=90), 100, "10 offsets of orders:0", id="in an open transaction"
        ),
    ],
)
def test_what_it_waits_for(one, end, waits_for):
    found = judge(one, 40, end)
    assert found.waiting_for == waits_for
    assert found.status is (WindowStatus.WAITING if waits_for else WindowStatus.COMPLETE)


@pytest.mark.parametrize(
    ("one", "begin", "started_in_group_lifetime", "known"),
    [
        pytest.param(partition(), 0, False, True, id="from the topic's first offset on"),
        pytest.param(partition(origin=40), 40, False, False, id="may have begun before the group"),
        pytest.param(partition(origin=40), 41, False, True, id="began when the group was there"),
        pytest.param(partition(origin=40), 40, True, True, id="looked at since before it began"),
        pytest.param(partition(origin=40), 30, True, False, id="the group began within"),
        pytest.param(partition(origin=40), None, False, True, id="nothing of it, and older records before"),
        pytest.param(
            partition(origin=10, log_start=50),
            50,
            False,
            False,
            id="may have expired before it was looked at",
        ),
        pytest.param(partition(origin=10, log_start=50), 50, True, True, id="expired since"),
        pytest.param(partition(origin=10, log_start=50), 51, False, True, id="something older is left"),
    ],
)
def test_what_is_known_of_its_beginning(one, begin, started_in_group_lifetime, known):
    found = judge(one, begin, 100, started_in_group_lifetime=started_in_group_lifetime)
    assert found.status is (WindowStatus.COMPLETE if known else WindowStatus.UNKNOWN)


@pytest.mark.parametrize(
    ("several", "ends", "is_before"),
    [
        pytest.param([partition(committed=None, origin=None, log_end=0)], [0], True, id="an empty topic"),
        pytest.param([partition(committed=None, origin=None)], [0], True, id="the first batch is at work"),
        pytest.param([partition()], [1], False, id="its first record"),
        pytest.param([partition(origin=40)], [40], True, id="records from before the group"),
        pytest.param([partition(origin=100)], [100], True, id="no record since the group began"),
        pytest.param([partition(origin=40)], [41], False, id="the group's first record"),
        pytest.param([partition(log_start=100)], [100], False, id="expired since"),
        pytest.param(
            [partition(), partition(tp=PAYMENTS)], [0, 1], False, id="a record in another partition"
        ),
    ],
)
def test_a_window_before_the_first_record_is_not_judged(several, ends, is_before):
    begins, ends = dict.fromkeys([ORDERS, PAYMENTS], 0), dict(zip([ORDERS, PAYMENTS], ends, strict=False))
    found = judge_window(several, begins, ends, started_in_group_lifetime=True)
    assert (found.status is WindowStatus.BEFORE) == is_before


@pytest.mark.parametrize(
    ("one", "begin", "is_empty"),
    [
        pytest.param(partition(), 60, True, id="records before it"),
        pytest.param(partition(), 59, False, id="a record"),
        pytest.param(partition(log_start=60), 60, False, id="its records may have expired"),
        pytest.param(partition(log_start=50), 60, True, id="older records are there"),
    ],
)
def test_which_windows_are_empty(one, begin, is_empty):
    found = judge(one, begin, 60, started_in_group_lifetime=True)
    assert (found.status, found.is_empty) == (WindowStatus.COMPLETE, is_empty)


def test_what_it_tells():
    """The ranges, none of a partition without records, and what of them nobody processed."""
    orders, payments = partition(written_off=(Span(45, 47), Span(99, 100))), partition(tp=PAYMENTS)
    found = judge_window(
        [orders, payments],
        {ORDERS: 40, PAYMENTS: None},
        {ORDERS: 60, PAYMENTS: 100},
        started_in_group_lifetime=False,
    )
    assert (found.ranges, found.written_off) == ((OffsetRange("orders", 0, 40, 60),), 2)


def test_what_expired_unprocessed_may_have_been_of_it():
    """It was told as lost, or forgiven, and no timestamp says any more of when it was."""
    one = partition(log_start=50, written_off=(Span(20, 50),))
    assert judge(one, 50, 60, started_in_group_lifetime=True).written_off == 30
    assert judge(one, 55, 60, started_in_group_lifetime=True).written_off == 0, (
        "something older than the window is left"
    )
    assert (
        judge(
            partition(log_start=100, written_off=(Span(20, 50),)), None, 100, started_in_group_lifetime=True
        ).written_off
        == 30
    )


def test_the_worst_is_named_and_the_others_counted():
    several = [partition(committed=40), partition(committed=90, tp=PAYMENTS)]
    found = judge_window(
        several, {ORDERS: 0, PAYMENTS: 0}, {ORDERS: 60, PAYMENTS: 100}, started_in_group_lifetime=True
    )
    assert found.waiting_for == "20 offsets of orders:0; 10 offsets of 1 more partitions"


def test_what_is_done_of_some_ranges():
    """Of a partition that is gone nobody waits for anything."""
    seen = [partition(outstanding=(Span(70, 80),))]
    asked = [OffsetRange("orders", 0, 60, 70), OffsetRange("gone", 0, 0, 9)]
    assert are_processed(seen, asked)
    assert not are_processed(seen, [OffsetRange("orders", 0, 60, 71)])
    assert not are_processed(seen, [OffsetRange("orders", 0, 99, 101)])


@given(
    committed=st.integers(0, 30),
    owed=st.sets(st.integers(0, 29)),
    begin=st.integers(0, 30),
    size=st.integers(0, 10),
)
def test_complete_means_every_offset_below_its_end(committed, owed, begin, size):
    """Held against the offsets one by one."""
    spans = tuple(Span(one, one + 1) for one in sorted(owed) if one < committed)
    found = judge(partition(committed, 40, outstanding=spans), begin, begin + size)
    done = set(range(committed)) - owed
    expected = begin + size > 0 and set(range(begin + size)) <= done
    assert (found.status is WindowStatus.COMPLETE) == expected
    assert (found.status is WindowStatus.BEFORE) == (begin + size == 0)
    if found.status is WindowStatus.COMPLETE:
        assert [tuple(one.span) for one in found.ranges] == ([(begin, begin + size)] if size else [])
