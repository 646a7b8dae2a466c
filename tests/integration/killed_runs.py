"""The code location of a group whose runs are killed: both lanes, and what the living can do and see.

Each of two topics has two partitions. Those of the first were left by a crash before (70 committed, log end
120), those of the second are new (0-100).
"""

from __future__ import annotations

import multiprocessing
import signal
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from uuid import uuid4

import dagster as dg
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.failpoints import VARIABLE
from kafka_liveness_dagster.kafka.partition_states import partition_states_with_ledger
from kafka_liveness_dagster.spark.source import read_ranges
from kafka_liveness_dagster.spark.table.ledger import TableLedger
from kafka_liveness_dagster.spark.table.table import IcebergTable
from kafka_liveness_dagster.spark.table.write import write_table
from tests.integration.declared_settings import made
from tests.integration.killed_worker import work
from tests.spark_addresses import spark_at
from tests.timeouts import seconds
from tests.waiting import wait_for

PARTITIONS = (0, 1)
SESSION, HEARTBEAT = seconds(1.5), 0.5  # under KIP-848 they are the group's, on the broker
OF_THE_LIVING = 30.0  # seconds; no run waits for the end of their sessions
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.integration.killed_worker"])


class CrashError(Exception):
    """What ended the first life of the group."""


class KilledLocation:
    """The code location of one group, in this process; a worker has the same with another transform."""

    def __init__(
        self, instance, services, topics, table, group, *, parallel, protocol, in_flight, members, snapshots
    ):
        self.instance, self.services, self.topics, self.table = instance, services, topics, table
        self.group, self.parallel = group, parallel
        self.partitions = [TopicPartition(topic, partition) for topic in topics for partition in PARTITIONS]
        self.before_write = []
        self.asset_settings = {
            "name": f"orders_{uuid4().hex[:8]}",
            "topics": topics,
            "group_id": group,
            "table": table,
            "enable_parallel_rebalance": parallel,
            "max_batch_seconds": 600,
            "idle_seconds": 0.3,
            "batching": {"in_flight": in_flight},
            "iceberg": {"snapshots": snapshots},
            # of two, one is in the middle of a batch
            "membership": {"liveness": "progress" if members > 1 else "poll"},
        }
        timeouts = {"session_timeout_seconds": SESSION, "heartbeat_interval_seconds": HEARTBEAT}
        self.kafka_settings = {
            "bootstrap_servers": services.bootstrap_servers,
            "group_protocol": protocol,
            "default_max_batch_seconds": 600,
            **(timeouts if protocol == "classic" else {}),
        }
        living = {"session_timeout_seconds": OF_THE_LIVING} if protocol == "classic" else {}
        self.kafka = kl.KafkaLivenessResource(**{**self.kafka_settings, **living})
        self.spark = spark_at(services.spark_remote)

        def orders(batch):
            while self.before_write:
                self.before_write.pop(0)()
            return batch.selectExpr("topic", "partition", "offset", "'alive' AS written_by")

        self.asset = kl.kafka_asset(**made(self.asset_settings))(orders)
        resources = dg.Definitions(resources={"kafka": self.kafka, "spark": self.spark})
        self.defs = dg.Definitions.merge(self.asset.definitions, resources)

    def job(self, lane):
        """The job of a lane, ready to run."""
        return self.defs.resolve_job_def(
            (self.asset.crash_lag_job if lane == "catch-up" else self.asset.live_job).name
        )

    def run(self, lane, tags=None):
        """A run of a lane, in this thread."""
        assert self.job(lane).execute_in_process(instance=self.instance, tags=tags).success

    def tick(self):
        """A look of the sensor; what it adds is added. Whether it wants a live run."""
        with dg.build_sensor_context(
            instance=self.instance,
            resources={"kafka": self.kafka, "spark": self.spark},
            sensor_name=self.asset.sensor.name,
        ) as context:
            found = self.asset.sensor.evaluate_tick(context)
        for added in found.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(added.partitions_def_name, added.partition_keys)
        return bool(found.run_requests)

    def missing(self):
        """Crash lag partitions that are not materialised."""
        done = self.instance.get_materialized_partitions(self.asset.crash_lag.key)
        known = self.instance.get_dynamic_partitions(self.asset.crash_lag.key.path[-1])
        return [key for key in known if key not in done]

    def backfill(self):
        """One run for all partitions that are missing."""
        if keys := self.missing():
            self.run(
                "catch-up",
                {ASSET_PARTITION_RANGE_START_TAG: keys[0], ASSET_PARTITION_RANGE_END_TAG: keys[-1]},
            )

    def facts(self):
        """Both commit logs, the log bounds, and what the table says of itself."""
        ledger = TableLedger(IcebergTable(self.table), self.spark.session)
        return partition_states_with_ledger(self.kafka.cluster(), self.group, self.partitions, ledger)

    def crash(self, spark):
        """70 offsets of each partition of the first topic are in the table and committed.

        Then the live lane dies.
        """
        with (
            suppress(CrashError),
            self.kafka.consumer(
                topics=self.topics[:1], group_id=self.group, max_poll_records=140
            ) as consumer,
        ):
            batch = consumer.poll(120)
            settings = self.kafka.settings().spark_options()

            def frame():
                records = read_ranges(spark, batch.ranges, settings)
                return records.selectExpr("topic", "partition", "offset", "'dead' AS written_by")

            write_table(spark, self.table, batch.ranges, frame)
            consumer.commit(batch)
            raise CrashError

    def worker(self, lane, session, *, killed_while=""):
        """What the child is told, as its argument."""
        return {
            "asset": {**self.asset_settings},
            "max_poll_records": 20 if lane == "catch-up" else 40,
            "job": self.job(lane).name,
            "partition_key": self.missing()[0] if lane == "catch-up" else None,
            "kafka": self.kafka_settings,
            "spark": f"{self.services.spark_remote};user_id=worker;session_id={session}",
            "killed_while": killed_while,
        }

    def kill(self, argument, failpoint=None, nth=1):
        """Let a child run until it dies as it was told; gives what it last said."""
        env = {"DAGSTER_HOME": self.instance.root_directory}
        env |= {VARIABLE: f"{failpoint.value}:{nth}"} if failpoint else {}
        before = {run.run_id for run in self.instance.get_runs()}
        heard, says = FORKS.Pipe(duplex=False)
        child = FORKS.Process(target=work, args=(argument, env, says))
        child.start()
        says.close()
        child.join()
        assert child.exitcode == -signal.SIGKILL, "it should have died, and ended: see its output"
        [dead] = [run for run in self.instance.get_runs() if run.run_id not in before]
        self.instance.report_run_failed(dead)  # as the code server does for a worker that died
        with heard, suppress(EOFError):  # it may have had nothing to say
            return heard.recv()
        return None


class OtherMember:
    """A second run of the same lane, in its first batch until ``serve``; no member if it is ``None``.

    Of the live lane it is the group's second member, and loses the dead one's partitions to it. Of the
    catch-up lane it has the dead one's partition too: both do the same range.
    """

    def __init__(self, location, lane):
        self._location, self._lane, self._gate = location, lane, threading.Event()
        self._pool, waits = ThreadPoolExecutor(1), threading.Event()
        location.before_write += [waits.set, self._gate.wait]
        self._run = self._pool.submit(
            location.backfill if lane == "catch-up" else lambda: location.run("live")
        )
        wait_for(lambda: waits.is_set() or self._run.done())

    def serve(self):
        """It has got what the dead one had, and finishes."""
        if self._lane != "catch-up":
            wait_for(lambda: len(self._location.kafka.cluster().members(self._location.group)) == 1)
        self._gate.set()
        self._run.result(600)

    def close(self):
        """Let nothing of it be left."""
        self._gate.set()
        self._pool.shutdown()


class Catalog:
    """The table's catalog, through which nobody's commit gets while it is held; Iceberg waits 10 s for it."""

    def __init__(self, file):
        self._connection = sqlite3.connect(file, isolation_level=None, timeout=20, check_same_thread=False)

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
