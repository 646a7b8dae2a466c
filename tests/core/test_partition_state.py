"""Whose word counts?

Both commit logs, the last commit's own, and the table: what is proven, forgotten, or lost.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_liveness_dagster.core.commit_metadata import (
    CatchUpCommitMetadata,
    ExternalCommit,
    GroupOrigin,
    LiveCommitMetadata,
    OwnerState,
)
from kafka_liveness_dagster.core.ledger import LedgerEntry
from kafka_liveness_dagster.core.offsets import (
    MAX_OFFSET,
    OffsetRange,
    Span,
    TopicPartition,
    difference,
    intersection,
    union,
)
from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
from kafka_liveness_dagster.core.partition_state import (
    GroupMismatchError,
    PartitionState,
    RowsMissingError,
    TableMismatchError,
    TopicRecreatedError,
    check_groups,
    check_identity,
    check_target,
    rebuild_catch_up_log,
)
from kafka_liveness_dagster.core.resume import ResumeDecision, ResumePolicy, decide_resume, pending_to_keep
from kafka_liveness_dagster.core.timeouts import BrokerLimits

TP, RUN, ID = TopicPartition("orders", 3), "0badcafe", "2Mq71qnKT1ul7FBvra2xew"
BEGUN = GroupOrigin(0, ID)
OURS = CatchUpCommitMetadata(origin=BEGUN, target="lake.shop.orders")
PARALLEL, OWE = ResumePolicy(enable_parallel_rebalance=True), ResumePolicy(on_missing_rows="crash_lag")
SPANS = st.lists(st.builds(Span, st.integers(0, 60), st.integers(0, 60)), max_size=4).map(union)


def spans(*pairs):
    return tuple(Span(*pair) for pair in pairs)


def mark(*owed, kind=OwnerState.RELEASED, origin=BEGUN, again=None):
    return LiveCommitMetadata(kind, RUN, spans(*owed), reprocess=again and Span(*again), origin=origin)


ALL, EXCEPT_80_90 = [(0, MAX_OFFSET)], [(0, 80), (90, MAX_OFFSET)]


def account(*done, told=(), start=0, unknown=()):
    return LedgerEntry(
        spans(*done),
        spans(*told),
        start,
        topic_id=ID,
        unknown=spans(*unknown),
    )


def facts(committed, last, table, *, second=OURS, log=(0, 120), **more):
    """One partition, of the topic whose id everybody knows."""
    return PartitionState(
        committed, last, log[0], log_end=log[1], catch_up_log=second, ledger_entry=table, topic_id=ID, **more
    )


EXTERNAL = CatchUpCommitMetadata(external=ExternalCommit("second", 10**6, ""))  # kcat in G.catch-up
FORGOTTEN = facts(120, None, account((0, 70)))  # a stranger's commit at 120


@pytest.mark.parametrize(
    ("found", "outstanding", "missing"),
    [
        pytest.param(facts(None, None, None), [], [], id="nothing is committed"),
        pytest.param(facts(120, mark((70, 100)), None), [(70, 100)], [], id="no table: by the commit logs"),
        pytest.param(
            facts(120, mark((70, 100)), account((0, 120))),
            [(70, 100)],
            [],
            id="in the table, not recorded yet",
        ),
        pytest.param(
            facts(120, mark((70, 100)), account((0, 50))), [(70, 100)], [(50, 70), (100, 120)], id="lost"
        ),
        pytest.param(FORGOTTEN, [(70, 120)], [], id="forgotten by another client's commit, and owed again"),
        pytest.param(
            facts(120, mark(), account((100, 120), unknown=EXCEPT_80_90)),
            [],
            [(80, 90)],
            id="lost: the table cannot tell all, and was rolled back",
        ),
        pytest.param(
            facts(
                120,
                mark((70, 100)),
                account((100, 120), unknown=EXCEPT_80_90),
                second=replace(OURS, watermark=120),
            ),
            [(80, 90)],
            [],
            id="recorded as caught up, and rolled back",
        ),
        pytest.param(
            facts(
                120,
                mark(origin=GroupOrigin(85, ID)),
                account(unknown=EXCEPT_80_90, start=85),
            ),
            [],
            [(85, 90)],
            id="lost: only the group's own offsets",
        ),
    ],
)
def test_the_snapshot_of_a_partition_has_what_is_pending(found, outstanding, missing):
    """Crash lag and what the table has lost, apart and together; both lie below the live commit log."""
    seen = PartitionSnapshot.from_state(TP, found)
    assert (seen.outstanding, seen.missing_rows) == (spans(*outstanding), spans(*missing)), "pending or lost"
    assert seen.pending == union((*seen.outstanding, *seen.missing_rows))
    assert (seen.committed, seen.log_start, seen.log_end) == (found.committed, 0, 120)


@pytest.mark.parametrize(
    ("found", "asked", "left"),
    [
        pytest.param(FORGOTTEN, [(70, 120)], [(70, 120)], id="nobody remembers it: not done for that"),
        pytest.param(facts(120, mark(), account((0, 120))), [(70, 120)], [], id="the table has it"),
        pytest.param(
            facts(120, mark((70, 120)), account((0, 100))), [(70, 120)], [(100, 120)], id="half of it landed"
        ),
        pytest.param(
            facts(120, mark(), account((0, 70)), second=CatchUpCommitMetadata(120, origin=BEGUN, target="t")),
            [(70, 120)],
            [(70, 120)],
            id="the catch-up commit log says so, and the table was rolled back since",
        ),
        pytest.param(facts(120, mark(), account((0, 70), told=[(70, 120)])), [(70, 120)], [], id="forgiven"),
        pytest.param(
            facts(
                120,
                mark(),
                account((0, 70), unknown=ALL),
                second=replace(OURS, watermark=120, missing=spans((70, 80))),
            ),
            [(60, 120)],
            [(70, 80)],
            id="the table cannot tell, and an earlier run found rows missing",
        ),
        pytest.param(
            facts(120, mark((70, 120)), account((50, 70), unknown=ALL)),
            [(0, 120)],
            [(70, 120)],
            id="the table cannot tell: our own commit vouches for what it does not owe",
        ),
        pytest.param(
            facts(120, None, account((50, 70), unknown=ALL)),
            [(0, 120)],
            [(0, 50), (70, 120)],
            id="a stranger's does not",
        ),
        pytest.param(
            facts(120, LiveCommitMetadata(OwnerState.RELEASED, RUN), None),
            [(0, 120)],
            [],
            id="no table: the commit logs' word",
        ),
        pytest.param(
            facts(
                120,
                LiveCommitMetadata(OwnerState.RELEASED, RUN),
                None,
                second=CatchUpCommitMetadata(origin=GroupOrigin(50)),
            ),
            [(0, 120)],
            [(0, 50)],
            id="no table: since the group began",
        ),
        pytest.param(
            facts(
                120,
                mark((30, 120), again=(0, 120)),
                account((0, 120)),
                second=CatchUpCommitMetadata(90, origin=BEGUN, target="t"),
            ),
            [(0, 120)],
            [(90, 120)],
            id="set back on purpose: what is in the table is done anew",
        ),
        pytest.param(
            facts(200, mark((70, 120), origin=GroupOrigin(150, ID)), account((150, 200), start=150)),
            [(70, 120), (150, 180)],
            [(70, 120)],
            id="what was owed before there was a ledger is the logs' to tell",
        ),
    ],
)
def test_what_is_not_proven_done_is_left(found, asked, left):
    """An offset is done because a witness says so."""
    assert found.not_done(spans(*asked)) == spans(*left), "is not proven done"


@pytest.mark.parametrize(
    ("found", "judged"),
    [
        pytest.param(facts(200, mark(), account((60, 200))), [(30, 50)], id="told"),
        pytest.param(
            facts(200, mark(origin=GroupOrigin(60, ID)), account((60, 200), start=60)), [], id="older"
        ),
        pytest.param(facts(200, mark(), account((60, 200), unknown=ALL)), [], id="the table cannot tell"),
        pytest.param(facts(200, mark(), None), [], id="no table"),
    ],
)
def test_of_what_the_word_of_the_table_counts(found, judged):
    """The commits that vouched for 30-50 were replaced; those that replaced them vouch for nothing so old."""
    assert intersection(spans((30, 50)), found.ledger_scope) == spans(*judged)


@pytest.mark.parametrize(
    ("found", "missing"),
    [
        pytest.param(FORGOTTEN, [(70, 120)], id="forgotten"),
        pytest.param(facts(120, mark((70, 120)), account((0, 70))), [], id="owed"),
        pytest.param(facts(120, mark(), account((0, 50))), [(50, 120)], id="lost by the table"),
        pytest.param(facts(120, mark(), account((0, 50), unknown=ALL)), [], id="a table that cannot tell"),
        pytest.param(facts(120, mark(), None), [], id="no table"),
        pytest.param(
            facts(
                120,
                LiveCommitMetadata(OwnerState.RELEASED, RUN),
                LedgerEntry(),
                second=CatchUpCommitMetadata(),
            ),
            [],
            id="of before there was a ledger",
        ),
        pytest.param(
            facts(
                120,
                LiveCommitMetadata(OwnerState.RELEASED, RUN),
                LedgerEntry(),
                second=CatchUpCommitMetadata(origin=BEGUN),
            ),
            [],
            id="of a lane that could not ask the table",
        ),
        pytest.param(
            facts(120, None, account((0, 70)), remembered_pending=spans((70, 120))),
            [],
            id="remembered by its owner",
        ),
    ],
)
def test_what_is_neither_in_the_table_nor_owed(found, missing):
    """Within the group's life, below the committed offset."""
    assert found.missing_rows(found.committed) == spans(*missing)


