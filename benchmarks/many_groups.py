"""Many consumer groups as they stand after a crash.

Commits in both logs, and an owed range on every partition.
"""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock
from uuid import uuid4

import dagster as dg
from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

import kafka_liveness_dagster as kl
from benchmarks.lake import own_services
from benchmarks.left_behind import commit
from kafka_liveness_dagster.core.commit_metadata import (
    CATCH_UP_SUFFIX,
    CatchUpCommitMetadata,
    LiveCommitMetadata,
    OwnerState,
)
from kafka_liveness_dagster.core.offsets import OffsetRange, Span
from kafka_liveness_dagster.core.run_ids import short_run_id
from kafka_liveness_dagster.runs.tags import lane_tags
from kafka_liveness_dagster.sensor import sensor, shared
from kafka_liveness_dagster.sensor.observation import GroupObservation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kafka_liveness_dagster.assets.definitions import KafkaAsset

TICK_SECONDS = 5  # between two rounds of Dagster's daemon
COMMITTED, LOG_END = 7, 12
OWED, DONE = Span(2, 5), Span(2, 3)
_RUNS = 5  # that Dagster knows of each group
_SECONDS = 120
_NO_SPARK = kl.SparkConnectResource(remote="sc://localhost:1")  # a look goes on without the table
_LONG_AGO = 1_000_000
_AT_ONCE = 5_000  # partitions: the controller refuses 10,000 in one request


@dataclass
class WatchedGroup:
    """One group, the asset that consumes it, and the sensor's cursor."""

    asset: KafkaAsset
    kafka: kl.KafkaLivenessResource
    instance: dg.DagsterInstance
    cursor: str | None = None
    spark: kl.SparkConnectResource = field(default_factory=lambda: _NO_SPARK)

    def tick(self) -> float:
        """Evaluate the sensor as Dagster's code server does; seconds.

        Then do what the daemon does with the answer.
        """
        began = time.perf_counter()
        with dg.build_sensor_context(
            self.instance,
            cursor=self.cursor,
            resources={"kafka": self.kafka, "spark": self.spark},
            sensor_name=self.asset.sensor.name,
        ) as context:
            told = self.asset.sensor.evaluate_tick(context)
        seconds = time.perf_counter() - began
        for request in told.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(
                request.partitions_def_name or "", list(request.partition_keys)
            )
        self.cursor = told.cursor
        return seconds

    def look(self) -> float:
        """Only the look at Kafka, and at Dagster's runs; seconds."""
        began = time.perf_counter()
        seen = GroupObservation.read(
            self.kafka.cluster(), self.instance, self.asset.group_id, self.asset.topics
        )
        assert len(seen.pending) == len(seen.snapshot.partitions), "every partition owes one range"  # noqa: S101
        return time.perf_counter() - began

    @cached_property
    def run_id(self) -> str:
        """The newest live run's."""
        return str(uuid4())


class MinuteClock:
    """The clock of sensors: one minute is set ahead tick by tick, and the clock rests between two of them."""

    def __init__(self) -> None:
        self._tick_at = time.time()
        self._began = 0.0

    def minute(self, tick: Callable[[], float]) -> list[float]:
        """Evaluate sensors for a minute, each 5 s; the seconds that each took."""
        found = []
        clock = SimpleNamespace(time=self._now, monotonic=self._now)
        with mock.patch.object(shared, "time", clock), mock.patch.object(sensor, "time", clock):
            for _ in range(60 // TICK_SECONDS):
                self._tick_at += TICK_SECONDS
                self._began = time.monotonic()
                found.append(tick())
        return found

    def _now(self) -> float:
        return self._tick_at + time.monotonic() - self._began


class SharedGroups:
    """Several groups that one sensor watches, with the sensor's cursor.

    Their assets are others than those with a sensor each: one asset cannot have both.
    """

    def __init__(self, groups: list[WatchedGroup], name: str) -> None:
        self.group = groups[0]
        self.sensor = kl.build_shared_sensor([one.asset for one in groups], name=name)
        self.cursor: str | None = None

    def tick(self) -> float:
        """Evaluate the sensor as Dagster's code server does; seconds."""
        began = time.perf_counter()
        with dg.build_sensor_context(
            self.group.instance,
            cursor=self.cursor,
            resources={"kafka": self.group.kafka, "spark": self.group.spark},
            sensor_name=self.sensor.name,
        ) as context:
            result = self.sensor.evaluate_tick(context)
        seconds = time.perf_counter() - began
        for request in result.dynamic_partitions_requests or ():
            self.group.instance.add_dynamic_partitions(
                request.partitions_def_name or "", list(request.partition_keys)
            )
        self.cursor = result.cursor
        return seconds


@contextmanager
def broker() -> Iterator[str]:
    """A broker of the benchmark's own, without anybody's groups."""
    with own_services("kafka") as (started, _):
        yield started.bootstrap_servers


def watched(
    topic: str, number: int, kafka: kl.KafkaLivenessResource, instance: dg.DagsterInstance
) -> WatchedGroup:
    """The n-th group of a topic; declares an asset, asks nobody."""

    @kl.kafka_asset(topics=[topic], group_id=f"{topic}-{number}", name=f"{topic}_{number}".replace("-", "_"),
                    table="lake.shop.orders", enable_parallel_rebalance=True)  # fmt: skip
    def asset(batch: Any) -> Any:
        return batch

    return WatchedGroup(asset, kafka, instance)


def make_topic(bootstrap_servers: str, partitions: int, *, filled: bool = True) -> str:
    """A topic with records in each partition, or with none.

    Each log that was written to costs the broker two files.
    """
    name = f"bench-{partitions}-{uuid4().hex[:6]}"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(name, min(partitions, _AT_ONCE), 1)])[name].result(timeout=_SECONDS)
    for grown in range(2 * _AT_ONCE, partitions + _AT_ONCE, _AT_ONCE):
        admin.create_partitions([NewPartitions(name, min(partitions, grown))])[name].result(timeout=_SECONDS)
    give_up_at = time.monotonic() + _SECONDS
    while not _is_led(admin, name, partitions):
        assert time.monotonic() < give_up_at, f"no {partitions} partitions of {name} in {_SECONDS} s"  # noqa: S101
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for partition in range(partitions if filled else 0):
        for number in range(LOG_END):
            producer.produce(name, json.dumps({"order": number}).encode(), partition=partition)
        producer.poll(0)
    left = producer.flush(_SECONDS)
    assert not left, f"{left} records were not written in {_SECONDS} s"  # noqa: S101
    return name


