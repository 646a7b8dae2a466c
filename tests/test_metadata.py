"""The numbers people plot: of a run's batches, and of the crash lag partitions it did together."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.names import format_count
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.metadata import Tally, range_metadata, row_count_text


def batch(start, end, deadline_seconds=10.0):
    return Batch((OffsetRange("orders", 3, start, end),), deadline_seconds)


def values(metadata):
    return {name: getattr(one, "value", one) for name, one in metadata.items()}


def test_the_slowest_batch_is_told_against_its_own_budget():
    """The longest batch is not the one that came nearest to its end, when the run's time was running out."""
    tally = Tally()
    tally.add(batch(70, 100, deadline_seconds=60), 30, 6.0)
    tally.add(batch(100, 120, deadline_seconds=4), 20, 2.0)
    found = values(tally.metadata())
    assert found["slowest_batch_percent_of_budget"] == 50.0
    assert found["rows_per_second"] == 6.2
    assert found["summary"] == (
        "50 rows from 50 offsets in 2 batches: 6 rows per second; slowest batch 6.0 s, 50.0 % of its run "
        "budget"
    )


def test_what_was_not_measured_is_no_number():
    """A run without batches has no rate, and a sink that does not count rows has none of rows."""
    assert not {"offsets_per_second", "rows_per_second"} & set(Tally().metadata())
    tally = Tally()
    tally.add(batch(70, 120, deadline_seconds=0.0), None, 5.0)
    found = values(tally.metadata())
    assert (found["offsets_per_second"], found["slowest_batch_percent_of_budget"]) == (10.0, 0.0)
    assert not {"rows_written", "rows_per_second"} & set(found)
    assert found["summary"].startswith("rows not counted from 50 offsets in 1 batch: 10 offsets per second;")


def test_a_partition_that_was_done_before_has_no_numbers_of_this_run():
    """Rows and seconds are the run's, and only on what it did."""
    tally, asked, other = Tally(), OffsetRange("orders", 3, 70, 120), OffsetRange("orders", 0, 0, 10)
    tally.add(batch(70, 120), 45, 5.0)
    done, before = (
        values(range_metadata("etl", one, [asked], [], tally.of_run(2))) for one in (asked, other)
    )
    assert done["run_summary"].startswith("2 partitions together: 45 rows from 50 offsets in 1 batch: 9 rows")
    assert tally.of_run(1)["run_summary"].value == tally.summary, "one partition is not together with others"
    assert set(before) == {"group", "range", "offsets", "state"}


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [(0, "row", "0 rows"), (1, "batch", "1 batch"), (1_200, "batch", "1,200 batches")],
)
def test_numbers_are_told_in_words(count, noun, said):
    """One is singular."""
    assert format_count(count, noun) == said


def test_rows_are_told_in_words():
    """A sink need not count."""
    assert (row_count_text(1), row_count_text(None)) == ("1 row", "rows not counted")
