"""Read exactly the records of offset ranges as a DataFrame, with Spark's own Kafka source.

Never joins a group and never commits. No record passes through this process.

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
    # A task reads thousands of records of one partition: Kafka's defaults of 500 a poll and 1 MB a fetch
    # cause needless round trips
    "kafka.max.poll.records": "5000",
    "kafka.fetch.max.bytes": str(100 * 2**20),
    "kafka.max.partition.fetch.bytes": str(8 * 2**20),
    # At the log end a fetch waits for more records, and Spark's query of the log bounds waits behind the
    # fetch. With Kafka's 500 ms a batch of 800 records on 8 partitions took 2.1 s, with this setting 0.1 s.
    # All records of the range exist already, so the wait gains nothing. A consumer that closes waits as long.
    # Above 64 partitions each task has its own consumer, which costs 12 ms with 5, and 9 ms with 1
    "kafka.fetch.max.wait.ms": "1",
    # Each consumer registers some hundred JMX metrics, and asks the broker where to push metrics (KIP-714).
    # Without both, a read of 1,000 partitions with 5 records each took 5.4 s of processor time instead of
    # 7.2 s. From Kafka 4.0 on, clients ignore the second setting
    "kafka.enable.metrics.push": "false",
    "kafka.auto.include.jmx.reporter": "false",
}
OFFSETS_PER_TASK = 10_000
"""Minimum offsets of a task. A smaller task costs about as much as it saves, and each task writes a file."""
RANGES_PER_TASK = 16
"""Maximum number of small ranges that share a task. Their readers all stay open until the task ends."""
SMALL_BATCH_OFFSETS = 500
"""Maximum offsets of a range, on average, for ranges that share a task.

Kafka's consumer returns as many records per poll by default.
"""
_SHARED_OPTIONS = {
    "kafka.max.poll.records": str(SMALL_BATCH_OFFSETS),
    "kafka.max.partition.fetch.bytes": str(2**20),
}
_TASKS_PER_CORE = 4  # a core that finishes a small task early takes another one
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
        ranges: half-open offset ranges; overlapping ranges are read once.
        kafka_options: options of Spark's Kafka source with their prefix: ``kafka.bootstrap.servers``,
            security, fetch sizes. They override ``DEFAULTS``.
        min_partitions: minimum number of Spark tasks. None uses as many tasks as the server runs at a time,
            if each task has ``OFFSETS_PER_TASK``. Each range has at least one task, with one exception. Many
            ranges of at most ``SMALL_BATCH_OFFSETS`` share tasks, up to ``RANGES_PER_TASK`` per task, if all
            cores still have tasks.

    Raises:
        InvalidSettingError: no range was given, or ``kafka.bootstrap.servers`` is missing.
        pyspark.errors.PySparkException: a range starts below the log start, or ends above the log end. Spark
            raises it only when the frame is used.
    """
    if not ranges:
        raise InvalidSettingError(
            "no offset ranges to read. Nothing was read. Fix: skip the batch if it is empty."
        )
    if "kafka.bootstrap.servers" not in kafka_options:
        raise InvalidSettingError(
            "kafka_options lack 'kafka.bootstrap.servers'. Nothing was read. Fix: set it to the brokers' "
            "addresses."
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
    """Return the number of tasks that the server runs at a time: all the cores that it has now.

    A Connect client has no SparkContext. The plan of ``range`` contains the number; it takes 0.01 s and no
    job.
    """
    plan = session.sql("EXPLAIN SELECT * FROM range(1)").collect()[0][0]
    found = _SPLITS.search(plan)
    return int(found[1]) if found else 1


def small_batch_tasks(session: SparkSession, ranges: Sequence[OffsetRange], *, is_slow: bool) -> int:
    """Return the number of tasks for the records of a small batch.

    It is one; with many ranges, or with a slow transform, all cores have a task.
    """
    return _cached_cores(session) if is_slow or len(ranges) > RANGES_PER_TASK else 1


def _task_count(session: SparkSession, total: int) -> int:
    worth = total // OFFSETS_PER_TASK
    return min(worth, _cached_cores(session)) if worth > 1 else 1


def _cached_cores(session: SparkSession) -> int:
    """Return the cores, queried every 30 s: a cluster may grow and shrink, but not with each batch."""
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
    """Return the minimum number of tasks for these ranges.

    A task for each range would cost as much as some hundred records, and would write a file.
    """
    if len(layer) <= RANGES_PER_TASK or sum(part.size for part in layer) > SMALL_BATCH_OFFSETS * len(layer):
        return len(layer)
    return max(_TASKS_PER_CORE * _cached_cores(session), math.ceil(len(layer) / RANGES_PER_TASK))


def source_group_id(kafka_options: Mapping[str, str]) -> str:
    """Return the group id for these options of the Kafka source.

    The source assigns partitions itself and never commits, so the group has no members. With a constant id
    executors reuse their pooled consumers: the read of a small batch took 0.07 s instead of 0.25 s. Spark
    pools consumers by group id and partition. If two pooled consumers had different settings, Spark would
    fail. Examples are a new password, or a second cluster with a topic of that name. It would also write both
    settings, including secrets, to its log and its error.
    """
    return f"{_GROUP}-{_hash_options(tuple(sorted(kafka_options.items())))}"


@functools.lru_cache(maxsize=64)
def _hash_options(options: tuple[tuple[str, str], ...]) -> str:
    # scrypt, cut to 32 bits: a user who sees the group id at the broker must not be able to test passwords
    # against it
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
