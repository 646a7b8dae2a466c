"""A group some of whose records cannot be processed, on the real components."""

from __future__ import annotations

import signal
import time

import dagster as dg
from confluent_kafka import Producer

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.failpoints import VARIABLE
from kafka_liveness_dagster.spark.errors import TransformError
from tests.integration.bad_records import work
from tests.integration.group_with_table import GroupWithTable
from tests.integration.killed_runs import FORKS

BROKEN = "cast(cast(value AS string) AS bigint)"  # under ANSI an error, and none of Spark's own
MENDED = "coalesce(try_cast(cast(value AS string) AS bigint), -1)"
WHEN_MS = int(time.time()) * 1000  # what is older than a week the broker would delete
DEAD_LETTERS = {"on_bad_record": "dead_letter", "in_flight": 1}


class DeadLetterGroup(GroupWithTable):
    """One topic with two partitions; ``value`` is what the transform makes of a record."""

    def __init__(self, *world, batching=DEAD_LETTERS, **settings):
        super().__init__(
            *world, **{"enable_parallel_rebalance": False, **settings}, batching=kl.Batching(**batching)
        )
        self.value, self.batching = BROKEN, batching
        self.kafka = kl.KafkaLivenessResource(
            bootstrap_servers=self.servers,
            session_timeout_seconds=30,
            heartbeat_interval_seconds=0.5,
            default_max_batch_seconds=600,
        )

    def make_topic(self, partitions=2):
        super().make_topic(partitions)

    def produce(self, *partitions):
        """``"0 1 x 3"``: four records of a partition, each with a key and a header."""
        producer = Producer({"bootstrap.servers": self.servers})
        for partition, values in enumerate(partitions):
            for value in values.split():
                headers = [("trace", f"of {value}".encode())]
                producer.produce(
                    self.topic, value.encode(), b"a key", partition, headers=headers, timestamp=WHEN_MS
                )
        assert producer.flush(120) == 0

    def definitions(self, **settings):
        """The asset; its transform is SQL, or a function in ``value``."""
        if isinstance(self.value, str):
            transform = lambda batch: batch.selectExpr(  # noqa: E731
                "topic", "partition", "offset", f"{self.value} AS value"
            )
        else:
            transform = self.value
        settings = {**self.settings, **settings}
        asset = kl.kafka_asset(
            name=self.name,
            topics=[self.topic],
            group_id=self.group,
            **{"table": self.table, "idle_seconds": 0.3, **settings},
        )(transform)
        resources = dg.Definitions(resources={"kafka": self.kafka, "spark": self._connect})
        return asset, dg.Definitions.merge(asset.definitions, resources)

    def crash(self):
        """A run that has its partitions, and dies before it has read anything."""
        value, self.value = self.value, lambda _: 1 / 0
        assert isinstance(self.live(), TransformError)
        self.value = value

    def offsets_in_table(self, partition=0):
        """The offsets of the rows of a partition, as often as they are in the table."""
        return self._offsets(self.table, partition)

    def letters(self, partition=0):
        """The same of the dead letters."""
        return self._offsets(f"{self.table}_dead_letters", partition)

    def letter_rows(self):
        return self._rows(f"{self.table}_dead_letters")

    def pending(self, partition=0):
        """What is owed and not done, by both commit logs."""
        facts = self._of(partition)
        return [tuple(span) for span in facts.catch_up_log.outstanding(facts.pending_by_live_log)]

    def committed_offset(self, partition=0):
        """The committed offset."""
        return self._of(partition).committed

    def check(self, **settings):
        """The check ``dead_letters``, as a run of it finds it now."""
        asset, _ = self.definitions(**settings)
        key = dg.AssetCheckKey(asset.live.key, "dead_letters")
        resources = {"kafka": self.kafka, "spark": self._connect}
        run = dg.materialize(
            [asset.checks],
            selection=dg.AssetSelection.checks(key),
            resources=resources,
            instance=self.instance,
        )
        [found] = run.get_asset_check_evaluations()
        return found

    def reported(self, start, partition=0):
        """What the page of a crash lag partition says of its offset."""
        key = f"p{partition}:{self.topic}:{start}-{start + 1}"
        asked = dg.AssetRecordsFilter(dg.AssetKey(f"{self.name}_crash_lag"), asset_partitions=[key])
        [record] = self.instance.fetch_observations(asked, limit=1).records
        return record.asset_observation

    def kill(self, failpoint, nth, home):
        """A live run in a process of its own that dies at this step."""
        told = {
            "servers": self.servers,
            "remote": self.spark_remote,
            "value": self.value,
            "asset": {"name": self.name, "topics": [self.topic], "group_id": self.group, "table": self.table},
            "batching": self.batching,
            "idle_seconds": 0.3,
        }
        env = {"DAGSTER_HOME": str(home), VARIABLE: f"{failpoint.value}:{nth}"}
        child = FORKS.Process(target=work, args=(told, env))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL, "it should have died: see its output"

    def _of(self, partition):
        tp = TopicPartition(self.topic, partition)
        return self.kafka.cluster().partition_states(self.group, [tp])[tp]

    def _offsets(self, table, partition):
        _, namespace, name = table.split(".")
        if not self.spark.catalog.tableExists(f"lake.{namespace}.{name}"):
            return []
        return [row["offset"] for row in self._rows(table) if row["partition"] == partition]
