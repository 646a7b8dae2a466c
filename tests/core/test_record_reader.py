"""Reading batches by position: exact, fair, over holes, forwards and backwards, whatever arrives first."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import zip_longest

from hypothesis import given
from hypothesis import strategies as st

from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition, difference
from kafka_liveness_dagster.core.record_reader import BatchReader, Buffered, KafkaRecord, SeekPlan

LOG_END = 30
PARTITIONS = [TopicPartition("orders", p) for p in range(3)]
A = PARTITIONS[0]


@dataclass(frozen=True)
class Row:
    """A record of a partition."""

    tp: TopicPartition
    at: int

    def offset(self):
        return self.at

    def __len__(self):
        return 10


def rows(tp, *offsets):
    return [Row(tp, at) for at in offsets]


RANGES = st.builds(
    lambda tp, start, size: OffsetRange(*tp, start, min(LOG_END, start + size)),
    st.sampled_from(PARTITIONS),
    st.integers(0, LOG_END - 1),
    st.integers(1, LOG_END),
)


@st.composite
def batches(draw):
    """Disjoint ranges, several of a partition among them."""
    found = []
    for wanted in draw(st.lists(RANGES, max_size=4)):
        taken = [r.span for r in found if r.topic_partition == wanted.topic_partition]
        found += [OffsetRange(*wanted.topic_partition, *span) for span in difference([wanted.span], taken)]
    return found


class Client:
    """A client that gives what is asked for in any portions and any order, and tells the log end."""

    def __init__(self, logs, dice):
        self._logs, self._dice, self._at = logs, dice, {}

    def move(self, moves):
        for tp in moves.unassign:
            del self._at[tp]
        self._at.update(moves.seek)

    def deliver(self, reading):
        tp = self._dice.choice(sorted(self._at))
        portion = [at for at in self._logs[tp] if at >= self._at[tp]][: self._dice.randint(1, 20)]
        if portion:
            self._at[tp] = portion[-1] + 1
            reading.add(tp, rows(tp, *portion))
        else:
            reading.mark_end(tp, LOG_END)


def in_turns(ranges, logs):
    """The first record of each partition, then the second of each, ..."""
    wanted = {
        tp: [
            Row(tp, at)
            for r in sorted(ranges)
            if r.topic_partition == tp
            for at in logs[tp]
            if r.start <= at < r.end
        ]
        for tp in PARTITIONS
    }
    return [row for one_round in zip_longest(*wanted.values()) for row in one_round if row is not None]


@given(st.lists(st.tuples(batches(), st.booleans()), min_size=1, max_size=3), st.integers())
def test_every_batch_is_read_exactly_and_in_turns(asked, seed):
    """Each record of the ranges once, round by round, with or without holes.

    Batches may follow, repeat or skip.
    """
    dice = random.Random(seed)  # noqa: S311
    logs = {tp: sorted(dice.sample(range(LOG_END), dice.randint(0, LOG_END))) for tp in PARTITIONS}
    reading, client = BatchReader(), Client(logs, dice)
    for ranges, stops_half_way in asked:
        client.move(reading.start_batch(ranges))
        given_so_far, expected = [], in_turns(ranges, logs)
        while True:
            client.move(SeekPlan(set(), reading.advance()))
            if reading.is_finished:
                assert given_so_far == expected
                break
            given_so_far += (now := reading.take())
            assert given_so_far == expected[: len(given_so_far)]
            if now and stops_half_way:
                break
            if not now:
                client.deliver(reading)


def test_a_batch_that_follows_goes_on_with_what_was_fetched():
    """70-100, then 100-120: no seek, and what arrived beyond 100 is not fetched again."""
    reading = BatchReader()
    assert reading.start_batch([OffsetRange(*A, 70, 100)]) == SeekPlan(set(), {A: 70})
    reading.add(A, rows(A, *range(70, 130)))
    assert len(reading.take()) == 30
    assert (reading.advance(), reading.is_finished, reading.buffered()) == ({}, True, {A: Buffered(30, 300)})
    assert reading.start_batch([OffsetRange(*A, 100, 120)]) == SeekPlan(set(), {})
    assert [row.at for row in reading.take()] == list(range(100, 120))


def test_a_batch_that_comes_again_is_sought():
    """After a poll timeout the first half comes again: it was given, so it is fetched anew."""
    reading = BatchReader()
    reading.start_batch([OffsetRange(*A, 70, 100)])
    reading.add(A, rows(A, *range(70, 100)))
    assert len(reading.take()) == 30
    assert reading.start_batch([OffsetRange(*A, 70, 85)]) == SeekPlan(set(), {A: 70})
    assert reading.take() == []


def test_a_record_beyond_a_hole_ends_the_range():
    """70-83 holds nothing; a record at 83 says so, and waits for the next batch."""
    reading = BatchReader()
    reading.start_batch([OffsetRange(*A, 70, 83)])
    reading.add(A, rows(A, 83))
    assert (reading.take(), reading.advance(), reading.is_finished) == ([], {}, True)
    assert reading.start_batch([OffsetRange(*A, 83, 90)]) == SeekPlan(set(), {})
    assert reading.take() == rows(A, 83)


def test_a_partition_with_two_ranges_is_sought_only_over_a_gap_that_was_not_fetched():
    """70-75 and 90-95: with records to 80 the second is sought; with records to 92 the gap is dropped."""
    asked = [OffsetRange(*A, 70, 75), OffsetRange(*A, 90, 95)]
    for fetched, seek in ((80, {A: 90}), (92, {})):
        reading = BatchReader()
        assert reading.start_batch(asked) == SeekPlan(set(), {A: 70})
        reading.add(A, rows(A, *range(70, fetched)))
        assert [row.at for row in reading.take()] == list(range(70, 75))
        assert (reading.advance(), reading.is_finished) == (seek, False)
        assert reading.buffered() == {A: Buffered(0, 0) if seek else Buffered(2, 20)}


def test_what_is_late_is_no_news():
    """Records and log ends of a partition that is not read, or that were told before, change nothing."""
    reading = BatchReader()
    reading.start_batch([OffsetRange(*A, 70, 80)])
    reading.add(A, rows(A, 70, 71))
    reading.add(A, rows(A, 70, 71))
    reading.add(A, rows(A, 71, 72))
    reading.mark_end(A, 60)
    reading.add(PARTITIONS[1], rows(PARTITIONS[1], 1))
    reading.mark_end(PARTITIONS[1], 5)
    assert (reading.position(A), reading.position(PARTITIONS[1])) == (73, None)
    assert reading.take() == rows(A, 70, 71, 72)


def test_the_size_of_a_record_has_its_key_and_headers():
    """The size is in bytes. An absent key, value or header value counts as 0."""
    place = "orders", 0, 7, 0, 0
    assert KafkaRecord(None, None, *place, None).size == 0
    assert KafkaRecord(b"key", b"value", *place, [("ü", b"abc"), ("b", None)]).size == 3 + 5 + 5 + 1
