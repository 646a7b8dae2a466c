"""A crash lag partition links the run that crashed.

Its digits go in a tag, beside the words that people read.
"""

from __future__ import annotations

import dagster as dg
import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.assets.definitions import group_checks
from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.departures import GroupSnapshot, GroupState, Run, RunFate
from kafka_liveness_dagster.core.events import LeaveReason
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
from kafka_liveness_dagster.sensor.asset_events import crash_lag_observations
from kafka_liveness_dagster.sensor.observation import GroupObservation
from kafka_liveness_dagster.sensor.run_requests import RunRequests

CRASHED, FINDER = "0badcafe-1111-4222-8333-444444444444", "0000beef-1111-4222-8333-444444444444"
DISCONNECTED = LeaveReason.BROKERS_UNAVAILABLE.value
AT = TopicPartition("orders", 3)


@pytest.fixture
def instance():
    """With a run that crashed."""
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_run(
            dg.DagsterRun(job_name="orders_job", run_id=CRASHED, status=dg.DagsterRunStatus.FAILURE)
        )
        yield instance


def look(instance, by, owed=()):
    """The group after a commit of one of them."""
    seen = PartitionSnapshot(
        AT, 70, LiveCommitMetadata(OwnerState.RUNNING, by[:8]), log_end=120, outstanding=owed
    )
    known = {CRASHED[:8]: Run(RunFate.FAILED)}
    return GroupObservation(
        GroupSnapshot(GroupState.EMPTY, (), (seen,), runs=known), instance.get_run_records()
    )


def test_a_live_run_knows_whom_it_replaces(instance):
    """And a partition that it finds links that run, however its end is put into words."""
    wants = RunRequests(group_id="etl", live_job_name="orders_job", crash_lag_job_name=None, max_live_runs=1)
    (request,), _ = wants.live_run(instance, look(instance, CRASHED), now=0.0, orphaned=())
    assert request.tags["kafka_liveness/started_because"] == "run 0badcafe crashed"
    assert request.tags[".dagster/kafka_liveness.started_because_of_run"] == "0badcafe"

    tags = {**request.tags, "kafka_liveness/started_because": "a worker was killed"}
    instance.add_run(dg.DagsterRun(job_name="orders_job", run_id=FINDER, tags=tags))
    (found,) = crash_lag_observations(
        instance,
        dg.AssetKey("orders_crash_lag"),
        "etl",
        ["p3:orders:70-120"],
        look(instance, FINDER, (Span(70, 120),)),
        event_times={},
    )
    assert found.partition == "p3:orders:70-120"
    assert found.metadata["crashed_run"] == dg.MetadataValue.dagster_run(CRASHED)
    assert found.metadata["found_by_run"] == dg.MetadataValue.dagster_run(FINDER)
    assert found.metadata["cause"].value == "a worker was killed"


def test_how_long_is_known_of_all_that_one_run_jumped_over(instance):
    """One event tells of all of it: what is left of it is as old when the rest was caught up."""
    both = [TopicPartition("orders", number) for number in (0, 1)]
    keys = [f"{at}:70-120" for at in both]

    def owing(*partitions):
        mark = LiveCommitMetadata(OwnerState.RUNNING, FINDER[:8])
        seen = tuple(
            PartitionSnapshot(
                at, 120, mark, log_end=120, outstanding=(Span(70, 120),) if at in partitions else ()
            )
            for at in both
        )
        return GroupObservation(GroupSnapshot(GroupState.EMPTY, (), seen), [])

    asset = kl.kafka_asset(
        topics=["orders"],
        group_id="etl",
        table="lake.shop.orders",
        crash_lag=kl.CrashLag(max_age_seconds=60),
        name="orders",
    )(lambda batch: batch)
    (event,) = crash_lag_observations(instance, asset.crash_lag.key, "etl", keys, owing(*both), {})
    instance.report_runless_asset_event(event)
    (stored,) = instance.fetch_observations(asset.crash_lag.key, limit=1).records
    for left in (both, both[1:], both[:1]):
        waiting = [f"{at}:70-120" for at in left]
        judged = group_checks(asset).evaluate(owing(*left), instance, waiting, stored.timestamp + 3_600)
        (age,) = (one for one in judged if one.check_name == "crash_lag_age")
        assert not age.passed
        assert "the oldest for 3,600 s, longer than 60 s" in age.description


def test_lag_alone_has_no_run_to_name(instance):
    """Nobody left: there is no tag, and no link to a run of any name."""
    wants = RunRequests(group_id="etl", live_job_name="orders_job", crash_lag_job_name=None, max_live_runs=1)
    quiet = GroupObservation(
        GroupSnapshot(GroupState.EMPTY, (), (PartitionSnapshot(AT, 70, None, log_end=120),)), []
    )
    (request,), _ = wants.live_run(instance, quiet, now=0.0, orphaned=())
    assert request.tags["kafka_liveness/started_because"] == "lag"
    assert ".dagster/kafka_liveness.started_because_of_run" not in request.tags


@pytest.mark.parametrize(
    ("started_by", "cause"),
    [
        pytest.param("lag", f"run {FINDER[:8]} {DISCONNECTED}", id="by the sensor, for lag"),
        pytest.param(None, f"run {FINDER[:8]} {DISCONNECTED}", id="by hand"),
        pytest.param(
            "run 0badcafe crashed", f"run 0badcafe crashed; run {FINDER[:8]} {DISCONNECTED}", id="for a crash"
        ),
    ],
)
def test_a_run_that_was_out_of_its_group_is_the_cause_itself(instance, started_by, cause):
    """It joined again and skipped ahead; Dagster was asked before it said why."""
    tags = {} if started_by is None else {"kafka_liveness/started_because": started_by}
    instance.add_run(dg.DagsterRun(job_name="orders_job", run_id=FINDER, tags=tags))
    before = look(instance, FINDER, (Span(70, 120),))
    instance.add_run_tags(FINDER, {".dagster/kafka_liveness.fence_reason": "brokers-unavailable back"})
    asset = dg.AssetKey("orders_crash_lag")
    (found,) = crash_lag_observations(instance, asset, "etl", ["p3:orders:70-120"], before, {})
    assert found.metadata["cause"].value == cause
    assert f"({cause})" in found.description
