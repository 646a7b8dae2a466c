"""What a table's snapshots say that it holds.

What is written is read, and nothing is claimed that is not there.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafka_liveness_dagster.core.ledger import (
    ALL_OFFSETS,
    COMPRESS_ABOVE_CHARS,
    MAX_CHARACTERS,
    MAX_PARTS,
    LedgerEntry,
    SnapshotSummary,
    UnknownLedgerFormatError,
    ancestor_ids,
    decode_entries,
    decode_total_as_of,
    encode_entries,
    is_continuation_of,
    lineage,
    merge_entries,
    read_ledger,
    was_rolled_back,
    written_since,
)
from kafka_liveness_dagster.core.offsets import (
    MAX_OFFSET,
    MAX_PARTITION,
    Span,
    TopicPartition,
    difference,
    union,
)

TP = TopicPartition("orders", 3)
ID = "2Mq71qnKT1ul7FBvra2xew"
SPANS = st.lists(st.builds(Span, st.integers(0, 2**62), st.integers(0, 2**62)), max_size=4).map(union)
ACCOUNTS = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["orders", "a.b", "x-y_z"]), st.integers(0, 9)),
    st.builds(
        LedgerEntry,
        SPANS,
        SPANS,
        st.none() | st.integers(0, 2**62),
        unknown=SPANS | st.just(ALL_OFFSETS),
    ),
    max_size=6,
)


def held(*pairs):
    """An account of these offsets, as its snapshot says it."""
    return {TP: LedgerEntry(tuple(Span(*pair) for pair in pairs), first_offset=0, topic_id=ID)}


def text(*pairs):
    return encode_entries(held(*pairs))


def table(*snapshots):
    """Snapshots by their ids, each the child of the one before unless it says otherwise."""
    return {one.snapshot_id: one for one in snapshots}


def what(snapshots, current):
    """What is read, as pairs, and whether it is all."""
    found = read_ledger(snapshots, lineage(snapshots, current)).entry(TP)
    return [tuple(span) for span in found.written], found.is_complete


# --- texts --------------------------------------------------------------------------------------------------


def test_the_text_is_a_promise():
    """People read it in their table's snapshots."""
    accounts = {
        TopicPartition("orders", 0): LedgerEntry(
            (Span(0, 70), Span(90, 120)), (Span(70, 90),), 0, topic_id=ID
        ),
        TopicPartition("orders", 1): LedgerEntry((Span(5, 6),)),
        TopicPartition("paid", 0): LedgerEntry((Span(1, 2),)),
    }
    assert encode_entries(accounts) == f"orders/{ID} 0@0:0-70,90-120!70-90 1:5-6 paid/ 0:1-2"


def test_the_text_names_the_groups_that_wrote_a_topic():
    """A group may have any name: its characters are percent-encoded."""
    groups = frozenset({"orders-etl", "orders, new/2"})
    accounts = {
        TP: LedgerEntry((Span(0, 70),), groups=groups),
        TopicPartition("orders", 4): LedgerEntry((Span(0, 5),)),
    }
    assert encode_entries(accounts) == "orders//orders%2C%20new%2F2/orders-etl 3:0-70 4:0-5"
    assert {account.groups for account in decode_entries(encode_entries(accounts)).values()} == {groups}


def test_groups_whose_names_are_like_ranges_are_read_back_from_a_long_text():
    """A compressed text has sizes in the place of the ends of ranges."""
    groups = frozenset({"2025-12-orders", "2026-01-orders"})
    accounts = {
        TopicPartition("orders", n): LedgerEntry((Span(n, 5000 + n),), groups=groups) for n in range(200)
    }
    assert len(encode_entries(accounts)) > COMPRESS_ABOVE_CHARS or encode_entries(accounts).startswith("z:")
    assert decode_entries(encode_entries(accounts)) == accounts


