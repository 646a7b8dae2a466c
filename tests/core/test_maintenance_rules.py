"""Maintenance leaves files that a lane may still replace, and snapshots that the ledger or a reader needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_liveness_dagster.core.offsets import Span
from kafka_liveness_dagster.core.table_layout import READER_GRACE_SECONDS, compactable_ranges, expiry_cutoff


@pytest.mark.parametrize(
    ("committed", "owed", "expected"),
    [
        pytest.param(None, [], (), id="no commit"),
        pytest.param(0, [], (), id="nothing committed"),
        pytest.param(100, [], (Span(0, 100),), id="nothing owed"),
        pytest.param(100, [Span(20, 50)], (Span(0, 20), Span(50, 100)), id="owed in between: two stretches"),
        pytest.param(100, [Span(80, 120)], (Span(0, 80),), id="owed beyond the commit"),
        pytest.param(100, [Span(0, 100)], (), id="all of it owed"),
    ],
)
def test_only_offsets_that_no_lane_writes_again_are_settled(committed, owed, expected):
    """The catch-up lane replaces what is owed; the live lane writes from the commit on."""
    assert compactable_ranges(committed, owed) == expected


NOW = 100_000.0
MOMENTS = st.floats(0, NOW)


@given(
    st.lists(MOMENTS, max_size=9).map(lambda found: sorted(found, reverse=True)),
    st.lists(MOMENTS, max_size=3),
    st.floats(READER_GRACE_SECONDS, NOW),
    st.integers(1, 9),
)
def test_a_needed_snapshot_and_a_readers_snapshot_never_expire(committed_at, needed, max_age, max_snapshots):
    """Neither bound, age or number, expires what proves the table's contents or what a query began with."""
    moment = expiry_cutoff(
        committed_at, needed_since=needed, now=NOW, max_age=max_age, max_snapshots=max_snapshots
    )
    assert all(moment <= one for one in needed)
    assert moment <= NOW - READER_GRACE_SECONDS
    assert moment >= min([NOW - max_age, *needed])
    if len(committed_at) > max_snapshots and not needed:
        assert moment >= min(committed_at[max_snapshots - 1], NOW - READER_GRACE_SECONDS)


@pytest.mark.parametrize(
    ("max_age", "max_snapshots", "needed", "expected"),
    [
        pytest.param(50_000.0, 9, [], 50_000.0, id="by age"),
        pytest.param(50_000.0, 2, [], 80_000.0, id="beyond the second: earlier than by age"),
        pytest.param(50_000.0, 1, [], NOW - READER_GRACE_SECONDS, id="a reader has an hour for the newest"),
        pytest.param(50_000.0, 2, [70_000.0], 70_000.0, id="the ledger needs an older one"),
        pytest.param(10_000.0, 3, [], 90_000.0, id="the stricter of both bounds"),
    ],
)
def test_the_stricter_bound_decides(max_age, max_snapshots, needed, expected):
    """A table with many commits keeps few snapshots, one with few commits keeps young ones."""
    committed_at = [99_000.0, 80_000.0, 60_000.0, 20_000.0]
    moment = expiry_cutoff(
        committed_at, needed_since=needed, now=NOW, max_age=max_age, max_snapshots=max_snapshots
    )
    assert moment == expected
