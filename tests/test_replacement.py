"""The condition of a replacement, as a sink on another database executes it."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

import kafka_liveness_dagster as kl

TOPICS, PARTITIONS, OFFSETS = ("clicks", "orders"), range(3), range(12)
offset_ranges = st.builds(
    lambda topic, partition, start, size: kl.OffsetRange(topic, partition, start, start + size),
    st.sampled_from(TOPICS),
    st.sampled_from(PARTITIONS),
    st.sampled_from(OFFSETS[:-4]),
    st.integers(1, 4),
)


@given(st.lists(offset_ranges, min_size=1, max_size=8))
def test_the_condition_finds_exactly_the_rows_of_the_ranges(ranges):
    """SQLite knows no dialect of Spark's: of several topics, unsorted, overlapping."""
    rows = [(t, p, o) for t in TOPICS for p in PARTITIONS for o in OFFSETS]
    condition = kl.Replacement(None, tuple(ranges), lambda: None).condition
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE rows (topic, partition, offset)")
        db.executemany("INSERT INTO rows VALUES (?, ?, ?)", rows)
        found = db.execute(f"SELECT * FROM rows WHERE {condition}").fetchall()
    assert found == [
        row
        for row in rows
        if any(row[:2] == one.topic_partition and one.start <= row[2] < one.end for one in ranges)
    ]
    assert all(condition.count(topic) <= 1 for topic in TOPICS), "each term is compared with each file"