def test_all_groups_that_wrote_a_topic_count_for_each_of_its_partitions():
    """Group g-a wrote partition 3, group g-b partition 4, and nobody partition 5."""
    wrote = [
        encode_entries({TopicPartition("orders", n): LedgerEntry((Span(0, 9),), groups=frozenset({g}))})
        for n, g in ((3, "g-a"), (4, "g-b"))
    ]
    snapshots = table(SnapshotSummary(1, None, wrote[0]), SnapshotSummary(2, 1, wrote[1]))
    ledger = read_ledger(snapshots, lineage(snapshots, 2))
    for partition in (3, 4, 5):
        assert ledger.entry(TopicPartition("orders", partition)).groups == {"g-a", "g-b"}
    assert ledger.entry(TopicPartition("paid", 0)).groups == frozenset()


@given(ACCOUNTS)
def test_an_account_is_read_back_from_its_text(accounts):
    """decode(encode(accounts)) == accounts, compressed or not."""
    assert decode_entries(encode_entries(accounts)) == accounts


@pytest.fixture(scope="module")
def wrote(example):
    """What docs/readers.md shows."""
    return example("time_travel").wrote


@pytest.mark.parametrize("partitions", [1, 4, pytest.param(400, marks=pytest.mark.certify)])
@given(accounts=ACCOUNTS, spans=SPANS)
def test_readers_without_this_package_read_the_same(wrote, partitions, accounts, spans):
    """docs/readers.md says in ten lines which offsets a snapshot wrote, of a long text too."""
    accounts |= {
        TopicPartition("wide", number): LedgerEntry(spans, first_offset=0) for number in range(partitions)
    }
    text = encode_entries(accounts)
    for (topic, partition), account in accounts.items():
        assert wrote(text, topic, partition) == [tuple(span) for span in account.written]
    assert wrote(text, "wide", partitions) == wrote(text, "ide", 0) == []


def test_a_long_text_is_compressed():
    """A thousand partitions in a few kilobytes: every later metadata file copies it."""
    many = {
        TopicPartition("orders", p): LedgerEntry((Span(0, 10**9 + 17 * p),), first_offset=0, topic_id=ID)
        for p in range(1_000)
    }
    assert COMPRESS_ABOVE_CHARS < len(encode_entries(many)) < 10_000
    assert decode_entries(encode_entries(many)) == many


@given(st.integers(0, 2**61), st.integers(1, 10**6))
def test_what_is_compressed_is_told_by_sizes(start, size):
    """Whatever the topic is called: only spans have sizes."""
    spans = tuple(Span(start + 2 * n * size, start + (2 * n + 1) * size) for n in range(60))
    held = {
        TopicPartition("etl-2024-01", p): LedgerEntry(spans[:30], spans[30:], 7, topic_id=ID)
        for p in range(3)
    }
    assert encode_entries(held).startswith("z:")
    assert decode_entries(encode_entries(held)) == held


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param("3@0:0-70", id="no topic"),
        pytest.param("orders/x 3@0:70-0", id="backwards"),
        pytest.param("orders/x 3@0:0-70,60-90", id="overlapping"),
        pytest.param("orders/x 3@0:0", id="no end"),
        pytest.param("orders/x of", id="a word of another version"),
        pytest.param("z:AAAA", id="not compressed by us"),
        pytest.param("z:####", id="not even encoded"),
        pytest.param(f"orders/x 3@0:0-{2**63}", id="an offset beyond int64"),
        pytest.param(f"orders/x 3@{2**63}:0-70", id="a start beyond int64"),
        pytest.param(f"orders/x {2**31}@0:0-70", id="a partition beyond int32"),
        pytest.param("orders/x 3@0:0-70 3@0:0-10", id="a partition twice"),
    ],
)
def test_what_we_did_not_write_is_not_guessed_at(wrong):
    """A newer version's ledger is an error with the remedy."""
    with pytest.raises(UnknownLedgerFormatError, match="newer version"):
        decode_entries(wrong)


