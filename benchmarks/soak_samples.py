"""What does a soak look like from outside, at one moment?

The table by its files, processes by the machine, Dagster by its databases: neither Spark nor a run is asked,
so that looking changes nothing.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import psutil
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks import jvm
from benchmarks.soaking import TABLE, orders
from kafka_liveness_dagster.core.ledger import decode_entries
from kafka_liveness_dagster.embedded import state
from kafka_liveness_dagster.runs.tags import heartbeat_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table.snapshots import Snapshot

    from benchmarks.daemon import Daemon
    from benchmarks.steady import Steady
    from kafka_liveness_dagster.embedded.services import Services

Sample = dict[str, float]
MAINTENANCE = f"{orders.identifier}_maintenance_job"
_LIVE = f"{orders.identifier}_job"
_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_MB = 1e6
# Of the heap: what has survived; fresh objects come and go beside it
_OLD = "sun.gc.generation.1.space.0.used"
_RUNS_KEPT = 1  # of each job: what ended before them is deleted, as docs/dagster-instance.md wants it


@dataclass
class Soak:
    """Who is looked at.

    Attributes:
        services: Kafka and Spark.
        home: their folder.
        daemon: Dagster's.
        feed: what is produced, and when it was.
        failed: why runs failed, by their ids; they are not deleted.
        live_runs: all live runs so far, and when each began.
    """

    services: Services
    home: Path
    daemon: Daemon
    feed: Steady
    failed: dict[str, str] = field(default_factory=dict)
    live_runs: dict[str, float] = field(default_factory=dict)
    _seen: int = 0
    _committed_at: float | None = None
    _next: dict[int, int] = field(default_factory=dict)

    @cached_property
    def _catalog(self) -> SqlCatalog:
        told = self.services
        return SqlCatalog(told.catalog_name, uri=told.catalog_uri, warehouse=told.warehouse)

    def table(self) -> IcebergTable | None:
        """The table, None before its first commit."""
        name = TABLE.partition(".")[2]
        table = self._catalog.load_table(name) if self._catalog.table_exists(name) else None
        return table if table and table.current_snapshot() else None

    def written(self) -> int:
        """How many rows the table has."""
        table = self.table()
        return 0 if table is None else _number(table.current_snapshot(), "total-records")

    def sample(self) -> Sample:
        """All numbers of this moment; names without a number now are missing.

        Old runs are deleted meanwhile.
        """
        table = self.table()
        assert table is not None  # noqa: S101 - it was waited for
        return {
            **self._of_the_table(table),
            **self._of_commits(table),
            **self._of_processes(),
            **self._of_dagster(),
        }

    def _of_the_table(self, table: IcebergTable) -> Sample:
        newest = table.current_snapshot()
        assert newest is not None  # noqa: S101 - it was looked at
        file = Path(table.metadata_location.removeprefix("file:"))
        live = _number(newest, "total-files-size")
        metadata, data = (_size(file.parents[1] / name) for name in ("metadata", "data"))
        return {
            "snapshots": len(table.metadata.snapshots),
            "manifests": len(newest.manifests(table.io)),
            "data files": _number(newest, "total-data-files"),
            "rows": _number(newest, "total-records"),
            "data": live / _MB,
            "data of old snapshots": (data - live) / _MB,
            "metadata.json": file.stat().st_size / 1e3,
            "all metadata": metadata / _MB,
        }

    def _of_commits(self, table: IcebergTable) -> Sample:
        """Of all batches that were committed since the sample before."""
        latency, waited, apart = [], [], []
        new = [one for one in table.metadata.snapshots if (one.sequence_number or 0) > self._seen]
        for snapshot in sorted(new, key=lambda one: one.sequence_number or 0):
            self._seen = snapshot.sequence_number or 0
            told = snapshot.summary and snapshot.summary.additional_properties.get("kafka-liveness.written")
            if not told:
                continue
            at = snapshot.timestamp_ms / 1000
            spans = {
                tp.partition: account.written
                for tp, account in decode_entries(told).items()
                if account.written
            }
            latency.append(at - max(self.feed.produced_at(done[-1].end - 1) for done in spans.values()))
            waited.append(at - min(self.feed.produced_at(done[0].start) for done in spans.values()))
            if self._committed_at is not None:
                apart.append(at - self._committed_at)
            self._committed_at = at
            self._next.update({partition: done[-1].end for partition, done in spans.items()})
        behind = time.time() - self.feed.produced_at(min(self._next.values())) if self._next else 0.0
        found: Sample = {"commits": len(latency), "seconds behind": behind}
        for name, values in (("commit latency", latency), ("freshness", waited), ("between commits", apart)):
            if values:
                found |= {name: statistics.median(values), f"{name}, longest": max(values)}
        return found

    def _of_processes(self) -> Sample:
        pids = {name: one.pid for name, one in state.read_state(self.home).items()}
        found: dict[str, int | None] = {"worker": self._worker(), **pids}
        assert self.daemon.server is not None  # noqa: S101 - it was asked for
        found |= {"code server": self.daemon.server.pid, "daemon": self.daemon.daemon.pid}
        sample: Sample = {}
        for name, pid in found.items():
            with suppress(psutil.NoSuchProcess):
                if pid is not None:
                    sample |= _of_process(name, psutil.Process(pid))
        if (spark := pids["spark"]) is not None and (heap := jvm.counters(spark)):
            sample |= {"spark old generation": heap[_OLD] / _MB,
                       "spark full collections": _full_collections(heap),
                       "spark metaspace": heap["sun.gc.metaspace.used"] / _MB}  # fmt: skip
        return sample

    def _worker(self) -> int | None:
        """The process of the live run that is at work."""
        at_work = dg.RunsFilter(job_name=_LIVE, statuses=[dg.DagsterRunStatus.STARTED])
        for record in self.daemon.instance.get_run_records(at_work):
            self.live_runs.setdefault(record.dagster_run.run_id, record.start_time or time.time())
            if (process := heartbeat_of(record.dagster_run).process) is not None:
                return process.pid
        return None

    def _why(self, run_id: str) -> str:
        """The last line that tells why a run failed."""
        told = self.daemon.instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE) or (
            self.daemon.instance.all_logs(run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
        )
        event = told[0].dagster_event if told else None
        if event is None:
            return "nothing told"
        error = event.step_failure_data.error if event.is_step_failure else None
        while error is not None and error.cause is not None:
            error = error.cause
        return " ".join((error.message if error else event.message or "").split())

    def _of_dagster(self) -> Sample:
        instance, found = self.daemon.instance, Sample()
        for job in (_LIVE, MAINTENANCE):
            records = instance.get_run_records(dg.RunsFilter(job_name=job, statuses=_ENDED))
            for one in (record.dagster_run for record in records if record.dagster_run.is_failure):
                self.failed.setdefault(one.run_id, f"{job}: {self._why(one.run_id)}")
            if job == MAINTENANCE and records and records[0].end_time and records[0].start_time:
                found["maintenance"] = records[0].end_time - records[0].start_time
            for old in records[_RUNS_KEPT:]:
                if old.dagster_run.run_id not in self.failed:
                    instance.delete_run(old.dagster_run.run_id)
        home = Path(instance.root_directory)
        shards = [*(home / "history" / "runs").glob("*.db")]
        return found | {
            "events": sum(_rows(shard, "event_logs") for shard in shards if shard.stem != "index"),
            "events of assets": _rows(home / "history" / "runs" / "index.db", "event_logs"),
            "ticks": _rows(home / "schedules" / "schedules.db", "job_ticks"),
            "runs": instance.get_runs_count(),
            "event log": _size(home / "history") / _MB,
            "all of Dagster": _size(home) / _MB,
        }


def _of_process(name: str, process: psutil.Process) -> Sample:
    with process.oneshot():
        return {
            f"{name} memory": process.memory_info().rss / _MB,
            f"{name} threads": process.num_threads(),
            f"{name} files": process.num_fds(),
            f"{name} age": time.time() - process.create_time(),
        }


def _full_collections(heap: dict[str, int]) -> int:
    return heap["sun.gc.collector.1.invocations"]


def _number(snapshot: Snapshot | None, name: str) -> int:
    told = snapshot and snapshot.summary and snapshot.summary.additional_properties.get(name)
    return int(told or 0)


def _size(folder: Path) -> int:
    """Bytes of all files in a folder, which change meanwhile."""
    return sum(_sizes(folder))


def _sizes(folder: Path) -> Iterator[int]:
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            yield file.stat().st_size if file.is_file() else 0


def _rows(database: Path, table: str) -> int:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