def test_what_was_forgotten_is_owed_in_the_commit_with_which_the_live_lane_goes_on():
    """Position and debt are one write."""
    answer = decide_resume(TP, FORGOTTEN, ResumePolicy())
    assert (answer.position, answer.pending, answer.forgotten_pending) == (
        120,
        spans((70, 120)),
        spans((70, 120)),
    )


def test_what_the_table_has_lost_is_an_error_unless_it_may_be_owed():
    """The error has what is missing, how much of it the broker has, and the remedy."""
    found = facts(120, mark(), account((0, 50)), log=(80, 120))
    with pytest.raises(
        RowsMissingError,
        match=r"lacks p3:orders:50-120, 70 offsets .*still has 40.*on_missing_rows='crash_lag'",
    ):
        decide_resume(TP, found, ResumePolicy())
    answer = decide_resume(TP, found, OWE)
    assert (answer.pending, answer.lost, answer.catch_up_log.written_off) == (
        spans((80, 120)),
        spans((50, 80)),
        spans((50, 80)),
    )


def test_what_is_missing_after_an_external_commit_in_the_catch_up_log_is_owed_again():
    """The commit may have replaced the only record that the offsets were forgiven, so it proves no loss."""
    found = facts(120, mark(), account((0, 70)), second=EXTERNAL)
    found = replace(found, catch_up_log=rebuild_catch_up_log(found))
    assert (found.is_committed_by_this_package, found.proves_loss) == (True, False)
    answer = decide_resume(TP, found, ResumePolicy())
    assert (answer.pending, answer.forgotten_pending) == (spans((70, 120)), spans((70, 120)))
    seen = PartitionSnapshot.from_state(TP, found)
    assert (seen.outstanding, seen.forgotten_pending, seen.missing_rows) == (
        spans((70, 120)),
        spans((70, 120)),
        (),
    )
    known = replace(found, ledger_entry=account((0, 70), told=[(70, 120)]))
    assert decide_resume(TP, known, ResumePolicy()).pending == (), "this process knows that it was forgiven"


