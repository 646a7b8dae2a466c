"""SIGKILL of a run at every step of either lane: nothing lost, nothing doubled, nothing owed for ever.

One topic was left by a crash before (70 committed, log end 120), another is new (0-100). The run of a child process
is killed; ten records come to each topic; then the living do what the sensor asks for.
"""

from __future__ import annotations

import multiprocessing
import signal
import sqlite3
from contextlib import closing, suppress
from uuid import uuid4

import dagster as dg
import pytest
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.offsets import Span, TopicPartition, difference
from kafka_liveness_dagster.failpoints import VARIABLE, Failpoint
from kafka_liveness_dagster.kafka.witness import witnessed
from kafka_liveness_dagster.spark.iceberg import write
from kafka_liveness_dagster.spark.ledger import TableLedger
from kafka_liveness_dagster.spark.source import read
from kafka_liveness_dagster.spark.table import IcebergTable
from tests.world.doomed import work
from tests.world.left_behind import await_end

READING, COMMITTING = "Spark reads", "Spark commits"
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.world.doomed"])


class CrashError(Exception):
    """What ended the first life of the group."""


@pytest.fixture(scope="module")
def instance(tmp_path_factory):
    """Dagster's records in a folder that the worker processes share."""
    home = tmp_path_factory.mktemp("dagster")
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    with dg.DagsterInstance.from_config(str(home)) as found:
        yield found


class Location:
    """The code location of one group, in this process; a worker has the same with another transform."""

    def __init__(self, instance, services, topics, table, *, parallel, in_flight):
        self.instance, self.services, self.topics, self.table = instance, services, topics, table
        name = f"orders_{uuid4().hex[:8]}"
        self.group, self.parallel = f"etl-{name}", parallel
        self.before_write = []
        self.asset_settings = {
            "name": name,
            "topics": topics,
            "group_id": self.group,
            "table": table,
            "enable_parallel_rebalance": parallel,
            "max_batch_seconds": 60,
            "idle_seconds": 0.3,
            "batches_in_flight": in_flight,
        }
        self.kafka = kl.KafkaLivenessResource(
            bootstrap_servers=services.bootstrap_servers, session_timeout_seconds=1.5, default_max_batch_seconds=60
        )
        self.spark = kl.SparkConnectResource(remote=services.spark_remote)

        def orders(batch):
            while self.before_write:
                self.before_write.pop()()
            return batch.selectExpr("topic", "partition", "offset", "'alive' AS written_by")

        self.asset = kl.kafka_asset(**self.asset_settings)(orders)
        resources = dg.Definitions(resources={"kafka": self.kafka, "spark": self.spark})
        self.defs = dg.Definitions.merge(self.asset.definitions, resources)

    def job(self, lane):
        """The job of a lane, ready to run."""
        return self.defs.resolve_job_def({"live": self.asset.live_job, "catch-up": self.asset.crash_lag_job}[lane].name)

    def live(self):
        """A run of the live lane."""
        assert self.job("live").execute_in_process(instance=self.instance).success

    def tick(self):
        """A look of the sensor; what it adds is added."""
        with dg.build_sensor_context(
            instance=self.instance,
            resources={"kafka": self.kafka, "spark": self.spark},
            sensor_name=self.asset.sensor.name,
        ) as context:
            for added in self.asset.sensor.evaluate_tick(context).dynamic_partitions_requests or ():
                self.instance.add_dynamic_partitions(added.partitions_def_name, added.partition_keys)

    def missing(self):
        """Crash lag partitions that are not materialised."""
        done = self.instance.get_materialized_partitions(self.asset.crash_lag.key)
        known = self.instance.get_dynamic_partitions(self.asset.crash_lag.key.path[-1])
        return [key for key in known if key not in done]

    def backfill(self):
        """One run for all partitions that are missing."""
        if keys := self.missing():
            tags = {ASSET_PARTITION_RANGE_START_TAG: keys[0], ASSET_PARTITION_RANGE_END_TAG: keys[-1]}
            assert self.job("catch-up").execute_in_process(instance=self.instance, tags=tags).success

    def facts(self):
        """Both commit logs, the log bounds, and what the table says of itself."""
        partitions = [TopicPartition(topic, 0) for topic in self.topics]
        ledger = TableLedger(IcebergTable(self.table), self.spark.session)
        return witnessed(self.kafka.cluster(), self.group, partitions, ledger)

    def crash(self, spark):
        """70 offsets of the first topic are in the table and committed; then the live lane dies of an error."""
        with (
            suppress(CrashError),
            self.kafka.consumer(topics=self.topics[:1], group_id=self.group, max_poll_records=70) as consumer,
        ):
            batch = consumer.poll(20.0)
            settings = self.kafka.settings().spark()

            def frame():
                records = read(spark, batch.ranges, settings)
                return records.selectExpr("topic", "partition", "offset", "'dead' AS written_by")

            write(spark, self.table, batch.ranges, frame)
            consumer.commit(batch)
            raise CrashError

    def worker(self, lane, session, *, killed_while=""):
        """What the child is told, as its argument."""
        return {
            "asset": {**self.asset_settings},
            "max_poll_records": 20 if lane == "catch-up" else 40,
            "job": self.job(lane).name,
            "partition_key": self.missing()[0] if lane == "catch-up" else None,
            "kafka": self.services.bootstrap_servers,
            "spark": f"{self.services.spark_remote};user_id=worker;session_id={session}",
            "killed_while": killed_while,
        }