def packed(words):
    """A compressed text of another writer."""
    return "z:" + base64.b64encode(zlib.compress(words.encode(), 9)).decode()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(packed("orders/x 3@0:0-70 " + " " * MAX_CHARACTERS), id="longer than any of ours"),
        pytest.param("orders/x 3@0:0-70 " + " " * MAX_CHARACTERS, id="so long, and not compressed"),
        pytest.param(packed("orders/x " * (MAX_PARTS + 2)), id="more words than any of ours"),
        pytest.param(packed("orders/x 3@0:" + "1+1," * MAX_PARTS), id="more ranges than any of ours"),
        pytest.param(packed("orders/x 3@0:0+70")[:-8], id="cut off"),
        pytest.param(
            "z:" + base64.b64encode(zlib.compress(b"orders/x 3@0:0+70") + b"more").decode(), id="more behind"
        ),
        pytest.param(packed(f"orders/x 3@0:{'9' * 5_000}+1"), id="more digits than Python reads"),
        pytest.param("z:" + base64.b64encode(zlib.compress(bytes([255]))).decode(), id="no UTF-8"),
        pytest.param("z:é", id="no ASCII"),
    ],
)
def test_a_compressed_text_of_another_writer_is_refused(text):
    """Its length is bounded: 16 kB would become 16 MB, and 389 kB became 300 MB."""
    with pytest.raises(UnknownLedgerFormatError, match="unknown format"):
        decode_entries(text)


NUMBERS = st.integers(0, 2**70).map(str) | st.just("9" * 5_000)
LIKE_OURS = st.lists(
    st.builds(
        "{}@{}:{}-{}{}".format, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.sampled_from(["", "!5-6", ",3"])
    ),
    max_size=3,
).map(lambda words: " ".join(["orders/x", *words]))


@given(
    st.text()
    | LIKE_OURS
    | LIKE_OURS.map(packed)
    | st.binary().map(lambda b: "z:" + base64.b64encode(b).decode())
)
@example(packed(packed("orders/x 3@0:0-70")))
def test_every_text_is_understood_or_a_ledger_error(text):
    """What is understood has partitions and offsets that a broker can have."""
    try:
        accounts = decode_entries(text)
    except UnknownLedgerFormatError:
        return
    for tp, found in accounts.items():
        assert tp.partition <= MAX_PARTITION
        assert all(0 <= span.start < span.end <= MAX_OFFSET for span in (*found.written, *found.written_off))


@given(st.none() | st.text() | st.integers(0, 2**70).map(str))
@example(text="abc")
@example(text="\uff11")
def test_every_sum_is_of_a_snapshot_or_a_ledger_error(text):
    """The error names the snapshot that says so, and how to be rid of it."""
    if not text or (text.isascii() and text.isdigit() and int(text) <= MAX_OFFSET):
        assert decode_total_as_of(7, text) == (int(text) if text else None)
        return
    with pytest.raises(UnknownLedgerFormatError, match=r"snapshot_ids => ARRAY\(7\)") as caught:
        decode_total_as_of(7, text)
    assert str(caught.value).startswith(f"snapshot 7 has a summary of an unknown format: {text[:80]!r}, ")


def test_a_text_that_is_not_understood_is_named_with_its_snapshot():
    """Among thousands of snapshots."""
    snapshots = table(SnapshotSummary(1, None, text((0, 10))), SnapshotSummary(2, 1, "their own words"))
    with pytest.raises(UnknownLedgerFormatError, match=r"^snapshot 2 .*: 'their own words', 15 characters"):
        what(snapshots, 2)


def test_nothing_says_nothing():
    """Somebody else's snapshot has no such text."""
    assert decode_entries("") == {}