EXPIRED = account((90, 120), unknown=ALL)  # what expired snapshots may have said is not known
FOUND_MISSING = replace(OURS, missing=spans((70, 80), (90, 95)))


def test_rows_that_a_run_found_missing_are_missing_though_the_snapshots_expired():
    """The next run cannot find it in the table; rows that are there again are not missing any more."""
    found = facts(120, mark(), EXPIRED, second=FOUND_MISSING)
    assert facts(120, mark(), EXPIRED).missing_rows(120) == ()
    assert found.missing_rows(120) == spans((70, 80))
    with pytest.raises(RowsMissingError, match="lacks p3:orders:70-80") as raised:
        decide_resume(TP, found, ResumePolicy())
    assert raised.value.ranges == (OffsetRange("orders", 3, 70, 80),)
    answer = decide_resume(TP, found, OWE)
    assert (answer.pending, answer.forgotten_pending, answer.catch_up_log.missing) == (
        spans((70, 80)),
        spans((70, 80)),
        (),
    )
    restored = replace(found, ledger_entry=account((0, 120)))
    assert (
        decide_resume(TP, restored, ResumePolicy()).pending,
        decide_resume(TP, restored, ResumePolicy()).catch_up_log.missing,
    ) == ((), ())
    assert replace(found, ledger_entry=None).missing_rows(120) == (), "a sink that reports nothing"