@pytest.fixture
def location(services, instance, make_topic, produce, table, spark):  # noqa: PLR0917
    """Make a group that is about to lose a run of ``lane``."""

    def make(lane, *, parallel=True, in_flight=2):
        topics = [make_topic(), make_topic()]
        parallel = parallel or lane == "catch-up"
        found = Location(instance, services, topics, table, parallel=parallel, in_flight=in_flight)

        def more(*counts):
            for topic, count in zip(topics, counts, strict=True):
                produce(services.bootstrap_servers, topic, 0, map(str, range(count)))

        more(100, 0)
        found.crash(spark)
        more(20, 100)
        if lane == "catch-up":
            found.live()
            found.tick()
            assert found.missing() == [f"{topics[0]}:0:70-120"]
        found.more = more
        return found

    return make


def kill(location, argument, failpoint=None, nth=1):
    """Let a child run until it dies as it was told; gives what it last said."""
    env = {"DAGSTER_HOME": location.instance.root_directory}
    env |= {VARIABLE: f"{failpoint.value}:{nth}"} if failpoint else {}
    heard, says = FORKS.Pipe(duplex=False)
    child = FORKS.Process(target=work, args=(argument, env, says))
    child.start()
    says.close()
    child.join()
    assert child.exitcode == -signal.SIGKILL, "it should have died, and ended: see its output"
    [dead] = [run for run in location.instance.get_runs() if not run.is_finished]
    location.instance.report_run_failed(dead)  # as the code server does for a worker that died
    with heard, suppress(EOFError):  # it may have had nothing to say
        return heard.recv()
    return None


class Catalog:
    """The table's catalog, through which nobody's commit gets while it is held; Iceberg waits 10 s for it."""

    def __init__(self, uri):
        self._connection = sqlite3.connect(uri.removeprefix("sqlite:///"), isolation_level=None, timeout=20)

    def hold(self):
        """Let everybody read, and nobody commit."""
        self._connection.execute("BEGIN IMMEDIATE")

    def release(self):
        """Let those who wait commit."""
        if self._connection.in_transaction:
            self._connection.rollback()

    def close(self):
        """Release it for good."""
        self._connection.close()


@pytest.fixture
def catalog(services):
    """The catalog, released when the test ends."""
    with closing(Catalog(services.catalog_uri)) as found:
        yield found


def offsets(rows, topic):
    """The offsets that the table has of a topic, as often as it has them."""
    return [row["offset"] for row in rows if row["topic"] == topic]


