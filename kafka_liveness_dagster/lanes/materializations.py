"""Materialize the asset of a live run while the run works, because it may last for days.

The first batch is reported at once, later ones at most once per interval, and the rest at the end. Each
materialization reports the data since the last one that Dagster stored. So downstream assets start, freshness
is up to date, and a run that wrote nothing starts nothing. Spark reads the table's state concurrently. Never
delays a batch.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg

from kafka_liveness_dagster.concurrency import run_in_daemon_thread
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.names import format_count
from kafka_liveness_dagster.metadata import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.runs.storage import RunStorage
    from kafka_liveness_dagster.spark.table.table import TableInfo

_DATA_VERSION = "dagster/data_version"
_OWN_MARKER = "dagster/data_version_is_user_provided"
_COLUMN_SCHEMA = "dagster/column_schema"


class _PendingMaterialization(NamedTuple):
    """A materialization that waits for the state of the table."""

    since: Tally
    table_future: Future[TableInfo | None]


class Materializations:
    """The materializations of one live run.

    Args:
        storage: storage of the run.
        asset: key of the asset.
        group_id: group of the asset, by which commands find it.
        every_seconds: shortest time between two materializations.
        read_table_info: reads the table as its readers see it, in a thread of its own; returns None if that
            is impossible.
        extra_metadata: returns further metadata: lag, links, the cause of the run.

    Attributes:
        batches: number of committed batches of the run.
    """

    def __init__(
        self,
        storage: RunStorage,
        asset: dg.AssetKey,
        group_id: str,
        every_seconds: float,
        *,
        read_table_info: Callable[[], Callable[[], TableInfo | None]],
        extra_metadata: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._storage = storage
        self._asset = asset
        self._group_id = group_id
        self._every_seconds = every_seconds
        self._read_table_info = read_table_info
        self._extra_metadata = extra_metadata
        self._current = Tally()
        self._emitted_at = -math.inf
        self.batches = 0
        self._pending: _PendingMaterialization | None = None
        self._storing: tuple[int, Future[None]] | None = None

    def add(self, batch: Batch, rows: int | None, seconds: float) -> None:
        """Count a committed batch; emits nothing, because a rebalance may be in progress."""
        self._current.add(batch, rows, seconds)
        self.batches += 1

    @property
    def has_unreported_batches(self) -> bool:
        """Whether committed batches wait for a materialization."""
        return bool(self._pending or self._current.batches)

    @property
    def unreported_batches(self) -> int:
        """The number of committed batches that no stored materialization reports."""
        taken = self._pending.since.batches if self._pending else 0
        return self._current.batches + taken + self._batches_being_stored

    @property
    def _batches_being_stored(self) -> int:
        batches, stored = self._storing or (0, None)
        return 0 if stored is None or stored.done() else batches

    @property
    def due_in_seconds(self) -> float:
        """The seconds until the next materialization is due.

        Infinite without new data, or while Dagster has not stored the last one.
        """
        if self._batches_being_stored:
            return math.inf
        return (
            max(0.0, self._emitted_at + self._every_seconds - time.monotonic())
            if self._current.batches
            else math.inf
        )

    def emit_if_due(self, *, may_wait: bool) -> None:
        """Materialize the asset with the new data, if that is due.

        If it fails, the next materialization reports this data too.

        Args:
            may_wait: whether to wait for the table's state; if not, a later call emits when it is known.
        """
        if self._pending is None and self.due_in_seconds <= 0:
            self._start()
            self._emitted_at = time.monotonic()
        if self._pending is not None and (may_wait or self._pending.table_future.done()):
            self._emit(self._pending)

    def final_result(self, *, force: bool = False) -> dg.MaterializeResult | None:  # type: ignore[type-arg]
        """Return the last materialization of the run; None without new data, unless ``force`` is set."""
        if self._pending is not None:
            self._emit(self._pending)
        if not (self._current.batches or force):
            return None
        version, metadata = self._result(self._start())
        return dg.MaterializeResult(
            metadata=metadata, data_version=dg.DataVersion(version) if version else None
        )

    def emit_on_failure(self) -> None:
        """Materialize the committed data of a run that fails.

        With little metadata, because the source of the rest may be what failed.
        """
        left = [self._current] if self._pending is None else [self._pending.since, self._current]
        self._current = Tally()
        self._pending = None
        for since in left:
            if since.batches:
                metadata: dict[str, Any] = {**since.metadata(), "group": self._group_id}
                self._store(dg.AssetMaterialization(self._asset, metadata=metadata), since)

    def _start(self) -> _PendingMaterialization:
        """Start the next materialization, with all unreported data; the read of the table begins now."""
        try:
            table = run_in_daemon_thread(self._read_table_info(), "kafka-liveness-table")
        except KafkaLivenessError as error:
            table = Future()
            table.set_exception(error)
        self._pending = _PendingMaterialization(self._current, table)
        self._current = Tally()
        return self._pending

    def _emit(self, one: _PendingMaterialization) -> None:
        since = one.since
        version, metadata = self._result(one)
        # No code version: with one, Dagster also compares those of upstream assets, and shows the asset as
        # unsynced
        tags = {_DATA_VERSION: version, _OWN_MARKER: "true"} if version else None
        self._store(dg.AssetMaterialization(self._asset, metadata=metadata, tags=tags), since)

    def _store(self, event: dg.AssetMaterialization, since: Tally) -> None:
        """Store an event, later if Dagster's storage fails; the next one reports batches from meanwhile."""
        what = f"the materialization of {format_count(since.batches, 'batch')}, {since.offsets:,} offsets"
        self._storing = since.batches, self._storage.store_event(event, what)

    def _result(self, one: _PendingMaterialization) -> tuple[str | None, dict[str, Any]]:
        """Return data version and metadata, as soon as the table's state is read."""
        now = self._wait_for_table(one.table_future)
        metadata = {
            **one.since.metadata(),
            **(table_metadata(now) if now else {}),
            **self._extra_metadata(),
            "group": self._group_id,
        }
        self._pending = None  # only after the wait, which may be interrupted before it is reported
        return now and str(now.snapshot_id), metadata

    def _wait_for_table(self, table: Future[TableInfo | None]) -> TableInfo | None:
        try:
            return table.result()
        except KafkaLivenessError as error:  # the rows are committed, so this must not end the run
            self._storage.log.warning("Left the table's snapshot out of the event: %s", error)
            return None