def test_many_missing_ranges_are_named_by_the_first():
    """An error is for people."""
    many = tuple((n, n + 1) for n in range(0, 20, 2))
    with pytest.raises(RowsMissingError, match="and 5 more"):
        decide_resume(TP, facts(20, mark(), account(*many)), ResumePolicy())


def test_what_was_forgotten_and_expired_stays_owed_or_is_skipped():
    """As it is with every debt: the catch-up lane names it, or it is reported as lost."""
    found = facts(120, None, account((0, 70)), log=(90, 120))
    assert decide_resume(TP, found, ResumePolicy()).pending == spans((70, 120))
    answer = decide_resume(TP, found, ResumePolicy(on_data_loss="write_off"))
    assert (answer.pending, answer.lost) == (spans((90, 120)), spans((70, 90)))


def test_what_cannot_be_owed_is_processed_in_order():
    """No room for the token: back to where it begins, and what lies above is the live lane's again."""
    found = facts(120, None, account((0, 10), (20, 70)), remembered_pending=spans((10, 20)))
    answer = decide_resume(TP, found, ResumePolicy(max_owed_ranges=1))
    assert (answer.position, answer.pending, answer.overflow) == (70, spans((10, 20)), Span(70, 120))


def test_what_is_processed_in_order_is_done_by_no_log():
    """The catch-up commit log had a part of it as done, and the table has lost that too."""
    second = CatchUpCommitMetadata(0, spans((80, 90)), spans((60, 65)), origin=BEGUN, target="t")
    found = facts(120, mark((80, 100)), account((0, 50)), second=second)
    answer = decide_resume(TP, found, replace(OWE, max_owed_ranges=1))
    assert (answer.position, answer.overflow) == (50, Span(50, 120))
    assert (answer.catch_up_log.done, answer.catch_up_log.written_off) == ((), spans((60, 65)))


def test_no_commit_and_latest_owe_what_was_never_read():
    """A group whose offsets expired: a plain consumer would skip what came meanwhile."""
    answer = decide_resume(TP, facts(None, None, account((0, 70))), ResumePolicy(auto_offset_reset="latest"))
    assert (answer.position, answer.pending) == (120, spans((70, 120)))


