"""What a table says that it holds, and what was done to it under a process that goes on."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.ledger import ALL_OFFSETS, LedgerEntry, UnknownLedgerFormatError
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.partition_state import RowsMissingError
from kafka_liveness_dagster.sensor.table_ledger import TableLedgerReader
from kafka_liveness_dagster.spark.table import ledger
from kafka_liveness_dagster.spark.table.ledger import TableLedger, TableVersion
from kafka_liveness_dagster.spark.table.snapshots import latest_summaries
from kafka_liveness_dagster.spark.table.table import IcebergTable
from kafka_liveness_dagster.spark.table.write import write_table
from tests.spark_addresses import spark_at

TP = TopicPartition("orders", 0)


def put(spark, ledger, start, end):
    """A row for each of these offsets, written and told by this ledger; the snapshot that it gave."""
    frame = f"SELECT 'orders' AS topic, 0 AS partition, id AS offset FROM range({start}, {end})"
    write_table(spark, ledger.target, [OffsetRange(*TP, start, end)], lambda: spark.sql(frame), ledger=ledger)
    return IcebergTable(ledger.target).snapshot_id(spark)


def add(spark, table, start, end):
    """A row for each of these offsets, by somebody who tells nothing; the snapshot that it gave."""
    spark.sql(f"INSERT INTO {table} SELECT 'orders', 0, id FROM range({start}, {end})").collect()
    return IcebergTable(table).snapshot_id(spark)


def set_back(spark, table, to, expired):
    """Roll the table back, and expire what was rolled away, as one does with what should never have been."""
    catalog, _, name = table.partition(".")
    spark.sql(f"CALL {catalog}.system.rollback_to_snapshot('{name}', {to})").collect()
    expire(spark, table, expired)


def expire(spark, table, snapshots):
    """These are told no more."""
    catalog, _, name = table.partition(".")
    ids = ", ".join(map(str, snapshots))
    arguments = f"table => '{name}', snapshot_ids => ARRAY({ids})"
    spark.sql(f"CALL {catalog}.system.expire_snapshots({arguments})").collect()


@pytest.mark.parametrize(
    ("key", "value"),
    [("written", "not ours"), ("total", "orders/x 0@0:0-99999999999999999999"), ("total-as-of", "abc")],
)
def test_a_summary_of_another_writer_is_named_and_can_be_removed(spark, table, key, value):
    """The snapshot is named; a newer one and an expiry bring the ledger back, and no row goes."""
    lane = TableLedger(IcebergTable(table), lambda: spark)
    first = put(spark, lane, 0, 10)
    row = spark.sql("SELECT 'orders' AS topic, 0 AS partition, 10L AS offset")
    text = {"total-as-of": str(first)} if key == "total" else {}
    writer = row.writeTo(table)
    for name, said in {**text, key: value}.items():
        writer = writer.option(f"snapshot-property.kafka-liveness.{name}", said)
    writer.append()
    theirs = IcebergTable(table).snapshot_id(spark)
    anew = TableLedger(IcebergTable(table), lambda: spark)
    with pytest.raises(
        UnknownLedgerFormatError, match=rf"^snapshot {theirs} has .* snapshot_ids => ARRAY\({theirs}\)"
    ):
        anew.read([TP])
    add(spark, table, 11, 12)
    expire(spark, table, [theirs])
    assert not anew.read([TP])[TP].is_complete
    put(spark, anew, 20, 30)
    assert anew.read([TP])[TP].written == (Span(20, 30),)
    assert spark.table(table).count() == 22


def test_what_was_rolled_away_and_expired_is_not_told_on(spark, table):
    """A process saw the snapshot that was rolled away, but not the one to which its table was rolled back.

    What it had summed up is of a snapshot that is no ancestor; and as that is gone, nobody could find out
    later.
    """
    lane, other = (TableLedger(IcebergTable(table), lambda: spark) for _ in range(2))
    offsets = (10, 20, 30)
    put(spark, lane, 0, 10)
    back_to, rolled_away = (put(spark, other, start, start + 10) for start in (offsets[0], offsets[1]))
    assert lane.read([TP])[TP].written == (Span(0, 30),)
    set_back(spark, table, back_to, [rolled_away])
    with pytest.raises(RowsMissingError, match="lacks p0:orders:20-30"):
        put(spark, lane, 30, 40)
    assert TableLedger(IcebergTable(table), lambda: spark).read([TP])[TP].written == (Span(0, 20),)


def test_nor_is_it_where_the_history_from_before_is_expired_too(spark, table):
    """The table cannot tell what it held.

    What this process knew of it counts no more, where it was set back.
    """
    lane, other = (TableLedger(IcebergTable(table), lambda: spark) for _ in range(2))
    first = put(spark, lane, 0, 10)
    second = put(spark, other, 10, 20)
    back_to, rolled_away = (put(spark, other, start, start + 10) for start in (20, 30))
    lane.read([TP])
    set_back(spark, table, back_to, [first, second, rolled_away])
    with pytest.raises(RowsMissingError, match="30-40"):
        put(spark, lane, 40, 50)
    anew = TableLedger(IcebergTable(table), lambda: spark).read([TP]).get(TP, LedgerEntry())
    assert not any(span.end > 30 for span in anew.written)


def test_nor_is_it_where_the_table_was_set_back_to_what_was_current_between_two_looks(
    spark, table, monkeypatch
):
    """A process looks now and then; what was current when it wrote in between was current too."""
    # The next read is the one below
    monkeypatch.setattr("kafka_liveness_dagster.spark.table.ledger.READ_TIME_SHARE", 1e-6)
    lane = TableLedger(IcebergTable(table), lambda: spark)
    first = put(spark, lane, 0, 10)
    lane.read([TP])
    second, back_to, third = put(spark, lane, 10, 20), add(spark, table, 20, 30), put(spark, lane, 30, 40)
    rolled_away = [third, add(spark, table, 40, 50), put(spark, lane, 50, 60)]
    set_back(spark, table, back_to, [first, second, *rolled_away])
    add(spark, table, 60, 70)
    put(spark, lane, 70, 80)  # not odd: a snapshot that it never saw
    with pytest.raises(RowsMissingError, match="lacks p0:orders:10-20,p0:orders:30-40,p0:orders:50-60"):
        lane.read([TP])


def test_what_is_expired_before_its_history_is_read_is_no_word_of_the_table(spark, table):
    """Else what others had written meanwhile looked, at the next look, like a table that goes back to it."""
    first = put(spark, TableLedger(IcebergTable(table), lambda: spark), 0, 10)

    class Table(IcebergTable):
        """Somebody writes, and expires all before that, when it has said what is current."""

        expired: list[int] = []  # noqa: RUF012 - a dataclass that is frozen

        def current_snapshot_id(self, session, known=()):
            found = super().current_snapshot_id(session, known)
            if found != first and not self.expired:
                self.expired += [first, found]
                add(session, self.name, 20, 30)
                expire(session, self.name, self.expired)
            return found

    lane, ranges = TableLedger(Table(table), lambda: spark), [OffsetRange(*TP, 10, 20)]
    entry = lane.record(ranges, {}, TableVersion(spark, first))
    add(spark, table, 10, 20)  # as these ranges' write
    lane.read([TP])
    assert Table.expired
    entry.mark_committed()
    assert lane.read([TP])[TP] == LedgerEntry(unknown=ALL_OFFSETS), "nobody can tell"


def test_what_is_believed_is_no_word_of_what_was_written_since(spark, table):
    """A process takes the commit logs' record for an expired history; it knows nothing of what expires later.

    Else it told, as all there is, what lacked its own write that was on its way, or another process's.
    """
    first = put(spark, TableLedger(IcebergTable(table), lambda: spark), 0, 10)
    known = add(spark, table, 10, 20)
    expire(spark, table, [first])
    lane, ranges = TableLedger(IcebergTable(table), lambda: spark), [OffsetRange(*TP, 20, 30)]
    assert not lane.read([TP])[TP].is_complete
    lane.assume_written({TP: LedgerEntry((Span(0, 20),))})
    assert lane.read([TP])[TP] == LedgerEntry((Span(0, 20),))
    entry = lane.record(ranges, {}, TableVersion(spark, known))
    landed = add(spark, table, 20, 30)  # as these ranges' write
    add(spark, table, 30, 30)
    expire(spark, table, [known, landed])
    assert lane.read([TP])[TP] == LedgerEntry(unknown=ALL_OFFSETS), "nobody can tell"
    entry.mark_committed()
    assert lane.read([TP])[TP] == LedgerEntry(unknown=ALL_OFFSETS), (
        "nor was it told as of a snapshot that is there"
    )


def test_a_look_reads_the_history_only_where_somebody_has_written_since(services, spark, table, monkeypatch):
    """The sensor's looks: of a table that is at rest each is one question.

    One that was set back says what it has.
    """
    read = []
    monkeypatch.setattr(
        ledger, "latest_summaries", lambda *asked: read.append(asked) or latest_summaries(*asked)
    )

    def looked():
        return TableLedgerReader(table, spark_at(services.spark_remote)).read([TP])[TP].written

    writer = TableLedger(IcebergTable(table), lambda: spark)
    first = put(spark, writer, 0, 10)
    del read[:]
    assert [looked() for _ in range(3)] == [(Span(0, 10),)] * 3
    assert len(read) == 1
    put(spark, writer, 10, 20)
    del read[:]
    assert [looked() for _ in range(2)] == [(Span(0, 20),)] * 2
    assert len(read) == 1
    set_back(spark, table, first, [])
    assert looked() == (Span(0, 10),)
