"""Which offsets of a batch fail alone, and how often somebody has to try to find them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_liveness_dagster.core.bad_records import (
    BadRecordError,
    bisect_failing_offsets,
    join_reasons,
    split_in_half,
)
from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.commit_metadata import GroupOrigin
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.resume import OwnedPartition

BATCH = [OffsetRange("orders", 3, 70, 120), OffsetRange("orders", 4, 0, 7), OffsetRange("orders", 4, 9, 10)]


def offsets(ranges):
    """Each offset of these ranges, with its partition."""
    return [(r.partition, n) for r in ranges for n in range(r.start, r.end)]


def tries(bad):
    """Who tries: fails where one of ``bad`` is; and all that was tried."""
    tried = []

    def fails(part):
        tried.append(tuple(offsets(part)))
        return not bad.isdisjoint(tried[-1])

    return fails, tried


@given(st.sets(st.sampled_from(offsets(BATCH)), min_size=1))
def test_all_that_fail_alone_are_found_and_in_order(bad):
    """None is taken for another; each single offset is tried at most once, and few others."""
    fails, tried = tries(bad)
    found = bisect_failing_offsets(BATCH, fails, max_offsets=100)
    assert offsets(found) == sorted(bad)
    assert len(set(tried)) == len(tried)
    assert {(one,) for one in bad} <= set(tried), "each of them failed by itself"
    assert len(tried) <= 2 * len(bad) * math.ceil(math.log2(len(offsets(BATCH)))) + 1


def test_one_of_many_is_found_quickly():
    """Two tries for each halving."""
    many = [OffsetRange("orders", 0, 0, 100_000)]
    for bad in (0, 41_234, 99_999):
        tried = []

        def fails(part, bad=bad, tried=tried):
            tried.append(part)
            return any(r.start <= bad < r.end for r in part)

        assert offsets(bisect_failing_offsets(many, fails, max_offsets=20)) == [(0, bad)]
        assert len(tried) <= 34


@pytest.mark.parametrize("most", [1, 5])
def test_the_search_ends_with_the_first_one_too_many(most):
    """Where everything fails nobody waits for all of it."""
    fails, tried = tries(set(offsets(BATCH)))
    assert offsets(bisect_failing_offsets(BATCH, fails, most)) == offsets(BATCH)[: most + 1]
    assert len(tried) <= 2 * most + math.ceil(math.log2(len(offsets(BATCH)))) + 1


@pytest.mark.parametrize(
    "fails",
    [
        pytest.param(lambda _part: False, id="only the whole batch"),
        pytest.param(lambda part: sum(r.size for r in part) > 3, id="more than three"),
        pytest.param(lambda part: {(3, 70), (3, 71)} <= set(offsets(part)), id="two together"),
        pytest.param(
            lambda part: (4, 9) in offsets(part) or {(3, 70), (3, 71)} <= set(offsets(part)),
            id="and one alone",
        ),
    ],
)
def test_what_fails_only_together_is_nobodys_fault(fails):
    """To leave the others out would not help."""
    assert bisect_failing_offsets(BATCH, fails, max_offsets=20) == []


def test_a_single_offset_is_tried_before_it_is_blamed():
    """Its batch may have failed because of the weather."""
    one = [OffsetRange("orders", 3, 70, 71)]
    assert bisect_failing_offsets(one, lambda _part: True, max_offsets=1) == one
    assert bisect_failing_offsets(one, lambda _part: False, max_offsets=1) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=9))
def test_halves_are_all_of_it(drawn):
    """Each offset is in one of them, and neither has more than one too many."""
    ranges = [OffsetRange("orders", n, start, start + size) for n, (_, start, size) in enumerate(drawn)]
    first, second = split_in_half(ranges)
    assert offsets(first) + offsets(second) == offsets(ranges)
    assert 0 <= len(offsets(second)) - len(offsets(first)) <= 1


def test_the_error_names_them():
    """The first few, why, and what follows."""
    bad = [OffsetRange("orders", 3, n, n + 1) for n in range(70, 77)]
    assert (
        str(BadRecordError(bad[:1], "X: no", "It is owed"))
        == "offset 70 of orders:3 fails alone, with X: no. It is owed"
    )
    told = str(BadRecordError(bad, "X: no", "They are owed"))
    assert told.endswith("offset 74 of orders:3 and 2 more fail alone, with X: no. They are owed")
    assert str(BadRecordError(bad[:2], "", "So.")).endswith("offset 71 of orders:3 fail alone. So.")
    assert BadRecordError(bad, "", "").offsets == tuple(bad)


@pytest.mark.parametrize(
    ("errors", "text"),
    [
        ([], ""),
        (["X: no"] * 3, "X: no"),
        (["X: no", "Y: b", "Y: b"], "2 times Y: b; 1 time X: no"),
        ([*"aaabbcde"], "3 times a; 2 times b; 1 time c; 2 times other errors"),
    ],
)
def test_the_most_frequent_errors_are_named_with_their_number(errors, text):
    """One line of the run's log, however many records fail."""
    assert join_reasons(errors) == text


def test_a_batch_says_what_of_it_is_done_and_what_is_owed():
    """Whatever it leaves out."""
    left_out = (
        OffsetRange("orders", 3, 70, 71),
        OffsetRange("orders", 3, 100, 101),
        OffsetRange("orders", 4, 9, 10),
    )
    batch = Batch(tuple(BATCH), 60.0, skipped=left_out)
    assert list(map(str, batch.processed)) == ["p3:orders:71-100", "p3:orders:101-120", "p4:orders:0-7"]
    assert batch.pending_of(TopicPartition("orders", 3)) == (Span(70, 71), Span(100, 101))
    assert batch.pending_of(TopicPartition("orders", 5)) == ()
    assert Batch(tuple(BATCH), 60.0).processed == tuple(BATCH)


def test_a_partition_owes_what_its_commit_has_room_for():
    """Beside what it owes already; nothing more is nothing new."""
    owned = OwnedPartition(120, 120, (Span(70, 75),), origin=GroupOrigin(0))
    assert owned.with_pending((Span(75, 76), Span(90, 91))).pending == (Span(70, 76), Span(90, 91))
    assert owned.with_pending(()) is owned
    assert owned.fits_commit_metadata((Span(90, 91),))
    assert not owned.fits_commit_metadata(
        tuple(Span(n * 100_000_000, n * 100_000_000 + 1) for n in range(1, 300))
    )
