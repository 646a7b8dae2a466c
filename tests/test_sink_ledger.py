"""The ledger of a custom sink: what it stores, and what is read of that."""

from __future__ import annotations

import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.ledger import ALL_OFFSETS, WRITTEN_KEY, LedgerEntry, UnknownLedgerFormatError
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.partition_state import check_groups
from kafka_liveness_dagster.core.sink_ledger import LaneLedger
from kafka_liveness_dagster.spark.sink import SinkLedgerAdapter

AT, OTHER = TopicPartition("orders", 3), TopicPartition("orders", 4)
QUERIED = {AT: Span(0, 120), OTHER: Span(0, 0)}


class StoringSink:
    """Stores the text of each batch; there are no rows.

    Attributes:
        stored: the commits, None while it cannot tell.
    """

    def __init__(self):
        self.stored = []

    def put(self, ledger, *ranges):
        """Commit a batch as a run does."""
        record = ledger.record(ranges, None)
        self.stored.append(kl.SinkCommit(record.properties[WRITTEN_KEY], committed_at=str(len(self.stored))))
        record.mark_committed()
        return record.properties[WRITTEN_KEY]

    def __call__(self, replacement):
        """Not called."""

    def ledger_commits(self):
        return self.stored


class CoveredSink:
    """Returns the ranges that it has; None while it cannot tell."""

    def __init__(self, *ranges):
        self.ranges, self.called_with = ranges, []

    def __call__(self, replacement):
        """Not called."""

    def covered(self, ranges):
        self.called_with = ranges
        return self.ranges


@pytest.fixture
def sink():
    """A sink that is a ledger."""
    return StoringSink()


@pytest.fixture
def ledger(sink):
    """The ledger of a lane that writes to it."""
    return LaneLedger.of(SinkLedgerAdapter.from_sink(sink, "orders-etl"))


def test_what_a_sink_stored_is_what_it_has(sink, ledger):
    """Of all its commits; the group that wrote them is recorded."""
    sink.put(ledger, OffsetRange(*AT, 0, 70))
    sink.put(ledger, OffsetRange(*AT, 70, 100), OffsetRange(*OTHER, 5, 9))
    group = frozenset({"orders-etl"})
    assert ledger.read(QUERIED) == {
        AT: LedgerEntry((Span(0, 100),), groups=group),
        OTHER: LedgerEntry((Span(5, 9),), groups=group),
    }
    assert ledger.target == "StoringSink"


def test_what_the_lane_knows_is_stored_once(sink, ledger):
    """Of partitions without a batch of their own: else each text had all partitions."""
    known = {
        AT: LedgerEntry(first_offset=0, topic_id="T1"),
        OTHER: LedgerEntry(written_off=(Span(5, 9),), first_offset=5, topic_id="T1"),
    }
    ledger.add_known(known)
    assert sink.put(ledger, OffsetRange(*AT, 0, 70)) == "orders/T1/orders-etl 3@0:0-70 4@5:!5-9"
    assert sink.put(ledger, OffsetRange(*AT, 70, 90)) == "orders/T1/orders-etl 3@0:70-90"
    ledger.add_known({OTHER: LedgerEntry(written_off=(Span(9, 12),))})
    assert sink.put(ledger, OffsetRange(*AT, 90, 99)) == "orders/T1/orders-etl 3@0:90-99 4@5:!5-12"


def test_a_text_that_was_not_committed_is_given_again(ledger):
    """A batch that failed has recorded nothing."""
    ledger.add_known({OTHER: LedgerEntry(first_offset=5)})
    for _ in range(2):
        record = ledger.record([OffsetRange(*AT, 0, 70)], None)
        assert record.properties == {WRITTEN_KEY: "orders//orders-etl 3:0-70 4@5:"}


