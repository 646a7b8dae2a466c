"""How long does a certificate take, and the reading of the ledger, with many snapshots and partitions?

Real services and the whole command as people start it. The tables' histories are made: one real commit, whose
snapshot is repeated in the table's metadata file with the ledger's texts that writers would have told, a sum
of all every 32 commits. Rows play no part: neither reads any.

    python -m benchmarks.audit --write benchmarks/RESULTS.md
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from confluent_kafka import TopicPartition as KafkaTopicPartition
from rich.console import Console

from benchmarks.lake import fill, new_topic, own_services
from benchmarks.left_behind import commit
from benchmarks.report import Table, keep, show
from benchmarks.turns import Seconds, interleaved
from kafka_liveness_dagster.core.commit_metadata import (
    CATCH_UP_SUFFIX,
    CatchUpCommitMetadata,
    GroupOrigin,
    LiveCommitMetadata,
    OwnerState,
)
from kafka_liveness_dagster.core.ledger import LedgerEntry, encode_entries
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.settings import KafkaSettings
from kafka_liveness_dagster.spark.connect.session import connect
from kafka_liveness_dagster.spark.table.ledger import TableLedger
from kafka_liveness_dagster.spark.table.table import IcebergTable
from kafka_liveness_dagster.spark.table.write import write_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.embedded.services import Services

PARTITIONS = 100
COMMITTED = 1_000
SIZES = (10, 1_000, 10_000)
GOAL_SECONDS = 5.0
_SUMS_EVERY = 32  # commits: a writer sums up as often as a hundredth of its time allows
_FIRST_ID = 10**15
_GROUP = "bench-audit"


@click.command()
@click.option("--repetitions", default=5, show_default=True, help="Of each way and size, interleaved.")
@click.option(
    "--write", "file", type=click.Path(dir_okay=False, path_type=Path), help="Keep the section in this file."
)
def main(repetitions: int, file: Path | None) -> None:
    """Certify a group of 100 partitions whose table has 10, 1,000 and 10,000 snapshots.

    Reads its ledger as writers do, too. Starts Kafka and Spark of its own; takes about three minutes.
    """
    console = Console()
    with own_services() as (services, _):
        session = connect(services.spark_remote)
        with console.status("making topic, commits and tables"):
            topic, tables = _scene(services, session)
        audits = {f"{size:,}": partial(_audit, services, table) for size, table in tables.items()}
        ledgers = {f"{size:,}": partial(_ledger, session, topic, table) for size, table in tables.items()}
        names = list(audits)
        certified = Seconds(interleaved(console, "audit", audits, repetitions, warm_up=names))
        read = Seconds(interleaved(console, "ledger", ledgers, repetitions, warm_up=names))
        session.stop()
    found = _table(certified, read)
    show(console, found)
    if file is not None:
        keep(file, "Audit", "python -m benchmarks.audit", [found])
        console.print(f"kept in {file}")


def _scene(services: Services, session: SparkSession) -> tuple[str, dict[int, IcebergTable]]:
    """Create a topic that is consumed to its end, and the tables; the catch-up log names one of them."""
    topic = new_topic(services.bootstrap_servers, PARTITIONS)
    fill(services.bootstrap_servers, topic, PARTITIONS, PARTITIONS * COMMITTED)
    topic_id = Cluster(KafkaSettings(services.bootstrap_servers)).topic_ids([topic])[topic]
    tables = {size: IcebergTable(f"lake.bench.audit_{size}") for size in SIZES}
    for size, table in tables.items():
        _make(services, session, table, _history(topic, topic_id, size))
    origin, target = GroupOrigin(0, topic_id), tables[COMMITTED].name
    mark, log = (
        LiveCommitMetadata(OwnerState.RELEASED, "0badcafe", origin=origin),
        CatchUpCommitMetadata(origin=origin, target=target),
    )
    for group, offset, told in ((_GROUP, COMMITTED, mark), (_GROUP + CATCH_UP_SUFFIX, 0, log)):
        offsets = [KafkaTopicPartition(topic, at, offset, told.encode()) for at in range(PARTITIONS)]
        commit(services.bootstrap_servers, group, offsets)
    return topic, tables


def _history(topic: str, topic_id: str, size: int) -> list[dict[str, str]]:
    """What each of so many snapshots says: a batch of all partitions, to ``COMMITTED`` with the last one."""

    def ledger(start: int, end: int) -> str:
        account = LedgerEntry((Span(start, end),), first_offset=0, topic_id=topic_id)
        return encode_entries({TopicPartition(topic, at): account for at in range(PARTITIONS)})

    each = max(1, COMMITTED // size)
    told = []
    for number in range(size):
        one = {"kafka-liveness.written": ledger(number * each, (number + 1) * each)}
        if number % _SUMS_EVERY == 1:
            one |= {
                "kafka-liveness.total": ledger(0, number * each),
                "kafka-liveness.total-as-of": str(_FIRST_ID + number - 1),
            }
        told.append(one)
    return told


def _make(services: Services, session: SparkSession, table: IcebergTable, told: list[dict[str, str]]) -> None:
    """A table with this history: its metadata file is written anew, and the catalog pointed to it."""
    row = "SELECT 'none' AS topic, 0 AS partition, 0L AS offset"
    write_table(session, table, [OffsetRange("none", 0, 0, 1)], lambda: session.sql(row))
    name = table.name.rpartition(".")[2]
    with closing(sqlite3.connect(services.catalog_uri.removeprefix("sqlite:///"))) as catalog, catalog:
        where = "WHERE table_name = ?"
        (location,) = catalog.execute(
            f"SELECT metadata_location FROM iceberg_tables {where}", (name,)
        ).fetchone()
        old = Path(location.removeprefix("file:"))
        new = old.with_name("99999-made.metadata.json")
        new.write_text(json.dumps(_with_history(json.loads(old.read_text()), told)))
        made = location.replace(old.name, new.name)
        catalog.execute(f"UPDATE iceberg_tables SET metadata_location = ? {where}", (made, name))


def _with_history(metadata: dict[str, Any], told: list[dict[str, str]]) -> dict[str, Any]:
    base, snapshots = metadata["snapshots"][-1], []
    for number, texts in enumerate(told):
        one = {
            **base,
            "snapshot-id": _FIRST_ID + number,
            "sequence-number": number + 1,
            "timestamp-ms": base["timestamp-ms"] + number,
            "summary": {**base["summary"], **texts},
        }
        snapshots.append({**one, "parent-snapshot-id": _FIRST_ID + number - 1} if number else one)
    last = snapshots[-1]
    log = [{"timestamp-ms": one["timestamp-ms"], "snapshot-id": one["snapshot-id"]} for one in snapshots]
    return {
        **metadata,
        "snapshots": snapshots,
        "snapshot-log": log,
        "current-snapshot-id": last["snapshot-id"],
        "last-sequence-number": last["sequence-number"],
        "last-updated-ms": last["timestamp-ms"],
        "refs": {"main": {"snapshot-id": last["snapshot-id"], "type": "branch"}},
    }


def _audit(services: Services, table: IcebergTable) -> float:
    """Seconds of the command, from its start to its end, which must be a certificate."""
    where = ["--bootstrap-servers", services.bootstrap_servers, "--spark", services.spark_remote]
    program = "from kafka_liveness_dagster.cli.main import main; main()"
    command = [sys.executable, "-c", program, "audit", _GROUP, "--table", table.name, *where]
    return _timed(lambda: subprocess.run(command, check=True, capture_output=True))


def _ledger(session: SparkSession, topic: str, table: IcebergTable) -> float:
    """Seconds of a writer's first look, which must find what was made."""
    asked = [TopicPartition(topic, at) for at in range(PARTITIONS)]
    ledger = TableLedger(table, lambda: session)
    seconds = _timed(lambda: ledger.read(asked))
    done = {account.written for account in ledger.read(asked).values()}
    if len(done) != 1 or next(iter(done))[0].end < COMMITTED:
        raise RuntimeError(f"{table.name} says {done}: what was measured is wrong")
    return seconds


def _timed(way: Callable[[], object]) -> float:
    began = time.perf_counter()
    way()
    return time.perf_counter() - began


def _table(certified: Seconds, read: Seconds) -> Table:
    table = Table(f"{PARTITIONS} partitions, by the number of snapshots", ("snapshots", "audit", "ledger"))
    for size in certified:
        table.add(size, certified.spread(size), read.spread(size))
    slowest = max(certified[f"{COMMITTED:,}"])
    table.note(
        "audit: the whole command, with Python's start and the Spark session. Median (shortest-longest)"
    )
    table.note("ledger: the first read of a run, `TableLedger.read`, over an open session")
    table.note(
        f"verdict: {COMMITTED:,} snapshots of {PARTITIONS} partitions certified in at most {slowest:.1f} s, "
        f"{'below' if slowest < GOAL_SECONDS else 'NOT below'} the goal of {GOAL_SECONDS:g} s"
    )
    return table


if __name__ == "__main__":
    main()
