"""What the group sensor asks Dagster for, where no broker is needed to know it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import get_args

import dagster as dg
import pytest
from dagster._daemon.sensor import MIN_INTERVAL_LOOP_TIME

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.departures import GroupState
from kafka_liveness_dagster.core.event_detection import (
    MAX_ABSENT,
    MAX_REMEMBERED,
    MAX_REPORTED,
    SeenMember,
    SensorMemory,
)
from kafka_liveness_dagster.core.events import GroupEmptied, GroupEvent, LeaveReason, MemberJoined, MemberLeft
from kafka_liveness_dagster.core.orphaned_runs import Absence
from kafka_liveness_dagster.sensor.checks import StoredResults
from kafka_liveness_dagster.sensor.cursor import GroupCursor
from kafka_liveness_dagster.sensor.run_requests import EventHook

LOG = logging.getLogger(__name__)
CRASH = MemberLeft("0badcafe", LeaveReason.CRASHED, ())
JOIN = MemberJoined("0000beef", ())
JOBS = ["orders_job", "page", "other"]
LATER = GroupCursor(started_at=1_795_000_000, event_count=7)


def keys(events, cursor=LATER, hook=lambda _: dg.RunRequest()):
    """The run keys of what a hook wants."""
    requests, _ = EventHook("orders_sensor", hook, "page", JOBS).call(events, cursor, LOG)
    return [request.run_key for request in requests]


def test_a_group_is_looked_at_in_each_round_of_dagsters_daemon():
    """The interval is counted from the last tick.

    One as long as a round, and every second round comes too early.
    """
    assert kl.Sensor().minimum_interval_seconds <= MIN_INTERVAL_LOOP_TIME - 2


def test_a_request_gets_a_run_key_and_a_job():
    """Both are the event's unless the hook gives its own."""
    own = dg.RunRequest(run_key="mine", job_name="other", tags={"a": "b"})
    requests, failed = EventHook("orders_sensor", lambda _: [dg.RunRequest(), own], "page", JOBS).call(
        [CRASH], LATER, LOG
    )
    assert [request.job_name for request in requests] == ["page", "other"]
    assert requests[0].run_key.startswith("orders_sensor ")
    assert (requests[1].run_key, requests[1].tags, failed) == ("mine", {"a": "b"}, [])


@pytest.mark.parametrize(
    ("request_", "jobs", "why"),
    [
        (dg.RunRequest(job_name="typo"), JOBS, "a RunRequest for job 'typo': wanted one of orders_job, page"),
        (dg.RunRequest(), JOBS, "a RunRequest without a job_name: wanted one of orders_job, page, other"),
    ],
)
def test_a_job_that_the_sensor_does_not_have_is_refused(request_, jobs, why):
    """Dagster would refuse the whole tick, and store nothing of it."""
    requests, [failed] = EventHook("orders_sensor", lambda _: request_, None, jobs).call([CRASH], LATER, LOG)
    assert (requests, why in failed, "No run was requested for: " in failed) == ([], True, True)


def test_a_repeated_tick_asks_for_the_same():
    """Its cursor was not saved: what it told is told again, among more or less, and starts nothing twice."""
    crash, join = keys([CRASH, JOIN])
    assert keys([JOIN]) == [join]
    assert keys([GroupEmptied(), CRASH])[1] == crash


def test_what_happens_again_is_asked_for_again():
    """The next departure of the same run has a key of its own, and so have two requests for one event."""
    again = [*keys([CRASH]), *keys([CRASH], LATER.model_copy(update={"event_count": 8}))]
    twice = [*keys([CRASH, CRASH]), *keys([CRASH], hook=lambda _: [dg.RunRequest(), dg.RunRequest()])]
    assert len({*again, *twice}) == 4
    after_reset = GroupCursor(started_at=1_795_000_001, event_count=7)
    assert keys([CRASH], after_reset) != keys([CRASH]), "the cursor was reset in the UI"


def test_a_hook_that_fails_is_seen_and_stops_nothing(caplog):
    """The other events are answered; what went wrong is in the log, and in words for the observation."""

    def hook(event):
        if event is CRASH:
            raise ZeroDivisionError
        return dg.RunRequest()

    requests, failed = EventHook("orders_sensor", hook, "page", JOBS).call([CRASH, JOIN], LATER, LOG)
    assert len(requests) == 1
    assert failed == [f"on_event failed with ZeroDivisionError. No run was requested for: {CRASH}"]
    assert "ZeroDivisionError" in caplog.text
    assert EventHook("orders_sensor", None, None, JOBS).call([CRASH], LATER, LOG) == ([], [])


