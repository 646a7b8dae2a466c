"""An hour is told when every record of it is in the table.

Over both lanes, whatever happened meanwhile, once.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partialmethod
from unittest.mock import patch

import dagster as dg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.idle_groups import SETTLE_SECONDS
from kafka_liveness_dagster.lanes.in_flight import InFlightWrite
from kafka_liveness_dagster.lanes.runs import IncompleteWindowError
from kafka_liveness_dagster.spark.errors import TransformError
from tests.integration.group_with_table import CrashError, GroupWithTable, written_rows
from tests.integration.sensor_ticks import SensorClock
from tests.waiting import wait_for

HOUR, MINUTE = 3600, 60
MENDED = "concat('mended ', cast(value AS string))"


class HourlyGroup(GroupWithTable):
    """Its records are a minute apart, from four hours ago on; the hours are told."""

    def __init__(self, services, produce, rows, spark, settings=None, **completeness):
        self.begin = int(time.time() // HOUR - 4) * HOUR
        start = time.strftime("%Y-%m-%d-%H:%M", time.gmtime(self.begin))
        told = kl.Completeness(**{"start": start, "allowed_lateness_seconds": 0.0, **completeness})
        settings = {"complete_every": "1h", "completeness": told, **(settings or {})}
        super().__init__(services, produce, rows, spark, **settings)
        self.by_hour = dg.AssetKey(f"{self.name}_by_hour")

    def key(self, hour):
        return time.strftime("%Y-%m-%d-%H:%M", time.gmtime(self.begin + hour * HOUR))

    def produce_at(self, *minutes, partition=0, **config):
        """A record of each of these minutes."""
        producer = Producer({"bootstrap.servers": self.servers, **config})
        if config:
            producer.init_transactions()
            producer.begin_transaction()
        for minute in minutes:
            at = 1000 * (self.begin + minute * MINUTE)
            producer.produce(self.topic, str(self.log_end).encode(), partition=partition, timestamp=round(at))
            self.log_end += partition == 0
        assert producer.flush(120) == 0
        return producer

    def grow_to(self, log_end, life=""):
        self.produce_at(*range(self.log_end, log_end))

    def tick(self, spark=None, *, sensor=None):
        """As Dagster's daemon does it: what the sensor tells is stored."""
        result = super().tick(spark, sensor=sensor)
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        return result

    def completed_windows(self, hours=3):
        """What a tick told of the first hours."""
        keys = [self.key(hour) for hour in range(hours)]
        events = [one for one in self.tick().asset_events if isinstance(one, dg.AssetMaterialization)]
        return {keys.index(one.partition): one.metadata for one in events if one.partition in keys}

    def waiting_windows(self):
        """Why the next hour is not told, as the topic's asset says it a minute later."""
        with patch("kafka_liveness_dagster.sensor.sensor.OBSERVE_INTERVAL_SECONDS", 0.0):
            seen = [one for one in self.tick().asset_events if isinstance(one, dg.AssetObservation)]
        return next(one.metadata["windows"].value for one in seen if "windows" in one.metadata)

    def late(self, hour):
        """What was observed on an hour, oldest first."""
        asked = dg.AssetRecordsFilter(asset_key=self.by_hour, asset_partitions=[self.key(hour)])
        records = self.instance.fetch_observations(asked, limit=10, ascending=True).records
        return [record.asset_observation.metadata["late_records"].value for record in records]

    def materialize(self, hour, last=None, tags=None):
        """A run that somebody starts for an hour, or up to the last one: the error that ended it, or None."""
        asset, defs = self.definitions()
        job = dg.define_asset_job("by_hand", selection=[asset.windows])
        self.between = None
        with_job = dg.Definitions.merge(defs, dg.Definitions(jobs=[job]))
        ends = {
            ASSET_PARTITION_RANGE_START_TAG: self.key(hour),
            ASSET_PARTITION_RANGE_END_TAG: self.key(last or hour),
        }
        tags = {**ends, **(tags or {})}
        return self._ended_by(
            lambda job: job.execute_in_process(instance=self.instance, tags=tags), with_job, job
        )

    def marked(self, hour):
        """How often an hour was marked complete, and the offsets that it has by the newest event."""
        asked = dg.AssetRecordsFilter(asset_key=self.by_hour, asset_partitions=[self.key(hour)])
        found = self.instance.fetch_materializations(asked, limit=10).records
        return len(found), found[0].asset_materialization.metadata["offsets"].value if found else None


