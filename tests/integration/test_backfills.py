"""Backfills of crash lag: many keys or one, in any order, at the same time, next to the live lane.

They are started as people start them. One group lost two runs: each partition of its topic owes 70-120 and
140-190. Every test drains partitions of its own.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from uuid import uuid4

import dagster as dg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.spark.source import read_ranges
from kafka_liveness_dagster.spark.table.write import write_table
from tests.integration.dagster_runs import ALONE_YAML
from tests.integration.kafka_group import SECONDS
from tests.spark_addresses import spark_at
from tests.waiting import PATIENCE, wait_for

PARTITIONS = 5
OWED = (Span(70, 120), Span(140, 190))


class CrashError(Exception):
    """What ended the lives of the group."""


class GroupWithCrashLag:
    """A code location whose group owes two ranges of each partition."""

    def __init__(self, services, instance, produce):
        self.instance, self._servers, self._produce = instance, services.bootstrap_servers, produce
        name = f"orders_{uuid4().hex[:8]}"
        self.topic, self.group, self.table = name, f"etl-{name}", f"lake.{name}.orders"
        self.kafka = kl.KafkaLivenessResource(
            bootstrap_servers=services.bootstrap_servers,
            session_timeout_seconds=30,
            heartbeat_interval_seconds=0.5,
            default_max_batch_seconds=600,
        )
        self.meeting = None  # the transforms of how many runs wait for each other

        def orders(batch):
            run = dg.AssetExecutionContext.get().run.run_id
            if self.meeting is not None:
                self.meeting(run)
            return batch.selectExpr("topic", "partition", "offset", f"'{run}' AS written_by")

        self.asset = kl.kafka_asset(
            name=name,
            topics=[name],
            group_id=self.group,
            table=self.table,
            enable_parallel_rebalance=True,
            idle_seconds=0.3,
        )(orders)
        self._resources = {"kafka": self.kafka, "spark": spark_at(services.spark_remote)}
        defs = dg.Definitions.merge(self.asset.definitions, dg.Definitions(resources=self._resources))
        jobs = self.asset.live_job, self.asset.crash_lag_job
        self._live, self._catch_up = (defs.resolve_job_def(job.name) for job in jobs)

    def partitions(self):
        return [TopicPartition(self.topic, partition) for partition in range(PARTITIONS)]

    def grow(self, partitions, start, end):
        for tp in partitions:
            self._produce(self._servers, self.topic, tp.partition, map(str, range(start, end)))

    def crash_run(self, spark, offsets, *, jumps=False):
        """So many offsets of each partition are in the table and committed; then the run dies."""
        count = offsets * PARTITIONS
        with (
            suppress(CrashError),
            self.kafka.consumer(
                topics=[self.topic],
                group_id=self.group,
                max_poll_records=count,
                enable_parallel_rebalance=True,
            ) as consumer,
        ):
            if jumps:
                wait_for(lambda: consumer.poll(0.2) is None and len(consumer.crash_lag) == PARTITIONS)
                self.grow(self.partitions(), 120, 140)
            batch = consumer.poll(SECONDS)
            assert batch.max_records == count

            def frame():
                found = read_ranges(spark, batch.ranges, self.kafka.settings().spark_options())
                return found.selectExpr("topic", "partition", "offset", "'lost run' AS written_by")

            write_table(spark, self.table, batch.ranges, frame)
            consumer.commit(batch)
            raise CrashError

    def keys(self, *partitions):
        """The keys of partitions, in the order of their offsets."""
        return [f"p{partition}:{self.topic}:{span}" for partition in partitions for span in OWED]

    def tick(self):
        """A look of the sensor; what it adds is added."""
        with dg.build_sensor_context(
            instance=self.instance, resources=self._resources, sensor_name=self.asset.sensor.name
        ) as context:
            for added in self.asset.sensor.evaluate_tick(context).dynamic_partitions_requests or ():
                self.instance.add_dynamic_partitions(added.partitions_def_name, added.partition_keys)

    def live(self):
        """A run of the live lane."""
        return self._live.execute_in_process(instance=self.instance)

    def catch_up(self, *keys):
        """One run for neighbouring keys."""
        if len(keys) == 1:
            return self._catch_up.execute_in_process(instance=self.instance, partition_key=keys[0])
        tags = {ASSET_PARTITION_RANGE_START_TAG: keys[0], ASSET_PARTITION_RANGE_END_TAG: keys[-1]}
        return self._catch_up.execute_in_process(instance=self.instance, tags=tags)

    def at_once(self, *runs):
        """Let the first batches of these runs be read and written at the same time; their run ids.

        A run starts when those before it wait: Dagster configures logging at the start of a run, and a thread
        that logs meanwhile may wait for it for ever.
        """
        everybody, arrived, met = threading.Barrier(len(runs)), threading.Semaphore(0), set()

        def meet(run):
            if run not in met:  # a batch that is written again need not meet anybody
                met.add(run)
                arrived.release()
                everybody.wait(PATIENCE)

        self.meeting, started = meet, []
        try:
            with ThreadPoolExecutor(len(runs)) as pool:
                for run in runs:
                    started.append(pool.submit(run))
                    wait_for(lambda run=started[-1]: arrived.acquire(blocking=False) or run.done())
                results = [run.result() for run in started]
        finally:
            self.meeting = None
        assert all(result.success for result in results)
        return [result.run_id for result in results]

    def check_done(self, rows, *partitions, log_end=190):
        """Each offset is in the table once, nothing is owed, every key is materialised."""
        facts = self.kafka.cluster().partition_states(self.group, self.partitions())
        found = rows(self.table)
        for tp in (self.partitions()[partition] for partition in partitions):
            assert [row["offset"] for row in found if row["partition"] == tp.partition] == list(
                range(log_end)
            )
            assert facts[tp].outstanding == ()
            assert facts[tp].catch_up_log.outstanding(OWED) == (), "the catch-up commit log has both ranges"
        assert self.instance.get_materialized_partitions(self.asset.crash_lag.key) >= set(
            self.keys(*partitions)
        )

    def began_again(self, runs):
        """Which of the runs met another writer of the same offsets or files."""
        said = {run: [entry.user_message for entry in self.instance.all_logs(run)] for run in runs}
        return [run for run in runs if any("Another writer committed rows of" in line for line in said[run])]

    def written_by(self, rows, partition):
        """``{run: offsets}`` of a partition's owed and later offsets."""
        found = {}
        for row in rows(self.table):
            if row["partition"] == partition and row["written_by"] != "lost run":
                found.setdefault(row["written_by"], []).append(row["offset"])
        return found


