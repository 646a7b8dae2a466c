"""The ledger of one process on a table that other processes write to.

It records no more than the table holds.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from kafka_liveness_dagster.core.ledger import (
    ALL_OFFSETS,
    TOTAL_AS_OF_KEY,
    TOTAL_KEY,
    WRITTEN_KEY,
    LedgerEntry,
    SnapshotSummary,
)
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.partition_state import GroupMismatchError, RowsMissingError
from kafka_liveness_dagster.core.sink_ledger import LaneLedger
from kafka_liveness_dagster.spark.table import ledger as module
from kafka_liveness_dagster.spark.table.ledger import TableLedger, TableVersion

AT = TopicPartition("orders", 3)


class Table:
    """A table in memory.

    Attributes:
        snapshots: by their ids, those that were rolled away too.
        current_id: the current one.
    """

    name = "lake.shop.orders"

    def __init__(self):
        self.snapshots, self.current_id = {}, None

    def refresh(self, _session, *, keep_shape=False):
        """There is no cache."""

    def current_snapshot_id(self, _session, _known=()):
        return self.current_id

    def put(self, ledger, start, end):
        """Write these offsets by this ledger; return the snapshot."""
        ranges = [OffsetRange(*AT, start, end)]
        version = TableVersion(None, self.current_id)
        entry = LaneLedger.of(ledger).record(ranges, version)
        self.commit(entry.properties)
        entry.mark_committed()
        return self.current_id

    def commit(self, summary):
        """Add the snapshot of a write."""
        since = int(summary[TOTAL_AS_OF_KEY]) if TOTAL_AS_OF_KEY in summary else None
        number = len(self.snapshots) + 1
        self.snapshots[number] = SnapshotSummary(
            number, self.current_id, summary[WRITTEN_KEY], total=summary.get(TOTAL_KEY, ""), total_as_of=since
        )
        self.current_id = number


@pytest.fixture
def table():
    """An empty one."""
    return Table()


@pytest.fixture
def opened(table, monkeypatch):
    """A ledger of another process, maybe of a group; it reads when it has to, and in ``accounts``."""
    monkeypatch.setattr(module, "latest_summaries", lambda _session, table: dict(table.snapshots))
    monkeypatch.setattr(
        module, "connection_of", lambda _: SimpleNamespace(abort_after=lambda *_: nullcontext())
    )
    monkeypatch.setattr(module, "READ_TIME_SHARE", 1e-12)
    return lambda group_id="": TableLedger(table, lambda: None, group_id=group_id)


def done(ledger):
    """Return the offsets of the partition that a ledger finds in the table now."""
    return ledger.read([AT])[AT].written


def test_what_was_learned_counts_before_it_is_written(table, opened):
    """Of offsets that were forgiven: an external commit may replace the only record of them meanwhile."""
    ledger = LaneLedger.of(opened())
    table.put(ledger, 0, 70)
    ledger.add_known({AT: LedgerEntry(written_off=(Span(70, 120),))})
    assert ledger.read([AT])[AT].written_off == (Span(70, 120),), "a learned report counts at once"
    assert opened().read([AT])[AT].written_off == ()
    table.put(ledger, 120, 150)
    assert opened().read([AT])[AT].written_off == (Span(70, 120),)


def test_a_sum_hides_nothing_that_was_written_since_it_was_read(table, opened):
    """Another process wrote between the last look and this write: the sum is of before that."""
    lane, other = opened(), opened()
    table.put(lane, 0, 10)
    assert done(lane) == done(other) == (Span(0, 10),)
    table.put(other, 10, 20)
    table.put(lane, 20, 30)
    assert done(opened()) == (Span(0, 30),), "the ledger hides a commit"


@pytest.mark.parametrize("rolled_back", [1, 2])
def test_rows_that_a_rollback_removed_are_not_recorded(table, opened, rolled_back):
    """The process that wrote them fails before it records them in the next snapshot.

    So many snapshots are gone.
    """
    lane = opened()
    snapshots = [table.put(lane, start, start + 10) for start in (0, 10, 20)]
    table.current_id = snapshots[-1 - rolled_back]
    lost = f"lacks p3:orders:{30 - 10 * rolled_back}-30"
    with pytest.raises(RowsMissingError, match=lost):
        table.put(lane, 30, 40)
    assert done(opened()) == (Span(0, 30 - 10 * rolled_back),)


def test_rows_of_other_processes_that_a_rollback_removed_are_not_recorded(table, opened):
    """This process had read them before."""
    lane, other = opened(), opened()
    first = table.put(other, 0, 10)
    table.put(other, 10, 20)
    assert done(lane) == (Span(0, 20),)
    table.current_id = first
    with pytest.raises(RowsMissingError, match="lacks p3:orders:10-20"):
        table.put(lane, 20, 30)
    assert done(opened()) == (Span(0, 10),)


def test_a_second_group_is_found_before_the_second_write(table, opened):
    """Both read an empty table; each lands one batch, and the ledger of neither is due for another look."""
    lane, other = opened("orders-etl"), opened("orders-test")
    assert done(lane) == done(other) == ()
    summary = other.record([OffsetRange(*AT, 10, 20)], {}, TableVersion(None, None)).properties
    table.put(lane, 0, 10)
    table.snapshots[2] = SnapshotSummary(2, 1, summary[WRITTEN_KEY])
    table.current_id = 2
    with pytest.raises(GroupMismatchError, match="that group orders-test wrote"):
        table.put(lane, 20, 30)


@pytest.mark.parametrize("seen", [False, True], ids=["before it is seen", "after it is seen"])
def test_a_rollback_of_rows_that_replaced_others_is_found(table, opened, seen):
    """The former rows are there again, so no offset is missing."""
    first = opened()
    table.put(first, 0, 20)
    replay = opened()
    assert done(replay) == (Span(0, 20),)
    table.put(replay, 0, 10)
    before = table.current_id
    table.put(replay, 10, 20)
    if seen:
        assert done(replay) == (Span(0, 20),)
    table.current_id = before
    with pytest.raises(RowsMissingError, match="rolled back while this run replaced p3:orders:"):
        done(replay)


def test_rows_that_replaced_others_are_found_in_the_snapshots(table, opened):
    """Nobody rolled the table back; a commit of another client came on top."""
    table.put(opened(), 0, 20)
    replay = opened()
    assert done(replay) == (Span(0, 20),)
    for start in (0, 10):
        table.put(replay, start, start + 10)
    table.put(opened(), 20, 30)
    for _ in range(2):
        assert done(replay) == (Span(0, 30),)


def test_two_writes_of_the_same_offsets_may_be_in_flight(table, opened):
    """A batch that is planned again begins before its predecessor has ended.

    Each is checked from its own snapshot. The second one's snapshot has the first one's rows already, so
    nothing after it shows them.
    """
    lane, ranges = opened(), [OffsetRange(*AT, 0, 10)]
    table.put(lane, 0, 10)
    first = lane.record(ranges, {}, TableVersion(None, table.current_id))
    table.commit(first.properties)
    second = lane.record(ranges, {}, TableVersion(None, table.current_id))
    first.mark_committed()
    table.put(lane, 10, 20)
    assert done(lane) == (Span(0, 20),)
    table.commit(second.properties)
    second.mark_committed()
    assert done(lane) == (Span(0, 20),)


def test_a_table_that_grows_between_two_queries_was_not_rolled_back(table, opened, monkeypatch):
    """Its newer snapshots are off the line of the current one that was read first."""
    table.snapshots = {5: SnapshotSummary(5, 4, "orders/ 3:0-70")}  # what was before it expired
    table.current_id = 5
    reads = []

    def grown(_session, table):
        if not reads:
            table.commit({WRITTEN_KEY: "orders/ 3:70-120"})
        reads.append(table.current_id)
        return dict(table.snapshots)

    monkeypatch.setattr(module, "latest_summaries", grown)
    entry = opened().read([AT])[AT]
    assert (entry.written, entry.unknown) == ((Span(0, 120),), ALL_OFFSETS), (
        "a newer snapshot is no roll back"
    )
    assert len(reads) == 2