def test_offsets_that_were_set_back_are_processed_again():
    """Though the table has them: the catch-up commit log is rewritten, and a crash on the way owes them."""
    second = CatchUpCommitMetadata(90, origin=BEGUN, target="t")
    back = decide_resume(TP, facts(0, None, account((0, 120)), second=second), PARALLEL)
    assert (back.position, back.pending, back.reprocess, back.catch_up_log.end) == (0, (), Span(0, 120), 0)
    crashed = facts(
        30, mark(kind=OwnerState.RUNNING, again=(0, 120)), account((0, 120)), second=back.catch_up_log
    )
    answer = decide_resume(TP, crashed, PARALLEL)
    assert (answer.position, answer.pending) == (120, spans((30, 120)))
    done = facts(
        120,
        mark((30, 120), again=(0, 120)),
        account((0, 120)),
        second=CatchUpCommitMetadata(120, origin=BEGUN, target="t"),
    )
    assert decide_resume(TP, done, PARALLEL) == ResumeDecision(120)


def test_what_a_dead_run_had_written_is_not_owed():
    """It is in the table, though its offsets were not committed."""
    answer = decide_resume(TP, facts(70, mark(kind=OwnerState.RUNNING), account((0, 100))), PARALLEL)
    assert (answer.position, answer.skipped, answer.crash_lag) == (120, Span(70, 120), spans((100, 120)))
    assert answer.pending == answer.crash_lag
    assert answer.written_uncommitted == spans((70, 100)), "nobody writes them again"


@pytest.mark.parametrize(
    ("found", "policy", "landed"),
    [
        pytest.param(
            facts(70, mark(kind=OwnerState.RUNNING), account((0, 100))), ResumePolicy(), [], id="in order"
        ),
        pytest.param(
            facts(70, mark(kind=OwnerState.RUNNING), account((0, 120))),
            PARALLEL,
            [],
            id="nothing else is new",
        ),
        pytest.param(facts(70, mark(), account((0, 100))), PARALLEL, [], id="the run left in good order"),
        pytest.param(facts(70, mark(kind=OwnerState.RUNNING), None), PARALLEL, [], id="no table"),
        pytest.param(
            facts(70, mark(kind=OwnerState.RUNNING, again=(0, 90)), account((0, 100))),
            PARALLEL,
            [(90, 100)],
            id="set back",
        ),
        pytest.param(facts(None, None, account((0, 120))), ResumePolicy(), [], id="no commit"),
    ],
)
def test_what_a_dead_run_had_written_comes_again_unless_the_live_lane_skips_it(found, policy, landed):
    """What comes again repeats all side effects of its commit."""
    assert decide_resume(TP, found, policy).written_uncommitted == spans(*landed)


def test_what_a_dead_run_had_written_is_not_lost_when_it_expires():
    """Its rows are there; only what the table lacks is reported as lost."""
    skip = ResumePolicy(on_data_loss="write_off")
    answer = decide_resume(
        TP, facts(70, mark(kind=OwnerState.RUNNING), account((0, 80), (85, 110)), log=(100, 120)), skip
    )
    assert (answer.position, answer.lost, answer.catch_up_log.written_off) == (
        100,
        spans((80, 85)),
        spans((80, 85)),
    )
    assert answer.written_uncommitted == spans((70, 80), (85, 100)), "100-110 comes again"


RECORDED = CatchUpCommitMetadata(90, origin=BEGUN, target="t")


@pytest.mark.parametrize(
    ("found", "unrecorded"),
    [
        pytest.param(
            facts(120, mark((70, 120)), account((0, 110))), [(70, 110)], id="its run died in between"
        ),
        pytest.param(
            facts(120, mark((70, 120)), account((0, 110)), second=RECORDED), [(90, 110)], id="a part of it"
        ),
        pytest.param(
            facts(120, mark((70, 120)), account((0, 110), told=[(80, 120)])), [(70, 80)], id="written off"
        ),
        pytest.param(facts(120, mark(), account((0, 120))), [], id="not owed"),
        pytest.param(facts(120, mark((70, 120)), None), [], id="no table"),
        pytest.param(
            facts(120, mark((70, 120)), account((0, 120)), second=CatchUpCommitMetadata()),
            [],
            id="no catch-up commit log",
        ),
        pytest.param(
            facts(120, mark((70, 120), again=(0, 100)), account((0, 120))),
            [(100, 120)],
            id="set back: it comes again",
        ),
    ],
)
def test_what_only_the_table_has_stays_owed_until_it_is_recorded(found, unrecorded):
    """The live commit log carries it, or no run would know that its writer died."""
    assert found.unrecorded == spans(*unrecorded)
    assert difference(found.unrecorded, pending_to_keep(found)) == ()
    assert found.recordable == found.unrecorded
    seen = PartitionSnapshot.from_state(TP, found)
    assert seen.unprocessed == difference(seen.outstanding, found.unrecorded)


