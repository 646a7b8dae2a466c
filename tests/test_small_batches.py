"""Which batches a run reads itself, by their size and by what it read before."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.record_reader import KafkaRecord
from kafka_liveness_dagster.lanes import small_batches
from kafka_liveness_dagster.lanes.small_batches import MAX_BYTES, MAX_OFFSETS, SmallBatches

MINUTE = 60.0


class FakeLane:
    """A lane whose records all have the same size; a size of None means that no read succeeds."""

    def __init__(self):
        self.record_bytes, self.released = 1, 0

    def release_records(self):
        self.released += 1

    def records_within(self, batch, **_):
        if self.record_bytes is None or batch.max_records * self.record_bytes > MAX_BYTES:
            return None
        value = bytes(self.record_bytes)
        return [KafkaRecord(None, value, "orders", 0, n, 0, 0, None) for n in range(batch.max_records)]


@pytest.fixture
def run(monkeypatch):
    """A run's lane and clock; ``read`` returns whether the run reads a batch of so many offsets."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(small_batches, "time", clock)
    lane, batches = FakeLane(), SmallBatches()

    def read(offsets):
        return batches.read(lane, Batch((OffsetRange("orders", 0, 0, offsets),), 0.0))() is not None

    return SimpleNamespace(lane=lane, clock=clock, read=read)


def test_offsets_bound_a_batch(run):
    """Nothing stays fetched ahead while Spark reads."""
    assert run.read(MAX_OFFSETS)
    assert run.lane.released == 0
    assert not run.read(MAX_OFFSETS + 1)
    assert run.lane.released == 1


def test_a_batch_is_not_read_in_vain_after_larger_records(run):
    """For a minute: a single large record is no reason to read no batch any more."""
    run.lane.record_bytes = MAX_BYTES // 2
    assert run.read(1)
    run.lane.record_bytes = 1
    assert run.read(2)
    run.lane.record_bytes = MAX_BYTES
    assert run.read(1)
    run.lane.record_bytes = 1
    assert not run.read(2)
    run.clock.now += MINUTE
    assert run.read(2)


def test_after_a_read_that_failed_spark_reads_for_a_minute(run):
    run.lane.record_bytes = None
    assert not run.read(1)
    run.lane.record_bytes = 1
    assert not run.read(1)
    run.clock.now += MINUTE
    assert run.read(1)
