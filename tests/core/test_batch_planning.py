"""Bounded and fair batches (KIP-41): the laws of sharing, and that positions alone forget nothing."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_liveness_dagster.core.batch_planning import (
    LARGE_BATCH_OFFSETS,
    LARGE_BATCH_TURNS,
    MAX_SHARES,
    Batch,
    BatchRequest,
    Rotation,
    fair_share,
    greedy_share,
    lowest_offsets,
    plan_ranges,
    rotate_large_batches,
)
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition, difference, size, union

A, B, C, D = (TopicPartition("orders", p) for p in range(4))
PARTITIONS = st.builds(TopicPartition, st.sampled_from(["orders", "payments"]), st.integers(0, 5))
LAGS = st.dictionaries(PARTITIONS, st.integers(0, 60), max_size=8)
BOUNDS = st.integers(1, 100)
SPANS = st.lists(st.builds(Span, st.integers(0, 60), st.integers(0, 60)), max_size=4).map(union)
LAST = st.none() | PARTITIONS
WITHOUT_SMALL = partial(fair_share, min_share=17)


def turns(lag, bound, last):
    """As a large batch is dealt, however small it is."""
    return rotate_large_batches(WITHOUT_SMALL(lag, bound, last), lag, last)


SHARES = pytest.mark.parametrize(
    "share", [fair_share, WITHOUT_SMALL, greedy_share, turns], ids=["fair", "no small", "greedy", "in turns"]
)


@pytest.mark.parametrize(
    ("lag", "bound", "last", "taken"),
    [
        pytest.param(
            {A: 1000, B: 1000, C: 1000}, 300, None, {A: 100, B: 100, C: 100}, id="KIP-41: a third each"
        ),
        pytest.param(
            {A: 1000, B: 1000, C: 0}, 300, None, {A: 150, B: 150}, id="KIP-41: C is empty, A and B share"
        ),
        pytest.param(
            {A: 1000, B: 1000, C: 40}, 300, None, {A: 130, B: 130, C: 40}, id="C's unused 60 go to both"
        ),
        pytest.param({A: 10, B: 20, C: 30}, 300, None, {A: 10, B: 20, C: 30}, id="the bound is no target"),
        pytest.param({A: 100, B: 100, C: 100}, 300, None, {A: 100, B: 100, C: 100}, id="lag equals share"),
        pytest.param(
            {A: 9, B: 9, C: 9}, 5, None, {A: 2, B: 2, C: 1}, id="the odd two go to the first in line"
        ),
        pytest.param({A: 9, B: 9, C: 9}, 5, B, {A: 2, B: 1, C: 2}, id="after B it is C's turn, then A's"),
        pytest.param({A: 9, B: 9}, 1, A, {B: 1}, id="one offset: A had the last one"),
        pytest.param({A: 9, B: 9}, 1, B, {A: 1}, id="one offset: round again"),
        pytest.param({A: 9, C: 9}, 1, B, {C: 1}, id="the one remembered is ours no longer"),
        pytest.param({A: 9, B: 9}, 1, D, {A: 1}, id="nobody comes after D: begin at the front"),
        pytest.param({}, 300, A, {}, id="nothing assigned"),
        pytest.param({A: 0, B: 0}, 300, None, {}, id="nothing new"),
    ],
)
def test_fair_share_by_example(lag, bound, last, taken):
    """Equal shares, unused share passed on, odd ones in turn."""
    assert fair_share(lag, bound, last).counts == taken


@pytest.mark.parametrize(
    ("lag", "bound", "last", "taken", "left_off"),
    [
        pytest.param({A: 1000, B: 1000}, 300, None, {A: 300}, A, id="KIP-41: all 300 from A"),
        pytest.param({A: 1000, B: 1000}, 300, A, {B: 300}, B, id="KIP-41: begin where the last one left off"),
        pytest.param(
            {A: 100, B: 1000}, 300, None, {A: 100, B: 200}, B, id="still space: what is left from B"
        ),
        pytest.param({A: 300, B: 1000}, 300, None, {A: 300}, A, id="full after A: B is not favoured"),
        pytest.param({A: 10, B: 10}, 300, B, {A: 10, B: 10}, B, id="all of it"),
        pytest.param({}, 300, B, {}, B, id="nothing to give, nothing forgotten"),
    ],
)
def test_greedy_share_by_example(lag, bound, last, taken, left_off):
    """KIP-41's first implementation: fill from one partition, remember where it left off."""
    shares = greedy_share(lag, bound, last)
    assert (shares.counts, shares.rotation_start) == (taken, left_off)


