"""The sensor's observation of a group and its run requests, on prepared commit logs and a real instance."""

from __future__ import annotations

import logging
import re
import time
from types import SimpleNamespace

import dagster as dg
import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core import health
from kafka_liveness_dagster.core.commit_metadata import GroupOrigin, LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.departures import GroupSnapshot, GroupState, Run, RunFate
from kafka_liveness_dagster.core.events import LeaveReason
from kafka_liveness_dagster.core.health import Severity
from kafka_liveness_dagster.core.ledger import LedgerEntry
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.core.orphaned_runs import Absence
from kafka_liveness_dagster.core.process_status import ProcessStatus
from kafka_liveness_dagster.core.run_ids import short_run_id
from kafka_liveness_dagster.kafka import timestamps
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError
from kafka_liveness_dagster.kafka.group_description import (
    CommittedOffset,
    GroupDescription,
    MemberDescription,
)
from kafka_liveness_dagster.runs.tags import CAUSE_CRASH_LAG, CAUSE_TAG, FENCED_TAG, PARTITION_TAG, lane_tags
from kafka_liveness_dagster.sensor.asset_events import group_observations
from kafka_liveness_dagster.sensor.dead_runs import OrphanedRuns, free_pool_slots
from kafka_liveness_dagster.sensor.observation import GroupObservation
from kafka_liveness_dagster.sensor.run_requests import RunRequests

GROUP, CATCH_UP, TOPIC = "orders-etl", "orders-etl.catch-up", "orders"
AT, ID = TopicPartition(TOPIC, 3), "2Mq71qnKT1ul7FBvra2xew"
RUN, SECOND_RUN = "0badcafe-1111-4222-8333-444444444444", "0000beef-1111-4222-8333-444444444444"
STARTED, SUCCESS, FAILURE = (
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.SUCCESS,
    dg.DagsterRunStatus.FAILURE,
)
LOG = logging.getLogger(__name__)
REQUESTS = RunRequests(
    group_id=GROUP, live_job_name="orders_job", crash_lag_job_name="orders_crash_lag_job", max_live_runs=1
)


class Cluster:
    """A cluster with one partition: 120 offsets, 100 of them committed by a run that crashed, 70-100 pending.

    Attributes:
        logs: the commit of each commit log.
        members: of the group.
        bounds: log start and log end of the partition.
        when_observed: called when the group's members are listed.
    """

    settings = None

    def __init__(self):
        first = CommittedOffset(
            100, LiveCommitMetadata(OwnerState.RELEASED, RUN[:8], (Span(70, 100),)).encode()
        )
        self.logs, self.members, self.bounds = {GROUP: first}, [], (0, 120)
        self.when_observed = lambda: None

    def find_coordinator(self, group_id):
        """Prepare a query."""

    def partitions(self, topics):
        return [AT]

    def commits(self, group_id, partitions):
        return {tp: self.logs[group_id] for tp in partitions if group_id in self.logs}

    def log_bounds(self, partitions):
        return dict.fromkeys(partitions, self.bounds)

    def topic_ids(self, topics):
        return dict.fromkeys(topics, ID)

    def group(self, group_id):
        self.when_observed()
        return GroupDescription("STABLE" if self.members else "EMPTY", tuple(self.members))


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as found:
        yield found


def add_run(instance, run_id, lane="live", status=STARTED, **tags):
    """Add a run as Dagster knows it."""
    run = dg.DagsterRun("orders_job", run_id=run_id, status=status, tags={**lane_tags(GROUP, lane), **tags})
    instance.add_run(run)


def end_run(instance, run_id, event="PIPELINE_SUCCESS"):
    """Report the end of a run."""
    instance.report_dagster_event(dg.DagsterEvent(event_type_value=event, job_name="orders_job"), run_id)


def observe(cluster, instance):
    return GroupObservation.read(cluster, instance, GROUP, [TOPIC])


# --- both commit logs ---------------------------------------------------------------------------------------


