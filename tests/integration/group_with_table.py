"""A group, its table, and all that can make either forget, for the tests of the third witness.

The worked example: 70 offsets are in the table, 100 were begun, and the log ends at 120 when the next run
comes: it goes on at 120 and owes 70-120.
"""

from __future__ import annotations

import time
from contextlib import suppress
from uuid import uuid4

import dagster as dg
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from dagster._core.execution.backfill import PartitionBackfill
from dagster._core.storage.tags import BACKFILL_ID_TAG

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.kafka.catch_up.commit_log import CatchUpCommitLog
from kafka_liveness_dagster.spark.errors import TransformError
from tests.integration.kafka_group import recreate
from tests.spark_addresses import spark_at
from tests.waiting import wait_for

SPARK_UI = "http://127.0.0.1:4040"


class CrashError(Exception):
    """What ended a run."""


class GroupWithTable:
    """One topic with one partition, its Kafka asset, and its table.

    Runs are in this process, the rest is real.
    """

    def __init__(
        self, services, produce, rows, spark, *, protocol="classic", group=None, catalog="lake", **settings
    ):
        self.name = f"orders_{uuid4().hex[:8]}"
        self.topic, self.group = self.name, group or f"etl-{self.name}"
        self.tp, self.table = TopicPartition(self.topic, 0), f"{catalog}.{self.name}.orders"
        self.servers, self.spark, self._produce, self._rows = services.bootstrap_servers, spark, produce, rows
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        self.instance = dg.DagsterInstance.ephemeral()
        self.kafka = kl.KafkaLivenessResource(
            bootstrap_servers=self.servers,
            group_protocol=protocol,
            default_max_batch_seconds=600,
            **(
                {"session_timeout_seconds": 30, "heartbeat_interval_seconds": 0.5}
                if protocol == "classic"
                else {}
            ),
        )
        self.spark_remote = services.spark_remote
        self._connect = spark_at(self.spark_remote, ui_url=SPARK_UI)
        self.between = None  # called with each batch before it is read
        self.value = "cast(value AS string)"  # what the transform makes of it
        self.cursor = None
        self.settings = {"enable_parallel_rebalance": True, "batching": kl.Batching(in_flight=1), **settings}
        self.make_topic()
        self.log_end = 0

    def make_topic(self, partitions=1):
        self.admin.create_topics([NewTopic(self.topic, partitions, 1)])[self.topic].result()
        wait_for(lambda: self.topic in self.admin.list_topics(timeout=60).topics)

    def recreate_topic(self, records):
        """Deleted and created again, with so many records of another life."""
        recreate(self.admin, self.topic)
        self.log_end = 0
        self.grow_to(records, "new ")

    def grow_to(self, log_end, life=""):
        self._produce(self.servers, self.topic, 0, [f"{life}{n}" for n in range(self.log_end, log_end)])
        self.log_end = log_end

    def asset(self, **settings):
        """The asset with these settings; the transform drops what ends in 7: rows alone prove nothing."""

        def transform(batch):
            if self.between is not None:
                self.between(batch)
            rows = batch.selectExpr("topic", "partition", "offset", f"{self.value} AS value")
            return rows.where("value NOT LIKE '%7'")

        return kl.kafka_asset(
            name=self.name,
            topics=[self.topic],
            group_id=self.group,
            **{"table": self.table, "idle_seconds": 0.3, **self.settings, **settings},
        )(transform)

    def definitions(self, **settings):
        """The asset with these settings, and the definitions of a code location with it."""
        asset = self.asset(**settings)
        resources = dg.Definitions(resources={"kafka": self.kafka, "spark": self._connect})
        return asset, dg.Definitions.merge(asset.definitions, resources)

    def live(self, between=None, **settings):
        """A run of the live lane: the error that ended it, or None."""
        asset, defs = self.definitions(**settings)
        self.between = between
        return self._ended_by(
            lambda job: job.execute_in_process(instance=self.instance), defs, asset.live_job
        )

    def catch_up(self, *spans, again="", tags=None, between=None, form="p0:{}:{}-{}", **settings):
        """A run of the catch-up lane for the partition of each span, one after the other.

        The first error, or None.
        """
        asset, defs = self.definitions(**settings)
        self.between = between
        for start, end in spans:
            key = form.format(self.topic, start, end) + again
            self.instance.add_dynamic_partitions(asset.settings.crash_lag_key.path[-1], [key])
            run = self._ended_by(
                lambda job, key=key: job.execute_in_process(
                    instance=self.instance, partition_key=key, tags=tags
                ),
                defs,
                asset.crash_lag_job,
            )
            if run is not None:
                return run
        return None

    def materialize_all(self):
        """Return the tags of the runs that *Materialize all* starts: the UI's backfill of all partitions."""
        _, defs = self.definitions()
        return {BACKFILL_ID_TAG: launch_backfill_of_all(defs.resolve_asset_graph(), self.instance)}

    def newest_log(self):
        """The log of the newest run."""
        [newest] = self.instance.get_run_records(limit=1)
        return "\n".join(entry.user_message for entry in self.instance.all_logs(newest.dagster_run.run_id))

    def materialized_ranges(self):
        """The crash lag ranges that Dagster shows as done."""
        keys = self.instance.get_materialized_partitions(dg.AssetKey(f"{self.name}_crash_lag"))
        return sorted(tuple(map(int, key.partition("@")[0].split(":")[2].split("-"))) for key in keys)

    def crash_at_70(self, upto=100):
        """The first run dies in its second batch: committed 70."""
        self.grow_to(upto)

        def die(batch):
            if batch.selectExpr("max(offset)").first()[0] >= 70:
                raise CrashError

        ended_by = self.live(die, max_poll_records=70)
        assert isinstance(ended_by, TransformError), ended_by
        assert isinstance(ended_by.__cause__, CrashError)
        assert self.committed() == 70

    def crash_and_resume_at_120(self):
        """The worked example after its first crash."""
        self.crash_at_70()
        self.grow_to(120)
        assert self.live() is None
        assert (self.committed(), self.pending_by_live_log()) == (120, [(70, 120)])
        assert self.offsets() == written_rows(0, 70)

    def commit_externally(self, offset, metadata="", *, of_catch_up_log=False):
        """A program without any idea of us, in a group that has no member just now.

        A reset tool, kcat, a console.
        """
        self._commit(self.group + (".catch-up" if of_catch_up_log else ""), offset, metadata)

    def join_externally(self, *, of_catch_up_log=False):
        """A consumer with auto-commit that has the group's partitions for a while."""
        group = self.group + (".catch-up" if of_catch_up_log else "")
        config = {"bootstrap.servers": self.servers, "group.id": group, "auto.offset.reset": "latest"}
        consumer = Consumer({**config, "auto.commit.interval.ms": 100, "session.timeout.ms": 6000})
        consumer.subscribe([self.topic])
        try:
            wait_for(lambda: consumer.poll(0.1) is None and consumer.assignment())
            for message in consumer.consume(1_000, timeout=1.0):
                assert message.error() is None
        finally:
            consumer.close()

    def write_off(self, start, end):
        """What ``kafka-liveness write-off`` writes into the catch-up commit log."""
        log = CatchUpCommitLog(self.kafka.settings(), self.group, "forgive")
        try:
            log.write_off({self.tp: (Span(start, end),)})
        finally:
            log.close()

    def delete_offsets(self, *, of_catch_up_log=False):
        """What ``kafka-consumer-groups --delete --group`` does.

        Also what is left when all commits expired.
        """
        group = self.group + (".catch-up" if of_catch_up_log else "")
        self.admin.delete_consumer_groups([group])[group].result()

    def expire(self, log_start):
        """What the broker's retention does, at once."""
        at = KafkaTopicPartition(self.topic, 0, log_start)
        self.admin.delete_records([at])[at].result()

    def drop_table(self):
        self.spark.sql(f"DROP TABLE {self._quoted}")

    def roll_back(self, snapshots):
        """The table as it was so many commits ago."""
        ids = [row[0] for row in self.spark.sql(f"SELECT snapshot_id FROM {self._quoted}.history").collect()]
        target = ids[-1 - snapshots]
        catalog, _, name = self.table.partition(".")
        self.spark.sql(f"CALL {catalog}.system.rollback_to_snapshot('{name}', {target})").collect()

    def sql(self, text):
        """A statement about the table ``{t}``.

        A procedure is of its ``{catalog}``, and calls it ``{name}``.
        """
        catalog, _, name = self.table.partition(".")
        return self.spark.sql(text.format(t=self._quoted, catalog=catalog, name=name)).collect()

    def topic_id(self):
        return self.kafka.cluster().topic_ids([self.topic])[self.topic]

    def snapshots(self):
        return self.sql("SELECT count(*) FROM {t}.snapshots")[0][0]

    def committed(self):
        return self._partition_state().committed

    def first_owner_state(self):
        """What the last owner of the partition wrote."""
        return self._partition_state().live_metadata.owner_state

    def catch_up_log(self):
        """Its offset and metadata, None while there is none."""
        return self.kafka.cluster().commits(f"{self.group}.catch-up", [self.tp]).get(self.tp)

    def pending_by_live_log(self):
        """What the live commit log says is owed."""
        return [tuple(span) for span in self._partition_state().pending_by_live_log]

    def offsets(self):
        """The offsets of the rows in the table, as often as they are there."""
        with suppress(Exception):
            return [row["offset"] for row in self._rows(self.table)]
        return []

    def values(self):
        return {row["offset"]: row["value"] for row in self._rows(self.table)}

    def keys(self):
        """The crash lag partitions that Dagster knows."""
        keys = self.instance.get_dynamic_partitions(f"{self.name}_crash_lag")
        return sorted(tuple(map(int, key.partition("@")[0].split(":")[2].split("-"))) for key in keys)

    def tick(self, spark=None, *, sensor=None):
        """A tick of its sensor, or of this one: its result, with the checks that it evaluated.

        What it adds is added.
        """
        sensor = sensor or self.definitions()[0].sensor
        resources = {"kafka": self.kafka, "spark": spark or self._connect}
        with dg.build_sensor_context(
            instance=self.instance, resources=resources, sensor_name=sensor.name, cursor=self.cursor
        ) as context:
            result = sensor.evaluate_tick(context)
        for added in result.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(added.partitions_def_name, added.partition_keys)
        for event in result.asset_events:
            if isinstance(event, dg.AssetCheckEvaluation):  # else the next tick stores them again
                self.instance.report_runless_asset_event(event)
        self.cursor = result.cursor
        return result

    def _partition_state(self):
        return self.kafka.cluster().partition_states(self.group, [self.tp])[self.tp]

    def _commit(self, group, offset, metadata):
        client = Consumer({"bootstrap.servers": self.servers, "group.id": group, "enable.auto.commit": False})
        try:
            at = KafkaTopicPartition(self.topic, 0, offset, metadata)
            client.commit(offsets=[at], asynchronous=False)
        finally:
            client.close()

    @property
    def _quoted(self):
        return ".".join(f"`{part}`" for part in self.table.split("."))

    def _ended_by(self, run, defs, job):
        try:
            run(defs.resolve_job_def(job.name))
        except KafkaLivenessError as error:
            return error
        return None


def written_rows(start, end):
    """The offsets whose rows the transform keeps."""
    return [n for n in range(start, end) if n % 10 != 7]


def launch_backfill_of_all(graph, instance):
    """Launch what *Materialize all* launches: GraphQL's ``launchPartitionBackfill`` with ``allPartitions``.

    Its id.
    """
    backfill = PartitionBackfill.from_asset_partitions(
        backfill_id=uuid4().hex[:8],
        asset_graph=graph,
        partition_names=None,
        asset_selection=list(graph.materializable_asset_keys),
        backfill_timestamp=time.time(),
        tags={},
        dynamic_partitions_store=instance,
        all_partitions=True,
        title=None,
        description=None,
        run_config=None,
    )
    instance.add_backfill(backfill)
    return backfill.backfill_id
