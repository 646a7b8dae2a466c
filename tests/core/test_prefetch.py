"""Fair turns and fetching ahead (KIP-41): who is next, who is fetched, and that little enough waits."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.core.record_reader import Buffered, Prefetch, round_robin

A, B, C = (TopicPartition("orders", p) for p in range(3))
HEURISTICS = ["partition", "total"]


def held(**records):
    """So many records of a byte each wait of each partition."""
    return {{"a": A, "b": B, "c": C}[name]: Buffered(count, count) for name, count in records.items()}


@given(queues=st.integers(1, 5), rounds=st.integers(1, 5))
def test_a_round_is_one_record_of_each(queues, rounds):
    """The n-th of each queue comes after every (n-1)-th and in the order of the queues."""
    waiting = [[(queue, n) for n in range(rounds)] for queue in range(queues)]
    assert round_robin(waiting) == [(queue, n) for n in range(rounds) for queue in range(queues)]


@pytest.mark.parametrize(
    ("by", "waiting", "fetched"),
    [
        pytest.param(
            "partition", held(a=1000, b=0), {B}, id="KIP-41: go on fetching B while A is worked off"
        ),
        pytest.param("partition", held(a=1000, b=49), {B}, id="less than its share of 50"),
        pytest.param("partition", held(a=1000, b=50), set(), id="its share"),
        pytest.param("partition", held(a=33, b=33, c=34), {A, B}, id="a third of 100"),
        pytest.param(
            "total", held(a=1000, b=49), set(), id="KIP-41's first: enough is held, whoever's it is"
        ),
        pytest.param("total", held(a=99, b=0), {A, B}, id="less than 100 in all: everybody"),
        pytest.param("total", held(a=1000, b=0), {B}, id="the others wait for B's turn"),
    ],
)
def test_the_heuristics_by_example(by, waiting, fetched):
    """The second looks at each partition's share of the bound, the first at the sum.

    Nobody is waited for in vain.
    """
    assert Prefetch(max_records=100, limit_by=by).partitions_to_fetch(waiting) == fetched


def test_bytes_bound_what_records_do_not():
    """Ten records of a megabyte fill 8 MB, though there is room for a thousand records."""
    bound = Prefetch(max_records=1000, max_bytes=8_000_000)
    waiting = {A: Buffered(10, 10_000_000), B: Buffered(10, 1_000)}
    assert bound.partitions_to_fetch(waiting) == {B}
    assert bound.max_records_now({A: Buffered(0, 0)}, 1_000_000) == 8
    assert bound.max_records_now({A: Buffered(0, 0)}, 100) == 1000
    assert bound.max_records_now({A: Buffered(0, 0)}, 100_000_000) == 1, (
        "a record larger than the bound is read all the same"
    )
    assert bound.max_records_now({A: Buffered(0, 0)}, None) == 1, "nothing is known of the size of the first"


def test_nothing_is_thrown_away_while_there_is_room():
    """A pause drops what librdkafka has queued: it waits until nothing is queued, or the room is used up."""
    bound = Prefetch(max_records=100)
    waiting = held(a=60, b=0, c=0)
    assert bound.partitions_to_pause(waiting, set(), drained=False) == set()
    assert bound.partitions_to_pause(waiting, {A}, drained=False) == {A}, (
        "what is paused stays so while it is full"
    )
    assert bound.partitions_to_pause(waiting, {A, B}, drained=False) == {A}, (
        "who is waited for is fetched again"
    )
    assert bound.partitions_to_pause(waiting, set(), drained=True) == {A}
    assert bound.partitions_to_pause(held(a=70, b=0, c=0), set(), drained=False) == {A}, (
        "no room for a share of B's"
    )


@pytest.mark.parametrize("by", HEURISTICS)
@given(partitions=st.integers(1, 6), records=st.integers(1, 40), seed=st.integers())
def test_the_bound_holds_whatever_arrives_first(by, partitions, records, seed):
    """Whoever's records arrive, in whatever portions.

    At most three times the bound waits, and every turn comes.
    """
    dice = random.Random(seed)  # noqa: S311
    bound = Prefetch(max_records=records, max_bytes=10**9, limit_by=by)
    left = {TopicPartition("orders", p): dice.randint(1, 60) for p in range(partitions)}
    waiting, paused, drained, looks = dict.fromkeys(left, 0), set(), True, 0
    while any(left.values()):
        looks += 1
        assert looks < 1000, "no turn comes any more"
        rounds = min(waiting.values())
        waiting = {tp: count - rounds for tp, count in waiting.items()}
        now = {tp: Buffered(count, count) for tp, count in waiting.items()}
        paused = bound.partitions_to_pause(now, paused, drained=drained)
        arriving = [tp for tp in left if tp not in paused and left[tp]]
        if not arriving:
            assert not any(left[tp] for tp in left if not waiting[tp]), "who is waited for may arrive"
            break
        tp = dice.choice(arriving)
        count = min(bound.max_records_now(now, 1.0), left[tp])
        waiting[tp] += count
        left[tp] -= count
        drained = dice.random() < 0.5
        assert sum(waiting.values()) <= 3 * max(records, partitions)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param({"max_records": 0}, "max_buffered_records is 0 .* at least 1", id="no record"),
        pytest.param({"max_bytes": 0}, "max_buffered_bytes is 0: .* at least 1", id="no byte"),
        pytest.param(
            {"limit_by": "none"}, "prefetch is 'none': wanted 'partition' or 'total'", id="no such limit"
        ),
    ],
)
def test_a_bound_nothing_fits_into_is_refused(settings, words):
    """Each refusal says what was wanted."""
    with pytest.raises(InvalidSettingError, match=words):
        Prefetch(**settings)