def test_offsets_that_the_second_commit_log_has_as_done_are_not_pending(cluster, instance):
    """A range is pending while the live commit log has it as skipped and the second has it not as done."""
    pending = [str(one) for one in observe(cluster, instance).pending]
    assert pending == ["p3:orders:70-100"], "without a catch-up commit log all of it is pending"
    cluster.logs[CATCH_UP] = CommittedOffset(80, "kl1 done @- 90-100")
    assert [str(one) for one in observe(cluster, instance).pending] == ["p3:orders:80-90"]


def test_a_stray_commit_in_the_catch_up_log_is_reported(cluster, instance):
    """A consumer with auto-commit in G.catch-up: without a table the pending offsets are an upper bound."""
    cluster.logs[CATCH_UP] = CommittedOffset(120, "")
    seen = observe(cluster, instance)
    [partition] = seen.snapshot.partitions
    assert partition.outstanding == (Span(70, 100),)
    assert (seen.pending, seen.still_pending(["p3:orders:70-100"])) == ([], []), (
        "no partition is added, and no run requested"
    )
    [line] = seen.external_commit_lines
    assert line.startswith(
        "orders:3: an external commit replaced the catch-up commit log (offset 120, metadata '')"
    )
    age = health.crash_lag_age(seen.snapshot.partitions, 0.0, (), None)
    assert (age.severity, age.message) == (Severity.WARNING, f"unknown: {line}")


def test_the_table_has_its_say_about_a_stray_commit(cluster, instance):
    """Its ledger knows which pending offsets are done."""
    origin = GroupOrigin(0, ID)
    cluster.logs[GROUP] = CommittedOffset(
        100, LiveCommitMetadata(OwnerState.RELEASED, RUN[:8], (Span(70, 100),), origin=origin).encode()
    )
    cluster.logs[CATCH_UP] = CommittedOffset(120, "not ours")
    table = SimpleNamespace(
        target="lake.shop.orders",
        read=lambda asked: dict.fromkeys(asked, LedgerEntry((Span(0, 80),), (Span(90, 95),), 0, topic_id=ID)),
    )
    seen = GroupObservation.read(cluster, instance, GROUP, [TOPIC], ledger=table)
    assert [str(one) for one in seen.pending] == ["p3:orders:80-90", "p3:orders:95-100"]
    exact = health.no_missing_rows(seen.snapshot, (), "")
    assert (exact.severity, exact.message) == (Severity.WARNING, seen.external_commit_lines[0])
    [told] = group_observations(GROUP, [TOPIC], seen, ())
    assert told.metadata["external_commits"] == dg.MetadataValue.md(f"- `{seen.external_commit_lines[0]}`")


@pytest.mark.parametrize("end", [2**63 - 1, 2_000])
def test_offsets_that_the_log_does_not_have_are_not_pending(cluster, instance, end):
    """A partition of them would stay missing for ever."""
    cluster.logs[GROUP] = CommittedOffset(100, f"kl1 released {RUN[:8]} @- 70-80,1000-{end}")
    seen = observe(cluster, instance)
    assert [str(one) for one in seen.pending] == ["p3:orders:70-80"]
    ignored = f"orders:3: pending offsets at or above the committed offset are ignored: 1000-{end}"
    assert seen.external_commit_lines == [ignored]
    # A pending range up to a commit above the log end, which is 120
    cluster.logs[GROUP] = CommittedOffset(end, f"kl1 released {RUN[:8]} @- 70-{end}")
    assert [str(one) for one in observe(cluster, instance).pending] == ["p3:orders:70-120"]


# --- requests for the live lane -----------------------------------------------------------------------------


def test_a_live_run_that_started_after_the_observation_leaves_no_room_for_another(cluster, instance):
    """Dagster is queried for runs in progress right before the request."""
    seen = observe(cluster, instance)
    [request], _ = REQUESTS.live_run(instance, seen, 0.0, ())
    assert request.job_name == "orders_job"
    add_run(instance, SECOND_RUN)
    requests, why = REQUESTS.live_run(instance, seen, 0.0, ())
    assert (requests, why.partition(";")[0]) == ([], "Nothing to start: the live run is in progress")


