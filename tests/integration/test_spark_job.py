"""Spark work is watched and stopped from another thread, and what a dead client left behind does no harm.

A batch that is in flight for as long as a test wants: it reads to an offset that is not produced yet, so its
task waits for the broker. Producing the missing records lets it end.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from uuid import uuid4

import grpc
import pytest
from pyspark.sql.connect.proto import base_pb2 as pb2

from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.spark.connect.job import SparkJob, now_ms
from kafka_liveness_dagster.spark.errors import SparkCancelledError
from kafka_liveness_dagster.spark.source import core_count, read_ranges
from kafka_liveness_dagster.spark.table.write import write_table
from tests.timeouts import connect
from tests.waiting import PATIENCE, wait_for

# Seconds, of a task for a record that was not produced: the default of Spark's Kafka source
TASK_WAITS = 120.0


@pytest.fixture
def orders(services, make_topic, produce):
    """``(topic, kafka options, produce more)``: partition 0 holds 100 records."""
    topic = make_topic()

    def more(count):
        produce(services.bootstrap_servers, topic, 0, map(str, range(count)))

    more(100)
    return topic, {"kafka.bootstrap.servers": services.bootstrap_servers}, more


@pytest.fixture
def own(services):
    """A session that is not the other tests'."""
    session = connect(services.spark_remote)
    yield session
    session.stop()


class Reports:
    """What Spark itself says, every half second, of a session's running operation.

    (completed tasks, all tasks).
    """

    def __init__(self, session):
        self.heard: list[tuple[int, int]] = []
        session.registerProgressHandler(self)

    def __call__(self, stages, inflight_tasks, operation_id, done):
        """Caller: pyspark, in the thread whose operation it is."""
        if inflight_tasks and not done:
            infos = list(stages)
            self.heard.append(
                (sum(info.num_completed_tasks for info in infos), sum(info.num_tasks for info in infos))
            )


def put(  # noqa: PLR0917
    session, table, topic, kafka, start, end, *, by, partition=0, before_frame=lambda: None, **options
):
    """Write one row for each offset of ``[start, end)``."""
    ranges = [OffsetRange(topic, partition, start, end)]

    def make():
        before_frame()
        return read_ranges(session, ranges, kafka).selectExpr(
            "topic", "partition", "offset", f"'{by}' AS written_by"
        )

    return write_table(session, table, ranges, make, **options)


def held(found):
    """``[(offset, who wrote it)]``."""
    return [(row["offset"], row["written_by"]) for row in found]


def once(by, start, end):
    """What is held when ``by`` wrote these offsets."""
    return [(offset, by) for offset in range(start, end)]


def test_a_cancelled_write_ends_at_once_and_changes_nothing(own, spark, orders, table, rows):
    """Cancel from another thread.

    Back long before Spark gives its task up, the table as it was, no next operation.
    """
    topic, kafka, more = orders
    put(spark, table, topic, kafka, 0, 70, by="first")
    spark_says = Reports(own)
    job = SparkJob(own)

    def work():
        with job:
            put(own, table, topic, kafka, 70, 130, by="cancelled", may_go_on=job.check)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        wait_for(lambda: (0, 1) in spark_says.heard)
        began = time.monotonic()
        assert job.cancel(TASK_WAITS)
        assert time.monotonic() - began < TASK_WAITS / 2
        with pytest.raises(SparkCancelledError, match="The batch is retried"):
            done.result(PATIENCE)
    with pytest.raises(SparkCancelledError, match="no further operation was started"):
        job.check()
    assert held(rows(table)) == once("first", 0, 70)
    more(30)  # else the task waits on for its records, up to 120 s, in one of the server's slots
    assert put(own, table, topic, kafka, 70, 100, by="later").rows == 30  # the session lives on


def test_cancelling_one_job_leaves_every_other_alone(own, spark, services, make_topic, produce, table, rows):  # noqa: PLR0917
    """Neither another session's work nor another job of the same session is hit.

    Each waits at the end of a partition of its own: behind the end there is nothing to wait for, only an
    error.
    """
    topic, kafka = make_topic(3), {"kafka.bootstrap.servers": services.bootstrap_servers}

    def produce_ten(partition):
        produce(services.bootstrap_servers, topic, partition, map(str, range(10)))

    produce_ten(0)
    put(spark, table, topic, kafka, 0, 10, by="first")
    jobs = {"cancelled": SparkJob(own), "same session": SparkJob(own), "other session": SparkJob(spark)}
    spans = {"cancelled": (10, 20), "same session": (0, 10), "other session": (0, 10)}
    built = threading.Barrier(4)

    def work(partition, name, session):
        with jobs[name] as job:
            options = {"by": name, "partition": partition, "may_go_on": job.check, "max_attempts": 1}
            put(
                session,
                table,
                topic,
                kafka,
                *spans[name],
                before_frame=lambda: built.wait(PATIENCE),
                **options,
            )

    with ThreadPoolExecutor(3) as pool:
        sessions = (("cancelled", own), ("same session", own), ("other session", spark))
        done = {
            name: pool.submit(work, number, name, session) for number, (name, session) in enumerate(sessions)
        }
        built.wait(PATIENCE)
        assert jobs["cancelled"].cancel(TASK_WAITS)
        for partition in range(3):
            produce_ten(partition)
        with pytest.raises(SparkCancelledError):
            done["cancelled"].result(PATIENCE)
        done["same session"].result(PATIENCE)
        done["other session"].result(PATIENCE)
    assert held(rows(table)) == [
        *once("first", 0, 10),
        *once("same session", 0, 10),
        *once("other session", 0, 10),
    ]