@pytest.fixture(scope="module")
def owing(services, produce, spark, tmp_path_factory):
    """Every partition owes 70-120 and 140-190; the sensor has added their keys."""
    home = tmp_path_factory.mktemp("dagster")
    (home / "dagster.yaml").write_text(ALONE_YAML)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        made = GroupWithCrashLag(services, instance, produce)
        admin = AdminClient({"bootstrap.servers": services.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic(made.topic, PARTITIONS, 1)])[made.topic].result()
        made.grow(made.partitions(), 0, 100)
        made.crash_run(spark, 70)
        made.grow(made.partitions(), 100, 120)
        made.crash_run(spark, 20, jumps=True)
        made.grow(made.partitions(), 140, 190)
        assert made.live().success
        made.tick()
        known = instance.get_dynamic_partitions(made.asset.crash_lag.key.path[-1])
        assert list(known) == made.keys(*range(PARTITIONS))
        yield made


def test_keys_of_several_partitions_in_one_run(owing, rows):
    """A single-run backfill: four ranges of two Kafka partitions, each materialised by the one run."""
    run = owing.catch_up(*owing.keys(0, 1))
    assert run.success
    owing.check_done(rows, 0, 1)
    assert set(owing.written_by(rows, 0)) == {run.run_id}
    [observed] = [event.asset_observation_data for event in run.all_events if event.is_asset_observation]
    metadata = observed.asset_observation.metadata
    assert observed.asset_observation.asset_key == owing.asset.live.key
    assert metadata["dagster/row_count"].value == len(rows(owing.table)), "the table's, after the backfill"
    materialized = run.asset_materializations_for_node(owing.asset.crash_lag.op.name)
    assert {one.metadata["run_summary"].value.partition(":")[0] for one in materialized} == {
        "4 partitions together"
    }


def test_a_run_for_each_key_in_any_order(owing, rows):
    """A multi-run backfill: the newer range first, each run leaves the other range as it was."""
    older, newer = owing.keys(2)
    first, second = (owing.catch_up(key).run_id for key in (newer, older))
    owing.check_done(rows, 2)
    assert owing.written_by(rows, 2) == {first: list(range(*OWED[1])), second: list(range(*OWED[0]))}


def test_two_runs_on_the_same_key_do_no_harm(owing, rows):
    """Both succeed; each offset is in the table once, by whichever of them was later."""
    older, newer = owing.keys(3)
    both = owing.at_once(lambda: owing.catch_up(older), lambda: owing.catch_up(older))
    [later] = owing.began_again(both)
    assert owing.written_by(rows, 3) == {later: list(range(*OWED[0]))}
    assert owing.catch_up(newer).success
    owing.check_done(rows, 3)


def test_disjoint_ranges_of_one_partition_are_written_at_the_same_time(owing, rows):
    """Two catch-up runs and a live run: all commit, none makes another one begin again."""
    older, newer = owing.keys(4)
    owing.grow(owing.partitions()[4:], 190, 240)
    runs = owing.at_once(lambda: owing.catch_up(older), lambda: owing.catch_up(newer), owing.live)
    owing.check_done(rows, 4, log_end=240)
    spans = (*OWED, Span(190, 240))
    assert owing.written_by(rows, 4) == {
        run: list(range(*span)) for run, span in zip(runs, spans, strict=True)
    }
    assert owing.began_again(runs) == []