def test_no_live_run_is_requested_for_lag_on_paused_partitions(cluster, instance):
    """A live run would find nothing that it may process."""
    cluster.logs[GROUP] = CommittedOffset(100, LiveCommitMetadata(OwnerState.PAUSED, RUN[:8]).encode())
    requests, why = REQUESTS.live_run(instance, observe(cluster, instance), 0.0, ())
    assert (requests, why) == ([], "Nothing to start: all records are read; lag 20, 0 offsets pending")


def test_live_runs_that_fail_in_a_row_are_requested_at_longer_intervals(cluster, instance):
    """The delay begins with the third failure and is counted from the end of the last run."""
    for number in range(3):
        add_run(instance, f"0000000{number}-1111-4222-8333-444444444444")
        end_run(instance, f"0000000{number}-1111-4222-8333-444444444444", "PIPELINE_FAILURE")
    seen = observe(cluster, instance)
    [newest, *_] = seen.records
    wanted = [
        bool(REQUESTS.live_run(instance, seen, newest.end_time + seconds, ())[0]) for seconds in (9, 11)
    ]
    assert wanted == [False, True]


# --- requests for the catch-up lane -------------------------------------------------------------------------


def catch_up(cluster, instance, *keys):
    requests = REQUESTS.catch_up_run(instance, observe(cluster, instance), lambda: keys, time.time(), ())
    assert {request.tags[CAUSE_TAG] for request in requests} <= {CAUSE_CRASH_LAG}
    return [request.partition_key for request in requests]


def test_one_partition_is_caught_up_at_a_time(cluster, instance):
    """A second run is requested when the first one has ended."""
    keys = ["p3:orders:70-90", "p3:orders:90-100"]
    assert catch_up(cluster, instance, *keys) == keys[:1]
    add_run(instance, SECOND_RUN, "catch-up")
    assert catch_up(cluster, instance, *keys) == []
    end_run(instance, SECOND_RUN)
    assert catch_up(cluster, instance, *keys) == keys[:1]


def test_crash_lag_of_a_paused_partition_is_not_caught_up(cluster, instance):
    """The run would be refused."""
    cluster.logs[GROUP] = CommittedOffset(
        100, LiveCommitMetadata(OwnerState.PAUSED, RUN[:8], (Span(70, 100),)).encode()
    )
    assert catch_up(cluster, instance, "p3:orders:70-100") == []


def test_a_partition_that_fails_does_not_keep_the_others_from_being_caught_up(cluster, instance):
    """The partition with the fewest failures in a row is next."""
    add_run(instance, SECOND_RUN, "catch-up", FAILURE, **{PARTITION_TAG: "p3:orders:70-90"})
    assert catch_up(cluster, instance, "p3:orders:70-90", "p3:orders:90-100") == ["p3:orders:90-100"]


# --- departures ---------------------------------------------------------------------------------------------


def test_the_reason_of_a_departure_is_read_after_the_members(cluster, instance):
    """A run reports why it leaves before it leaves: the tags are read again once it is no member any more."""
    add_run(instance, RUN)
    cluster.logs[GROUP] = CommittedOffset(100, LiveCommitMetadata(OwnerState.RUNNING, RUN[:8]).encode())
    cluster.when_observed = lambda: instance.add_run_tags(RUN, {FENCED_TAG: "poll-timeout"})
    [gone] = observe(cluster, instance).snapshot.owners_without_member
    assert (gone.run, gone.reason) == (RUN[:8], LeaveReason.POLL_TIMEOUT)


def test_a_run_that_dagster_lists_no_longer_among_the_newest_is_of_this_instance(cluster, instance):
    """The runs of all members are queried by their ids before one counts as another instance's."""
    client_id = f"dagster/orders_job/{RUN}/orders"
    cluster.members = [MemberDescription("member-1", client_id, "/127.0.0.1", partitions=(AT,))]
    assert [member.is_of_other_instance for member in observe(cluster, instance).snapshot.members] == [True]
    instance.add_run(dg.DagsterRun("orders_job", run_id=RUN, status=STARTED))
    assert [member.is_of_other_instance for member in observe(cluster, instance).snapshot.members] == [False]


