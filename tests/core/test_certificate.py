"""What is certified and what is not: each row is one state of the witnesses, and says why."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_liveness_dagster.audit.certificate import (
    SPAN_FINDINGS,
    GroupCertificate,
    PartitionCertificate,
    format_spans,
)
from kafka_liveness_dagster.audit.overlaps import find_overlaps
from kafka_liveness_dagster.audit.rows import OffsetRun, RowComparison, merge_dense
from kafka_liveness_dagster.core.commit_metadata import (
    CatchUpCommitMetadata,
    ExternalCommit,
    GroupOrigin,
    LiveCommitMetadata,
    OwnerState,
)
from kafka_liveness_dagster.core.ledger import (
    ALL_OFFSETS,
    LedgerEntry,
    UnknownLedgerFormatError,
    encode_entries,
)
from kafka_liveness_dagster.core.offsets import Span, TopicPartition, difference, size, union
from kafka_liveness_dagster.core.partition_state import PartitionState
from kafka_liveness_dagster.core.sink_ledger import LedgerCommit

ORDERS = TopicPartition("orders", 3)
ORIGIN = GroupOrigin(0, "a")
OURS = LiveCommitMetadata(OwnerState.RELEASED, "0badcafe", origin=ORIGIN)
OWING = replace(OURS, pending=(Span(70, 120),))
WHOLE = LedgerEntry((Span(0, 120),), first_offset=0, topic_id="a")
UNTIL_70 = replace(WHOLE, written=(Span(0, 70),))
SECOND = CatchUpCommitMetadata(origin=ORIGIN, target="lake.shop.orders")
UNKNOWN = LedgerEntry(unknown=ALL_OFFSETS)


def facts(committed=120, mark=OURS, account=WHOLE, *, log_start=0, log_end=120, second=SECOND, topic_id="a"):
    return PartitionState(
        committed,
        mark,
        log_start,
        log_end=log_end,
        catch_up_log=second,
        ledger_entry=account,
        topic_id=topic_id,
    )


def certificate(*args, external=None, rows=None, **kwargs):
    state = replace(facts(*args, **kwargs), external_live_commit=external)
    return PartitionCertificate(ORDERS, state, rows=rows)


REPLACED = "an external commit replaced the catch-up commit log (offset 120, metadata '')"
EXPIRED = "the table's history of these offsets expired"
ONCE = "every offset from 0 to 120 is in the table once"
CERTIFIED = {
    "all of it": (certificate(), ONCE),
    "owed": (certificate(mark=OWING, account=UNTIL_70), f"{ONCE}, except 50 pending (70-120)"),
    "owed and dead": (
        certificate(mark=OWING, account=UNTIL_70, log_start=100),
        f"{ONCE}, except 50 pending (70-120, 30 of them expired at the broker)",
    ),
    "owed and lost": (
        certificate(
            mark=replace(OURS, pending=(Span(70, 100),)),
            account=UNTIL_70,
            second=replace(SECOND, written_off=(Span(100, 120),)),
        ),
        f"{ONCE}, except 30 pending (70-100) and 20 written off (100-120)",
    ),
    "lost, as the table alone says": (
        certificate(account=replace(UNTIL_70, written_off=(Span(70, 120),))),
        f"{ONCE}, except 50 written off (70-120)",
    ),
    "told as lost, but there after all": (
        certificate(second=replace(SECOND, written_off=(Span(70, 120),))),
        ONCE,
    ),
    "drained, and the live commit log has not dropped it yet": (certificate(mark=OWING), ONCE),
    "to be processed again, though it is there": (
        certificate(mark=replace(OURS, pending=(Span(70, 120),), reprocess=Span(70, 120))),
        f"{ONCE}, except 50 pending (70-120)",
    ),
    "a stranger's commit, but the table has it all": (certificate(mark=None), ONCE),
    "another program's metadata, but the table has it all": (
        certificate(mark=None, external=ExternalCommit("first", 120, "theirs")),
        f"{ONCE}; another client committed the metadata 'theirs'",
    ),
    "an external commit in the catch-up commit log": (
        certificate(second=CatchUpCommitMetadata(external=ExternalCommit("second", 120, ""))),
        f"{ONCE}; {REPLACED}, which the next run rewrites",
    ),
    "a newer version's catch-up commit log": (
        certificate(second=CatchUpCommitMetadata(external=ExternalCommit("second", 120, "kl3 done"))),
        f"{ONCE}; a newer version replaced the catch-up commit log (offset 120, metadata 'kl3 done')",
    ),
    "its history was expired": (
        certificate(account=UNKNOWN),
        f"{ONCE}; 0-120 is recorded by the commit logs alone: {EXPIRED}",
    ),
    "its history was expired, and it owes": (
        certificate(mark=OWING, account=UNKNOWN),
        f"{ONCE}, except 50 pending (70-120); 0-70 is recorded by the commit logs alone: {EXPIRED}",
    ),
    "written, and not committed yet": (
        certificate(committed=70),
        "every offset from 0 to 70 is in the table once; the table already has 70-120, above the commit",
    ),
    "expired unread": (
        certificate(committed=70, account=UNTIL_70, log_start=100),
        "every offset from 0 to 70 is in the table once; 70-100 expired before the group read it",
    ),
    "an empty partition": (
        certificate(committed=0, account=LedgerEntry(), log_end=0, topic_id=""),
        "nothing is committed above 0",
    ),
    "a partition that was added": (
        certificate(None, None, LedgerEntry(), second=CatchUpCommitMetadata(), log_end=7),
        "nothing is committed yet",
    ),
    "a sink": (
        certificate(mark=OWING, account=None),
        "according to both commit logs, every offset from 0 to 120 is processed, except 50 pending (70-120)",
    ),
    "a sink, of a lane that could not ask": (
        certificate(mark=replace(OURS, origin=None), account=None, second=replace(SECOND, target=None)),
        "according to both commit logs, every offset from 0 to 120 is processed",
    ),
}
NOT_CERTIFIED = {
    "forgotten": (
        certificate(mark=None, account=UNTIL_70),
        "50 offsets missing (70-120): an external commit removed the record that they are pending. Fix",
    ),
    "forgotten, where the table cannot tell": (
        certificate(mark=None, account=UNKNOWN),
        (
            "120 offsets missing (0-120): an external commit removed the record that they are pending, and "
            "the table has no record"
        ),
    ),
    "forgotten, where there is no table": (
        certificate(mark=None, account=None),
        (
            "120 offsets missing (0-120): an external commit removed the record that they are pending, and "
            "the table has no record"
        ),
    ),
    "lost by the table": (
        certificate(account=UNTIL_70),
        "(70-120): they were committed after their rows were written",
    ),
    "a table that is gone": (
        certificate(account=LedgerEntry()),
        "120 offsets missing (0-120): they were committed",
    ),
    "made anew": (certificate(topic_id="b"), "Topic orders was deleted and created again"),
    "made anew, and committed no more": (
        certificate(None, None, second=CatchUpCommitMetadata(), topic_id="b"),
        "created again",
    ),
    "beyond the log end": (certificate(log_end=100), "committed at 120 but its log ends at 100"),
    "its offsets were deleted": (
        certificate(None, None),
        "No offset is committed, but the group began at 0 and the table has 0-120",
    ),
    "nobody says where it began": (
        certificate(mark=replace(OURS, origin=None), account=LedgerEntry(), second=CatchUpCommitMetadata()),
        "The group's start on this log is not recorded",
    ),
    "rows outside": (
        certificate(rows=RowComparison(9, outside=(OffsetRun(130, 131, 1), OffsetRun(200, 300, 5)))),
        "Rows of 6 offsets (130-131, 5 within 200-300) are not recorded as done",
    ),
    "rows without records": (
        certificate(rows=RowComparison(9, unrecorded=(OffsetRun(5, 6, 1),))),
        "Rows of 1 offset (5-6) have no record in the topic",
    ),
}


@pytest.mark.parametrize(("found", "says"), CERTIFIED.values(), ids=CERTIFIED)
def test_what_is_accounted_for_is_certified(found, says):
    """With everything that is excepted, by name."""
    assert (found.is_certified, found.verdict) == (True, says)


@pytest.mark.parametrize(("found", "says"), NOT_CERTIFIED.values(), ids=NOT_CERTIFIED)
def test_what_is_not_accounted_for_is_not_certified(found, says):
    """And it is said why, with the numbers."""
    assert not found.is_certified
    assert found.verdict.startswith("NOT certified: ")
    assert says in found.verdict


@pytest.mark.parametrize(
    "found",
    [found for found, _ in (*CERTIFIED.values(), *NOT_CERTIFIED.values())],
    ids=[*CERTIFIED, *NOT_CERTIFIED],
)
def test_every_offset_of_its_life_is_in_one_place(found):
    """In the table, by the commits' word, owed, lost or missing.

    Nothing is left over, and nothing there twice.
    """
    if found.state.committed is None:
        return
    parts = (found.in_table, found.by_commits_only, found.pending, found.written_off, found.missing_rows)
    assert union(span for part in parts for span in part) == found.certified_range
    assert sum(map(size, parts)) == size(found.certified_range)
    assert not difference(found.in_table, found.done)


def test_what_rows_say_besides_is_told():
    """Dropped by the transform, equal twice, compacted away: known, and no fault."""
    seen = RowComparison(
        1_000, unrecorded=(OffsetRun(1, 2, 1),), without_rows=(OffsetRun(7, 8, 1),),
        doubled=(OffsetRun(5, 6, 1),), compacted=True,
    )  # fmt: skip
    assert certificate(rows=seen).verdict == (
        f"{ONCE}; 1,000 rows were compared; no row for the record of 1 offset (7-8); rows of 1 offset (5-6) "
        "are equal in every column; rows of 1 offset (1-2) have no record any more: the topic is compacted"
    )
    assert certificate(rows=RowComparison(3)).verdict == f"{ONCE}; 3 rows were compared"


def test_stretches_join_where_nothing_is_between():
    """A stretch that is not full stays apart, or a finding would seem larger than it is."""
    full = [OffsetRun(10, 20, 10), OffsetRun(20, 30, 10)]
    assert merge_dense(reversed(full)) == (OffsetRun(10, 30, 20),)
    assert merge_dense([OffsetRun(0, 10, 3), *full, OffsetRun(31, 32, 1)]) == (
        OffsetRun(0, 10, 3),
        OffsetRun(10, 30, 20),
        OffsetRun(31, 32, 1),
    )
    many = RowComparison(outside=tuple(OffsetRun(2 * n, 2 * n + 1, 1) for n in range(8)))
    assert "8 offsets (0-1, 2-3, 4-5, 6-7, 8-9, 10-11 and 2 more stretches)" in next(many.faults())


def history(*texts):
    return [
        LedgerCommit(number, "", "overwrite", added_rows=0, deleted_rows=0, text=text)
        for number, text in enumerate(texts)
    ]


def test_what_several_snapshots_wrote_is_told():
    """Of each partition, once; what only touches is no overlap, and neither is what was told without rows."""
    told = [
        "orders/a 3@0:0-70",
        "orders/a 3@0:70-120 4:!0-9",
        "",
        "orders/a 3@0:60-80 4@0:0-5",
        "orders/a 3:60-65,110-130",
    ]
    assert find_overlaps(history(*told)) == {ORDERS: (Span(60, 80), Span(110, 120))}
    assert find_overlaps(history(told[0], "other/ 3:0-70")) == {}, "another topic"
    assert find_overlaps(history(*told[:3])) == {}


@given(
    st.dictionaries(
        st.builds(TopicPartition, st.sampled_from(["orders", "a.b-c_1"]), st.integers(0, 300)),
        st.lists(
            st.builds(lambda start, n: Span(start, start + n), st.integers(0, 10**9), st.integers(1, 9)),
            max_size=3,
        ),
        max_size=150,
    )
)
def test_a_history_is_scanned_as_it_is_decoded(spans):
    """Written twice, everything of any text is an overlap: the quick way finds what the exact one does."""
    accounts = {tp: LedgerEntry(union(done), (Span(3, 4),), 0, topic_id="a-_") for tp, done in spans.items()}
    (write,) = history(encode_entries(accounts))
    wrote = {tp: done for tp, done in write.written.items() if done}
    assert wrote == {tp: account.written for tp, account in accounts.items() if account.written}
    assert find_overlaps([write, write]) == wrote


@pytest.mark.parametrize(
    "text",
    [
        "orders/a 3:5",
        "orders/a 3:5-6-7",
        "orders/a 3:5-",
        "z:!",
        "their own words",
        "3:5-6",
        "orders/a 3:6-5",
        f"orders/a 3:5-{2**63}",
        f"orders/a {2**31}:5-6",
        f"orders/a {'9' * 5_000}:5-6",
    ],
)
def test_a_newer_versions_history_is_not_understood(text):
    """And not guessed at."""
    with pytest.raises(UnknownLedgerFormatError, match="unknown format"):
        find_overlaps(history(text))


def group(*partitions, is_table=True):
    target = "lake.shop.orders" if is_table else "ParquetSink"
    return GroupCertificate("etl", target, is_table, snapshot_id=1, partitions=partitions)


def test_the_group_is_certified_when_all_its_partitions_are():
    """In one sentence, with what is excepted; else with the first that is not."""
    well, owing = certificate(), certificate(mark=OWING, account=UNTIL_70)
    lost = certificate(account=replace(UNTIL_70, written_off=(Span(70, 120),)))
    begin = "certified: group etl, table lake.shop.orders: every committed offset of"
    assert group(well).verdict == f"{begin} 1 partition is in the table once, 120 in all"
    assert group(certificate(account=UNKNOWN)).verdict == (
        f"{begin} 1 partition is in the table once, 120 in all; 120 of them by the commit logs alone, since "
        "the history expired"
    ), "the table proves none of them"
    assert group(well, owing, lost).verdict == (
        f"{begin} 3 partitions is in the table once, 260 in all, except 50 pending (p3:orders:70-120) and 50 "
        "written off (p3:orders:70-120)"
    )
    seen = certificate(rows=RowComparison(90, without_rows=(OffsetRun(0, 120, 30),)))
    assert group(well, seen).verdict.endswith("once, 240 in all; 30 of them have a record, but no row")
    failed = group(well, certificate(account=UNTIL_70))
    assert not failed.is_certified
    assert failed.verdict.startswith(
        "NOT certified: group etl, table lake.shop.orders: 1 of 2 partitions. orders:3: 50 offsets missing "
        "(70-120)"
    )


def test_of_a_sink_only_both_logs_are_certified():
    """Nobody looked at what it holds, and the sentence does not say so."""
    assert group(certificate(account=None), is_table=False).verdict == (
        "certified: group etl, sink ParquetSink: every committed offset of 1 partition is processed "
        "according to both commit logs, 120 in all"
    )


def test_a_sentence_names_few_ranges():
    """Five, and how many more there are."""
    spans = [Span(n, n + 1) for n in range(0, 14, 2)]
    assert format_spans(spans) == "0-1, 2-3, 4-5, 6-7, 8-9 and 2 more"
    assert format_spans([]) == "nothing"


def test_a_topic_that_another_group_wrote_too_is_not_certified():
    """Each group's rows may have taken the place of the other group's."""
    shared = replace(WHOLE, groups=frozenset({"orders-etl", "orders-test"}))
    found = replace(certificate(account=shared), group_id="orders-etl")
    assert not found.is_certified
    assert "NOT certified: Group orders-test wrote rows of topic orders to this table too" in found.verdict
    assert replace(found, state=facts(account=replace(WHOLE, groups=frozenset({"orders-etl"})))).is_certified


def test_each_finding_is_a_property_that_the_page_explains():
    """A row of the table without one of both would be a key that nobody understands."""
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    fields = {field.name for field in dataclasses.fields(PartitionCertificate)}
    for one in SPAN_FINDINGS:
        assert one.attribute in fields or hasattr(PartitionCertificate, one.attribute)
        assert f"`{one.key}`" in page, one.key
