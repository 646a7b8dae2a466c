"""Runs of a live lane in this process, on the real broker and the real Spark."""

from __future__ import annotations

from unittest.mock import patch
from uuid import uuid4

import dagster as dg

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
from kafka_liveness_dagster.spark.table.write import write_table
from tests.spark_addresses import spark_at

SIZE = 20


class LiveRuns:
    """One topic, one group, and runs of its live lane in this process."""

    def __init__(self, services, topic, table, protocol, **settings):
        self.topic, self.table, self.group = topic, table, f"etl-{topic}"
        self.gate, self.instance, self.beside = f"gate-{uuid4().hex}", None, dg.Definitions()
        timeouts = (
            {"session_timeout_seconds": 30, "heartbeat_interval_seconds": 0.2}
            if protocol == "classic"
            else {}
        )
        self.kafka = kl.KafkaLivenessResource(
            bootstrap_servers=services.bootstrap_servers, group_protocol=protocol, **timeouts
        )
        self.spark = spark_at(services.spark_remote)
        self.settings = {
            "name": "orders",
            "topics": [topic],
            "group_id": self.group,
            "table": table,
            "max_poll_records": SIZE,
            "max_batch_seconds": 600,
            "idle_seconds": 0.5,
            **settings,
        }

    def run(self, transform):
        """A live run; the run and what it said, with a line for each batch."""
        asset = kl.kafka_asset(**self.settings)(transform)
        resources = dg.Definitions(resources={"kafka": self.kafka, "spark": self.spark})
        defs = dg.Definitions.merge(asset.definitions, resources, self.beside)
        job = defs.resolve_job_def(f"{asset.settings.identifier}_job")
        with dg.DagsterInstance.local_temp(overrides={"telemetry": {"enabled": False}}) as instance:
            instance.get_runs()  # makes its tables, for those who ask meanwhile
            self.instance = instance
            with patch("kafka_liveness_dagster.lanes.batch_reporting.LINES_EVERY_SECONDS", 0.0):
                run = job.execute_in_process(instance=instance, raise_on_error=False)
            self.events = instance.all_logs(run.run_id)
            self.tags = instance.get_run_by_id(run.run_id).tags
            return run, [entry.user_message for entry in self.events]

    def said_in_progress(self, words):
        """Whether a run's page shows these words in a tag."""
        runs = self.instance.get_runs() if self.instance is not None else []
        return any(words in value for run in runs for value in run.tags.values())

    def committed(self):
        """The group's committed offset."""
        tp = TopicPartition(self.topic, 0)
        return self.kafka.cluster().partition_states(self.group, [tp])[tp].committed

    def rows_of(self, batch):
        """The batch as it is, but its first offsets, if there are any, wait for the gate."""
        nap = "java_method('java.lang.Thread', 'sleep', 100L)"
        closed = f"coalesce(java_method('java.lang.System', 'getProperty', '{self.gate}'), '') <> 'open'"
        held = f"if(offset < {SIZE} AND {closed}, {' || '.join([nap] * 5)}, '')"
        return batch.selectExpr("topic", "partition", "offset", f"concat({held}, '') AS nap")

    def make_table(self, spark):
        """A table without rows: the batch that makes it would be waited for."""
        none = spark.sql("SELECT '' AS topic, 0 AS partition, 0L AS offset, '' AS nap").where("false")
        write_table(spark, self.table, [OffsetRange("before", 0, 0, 1)], lambda: none)

    def open_gate(self, spark):
        """Let the first batch go on."""
        spark.sql(f"SELECT java_method('java.lang.System', 'setProperty', '{self.gate}', 'open')").collect()
