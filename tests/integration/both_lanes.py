"""What each lane reads of the same offsets, in tables: one row a record, with the lane that wrote it."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.spark.source import read_ranges
from kafka_liveness_dagster.spark.table.write import write_table
from tests.integration.kafka_group import SECONDS, join
from tests.waiting import wait_for


def await_log_end(world, offset):
    """Wait until a ``read_committed`` reader sees so far.

    A transaction's marker comes after its commit returned.
    """

    def end():
        return world.kafka.cluster().log_bounds([world.tp])[world.tp][1]

    wait_for(lambda: end() == offset, what=f"the log end {offset}", details=lambda: f"the log end is {end()}")


class Tables:
    """Writes what a lane of a world polls, and commits it."""

    def __init__(self, world, spark):
        self.world, self._spark, self._kafka = world, spark, world.kafka.settings().spark_options()

    def write(self, table, lane, batch, by):
        """One batch into the table and the commit log; how many rows it gave."""

        def rows():
            told = ("topic", "partition", "offset", "CAST(value AS string) AS value", f"'{by}' AS lane")
            return read_ranges(self._spark, batch.ranges, self._kafka).selectExpr(*told)

        done = write_table(self._spark, table, batch.ranges, rows)
        lane.commit(batch)
        return done.rows

    def live(self, table, lane, upto):
        """All batches of a live lane until it has committed ``upto``: their ranges and rows."""
        batches = []
        while lane.position(self.world.topic, 3) != upto:
            batch = lane.poll(SECONDS)
            batches.append((*self.world.spans(batch.ranges), self.write(table, lane, batch, "live")))
        return batches

    def catch_up(self, table, *ranges, max_poll_records):
        """All batches of a catch-up run for these ranges: their ranges and rows."""
        batches = []
        with self.world.catch_up(*ranges, max_poll_records=max_poll_records) as lane:
            while (batch := lane.poll()) is not None:
                batches.append((*self.world.spans(batch.ranges), self.write(table, lane, batch, "catch-up")))
        return batches


def skip_to_log_end(world, log_end):
    """The group's first run dies before its first commit, and the next one owes all there is."""
    with pytest.raises(ZeroDivisionError), world.live() as consumer:
        assert consumer.poll(SECONDS) is not None
        raise ZeroDivisionError
    with world.live() as consumer:
        join(world, consumer)
        assert world.spans(consumer.pending(world.topic, 3)) == [(0, log_end)]


def records(rows):
    """``[(offset, value)]`` of a table's rows."""
    return [(row["offset"], row["value"]) for row in rows]