@pytest.fixture
def made(services, produce, rows, warm_spark):
    """Makes a group whose hours are told."""
    return lambda **completeness: HourlyGroup(services, produce, rows, warm_spark, **completeness)


@pytest.fixture
def world(made):
    """One whose hours are told as soon as they are complete."""
    return made()


def test_an_hour_that_a_crash_cut_is_told_when_its_crash_lag_is_done(world):
    """Each once, in order, with its offsets; and until then it is said what is waited for."""
    world.crash_at_70()
    assert {hour: told["offsets"].value for hour, told in world.completed_windows().items()} == {0: 60}
    until = f"marked complete up to {world.key(1)[:10]} {world.key(1)[11:]} UTC"
    assert world.waiting_windows() == f"{until}; {world.key(1)} waits for 30 offsets of {world.topic}:0"
    world.grow_to(150)
    assert world.live() is None
    assert world.completed_windows() == {}
    assert world.waiting_windows().endswith(f"50 offsets of {world.topic}:0, 50 of them pending")
    assert world.catch_up((70, 150)) is None
    told = world.completed_windows()
    assert {hour: one["offsets"].value for hour, one in told.items()} == {1: 60, 2: 30}
    assert told[1]["ranges"].value.records[0].data["range"] == "60-120"
    assert told[1]["late_records"].value == 0
    assert world.completed_windows() == {}


def test_a_cursor_that_is_lost_tells_nothing_twice(world):
    """Nor does a tick whose events were stored and whose cursor was not."""
    world.grow_to(130)
    assert world.live() is None
    before = world.cursor
    assert sorted(world.completed_windows()) == [0, 1, 2]
    for lost in (before, None):
        world.cursor = lost
        assert world.completed_windows() == {}


