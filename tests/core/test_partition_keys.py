"""Crash lag ranges and partition keys."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.partition_keys import (
    is_replay,
    new_keys,
    parse_key,
    partition_key,
    replay_key,
)

OWED = OffsetRange("orders", 3, 70, 120)


@pytest.mark.parametrize(
    ("again", "key"), [(1, "orders:3:70-120"), (2, "orders:3:70-120@2"), (12, "orders:3:70-120@12")]
)
def test_a_key_and_its_range_are_one(again, key):
    """Key to range and back, however often the range returned."""
    assert partition_key(OWED, again) == key
    assert parse_key(key) == OWED


@pytest.mark.parametrize(
    "key", ["", "orders", "orders:3:70-120@1", "orders:3:70-120@02", "orders:3:120-70", "a b:3:0-1"]
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
        ([], [], ["orders:3:70-120"], "owed and new"),
        (["orders:3:70-120"], [], [], "there already: a tick repeated adds nothing"),
        (["orders:3:70-100"], [], ["orders:3:100-120"], "ranges that grew together keep the old key"),
        (["orders:3:0-500"], [], [], "covered by a larger one"),
        (["orders:3:70-120"], ["orders:3:70-120"], ["orders:3:70-120@2"], "owed again after it was done"),
        (["orders:3:70-120", "orders:3:70-120@2"], ["orders:3:70-120"], [], "the second one waits"),
        (["orders:2:70-120"], [], ["orders:3:70-120"], "another partition's is another range"),
        (["tea"], [], ["orders:3:70-120"], "a partition somebody typed into Dagster's dialog stops nothing"),
    ],
)
def test_every_owed_offset_has_a_partition_that_waits(existing, materialized, keys, why):
    """Keys are added for what no waiting partition covers, and only for that."""
    assert new_keys([OWED], existing, materialized) == keys, why


def test_a_replay_has_a_key_of_its_moment():
    """The key stands for the same range, differs from the crash lag's, and is the same in each time zone."""
    at = datetime(2026, 11, 22, 11, tzinfo=timezone(timedelta(hours=1)))
    key = replay_key(OWED, at)
    assert key == "orders:3:70-120@replay-20261122T100000Z"
    assert parse_key(key) == OWED
    assert [is_replay(one) for one in (key, partition_key(OWED), partition_key(OWED, 2), "orders")] == [
        True,
        False,
        False,
        False,
    ]