def test_what_the_catch_up_log_has_no_room_for_is_not_owed_for_its_record():
    """It would be owed indefinitely."""
    islands = [(n, n + 1) for n in range(1_000_000, 1_000_900, 3)]
    second = replace(OURS, done=spans(*islands))
    found = facts(1_001_000, mark((0, 1_001_000)), account(*islands, (1_000_900, 1_000_950)), second=second)
    assert found.unrecorded == spans((1_000_900, 1_000_950))
    assert found.recordable == ()
    assert found.unrecorded_of(spans((1_000_900, 1_000_920))) == spans((1_000_900, 1_000_920)), (
        "counted all the same"
    )


def test_what_only_a_record_of_everything_has_room_for_is_recovered_as_a_whole():
    """Else no run of a single partition would ever record it."""
    islands = [(n, n + 1) for n in range(1_000_000, 1_000_900, 3)]
    found = facts(
        1_001_000, mark((0, 1_001_000)), account((0, 1_001_000)), second=replace(OURS, done=spans(*islands))
    )
    assert not found.can_record(spans((1_000_900, 1_000_920)))
    assert found.unrecorded_of(spans((1_000_900, 1_000_920))) == found.unrecorded == found.recordable
    few = facts(120, mark((70, 120)), account((0, 120)))
    assert (few.unrecorded_of(spans((70, 90))), few.unrecorded_of(spans((0, 70)))) == (spans((70, 90)), ())


@pytest.mark.parametrize(
    ("found", "where"),
    [
        pytest.param(
            facts(120, mark(origin=GroupOrigin(0, "old")), None), "the live commit log", id="live commit log"
        ),
        pytest.param(
            facts(120, None, None, second=CatchUpCommitMetadata(origin=GroupOrigin(0, "old"))),
            "the catch-up commit log",
            id="second",
        ),
        pytest.param(
            facts(None, None, LedgerEntry((Span(0, 50),), (), 0, topic_id="old")),
            "the table",
            id="the broker drops both logs",
        ),
    ],
)
def test_a_topic_made_anew_is_known_by_its_id(found, where):
    """However many records it has; with both ids, and the remedy."""
    with pytest.raises(
        TopicRecreatedError, match=f"{where} has offsets of orders:3 with topic id old.*{ID}.*a new table"
    ):
        decide_resume(TP, found, ResumePolicy())


def test_a_group_is_of_one_table():
    """Both tables are named, and what to do in either case; a log without a table is nobody's yet."""
    found = {
        TP: facts(120, mark(), None),
        TopicPartition("orders", 4): facts(None, None, None, second=CatchUpCommitMetadata()),
    }
    check_target("etl", found, "lake.shop.orders")
    with pytest.raises(TableMismatchError, match=r"`kafka-liveness move etl lake.shop.orders_2`") as told:
        check_target("etl", found, "lake.shop.orders_2")
    assert "writes to lake.shop.orders_2, but the commits of group etl name lake.shop.orders (" in str(
        told.value
    )


def test_a_broker_without_topic_ids_changes_nothing():
    """It cannot be told, and the id that is known stays."""
    found = PartitionState(120, mark(), 0, log_end=120, catch_up_log=OURS, ledger_entry=account((0, 120)))
    check_identity(TP, found)
    assert decide_resume(TP, found, ResumePolicy()).origin == BEGUN


