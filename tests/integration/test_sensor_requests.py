"""Which runs the group sensor asks for, and which it ends, with a group on the real broker."""

from __future__ import annotations

import time
from types import SimpleNamespace

import dagster as dg
import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.kafka.errors import TopicNotFoundError
from kafka_liveness_dagster.runs.tags import lane_tags
from kafka_liveness_dagster.sensor import sensor as sensors
from tests.integration.kafka_group import NO_SPARK, SECONDS, join

STARTED, FAILURE = dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.FAILURE


@dg.job
def page():
    """A user's own, for what happens to the group."""


class Desk:
    """A Dagster with the asset of a world's topic: ticks by hand, runs that only Dagster knows."""

    def __init__(self, world, instance, **settings):
        self.world, self.instance, self.cursor = world, instance, None

        @kl.kafka_asset(
            topics=[world.topic],
            group_id=world.group,
            table="lake.shop.orders",
            name="orders",
            enable_parallel_rebalance=True,
            **settings,
        )
        def orders(batch):
            return batch

        self.asset = orders
        self.defs = dg.Definitions.merge(
            orders.definitions,
            dg.Definitions(
                resources={"kafka": world.kafka, "spark": kl.SparkConnectResource(remote="sc://localhost")}
            ),
        )

    def tick(self):
        """One look; what it adds is added, and its cursor kept."""
        context = dg.build_sensor_context(
            self.instance,
            self.cursor,
            definitions=self.defs,
            resources={"kafka": self.world.kafka, "spark": NO_SPARK},
            sensor_name="orders_sensor",
        )
        # As the daemon's ticks are
        with context, dg.partition_loading_context(dynamic_partitions_store=self.instance):
            result = self.asset.sensor.evaluate_tick(context)
        for added in result.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(added.partitions_def_name, list(added.partition_keys))
        self.cursor = result.cursor
        return result

    def wanted(self):
        """Job and partition of each run that a look asks for."""
        return [(request.job_name, request.partition_key) for request in self.tick().run_requests]

    def run(self, lane, status=STARTED, **tags):
        """A run as Dagster knows it; no process works for it."""
        job = self.defs.resolve_job_def("orders_job" if lane == "live" else "orders_crash_lag_job")
        run = self.instance.create_run_for_job(job, tags={**lane_tags(self.world.group, lane), **tags})
        for event in ("PIPELINE_STARTING", "PIPELINE_START"):
            self.instance.report_dagster_event(
                dg.DagsterEvent(event_type_value=event, job_name=run.job_name), run.run_id
            )
        if status is FAILURE:
            self.instance.report_run_failed(run)
        return run.run_id

    def status(self, run_id):
        return self.instance.get_run_by_id(run_id).status


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as found:
        yield found


def test_which_partitions_there_are_is_asked_when_something_else_is_owed(crashed, instance, monkeypatch):
    """They are never removed, and all of them are read to know of one.

    Not again at looks that find the same owed.
    """
    asked, ask = [], instance.get_dynamic_partitions
    monkeypatch.setattr(instance, "get_dynamic_partitions", lambda name: asked.append(name) or ask(name))
    desk = Desk(crashed, instance)
    desk.tick()
    assert asked == [], "nothing is owed: however many there are"
    with crashed.live() as consumer:
        join(crashed, consumer)
        desk.tick()
        assert ask("orders_crash_lag") == [f"p3:{crashed.topic}:70-120"]
        desk.tick()  # what the one before it added is an event no more
        so_far = len(asked)
        assert [desk.tick().dynamic_partitions_requests for _ in range(3)] == [[]] * 3
        assert len(asked) == so_far
        with crashed.catch_up((70, 120), max_poll_records=30) as lane:
            lane.commit(lane.poll())
        assert not desk.tick().dynamic_partitions_requests
        assert len(asked) == so_far + 1


def test_a_partition_that_somebody_deleted_comes_back_though_there_is_always_something_to_tell(
    crashed, instance, monkeypatch
):
    """A run that comes and goes more than once a minute is an event at each look.

    What is owed stays as it is.
    """
    desk, began = Desk(crashed, instance), time.time()
    clock = SimpleNamespace(**{**vars(time), "time": lambda: began})
    monkeypatch.setattr(sensors, "time", clock)
    desk.tick()
    with crashed.live() as consumer:
        join(crashed, consumer)
        desk.tick()
    (key,) = instance.get_dynamic_partitions("orders_crash_lag")
    instance.delete_dynamic_partition("orders_crash_lag", key)
    for seconds in (25, 50, 75):
        clock.time = lambda at=began + seconds: at
        with crashed.live() as consumer:
            join(crashed, consumer)
            told = desk.tick()
            assert told.asset_events, "it has joined"
        desk.tick()
    assert instance.get_dynamic_partitions("orders_crash_lag") == [key]


def test_a_hook_that_fails_does_not_keep_the_live_lane_down(crashed, instance):
    """The live run is requested, the topic's asset shows the mistake, the valid requests are made once."""

    def hook(event):
        if isinstance(event, kl.MemberLeft):
            raise ZeroDivisionError
        return dg.RunRequest(tags={"about": str(event)})

    desk = Desk(crashed, instance, sensor=kl.Sensor(on_event=hook, event_jobs=[page]))
    first = desk.tick()
    assert [request.job_name for request in first.run_requests] == ["orders_job"]
    assert "on_event failed with ZeroDivisionError" in first.asset_events[0].description
    with crashed.live() as consumer:
        join(crashed, consumer)
        before = desk.cursor
        asked = {request.tags["about"]: request.run_key for request in desk.tick().run_requests}
        desk.cursor = before
        again = {request.tags["about"]: request.run_key for request in desk.tick().run_requests}
    assert f"run {consumer._run_context.short_run_id} joined with {crashed.topic}:0" in " ".join(asked)
    assert f"crash lag p3:{crashed.topic}:70-120, 50 offsets, is pending" in asked
    assert {request.job_name for request in first.run_requests} == {"orders_job"}
    assert len(set(asked.values())) == len(asked)
    assert all(asked[about] == key for about, key in again.items()), (
        "a tick that is repeated starts nothing twice"
    )