def test_downstream_runs_once_an_hour_over_a_crash_and_is_exact(world):
    """An hourly aggregate with ``AutomationCondition.eager()``, for whichever hour.

    It never reads one in parts.
    """
    asset, defs = world.definitions()

    @dg.asset(
        partitions_def=asset.settings.windows.definition,
        deps=[asset.windows],
        automation_condition=dg.AutomationCondition.eager().without(
            dg.AutomationCondition.in_latest_time_window()
        ),
    )
    def orders_an_hour() -> None:
        """Counts them."""

    defs = dg.Definitions.merge(defs, dg.Definitions(assets=[orders_an_hour]))
    counted, asked = [], None

    def aggregate():
        nonlocal asked
        asked = dg.evaluate_automation_conditions(defs, world.instance, cursor=asked and asked.cursor)
        for key in sorted(asked.get_requested_partitions(orders_an_hour.key)):
            hour = [world.key(hour) for hour in range(5)].index(key)
            minutes = [n for n in world.offsets() if n // 60 == hour]
            counted.append((hour, len(minutes)))
            world.instance.report_runless_asset_event(
                dg.AssetMaterialization(orders_an_hour.key, partition=key)
            )

    aggregate()
    world.crash_at_70()
    for step in (
        lambda: None,
        lambda: (world.grow_to(150), world.live()),
        lambda: world.catch_up((70, 150)),
        lambda: (world.grow_to(200), world.live()),
    ):
        step()
        world.tick()
        aggregate()
        world.tick()
        aggregate()
    assert [one for one in counted if one[0] < 2] == [
        (0, len(written_rows(0, 60))),
        (1, len(written_rows(60, 120))),
    ]
    assert len({hour for hour, _ in counted}) == len(counted)


def test_hours_from_before_the_group_are_told_of_nobody(world):
    """It began in the middle of the second hour: of that one it has only a part."""
    world.grow_to(90)
    assert world.live(offsets=kl.Offsets(auto_offset_reset="latest")) is None
    world.grow_to(150)
    assert world.live() is None
    assert {hour: told["offsets"].value for hour, told in world.completed_windows().items()} == {2: 30}


def test_hours_before_the_first_record_are_not_marked_complete(world):
    """Neither while the first batch is at work, nor later.

    There is no table yet, and downstream would fail.
    """
    world.produce_at(*range(130, 150))
    assert world.completed_windows() == {}
    until = f"{world.key(2)[:10]} {world.key(2)[11:]} UTC"
    assert (
        f"windows before {until} are not marked complete: the group's first record is later"
        in world.waiting_windows()
    )
    assert world.live() is None
    assert {hour: told["offsets"].value for hour, told in world.completed_windows(4).items()} == {2: 20, 3: 0}
    assert f"windows before {until} are not marked complete" in world.waiting_windows(), (
        "as long as someone may wonder"
    )
    assert world.instance.get_materialized_partitions(world.by_hour) == {world.key(2), world.key(3)}


def test_one_sensor_marks_the_hours_of_all_its_idle_groups(made, monkeypatch):
    """Also the one that ends while nothing else changes, before any of them is observed again."""
    clock, groups = SensorClock(monkeypatch), [made(), made()]
    sensor = kl.build_shared_sensor([one.asset() for one in groups], name="groups_sensor")
    first = groups[0]
    for one in groups:
        one.instance = first.instance
        one.grow_to(240)
        assert one.live() is None

    def marked():
        """The hours that a tick marks, by group."""
        events = first.tick(sensor=sensor).asset_events
        found = [one for one in events if isinstance(one, dg.AssetMaterialization)]
        return [sorted(one.partition for one in found if one.asset_key == group.by_hour) for group in groups]

    end = first.begin + 5 * HOUR
    clock.ahead = end - 25 - time.time()
    assert marked() == [[group.key(hour) for hour in range(4)] for group in groups]
    clock.ahead += SETTLE_SECONDS
    assert marked() == [[], []]
    clock.ahead = end + 1 - time.time()
    assert marked() == [[group.key(4)] for group in groups]


def test_hours_wait_for_the_first_record_of_a_topic(world):
    """A producer that fills a new topic begins with its oldest record."""
    assert world.completed_windows() == {}
    assert world.waiting_windows() == "waiting for the first record"
    world.produce_at(*range(30, 70))
    assert world.live() is None
    assert sorted(world.completed_windows()) == [0, 1, 2]


def test_a_start_of_years_ago_is_passed_in_one_tick(made):
    """30,000 hours before the first record, and before the group."""
    world = made(start="2023-06-01")
    world.produce_at(*range(60))
    assert world.live(offsets=kl.Offsets(auto_offset_reset="latest")) is None
    world.produce_at(*range(60, 70), *range(130, 140))
    assert world.live() is None
    assert {hour: told["offsets"].value for hour, told in world.completed_windows().items()} == {2: 10}, (
        "it began within the second"
    )


def test_an_hour_is_not_marked_complete_before_the_table_exists(world):
    """All of it was forgiven, so nothing is owed, and no batch has created the table."""
    world.grow_to(30)

    def die(_batch):
        raise CrashError

    assert isinstance(world.live(die), TransformError)
    assert world.live() is None
    assert world.pending_by_live_log() == [(0, 30)]
    world.write_off(0, 30)
    assert world.completed_windows() == {}
    assert world.waiting_windows().endswith(
        f"{world.key(0)} waits for the table: {world.table} does not exist yet"
    )
    world.produce_at(*range(200, 210))
    assert world.live() is None
    assert world.completed_windows()[0]["written_off_offsets"].value == 30


@pytest.mark.parametrize(("settings", "marked"), [({}, [0, 1, 2]), ({"mark_empty": False}, [0, 2])])
def test_an_empty_hour_between_others_is_marked_complete_or_left_out(made, settings, marked):
    """A grid that waits for it would wait without end; downstream of a slow topic may do without it."""
    world = made(**settings)
    world.produce_at(30, 150)
    assert world.live() is None
    assert sorted(world.completed_windows()) == marked
    assert world.completed_windows() == {}


def test_an_open_transaction_may_be_of_the_hour(world):
    """Nobody knows yet what is in it."""
    world.grow_to(30)
    open_one = world.produce_at(40, **{"transactional.id": world.name})
    assert world.live() is None
    assert world.completed_windows() == {}
    open_one.commit_transaction(120)
    world.log_end += 1  # its marker
    assert world.live() is None
    assert {hour: told["offsets"].value for hour, told in world.completed_windows().items() if hour == 0} == {
        0: 31
    }, "its marker is of today"


def test_partitions_without_records_hold_nobody_up(world):
    """Nor do those that are added, until there is something in them."""
    world.grow_to(70)
    assert world.live() is None
    world.admin.create_partitions([NewPartitions(world.topic, 2)])[world.topic].result()
    assert sorted(world.completed_windows()) == [0, 1, 2], "all that is over is known"
    assert world.late(0) == []


def test_a_record_in_an_added_partition_is_waited_for(world):
    world.grow_to(70)
    assert world.live() is None
    world.admin.create_partitions([NewPartitions(world.topic, 2)])[world.topic].result()
    world.produce_at(5, partition=1)
    assert world.completed_windows() == {}
    assert world.waiting_windows().endswith(f"waits for 1 offsets of {world.topic}:1")
    assert world.live() is None
    assert world.completed_windows()[0]["offsets"].value == 61


def test_records_out_of_order_within_the_lateness_are_in_time(made):
    """The hour ends at the first record that is later by more than that; the clock has passed it too."""
    world = made(allowed_lateness_seconds=600.0)
    world.produce_at(50, 61, 55, 69, 59, 71, 75)
    assert world.live() is None
    told = world.completed_windows()
    assert told[0]["offsets"].value == 5
    assert told[1]["offsets"].value == 6, "from the first record of the second hour on"
    assert world.late(0) == []


@pytest.mark.parametrize("reopens", [True, False])
def test_records_that_come_later_are_counted_on_their_hour(made, reopens):
    """And let it be told again, if somebody wants that, when they are in the table."""
    world = made(reopen_on_late=reopens)
    world.grow_to(70)
    assert world.live() is None
    assert sorted(world.completed_windows()) == [0, 1, 2]
    world.produce_at(30, 31, 100)
    assert world.live() is None
    assert (world.late(0), world.late(1)) == ([2], [1])
    assert {hour: told["late_records"].value for hour, told in world.completed_windows().items()} == (
        {0: 2, 1: 1} if reopens else {}
    )
    world.produce_at(32)
    assert world.live() is None
    assert world.late(0) == [2, 3]
    told = world.completed_windows()
    assert {hour: one["late_records"].value for hour, one in told.items()} == ({0: 3} if reopens else {})
    assert [one["offsets"].value for one in told.values()] == ([60] if reopens else []), (
        "and all that was told before"
    )
    assert world.completed_windows() == {}


def test_what_is_late_is_counted_though_its_run_dies_before_it_commits(made):
    """No late record is hidden by a crash; what its successor writes again it counts again."""
    world = made(reopen_on_late=True)
    world.grow_to(70)
    assert world.live() is None
    assert sorted(world.completed_windows()) == [0, 1, 2]
    world.produce_at(*[30] * 5)
    with patch(
        "kafka_liveness_dagster.kafka.live.consumer.LivenessConsumer.commit",
        side_effect=kl.CommitRefusedError("no"),
    ):
        assert world.live() is not None
    assert world.late(0) == [5]
    assert world.completed_windows() == {}, "it is told again when it counts as done"
    assert world.live() is None
    assert world.late(0) == [5, 10]
    assert {hour: told["late_records"].value for hour, told in world.completed_windows().items()} == {0: 10}


class DiedError(Exception):
    """The end of a run between a commit to the table and the commit of its offsets."""


@pytest.fixture
def dying(monkeypatch):
    """Let one run die when a batch is in the table and ``ready()`` is true; later runs live."""

    @contextmanager
    def during(ready=lambda: True):
        def land_and_die(one, finish):
            finish(one)
            wait_for(ready)
            raise DiedError

        with monkeypatch.context() as patched:
            for name in ("run", "finish"):
                patched.setattr(
                    InFlightWrite, name, partialmethod(land_and_die, getattr(InFlightWrite, name))
                )
            with pytest.raises(DiedError):
                yield

    return during


def test_a_crash_before_the_offset_commit_hides_no_late_record(made, dying):
    """Two batches of late records are in the table and not committed; the next run skips ahead of them."""
    world = made(reopen_on_late=True, settings={"batching": kl.Batching(in_flight=2)})
    world.grow_to(70)
    assert world.live() is None
    assert sorted(world.completed_windows()) == [0, 1, 2]
    world.produce_at(*[30] * 40)
    with dying(lambda: len(world.offsets()) == len(written_rows(0, 110))):
        world.live(max_poll_records=20)
    assert (world.committed(), world.late(0)) == (70, [])
    world.produce_at(*[200] * 40)
    assert world.live() is None
    assert world.pending_by_live_log() == [(110, 150)], (
        "the live lane skipped ahead, and its rows of 70-110 stay"
    )
    assert world.late(0) == [40]
    world.produce_at(*[200] * 5)
    assert world.live() is None
    assert world.late(0) == [40], "once they are committed no run counts them again"
    assert {
        hour: told["late_records"].value for hour, told in world.completed_windows().items() if hour == 0
    } == {0: 40}


def test_a_crash_in_the_catch_up_lane_hides_no_late_record(made, dying):
    """Crash lag is in the table and not in the catch-up commit log.

    The next run of its partition has nothing left to write.
    """
    world = made(reopen_on_late=True)
    world.crash_at_70()
    assert sorted(world.completed_windows()) == [0]
    world.produce_at(*[30] * 20)
    assert world.live() is None
    assert world.pending_by_live_log() == [(70, 120)]
    with dying():
        world.catch_up((70, 120))
    assert world.offsets() == written_rows(0, 120)
    assert world.live() is None
    assert world.pending_by_live_log() == [(70, 120)], "until a catch-up run has recorded them"
    assert world.completed_windows() == {}, "an hour is complete when the commit logs agree with the table"
    assert world.catch_up((70, 120)) is None
    assert world.late(0) == [20]
    assert world.late(1) == [], "records that were in time are not late"
    assert sorted(world.completed_windows()) == [0, 1, 2]
    assert world.catch_up((70, 120)) is None
    assert world.late(0) == [20]


def test_late_records_that_the_broker_has_deleted_are_named(made, dying):
    """Their rows are in the table, so they are not lost, but nothing can count them any more."""
    world = made()
    world.grow_to(70)
    assert world.live() is None
    assert sorted(world.completed_windows()) == [0, 1, 2]
    world.produce_at(*[30] * 40)
    with dying():
        world.live()
    world.produce_at(*[200] * 40)
    world.expire(100)
    assert world.live(offsets=kl.Offsets(on_data_loss="write_off")) is None
    assert world.late(0) == [10]
    assert (
        f"30 offsets (p0:{world.topic}:70-100) may have late records that are not counted"
        in world.newest_log()
    )
    assert "DATA LOSS" not in world.newest_log()


def test_an_hour_by_hand_is_processed_again(world):
    """Exactly its offsets, by today's code; nothing of it is late, and neither commit log changes."""
    world.grow_to(150)
    assert world.live() is None
    assert sorted(world.completed_windows()) == [0, 1, 2]
    before, world.value = (world.committed(), world.catch_up_log(), world.pending_by_live_log()), MENDED
    assert world.materialize(1) is None
    mended = [offset for offset, value in world.values().items() if value.startswith("mended ")]
    assert (mended, world.offsets()) == (written_rows(60, 120), written_rows(0, 150))
    assert (world.committed(), world.catch_up_log(), world.pending_by_live_log()) == before
    assert world.late(1) == []
    assert world.completed_windows() == {}


def test_materialize_all_leaves_complete_hours_alone(world):
    """It reads none of them from Kafka again, and they stay as they were marked.

    One by hand is still processed.
    """
    world.grow_to(150)
    assert world.live() is None
    assert sorted(world.completed_windows()) == [0, 1, 2]
    before, world.value = world.snapshots(), MENDED
    assert world.materialize(0, 2, world.materialize_all()) is None
    assert world.snapshots() == before
    assert [world.marked(hour) for hour in range(3)] == [(2, 60), (2, 60), (2, 30)], (
        "its backfill waits for events"
    )
    assert "materialize its partition without" in world.newest_log()
    assert world.materialize(1) is None
    assert world.snapshots() > before


def test_materialize_all_leaves_other_hours_to_the_sensor(world):
    """An hour that a crash cut is not complete, and one after it may be empty: the complete one stays so."""
    world.crash_at_70()
    assert sorted(world.completed_windows()) == [0]
    before = world.snapshots()
    error = world.materialize(0, 2, world.materialize_all())
    assert isinstance(error, IncompleteWindowError)
    assert f"Windows not marked complete (2): {world.key(1)}, {world.key(2)}" in str(error)
    assert [world.marked(hour) for hour in range(3)] == [(2, 60), (0, None), (0, None)]
    assert world.snapshots() == before


def test_an_hour_by_hand_that_is_not_complete_is_refused(world):
    """With the numbers, and before anything is touched."""
    world.crash_and_resume_at_120()
    before = world.snapshots()
    error = world.materialize(1)
    assert isinstance(error, IncompleteWindowError)
    assert f"50 offsets are pending (p0:{world.topic}:70-120), 0 are not read yet" in str(error)
    assert world.snapshots() == before


def test_an_hour_by_hand_with_old_dead_letters(made):
    """While they are owed the hour is not complete, and the error says how to close it.

    Once forgiven they stay out.
    """
    world = made(settings={"batching": kl.Batching(on_bad_record="dead_letter", in_flight=1)})
    world.value = f"if(offset = 5, raise_error('bad'), {world.value})"
    world.grow_to(70)
    assert world.live() is None
    assert world.completed_windows() == {}
    error = world.materialize(0)
    assert isinstance(error, IncompleteWindowError)
    assert f"1 offsets are pending (p0:{world.topic}:5-6)" in str(error)
    assert (
        f"dead letters among them need another transform, or `kafka-liveness write-off {world.group}`"
        in str(error)
    )
    world.write_off(5, 6)
    assert world.completed_windows()[0]["written_off_offsets"].value == 1
    world.value = f"if(offset = 5, raise_error('bad'), {MENDED})"
    assert world.materialize(0) is None
    mended = [offset for offset, value in world.values().items() if value.startswith("mended ")]
    assert mended == [offset for offset in written_rows(0, 60) if offset != 5]


def test_an_hour_by_hand_that_has_expired_is_refused(world):
    """Its rows are there, and stay."""
    world.grow_to(150)
    assert world.live() is None
    world.expire(70)
    before = world.snapshots()
    error = world.materialize(1)
    assert isinstance(error, kl.DataExpiredError)
    assert f"has deleted the first 70 offsets of {world.topic}:0" in str(error)
    assert world.snapshots() == before


def test_nothing_is_told_while_the_table_cannot_be_asked(world):
    """It may have lost rows of the hour."""
    world.grow_to(70)
    assert world.live() is None
    nobody = kl.SparkConnectResource(remote="sc://127.0.0.1:1")
    told = [one for one in world.tick(nobody).asset_events if isinstance(one, dg.AssetMaterialization)]
    assert told == []
    assert sorted(world.completed_windows()) == [0, 1, 2]


def test_rows_that_the_table_has_lost_hold_their_hour_up(world):
    world.grow_to(70)
    assert world.live() is None
    world.drop_table()
    assert world.completed_windows() == {}
