"""Crash lag ranges and partition keys."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.partition_keys import (
    current_key,
    is_replay,
    new_keys,
    parse_key,
    partition_key,
    replay_key,
    stored_keys,
)

OWED = OffsetRange("orders", 3, 70, 120)


@pytest.mark.parametrize(
    ("again", "key"), [(1, "p3:orders:70-120"), (2, "p3:orders:70-120@2"), (12, "p3:orders:70-120@12")]
)
def test_a_key_and_its_range_are_one(again, key):
    """Key to range and back, however often the range returned."""
    assert partition_key(OWED, again) == key
    assert parse_key(key) == OWED


@pytest.mark.parametrize(
    "key", ["", "orders", "p3:orders:70-120@1", "p3:orders:70-120@02", "p3:orders:120-70", "a b:3:0-1"]
)
def test_what_is_no_key_is_refused(key):
    """A mistyped key is an error before anything is processed."""
    with pytest.raises(InvalidSettingError):
        parse_key(key)


def test_a_topic_that_dagster_would_read_as_a_range_is_refused():
    """Dagster reads ``...`` as a range of partitions."""
    with pytest.raises(InvalidSettingError, match=r"'a\.\.\.b'"):
        partition_key(OffsetRange("a...b", 0, 0, 1))


@pytest.mark.parametrize(
    ("existing", "materialized", "keys", "why"),
    [
        ([], [], ["p3:orders:70-120"], "owed and new"),
        (["p3:orders:70-120"], [], [], "there already: a tick repeated adds nothing"),
        (["p3:orders:70-100"], [], ["p3:orders:100-120"], "ranges that grew together keep the old key"),
        (["p3:orders:0-500"], [], [], "covered by a larger one"),
        (["p3:orders:70-120"], ["p3:orders:70-120"], ["p3:orders:70-120@2"], "owed again after it was done"),
        (["p3:orders:70-120", "p3:orders:70-120@2"], ["p3:orders:70-120"], [], "the second one waits"),
        (["p2:orders:70-120"], [], ["p3:orders:70-120"], "another partition's is another range"),
        (["orders:3:70-120"], [], [], "there already, by an earlier version"),
        (["orders:3:70-100"], [], ["p3:orders:100-120"], "the rest of a key of an earlier version"),
        (["orders:3:70-120"], ["orders:3:70-120"], ["p3:orders:70-120@2"], "done by an earlier version"),
        (["orders:3:70-120", "orders:3:70-120@2"], ["orders:3:70-120"], [], "the earlier version's second"),
        (
            ["orders:3:70-120", "p3:orders:70-120@2"],
            ["orders:3:70-120", "p3:orders:70-120@2"],
            ["p3:orders:70-120@3"],
            "done by both versions",
        ),
        (["p3:70:70-120"], [], ["p3:orders:70-120"], "another topic's: p3, partition 70"),
        (["tea"], [], ["p3:orders:70-120"], "a partition somebody typed into Dagster's dialog stops nothing"),
    ],
)
def test_every_owed_offset_has_a_partition_that_waits(existing, materialized, keys, why):
    """Keys are added for what no waiting partition covers, and only for that."""
    assert new_keys([OWED], existing, materialized) == keys, why


@pytest.mark.parametrize("suffix", ["", "@2", "@12", "@replay-20261122T100000Z"])
def test_a_key_of_an_earlier_version_is_the_same_partition(suffix):
    """Its range and its suffix are read, and only the range has another form."""
    assert parse_key(f"orders:3:70-120{suffix}") == OWED
    assert current_key(f"orders:3:70-120{suffix}") == f"p3:orders:70-120{suffix}"
    assert current_key(f"p3:orders:70-120{suffix}") == f"p3:orders:70-120{suffix}"


@pytest.mark.parametrize(
    ("typed", "existing", "found"),
    [
        (["p3:orders:70-120"], ["orders:3:70-120"], ["orders:3:70-120"]),
        (["orders:3:70-120"], ["p3:orders:70-120"], ["p3:orders:70-120"]),
        (["orders:3:70-120"], ["p3:orders:70-120", "orders:3:70-120"], ["orders:3:70-120"]),
        (["p3:orders:70-120"], ["p3:orders:70-120", "orders:3:70-120"], ["p3:orders:70-120"]),
        (["p3:orders:70-120", "orders:3:70-120"], ["orders:3:70-120"], ["orders:3:70-120"]),
        (["p3:orders:70-120@2"], ["orders:3:70-120", "orders:3:70-120@2", "tea"], ["orders:3:70-120@2"]),
        (["p3:orders:70-120@2"], ["orders:3:70-120"], ["p3:orders:70-120@2"]),
        (["orders:3:70-120", "orders:3:70-120"], [], ["orders:3:70-120"]),
    ],
)
def test_a_typed_key_is_the_one_that_dagster_has(typed, existing, found):
    """In whichever form either is; with both in Dagster, the typed one."""
    assert stored_keys(typed, existing) == found


def test_a_replay_has_a_key_of_its_moment():
    """The key stands for the same range, differs from the crash lag's, and is the same in each time zone."""
    at = datetime(2026, 11, 22, 11, tzinfo=timezone(timedelta(hours=1)))
    key = replay_key(OWED, at)
    assert key == "p3:orders:70-120@replay-20261122T100000Z"
    assert parse_key(key) == OWED
    assert [is_replay(one) for one in (key, partition_key(OWED), partition_key(OWED, 2), "orders")] == [
        True,
        False,
        False,
        False,
    ]