@SHARES
@given(lag=LAGS, bound=BOUNDS, last=LAST)
def test_a_share_is_as_large_as_bound_and_lag_allow(share, lag, bound, last):
    """Sum == min(bound, total lag): the bound is never passed and never left unused."""
    assert sum(share(lag, bound, last).counts.values()) == min(bound, sum(lag.values()))


@SHARES
@given(lag=LAGS, bound=BOUNDS, last=LAST)
def test_no_partition_gives_more_than_it_has(share, lag, bound, last):
    """0 < taken <= lag for each partition named, in the order of the partitions."""
    taken = share(lag, bound, last).counts
    assert all(0 < count <= lag[tp] for tp, count in taken.items())
    assert list(taken) == sorted(taken)


@SHARES
@given(lag=LAGS, bound=BOUNDS, last=LAST)
def test_the_same_facts_give_the_same_shares(share, lag, bound, last):
    """Deterministic, and blind to the order in which partitions were named."""
    assert share(lag, bound, last) == share(dict(reversed(lag.items())), bound, last)


@given(lag=LAGS, bound=BOUNDS, last=LAST)
def test_fair_share_is_max_min_fair(lag, bound, last):
    """Who could use more has at most one offset less than anybody else: giving more takes from the poorer."""
    taken = fair_share(lag, bound, last).counts
    for tp, wanted in lag.items():
        if taken.get(tp, 0) < wanted:
            assert taken.get(tp, 0) >= max(taken.values(), default=0) - 1


@SHARES
@given(lag=st.dictionaries(PARTITIONS, st.integers(1, 60), min_size=1), bound=BOUNDS, last=LAST)
def test_nobody_with_lag_waits_longer_than_one_round(share, lag, bound, last):
    """With new data everywhere after every plan, n plans serve all n partitions, also with bound 1."""
    served = set()
    for _ in lag:
        shares = share(lag, bound, last)
        last = shares.rotation_start
        served |= set(shares.counts)
    assert served == set(lag)


@pytest.mark.parametrize("backlog", [50, 1_000_000])
def test_a_batch_of_many_partitions_is_not_cut_into_small_shares(backlog):
    """64 ranges of 15 instead of 1,000 of one; those that get none are next.

    Where all fits, all is in one batch.
    """
    pending = {TopicPartition("orders", p): (Span(0, backlog),) for p in range(1_000)}
    bound, last, served = (100_000 if backlog == 50 else 1_000), None, []
    for _ in range(16):
        ranges, last = plan_ranges(pending, bound, last)
        served.append(len(ranges))
        for done in ranges:
            pending[done.topic_partition] = difference(pending[done.topic_partition], [done.span])
    if backlog == 50:
        assert served == [1_000] + 15 * [0]
    else:
        assert max(served) <= MAX_SHARES + 3, "the odd ones"
        assert all(spans[0].start > 0 for spans in pending.values()), "each had its turn"


@pytest.mark.parametrize(
    ("bound", "a_batch"), [(LARGE_BATCH_OFFSETS - 1, 8), (LARGE_BATCH_OFFSETS, 2), (500_000, 2)]
)
def test_a_large_batch_has_a_quarter_of_those_that_wait(bound, a_batch):
    """Each has its turn in four batches, and as much by then; what is fresh and fits is in each batch."""
    waiting = {TopicPartition("orders", p): (Span(0, 10_000_000),) for p in range(8)}
    last, fresh, took = None, TopicPartition("orders", 8), dict.fromkeys(waiting, 0)
    for _ in range(LARGE_BATCH_TURNS):
        ranges, last = plan_ranges({**waiting, fresh: (Span(0, 40),)}, bound, last)
        assert (len(ranges), sum(r.size for r in ranges), ranges[-1]) == (
            a_batch + 1,
            bound,
            OffsetRange(*fresh, 0, 40),
        )
        for part in ranges[:-1]:
            took[part.topic_partition] += part.size
    assert max(took.values()) - min(took.values()) <= LARGE_BATCH_TURNS


@given(
    rounds=st.lists(st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 9)), min_size=4, max_size=4),
    bound=st.integers(1, 3),
    last=LAST,
)
def test_a_waiting_partition_is_served_whatever_the_others_do(rounds, bound, last):
    """D has lag throughout; the lag of the three others comes and goes: within four plans D is served."""
    served = 0
    for others in rounds:
        shares = fair_share({**others, D: 50}, bound, last)
        last = shares.rotation_start
        served += shares.counts.get(D, 0)
    assert served > 0