def test_accounts_add_up():
    """Offsets are united, the beginning is the earliest, and what one of them does not know both do not."""
    both = LedgerEntry((Span(0, 5),), first_offset=3) + LedgerEntry(
        (Span(5, 9),), (Span(9, 10),), 1, topic_id=ID, unknown=ALL_OFFSETS
    )
    assert both == LedgerEntry((Span(0, 9),), (Span(9, 10),), 1, topic_id=ID, unknown=ALL_OFFSETS)
    assert merge_entries([{TP: LedgerEntry()}, {TP: LedgerEntry(first_offset=2)}])[TP] == LedgerEntry(
        first_offset=2
    )


# --- lineage ------------------------------------------------------------------------------------------------


def test_every_commit_counts():
    """A table from its beginning: what each snapshot wrote; somebody else's says nothing and is passed."""
    snapshots = table(
        SnapshotSummary(1, None, text((0, 10))),
        SnapshotSummary(2, 1),
        SnapshotSummary(3, 2, text((10, 20))),
        SnapshotSummary(4, 3, text((30, 40))),
    )
    assert what(snapshots, 4) == ([(0, 20), (30, 40)], True)


def test_a_sum_stands_for_all_before_it():
    """The walk ends at the first snapshot that somebody summed up, expired or not."""
    summed = SnapshotSummary(4, 3, text((20, 30)), total=text((0, 20)), total_as_of=3)
    assert what(table(SnapshotSummary(3, 2, text((99, 100))), summed), 4) == ([(0, 30)], True)
    assert what(table(summed), 4) == ([(0, 30)], True)


def test_two_writers_at_a_time_lose_nothing_of_each_other():
    """Neither's sum has the other's commit: the newest sum counts, and all that was written since."""
    snapshots = table(
        SnapshotSummary(1, None, text((0, 10))),
        SnapshotSummary(2, 1, text((10, 20)), total=text((0, 10)), total_as_of=1),
        SnapshotSummary(3, 2, text((50, 60)), total=text((0, 20)), total_as_of=2),
        SnapshotSummary(4, 3, text((20, 30)), total=text((0, 10)), total_as_of=1),
    )
    assert what(snapshots, 4) == ([(0, 30), (50, 60)], True)


def test_rolled_back_it_says_less():
    """The current snapshot decides; what is not among its ancestors is not in the table."""
    snapshots = table(*(SnapshotSummary(n, n - 1 or None, text((10 * n, 10 * n + 10))) for n in range(1, 6)))
    assert what(snapshots, 3) == ([(10, 40)], True)
    assert what(snapshots, None) == ([], True)


def test_a_sum_of_what_was_rolled_back_is_not_believed():
    """A writer that did not look: its ``since`` is in the table, and no ancestor of its own commit."""
    snapshots = table(
        SnapshotSummary(1, None, text((0, 10))),
        SnapshotSummary(2, 1, text((10, 20))),
        SnapshotSummary(3, 1, text((20, 30)), total=text((0, 20)), total_as_of=2),
    )
    assert what(snapshots, 3) == ([(0, 10), (20, 30)], True)


def test_a_sum_of_what_was_rolled_back_does_not_count_in_an_expired_history():
    """The walk does not reach the beginning of the table, so sums count there; this one must not."""
    snapshots = table(
        SnapshotSummary(2, 1, text((10, 20))),
        SnapshotSummary(3, 1, text((20, 30)), total=text((0, 20)), total_as_of=2),
    )
    assert what(snapshots, 3) == ([(20, 30)], False)


def test_an_expired_history_proves_nothing_by_what_it_lacks():
    """What is said is true; what is not said may have been said by a snapshot that is gone."""
    assert what(table(SnapshotSummary(5, 4, text((40, 50)))), 5) == ([(40, 50)], False)
    assert what(table(SnapshotSummary(5, 4, text((40, 50)), total=text((0, 30)), total_as_of=2)), 5) == (
        [(0, 30), (40, 50)],
        False,
    )
    found = read_ledger(
        table(SnapshotSummary(5, 4, text((40, 50)))), lineage(table(SnapshotSummary(5, 4, text((40, 50)))), 5)
    )
    assert not found.entry(TopicPartition("paid", 0)).is_complete
    assert found.entry(TopicPartition("orders", 9)).topic_id == ID


