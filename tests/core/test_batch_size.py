"""Half after a batch that was too slow, double after one in time; an offset that fails alone is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_liveness_dagster.core.batch_planning import Batch, plan_ranges
from kafka_liveness_dagster.core.batch_size import (
    INITIAL_OFFSETS,
    LARGEST_RECORD_BYTES,
    BatchSizer,
    SlowRecordError,
)
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition


def batch(*spans):
    """A batch over one partition after the other."""
    return Batch(tuple(OffsetRange("orders", n, *span) for n, span in enumerate(spans)), deadline_seconds=60)


def test_a_slow_batch_comes_again_at_half_its_size():
    """Half of what it held, not of the bound it was far below."""
    sizer = BatchSizer(1_000)
    assert sizer.record_timeout(batch((70, 120), (0, 10))) is None
    assert sizer.bound == 30


def test_the_ceiling_is_never_exceeded():
    """After slow batches the bound doubles back to ``max_poll_records`` and stays there."""
    sizer = BatchSizer(100)
    sizer.record_timeout(batch((0, 60)))
    for bound in (60, 100, 100):
        sizer.record_success(batch((0, 60)), 30.0)
        assert sizer.bound == bound


def test_a_batch_weighs_what_it_may():
    """By what the records before weighed: heavier ones count at once, lighter ones half."""
    sizer = BatchSizer(1_000, max_bytes=10 * LARGEST_RECORD_BYTES)
    assert sizer.bound == 10, "as if each were the largest that Kafka takes"
    for record_bytes, bound in [
        (None, 10),
        (50_000, 209),
        (100_000, 104),
        (50_000, 139),
        (10, 279),
        (0, 559),
    ]:
        sizer.record_success(batch((0, 10)), 1.0, record_bytes)
        assert sizer.bound == bound
    sizer.record_success(batch((0, 10)), 1.0, 10**9)
    assert sizer.bound == 1
    for _ in range(40):
        sizer.record_success(batch((0, 10)), 1.0, 0)
    assert sizer.bound == 1_000, "records without key and value weigh a byte"


BUDGET = 60.0


def work(sizer, speeds, overhead=0.4, lag=10**9):
    """Batches of a lane that does so many offsets a second.

    The share of its budget that each took, 1 for too slow.
    """
    shares = []
    for speed in speeds:
        size = min(lag, sizer.bound)
        seconds = overhead + size / speed
        planned = Batch((OffsetRange("orders", 0, 0, size),), BUDGET)
        shares.append(seconds / BUDGET)
        if seconds < BUDGET:
            sizer.record_success(planned, seconds)
        else:
            sizer.record_timeout(planned)
    return shares


def test_an_automatic_bound_comes_to_half_of_the_budget():
    """Within five batches, whatever the transform takes, and it stays there."""
    for speed in (500, 20_000, 300_000):
        shares = work(BatchSizer(10**9, auto=True), [speed] * 12)
        assert all(0.45 < share < 0.55 for share in shares[7:]), speed
        assert max(shares) < 1, "no batch on the way there was thrown away"


@given(speeds=st.lists(st.floats(0.55, 1.8), min_size=5, max_size=60), first=st.integers(200, 100_000))
def test_changing_speed_costs_no_batch_unless_it_halves_at_once(speeds, first):
    """Half of the budget is the reserve: what is not twice as slow as the batch before stays inside."""
    walk, now = [first] * 10, float(first)
    for change in speeds:
        now = min(1e6, max(200.0, now * change))
        walk.append(now)
    assert max(work(BatchSizer(10**9, auto=True), walk)) < 1


def test_a_sudden_slowdown_costs_one_batch():
    """Ten times as slow from one batch to the next: halved until it fits, then half of the budget again."""
    shares = work(BatchSizer(10**9, auto=True), [10_000] * 10 + [1_000] * 10)
    assert sum(share >= 1 for share in shares) <= 3
    assert 0.45 < shares[-1] < 0.55


def test_a_fast_transform_has_large_batches_after_two():
    """At most four times as large, it would be 160,000."""
    sizer = BatchSizer(10**9, auto=True)
    work(sizer, [1_500_000] * 2)
    assert sizer.bound > 500_000


@given(overhead=st.floats(0.05, 5.0), square=st.floats(1e-12, 5e-7))
def test_a_time_that_grows_with_the_square_of_the_size_costs_no_batch(overhead, square):
    """As of a join: large growth is allowed only where even that stays inside the budget."""
    sizer = BatchSizer(10**9, auto=True)
    for _ in range(12):
        seconds = overhead + square * sizer.bound**2
        before = sizer.bound
        sizer.record_success(Batch((OffsetRange("orders", 0, 0, before),), BUDGET), min(seconds, BUDGET))
        if sizer.bound > 4 * before:
            assert overhead + square * sizer.bound**2 <= BUDGET / 2 + 1e-6


def test_little_data_is_no_reason_to_take_less():
    """A lane that is idle between bursts takes the next burst as large as the last one."""
    sizer = BatchSizer(10**9, auto=True)
    work(sizer, [10_000] * 10)
    before = sizer.bound
    work(sizer, [10_000] * 50, lag=3)
    assert sizer.bound == before


def test_an_automatic_bound_is_bounded_too():
    """The ceiling is the ceiling, and the first batch knows nothing yet."""
    assert BatchSizer(100, auto=True).bound == 100
    assert BatchSizer(10**9, auto=True).bound == INITIAL_OFFSETS
    sizer = BatchSizer(20_000, auto=True)
    work(sizer, [1_000_000] * 9)
    assert sizer.bound == 20_000


def test_an_offset_alone_is_named():
    """One offset cannot be halved: it is the one, if it is not the process that stood still."""
    sizer = BatchSizer(100)
    assert sizer.record_timeout(batch((77, 78))) is None
    assert sizer.bound == 1
    assert sizer.record_timeout(batch((77, 78))) == OffsetRange("orders", 0, 77, 78)


def test_an_offset_that_was_in_time_once_is_not_named():
    """A process is stopped twice, in batches of one offset each: neither is named."""
    sizer = BatchSizer(1)
    assert sizer.record_timeout(batch((77, 78))) is None
    sizer.record_success(batch((77, 78)), 1.0)
    assert sizer.record_timeout(batch((78, 79))) is None
    sizer.record_success(batch((78, 79)), 1.0)
    assert sizer.record_timeout(batch((78, 79))) is None


def test_the_error_names_topic_partition_and_offset_with_the_remedy():
    """Who reads it can look at the record."""
    told = str(SlowRecordError([OffsetRange("orders", 3, 77, 78)], 120.0, "Nothing was committed"))
    assert "offset 77 of orders:3" in told
    assert "120 s" in told
    assert "raise max_batch_seconds" in told


@given(
    lags=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    poison=st.data(),
    ceiling=st.integers(1, 100),
)
def test_whatever_is_poisoned_is_found_and_nothing_else(lags, poison, ceiling):
    """The shares of a failed batch are dealt again as before.

    Halving ends at the poison, however many partitions.
    """
    partition = poison.draw(st.integers(0, len(lags) - 1))
    offset = poison.draw(st.integers(0, lags[partition] - 1))
    bad = OffsetRange("orders", partition, offset, offset + 1)
    heads, done, sizer, last = dict.fromkeys(range(len(lags)), 0), 0, BatchSizer(ceiling), None
    for _ in range(2_000):
        pending = {TopicPartition("orders", p): (Span(heads[p], lags[p]),) for p in heads}
        ranges, after = plan_ranges(pending, sizer.bound, last)
        if any(r.overlaps(bad) for r in ranges):
            # ``last`` stays: the same partitions are first in line again
            found = sizer.record_timeout(Batch(ranges, 60))
            if found is not None:
                assert found == bad
                return
        else:
            sizer.record_success(Batch(ranges, 60), 1.0)
            last = after
            for r in ranges:
                heads[r.partition] = r.end
                done += r.size
    pytest.fail(f"never found; {done} offsets were done")


def test_an_offset_is_blamed_only_when_nothing_else_was_in_flight():
    """Two batches share Spark: which of them was too slow is found out by one alone."""
    sizer = BatchSizer(ceiling=1)
    assert sizer.record_timeout(batch((77, 78)), alone=False) is None
    assert (sizer.bound, sizer.retry_alone) == (1, True)
    assert sizer.record_timeout(batch((77, 78))) == OffsetRange("orders", 0, 77, 78)


def test_after_a_batch_in_time_nothing_has_to_be_found_out():
    """Wary is who comes after a batch that was too slow."""
    sizer = BatchSizer(ceiling=50)
    assert not sizer.retry_alone
    sizer.record_timeout(batch((70, 120)))
    assert sizer.retry_alone
    sizer.record_success(batch((70, 95)), 1.0)
    assert not sizer.retry_alone
