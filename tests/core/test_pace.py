"""Half after a batch that was too slow, double after one in time, and the offset that fails alone is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_liveness_dagster.core.fairness import Batch, plan
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.pace import Pace, PoisonedOffsetError


def batch(*spans):
    """A batch over one partition after the other."""
    return Batch(tuple(OffsetRange("orders", n, *span) for n, span in enumerate(spans)), deadline_seconds=60)


def test_a_slow_batch_comes_again_at_half_its_size():
    """Half of what it held, not of the bound it was far below."""
    pace = Pace(1_000)
    assert pace.too_slow(batch((70, 120), (0, 10))) is None
    assert pace.bound == 30


def test_the_ceiling_is_never_exceeded():
    """After slow batches the bound doubles back to ``max_poll_records`` and stays there."""
    pace = Pace(100)
    pace.too_slow(batch((0, 60)))
    for bound in (60, 100, 100):
        pace.in_time()
        assert pace.bound == bound


def test_an_offset_alone_is_named():
    """One offset cannot be halved: it is the one."""
    pace = Pace(100)
    assert pace.too_slow(batch((77, 78))) == OffsetRange("orders", 0, 77, 78)
    assert pace.bound == 1


def test_the_error_names_topic_partition_and_offset_with_the_remedy():
    """Who reads it can look at the record."""
    told = str(PoisonedOffsetError([OffsetRange("orders", 3, 77, 78)], 120.0, "Nothing was committed"))
    assert "offset 77 of orders:3" in told
    assert "120 s" in told
    assert "raise max_batch_seconds" in told


@given(
    lags=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    poison=st.data(),
    ceiling=st.integers(1, 100),
)
def test_whatever_is_poisoned_is_found_and_nothing_else(lags, poison, ceiling):
    """The shares of a failed batch are dealt again as before: halving ends at the poison, however many partitions."""
    partition = poison.draw(st.integers(0, len(lags) - 1))
    offset = poison.draw(st.integers(0, lags[partition] - 1))
    bad = OffsetRange("orders", partition, offset, offset + 1)
    heads, done, pace, last = dict.fromkeys(range(len(lags)), 0), 0, Pace(ceiling), None
    for _ in range(2_000):
        pending = {TopicPartition("orders", p): (Span(heads[p], lags[p]),) for p in heads}
        ranges, after = plan(pending, pace.bound, last)
        if any(r.overlaps(bad) for r in ranges):
            found = pace.too_slow(Batch(ranges, 60))  # ``last`` stays: the same partitions are first in line again
            if found is not None:
                assert found == bad
                return
        else:
            pace.in_time()
            last = after
            for r in ranges:
                heads[r.partition] = r.end
                done += r.size
    pytest.fail(f"never found; {done} offsets were done")