def test_the_cursor_is_small_and_keeps_what_it_is_given():
    """Stored with every tick: about 2 kB at its fullest."""
    memory = SensorMemory(
        GroupState.REBALANCING,
        {f"{n:08x}": SeenMember("x" * 24, is_foreign=True) for n in range(MAX_REMEMBERED)},
        {f"{n:08x}": LeaveReason.POLL_TIMEOUT for n in range(MAX_REPORTED)},
        assignment_hash="0" * 8,
        rebalancing_since=1_795_000_000.125,
        absent_runs={
            f"{n:08x}": Absence(1_795_000_000, 1_795_000_000, 10_000, is_reported=True)
            for n in range(MAX_ABSENT)
        },
        last_tick_at=1_795_000_000,
    )
    cursor = GroupCursor.of(
        memory, observed_at=1_795_000_000.123456, started_at=1_795_000_000, event_count=10**6
    )
    assert len(cursor.encode()) < 2_100
    assert GroupCursor.decode(cursor.encode()).memory == memory
    more = replace(
        memory, absent_runs={"0badcafe": Absence(1_795_000_010, 1_795_000_010), **memory.absent_runs}
    )
    kept = GroupCursor.of(more, observed_at=0.0, started_at=1, event_count=0)
    assert kept.memory == memory, "of more runs the oldest"


def test_a_cursor_says_what_it_means():
    """Codes and fields.

    A reason that is added, or a foreign client of any name, makes it mean nothing else.
    """
    members = {"1": SeenMember("0badcafe"), "2": SeenMember("0badcafe", is_foreign=True)}
    memory = SensorMemory(
        GroupState.EMPTY, members, {"0000beef": LeaveReason.MAX_RUNTIME_REACHED}, assignment_hash="0" * 8
    )
    cursor = GroupCursor.of(memory, observed_at=0.0, started_at=1, event_count=0)
    assert (cursor.member_runs, cursor.external_members) == ({"1": "0badcafe"}, {"2": "0badcafe"})
    assert cursor.reported_departures == {"max-runtime-reached": "0000beef"}
    later = cursor.model_copy(
        update={"reported_departures": {**cursor.reported_departures, "abducted": "0000cafe"}}
    )
    assert GroupCursor.decode(later.encode()).memory == memory, "a later version's reason"


def test_a_clock_that_was_set_back_delays_nothing():
    """No moment in the cursor is later than now.

    The group is observed at once, and no run is absent in the future.
    """
    memory = SensorMemory(
        GroupState.STABLE,
        {},
        {},
        assignment_hash="1",
        rebalancing_since=2_000.0,
        absent_runs={"0badcafe": Absence(2_000, 2_000, 7)},
        last_tick_at=2_000.0,
    )
    cursor = GroupCursor.of(
        memory, observed_at=2_000.0, started_at=1, event_count=7, checks=StoredResults("", 2_000.0)
    )
    assert cursor.as_of(2_010.0) == cursor
    back = cursor.as_of(1_000.0)
    assert (back.observed_at, back.checks_stored_at, back.event_count) == (0.0, 1_000.0, 7)
    assert back.memory.absent_runs == {"0badcafe": Absence(1_000, 1_000, 7)}
    assert (back.memory.rebalancing_since, back.memory.last_tick_at) == (1_000.0, 1_000.0)


@pytest.mark.parametrize(
    "cursor",
    [
        None,
        "",
        "{",
        '{"group_state": "asleep"}',
        "7",
        '{"reported_departures": ["0badcafe"], "group_state": "empty"}',
        '{"member_runs": 7, "group_state": "empty"}',
        '{"absent_runs": {"0badcafe": 1795000000}, "group_state": "empty"}',
        '{"forgotten_ranges": ["orders"], "group_state": "empty"}',
        '{"forgotten_ranges": [7], "group_state": "empty"}',
    ],
)
def test_a_cursor_of_another_version_is_none(cursor):
    """What cannot be read begins anew."""
    assert GroupCursor.decode(cursor) == GroupCursor()
    assert GroupCursor.decode(cursor).memory is None


def test_the_page_shows_a_hook_that_works(example):
    """A crash asks for the job with a config that the job takes, a graceful leave for nothing."""
    shown = example("alerts")
    asset, done = shown.orders, MemberLeft("0000beef", LeaveReason.GRACEFUL, ())
    settings = asset.settings.sensor
    name = settings.event_jobs[0].name
    requests, failed = EventHook("orders_sensor", settings.on_event, name, [name]).call(
        [CRASH, done], LATER, LOG
    )
    assert ([request.job_name for request in requests], failed) == (["page_someone"], [])
    assert shown.page_someone.execute_in_process(run_config=requests[0].run_config).success
    assert {job.name for job in asset.sensor.jobs} == {"orders_job", "page_someone"}


def test_the_page_has_every_event():
    """Each reason's words and each event's name."""
    page = (Path(__file__).parents[1] / "docs" / "sensor.md").read_text(encoding="utf-8")
    assert [reason for reason in LeaveReason if reason.value not in page or reason.name not in page] == []
    assert [event.__name__ for event in get_args(GroupEvent) if event.__name__ not in page] == []