def test_a_group_begins_where_it_first_stands():
    """What lies below was never its to process.

    A stranger's commit that nobody can be held against begins anew.
    """
    first = facts(None, None, LedgerEntry(), second=CatchUpCommitMetadata(), log=(40, 120))
    assert decide_resume(TP, first, ResumePolicy()).origin == GroupOrigin(40, ID)
    assert decide_resume(
        TP, facts(100, None, None, second=CatchUpCommitMetadata(30, origin=BEGUN)), ResumePolicy()
    ).origin == GroupOrigin(100, ID)


def test_what_is_done_is_dropped_from_the_live_log_only_with_proof():
    """The table's, where it tells: the catch-up commit log alone would drop what was rolled back."""
    second = CatchUpCommitMetadata(120, origin=BEGUN, target="t")
    assert pending_to_keep(facts(120, mark((70, 120)), account((0, 70)), second=second)) == spans((70, 120))
    assert (
        pending_to_keep(facts(120, mark((70, 120)), account((0, 120)), second=CatchUpCommitMetadata())) == ()
    )


@given(done=SPANS, owed=SPANS, told=SPANS, stranger=st.booleans(), committed=st.integers(0, 60))
def test_nothing_is_missing_in_silence(done, owed, told, stranger, committed):
    """Below the new position each offset is in the table, owed, told, or the answer is an error."""
    owed = tuple(span for span in owed if span.end <= committed)
    last = (
        None if stranger else LiveCommitMetadata(OwnerState.RUNNING, RUN, owed, reprocess=None, origin=BEGUN)
    )
    found = facts(committed, last, LedgerEntry(done, told, 0, topic_id=ID), log=(0, 60))
    answer = decide_resume(
        TP, found, ResumePolicy(enable_parallel_rebalance=True, on_missing_rows="crash_lag")
    )
    assert difference((Span(0, answer.position),), (*done, *told, *answer.pending)) == ()
    assert not difference(found.not_done(answer.pending), answer.pending)


def test_only_a_commit_of_a_lane_with_a_table_vouches_for_rows():
    """A plain consumer of this package commits what it processed, wherever that went."""
    assert facts(120, mark((70, 120)), account((0, 70))).done_by_commit(spans((70, 120))) == spans((0, 70))
    assert facts(120, LiveCommitMetadata(OwnerState.RELEASED, RUN), account((0, 70))).done_by_commit(()) == ()


def test_how_often_the_catch_up_log_is_committed_anew():
    """A quarter of the time the broker keeps it, and an hour at most."""
    assert BrokerLimits(6_000, 60_000).recommit_seconds == 3_600
    assert BrokerLimits(6_000, 60_000, offsets_retention_seconds=120).recommit_seconds == 30


def test_rows_of_another_group_are_refused():
    """Of a group's own rows, of rows without a group and of no table nothing is refused."""
    ours, theirs = (
        replace(account((0, 70)), groups=frozenset({group})) for group in ("orders-etl", "orders test")
    )
    check_groups(
        "orders-etl",
        {TP: ours, TopicPartition("paid", 0): account((0, 70)), TopicPartition("x", 0): None},
        "t",
    )
    with pytest.raises(GroupMismatchError) as refused:
        check_groups("orders-etl", {TP: theirs}, "lake.shop.orders")
    assert str(refused.value) == (
        "lake.shop.orders contains rows of topic orders that group orders test wrote, among them "
        "p3:orders:0-70. Rows of group orders-etl would replace them. This run wrote and committed nothing "
        "more. Fix: give the asset of orders-etl its own table. If orders-etl is the successor of orders "
        "test, end the runs of orders test and run `kafka-liveness adopt orders-etl lake.shop.orders`."
    )
    with pytest.raises(GroupMismatchError, match=r"its own sink\. If orders-etl .* kl\.merge_ledger_texts"):
        check_groups("orders-etl", {TP: theirs}, "DatabaseSink")
    with pytest.raises(GroupMismatchError, match=r"that group orders test wrote\. Rows of"):
        check_groups("orders-etl", {TP: replace(theirs, written=())}, "lake.shop.orders")