def _is_led(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Whether the broker answers for all partitions: it takes them over after the controller created them."""
    found = admin.list_topics(timeout=_SECONDS).topics.get(topic)
    if found is None or len(found.partitions) < partitions:
        return False
    asked = {KafkaTopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
    try:
        return all(told.result() for told in admin.list_offsets(asked, request_timeout=_SECONDS).values())
    except KafkaException:
        return False


def caught_up(group: WatchedGroup, bootstrap_servers: str, partitions: int) -> None:
    """Leave the live commit log as a run leaves it that has read all."""
    mark = LiveCommitMetadata(OwnerState.RELEASED, short_run_id(group.run_id)).encode()
    topic = group.asset.topics[0]
    every = [KafkaTopicPartition(topic, number, LOG_END, mark) for number in range(partitions)]
    commit(bootstrap_servers, group.asset.group_id, every)


def have_done(group: WatchedGroup, keys: int) -> None:
    """Let Dagster know so many crash lag partitions of a group, all materialized.

    Its SQLite is told at once.
    """
    asset, topic = group.asset.crash_lag.key, group.asset.topics[0]
    name = asset.to_python_identifier()
    every = [str(OffsetRange(topic, 0, one, one + 1)) for one in range(_LONG_AGO, _LONG_AGO + keys)]
    for first in range(0, keys, _AT_ONCE):
        group.instance.add_dynamic_partitions(name, every[first : first + _AT_ONCE])
    group.instance.report_runless_asset_event(dg.AssetMaterialization(asset, partition=every[0]))
    (first_one,) = group.instance.fetch_materializations(asset, limit=1).records
    columns = "run_id, event, dagster_event_type, timestamp, step_key, asset_key"
    with group.instance.event_log_storage.index_connection() as connection:  # type: ignore[attr-defined]
        connection.exec_driver_sql(
            f"INSERT INTO event_logs ({columns}, partition) SELECT {columns}, known.partition "
            "FROM event_logs, dynamic_partitions known WHERE event_logs.id = ? AND partitions_def_name = ?",
            (first_one.storage_id, name),
        )


def crash(group: WatchedGroup, bootstrap_servers: str, partitions: int) -> None:
    """Leave both commit logs as a crash leaves them, and the runs in Dagster."""
    name, topic = group.asset.group_id, group.asset.topics[0]
    live = LiveCommitMetadata(OwnerState.RUNNING, short_run_id(group.run_id), (OWED,)).encode()
    done = CatchUpCommitMetadata(0, (DONE,))
    tps = [(topic, number) for number in range(partitions)]
    commit(bootstrap_servers, name, [KafkaTopicPartition(*tp, COMMITTED, live) for tp in tps])
    second = [KafkaTopicPartition(*tp, done.watermark, done.encode()) for tp in tps]
    commit(bootstrap_servers, name + CATCH_UP_SUFFIX, second)
    for number in range(_RUNS):
        group.instance.add_run(
            dg.DagsterRun(
                job_name=group.asset.live_job.name,
                run_id=group.run_id if number == _RUNS - 1 else str(uuid4()),
                status=dg.DagsterRunStatus.FAILURE if number == _RUNS - 1 else dg.DagsterRunStatus.SUCCESS,
                tags=lane_tags(name, "live"),
            )
        )
