"""The two commit logs of KIP-333.

What is written is read, nothing owed is forgotten, nothing undone is covered.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kafka_liveness_dagster.core.commit_metadata import (
    MAX_METADATA_BYTES,
    CatchUpCommitMetadata,
    ExternalCommit,
    ExternalCommitError,
    GroupOrigin,
    LiveCommitMetadata,
    OwnerState,
    committed_offset,
    external_commit_error,
    fits_commit_metadata,
    pending_before,
)
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import check_group_id
from kafka_liveness_dagster.core.offsets import (
    MAX_OFFSET,
    Span,
    TopicPartition,
    difference,
    intersection,
    union,
)
from kafka_liveness_dagster.core.partition_state import DataExpiredError, PartitionState, TopicRecreatedError
from kafka_liveness_dagster.core.resume import (
    NoCommittedOffsetError,
    ResumeDecision,
    ResumePolicy,
    decide_resume,
)
from kafka_liveness_dagster.core.run_ids import short_run_id

TP = TopicPartition("orders", 3)
RUN = "0badcafe"
PARALLEL = ResumePolicy(enable_parallel_rebalance=True)
IN_ORDER = ResumePolicy()

SPANS = st.lists(st.builds(Span, st.integers(0, 60), st.integers(0, 60)), max_size=6).map(union)
WIDE_SPANS = st.lists(st.builds(Span, st.integers(0, 2**62), st.integers(0, 2**62)), max_size=6).map(union)
MANY_SPANS = st.builds(  # up to 300 spans of 9 to 19 digits: around and beyond what a commit can hold
    lambda at, count, step: tuple(Span(at + 2 * n * step, at + (2 * n + 1) * step) for n in range(count)),
    st.integers(10**8, 2**62),
    st.integers(0, 300),
    st.integers(1, 10**6),
)
ORIGINS = st.builds(
    GroupOrigin, st.integers(0, 2**62), st.from_regex(r"([A-Za-z0-9_-]{22})?", fullmatch=True)
)
RUNS = st.from_regex(r"[0-9a-f]{8}", fullmatch=True)
AGAIN = st.none() | st.builds(
    lambda at, count: Span(at, at + count), st.integers(0, 2**60), st.integers(1, 99)
)
MARKS = st.builds(LiveCommitMetadata, st.sampled_from(OwnerState), RUNS, WIDE_SPANS) | st.builds(
    LiveCommitMetadata, st.sampled_from(OwnerState), RUNS, WIDE_SPANS, reprocess=AGAIN, origin=ORIGINS
)
TEXTS = st.text() | st.from_regex(r"kl1 (running|released|done|paused)[ 0-9a-f,@-]*")


def spans(*pairs):
    """Spans, written as pairs."""
    return tuple(Span(*pair) for pair in pairs)


def offsets(owed):
    """The same as a plain set of integers."""
    return {offset for span in owed for offset in range(span.start, span.end)}


def running(*owed):
    """A first-log mark left behind by an owner at work."""
    return LiveCommitMetadata(OwnerState.RUNNING, RUN, spans(*owed))


def released(*owed):
    """A first-log mark of an owner that gave the partition up."""
    return LiveCommitMetadata(OwnerState.RELEASED, RUN, spans(*owed))


def paused(*owed):
    """A first-log mark of a partition that neither lane may process."""
    return LiveCommitMetadata(OwnerState.PAUSED, RUN, spans(*owed))


# --- the metadata -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        pytest.param(running(), "kl1 running 0badcafe @-", id="at work, nothing owed"),
        pytest.param(
            running((70, 120), (140, 190)), "kl1 running 0badcafe @- 70-120,140-190", id="after two crashes"
        ),
        pytest.param(released((70, 120)), "kl1 released 0badcafe @- 70-120", id="in good order, still owing"),
        pytest.param(paused((70, 120)), "kl1 paused 0badcafe @- 70-120", id="held in both lanes"),
        pytest.param(
            LiveCommitMetadata(
                OwnerState.RUNNING,
                RUN,
                (Span(70, 120),),
                reprocess=Span(0, 120),
                origin=GroupOrigin(0, "2Mq71qnKT1ul7FBvra2xew"),
            ),
            "kl1 running 0badcafe 2Mq71qnKT1ul7FBvra2xew@0 70-120 reprocess 0-120",
            id="of a lane with a table, set back",
        ),
        pytest.param(
            LiveCommitMetadata(OwnerState.RELEASED, RUN, (), reprocess=None, origin=GroupOrigin(5)),
            "kl1 released 0badcafe @5",
            id="a broker without topic ids",
        ),
    ],
)
def test_the_live_logs_text(mark, text):
    """Operators read it with kafka-consumer-groups: the format is a promise."""
    assert (mark.encode(), LiveCommitMetadata.decode(text)) == (text, mark)


@given(MARKS)
def test_a_mark_is_read_back_from_its_text(mark):
    """decode(encode(mark)) == mark."""
    read = LiveCommitMetadata.decode(mark.encode())
    assert (read, read.origin) == (mark, mark.origin)


def test_without_a_table_nothing_is_to_be_done_again():
    """Only the two logs say what is done, and the second one is rewritten."""
    assert (
        LiveCommitMetadata(OwnerState.RUNNING, RUN, (), reprocess=Span(0, 120)).encode()
        == "kl1 running 0badcafe @-"
    )


@given(WIDE_SPANS | MANY_SPANS)
def test_what_fits_fits_under_both_marks(owed):
    """fits(owed) means that no mark of these owed ranges is refused by the broker."""
    sizes = [len(LiveCommitMetadata(mark, RUN, owed).encode().encode()) for mark in OwnerState]
    assert fits_commit_metadata(owed) == (max(sizes) <= MAX_METADATA_BYTES)


def test_debts_that_leave_no_room_for_the_origin_are_written_without_it():
    """A lane without a table may have left them: refused with every start else."""
    many = tuple(Span(10**9 + 20 * n, 10**9 + 20 * n + 10) for n in range(185))
    mark = LiveCommitMetadata(
        OwnerState.RUNNING, RUN, many, reprocess=Span(0, 5), origin=GroupOrigin(0, "2Mq71qnKT1ul7FBvra2xew")
    )
    assert not fits_commit_metadata(many, mark.origin, mark.reprocess)
    assert mark.encode() == LiveCommitMetadata(OwnerState.RUNNING, RUN, many).encode()


def test_a_plain_consumers_commit_has_no_mark():
    """A group taken over from a plain consumer resumes in order: it left no metadata."""
    assert LiveCommitMetadata.decode("") is None


FOREIGN = [
    pytest.param("modified by me", id="another program's"),
    pytest.param("kl2 running 0badcafe @0", id="a newer version's"),
    pytest.param("kl1 running 0badcafe", id="no origin"),
    pytest.param("kl1 running 0badcafe @", id="half an origin"),
    pytest.param("kl1 running 0badcafe @- reprocess 0-120", id="what only a lane with a table writes"),
    pytest.param("kl1 sleeping 0badcafe @-", id="a mark nobody writes"),
    pytest.param("kl1 running 0badcaf @-", id="a run too short"),
    pytest.param("kl1 running 0BADCAFE @-", id="a run in capitals"),
    pytest.param("kl1 running 0badcafe @- 70", id="no end"),
    pytest.param("kl1 running 0badcafe @- 70-120-140", id="two ends"),
    pytest.param("kl1 running 0badcafe @- 70-120,", id="a comma too many"),
    pytest.param("kl1 running 0badcafe @- -", id="no number"),
    pytest.param("kl1 running 0badcafe @- 120-70", id="backwards"),
    pytest.param("kl1 running 0badcafe @- 70-70", id="empty"),
    pytest.param("kl1 running 0badcafe @- 140-190,70-120", id="out of order"),
    pytest.param("kl1 running 0badcafe @- 70-120,100-190", id="overlapping"),
    pytest.param("kl1 running 0badcafe @- 70-120\n", id="a line end"),
    pytest.param("kl1 running 0badcafe @- " + "9" * 5_000 + "-1", id="more digits than Python reads"),
]


@pytest.mark.parametrize("text", FOREIGN)
def test_what_we_did_not_write_is_not_guessed_at(text):
    """Foreign first-log metadata names itself, shortened to a line, and the remedy."""
    with pytest.raises(ExternalCommitError, match="give each program its own group_id") as caught:
        LiveCommitMetadata.decode(text)
    assert repr(text[:40])[1:-1] in str(caught.value)
    assert len(str(caught.value)) < 400


@given(TEXTS)
def test_reading_a_live_log_never_fails_otherwise(text):
    """Any text at all is a mark, no mark, or a ExternalCommitError."""
    try:
        mark = LiveCommitMetadata.decode(text)
    except ExternalCommitError:
        return
    assert (mark is None) == (text == "")


@given(st.none() | st.integers(0, 2**62), TEXTS)
def test_reading_a_catch_up_log_never_fails_otherwise(offset, text):
    """Any offset with any text is a log or a ExternalCommitError; nothing committed is nothing done."""
    try:
        log = CatchUpCommitMetadata.decode(offset, text)
    except ExternalCommitError:
        assert offset is not None
    else:
        assert log.watermark == (offset or 0)
        assert offset is not None or log == CatchUpCommitMetadata()


@given(st.integers(0, 2**62), WIDE_SPANS | MANY_SPANS)
def test_a_done_log_is_read_back_from_its_text(watermark, done):
    """decode(encode(log)) == log as long as it fits.

    What does not fit is forgotten from the top, never invented.
    """
    text = CatchUpCommitMetadata(watermark, done).encode()
    read = CatchUpCommitMetadata.decode(watermark, text)
    assert len(text.encode()) <= MAX_METADATA_BYTES
    assert read == CatchUpCommitMetadata(watermark, done[: len(read.done)])
    if read.done != done:  # not one span more is forgotten than has to be
        assert len(f"{text},{done[len(read.done)]}") > MAX_METADATA_BYTES


@given(MANY_SPANS, MANY_SPANS)
def test_what_was_told_gives_way_last(done, told):
    """What is done is left out from the top, then what was told from the bottom.

    The table's ledger has it by then.
    """
    text = CatchUpCommitMetadata(
        0, done, told, origin=GroupOrigin(0, "id"), target="lake.shop.orders"
    ).encode()
    read = CatchUpCommitMetadata.decode(0, text)
    assert len(text.encode()) <= MAX_METADATA_BYTES
    assert read.done == done[: len(read.done)]
    assert read.written_off == told[len(told) - len(read.written_off) :]
    assert read.written_off == told or not read.done


@given(MANY_SPANS, MANY_SPANS, MANY_SPANS)
def test_no_missing_offset_is_left_out(done, told, missing):
    """Expired snapshots may be all that shows it: rather too many offsets are processed again."""
    text = CatchUpCommitMetadata(
        0, done, told, origin=GroupOrigin(0, "id"), target="lake.shop.orders", missing=missing
    ).encode()
    read = CatchUpCommitMetadata.decode(0, text)
    assert len(text.encode()) <= MAX_METADATA_BYTES
    assert difference(missing, read.missing) == ()
    assert read.missing == missing or not (read.done or read.written_off)


def test_the_catch_up_logs_text():
    """Operators read this one too."""
    assert CatchUpCommitMetadata(120, spans((150, 160))).encode() == "kl1 done @- 150-160"
    assert CatchUpCommitMetadata(120).encode() == "kl1 done @-"
    log = CatchUpCommitMetadata(
        120, spans((150, 160)), spans((30, 40)), origin=GroupOrigin(0, "id"), target="lake.shop.orders"
    )
    assert log.encode() == "kl1 done id@0 150-160 written-off 30-40 target lake.shop.orders"
    assert CatchUpCommitMetadata.decode(120, log.encode()) == log
    assert CatchUpCommitMetadata(120, origin=GroupOrigin(0)).encode() == "kl1 done @0"
    lost = replace(log, missing=spans((40, 50)))
    assert lost.encode() == "kl1 done id@0 150-160 written-off 30-40 missing 40-50 target lake.shop.orders"
    assert CatchUpCommitMetadata.decode(120, lost.encode()) == lost
    assert lost.reopen(spans((40, 45))).missing == spans((45, 50))
    with pytest.raises(ExternalCommitError):
        CatchUpCommitMetadata.decode(120, "kl1 done @- 160-150")
    with pytest.raises(ExternalCommitError):
        CatchUpCommitMetadata.decode(120, "kl1 done @- written-off 30-40")


# --- the catch-up commit log
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "owed", "newly", "after"),
    [
        pytest.param(
            CatchUpCommitMetadata(),
            [(70, 120)],
            [(70, 120)],
            CatchUpCommitMetadata(120),
            id="all done: the watermark is its end",
        ),
        pytest.param(
            CatchUpCommitMetadata(),
            [(70, 120)],
            [(70, 90)],
            CatchUpCommitMetadata(90),
            id="a killed backfill resumes at 90",
        ),
        pytest.param(
            CatchUpCommitMetadata(),
            [(70, 120)],
            [(90, 120)],
            CatchUpCommitMetadata(70, spans((90, 120))),
            id="70 is still owed",
        ),
        pytest.param(
            CatchUpCommitMetadata(),
            [(70, 120), (140, 190)],
            [(140, 190)],
            CatchUpCommitMetadata(70, spans((140, 190))),
            id="the second first",
        ),
        pytest.param(
            CatchUpCommitMetadata(70, spans((140, 190))),
            [(70, 120), (140, 190)],
            [(70, 120)],
            CatchUpCommitMetadata(190),
            id="the first last",
        ),
        pytest.param(
            CatchUpCommitMetadata(),
            [(70, 120), (140, 190)],
            [(70, 120)],
            CatchUpCommitMetadata(140),
            id="120-140 was never owed: pass it",
        ),
        pytest.param(
            CatchUpCommitMetadata(120),
            [(70, 120)],
            [(70, 120)],
            CatchUpCommitMetadata(120),
            id="done twice is done",
        ),
        pytest.param(
            CatchUpCommitMetadata(120), [], [], CatchUpCommitMetadata(120), id="nothing owed moves nothing"
        ),
        pytest.param(
            CatchUpCommitMetadata(190),
            [(70, 120)],
            [(70, 120)],
            CatchUpCommitMetadata(190),
            id="an old backfill sets nothing back",
        ),
    ],
)
def test_record_by_example(log, owed, newly, after):
    """What the catch-up commit log says after a range was done."""
    assert log.mark_done(spans(*owed), spans(*newly)) == after


@given(SPANS, st.lists(SPANS, max_size=6))
def test_the_catch_up_log_never_covers_what_is_not_done(owed, steps):
    """After any history, what is outstanding is exactly owed minus done."""
    log, done = CatchUpCommitMetadata(), set()
    for step in steps:
        newly = intersection(owed, step)
        log, done = log.mark_done(owed, newly), done | offsets(newly)
        assert offsets(log.outstanding(owed)) == offsets(owed) - done


@given(SPANS, st.lists(SPANS, max_size=6))
def test_the_watermark_only_rises_and_stays_within_what_was_owed(owed, steps):
    """Monotonic; never past the end of owed, so a range that comes to be owed meanwhile lies above it."""
    log = CatchUpCommitMetadata()
    for step in steps:
        after = log.mark_done(owed, intersection(owed, step))
        assert log.watermark <= after.watermark <= max((s.end for s in owed), default=0)
        assert all(span.start > after.watermark for span in after.done)
        log = after


@given(
    SPANS,
    st.lists(SPANS, max_size=4).flatmap(lambda parts: st.tuples(st.just(parts), st.permutations(parts))),
)
def test_the_order_of_completion_does_not_matter(owed, histories):
    """The same ranges done in any order leave the same log: backfills finish in any order."""
    logs = []
    for history in histories:
        log = CatchUpCommitMetadata()
        for step in history:
            log = log.mark_done(owed, intersection(owed, step))
        logs.append(log.mark_done(owed, ()))
    assert logs[0] == logs[1]


@given(SPANS, st.lists(SPANS, max_size=4), st.integers(0, 20), st.integers(1, 30))
def test_a_later_crash_is_never_covered_by_an_earlier_backfill(owed, steps, gap, count):
    """A backfill that knows only the old pending ranges leaves a new one above them outstanding entirely."""
    end = max((s.end for s in owed), default=0)
    new = Span(end + gap, end + gap + count)
    log = CatchUpCommitMetadata()
    for step in steps:
        log = log.mark_done(owed, intersection(owed, step))
        assert intersection(log.outstanding((*owed, new)), [new]) == (new,)


@given(SPANS, st.lists(SPANS, max_size=4))
def test_forgetting_what_is_done_in_the_live_log_changes_nothing(owed, steps):
    """The live lane drops done ranges when it is assigned; the backfills that go on agree on what is left."""
    log = CatchUpCommitMetadata()
    for step in steps:
        pruned = log.outstanding(owed)
        log = log.mark_done(pruned, intersection(pruned, step))
        assert log.outstanding(log.outstanding(owed)) == log.outstanding(owed)
        assert offsets(log.outstanding(pruned)) == offsets(pruned) - offsets(step)


@given(SPANS, SPANS)
def test_a_lost_write_costs_rework_and_no_data(owed, done):
    """An older log owes at least what a newer one owes."""
    older = CatchUpCommitMetadata()
    newer = older.mark_done(owed, intersection(owed, done))
    assert not difference(newer.outstanding(owed), older.outstanding(owed))


# --- what an assignment means -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "policy", "answer"),
    [
        pytest.param(
            PartitionState(70, running(), 0, log_end=120),
            PARALLEL,
            ResumeDecision(120, spans((70, 120)), skipped=Span(70, 120)),
            id="KIP-333: committed 70, crashed at 100, log end 120",
        ),
        pytest.param(
            PartitionState(140, running((70, 120)), 0, log_end=190),
            PARALLEL,
            ResumeDecision(190, spans((70, 120), (140, 190)), skipped=Span(140, 190)),
            id="KIP-333: committed 140, crashed again at 170, log end 190",
        ),
        pytest.param(
            PartitionState(140, running((70, 120)), 0, log_end=190, catch_up_log=CatchUpCommitMetadata(120)),
            PARALLEL,
            ResumeDecision(190, spans((140, 190)), skipped=Span(140, 190)),
            id="the second crash after the first was caught up",
        ),
        pytest.param(
            PartitionState(
                140,
                running((70, 120)),
                0,
                log_end=190,
                catch_up_log=CatchUpCommitMetadata(90, spans((100, 110))),
            ),
            PARALLEL,
            ResumeDecision(190, spans((90, 100), (110, 120), (140, 190)), skipped=Span(140, 190)),
            id="the second crash while the first is being caught up",
        ),
        pytest.param(
            PartitionState(120, running((70, 120)), 0, log_end=130),
            PARALLEL,
            ResumeDecision(130, spans((70, 130)), skipped=Span(120, 130)),
            id="crashed again before the first batch: one longer range",
        ),
        pytest.param(
            PartitionState(70, released(), 0, log_end=120),
            PARALLEL,
            ResumeDecision(70),
            id="released: a handover is not a crash, its backlog comes in order",
        ),
        pytest.param(
            PartitionState(140, released((70, 120)), 0, log_end=190),
            PARALLEL,
            ResumeDecision(140, spans((70, 120))),
            id="released: what was owed stays owed",
        ),
        pytest.param(
            PartitionState(70, running(), 0, log_end=120),
            IN_ORDER,
            ResumeDecision(70),
            id="mode off: in order, as Kafka does",
        ),
        pytest.param(
            PartitionState(140, running((70, 120)), 0, log_end=190),
            IN_ORDER,
            ResumeDecision(140, spans((70, 120))),
            id="mode switched off: no new jump, the old debt stays",
        ),
        pytest.param(
            PartitionState(70, None, 0, log_end=120),
            PARALLEL,
            ResumeDecision(70),
            id="a plain consumer's commit: in order",
        ),
        pytest.param(
            PartitionState(70, running(), 0, log_end=120),
            ResumePolicy(enable_parallel_rebalance=True, min_crash_lag=51),
            ResumeDecision(70),
            id="lag 50 < min_crash_lag 51: not worth a backfill",
        ),
        pytest.param(
            PartitionState(70, running(), 0, log_end=120),
            ResumePolicy(enable_parallel_rebalance=True, min_crash_lag=50),
            ResumeDecision(120, spans((70, 120)), skipped=Span(70, 120)),
            id="lag 50 = min_crash_lag 50: skipped",
        ),
        pytest.param(
            PartitionState(70, running(), 0, log_end=70),
            PARALLEL,
            ResumeDecision(70),
            id="crashed with nothing to do",
        ),
        pytest.param(
            PartitionState(70, running(), 0, log_end=70),
            ResumePolicy(enable_parallel_rebalance=True, min_crash_lag=0),
            ResumeDecision(70),
            id="min_crash_lag 0: an empty range is owed by nobody",
        ),
        pytest.param(
            PartitionState(70, running(), 70, log_end=120),
            PARALLEL,
            ResumeDecision(120, spans((70, 120)), skipped=Span(70, 120)),
            id="committed at the log start: nothing expired yet",
        ),
        pytest.param(
            PartitionState(None, None, 5, log_end=120), PARALLEL, ResumeDecision(5), id="no commit, earliest"
        ),
        pytest.param(
            PartitionState(None, None, 5, log_end=120),
            ResumePolicy(auto_offset_reset="latest"),
            ResumeDecision(120),
            id="no commit, latest: a number, read once",
        ),
    ],
)
def test_resume_by_example(facts, policy, answer):
    """Where the live lane goes on, what it owes, what it skipped."""
    assert decide_resume(TP, facts, policy) == answer


@pytest.mark.parametrize(
    ("facts", "policy", "error", "words"),
    [
        pytest.param(
            PartitionState(None, None, 5, log_end=120),
            ResumePolicy(auto_offset_reset="error"),
            NoCommittedOffsetError,
            "orders:3 has no committed offset.* Its log is 5-120",
            id="no commit, error",
        ),
        pytest.param(
            PartitionState(70, running(), 100, log_end=120),
            PARALLEL,
            DataExpiredError,
            "committed at 70 but its log starts at 100: 30 offsets were deleted.*retention",
            id="retention was faster",
        ),
        pytest.param(
            PartitionState(70, released(), 0, log_end=69),
            IN_ORDER,
            TopicRecreatedError,
            "committed at 70 but its log ends at 69.*reset-offsets",
            id="another topic of the same name",
        ),
        pytest.param(
            PartitionState(70, running(), 0, log_end=0),
            PARALLEL,
            TopicRecreatedError,
            "ends at 0",
            id="recreated and empty",
        ),
    ],
)
def test_a_log_that_is_not_where_it_was_left_is_an_error(facts, policy, error, words):
    """Nothing is skipped or replayed by guess: the error has both offsets and the remedy."""
    with pytest.raises(error, match=f"(?s){words}"):
        decide_resume(TP, facts, policy)


def test_a_token_that_does_not_fit_is_not_half_written():
    """Owed ranges beyond 4,095 bytes.

    Resume in order, owe what was owed, and say what could not be skipped.
    """
    many = tuple(Span(10**9 + 20 * n, 10**9 + 20 * n + 10) for n in range(185))
    assert fits_commit_metadata(many)  # 22 + 185 * 22 - 1 = 4,091 bytes
    lag = Span(many[-1].end + 10, many[-1].end + 60)
    facts = PartitionState(lag.start, LiveCommitMetadata(OwnerState.RUNNING, RUN, many), 0, log_end=lag.end)
    assert decide_resume(TP, facts, PARALLEL) == ResumeDecision(lag.start, many, overflow=lag)


@pytest.mark.parametrize(
    ("poison", "position", "owed"),
    [
        pytest.param((Span(70, 71),), 71, (Span(20, 30), Span(70, 71)), id="it is next: passed, and owed"),
        pytest.param((Span(71, 72),), 70, (Span(20, 30),), id="not yet: its turn comes"),
        pytest.param((Span(69, 70),), 70, (Span(20, 30),), id="another owner has dealt with it"),
        pytest.param((), 70, (Span(20, 30),), id="nothing is poisoned"),
    ],
)
def test_a_poisoned_offset_is_owed_and_passed(poison, position, owed):
    """The live lane goes on behind an offset that stopped it, in the same commit that owes it."""
    facts = PartitionState(
        70, LiveCommitMetadata(OwnerState.RUNNING, RUN, (Span(20, 30),)), log_start=0, log_end=120
    )
    found = decide_resume(TP, facts, ResumePolicy(), poison)
    assert (found.position, found.pending) == (position, owed)


def test_a_poisoned_offset_that_cannot_be_owed_is_not_passed():
    """No room for its token: it stays in front of the live lane, which says so again."""
    full = tuple(Span(n, n + 1) for n in range(10**9, 10**9 + 2 * 185, 2))
    facts = PartitionState(
        2 * 10**9, LiveCommitMetadata(OwnerState.RUNNING, RUN, full), log_start=0, log_end=2 * 10**9 + 9
    )
    assert fits_commit_metadata(full)
    found = decide_resume(TP, facts, ResumePolicy(), (Span(2 * 10**9, 2 * 10**9 + 1),))
    assert (found.position, found.pending) == (2 * 10**9, full)


def test_a_catch_up_log_from_before_a_reset_is_not_believed():
    """Its watermark is never above the live commit log.

    Where it is, the group was reset and nothing of it is done.
    """
    facts = PartitionState(20, running(), 0, log_end=250, catch_up_log=CatchUpCommitMetadata(200))
    answer = decide_resume(TP, facts, PARALLEL)
    assert answer.pending == spans((20, 250))
    assert answer.catch_up_log.outstanding(answer.pending) == answer.pending


def test_a_catch_up_log_from_before_a_reset_does_not_swallow_a_quarantined_offset():
    """With the mode off too: the offset that is passed is owed, whatever an earlier life says is done."""
    answer = decide_resume(
        TP,
        PartitionState(20, running(), 0, log_end=250, catch_up_log=CatchUpCommitMetadata(200)),
        IN_ORDER,
        spans((20, 21)),
    )
    assert (answer.position, answer.pending) == (21, spans((20, 21)))
    assert answer.catch_up_log.outstanding(answer.pending) == answer.pending


@given(
    owed=SPANS,
    done=SPANS,
    mark=st.sampled_from(OwnerState),
    lag=st.integers(0, 50),
    policy=st.builds(ResumePolicy, st.booleans(), st.just("earliest"), st.integers(0, 60)),
)
def test_nothing_below_the_live_log_is_forgotten(owed, done, mark, lag, policy):
    """Owed before, or skipped now, and not done: owed after. Live and owed offsets are disjoint."""
    at = max((s.end for s in owed), default=0)
    second = CatchUpCommitMetadata().mark_done(owed, intersection(owed, done))
    answer = decide_resume(
        TP,
        PartitionState(at, LiveCommitMetadata(mark, RUN, owed), 0, log_end=at + lag, catch_up_log=second),
        policy,
    )
    skipped = offsets([answer.skipped]) if answer.skipped else set()
    assert offsets(answer.pending) == offsets(second.outstanding(owed)) | skipped
    assert skipped == set(range(at, answer.position))
    assert all(span.end <= answer.position for span in answer.pending)
    assert union(answer.pending) == answer.pending


@given(owed=SPANS, lag=st.integers(0, 50), policy=st.builds(ResumePolicy, st.booleans()))
def test_resuming_twice_owes_nothing_twice(owed, lag, policy):
    """An assignment whose answer was committed and then lost at once comes to the same answer again."""
    at = max((s.end for s in owed), default=0)
    once = decide_resume(
        TP, PartitionState(at, LiveCommitMetadata(OwnerState.RUNNING, RUN, owed), 0, log_end=at + lag), policy
    )
    again = decide_resume(
        TP,
        PartitionState(
            once.position, LiveCommitMetadata(OwnerState.RUNNING, RUN, once.pending), 0, log_end=at + lag
        ),
        policy,
    )
    assert again == ResumeDecision(once.position, once.pending)


@pytest.mark.parametrize(
    ("first", "owed", "answer"),
    [
        pytest.param(140, [(70, 120)], 70, id="the catch-up lane has not begun"),
        pytest.param(140, [(100, 120)], 100, id="it is at 100"),
        pytest.param(140, [], 140, id="it is done: the live lane's"),
        pytest.param(None, [], None, id="nothing committed"),
    ],
)
def test_committed_covers_both_lanes(first, owed, answer):
    """KIP-333, committed(): any offset before it has been processed, in whichever lane."""
    assert committed_offset(first, spans(*owed)) == answer


@given(SPANS, st.integers(0, 60))
def test_committed_never_passes_an_owed_offset(owed, extra):
    """Every owed offset is at or above committed()."""
    first = max((s.end for s in owed), default=0) + extra
    assume(first)
    assert all(offset >= committed_offset(first, owed) for offset in offsets(owed))


@pytest.mark.parametrize(
    ("offset", "done"),
    [
        pytest.param(70, None, id="70 is the next to do: none of 70-120 is done"),
        pytest.param(71, (70, 71), id="its first offset"),
        pytest.param(100, (70, 100), id="half of it"),
        pytest.param(119, (70, 119), id="all of it but the last"),
        pytest.param(120, None, id="its end, where the live lane went on: nobody need have read it"),
        pytest.param(121, None, id="never skipped: the live lane's"),
        pytest.param(140, None, id="the live lane's last before the second crash"),
        pytest.param(189, (140, 189), id="the second range, though the first is open"),
        pytest.param(190, None, id="the end of the second range"),
        pytest.param(191, None, id="ahead of all that is owed"),
    ],
)
def test_whose_commit_it_is(offset, done):
    """KIP-333, commitSync(): within a lag created by a crash it is for the catch-up commit log."""
    assert pending_before(offset, spans((70, 120), (140, 190))) == (done and Span(*done))
    assert pending_before(offset, ()) is None


@pytest.mark.parametrize(
    ("offset", "done"),
    [
        pytest.param(100, (70, 100), id="below the first beginning"),
        pytest.param(120, None, id="a beginning: the live lane's position before it read anything"),
        pytest.param(130, (120, 130), id="read since the first beginning"),
        pytest.param(150, (140, 150), id="read since the second one"),
        pytest.param(190, None, id="the end of the range"),
    ],
)
def test_what_a_live_lane_read_begins_where_it_began(offset, done):
    """Ranges of two jumps grow together: a late commit of the newer one proves nothing of the older."""
    assert pending_before(offset, spans((70, 190)), {120, 140, 190}) == (done and Span(*done))


@pytest.mark.parametrize("group_id", ["", "orders.catch-up"])
def test_a_group_that_could_be_taken_for_a_catch_up_log_is_refused(group_id):
    """The catch-up commit log has a reserved name."""
    with pytest.raises(
        InvalidSettingError, match=r"wanted 1 to 249 printable .*, not ending in '\.catch-up'"
    ):
        check_group_id(group_id)


def test_any_other_group_is_fine():
    """Only the end of the name is reserved."""
    check_group_id("orders.catch-up.v2")


@pytest.mark.parametrize(
    ("run_id", "mark"),
    [
        pytest.param("0badcafe-1111-4222-8333-444455556666", "0badcafe", id="as Dagster writes it"),
        pytest.param("nightly", "2a3b62b5", id="a script's own"),
    ],
)
def test_every_run_has_a_mark_its_commits_are_read_back_by(run_id, mark):
    """Whatever a run is called, its mark is 8 hex digits, the same every time."""
    assert short_run_id(run_id) == mark
    assert LiveCommitMetadata.decode(
        LiveCommitMetadata(OwnerState.RUNNING, mark).encode()
    ) == LiveCommitMetadata(OwnerState.RUNNING, mark)


# --- what was chosen ----------------------------------------------------------------------------------------

SKIP = ResumePolicy(enable_parallel_rebalance=True, on_data_loss="write_off")


@pytest.mark.parametrize("mark", [None, running(), running((20, 30)), released(), paused()])
def test_expired_data_is_an_error_unless_it_may_be_skipped(mark):
    """The error has both offsets, what is gone, and the way on."""
    with pytest.raises(
        DataExpiredError, match=r"committed at 70 but its log starts at 90: 20 offsets.*on_data_loss"
    ):
        decide_resume(TP, PartitionState(70, mark, 90, log_end=120), PARALLEL)


@pytest.mark.parametrize(
    ("facts", "answer"),
    [
        pytest.param(
            PartitionState(70, released(), 90, log_end=120),
            ResumeDecision(90, lost=spans((70, 90))),
            id="in order from the log start",
        ),
        pytest.param(
            PartitionState(70, running(), 90, log_end=120),
            ResumeDecision(120, spans((90, 120)), skipped=Span(90, 120), lost=spans((70, 90))),
            id="after a crash, only what still exists is owed",
        ),
        pytest.param(
            PartitionState(70, running(), 120, log_end=120),
            ResumeDecision(120, lost=spans((70, 120))),
            id="all of it: nothing is owed",
        ),
        pytest.param(
            PartitionState(140, released((70, 120)), 130, log_end=190),
            ResumeDecision(140, spans((70, 120))),
            id="an owed range that expired is the catch-up lane's to record",
        ),
        pytest.param(
            PartitionState(70, paused(), 90, log_end=120),
            ResumeDecision(90, lost=spans((70, 90)), paused=True),
            id="paused meanwhile",
        ),
        pytest.param(
            PartitionState(70, released(), 70, log_end=120), ResumeDecision(70), id="70 is still there"
        ),
    ],
)
def test_what_skipping_expired_data_means(facts, answer):
    """Each lane passes, and reports, what it can no longer read; nothing else is skipped."""
    assert decide_resume(TP, facts, SKIP) == answer


def test_skipping_does_not_forgive_a_topic_made_anew():
    """A log that ends below the commit is another log, whatever may be skipped."""
    with pytest.raises(TopicRecreatedError):
        decide_resume(TP, PartitionState(70, running(), 0, log_end=60), SKIP)


@pytest.mark.parametrize(
    ("most", "owed", "jumps"),
    [
        pytest.param(1, [], True, id="the first of one"),
        pytest.param(1, [(10, 20)], False, id="it would be the second of one"),
        pytest.param(2, [(10, 20)], True, id="the second of two"),
        pytest.param(1, [(10, 70)], True, id="it grows the one there is"),
        pytest.param(0, [], False, id="none at all"),
        pytest.param(None, [(n, n + 1) for n in range(0, 60, 2)], True, id="as many as a commit holds"),
    ],
)
def test_no_more_ranges_are_owed_than_chosen(most, owed, jumps):
    """Beyond max_owed_ranges the backlog comes in order, and the answer says that it was not skipped."""
    policy = ResumePolicy(enable_parallel_rebalance=True, max_owed_ranges=most)
    answer = decide_resume(TP, PartitionState(70, running(*owed), 0, log_end=120), policy)
    expected = (120, Span(70, 120), None) if jumps else (70, None, Span(70, 120))
    assert (answer.position, answer.skipped, answer.overflow) == expected
    assert answer.pending == union((*spans(*owed), *([Span(70, 120)] if jumps else [])))


@pytest.mark.parametrize("policy", [PARALLEL, IN_ORDER])
def test_a_paused_partition_stays_where_it_is(policy):
    """However its owner ended, no crash lag is made of it and what it owes stays owed."""
    facts = PartitionState(140, paused((70, 120)), 0, log_end=190)
    assert facts.is_paused
    assert decide_resume(TP, facts, policy) == ResumeDecision(140, spans((70, 120)), paused=True)


# --- text of other clients ----------------------------------------------------------------------------------

BEYOND_INT64 = [
    pytest.param("0-999999999999999999999999999999", id="thirty digits"),
    pytest.param(f"0-{2**63}", id="one above int64"),
    pytest.param(f"{2**63}-{2**63 + 1}", id="all of it above int64"),
]


@pytest.mark.parametrize("numbers", BEYOND_INT64)
def test_numbers_beyond_int64_are_no_offsets(numbers):
    """No broker has them; a range of them would fail every tick of the sensor."""
    for text in (
        f"kl1 running {RUN} @- {numbers}",
        f"kl1 running {RUN} @0 {numbers}",
        f"kl1 running {RUN} @{2**63}",
    ):
        with pytest.raises(ExternalCommitError):
            LiveCommitMetadata.decode(text)
    for text in (f"kl1 done @- {numbers}", f"kl1 done @0 written-off {numbers}", f"kl1 done @{2**63}"):
        with pytest.raises(ExternalCommitError):
            CatchUpCommitMetadata.decode(0, text)


NUMBERS = st.integers(0, 2**70).map(str) | st.text("0123456789", min_size=1, max_size=40)
TEXTS_LIKE_OURS = st.builds(
    "{} {} {}@{} {}{}".format,
    st.sampled_from(["kl0", "kl1", "kl2"]),
    st.sampled_from([f"running {RUN}", "done", f"paused {RUN}"]),
    st.sampled_from(["", "2Mq71qnKT1ul7FBvra2xew"]),
    NUMBERS,
    st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3).map(lambda pairs: ",".join("-".join(p) for p in pairs)),
    st.sampled_from(["", " reprocess 0-5", f" written-off 0-{2**64}", " target lake.shop.orders"]),
)


@given(st.integers(0, 2**63 - 1), TEXTS | TEXTS_LIKE_OURS)
def test_every_text_is_understood_or_external(offset, text):
    """In either log; what is understood has offsets that a broker can have."""
    log = CatchUpCommitMetadata.read(offset, text)
    if log.external is not None:
        assert log == CatchUpCommitMetadata(), "an external commit marks no offset as done"
        assert log.external == ExternalCommit("second", offset, text)
    try:
        mark = LiveCommitMetadata.decode(text)
    except ExternalCommitError:
        mark = None
    found = (*log.done, *log.written_off, *(mark.pending if mark else ()))
    assert all(0 <= span.start < span.end <= MAX_OFFSET for span in found)


@pytest.mark.parametrize("text", ["", "kl1 running 0badcafe @0", "modified by me", "kl2 done @0"])
def test_an_external_commit_marks_no_pending_offset_as_done(text):
    """An offset with empty metadata too: kcat, or a reset tool over all groups."""
    assert CatchUpCommitMetadata.read(10**9, text).outstanding((Span(70, 120),)) == (Span(70, 120),)


@pytest.mark.parametrize(
    ("log", "name", "command"),
    [
        (
            "first",
            "live commit log",
            "--topic orders:3 --group orders-etl --reset-offsets --to-current --execute`",
        ),
        ("second", "catch-up commit log", "--topic orders:3 --group orders-etl.catch-up --delete-offsets`"),
    ],
)
def test_the_error_names_the_commit_and_the_command_that_removes_it(log, name, command):
    """Group, log, partition, offset and text; the text is shortened to a line."""
    text = str(
        external_commit_error("orders-etl", TP, ExternalCommit(log, 120, "x" * 3_000), "broker-1:9092")
    )
    assert text.startswith(
        f"the {name} of group orders-etl has an external commit: orders:3, offset 120, metadata 'xxx"
    )
    assert "Fix: give the other program its own group_id" in text
    assert f"`kafka-consumer-groups --bootstrap-server broker-1:9092 {command}" in text
    assert len(text) < 1_000


@pytest.mark.parametrize("log", ["first", "second"])
@pytest.mark.parametrize(
    ("text", "is_newer"),
    [
        ("kl2 done @0", True),
        ("kl12 running", True),
        ("kl1 done @0 5-4", False),
        ("kl0 done", False),
        ("", False),
    ],
)
def test_a_newer_versions_commit_is_not_external(log, text, is_newer):
    """It may have more than any ledger: a downgrade touches nothing."""
    found = ExternalCommit(log, 120, text)
    error = str(external_commit_error("orders-etl", TP, found, "broker-1:9092"))
    assert found.is_from_newer_version is is_newer
    assert (f"the {found.log_name} of group orders-etl has a commit of a newer version" in error) is is_newer
    assert ("upgrade" in error) is is_newer


@pytest.mark.parametrize(
    ("policy", "fenced", "ended"),
    [
        (IN_ORDER, "the batch is retried", "resumes at the committed offsets"),
        (PARALLEL, "the batch becomes crash lag", "skips ahead to the log end. With"),
        (
            ResumePolicy(enable_parallel_rebalance=True, min_crash_lag=1_000),
            "log end if at least 1,000",
            "wait there. W",
        ),
    ],
    ids=["in order", "parallel", "parallel, from some offsets on"],
)
def test_a_policy_says_in_words_what_follows(policy, fenced, ended):
    """A fence and an error leave the same owner state as a crash; the same rules apply to the batch."""
    assert fenced in policy.outcome_after_fence
    assert ended in policy.outcome_after_error
