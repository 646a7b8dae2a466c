"""What a lane adds to the ledger of its target."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.ledger import (
    WRITTEN_KEY,
    LedgerEntry,
    UnknownLedgerFormatError,
    decode_entries,
    encode_entries,
)
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.sink_ledger import LaneLedger, LedgerCommit, LedgerRecord

AT, OTHER = TopicPartition("orders", 3), TopicPartition("orders", 4)
QUERIED = {AT: Span(0, 120), OTHER: Span(0, 120)}


class Target:
    """A target with the rows of 0-70 of one partition.

    Attributes:
        responds: whether it can be read.
        assumed: what the commit logs completed.
    """

    target = "lake.shop.orders"

    def __init__(self):
        self.responds, self.assumed = True, []

    def read(self, partitions):
        if not self.responds:
            return None
        return {tp: LedgerEntry((Span(0, 70),) if tp == AT else ()) for tp in partitions}

    def assume_written(self, entries):
        self.assumed.append(dict(entries))

    def record(self, ranges, known, as_of):
        return LedgerRecord(
            {WRITTEN_KEY: encode_entries(known)}, lambda: self.assumed.append((ranges, as_of))
        )


@pytest.fixture
def target():
    """The target of the lane."""
    return Target()


@pytest.fixture
def ledger(target):
    """Its ledger, as the lane uses it."""
    return LaneLedger.of(target)


def test_what_is_known_to_be_written_off_counts_at_once(ledger):
    """The target has it with the lane's next write only."""
    ledger.add_known({AT: LedgerEntry(written_off=(Span(70, 90),), first_offset=5)})
    ledger.add_known({AT: LedgerEntry(written_off=(Span(90, 100),))})
    assert ledger.read(QUERIED) == {
        AT: LedgerEntry((Span(0, 70),), (Span(70, 100),)),
        OTHER: LedgerEntry(),
    }


def test_each_write_records_all_that_is_known(ledger, target):
    """Where the group began, too."""
    ledger.add_known({AT: LedgerEntry(written_off=(Span(70, 90),), first_offset=5, topic_id="T1")})
    ranges = [OffsetRange(*AT, 90, 100)]
    for _ in range(2):
        record = ledger.record(ranges, 7)
        assert decode_entries(record.properties[WRITTEN_KEY]) == {
            AT: LedgerEntry((), (Span(70, 90),), 5, topic_id="T1")
        }
    record.mark_committed()
    assert target.assumed == [(ranges, 7)]


def test_a_target_without_a_response_proves_nothing(ledger, target):
    """Nor does what the lane knows take its place."""
    ledger.add_known({AT: LedgerEntry(written_off=(Span(70, 90),))})
    target.responds = False
    assert ledger.read(QUERIED) is None


def test_an_expired_history_is_completed_in_the_target(ledger, target):
    """Only its ledger notices a roll back after that."""
    ledger.assume_written({AT: LedgerEntry((Span(0, 70),))})
    assert target.assumed == [{AT: LedgerEntry((Span(0, 70),))}]
    assert ledger.target == "lake.shop.orders"


def test_a_lane_has_one_ledger(ledger, target):
    """Wrapped twice, what one lane knows would be kept in two places."""
    assert LaneLedger.of(ledger) is ledger
    assert LaneLedger.of(None) is None
    assert LaneLedger.of(target).target == target.target


def test_a_commit_that_cannot_be_read_is_named():
    """By its id."""
    commit = LedgerCommit(77, "", "append", added_rows=0, deleted_rows=0, text="kl9 orders")
    with pytest.raises(UnknownLedgerFormatError, match=r"snapshot 77 has .*: 'kl9 orders'"):
        assert commit.written