def observe_table(
    storage: RunStorage,
    asset: dg.AssetKey,
    group_id: str,
    processed: Tally,
    read_table_info: Callable[[], TableInfo | None],
) -> None:
    """Record the table's row count on the live asset after another lane has written to its table.

    The newest materialization has the row count of an earlier moment. An observation starts no downstream
    asset, and Dagster does not count it as fresh data. A table that does not respond costs only the event.

    Args:
        storage: storage of the run.
        asset: key of the live asset.
        group_id: group of the asset.
        processed: work of the other lane.
        read_table_info: reads the table as its readers see it; returns None without a table.
    """
    try:
        now = read_table_info()
    except KafkaLivenessError as error:
        storage.log.warning("Row count of the table is not in an event of %s: %s", asset, error)
        return
    if now is None or now.rows is None:
        return
    metadata = {name: value for name, value in table_metadata(now).items() if name != _COLUMN_SCHEMA}
    event = dg.AssetObservation(
        asset,
        description=(
            f"{now.name} has {format_count(now.rows, 'row')}, after a run of the catch-up lane wrote "
            f"{processed.summary}"
        ),
        metadata={**metadata, "group": group_id},
    )
    storage.store_event(event, f"the row count of {now.name}")


def table_metadata(now: TableInfo) -> dict[str, dg.MetadataValue]:
    """Return a table's metadata by Dagster's standard keys, and its snapshot."""
    columns = [dg.TableColumn(one.name, one.dataType.simpleString()) for one in now.columns.fields]
    return {
        "dagster/table_name": dg.MetadataValue.text(now.name),
        _COLUMN_SCHEMA: dg.MetadataValue.table_schema(dg.TableSchema(columns)),
        **({} if now.rows is None else {"dagster/row_count": dg.MetadataValue.int(now.rows)}),
        **({} if now.uri is None else {"dagster/uri": dg.MetadataValue.text(now.uri)}),
        "snapshot_id": dg.MetadataValue.text(str(now.snapshot_id)),  # as text: browsers round numbers
    }
