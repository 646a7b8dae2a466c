"""Runs of a real Dagster are stopped, killed and canceled while Spark writes their second batch."""

from __future__ import annotations

import time

import dagster as dg
import pytest

from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.process_status import ProcessStatus
from kafka_liveness_dagster.core.run_ids import short_run_id
from kafka_liveness_dagster.runs.heartbeat import process_status_of
from kafka_liveness_dagster.runs.tags import heartbeat_of
from tests.integration.dagster_runs import is_alive, stop
from tests.integration.interrupted_runs import FIRST, LAST, LONG
from tests.waiting import wait_for

# Dagster's GraphQL client
pytestmark = pytest.mark.filterwarnings("ignore:Using variable_values:DeprecationWarning")

LEAVES_WITHIN = LONG - 10.0  # seconds; a member that does not leave by itself is listed for a session
LOST = "reassigned its partitions"
CLASSIC = ["classic", pytest.param("consumer", marks=pytest.mark.certify)]
CONSUMER = ["consumer", pytest.param("classic", marks=pytest.mark.certify)]
"""The protocol under which the gate runs a law; the other one is left to ``make certify``."""


@pytest.mark.parametrize("protocol", CONSUMER)
def test_a_run_stopped_for_longer_than_its_session_rejoins_and_replays(story, protocol):
    """SIGSTOP in mid-batch.

    The write lands meanwhile, the commit is refused, the batch comes again and replaces it.
    """
    story = story("stopped", protocol)
    run = story.launch_live(busy=True)
    story.is_busy(run)
    worker, before = story.worker(run), story.live_log()
    stop(worker, story.instance)
    wait_for(lambda: not story.members())
    story.go_on(run)
    wait_for(lambda: len(story.offsets()) == LAST)
    assert story.live_log() == before
    worker.resume()
    assert story.end(run) is dg.DagsterRunStatus.SUCCESS
    batch = f"p0:{story.case.topic}:{FIRST}-{LAST}"
    (refused, committed) = (
        text for text in story.log_messages(run) if batch in text and " tasks after " not in text
    )
    assert refused.startswith(f"{batch}: ")
    assert LOST in refused
    assert committed.startswith(f"Committed {batch}: ")
    assert story.worker(run) == worker
    assert story.live_log() == (LAST, LiveCommitMetadata(OwnerState.RELEASED, short_run_id(run)))
    assert story.offsets() == list(range(LAST))


@pytest.mark.parametrize("protocol", CLASSIC)
def test_a_stopped_run_doubles_nothing_of_the_run_that_took_over(story, produce, protocol):
    """The other has done the batch and is gone.

    Late commit and late write change nothing, and the run goes on.
    """
    story = story("overtaken", protocol)
    run = story.launch_live(busy=True)
    story.is_busy(run)
    worker = story.worker(run)
    stop(worker, story.instance)
    other = story.launch_live()
    assert story.end(other) is dg.DagsterRunStatus.SUCCESS
    taken_over = (LAST, LiveCommitMetadata(OwnerState.RELEASED, short_run_id(other)))
    assert story.live_log() == taken_over
    produce(story.world.services.bootstrap_servers, story.case.topic, 0, map(str, range(20)))
    worker.resume()  # no member is there to refuse it a commit
    story.go_on(run)
    assert story.end(run) is dg.DagsterRunStatus.SUCCESS
    (refused,) = (text for text in story.log_messages(run) if LOST in text)
    assert refused.startswith(f"p0:{story.case.topic}:{FIRST}-{LAST}: ")
    assert [
        text
        for text in story.log_messages(run)
        if text.startswith(f"Committed p0:{story.case.topic}:{FIRST}")
    ] == []
    assert story.live_log() == (LAST + 20, LiveCommitMetadata(OwnerState.RELEASED, short_run_id(run)))
    assert story.offsets() == list(range(LAST + 20))
    assert story.writers() == [run, other]  # what was done again is the other's: it had the partition


def orphans_leave(story, run, worker):
    """Kill a run worker in the middle of its step's batch; all that the step must do then."""
    story.is_busy(run)
    step, before = story.step(run), story.live_log()
    killed_at = time.monotonic()
    worker.kill()
    assert story.seconds_to_leave(killed_at) <= LEAVES_WITHIN
    wait_for(lambda: not is_alive(step))
    assert story.has_stopped(run)
    assert story.live_log() == before
    assert story.offsets() == list(range(FIRST))


@pytest.mark.parametrize("protocol", CLASSIC)
def test_a_step_leaves_when_its_run_worker_is_killed(story, protocol):
    """SIGKILL of a multiprocess run worker: its step leaves by itself, stops Spark, and commits nothing."""
    story = story("killed", protocol)
    run = story.launch(story.case.steps_job, busy=True)
    orphans_leave(story, run, wait_for(lambda: story.worker(run)))
    assert story.end(run) is dg.DagsterRunStatus.FAILURE


@pytest.mark.parametrize(
    ("law", "protocol"),
    [
        ("forked", "classic"),
        *(pytest.param("orphaned", one, marks=pytest.mark.certify) for one in ("classic", "consumer")),
    ],
)
def test_a_step_leaves_though_nobody_says_that_its_run_failed(story, law, protocol):
    """The death of the run worker is enough, whichever way it started its step; the sensor sees it, too."""
    story = story(law, protocol)
    worker, run = story.script()
    orphans_leave(story, run, worker)
    record = story.instance.get_run_record_by_id(run)
    assert record.dagster_run.status is dg.DagsterRunStatus.STARTED
    assert heartbeat_of(record.dagster_run).process.pid == worker.pid, (
        "the step's own end would not be the run's"
    )
    assert process_status_of(story.instance, record, time.time(), fence_report=True) is ProcessStatus.GONE


def test_a_step_whose_run_worker_died_before_it_joined_leaves_too(story):
    """It never saw its run worker alive, and yet it notices: nothing is committed and it ends."""
    story = story("unborn", "classic")
    worker, run = story.script()
    step = wait_for(lambda: story.step(run))
    worker.kill()
    wait_for(lambda: not is_alive(step))
    assert story.members() == ()
    assert story.live_log() in (None, (0, LiveCommitMetadata(OwnerState.RUNNING, short_run_id(run))))


@pytest.mark.parametrize("protocol", CONSUMER)
def test_a_run_canceled_in_the_ui_releases_its_partitions(story, protocol):
    """Terminated in mid-batch: out at once, `released` where it had committed.

    Nothing is owed, lost or doubled.
    """
    story = story("canceled", protocol)
    run = story.launch_live(busy=True)
    story.is_busy(run)
    canceled_at = time.monotonic()
    story.world.ui.terminate_run(run)
    assert story.seconds_to_leave(canceled_at) <= LEAVES_WITHIN
    assert story.live_log() == (FIRST, LiveCommitMetadata(OwnerState.RELEASED, short_run_id(run)))
    assert story.end(run) is dg.DagsterRunStatus.CANCELED
    assert story.has_stopped(run)
    following = story.finish()
    assert following.success
    (made,) = following.asset_materializations_for_node(story.case.name)
    assert "crash_lag_found" not in made.metadata
    assert story.live_log() == (
        LAST,
        LiveCommitMetadata(OwnerState.RELEASED, short_run_id(following.run_id)),
    )
    assert story.offsets() == list(range(LAST))
    assert story.writers() == [run, following.run_id]