def test_a_foreign_member_brings_no_markdown_and_no_link(cluster, instance):
    """Dagster's pages render events as markdown; anybody who may join the group chooses a client.id."""
    cluster.members = [
        MemberDescription("member-1", "[a](http://b.c)|`<i>www.d.e", "/127.0.0.1", partitions=(AT,))
    ]
    [member] = observe(cluster, instance).snapshot.members
    assert member.name == "?a?(http:??b.c)???i?www?"
    cluster.members = [MemberDescription("member-1", "orders_app-1", "/10.0.0.7", partitions=(AT,))]
    [member] = observe(cluster, instance).snapshot.members
    assert member.name == "orders_app-1 at 10.0.0.7"


def test_external_metadata_brings_no_markdown(cluster, instance):
    """It is between marks of code, which render neither links nor HTML; it holds no such mark itself."""
    cluster.logs[CATCH_UP] = CommittedOffset(5, "`[a](http://b.c)`")
    [told] = group_observations(GROUP, [TOPIC], observe(cluster, instance), [])
    line = told.metadata["external_commits"].value
    assert re.fullmatch(r"- `[^`\n]*\[a\]\(http://b\.c\)[^`\n]*`", line), line


# --- runs without a process ---------------------------------------------------------------------------------


def ghosts_of(instance, run_id):
    """The ghosts of an observation in which the process of a run in progress is gone."""
    runs = {short_run_id(run_id): Run(RunFate.IN_PROGRESS, process=ProcessStatus.GONE)}
    seen = GroupObservation(GroupSnapshot(GroupState.EMPTY, (), (), runs=runs), instance.get_run_records())
    return OrphanedRuns(
        seen, {short_run_id(run_id): Absence(0, 0)}, time.time(), after_seconds=60.0, always=False
    )


def test_a_run_that_ended_after_the_observation_is_not_reported_as_failed(instance):
    """Dagster is queried for the run's state right before its failure is reported."""
    add_run(instance, RUN)
    found = ghosts_of(instance, RUN)
    end_run(instance, RUN)
    assert not found.end_dead_runs(instance, "sensor orders_sensor", LOG), (
        "an ended run was reported as failed"
    )
    assert instance.get_run_by_id(RUN).status is SUCCESS


def test_a_run_whose_process_is_gone_is_reported_as_failed(instance):
    """Once: the next observation finds it ended."""
    add_run(instance, RUN)
    found = ghosts_of(instance, RUN)
    assert [found.end_dead_runs(instance, "sensor orders_sensor", LOG) for _ in range(2)] == [True, False]
    assert instance.get_run_by_id(RUN).status is FAILURE


POOL = "orders_pool"


@dg.asset(pool=POOL)
def pooled():
    """An asset with a pool."""


def test_slots_of_a_pool_come_free_when_their_run_is_over_for_a_while():
    """Not those of a run in progress, nor those that Dagster gives back itself at this moment."""
    with dg.instance_for_test() as instance:
        storage = instance.event_log_storage
        storage.set_concurrency_slots(POOL, 3)
        add_run(instance, RUN)
        add_run(instance, SECOND_RUN)
        for run_id in (RUN, SECOND_RUN):
            storage.claim_concurrency_slot(POOL, run_id, "pooled")
        end_run(instance, RUN)
        ended = instance.get_run_record_by_id(RUN).end_time

        def claimed(seconds):
            free_pool_slots(instance, pooled, ended + seconds)
            return {slot.run_id for slot in storage.get_concurrency_info(POOL).claimed_slots}

        assert claimed(59) == {RUN, SECOND_RUN}
        assert claimed(61) == {SECOND_RUN}


# --- a tick -------------------------------------------------------------------------------------------------


