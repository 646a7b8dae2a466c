"""The records of these offset ranges as a DataFrame: exactly those, read by Spark's own Kafka source.

Never joins a group, never commits, and no record passes through this process.

>>> from kafka_liveness_dagster.core.offsets import OffsetRange
>>> first, second = one_per_partition([OffsetRange("orders", 3, 140, 190), OffsetRange("orders", 3, 70, 120)])
>>> _offsets_json(first, "start"), _offsets_json(first, "end"), _offsets_json(second, "start")
('{"orders": {"3": 70}}', '{"orders": {"3": 120}}', '{"orders": {"3": 140}}')
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import time
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.spark.ranges import one_per_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Literal

    from pyspark.sql import DataFrame, SparkSession

    from kafka_liveness_dagster.core.offsets import OffsetRange

DEFAULTS = {
    "kafka.isolation.level": "read_committed",  # Spark's own default would read aborted transactions
    # A task reads thousands of records of one partition: Kafka's 500 a poll and 1 MB a fetch are a round trip
    # too many
    "kafka.max.poll.records": "5000",
    "kafka.fetch.max.bytes": str(100 * 2**20),
    "kafka.max.partition.fetch.bytes": str(8 * 2**20),
    # At the log end a fetch waits for more, and the look at the log bounds that Spark takes beside it waits
    # behind it: with Kafka's 500 ms a batch of 800 records on 8 partitions took 2.1 s, so 0.1 s. What we read
    # is there already. A consumer that closes waits so long too, and above 64 partitions each task has its
    # own: 12 ms with 5, 9 with 1
    "kafka.fetch.max.wait.ms": "1",
}
OFFSETS_PER_TASK = 10_000
"""Below this a task costs about what it saves, and each task writes a file of its own."""
RANGES_PER_TASK = 16
"""At most so many small ranges share a task, whose readers all stay open until it ends."""
SMALL_BATCH_OFFSETS = 500
"""Offsets of a range at most, on average, for that.