def test_an_expired_history_still_shows_what_was_rolled_back():
    """Snapshots 6 and 7 are off the line, and 20-30 was written again. Nobody knows what 9 grew out of."""
    snapshots = table(
        SnapshotSummary(5, 4, text((40, 50))),
        SnapshotSummary(6, 5, text((10, 30))),
        SnapshotSummary(7, 6, text((60, 70))),
        SnapshotSummary(8, 5, text((20, 30))),
        SnapshotSummary(9, 3, text((80, 90))),
    )
    found = read_ledger(snapshots, lineage(snapshots, 8)).entry(TP)
    known = difference(ALL_OFFSETS, found.unknown)
    assert known == (Span(10, 20), Span(60, 70)), "only what grew out of the line"
    assert decode_entries(encode_entries({TP: found})) == {TP: found}
    complete = {**snapshots, 5: SnapshotSummary(5, None, text((40, 50)))}
    assert read_ledger(complete, lineage(complete, 8)).entry(TP).is_complete


def test_what_was_rolled_back_and_written_again_is_not_missing():
    """Snapshot 6 was rolled back, and 7 wrote the same offsets: nothing more is known than before."""
    snapshots = table(
        SnapshotSummary(5, 4, text((40, 50))),
        SnapshotSummary(6, 5, text((20, 30))),
        SnapshotSummary(7, 5, text((20, 30))),
    )
    found = read_ledger(snapshots, lineage(snapshots, 7)).entry(TP)
    assert (found.written, found.unknown) == ((Span(20, 30), Span(40, 50)), ALL_OFFSETS)


def test_a_complete_history_needs_no_text_of_what_was_rolled_back():
    """A roll back removes a snapshot whose text this version cannot read."""
    snapshots = table(SnapshotSummary(1, None, text((0, 10))), SnapshotSummary(2, 1, "of a newer version"))
    assert what(snapshots, 1) == ([(0, 10)], True)
    with pytest.raises(UnknownLedgerFormatError):
        what(snapshots, 2)


def test_unknown_offsets_become_known():
    """By a later snapshot that wrote them, or by a roll back of the one that had."""
    total = encode_entries({TP: replace(held((0, 70))[TP], unknown=(Span(70, 100),))})
    assert total == f"orders/{ID} 3@0:0-70?70-100"
    snapshots = table(
        SnapshotSummary(5, 4, text((100, 110)), total=total, total_as_of=4),
        SnapshotSummary(6, 5, text((70, 80))),
        SnapshotSummary(7, 6, text((80, 90))),
    )
    assert read_ledger(snapshots, lineage(snapshots, 7)).entry(TP).unknown == (Span(90, 100),)
    assert read_ledger(snapshots, lineage(snapshots, 6)).entry(TP).unknown == (Span(90, 100),)
    assert read_ledger(snapshots, lineage(snapshots, 6)).entry(TP).written == (Span(0, 80), Span(100, 110))


def test_a_snapshot_nobody_listed_is_not_the_beginning():
    """A look at the newest ones only, of a table that was rolled back far: ask for all of them."""
    assert what(table(SnapshotSummary(5, 4, text((40, 50)))), 3) == ([], False)


def test_parents_in_a_circle_end():
    """No table has them; nobody waits for ever if one does."""
    assert what(table(SnapshotSummary(1, 2, text((0, 1))), SnapshotSummary(2, 1, text((1, 2)))), 2) == (
        [(0, 2)],
        False,
    )


