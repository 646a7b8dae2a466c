"""The ledger of one process on a table that other processes write to: it records no more than the table holds."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from kafka_liveness_dagster.core.ledger import Snapshot
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.witnesses import RowsMissingError
from kafka_liveness_dagster.spark import ledger as module
from kafka_liveness_dagster.spark.ledger import TableLedger
from kafka_liveness_dagster.spark.summaries import HAD, SINCE, WROTE

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

    def refresh(self, _session):
        """There is no cache."""

    def current(self, _session):
        return self.current_id

    def put(self, ledger, start, end):
        """Write these offsets by this ledger; return the snapshot."""
        ranges = [OffsetRange(*AT, start, end)]
        summary = ledger.properties(None, self.current_id, ranges)
        since = int(summary[SINCE]) if SINCE in summary else None
        number = len(self.snapshots) + 1
        self.snapshots[number] = Snapshot(number, self.current_id, summary[WROTE], summary.get(HAD, ""), since)
        self.current_id = number
        ledger.landed(ranges)
        return number


@pytest.fixture
def table():
    """An empty one."""
    return Table()


@pytest.fixture
def opened(table, monkeypatch):
    """A ledger of another process: ``opened()``; it reads the snapshots when it has to, and in ``accounts``."""
    monkeypatch.setattr(module, "newest", lambda _session, table: dict(table.snapshots))
    monkeypatch.setattr(module, "line_of", lambda _: SimpleNamespace(within=lambda *_: nullcontext()))
    monkeypatch.setattr(module, "_LOOK_SHARE", 1e-12)
    return lambda: TableLedger(table, lambda: None)


def done(ledger):
    """Return the offsets of the partition that a ledger finds in the table now."""
    return ledger.accounts([AT])[AT].done


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
    """The process that wrote them fails before it records them in the next snapshot; so many snapshots are gone."""
    lane = opened()
    snapshots = [table.put(lane, start, start + 10) for start in (0, 10, 20)]
    table.current_id = snapshots[-1 - rolled_back]
    lost = f"lacks orders:3:{30 - 10 * rolled_back}-30"
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
    with pytest.raises(RowsMissingError, match="lacks orders:3:10-20"):
        table.put(lane, 20, 30)
    assert done(opened()) == (Span(0, 10),)
