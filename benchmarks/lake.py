"""Services, topics and tables of a benchmark's own, and a check that the table has each order once.

Filling, creating tables and looking at them is never on a clock.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import dagster as dg
import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.embedded import services, state
from kafka_liveness_dagster.embedded.jars import jars_folder
from kafka_liveness_dagster.embedded.spark import CATALOG
from kafka_liveness_dagster.spark.connect.session import connect
from kafka_liveness_dagster.spark.source import DEFAULTS, source_group_id
from kafka_liveness_dagster.spark.table.schema import create_table
from kafka_liveness_dagster.spark.table.table import IcebergTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

_SECONDS = 60
_ROWS = ("topic", "partition", "offset", "CAST(value AS string) AS order_json")
# Of Structured Streaming: on the same file system as all else, else it starts processes for each file
_CHECKPOINTS = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
)
# Values, produced again and again: making four million would take longer than sending them
_DIFFERENT = 10_000


@dataclass(frozen=True)
class Lake:
    """One broker, one Spark server and the tables of one benchmark.

    Attributes:
        servers: the broker's address.
        session: what plain Spark and the looks at tables use; runs of the package get one like it.
        home: a folder that is gone afterwards.
        instance: Dagster's records, in files, for runs of the package.
    """

    servers: str
    session: SparkSession
    home: Path
    instance: dg.DagsterInstance

    @property
    def kafka(self) -> kl.KafkaLivenessResource:
        """The package's resource for this broker."""
        quiet = {"log_level": "0"}  # else its clients tell at the end that the broker is gone
        return kl.KafkaLivenessResource(bootstrap_servers=self.servers, extra=quiet)

    @property
    def spark_process(self) -> psutil.Process:
        """The benchmark's own Spark server."""
        return psutil.Process(state.read_state(self.home)["spark"].pid)

    @property
    def processes(self) -> list[psutil.Process]:
        """The benchmark's own services, and this process."""
        services = state.read_state(self.home).values()
        return [psutil.Process(), *(psutil.Process(one.pid) for one in services)]

    def options(self, reader: str = "") -> dict[str, str]:
        """What the package gives Spark's Kafka source, for a peer to have the same.

        ``reader`` keeps its pool apart.
        """
        ours = {**DEFAULTS, **self.kafka.settings().spark_options()}
        return {**ours, "kafka.group.id": source_group_id(ours) + reader}

    @property
    def catalog(self) -> dict[str, str]:
        """Properties of the JDBC catalog, for a peer without Spark to have the same."""
        prefix = f"spark.sql.catalog.{CATALOG}."
        settings = ("uri", "jdbc.schema-version", "warehouse")
        return {"name": CATALOG, **{name: str(self.session.conf.get(prefix + name)) for name in settings}}

    def new_table(self) -> IcebergTable:
        """An empty table as the package makes them, the same for every way to write."""
        table = IcebergTable(f"lake.bench.orders_{uuid4().hex[:8]}")
        row = self.session.sql("SELECT '' AS topic, 0 AS partition, 0L AS offset, '' AS order_json")
        create_table(table, row.limit(0), (), {})
        return table

    def commits(self, table: IcebergTable) -> int:
        """Count the snapshots that added records to a table."""
        added = self.session.sql(
            f"SELECT count(*) AS n FROM {table.quoted}.snapshots "
            "WHERE CAST(summary['added-records'] AS long) > 0"
        ).first()
        assert added is not None  # noqa: S101 - an aggregate has a row
        return int(added["n"])

    def rows(self, table: IcebergTable) -> int:
        """Count the rows of a table."""
        return int(self.session.table(table.quoted).count())

    def timed(self, way: Callable[[IcebergTable], float], records: int) -> float:
        """Seconds of one way into a new table, which must be exact afterwards."""
        table = self.new_table()
        seconds = way(table)
        self.drop_exact(table, records)
        return seconds

    def drop_exact(self, table: IcebergTable, expected: int | None = None) -> None:
        """See that a table has each offset once, without holes, and drop it.

        Raises:
            RuntimeError: it has not, so what was measured is wrong.
        """
        seen = self.session.sql(
            "SELECT sum(n) AS rows, sum(different) AS different, sum(last - first + 1) AS span FROM "
            "(SELECT count(*) AS n, count(DISTINCT offset) AS different, min(offset) AS first, max(offset) "
            f"AS last FROM {table.quoted} GROUP BY topic, partition)"
        ).first()
        assert seen is not None  # noqa: S101 - an aggregate has a row
        if not is_exact(seen.rows, seen.different, seen.span, expected):
            wanted = "" if expected is None else f" instead of {expected:,}"
            raise RuntimeError(
                f"{table.name} has {seen.rows or 0:,} rows of {seen.different or 0:,} offsets in ranges of "
                f"{seen.span or 0:,}{wanted}: what was measured is wrong"
            )
        self.session.sql(f"DROP TABLE {table.quoted} PURGE")


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """The processor time that these processes have taken so far."""
    return sum(sum(one.cpu_times()[:2]) for one in processes)