@pytest.fixture
def tick(cluster, instance, monkeypatch, tmp_path):
    """Evaluate the sensor once; add the partitions that it requests."""
    monkeypatch.setenv("KAFKA_LIVENESS_HOME", str(tmp_path))  # the embedded Spark does not run there
    monkeypatch.setattr(timestamps, "open_transactions", lambda *_: ())
    monkeypatch.setattr(timestamps, "event_times", lambda *_: {})
    asset = kl.kafka_asset(
        topics=[TOPIC],
        group_id=GROUP,
        table="lake.shop.orders",
        name="orders",
        enable_parallel_rebalance=True,
    )(lambda batch: batch)
    kafka = SimpleNamespace(cluster=lambda: cluster, create_missing_topics=lambda *_: None)
    defs = dg.Definitions.merge(
        asset.definitions,
        dg.Definitions(resources={"kafka": kl.KafkaLivenessResource(), "spark": kl.SparkConnectResource()}),
    )
    cursors = [None]

    def evaluate():
        context = dg.build_sensor_context(
            instance,
            cursors[-1],
            definitions=defs,
            resources={"kafka": kafka, "spark": kl.SparkConnectResource()},
            sensor_name="orders_sensor",
        )
        with context, dg.partition_loading_context(dynamic_partitions_store=instance):
            result = asset.sensor.evaluate_tick(context)
        for added in result.dynamic_partitions_requests or ():
            instance.add_dynamic_partitions(added.partitions_def_name, list(added.partition_keys))
        cursors.append(result.cursor)
        return result

    return evaluate


def test_a_range_that_is_caught_up_during_a_tick_does_not_become_a_partition(cluster, instance, tick):
    """The commit logs are read again after Dagster's partitions.

    A materialized key never comes back as a new one.
    """

    def caught_up():
        # After the commit logs were read, before the query for the partitions
        if CATCH_UP not in cluster.logs:
            instance.add_dynamic_partitions("orders_crash_lag", ["p3:orders:70-100"])
            event = dg.AssetMaterialization("orders_crash_lag", partition="p3:orders:70-100")
            instance.report_runless_asset_event(event)
            cluster.logs[CATCH_UP] = CommittedOffset(100, "kl1 done @-")

    cluster.when_observed = caught_up
    tick()
    assert instance.get_dynamic_partitions("orders_crash_lag") == ["p3:orders:70-100"]


def test_a_pending_range_becomes_a_partition_and_a_run_is_requested_for_the_lag(instance, tick):
    """One tick adds the partition of the skipped range and requests the live run."""
    result = tick()
    assert instance.get_dynamic_partitions("orders_crash_lag") == ["p3:orders:70-100"]
    assert [request.job_name for request in result.run_requests] == ["orders_job"]


def test_crash_lag_becomes_a_partition_although_its_event_time_is_unknown(instance, tick, monkeypatch):
    """A broker that fails meanwhile costs the event time, not the tick."""

    def fail(*_):
        raise BrokerUnreachableError("no broker responded")

    monkeypatch.setattr(timestamps, "event_times", fail)
    events = tick().asset_events
    assert instance.get_dynamic_partitions("orders_crash_lag") == ["p3:orders:70-100"]
    [found] = [event for event in events if getattr(event, "partition", None) == "p3:orders:70-100"]
    assert (found.metadata["event_time"].value, found.metadata["offsets"].value) == ("unknown", "30 offsets")


def test_a_stored_check_result_says_whether_rows_are_missing(cluster, tick):
    """The table is queried for it, also where the commits alone would do for the rest of the tick."""
    cluster.logs[GROUP] = CommittedOffset(
        100, LiveCommitMetadata(OwnerState.RELEASED, RUN[:8], origin=GroupOrigin(0)).encode()
    )
    tick()
    cluster.members = [
        MemberDescription(
            "member-1", f"dagster/orders_job/{SECOND_RUN}/orders", "/127.0.0.1", partitions=(AT,)
        )
    ]
    cluster.bounds = (110, 120)  # records expired: a result changes, and all of them are stored
    events = tick().asset_events
    exact = [
        one
        for one in events
        if isinstance(one, dg.AssetCheckEvaluation) and one.check_name == "no_missing_rows"
    ]
    assert [one.passed for one in exact] == [False]
    assert "the embedded Spark does not run" in exact[0].description