def test_crash_lag_is_caught_up_one_run_at_a_time(crashed, instance, monkeypatch):
    """Oldest first, none beside another, none of a held partition.

    Who fails makes room, and is tried ever later.
    """
    w = crashed
    desk = Desk(w, instance, crash_lag=kl.CrashLag(auto_catch_up=True))
    with pytest.raises(ZeroDivisionError), w.live() as consumer:
        join(w, consumer)
        w.grow_to(170)
        w.process(consumer, 140)
        raise ZeroDivisionError
    w.grow_to(190)
    with w.live() as consumer:
        join(w, consumer)
        older, younger = (("orders_crash_lag_job", f"p3:{w.topic}:{span}") for span in ("70-120", "140-190"))
        assert desk.wanted() == [], "partitions are added before their runs are asked for"
        assert desk.wanted() == desk.wanted() == [older]
        consumer.pause(w.topic, 3)
        assert desk.wanted() == []
        consumer.resume(w.topic, 3)
        run = desk.run("catch-up", **{"dagster/partition": older[1]})
        assert desk.wanted() == [], "one is in progress"
        instance.report_run_failed(instance.get_run_by_id(run))
        assert desk.wanted() == [younger], "the one that failed must not hold up the others"
        for key in (younger, older):
            desk.run("catch-up", FAILURE, **{"dagster/partition": key[1]})
        assert desk.wanted() == [], "three failures in a row: not at once"
        now = time.time()
        monkeypatch.setattr(sensors, "time", SimpleNamespace(time=lambda: now + 15, monotonic=time.monotonic))
        assert desk.wanted() == [younger]
        desk.run("catch-up", FAILURE)
        assert desk.wanted() == [], "20 s after the fourth one"


@pytest.mark.parametrize(("seconds", "delayed"), [(400, False), (200, True)])
def test_a_run_that_worked_for_long_does_not_fail_all_the_time(
    world, instance, monkeypatch, seconds, delayed
):
    """What ends one run a week is no reason to wait.

    The next one starts at once, however often it came before.
    """
    world.grow_to(10)
    desk, now = Desk(world, instance), time.time()
    for _ in range(4):
        desk.run("live", FAILURE)
    assert desk.wanted() == []
    records = instance.get_run_records
    monkeypatch.setattr(
        type(instance),
        "get_run_records",
        lambda _, *a, **k: [
            record._replace(start_time=now - seconds, end_time=now) for record in records(*a, **k)
        ],
    )
    assert (desk.wanted() == []) is delayed


def test_a_clock_that_is_set_back_holds_nothing_up(world, instance, monkeypatch):
    """The host's was a day ahead while runs failed.

    The next one starts, and the group is told of, without that day.
    """
    world.grow_to(10)
    desk, now = Desk(world, instance), time.time()
    tomorrow, records = now + 86_400, instance.get_run_records
    monkeypatch.setattr(sensors, "time", SimpleNamespace(time=lambda: tomorrow, monotonic=time.monotonic))
    for _ in range(4):
        desk.run("live", FAILURE)
    monkeypatch.setattr(
        type(instance),
        "get_run_records",
        lambda _, *a, **k: [
            record._replace(start_time=tomorrow, end_time=tomorrow) for record in records(*a, **k)
        ],
    )
    assert desk.wanted() == [], "four in a row"
    monkeypatch.setattr(sensors, "time", SimpleNamespace(time=lambda: now, monotonic=time.monotonic))
    told = desk.tick()
    assert [request.job_name for request in told.run_requests] == ["orders_job"]
    assert told.asset_events, "it was observed a day from now"
    assert not desk.tick().asset_events, "and now"


@pytest.mark.parametrize("commits", [True, False])
def test_a_run_that_commits_does_not_fail_all_the_time(world, instance, commits):
    """Four that die one after the other, as on a host that loses its workers.

    And four that die of a batch.
    """
    desk = Desk(world, instance)

    @dg.op
    def consume(context):
        with world.live(context=context) as consumer:
            join(world, consumer)
            world.grow_to(world.log_end + 10)
            batch = consumer.poll(SECONDS)
            if commits:
                consumer.commit(batch)
            raise ZeroDivisionError

    @dg.job(tags=lane_tags(world.group, "live"))
    def live():
        consume()

    for _ in range(4):
        assert not live.execute_in_process(instance=instance, raise_on_error=False).success
    assert (desk.wanted() != []) is commits


def test_no_more_live_runs_than_partitions(world, instance):
    """A fifth run would have nothing to do at four partitions, whatever max_live_runs says."""
    world.grow_to(10)
    desk = Desk(world, instance, sensor=kl.Sensor(max_live_runs=9))
    asked = []
    for _ in range(6):
        asked.append(len(desk.wanted()))
        desk.run("live")
    assert asked == [1, 1, 1, 1, 0, 0]


def test_a_topic_that_is_gone_is_told(world, instance):
    """The tick fails by name: a sensor that looks at nothing would look healthy."""
    desk = Desk(world, instance)
    world.topic = "nowhere"
    with pytest.raises(TopicNotFoundError, match="'nowhere' does not exist"):
        Desk(world, instance).tick()
    assert desk.cursor is None