def fresh_at(lake: Lake, table: IcebergTable, ends: Mapping[int, int]) -> float | None:
    """When a table had its first snapshot that reaches above the log ends of before.

    Seconds since the epoch.
    """
    above = " OR ".join(
        f"(e.data_file.partition.partition = {p} AND e.readable_metrics.offset.upper_bound >= {end})"
        for p, end in ends.items()
    )
    found = lake.session.sql(
        f"SELECT unix_millis(min(s.committed_at)) AS at FROM {table.quoted}.entries e JOIN "
        f"{table.quoted}.snapshots s ON e.snapshot_id = s.snapshot_id WHERE {above}"
    ).first()
    return None if found is None or found["at"] is None else float(found["at"] / 1000)


@contextmanager
def lake() -> Iterator[Lake]:
    """Kafka and Spark Connect with an empty state folder.

    They end with the block, also by an error or SIGTERM.
    """
    with own_services() as (started, home), opened(started, home) as found:
        yield found


@contextmanager
def opened(started: services.Services, home: Path) -> Iterator[Lake]:
    """The same on services that run, of which both do."""
    with dg.DagsterInstance.local_temp() as instance:
        session = connect(started.spark_remote)
        session.conf.set(*_CHECKPOINTS)
        try:
            yield Lake(started.bootstrap_servers, session, home, instance)
        finally:
            session.stop()


@contextmanager
def own_services(*which: str) -> Iterator[tuple[services.Services, Path]]:
    """The embedded services, all unless some are named, and their folder; the jars are the machine's."""
    jars = os.environ.setdefault("KAFKA_LIVENESS_JARS", str(jars_folder()))
    Path(jars).mkdir(parents=True, exist_ok=True)
    before = os.environ.get("KAFKA_LIVENESS_HOME")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        os.environ["KAFKA_LIVENESS_HOME"] = home
        try:
            yield services.ensure_services(which=which or ("kafka", "spark")), Path(home)
        finally:
            services.stop_services()
            os.environ.pop("KAFKA_LIVENESS_HOME")
            os.environ.update({} if before is None else {"KAFKA_LIVENESS_HOME": before})


def is_exact(rows: int | None, different: int | None, span: int | None, expected: int | None) -> bool:
    """Whether a table holds each offset of its ranges once, and as many as expected.

    An empty one is never exact.
    """
    return rows is not None and rows == different == span and expected in (None, rows)


def to_rows(batch: DataFrame) -> DataFrame:
    """The transform of every way: the order as text beside the offset it came from."""
    return batch.selectExpr(*_ROWS)


def new_topic(servers: str, partitions: int) -> str:
    """An empty topic."""
    name = f"orders_{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(_SECONDS)
    return name


def fill(servers: str, topic: str, partitions: int, records: int) -> None:
    """Append orders of about 100 bytes, the same number to each partition."""
    dice = random.Random(7)  # noqa: S311 - test data
    orders = [
        json.dumps(
            {
                "order": n,
                "customer": dice.randrange(10**9),
                "amount": dice.random(),
                "note": f"{dice.random()}",
            }
        )
        for n in range(_DIFFERENT)
    ]
    settings = {"linger.ms": 50, "compression.type": "lz4", "queue.buffering.max.messages": 2_000_000}
    producer = Producer({"bootstrap.servers": servers, **settings})
    for n in range(records):
        producer.produce(topic, orders[n % _DIFFERENT], partition=n % partitions)
        if n % _DIFFERENT == 0:
            while len(producer) > 1_000_000:  # noqa: PLR2004 - half of the queue
                producer.poll(0.05)
    if left := producer.flush(_SECONDS):
        raise RuntimeError(
            f"{left} records were not produced within {_SECONDS} s: is the broker at {servers} well?"
        )


def log_ends(servers: str, topic: str, partitions: int) -> dict[int, int]:
    """The log end of each partition."""
    client = Consumer({"bootstrap.servers": servers, "group.id": "log-ends"})
    try:
        tps = [TopicPartition(topic, partition) for partition in range(partitions)]
        return {tp.partition: client.get_watermark_offsets(tp, timeout=_SECONDS)[1] for tp in tps}
    finally:
        client.close()
