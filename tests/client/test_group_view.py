"""A consumer's view of both lanes, without a broker (KIP-333, "Effects on Current API And Behavior")."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.commit_metadata import (
    CatchUpCommitMetadata,
    GroupOrigin,
    LiveCommitMetadata,
    OwnerState,
)
from kafka_liveness_dagster.core.ledger import LedgerEntry
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.partition_state import PartitionState, TableMismatchError
from kafka_liveness_dagster.core.resume import OwnedPartition
from kafka_liveness_dagster.kafka.live.consumer import GroupView

AT, TABLE = TopicPartition("orders", 3), "lake.shop.orders"
ORIGIN = GroupOrigin(0)


class Table:
    """A ledger that has these offsets; with None it does not respond."""

    def __init__(self, *done, target=TABLE):
        self.target, self._account = target, None if done == (None,) else LedgerEntry(done, first_offset=0)

    def read(self, _asked):
        return None if self._account is None else {AT: self._account}


class Logs:
    """The live commit log is at 120 with 70-100 pending; catch-up has done 70-80 of it; the log is 10-200."""

    def partition_states(self, _group_id, _partitions):
        mark = LiveCommitMetadata(OwnerState.RUNNING, "0badcafe", (Span(70, 100),), origin=ORIGIN)
        return {
            AT: PartitionState(
                120,
                mark,
                10,
                log_end=200,
                catch_up_log=CatchUpCommitMetadata(80, origin=ORIGIN, target=TABLE),
            )
        }


def view(witness=None):
    """The view of a consumer that owns the partition: commit 120, position 150."""
    settings = SimpleNamespace(group_id="orders-etl", ledger=witness)
    memberships = SimpleNamespace(planner=None, owned={AT: OwnedPartition(120, 150)})
    return GroupView(Logs(), settings, memberships, SimpleNamespace(client_id="this"))


def ranges(*pairs):
    return tuple(OffsetRange(*AT, *pair) for pair in pairs)


@pytest.mark.parametrize(
    ("witness", "committed", "owed"),
    [
        pytest.param(None, 80, [(80, 100)], id="no table: by the commit logs"),
        pytest.param(Table(None), 80, [(80, 100)], id="the table does not respond: by the commit logs"),
        pytest.param(Table(Span(0, 80), Span(100, 120)), 80, [(80, 100)], id="the table agrees"),
        pytest.param(
            Table(Span(0, 120)),
            80,
            [(80, 100)],
            id="the table has rows that no catch-up run has recorded yet",
        ),
        pytest.param(
            Table(Span(0, 70), Span(100, 120)), 70, [(70, 100)], id="the table lost a catch-up run's rows"
        ),
        pytest.param(Table(Span(0, 50)), 50, [(50, 120)], id="the table was rolled back below the crash lag"),
    ],
)
def test_the_table_is_queried_for_what_is_processed(witness, committed, owed):
    """KIP-333, committed(): "any offset before the one returned [...] has also been checkpointed as well"."""
    seen = view(witness)
    assert (seen.committed(*AT), seen.pending(*AT)) == (committed, ranges(*owed))


def test_another_table_is_no_witness():
    """Its rows say nothing of this group."""
    with pytest.raises(TableMismatchError, match=TABLE):
        view(Table(target="lake.shop.others")).committed(*AT)


def test_beginning_end_and_position_need_no_table():
    """KIP-333: both lanes read one log; position() is the live lane's."""
    seen = view(Table(None))
    assert (seen.beginning_offsets(*AT), seen.end_offsets(*AT), seen.position(*AT)) == (10, 200, 150)
    assert (seen.assignment(), seen.position("orders", 4)) == ((AT,), None)


IN_THE_KIP = (
    "enable.parallel.rebalance", "childConsumerIsAlive()", "poll()", "committed()", "position()",
    "commitSync()", "commitAsync()", "subscribe()", "assign()", "unsubscribe()", "beginningOffsets()",
    "endOffsets()", "offsetsForTimes()", "pause()", "resume()", "close()",
)  # fmt: skip
NOT_HERE = ("offsets_for_times", "commit_async", "subscribe", "assign", "unsubscribe")


def test_the_page_has_each_call_of_the_kip():
    """Each once, in its first column; what the page says is not here is no method of either lane."""
    page = (Path(__file__).parents[2] / "docs" / "consumer.md").read_text(encoding="utf-8")
    rows = [
        line.split(" | ")[0] for line in page.partition("## KIP-333")[2].splitlines() if line.startswith("| ")
    ]
    assert [name for row in rows for name in re.findall(r"`([\w.()]+)`", row)] == list(IN_THE_KIP)
    both = (kl.LivenessConsumer, kl.CatchUpConsumer)
    assert [name for name in NOT_HERE if any(hasattr(one, name) for one in both)] == []
