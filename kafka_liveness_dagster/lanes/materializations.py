"""When does Dagster hear what a live run has written? While it goes on: a run may be at work for days.

Of the first batch at once, then at most once in so many seconds with new data, and at the end: each
materialization tells what was written since the one before that Dagster stored. So downstream assets begin,
freshness is known, and nobody is woken by a run that wrote nothing. What the table has by then Spark is asked
beside the batches, which do not wait for it.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg

from kafka_liveness_dagster.concurrency import run_in_daemon_thread
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.metadata import Tally, format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.runs.storage import RunStorage
    from kafka_liveness_dagster.spark.table.table import TableInfo

_DATA_VERSION = "dagster/data_version"
_OWN_MARKER = "dagster/data_version_is_user_provided"


class _PendingMaterialization(NamedTuple):
    """A materialization that waits for what the table says."""

    since: Tally
    table_future: Future[TableInfo | None]


class Materializations:
    """Those of one live run.

    Args:
        storage: of the run.
        asset: whose they are.
        group_id: by which commands know whose asset it is.
        every_seconds: at least so long from one to the next.
        read_table_info: gives what tells the table as readers see it, in a thread of its own; None where
            nobody can tell.
        extra_metadata: what else is told with each: lag, links, the cause of the run.

    Attributes:
        batches: how many the run has committed.
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
        """A batch is committed. Tells nothing yet: it may be in the middle of a rebalance."""
        self._current.add(batch, rows, seconds)
        self.batches += 1

    @property
    def has_unreported_batches(self) -> bool:
        """Whether committed batches wait for a materialization."""
        return bool(self._pending or self._current.batches)

    @property
    def unreported_batches(self) -> int:
        """How many committed batches are in no materialization that Dagster has."""
        taken = self._pending.since.batches if self._pending else 0
        return self._current.batches + taken + self._batches_being_stored

    @property
    def _batches_being_stored(self) -> int:
        batches, stored = self._storing or (0, None)
        return 0 if stored is None or stored.done() else batches

    @property
    def due_in_seconds(self) -> float:
        """How long until there is one to tell.

        Infinite without new data, or while Dagster has not stored the last.
        """
        if self._batches_being_stored:
            return math.inf
        return (
            max(0.0, self._emitted_at + self._every_seconds - time.monotonic())
            if self._current.batches
            else math.inf
        )

    def emit_if_due(self, *, may_wait: bool) -> None:
        """Materialize the asset with what is new, if it is time.

        What cannot be told now is told with the next.

        Args:
            may_wait: for what the table says; else it is told at a later call, when that is known.
        """
        if self._pending is None and self.due_in_seconds <= 0:
            self._start()
            self._emitted_at = time.monotonic()
        if self._pending is not None and (may_wait or self._pending.table_future.done()):
            self._emit(self._pending)

    def final_result(self, *, force: bool = False) -> dg.MaterializeResult | None:  # type: ignore[type-arg]
        """What is new at the end of the run, None for nothing unless there is to be one ``force``."""
        if self._pending is not None:
            self._emit(self._pending)
        if not (self._current.batches or force):
            return None
        version, metadata = self._result(self._start())
        return dg.MaterializeResult(
            metadata=metadata, data_version=dg.DataVersion(version) if version else None
        )

    def emit_on_failure(self) -> None:
        """The run fails: what is committed is new all the same.

        In few words: who would say more may have failed.
        """
        left = [self._current] if self._pending is None else [self._pending.since, self._current]
        self._current = Tally()
        self._pending = None
        for since in left:
            if since.batches:
                metadata: dict[str, Any] = {**since.metadata(), "group": self._group_id}
                self._store(dg.AssetMaterialization(self._asset, metadata=metadata), since)

    def _start(self) -> _PendingMaterialization:
        """All that no materialization has told yet is told with the next one; the table is asked now."""
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
        # No code version: Dagster would look for those of what is upstream beside it, and call the asset
        # unsynced
        tags = {_DATA_VERSION: version, _OWN_MARKER: "true"} if version else None
        self._store(dg.AssetMaterialization(self._asset, metadata=metadata, tags=tags), since)

    def _store(self, event: dg.AssetMaterialization, since: Tally) -> None:
        """Store it now or, when Dagster's storage fails, later; what comes meanwhile is the next one's."""
        what = f"the materialization of {format_count(since.batches, 'batch')}, {since.offsets:,} offsets"
        self._storing = since.batches, self._storage.store_event(event, what)

    def _result(self, one: _PendingMaterialization) -> tuple[str | None, dict[str, Any]]:
        """Data version and metadata, as soon as the table has answered."""
        now = self._wait_for_table(one.table_future)
        metadata = {
            **one.since.metadata(),
            **(_table_metadata(now) if now else {}),
            **self._extra_metadata(),
            "group": self._group_id,
        }
        self._pending = None  # not before: who is interrupted in the wait has not told it
        return now and str(now.snapshot_id), metadata

    def _wait_for_table(self, table: Future[TableInfo | None]) -> TableInfo | None:
        try:
            return table.result()
        except KafkaLivenessError as error:  # what was written was committed: no reason to end the run
            self._storage.log.warning("the table's snapshot is not in the event: %s", error)
            return None


def _table_metadata(now: TableInfo) -> dict[str, dg.MetadataValue]:
    """A table as Dagster names it for any, and its snapshot."""
    columns = [dg.TableColumn(one.name, one.dataType.simpleString()) for one in now.columns.fields]
    return {
        "dagster/table_name": dg.MetadataValue.text(now.name),
        "dagster/column_schema": dg.MetadataValue.table_schema(dg.TableSchema(columns)),
        **({} if now.rows is None else {"dagster/row_count": dg.MetadataValue.int(now.rows)}),
        **({} if now.uri is None else {"dagster/uri": dg.MetadataValue.text(now.uri)}),
        "snapshot_id": dg.MetadataValue.text(str(now.snapshot_id)),  # as text: a browser rounds it
    }