# --- an external commit in the catch-up commit log
# -------------------------------------------------------------------


def test_the_catch_up_log_is_rebuilt_from_the_ledger():
    """Rows that are there are done; what was written off stays so.

    The text of the other client does not count.
    """
    table = account((0, 70), (90, 100), told=[(100, 110)])
    log = rebuild_catch_up_log(facts(120, mark((70, 120)), table, second=EXTERNAL))
    assert log == CatchUpCommitMetadata(70, spans((90, 100)), spans((100, 110)))
    assert (log.origin, log.external) == (BEGUN, EXTERNAL.external)
    found = facts(120, mark((70, 120)), table, second=log)
    assert (found.done_in_rebuilt_log, replace(found, catch_up_log=OURS).done_in_rebuilt_log) == (
        spans((90, 100)),
        (),
    )


def test_offsets_to_be_processed_again_are_not_done_in_a_rebuilt_log():
    """The group was reset below them: their rows are in the table, from before."""
    log = rebuild_catch_up_log(
        facts(120, mark((70, 120), again=(70, 100)), account((0, 120)), second=EXTERNAL)
    )
    assert log.outstanding(spans((70, 120))) == spans((70, 100))


NEWER = CatchUpCommitMetadata(external=ExternalCommit("second", 120, "kl3 done @0"))


@pytest.mark.parametrize(
    "log", [OURS, CatchUpCommitMetadata(), CatchUpCommitMetadata(120, origin=BEGUN), NEWER]
)
def test_a_log_of_this_package_is_not_rebuilt(log):
    """Nor one that expired, nor a newer version's, which may have more than the ledger."""
    assert rebuild_catch_up_log(facts(120, mark((70, 120)), account((0, 120)), second=log)) is log


def test_without_a_ledger_nothing_is_rebuilt():
    """And nothing is done: the external commit is above all pending offsets."""
    found = facts(120, mark((70, 120), origin=None), None, second=EXTERNAL)
    assert (rebuild_catch_up_log(found), found.outstanding) == (EXTERNAL, spans((70, 120)))


@given(SPANS, SPANS, SPANS, st.booleans(), st.none() | st.tuples(st.integers(0, 30), st.integers(31, 60)))
def test_a_rebuilt_log_says_what_the_witnesses_say(pending, done, told, complete, again):
    """The two logs alone prove no offset done that they and the ledger together do not."""
    table = account(*done, told=told, unknown=() if complete else ALL)
    before = facts(60, mark(*pending, again=again), table, second=EXTERNAL, log=(0, 60))
    log = rebuild_catch_up_log(before)
    after = facts(60, before.live_metadata, table, second=log, log=(0, 60))
    assert after.outstanding == before.outstanding
    assert facts(60, before.live_metadata, None, second=log, log=(0, 60)).outstanding == before.outstanding
    assert difference(before.outstanding, log.outstanding(before.pending_by_live_log)) == ()


# --- pending offsets that cannot be -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pending", "kept", "ignored"),
    [
        pytest.param([(70, 100)], [(70, 100)], [], id="below the commit"),
        pytest.param(
            [(70, 2**63 - 1)], [(70, 120)], [(120, 2**63 - 1)], id="up to the highest offset there can be"
        ),
        pytest.param([(1_000, 2_000)], [], [(1_000, 2_000)], id="behind the log end"),
        pytest.param([], [], [], id="none"),
    ],
)
def test_offsets_at_or_above_the_commit_are_not_pending(pending, kept, ignored):
    """The live lane comes to them; a partition of what is behind the log end would stay missing for ever."""
    found = facts(120, mark(*pending), account((0, 70)))
    assert (found.pending_by_live_log, found.pending_beyond_commit) == (spans(*kept), spans(*ignored))
    assert intersection(found.outstanding, spans(*ignored)) == ()


def test_nobody_skipped_offsets_of_a_partition_without_a_commit():
    """Pending offsets are below a commit."""
    assert facts(None, None, account()).pending_beyond_commit == ()