def test_a_job_busy_outside_spark_is_not_taken_for_a_silent_spark(own, monkeypatch):
    """Its thread works in Python for longer than a cancel waits.

    Spark owes nothing, and its connection stays.
    """
    monkeypatch.setattr("kafka_liveness_dagster.spark.connect.job.ABANDON_SECONDS", 0.5)
    job, at_work, goes_on = SparkJob(own), threading.Event(), threading.Event()

    def work():
        with job:
            own.range(1).count()
            at_work.set()
            goes_on.wait(PATIENCE)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        wait_for(at_work.is_set)
        assert not job.cancel(timeout_seconds=2.0), "it is at work all that time"
        assert not job.is_abandoned
        goes_on.set()
        with pytest.raises(SparkCancelledError, match="no further operation was started"):
            done.result(PATIENCE)
    assert own.range(3).count() == 3


def test_only_an_answer_that_is_owed_all_the_time_gives_a_job_up(own, monkeypatch):
    """A transform with short queries to Spark, each check in the middle of one, is no unresponsive Spark."""
    at_work = [True] * 19 + [False]  # what is seen at the looks of one wait

    class Line:
        """Whether Spark owes an answer, as the test says."""

        address, is_aborted, ended = "here", False, False
        looks = 0

        @property
        def has_pending_call(self):
            self.looks += 1
            return self.ended or at_work[self.looks % len(at_work)]

        def check(self):
            """Nothing to raise."""

        def abort(self, message):
            assert "did not end in 0.2 s" in message
            self.is_aborted = True

    line = Line()
    monkeypatch.setattr("kafka_liveness_dagster.spark.connect.job.ABANDON_SECONDS", 0.2)
    monkeypatch.setattr("kafka_liveness_dagster.spark.connect.job.connection_of", lambda _session: line)
    with pytest.raises(SparkCancelledError), SparkJob(own) as job:
        assert not job.cancel(0)
        wait_for(lambda: line.is_aborted or line.looks > 3 * len(at_work))
        assert not line.is_aborted
        line.ended = True  # it is never done with this one
        wait_for(lambda: line.is_aborted)


def test_cancel_between_two_operations_stops_the_next(own, orders, table):
    """Cancelled while no operation runs: the next one is never sent, and the table is not even made."""
    topic, kafka, _ = orders
    job = SparkJob(own)

    def cancel():
        assert not job.cancel(0)  # its own thread is inside: it has not ended yet

    with pytest.raises(SparkCancelledError), job:
        put(own, table, topic, kafka, 70, 100, by="cancelled", before_frame=cancel, may_go_on=job.check)
    assert not own.catalog.tableExists(table)


def test_a_job_cancelled_before_it_began_never_begins(own):
    """No thread has entered: cancel has nothing to wait for, and entering raises."""
    job = SparkJob(own)
    assert job.cancel()
    with pytest.raises(SparkCancelledError), job:
        pytest.fail("entered")


def test_a_cancelled_job_never_looks_like_success(own):
    """Even when the work was done before the cancel arrived."""
    with pytest.raises(SparkCancelledError), SparkJob(own) as job:
        job.cancel(0)


def test_another_error_stays_what_it_is(own):
    """A failed transform is not taken for a cancelled one."""
    with pytest.raises(ZeroDivisionError), SparkJob(own):
        raise ZeroDivisionError
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"), SparkJob(own):
        own.table("lake.nowhere.nothing").collect()


@pytest.mark.parametrize("delay_ms", [0, 40, 120, 250, 500, 900])
def test_cancel_at_any_moment_leaves_the_table_unchanged_or_exact(own, spark, table, rows, delay_ms):
    """All of the batch or nothing of it, however far the write has come."""
    ranges = [OffsetRange("orders", 3, 0, 200)]

    def frame(session, by):
        sql = "'orders' AS topic", "3 AS partition", "id AS offset", f"'{by}' AS written_by"
        return lambda: session.range(0, 200).selectExpr(*sql)

    write_table(spark, table, ranges, frame(spark, "first"))
    job = SparkJob(own)
    timer = threading.Timer(delay_ms / 1000, job.cancel)
    try:
        with job:
            timer.start()
            for _ in range(20):
                write_table(own, table, ranges, frame(own, "second"), may_go_on=job.check)
    except SparkCancelledError:
        pass
    timer.join()
    assert held(rows(table)) in (once("first", 0, 200), once("second", 0, 200))