def check_invariants(location, rows):
    """Every offset below the first log is in the table or owed; no offset is there twice."""
    for tp, facts in location.facts().items():
        found = offsets(rows, tp.topic)
        done = difference((Span(0, facts.committed or 0),), facts.outstanding)
        assert {n for span in done for n in range(*span)} <= set(found)
        assert len(found) == len(set(found))


def recover(location, lane, rows):
    """The next live run and a backfill of all that is owed, the killed lane first; then look at everything."""
    check_invariants(location, rows(location.table))
    location.more(10, 10)
    if lane == "catch-up":
        location.backfill()
    location.live()
    location.tick()
    location.backfill()
    check_all_done(location, rows)


def check_all_done(location, rows):
    """Nothing is owed or missing, nothing is behind, and the table has each offset once."""
    found = rows(location.table)
    check_invariants(location, found)
    for tp, facts in location.facts().items():
        assert facts.outstanding == ()
        assert facts.committed == facts.log_end
        assert offsets(found, tp.topic) == list(range(facts.log_end))
    assert location.missing() == []
    location.tick()
    assert location.missing() == [], "what is done is not owed again"


STEPS = {
    Failpoint.AFTER_JOIN: 1,
    Failpoint.AFTER_TOKEN_COMMIT: 1,
    Failpoint.AFTER_PLAN: 2,
    Failpoint.AFTER_TABLE_COMMIT: 2,
    Failpoint.AFTER_OFFSET_COMMIT: 2,
    Failpoint.BEFORE_MATERIALIZATION: 1,
}
LANES = {"live": ("live", True), "live in order": ("live", False), "catch-up": ("catch-up", True)}
KILLS = [
    pytest.param(*LANES[name], step, id=f"{name}-{step.value}")
    for name in LANES
    for step in STEPS
    if (name, step) != ("catch-up", Failpoint.AFTER_TOKEN_COMMIT)  # that lane owes nothing new
    if name != "live in order" or step is Failpoint.AFTER_TABLE_COMMIT  # elsewhere the mode makes no difference
]


@pytest.mark.parametrize(("lane", "parallel", "step"), KILLS)
def test_a_run_may_die_between_any_two_steps(location, rows, lane, parallel, step):
    """Whatever the dead run had written or committed, its successors end with each offset once and nothing owed."""
    found = location(lane, parallel=parallel)
    kill(found, found.worker(lane, uuid4()), step, STEPS[step])
    recover(found, lane, rows)


FIRST, BETWEEN, LAST = "lands first", "lands in between", "lands last"
IN_FLIGHT = [  # the last: of how many batches
    ("live", True, READING, LAST, 2),
    ("live", True, READING, BETWEEN, 1),
    ("live", True, COMMITTING, FIRST, 1),
    ("live", False, READING, FIRST, 2),
    ("live", False, COMMITTING, BETWEEN, 1),
    ("catch-up", True, READING, LAST, 1),
    ("catch-up", True, READING, BETWEEN, 2),
    ("catch-up", True, COMMITTING, FIRST, 1),
    ("catch-up", True, COMMITTING, BETWEEN, 1),
]


@pytest.mark.parametrize(("lane", "parallel", "moment", "lands", "batches"), IN_FLIGHT)
def test_what_spark_has_in_flight_may_land_at_any_time(location, catalog, rows, lane, parallel, moment, lands, batches):  # noqa: PLR0917
    """The dead run's writes land before its successor's, between its successor's look and commit, or after it."""
    found, session = location(lane, parallel=parallel, in_flight=batches), uuid4()
    if moment == COMMITTING:
        catalog.hold()
    operations = kill(found, found.worker(lane, session, killed_while=moment))
    assert len(operations) == batches
    held = rows(found.table)

    def land():
        catalog.release()
        await_end(f"{found.services.spark_remote};user_id=worker;session_id={session}", *operations)
        assert lands == LAST or len(rows(found.table)) > len(held), "the dead run's write landed"

    if lands == FIRST:
        land()
    elif lands == BETWEEN:
        found.before_write.append(land)
    recover(found, lane, rows)
    if lands == LAST:
        land()
        check_all_done(found, rows)
    assert not found.before_write, "the successor's write came to meet it"
