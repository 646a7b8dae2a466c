"""When does Dagster hear what a live run has written? While it goes on: a run may be at work for days.

Of the first batch at once, then at most once in so many seconds with new data, and at the end: each materialization
tells what was written since the one before. So downstream assets begin, freshness is known, and nobody is woken by a
run that wrote nothing.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import dagster as dg

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.metadata import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kafka_liveness_dagster.core.fairness import Batch
    from kafka_liveness_dagster.spark.described import TableNow

_DATA_VERSION = "dagster/data_version"
_IS_OURS = "dagster/data_version_is_user_provided"


class Materializations:
    """Those of one live run.

    Args:
        context: the run's.
        group_id: by which commands know whose asset it is.
        every_seconds: at least so long from one to the next.
        table_now: the table as readers see it, None where nobody can tell.
        facts: what else is told with each: lag, links, the cause of the run.
    """

    def __init__(
        self,
        context: dg.AssetExecutionContext,
        group_id: str,
        every_seconds: float,
        table_now: Callable[[], TableNow | None],
        facts: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._context, self._group_id, self._every_seconds = context, group_id, every_seconds
        self._table_now, self._facts = table_now, facts
        self._since, self._told_at = Tally(), -math.inf

    def add(self, batch: Batch, rows: int | None, seconds: float) -> None:
        """A batch is committed. Tells nothing yet: it may be in the middle of a rebalance."""
        self._since.add(batch, rows, seconds)

    @property
    def due_in_seconds(self) -> float:
        """How long until there is one to tell; infinite without new data."""
        return max(0.0, self._told_at + self._every_seconds - time.monotonic()) if self._since.batches else math.inf

    def tell_if_due(self) -> None:
        """Materialize the asset with what is new, if it is time; what cannot be told now is told with the next."""
        if self.due_in_seconds > 0:
            return
        self._told_at = time.monotonic()
        version, metadata = self._taken()
        # No code version: Dagster would look for those of what is upstream beside it, and call the asset unsynced
        tags = {_DATA_VERSION: version, _IS_OURS: "true"} if version else None
        self._context.log_event(dg.AssetMaterialization(self._context.asset_key, metadata=metadata, tags=tags))

    def last(self) -> dg.MaterializeResult | None:  # type: ignore[type-arg]
        """What is new at the end of the run, None for nothing."""
        if not self._since.batches:
            return None
        version, metadata = self._taken()
        return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(version) if version else None)

    def tell_what_is_left(self) -> None:
        """The run fails: what is committed is new all the same. In few words: who would say more may have failed."""
        if self._since.batches:
            since, self._since = self._since, Tally()
            metadata: dict[str, Any] = {**since.metadata(), "group": self._group_id}
            self._context.log_event(dg.AssetMaterialization(self._context.asset_key, metadata=metadata))

    def _taken(self) -> tuple[str | None, dict[str, Any]]:
        """Data version and metadata of what no materialization has told yet, which they tell now."""
        since, self._since = self._since, Tally()
        now = self._asked()
        return now and str(now.snapshot_id), {
            **since.metadata(),
            **(_shown(now) if now else {}),
            **self._facts(),
            "group": self._group_id,
        }

    def _asked(self) -> TableNow | None:
        try:
            return self._table_now()
        except KafkaLivenessError as error:  # what was written was committed: no reason to end the run
            self._context.log.warning("the table's snapshot is not told: %s", error)
            return None


def _shown(now: TableNow) -> dict[str, dg.MetadataValue]:
    """A table as Dagster names it for any, and its snapshot."""
    columns = [dg.TableColumn(one.name, one.dataType.simpleString()) for one in now.columns.fields]
    return {
        "dagster/table_name": dg.MetadataValue.text(now.name),
        "dagster/column_schema": dg.MetadataValue.table_schema(dg.TableSchema(columns)),
        **({} if now.rows is None else {"dagster/row_count": dg.MetadataValue.int(now.rows)}),
        "dagster/uri": dg.MetadataValue.text(now.uri),
        "snapshot_id": dg.MetadataValue.text(str(now.snapshot_id)),  # as text: a browser rounds it
    }