def test_progress_is_told_while_tasks_finish(own, orders, table):
    """Counts of finished and all tasks arrive during the operation.

    A task that waits is no progress, but reported.
    """
    topic, kafka, more = orders
    seen: list[tuple[int, int]] = []
    reports: list[tuple[int, int]] = []
    spark_says = Reports(own)
    ranges = [OffsetRange(topic, 0, 0, 130)]

    hear = (lambda *counts: seen.append(counts)), (lambda *counts: reports.append(counts))
    with SparkJob(own, *hear) as job, ThreadPoolExecutor(1) as pool:

        def let_it_end():
            wait_for(lambda: (2, 3) in seen or (1, 2) in seen)
            still = job.last_progress_ms
            told, said, reported = len(seen), len(spark_says.heard), len(reports)
            wait_for(lambda: len(spark_says.heard) > said + 1)
            assert (job.last_progress_ms, len(seen)) == (still, told)
            assert set(reports[reported:]) == {seen[-1]}
            more(30)

        ending = pool.submit(let_it_end)
        began = now_ms()
        rows = read_ranges(own, ranges, kafka, min_partitions=3).count()
        ending.result(PATIENCE)
        assert job.last_progress_ms > began
    assert rows == 130


ZOMBIE = """
import sys
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.spark.table.write import write_table
from kafka_liveness_dagster.spark.source import read_ranges
from tests.timeouts import connect

ExecutePlanResponseReattachableIterator._release_until = lambda *_: None  # the test wants to read all answers

def told(stages, inflight_tasks, operation_id, done):
    if inflight_tasks and not done:
        print(operation_id, flush=True)

topic, bootstrap, remote, table = sys.argv[1:]
session, ranges = connect(remote), [OffsetRange(topic, 0, 70, 130)]
session.registerProgressHandler(told)
frame = read_ranges(session, ranges, {"kafka.bootstrap.servers": bootstrap})
rows = lambda: frame.selectExpr("topic", "partition", "offset", "'zombie' AS written_by")
write_table(session, table, ranges, rows)
"""


@pytest.fixture
def zombie(services, spark, orders, table):
    """A client that is SIGKILLed while its 70-130 is being written.

    What it gives waits for the operation that is left on the server and tells its error, or None.
    """
    topic, kafka, _ = orders
    put(spark, table, topic, kafka, 0, 70, by="first")
    remote = f"{services.spark_remote};user_id=zombie;session_id={uuid4()}"
    command = [sys.executable, "-c", ZOMBIE, topic, services.bootstrap_servers, remote, table]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as client:
        operation = client.stdout.readline().strip()
        client.kill()
    assert operation
    session = connect(remote)
    yield partial(_outcome, session.client, operation)
    session.stop()


def _outcome(client, operation):
    request = pb2.ReattachExecuteRequest(session_id=client._session_id, operation_id=operation)
    request.user_context.user_id = "zombie"
    try:
        for _ in client._stub.ReattachExecute(request, metadata=client._builder.metadata(), timeout=300):
            pass
    except grpc.RpcError as error:
        return str(error)
    return None


def test_a_dead_clients_write_is_refused_after_its_successors(zombie, spark, orders, table, rows):
    """The new owner committed first: what the dead client still had in flight is thrown away by the table."""
    topic, kafka, more = orders
    assert put(spark, table, topic, kafka, 60, 100, by="new owner", max_attempts=3).rows == 40
    more(60)
    assert "Found conflicting files" in zombie()
    assert held(rows(table)) == once("first", 0, 60) + once("new owner", 60, 100)
    put(spark, table, topic, kafka, 100, 160, by="new owner")
    assert held(rows(table)) == once("first", 0, 60) + once("new owner", 60, 160)


@pytest.mark.parametrize("end", [160, 100], ids=["all of it is written again", "a part is written again"])
def test_a_dead_clients_write_that_lands_in_between_is_replaced(zombie, spark, orders, table, rows, end):  # noqa: PLR0917
    """It committed after the new owner's snapshot: seen as a conflict, replaced, exact."""
    topic, kafka, more = orders
    released = []

    def release():
        if not released:
            released.append(more(60))
            assert zombie() is None

    done = put(spark, table, topic, kafka, 70, end, by="new owner", before_frame=release)
    assert held(rows(table)) == once("first", 0, 70) + once("new owner", 70, end) + once("zombie", end, 130)
    assert done.attempts > 1


def test_a_batch_does_not_wait_for_the_last_task_of_another_groups_batch(services, own):
    """By Spark's default it would; ``spark.scheduler.mode`` of the server is FAIR."""
    naps = "java_method('java.lang.Thread', 'sleep', 100L)"
    tasks = 200 * core_count(own)
    other, reports = connect(services.spark_remote), Reports(own)
    with ThreadPoolExecutor() as threads:
        long = threads.submit(own.range(0, tasks, 1, tasks).selectExpr(naps).collect)
        try:
            wait_for(lambda: reports.heard and reports.heard[-1][0] > 0)
            other.range(0, 8, 1, 8).selectExpr(naps).collect()
            completed, _ = reports.heard[-1]
            assert not long.done()
        finally:
            own.interruptAll()
            other.stop()
    assert completed < tasks / 2