def test_a_sum_says_of_which_partitions_it_does_not_know_all():
    """A writer whose table has lost its history: what it had itself, and that there may be more."""
    lost = {
        TP: LedgerEntry((Span(0, 30),), unknown=ALL_OFFSETS),
        TopicPartition("orders", 4): LedgerEntry((Span(5, 9),)),
    }
    told = encode_entries(lost, complete=False)
    assert told == "? orders/ 3?:0-30 4:5-9"
    assert decode_entries(told) == lost
    found = read_ledger(
        table(SnapshotSummary(5, 4, text((40, 50)), total=told, total_as_of=4)),
        lineage(table(SnapshotSummary(5, 4, "", total=told, total_as_of=4)), 5),
    )
    complete = {tp.partition: found.entry(tp).is_complete for tp in (TP, *lost, TopicPartition("orders", 9))}
    assert complete == {3: False, 4: True, 9: False}
    fresh = SnapshotSummary(
        6,
        5,
        encode_entries({TopicPartition("orders", 9): LedgerEntry((Span(0, 1),))}),
        total=told,
        total_as_of=5,
    )
    assert (
        not read_ledger(table(fresh), lineage(table(fresh), 6)).entry(TopicPartition("orders", 9)).is_complete
    )


# --- a table that was set back ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        pytest.param((), (), False, id="no table yet"),
        pytest.param((1,), (), False, id="its first snapshot"),
        pytest.param((), (1,), False, id="dropped, which its ledger says"),
        pytest.param((6, 5), (6, 5), False, id="as it was"),
        pytest.param((8, 7, 6, 5), (6, 5), False, id="it has grown"),
        pytest.param((8, 7), (6, 5), False, id="it may have grown: what was between is expired"),
        pytest.param((8, 6), (6, 5), False, id="it has grown, and what was before is expired"),
        pytest.param((5, 4), (6, 5, 4), True, id="rolled back"),
        pytest.param((7, 5), (6, 5), True, id="and somebody has written since"),
        pytest.param(
            (8, 4), (6, 5, 4), True, id="further back, and nothing more can be said of what is between"
        ),
        pytest.param(
            (9, 7, 6), (9, 8, 7, 3), True, id="it was rolled back before it came to what is current"
        ),
        pytest.param((9, 8, 7), (9, 7, 3), False, id="somebody wrote between two that were seen"),
    ],
)
def test_a_table_is_set_back_when_it_goes_on_from_an_ancestor(now, before, expected):
    """Whether what was current is expired makes no difference.

    What is told of its ancestors does not pass it.
    """
    assert was_rolled_back(now, before) is expected


def test_a_chain_names_the_parent_that_is_expired():
    """As far back as the table can name them; a cycle, which no table has, ends it."""
    assert ancestor_ids({}, None) == ancestor_ids({}, 1) == ()
    assert ancestor_ids(table(SnapshotSummary(2, 1), SnapshotSummary(1, None)), 2) == (2, 1)
    assert ancestor_ids(table(SnapshotSummary(3, 2), SnapshotSummary(9, 1)), 3) == (3, 2)
    assert ancestor_ids(table(SnapshotSummary(3, 2), SnapshotSummary(2, 3)), 3) == (3, 2)


def test_a_known_snapshot_that_left_the_chain_makes_what_was_known_doubtful():
    """It may have been rolled away before it expired."""
    assert is_continuation_of((8, 7, 6), {6, 7})
    assert is_continuation_of((8, 7), set())
    assert not is_continuation_of((8, 7), {6, 7})
    assert not is_continuation_of((8, 7), {None})


def test_what_was_written_since_a_snapshot():
    """Of the snapshots in between.

    Unknown where the snapshot is none of the ancestors, as after an expiration.
    """
    snapshots = table(
        SnapshotSummary(2, 1, text((0, 5))),
        SnapshotSummary(3, 2, text((5, 9))),
        SnapshotSummary(4, 3, text((7, 12))),
    )
    for before, expected in ((1, [(0, 12)]), (2, [(5, 12)]), (3, [(7, 12)]), (4, [])):
        found = written_since(snapshots, 4, before)
        assert [tuple(span) for account in found.values() for span in account.written] == expected
    assert written_since(snapshots, 4, 7) is None
    assert written_since(snapshots, None, 4) is None
    assert written_since(snapshots, None, None) == {}
