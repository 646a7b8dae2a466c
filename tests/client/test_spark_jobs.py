"""A piece of Spark work that another thread watches and cancels."""

from __future__ import annotations

import threading

import pytest

from kafka_liveness_dagster.spark.connect import job as jobs
from kafka_liveness_dagster.spark.connect.job import SparkJob
from kafka_liveness_dagster.spark.errors import (
    SparkCancelledError,
    SparkNotRespondingError,
    SparkUnreachableError,
)
from tests.client.fake_connect_server import Failure

SECONDS = 10.0  # a wait this long is in vain


class Work(threading.Thread):
    """A query in a job, in a thread; ``error`` is what the job raised."""

    def __init__(self, session, job, text):
        super().__init__(daemon=True)
        self.session, self.job, self.text, self.error = session, job, text, None
        self.start()

    def run(self):
        try:
            with self.job:
                self.session.sql(self.text).collect()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def ends_with(self):
        """Return what the job raised, when it ends."""
        self.join(SECONDS)
        assert not self.is_alive(), "the job still waits for Spark"
        return self.error


def test_a_cancel_interrupts_the_operations_of_the_job_alone(server, session):
    """By the tag of the job."""
    server.falls_silent_at("SELECT 1")
    job = SparkJob(session)
    work = Work(session, job, "SELECT 1")
    assert server.reached.wait(SECONDS)
    assert job.cancel(timeout_seconds=0.0) is False
    assert server.was_interrupted.wait(SECONDS), "no interrupt was sent"
    assert set(server.interrupted) == {job.tag}
    server.stop()
    work.ends_with()


def test_a_cancel_interrupts_once_where_no_thread_can_be_started(server, session, no_threads):
    """Nobody can go on with it, and who cancels has a group to leave."""
    server.falls_silent_at("SELECT 1")
    job = SparkJob(session)
    work = Work(session, job, "SELECT 1")
    assert server.reached.wait(SECONDS)
    with no_threads():
        job.cancel(timeout_seconds=0.0)
    assert set(server.interrupted) == {job.tag}
    server.stop()
    work.ends_with()


def test_a_canceled_job_that_gets_no_reply_gives_up_its_connection(server, session, monkeypatch):
    """The run ends: it does not wait for a server that does not end the operation."""
    monkeypatch.setattr(jobs, "ABANDON_SECONDS", 0.2)
    server.falls_silent_at("SELECT 1")
    job = SparkJob(session)
    work = Work(session, job, "SELECT 1")
    assert server.reached.wait(SECONDS)
    job.cancel(timeout_seconds=0.0)
    assert isinstance(work.ends_with(), SparkNotRespondingError)
    assert job.is_abandoned


def test_a_canceled_job_never_looks_like_success(session):
    """Its operation may have ended before the interrupt arrived."""
    job = SparkJob(session)
    with pytest.raises(SparkCancelledError), job:
        session.sql("SELECT 1").collect()
        threading.Thread(target=job.cancel, args=(0.0,)).run()


def test_a_canceled_job_is_not_entered_again(server, session):
    """Nothing more is started."""
    job = SparkJob(session)
    assert job.cancel() is True
    with pytest.raises(SparkCancelledError), job:
        session.sql("SELECT 1").collect()
    assert server.executed == []


def test_progress_of_another_thread_is_not_that_of_the_job(server, session):
    """Two batches in flight share a session: the progress of one must not keep the other one alive."""
    server.progress = (3, 4)
    reported = []
    with SparkJob(session, lambda *_: None, lambda *counts: reported.append(counts)):
        other = threading.Thread(target=session.sql("SELECT 1").collect)
        reported.clear()  # of the statement itself, which this thread has sent
        other.start()
        other.join(SECONDS)
        assert reported == [], "progress of another thread was reported"
        session.sql("SELECT 2").collect()
        assert (3, 4) in reported


def test_a_server_that_was_restarted_is_unreachable_and_no_failure_of_the_work(server, session):
    """The batch is retried: its transform and its records are not to blame."""
    server.gives("SELECT 1", Failure("closed", "INVALID_HANDLE.SESSION_CLOSED", kind="x.SparkSQLException"))
    with pytest.raises(SparkUnreachableError, match="lost in the middle of a batch"), SparkJob(session):
        session.sql("SELECT 1").collect()


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(
            Failure(
                "Cannot call methods on a stopped SparkContext.\n…", kind="java.lang.IllegalStateException"
            ),
            id="its driver ended, and answers until its process is gone",
        ),
        pytest.param(
            Failure("Java heap space", kind="java.lang.OutOfMemoryError"), id="a driver that goes on"
        ),
        pytest.param(
            Failure(
                "Job 7 cancelled because SparkContext was shut down", kind="org.apache.spark.SparkException"
            ),
            id="its driver ends",
        ),
        pytest.param(
            Failure(
                "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent "
                "failure: Lost task 0.3 in stage 1.0 (TID 3) (host executor 1): ExecutorLostFailure "
                "(executor 1 exited caused by one of the running tasks) Reason: Command exited with code 52",
                kind="org.apache.spark.SparkException",
            ),
            id="executors of a cluster ended",
        ),
    ],
)
def test_a_spark_that_ends_under_a_batch_is_said_to_want_memory(server, session, failure):
    """No transform and no record is to blame: nobody looks for one."""
    server.gives("SELECT 1", failure)
    with (
        pytest.raises(SparkUnreachableError, match=r"executors ended.*spark\.driver\.memory"),
        SparkJob(session),
    ):
        session.sql("SELECT 1").collect()


def test_a_session_that_this_process_ended_is_told_as_that(server, session):
    """By a sink, say: no server was started anew."""
    with (
        pytest.raises(SparkUnreachableError, match=r"this process ended its session.*spark\.stop"),
        SparkJob(session),
    ):
        session.stop()
        session.sql("SELECT 1").collect()
