"""When does Dagster hear what a live run has written? While it goes on: a run may be at work for days.

Of the first batch at once, then at most once in so many seconds with new data, and at the end: each materialization
tells what was written since the one before that Dagster stored. So downstream assets begin, freshness is known, and
nobody is woken by a run that wrote nothing. What the table has by then Spark is asked beside the batches, which do not
wait for it.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg

from kafka_liveness_dagster.concurrency import aside
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.metadata import Tally, number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.runs.storage import RunStorage
    from kafka_liveness_dagster.spark.table.table import TableNow

_DATA_VERSION = "dagster/data_version"
_IS_OURS = "dagster/data_version_is_user_provided"


class _Next(NamedTuple):
    """A materialization that waits for what the table says."""

    since: Tally
    table: Future[TableNow | None]


class Materializations:
    """Those of one live run.

    Args:
        storage: of the run.
        asset: whose they are.
        group_id: by which commands know whose asset it is.
        every_seconds: at least so long from one to the next.
        table_now: gives what tells the table as readers see it, in a thread of its own; None where nobody can tell.
        facts: what else is told with each: lag, links, the cause of the run.

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
        table_now: Callable[[], Callable[[], TableNow | None]],
        facts: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._storage, self._asset, self._group_id, self._every_seconds = storage, asset, group_id, every_seconds
        self._table_now, self._facts = table_now, facts
        self._since, self._told_at = Tally(), -math.inf
        self.batches = 0
        self._next: _Next | None = None
        self._storing: tuple[int, Future[None]] | None = None

    def add(self, batch: Batch, rows: int | None, seconds: float) -> None:
        """A batch is committed. Tells nothing yet: it may be in the middle of a rebalance."""
        self._since.add(batch, rows, seconds)
        self.batches += 1

    @property
    def has_news(self) -> bool:
        """Whether committed batches wait for a materialization."""
        return bool(self._next or self._since.batches)

    @property
    def untold_batches(self) -> int:
        """How many committed batches are in no materialization that Dagster has."""
        taken = self._next.since.batches if self._next else 0
        return self._since.batches + taken + self._batches_being_stored

    @property
    def _batches_being_stored(self) -> int:
        batches, stored = self._storing or (0, None)
        return 0 if stored is None or stored.done() else batches

    @property
    def due_in_seconds(self) -> float:
        """How long until there is one to tell; infinite without new data, or while Dagster has not stored the last."""
        if self._batches_being_stored:
            return math.inf
        return max(0.0, self._told_at + self._every_seconds - time.monotonic()) if self._since.batches else math.inf

    def tell_if_due(self, *, may_wait: bool) -> None:
        """Materialize the asset with what is new, if it is time; what cannot be told now is told with the next.

        Args:
            may_wait: for what the table says; else it is told at a later call, when that is known.
        """
        if self._next is None and self.due_in_seconds <= 0:
            self._take()
            self._told_at = time.monotonic()
        if self._next is not None and (may_wait or self._next.table.done()):
            self._tell(self._next)

    def last(self, *, always: bool = False) -> dg.MaterializeResult | None:  # type: ignore[type-arg]
        """What is new at the end of the run, None for nothing unless there is to be one ``always``."""
        if self._next is not None:
            self._tell(self._next)
        if not (self._since.batches or always):
            return None
        version, metadata = self._told(self._take())
        return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(version) if version else None)

    def tell_what_is_left(self) -> None:
        """The run fails: what is committed is new all the same. In few words: who would say more may have failed."""
        left = [self._since] if self._next is None else [self._next.since, self._since]
        self._since, self._next = Tally(), None
        for since in left:
            if since.batches:
                metadata: dict[str, Any] = {**since.metadata(), "group": self._group_id}
                self._store(dg.AssetMaterialization(self._asset, metadata=metadata), since)

    def _take(self) -> _Next:
        """All that no materialization has told yet is told with the next one; the table is asked now."""
        try:
            table = aside(self._table_now(), "kafka-liveness-table")
        except KafkaLivenessError as error:
            table = Future()
            table.set_exception(error)
        self._next, self._since = _Next(self._since, table), Tally()
        return self._next

    def _tell(self, one: _Next) -> None:
        since = one.since
        version, metadata = self._told(one)
        # No code version: Dagster would look for those of what is upstream beside it, and call the asset unsynced
        tags = {_DATA_VERSION: version, _IS_OURS: "true"} if version else None
        self._store(dg.AssetMaterialization(self._asset, metadata=metadata, tags=tags), since)

    def _store(self, event: dg.AssetMaterialization, since: Tally) -> None:
        """Store it now or, when Dagster's storage fails, later; what comes meanwhile is the next one's."""
        what = f"the materialization of {number(since.batches, 'batch')}, {since.offsets:,} offsets"
        self._storing = since.batches, self._storage.event(event, what)

    def _told(self, one: _Next) -> tuple[str | None, dict[str, Any]]:
        """Data version and metadata, as soon as the table has answered."""
        now = self._answer(one.table)
        metadata = {**one.since.metadata(), **(_shown(now) if now else {}), **self._facts(), "group": self._group_id}
        self._next = None  # not before: who is interrupted in the wait has not told it
        return now and str(now.snapshot_id), metadata

    def _answer(self, table: Future[TableNow | None]) -> TableNow | None:
        try:
            return table.result()
        except KafkaLivenessError as error:  # what was written was committed: no reason to end the run
            self._storage.log.warning("the table's snapshot is not told: %s", error)
            return None


def _shown(now: TableNow) -> dict[str, dg.MetadataValue]:
    """A table as Dagster names it for any, and its snapshot."""
    columns = [dg.TableColumn(one.name, one.dataType.simpleString()) for one in now.columns.fields]
    return {
        "dagster/table_name": dg.MetadataValue.text(now.name),
        "dagster/column_schema": dg.MetadataValue.table_schema(dg.TableSchema(columns)),
        **({} if now.rows is None else {"dagster/row_count": dg.MetadataValue.int(now.rows)}),
        **({} if now.uri is None else {"dagster/uri": dg.MetadataValue.text(now.uri)}),
        "snapshot_id": dg.MetadataValue.text(str(now.snapshot_id)),  # as text: a browser rounds it
    }