As many records as Kafka's consumer gives at a poll by default.
"""
_SHARED_OPTIONS = {
    "kafka.max.poll.records": str(SMALL_BATCH_OFFSETS),
    "kafka.max.partition.fetch.bytes": str(2**20),
}
_TASKS_PER_CORE = 4  # a core that is done with an easy one takes the next
_CORES_SECONDS = 30.0
_SPLITS = re.compile(r"splits=(\d+)")

_GROUP = "kafka-liveness-spark-source"


def read_ranges(
    session: SparkSession,
    ranges: Sequence[OffsetRange],
    kafka_options: Mapping[str, str],
    *,
    min_partitions: int | None = None,
) -> DataFrame:
    """Read the records of ``ranges``.

    The columns are key, value, topic, partition, offset, timestamp and timestampType.

    Args:
        session: a Spark session, usually from :func:`connect`.
        ranges: half-open; those that overlap are read once.
        kafka_options: options of Spark's Kafka source, their prefix included: ``kafka.bootstrap.servers``,
            security, fetch sizes; what ``DEFAULTS`` sets may be set otherwise.
        min_partitions: how many Spark tasks to split the reading into, at least; None: as many as the server
            works on at a time, as long as each has ``OFFSETS_PER_TASK``. A range is never less than one,
            unless there are many of at most ``SMALL_BATCH_OFFSETS``: those share tasks, ``RANGES_PER_TASK``
            at most, as long as all cores have some.

    Raises:
        InvalidSettingError: no range was given, or ``kafka.bootstrap.servers`` is missing.
        pyspark.errors.PySparkException: when the frame is used: a range starts below the log start, or
            ends above the log end.
    """
    if not ranges:
        raise InvalidSettingError("no offset ranges to read: skip the batch when it is empty")
    if "kafka.bootstrap.servers" not in kafka_options:
        raise InvalidSettingError(
            "kafka_options lack 'kafka.bootstrap.servers': name the brokers to read from"
        )
    dealt = one_per_partition(ranges)
    total = sum(part.size for layer in dealt for part in layer)
    tasks = _task_count(session, total) if min_partitions is None else min_partitions
    frames = (
        _read_layer(session, layer, kafka_options, min_partitions=_split_evenly(tasks, layer, total))
        for layer in dealt
    )
    return functools.reduce(lambda left, right: left.unionByName(right), frames)


def core_count(session: SparkSession) -> int:
    """How many tasks the server works on at a time: all its cores, as many as it has now.

    A Connect client has no SparkContext to ask; the plan of a range tells it in 0.01 s, without a job.
    """
    plan = session.sql("EXPLAIN SELECT * FROM range(1)").collect()[0][0]
    found = _SPLITS.search(plan)
    return int(found[1]) if found else 1


def _task_count(session: SparkSession, total: int) -> int:
    worth = total // OFFSETS_PER_TASK
    return min(worth, _cached_cores(session)) if worth > 1 else 1


def _cached_cores(session: SparkSession) -> int:
    """A cluster may grow and shrink, but not with each batch."""
    return _query_cores(int(time.monotonic() / _CORES_SECONDS), session)


@functools.lru_cache(maxsize=16)
def _query_cores(_period: int, session: SparkSession) -> int:
    return core_count(session)


def _split_evenly(tasks: int, layer: Iterable[OffsetRange], total: int) -> int:
    return math.ceil(tasks * sum(part.size for part in layer) / total)


def _read_layer(
    session: SparkSession,
    layer: Sequence[OffsetRange],
    kafka_options: Mapping[str, str],
    min_partitions: int,
) -> DataFrame:
    ours = {
        "assign": _assignment_json(layer),
        "startingOffsets": _offsets_json(layer, "start"),
        "endingOffsets": _offsets_json(layer, "end"),
        "failOnDataLoss": "true",
        "minPartitions": str(min_partitions),
    }
    tasks = max(min_partitions, _min_tasks(session, layer))
    is_shared = 2 * tasks <= len(layer)
    theirs = {**DEFAULTS, **(_SHARED_OPTIONS if is_shared else {}), **kafka_options}
    frame = (
        session.read.format("kafka")
        .options(**{"kafka.group.id": source_group_id(theirs), **theirs, **ours})
        .load()
    )
    return frame.coalesce(tasks) if is_shared else frame


def _min_tasks(session: SparkSession, layer: Sequence[OffsetRange]) -> int:
    """How few tasks may read these ranges.

    One for each costs as much as some hundred records do, and writes a file.
    """
    if len(layer) <= RANGES_PER_TASK or sum(part.size for part in layer) > SMALL_BATCH_OFFSETS * len(layer):
        return len(layer)
    return max(_TASKS_PER_CORE * _cached_cores(session), math.ceil(len(layer) / RANGES_PER_TASK))


def source_group_id(kafka_options: Mapping[str, str]) -> str:
    """Return one group id for one way to reach a cluster.

    The source assigns and commits nothing, so the group has no members. With a constant id executors reuse
    their pooled consumers: reading a small batch fell from 0.25 s to 0.07 s. They are pooled by group id and
    partition, and when their settings differ (a new password, a second cluster with a topic of that name)
    Spark fails and writes both settings, secrets included, into its log and its error.
    """
    return f"{_GROUP}-{_hash_options(tuple(sorted(kafka_options.items())))}"


@functools.lru_cache(maxsize=64)
def _hash_options(options: tuple[tuple[str, str], ...]) -> str:
    # scrypt, and 32 bits of it: whoever sees the group id at the broker must not be able to try passwords
    # with it
    return hashlib.scrypt(repr(options).encode(), salt=_GROUP.encode(), n=2**12, r=8, p=1, dklen=4).hex()


def _assignment_json(layer: Iterable[OffsetRange]) -> str:
    topics: dict[str, list[int]] = {}
    for part in layer:
        topics.setdefault(part.topic, []).append(part.partition)
    return json.dumps(topics)


def _offsets_json(layer: Iterable[OffsetRange], edge: Literal["start", "end"]) -> str:
    topics: dict[str, dict[str, int]] = {}
    for part in layer:
        topics.setdefault(part.topic, {})[str(part.partition)] = part.start if edge == "start" else part.end
    return json.dumps(topics)