def test_one_text_may_take_the_place_of_many(sink, ledger):
    """Nothing is lost by it but the list of commits."""
    sink.put(ledger, OffsetRange(*AT, 0, 70))
    sink.put(ledger, OffsetRange(*AT, 90, 100))
    before = ledger.read(QUERIED)
    sink.stored = [kl.SinkCommit(kl.merge_ledger_texts(one.text for one in sink.stored))]
    assert ledger.read(QUERIED) == before
    sink.put(ledger, OffsetRange(*AT, 70, 90))
    assert ledger.read(QUERIED)[AT].written == (Span(0, 100),)


def test_commits_are_listed_the_newest_first(sink, ledger):
    """With what each wrote."""
    sink.put(ledger, OffsetRange(*AT, 0, 70))
    sink.put(ledger, OffsetRange(*AT, 70, 100))
    history = SinkLedgerAdapter.from_sink(sink).prove()
    assert [commit.written for commit in history.commits] == [{AT: (Span(70, 100),)}, {AT: (Span(0, 70),)}]
    assert history.ledger.entry(AT).written == (Span(0, 100),)
    assert history.snapshot_id is None


def test_of_a_recreated_topic_the_last_commit_has_the_id():
    """Whatever the order in which a database returns rows."""
    sink = StoringSink()
    sink.stored = [
        kl.SinkCommit("orders/T2 3:0-9", committed_at="2026-02-01"),
        kl.SinkCommit("orders/T1 3:0-70", committed_at="2026-01-01"),
    ]
    assert SinkLedgerAdapter.from_sink(sink).read(QUERIED)[AT].topic_id == "T2"
    sink.stored = [one._replace(committed_at="") for one in reversed(sink.stored)]
    history = SinkLedgerAdapter.from_sink(sink).prove()
    assert history.ledger.entry(AT).topic_id == "T2"
    assert [commit.text[:9] for commit in history.commits] == ["orders/T2", "orders/T1"]


def test_a_successor_may_take_the_ledger_over(sink, ledger):
    """Another group is refused, until somebody says that it is meant."""
    sink.put(ledger, OffsetRange(*AT, 0, 70))
    entries = {AT: ledger.read(QUERIED)[AT]}
    with pytest.raises(kl.GroupMismatchError, match=r"kl\.merge_ledger_texts\(texts, group_id='orders-v2'\)"):
        check_groups("orders-v2", entries, ledger.target)
    sink.stored = [kl.SinkCommit(kl.merge_ledger_texts([one.text for one in sink.stored], "orders-v2"))]
    check_groups("orders-v2", {AT: ledger.read(QUERIED)[AT]}, ledger.target)


def test_a_sink_that_cannot_tell_disproves_nothing(sink, ledger):
    """It has no response at the moment."""
    sink.put(ledger, OffsetRange(*AT, 0, 70))
    sink.stored = None
    assert ledger.read(QUERIED)[AT] == LedgerEntry(unknown=ALL_OFFSETS)
    assert SinkLedgerAdapter.from_sink(sink).prove() is None


def test_a_text_of_another_program_is_no_ledger(sink, ledger):
    """It is refused, rather than read as nothing."""
    sink.stored = [kl.SinkCommit("0-70")]
    with pytest.raises(UnknownLedgerFormatError, match="the table's ledger has an unknown format: '0-70'"):
        ledger.read(QUERIED)


def test_ranges_that_a_sink_has_are_a_ledger_without_commits():
    """They are queried for the partitions in question alone."""
    sink = CoveredSink(OffsetRange(*AT, 0, 70), OffsetRange(*AT, 50, 90))
    ledger = SinkLedgerAdapter.from_sink(sink)
    assert ledger.read(QUERIED) == {AT: LedgerEntry((Span(0, 90),)), OTHER: LedgerEntry()}
    assert sink.called_with == [OffsetRange(*AT, 0, 120)]
    assert ledger.prove() is None
    sink.ranges = None
    assert ledger.read(QUERIED)[AT] == LedgerEntry(unknown=ALL_OFFSETS)


def test_a_sink_with_neither_is_no_ledger():
    """Both commit logs decide alone."""
    assert SinkLedgerAdapter.from_sink(lambda replacement: None) is None
