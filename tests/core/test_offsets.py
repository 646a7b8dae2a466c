"""The algebra of offset ranges, against a model that cannot be wrong: a plain set of integers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import (
    OffsetRange,
    Span,
    TopicPartition,
    difference,
    intersection,
    size,
    union,
)

# small numbers touch, overlap and nest often; empty and backwards spans are part of the input
SPANS = st.lists(st.builds(Span, st.integers(0, 40), st.integers(0, 40)), max_size=8)
TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True)
# Names that look like the other parts of a range's text
CONFUSING_TOPICS = st.one_of(
    TOPICS,
    st.from_regex(r"[p0-9.-]{1,12}", fullmatch=True),
    st.sampled_from(["p", "p3", "7", "0", "p3.p4", "70-120", "p-3", "99999999999", "2147483648", "-"]),
)
RANGES = st.builds(
    lambda topic, partition, start, count: OffsetRange(topic, partition, start, start + count),
    CONFUSING_TOPICS,
    st.one_of(st.integers(0, 9), st.integers(0, 2**31 - 1)),
    st.integers(0, 2**62),
    st.integers(1, 2**62 - 1),
)


def model(spans):
    """The same offsets as a plain set of integers."""
    return {offset for span in spans for offset in range(span.start, span.end)}


def is_canonical(spans):
    """Sorted, none empty, no two that touch: one way only to write a set of offsets."""
    return all(s.size > 0 for s in spans) and all(a.end < b.start for a, b in pairwise(spans))


@given(SPANS)
def test_union_keeps_every_offset_in_the_fewest_spans(spans):
    """union(s) holds exactly the offsets of s, in the one canonical form."""
    assert model(union(spans)) == model(spans)
    assert is_canonical(union(spans))


@given(SPANS)
def test_union_is_idempotent_and_blind_to_order(spans):
    """union(union(s)) == union(s) == union(reversed s)."""
    assert union(union(spans)) == union(spans) == union(reversed(spans))


@given(SPANS, SPANS)
def test_difference_is_set_difference(spans, without):
    """difference(a, b) == a - b as sets, canonical."""
    rest = difference(spans, without)
    assert model(rest) == model(spans) - model(without)
    assert is_canonical(rest)


@given(SPANS, SPANS)
def test_intersection_is_set_intersection(spans, others):
    """intersection(a, b) == a & b as sets, canonical, and the same both ways round."""
    both = intersection(spans, others)
    assert model(both) == model(spans) & model(others)
    assert is_canonical(both)
    assert both == intersection(others, spans)


@given(SPANS, SPANS)
def test_difference_and_intersection_split_without_loss(spans, others):
    """Every offset of a is either in a - b or in a & b: nothing is lost, nothing is twice."""
    out, both = difference(spans, others), intersection(spans, others)
    assert union((*out, *both)) == union(spans)
    assert size(out) + size(both) == size(spans)


@given(SPANS)
def test_size_counts_each_offset_once(spans):
    """size(s) == |s|, however often s names an offset."""
    assert size(spans) == len(model(spans))


@pytest.mark.parametrize(
    ("spans", "without", "rest"),
    [
        pytest.param(
            [(70, 120)], [(80, 100)], [(70, 80), (100, 120)], id="a hole in the middle leaves two sides"
        ),
        pytest.param([(70, 120)], [(70, 120)], [], id="all done leaves nothing"),
        pytest.param([(70, 120)], [(0, 70)], [(70, 120)], id="half-open: a neighbour below takes nothing"),
        pytest.param([(70, 120)], [(120, 140)], [(70, 120)], id="half-open: a neighbour above takes nothing"),
        pytest.param(
            [(70, 120), (140, 190)], [(100, 150)], [(70, 100), (150, 190)], id="one hole cuts two spans"
        ),
        pytest.param([(70, 120)], [], [(70, 120)], id="nothing done leaves everything"),
        pytest.param([], [(70, 120)], [], id="nothing owed is nothing"),
    ],
)
def test_difference_by_example(spans, without, rest):
    """What is left of crash lag after some of it was done."""
    assert difference([Span(*s) for s in spans], [Span(*s) for s in without]) == tuple(Span(*s) for s in rest)


@given(RANGES)
@example(OffsetRange("p3", 5, 70, 120))
@example(OffsetRange("7", 3, 1, 2))
@example(OffsetRange("99999999999", 3, 1, 2))
def test_a_range_is_read_back_from_its_text_and_from_that_of_earlier_versions(one):
    """Both are exact, for every topic name Kafka allows and every 63-bit offset."""
    former = f"{one.topic}:{one.partition}:{one.start}-{one.end}"
    assert (OffsetRange.parse(str(one)), OffsetRange.parse(former)) == (one, one)


@given(RANGES, RANGES)
def test_the_text_of_a_range_is_never_that_of_another(one, other):
    """Neither today's text nor the former one: a text names one range for all time."""
    texts = {str(one), f"{one.topic}:{one.partition}:{one.start}-{one.end}"}
    if one != other:
        assert texts.isdisjoint({str(other), f"{other.topic}:{other.partition}:{other.start}-{other.end}"})


