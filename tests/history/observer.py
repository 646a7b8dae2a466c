"""Record a pipeline from outside: Kafka's clients, pyiceberg, Dagster's event log, an audit's JSON.

It changes nothing: it joins no group and commits nothing. It depends on four things of the product that users
see: the suffix of the catch-up commit log, partition keys, the metadata key ``processed``, and the JSON keys
    of
the audit.
"""

from __future__ import annotations

import re
import threading
import time
from itertools import groupby
from typing import TYPE_CHECKING, Any
from zlib import crc32

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from dagster import AssetKey, AssetRecordsFilter
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from sqlalchemy.exc import OperationalError

from tests.history.events import HistoryError, HistoryFile
from tests.history.spans import runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from dagster import DagsterInstance
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_LOGS = {"live": "{}", "catch-up": "{}.catch-up"}
"""The consumer groups that have a group's two commit logs; the names are in the user documentation."""
_SPAN = r"(?P<start>\d+)-(?P<end>\d+)(@.*)?"
_KEYS = (
    re.compile(rf"(?P<topic>[^:]+):(?P<partition>\d+):{_SPAN}"),
    re.compile(rf"p(?P<partition>\d+):(?P<topic>[^:]+):{_SPAN}"),
)
"""The key of a crash lag partition: ``p3:orders:70-120``, ``p3:orders:70-120@2``; a topic of digits only, and
earlier versions: ``orders:3:70-120``."""
_PROCESSED = "processed"
"""A materialization's table of ranges: columns ``partition`` (``orders:3``) and ``offsets`` (``70-120``)."""
_SECONDS, _ANSWER_SECONDS = 60.0, 15.0
_PAUSE_SECONDS = 0.5