@given(
    counts=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    bound=st.integers(1, 7),
    last=st.none() | PARTITIONS,
)
def test_the_odd_ones_even_out(counts, bound, last):
    """Over n plans of the same n hungry partitions, nobody is more than one offset ahead."""
    lag = {TopicPartition("orders", p): 1000 for p in range(len(counts))}
    total = dict.fromkeys(lag, 0)
    for _ in counts:
        shares = fair_share(lag, bound, last)
        last = shares.rotation_start
        for tp, count in shares.counts.items():
            total[tp] += count
    assert max(total.values()) - min(total.values()) <= 1


@SHARES
@pytest.mark.parametrize("bound", [0, -1])
def test_a_batch_without_room_is_refused(share, bound):
    """max_poll_records below 1 would poll for ever without a record."""
    with pytest.raises(InvalidSettingError, match=f"max_poll_records is {bound}: .* at least 1"):
        share({A: 1}, bound, None)


@given(st.dictionaries(PARTITIONS, SPANS, max_size=5), BOUNDS, LAST, st.booleans())
def test_plans_that_follow_each_other_skip_nothing_and_repeat_nothing(pending, bound, last, greedy):
    """Planning until nothing is left plans every offset exactly once, each partition's oldest first."""
    left, planned = dict(pending), {tp: [] for tp in pending}
    while any(left.values()):
        ranges, last = plan_ranges(left, bound, last, greedy=greedy)
        assert 0 < sum(r.size for r in ranges) <= bound
        assert list(ranges) == sorted(ranges)
        for r in ranges:
            planned[r.topic_partition].append(r.span)
            left[r.topic_partition] = difference(left[r.topic_partition], [r.span])
    for tp, spans in planned.items():
        assert spans == sorted(spans)
        assert sum(s.size for s in spans) == size(pending[tp])
        assert union(spans) == union(pending[tp])
    assert plan_ranges(left, bound, last, greedy=greedy) == ((), last)


def test_a_greedy_plan_takes_one_partition_after_the_other():
    """KIP-41's two ways: 300 of A, then 300 of B; or 150 of each."""
    pending = {A: (Span(0, 300),), B: (Span(0, 300),)}
    first, last = plan_ranges(pending, 300, None, greedy=True)
    second, _ = plan_ranges({**pending, A: ()}, 300, last, greedy=True)
    assert [first, second] == [(OffsetRange(*A, 0, 300),), (OffsetRange(*B, 0, 300),)]
    assert plan_ranges(pending, 300, None)[0] == (OffsetRange(*A, 0, 150), OffsetRange(*B, 0, 150))


@given(SPANS, st.integers(0, 80))
def test_first_offsets_are_the_lowest(spans, count):
    """lowest_offsets(s, n) is the n smallest offsets of s, or all of them."""
    every = sorted(offset for s in spans for offset in range(s.start, s.end))
    assert [offset for s in lowest_offsets(spans, count) for offset in range(s.start, s.end)] == every[:count]


def test_a_batch_says_what_it_holds():
    """A batch prints its first range and the number of others; its size is an upper bound.

    A partition has one range of it.
    """
    batch = Batch((OffsetRange("orders", 0, 70, 120), OffsetRange("orders", 3, 0, 5)), deadline_seconds=120)
    assert (batch.max_records, str(batch)) == (55, "p0:orders:70-120 and 1 more")
    assert batch.spans == {A: Span(70, 120), D: Span(0, 5)}


def test_what_is_not_committed_is_dealt_again_as_it_was():
    """A batch that failed is retried with the same shares, so that halving finds what is too slow."""
    rotation = Rotation()
    rotation.planned = rotation.committed = A
    rotation.planned = B
    rotation.reset()
    assert rotation.planned == A


@pytest.mark.parametrize(
    ("records", "seconds", "is_met"),
    [
        pytest.param(0, 99.0, False, id="nothing waits"),
        pytest.param(120, 59.0, False, id="few, and not for long"),
        pytest.param(120, 60.0, True, id="few, for long enough"),
        pytest.param(500, 0.0, True, id="enough at once"),
    ],
)
def test_a_batch_waits_for_records_until_its_time_is_over(records, seconds, is_met):
    """Small batches cost a snapshot each, so a batch may wait.

    Without a time it waits for its number alone.
    """
    assert BatchRequest(500, min_records=500, max_wait_seconds=60.0).is_satisfied(records, seconds) is is_met
    assert BatchRequest(500, min_records=500).is_satisfied(records, seconds) is (records >= 500)
    assert BatchRequest(500).is_satisfied(records, seconds) is (records > 0)