@pytest.mark.parametrize(
    ("text", "topic", "partition", "today"),
    [
        pytest.param("orders:3:70-120", "orders", 3, "p3:orders:70-120", id="former"),
        pytest.param("p3:orders:70-120", "orders", 3, "p3:orders:70-120", id="today"),
        pytest.param("p3:5:70-120", "p3", 5, "p5:p3:70-120", id="former, of a topic p3"),
        pytest.param("p5:p3:70-120", "p3", 5, "p5:p3:70-120", id="today, of a topic p3"),
        pytest.param("7:3:70-120", "7", 3, "7:3:70-120", id="a topic of digits only keeps the former text"),
        pytest.param("p3:7:70-120", "p3", 7, "p7:p3:70-120", id="partition 7 of p3, not 3 of 7"),
        pytest.param("p3:7.5:70-120", "7.5", 3, "p3:7.5:70-120", id="no digits only"),
        pytest.param("p:3:70-120", "p", 3, "p3:p:70-120", id="former, of a topic p"),
        pytest.param("p3.p4:5:70-120", "p3.p4", 5, "p5:p3.p4:70-120", id="former, of a topic p3.p4"),
    ],
)
def test_each_text_has_one_meaning(text, topic, partition, today):
    """A text of an earlier version keeps its meaning; today's has the partition first."""
    one = OffsetRange.parse(text)
    assert (one, str(one)) == (OffsetRange(topic, partition, 70, 120), today)


def test_a_range_tells_its_parts():
    """p3:orders:70-120 is offsets 70 to 119 of partition 3 of orders: at most 50 records."""
    one = OffsetRange.parse("p3:orders:70-120")
    assert (one.size, one.span, one.topic_partition) == (50, Span(70, 120), TopicPartition("orders", 3))
    assert (str(one), str(one.span), str(one.topic_partition)) == ("p3:orders:70-120", "70-120", "orders:3")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("p3:orders", id="no offsets"),
        pytest.param("p3:orders:70", id="no end"),
        pytest.param("p3:orders:70-120\n", id="a line end is not part of a range"),
        pytest.param("p3:orders:-1-120", id="no -1 in this package"),
        pytest.param("p-3:orders:70-120", id="no negative partition"),
        pytest.param("a:b:3:70-120", id="Kafka allows no colon in a topic"),
        pytest.param("p3:a:b:70-120", id="nor in the text of today"),
        pytest.param("p3:orders:70-120,140-190", id="two ranges are two keys"),
        pytest.param("p3:orders:120-70", id="backwards"),
        pytest.param("p3:orders:70-70", id="empty"),
    ],
)
def test_what_is_not_a_range_is_refused_by_its_text(text):
    """A key that is no range names itself in the error: users type them in the UI."""
    with pytest.raises(InvalidSettingError) as caught:
        OffsetRange.parse(text)
    assert text in str(caught.value) or repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("partition", "start", "end"),
    [
        pytest.param(-1, 0, 1, id="no such partition"),
        pytest.param(0, -1, 1, id="-1 is Kafka's 'latest', never an offset"),
        pytest.param(0, 5, 5, id="empty"),
        pytest.param(0, 6, 5, id="backwards"),
        pytest.param(2**31, 0, 1, id="more than Kafka counts: its client would raise a bare OverflowError"),
        pytest.param(0, 0, 2**63, id="behind Kafka's last offset"),
    ],
)
def test_an_impossible_range_cannot_be_built(partition, start, end):
    """Every OffsetRange that exists is a real one, so nobody checks again."""
    with pytest.raises(InvalidSettingError, match="0 <= start < end"):
        OffsetRange("orders", partition, start, end)


def test_ranges_sort_by_topic_partition_start():
    """Sorted ranges read like the log: what a user sees is in order."""
    texts = ["p0:payments:0-1", "p10:orders:0-5", "p3:orders:140-190", "p3:orders:70-120"]
    assert [str(r) for r in sorted(map(OffsetRange.parse, texts))] == texts[::-1]


@given(
    *[
        st.builds(
            OffsetRange, st.sampled_from("ab"), st.integers(0, 1), st.integers(0, 9), st.integers(10, 19)
        )
    ]
    * 2
)
def test_ranges_overlap_when_they_share_an_offset(one, other):
    """overlaps(a, b) == there is an offset of the same partition in both, whichever is asked."""
    share = bool(model([one.span]) & model([other.span]))
    assert one.overlaps(other) == other.overlaps(one)
    assert one.overlaps(other) == (share and one.topic_partition == other.topic_partition)


def test_neighbours_do_not_overlap():
    """Half-open: 70-120 and 120-140 share nothing."""
    assert not OffsetRange("orders", 3, 70, 120).overlaps(OffsetRange("orders", 3, 120, 140))