class Observer:
    """A recorder of one group and one table.

    Args:
        path: the history file; it is appended to.
        bootstrap_servers: the address of the broker.
        topics: the topics of the group; all their partitions are observed.
        group: the consumer group of the live lane.
        load_table: returns the table as pyiceberg has it; called for each read.
        value_column: a column with the record's value as text, to be compared; none is compared without it.
    """

    def __init__(
        self,
        path: Path,
        *,
        bootstrap_servers: str,
        topics: Sequence[str],
        group: str,
        load_table: Callable[[], Table],
        value_column: str | None = None,
    ) -> None:
        self.file = HistoryFile(path, "observer")
        self._group, self._load_table, self._value_column = group, load_table, value_column
        self._servers, self._topics = bootstrap_servers, topics
        self._reading = threading.Lock()
        self._positions: dict[tuple[str, int], int] = {}
        self._seen_materializations: dict[str, int] = {}
        self._seen_snapshots: set[int] = set()
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})

    def produced(self) -> None:
        """Record every record of the topics that is not in the file yet, up to the log ends.

        The last call has to follow the last record: a row without a produced record is an anomaly.
        """
        settings = {
            "bootstrap.servers": self._servers,
            "group.id": "history",  # the client wants one; it neither joins nor commits
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            # An empty fetch shows the end; by default the broker holds it for 500 ms
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
        consumer = Consumer(settings)
        try:
            waiting = set(self._partitions())
            consumer.assign([TopicPartition(*tp, self._positions.get(tp, 0)) for tp in sorted(waiting)])
            found: dict[tuple[str, int], list[tuple[int, int]]] = {tp: [] for tp in waiting}
            give_up_at = time.monotonic() + _SECONDS
            while waiting:
                for message in consumer.consume(10_000, 0.02):
                    tp = (message.topic(), message.partition())
                    if message.error() is None and tp in waiting:
                        found[tp].append((message.offset(), crc32(message.value() or b"")))
                    elif message.error() is not None and message.error().code() == KafkaError._PARTITION_EOF:
                        waiting.discard(tp)
                if time.monotonic() > give_up_at:
                    raise HistoryError(
                        f"{len(waiting)} partitions were not read to their ends within {_SECONDS:g} s"
                    )
        finally:
            consumer.close()
        for tp, records in sorted(found.items()):
            if records:
                self._positions[tp] = records[-1][0] + 1
                ranges = [[*tp, start, end] for start, end, _ in runs(offset for offset, _ in records)]
                values = {"values": [value for _, value in records]} if self._value_column else {}
                self.file.append("produced", ranges=ranges, **values)

    def committed(self) -> None:
        """Record both commit logs of the group."""
        partitions = [TopicPartition(*tp) for tp in self._partitions()]
        for log, name in _LOGS.items():
            request = ConsumerGroupTopicPartitions(name.format(self._group), partitions)
            answer = _retried(lambda request=request: self._offsets(request))
            for commit in answer.topic_partitions:
                if commit.offset >= 0:
                    fields = {"topic": commit.topic, "partition": commit.partition, "offset": commit.offset}
                    self.file.append("committed", group=self._group, log=log, **fields)

    def _offsets(self, request: ConsumerGroupTopicPartitions) -> ConsumerGroupTopicPartitions:
        """Ask by a client of its own.

        One of before a network failure may wait for an answer that never comes.
        """
        admin = AdminClient({"bootstrap.servers": self._servers, "log_level": 0})
        asked = admin.list_consumer_group_offsets([request], request_timeout=_ANSWER_SECONDS)
        return asked[request.group_id].result()

    def dagster(self, instance: DagsterInstance, live: str, crash_lag: str) -> None:
        """Record new materializations as green, and crash lag partitions without one as pending.

        Args:
            instance: Dagster's records.
            live: the name of the live asset.
            crash_lag: the name of the partitioned asset and of its partitions.
        """
        done = instance.get_materialized_partitions(AssetKey(crash_lag))
        keys = instance.get_dynamic_partitions(crash_lag)
        pending = [_range_of(key) for key in keys if key not in done]
        self.file.append("pending", group=self._group, ranges=pending)
        for name in (live, crash_lag):
            condition = AssetRecordsFilter(
                AssetKey(name), after_storage_id=self._seen_materializations.get(name)
            )
            records = instance.fetch_materializations(condition, limit=10_000, ascending=True).records
            for record in records:
                self._seen_materializations[name] = record.storage_id
                made = record.asset_materialization
                ranges = (
                    [_range_of(record.partition_key)] if record.partition_key else _processed(made.metadata)
                )
                self.file.append("green", time=record.timestamp, run=record.run_id, ranges=ranges)

    def audit(self, found: dict[str, Any]) -> None:
        """Record the object that ``kafka-liveness audit --json`` printed."""

        def ranges(name: str) -> list:
            return [[p["topic"], p["partition"], *span] for p in found["partitions"] for span in p[name]]

        if lost := ranges("written_off"):
            self.file.append("written_off", ranges=lost, reason="lost or forgiven, by the audit")
        self.file.append("pending", group=self._group, ranges=ranges("pending"))
        if found["certified"]:
            self.file.append("certified", ranges=ranges("in_table"))

    def written(self) -> None:
        """Record the ranges of the files that each new snapshot added, as evidence without anomalies.

        A file has one range, from its lowest to its highest offset; a file without such statistics has none.
        """
        try:
            table = _retried(self._load_table)
        except NoSuchTableError:
            return
        for snapshot in table.snapshots():
            if snapshot.snapshot_id not in self._seen_snapshots:
                self._seen_snapshots.add(snapshot.snapshot_id)
                try:
                    ranges = _added(table, snapshot)
                except FileNotFoundError:  # the snapshot has expired meanwhile
                    ranges = []
                taken = snapshot.timestamp_ms / 1000
                self.file.append("written", time=taken, run="", ranges=ranges, snapshot=snapshot.snapshot_id)

    def read(self) -> None:
        """Read the whole table and record it; a table that does not exist has no rows.

        Threads read in turn.
        """
        columns = ["topic", "partition", "offset", *([self._value_column] if self._value_column else [])]

        def load() -> tuple[float, int | None, list[tuple]]:
            began = time.time()
            try:
                table = self._load_table()
            except NoSuchTableError:
                return began, None, []
            rows = table.scan(selected_fields=tuple(columns)).to_arrow()
            snapshot = table.current_snapshot()
            lists = [rows.column(name).to_pylist() for name in columns]
            return began, snapshot and snapshot.snapshot_id, list(zip(*lists, strict=True))

        with self._reading:
            began, snapshot, rows = _retried(load)
            self.read_rows(rows, began=began, snapshot=snapshot)

    def read_rows(self, rows: Iterable[tuple], *, began: float, snapshot: int | None = None) -> None:
        """Record rows that the caller has read, each ``(topic, partition, offset)``.

        A row has its value, too, if values are compared.

        Args:
            rows: all rows of the table.
            began: a moment before the table was loaded, seconds since the epoch.
            snapshot: the snapshot's id, None if it is unknown.
        """
        there = sorted(rows, key=lambda row: (*row[:3], str(row[3:])))
        shown = []
        for tp, several in groupby(there, lambda row: row[:2]):
            shown += [[*tp, *run] for run in runs(row[2] for row in several)]
        values = {"values": [crc32(str(row[3]).encode()) for row in there]} if self._value_column else {}
        self.file.append("read", time=began, snapshot=snapshot, rows=shown, **values)

    def _partitions(self) -> list[tuple[str, int]]:
        """Return all partitions of the topics."""
        known = _retried(lambda: self._admin.list_topics(timeout=10)).topics
        return [(topic, partition) for topic in self._topics for partition in sorted(known[topic].partitions)]


def _range_of(key: str) -> list:
    """Return the range of a crash lag partition."""
    found = next(filter(None, (form.fullmatch(key) for form in _KEYS)), None)
    if found is None:
        raise HistoryError(f"partition key {key!r} has another form than p<partition>:<topic>:<start>-<end>")
    return [found["topic"], int(found["partition"]), int(found["start"]), int(found["end"])]


def _processed(metadata: dict) -> list:
    """Return the ranges that a live materialization names.

    It names the ten largest; others are not compared.
    """
    if _PROCESSED not in metadata:
        raise HistoryError(f"a materialization lacks the metadata {_PROCESSED!r}: {sorted(metadata)}")
    rows = [record.data for record in metadata[_PROCESSED].records]
    return [_range_of(f"{row['partition']}:{row['range']}") for row in rows if row["range"]]


def _added(table: Table, snapshot: Snapshot) -> list:
    """Return the range of each file that a snapshot added to a table by topic and partition."""
    schema = table.schema()
    offset = schema.find_field("offset")
    found = []
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id != snapshot.snapshot_id or manifest.content is not ManifestContent.DATA:
            continue
        spec = table.specs()[manifest.partition_spec_id]
        names = [schema.find_column_name(field.source_id) for field in spec.fields]
        for entry in manifest.fetch_manifest_entry(table.io):
            file = entry.data_file
            values = dict(zip(names, file.partition, strict=True))
            bounds = [each.get(offset.field_id) for each in (file.lower_bounds, file.upper_bounds)]
            if (
                entry.status is ManifestEntryStatus.ADDED
                and {"topic", "partition"} <= values.keys()
                and all(bounds)
            ):
                lowest, highest = (from_bytes(offset.field_type, bound) for bound in bounds)
                found.append([values["topic"], values["partition"], lowest, highest + 1])
    return sorted(found)


def _retried(query: Callable[[], Any]) -> Any:
    """Return the answer of a query, which may fail for a minute: a broker restarts, a catalog is locked."""
    give_up_at = time.monotonic() + _SECONDS
    while True:
        try:
            return query()
        except (KafkaException, OperationalError, FileNotFoundError):
            if time.monotonic() > give_up_at:
                raise
            time.sleep(_PAUSE_SECONDS)
