"""The sensor's query of the table: its time limits, and what it keeps between ticks."""

from __future__ import annotations

import threading
from uuid import uuid4

import pytest

from kafka_liveness_dagster.core.ledger import LedgerEntry, encode_entries
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.sensor import table_ledger
from kafka_liveness_dagster.sensor.table_ledger import TableLedgerReader
from kafka_liveness_dagster.spark.table.ledger import TableLedger
from tests.client.fake_connect_server import RECORDS
from tests.spark_addresses import spark_at

SECONDS = 10.0  # a wait this long is in vain
AT = TopicPartition("orders", 0)
QUERIED = {AT: Span(0, 12)}


@pytest.fixture
def short(monkeypatch):
    """A short time limit for each query."""
    monkeypatch.setattr(table_ledger, "QUERY_TIMEOUT_SECONDS", 0.2)


@pytest.fixture
def table():
    """The name of a table that no other test has, because the process keeps the last snapshot by name."""
    return f"lake.shop_{uuid4().hex[:8]}.orders"


@pytest.fixture
def look(server, table):
    """A query of the table on the server."""
    server.has_table(".".join(f"`{part}`" for part in table.split(".")), RECORDS)
    spark = spark_at(server.remote)
    return lambda **limits: TableLedgerReader(table, spark, **{"connect_seconds": SECONDS, **limits})


def in_time(call):
    """Return what a call returns, when it ends."""
    returned = []
    thread = threading.Thread(target=lambda: returned.append(call()), daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert returned, "the tick waits for Spark"
    return returned[0]


WRITTEN = [
    {
        "snapshot_id": 7,
        "parent_id": None,
        "wrote": encode_entries({AT: LedgerEntry((Span(7, 12),))}),
        "had": None,
        "since": None,
    }
]


def test_the_table_s_ledger_is_returned(server, look):
    """What its snapshots have as written."""
    server.gives("`snapshots`", WRITTEN)
    found = look()
    [account] = found.read(QUERIED).values()
    assert (account.written, found.unavailable_reason) == ((Span(7, 12),), "")


def test_a_tick_does_not_wait_for_a_table_that_sends_no_reply(server, table, look, short):
    """Dagster ends a tick that takes a minute: the group is observed without the table."""
    server.falls_silent_at("`snapshots`")
    found = look()
    assert in_time(lambda: found.read(QUERIED)) is None
    assert f"it was queried for the ledger of {table}" in found.unavailable_reason


def test_a_tick_does_not_wait_for_dead_letters(server, table, look, short):
    """Their query has the same time limit."""
    server.falls_silent_at("orders_dead_letters")
    found = look()
    in_time(lambda: found.dead_letters([OffsetRange("orders", 0, 7, 12)]))
    assert f"waiting for the dead letters of {table}" in found.unavailable_reason


def test_a_tick_does_not_wait_for_a_server_that_sends_no_reply(server, look):
    """A new session has a time limit of its own; for a while the server is not tried again."""
    server.falls_silent_at("spark_version")
    found, again = look(connect_seconds=0.5), look(connect_seconds=0.5)
    assert in_time(lambda: found.read(QUERIED)) is None
    assert "no Spark Connect server answered" in found.unavailable_reason
    server.reached.clear()
    assert in_time(lambda: again.read(QUERIED)) is None
    assert not server.reached.is_set(), "the silent server was tried again"


def test_the_history_is_read_once_while_the_table_does_not_change(server, look):
    """The next tick compares the current snapshot alone."""
    server.gives("`snapshots`", WRITTEN)
    assert look().read(QUERIED)[AT].written == (Span(7, 12),)
    first = len(server.executed_with("`snapshots`"))
    assert look().read(QUERIED)[AT].written == (Span(7, 12),)
    assert len(server.executed_with("`snapshots`")) == first > 0, "the history was read again"


def test_an_error_without_a_text_is_told_by_its_class(server, look, monkeypatch):
    """The look goes on without the table."""

    def fails(*_):
        raise AssertionError

    monkeypatch.setattr(TableLedger, "read", fails)
    found = look()
    assert found.read(QUERIED) is None
    assert found.unavailable_reason == "Spark failed with AssertionError"


def test_a_session_that_failed_is_replaced_by_the_next_tick(server, look, monkeypatch):
    """Its server may have been restarted."""
    monkeypatch.setattr(table_ledger, "QUERY_TIMEOUT_SECONDS", 0.2)
    server.falls_silent_at("`snapshots`")
    assert in_time(lambda: look().read(QUERIED)) is None
    monkeypatch.setattr(table_ledger, "QUERY_TIMEOUT_SECONDS", SECONDS)
    server.talks_again()
    server.gives("`snapshots`", WRITTEN)
    assert look().read(QUERIED)[AT].written == (Span(7, 12),)
