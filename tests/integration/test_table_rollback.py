"""A table that is rolled back, or whose snapshots expire, during a live run, a backfill or a replay.

Each run ends exact, or with an error that names the missing offsets. Then a live run and a backfill restore
all rows.
"""

from __future__ import annotations

import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.partition_state import RowsMissingError
from kafka_liveness_dagster.spark.errors import TransformError
from tests.integration.group_with_table import CrashError, GroupWithTable, written_rows

PENDING = kl.Offsets(on_missing_rows="crash_lag")
EXPIRE = "CALL {catalog}.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)"


@pytest.fixture
def world(services, produce, rows, warm_spark):
    """A group with a table, in batches of ten records."""
    return GroupWithTable(services, produce, rows, warm_spark, max_poll_records=10)


class ActionAtBatch:
    """Do something to the table before the batches with these numbers, counted from 1, are read."""

    def __init__(self, what, *batches):
        self.what, self.batches, self.seen = what, batches, 0

    def __call__(self, _batch):
        self.seen += 1
        if self.seen in self.batches:
            self.what()


def drain(world):
    """One live run that makes missing rows pending, and one backfill of each pending range.

    Then all rows are there.
    """
    assert world.live(offsets=PENDING) is None
    assert world.catch_up(*world.pending_by_live_log()) is None
    assert world.live() is None
    assert (world.offsets(), world.catch_up_log() is not None) == (written_rows(0, world.log_end), True)


def owe_everything_from_30(world):
    """30 offsets are in the table, and 30-90 are pending."""
    world.grow_to(30)
    assert world.live() is None

    def die(_batch):
        raise CrashError

    world.grow_to(60)
    assert isinstance(world.live(die), TransformError)
    world.grow_to(90)
    assert world.live() is None
    assert world.pending_by_live_log() == [(30, 90)]


def test_a_roll_back_between_two_batches_of_a_live_run(world):
    world.grow_to(60)
    befalls = ActionAtBatch(lambda: world.roll_back(1), 4)
    assert isinstance(world.live(befalls), RowsMissingError)
    assert world.committed() < 60
    drain(world)


@pytest.mark.parametrize("snapshots", [pytest.param(1, marks=pytest.mark.certify), 3])
def test_a_roll_back_while_a_backfill_runs(world, snapshots):
    """Of the backfill's own rows, or of the live lane's rows too."""
    owe_everything_from_30(world)
    befalls = ActionAtBatch(lambda: world.roll_back(snapshots), 3)
    assert isinstance(world.catch_up((30, 90), between=befalls), RowsMissingError)
    assert world.materialized_ranges() == []
    drain(world)


def test_a_roll_back_while_a_replay_runs(world):
    """The former rows come back with the snapshot before the replay: the replay is not green, and repeats."""
    world.grow_to(60)
    assert world.live() is None
    world.value = "concat('again ', cast(value AS string))"
    befalls = ActionAtBatch(lambda: world.roll_back(1), 3)
    again = "@replay-20261126T120000Z"
    error = world.catch_up((0, 60), again=again, between=befalls)
    done = {offset for offset, value in world.values().items() if value.startswith("again ")}
    assert isinstance(error, RowsMissingError) or done == set(written_rows(0, 60)), (error, sorted(done))
    assert (error is None) == (world.materialized_ranges() == [(0, 60)])
    assert world.catch_up((0, 60), again=again) is None
    assert all(value.startswith("again ") for value in world.values().values())
    drain(world)


@pytest.mark.parametrize("lane", ["live", "catch-up"])
def test_a_roll_back_of_a_table_whose_snapshots_expired(world, lane):
    """Only the run at work knows what is missing, so it records that before it ends."""
    owe_everything_from_30(world)

    def befalls(_batch):
        befalls.seen += 1
        if befalls.seen == 5:
            world.sql(EXPIRE)
        if befalls.seen == 6:
            world.roll_back(1)
            world.sql(EXPIRE)

    befalls.seen = 0
    if lane == "live":
        world.grow_to(190)
        error = world.live(befalls)
    else:
        error = world.catch_up((30, 90), between=befalls)
    assert isinstance(error, RowsMissingError), error
    if lane == "live":
        assert isinstance(world.live(), RowsMissingError), "until the user decides"
    drain(world)


def test_snapshots_that_expire_beside_both_lanes(world):
    """Only the newest snapshot remains before every batch."""
    every = range(1, 100)
    befalls = ActionAtBatch(lambda: world.sql(EXPIRE) if world.offsets() else None, *every)
    owe_everything_from_30(world)
    world.grow_to(120)
    assert world.live(befalls) is None
    assert world.catch_up((30, 90), between=befalls) is None
    assert world.catch_up((30, 90), between=befalls, again="@replay-20261126T120000Z") is None
    assert world.snapshots() <= 3
    drain(world)


def test_a_roll_back_between_two_runs_after_snapshots_expired_with_crash_lag_pending(world):
    """No run is left that knows of the rows; the ledger of the last one is complete again, and shows it."""
    owe_everything_from_30(world)
    world.sql(EXPIRE)
    world.grow_to(120)
    assert world.live() is None
    world.roll_back(1)
    world.grow_to(130)
    assert isinstance(world.live(), RowsMissingError), "until the user decides"
    drain(world)


def test_a_roll_back_of_a_table_whose_ledger_is_not_complete(world):
    """Its snapshots expired beside the last run. Those that were rolled back show what is missing."""
    owe_everything_from_30(world)
    world.grow_to(150)
    assert world.live(ActionAtBatch(lambda: world.sql(EXPIRE), 5)) is None
    world.roll_back(1)
    world.grow_to(160)
    assert isinstance(world.live(), RowsMissingError), "until the user decides"
    drain(world)


def test_a_roll_back_of_a_backfill_whose_ledger_is_not_complete(world):
    """The catch-up commit log says that they are done."""
    owe_everything_from_30(world)
    assert world.catch_up((30, 90), between=ActionAtBatch(lambda: world.sql(EXPIRE), 5)) is None
    world.roll_back(1)
    drain(world)
