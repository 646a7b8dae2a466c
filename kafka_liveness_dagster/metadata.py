"""Build the metadata that people see on runs, assets and partitions.

Dagster's pages show a number as it is, and plot it. So numbers that are worth a plot stay numbers, and a text
beside them has the units and the thousands separators. All other numbers are texts. An event stays in
Dagster's event log for years, so it is as small for a thousand partitions as for ten. Totals count all
partitions, and tables list the ten largest.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import dagster as dg

from kafka_liveness_dagster.core.names import format_count, join_some
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition, union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.core.events import MemberLeft
    from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot

_COLUMNS = dg.TableSchema(
    [
        dg.TableColumn("partition", "string"),
        dg.TableColumn("range", "string", description="half-open: without the end offset"),
        dg.TableColumn("offsets", "string", description="an upper bound on records"),
    ]
)
_EVENT_TIME = dg.TableColumn("event_time", "string", description="timestamps of its first and last record")
_GROUP_COLUMNS = dg.TableSchema(
    [
        dg.TableColumn("partition", "string"),
        dg.TableColumn("committed", "string", description="the offset at which the live lane continues"),
        dg.TableColumn("log_end", "string"),
        dg.TableColumn("lag", "string", description="offsets that the live lane has not read yet"),
        dg.TableColumn("pending", "string", description="crash lag that is not processed yet"),
        dg.TableColumn("last_commit_by_run", "string", description="the first 8 digits of the run's id"),
        dg.TableColumn(
            "owner_state", "string", description="running, released (the run left in good order) or paused"
        ),
    ]
)
_MAX_ROWS = 10
LATE_RECORDS = "late_records"
_LATE_RANGES = "late_ranges"
_T = TypeVar("_T")


@dataclass
class Tally:
    """The work that a run has committed.

    Attributes:
        batches: number of committed batches.
        rows: number of written rows; None once a sink did not count its rows.
        seconds: time in batches, without the waiting between them.
        slowest_seconds: time of the slowest batch.
        slowest_share: largest share of its own run budget that a batch took; 1 is all of it.
        ranges: processed ranges.
        skipped: number of dead letters.
    """

    batches: int = 0
    rows: int | None = 0
    seconds: float = 0.0
    _: KW_ONLY
    slowest_seconds: float = 0.0
    slowest_share: float = 0.0
    ranges: list[OffsetRange] = field(default_factory=list)
    skipped: int = 0

    def add(self, batch: Batch, rows: int | None, seconds: float) -> None:
        """Count a committed batch."""
        self.batches += 1
        self.rows = None if self.rows is None or rows is None else self.rows + rows
        self.seconds += seconds
        self.slowest_seconds = max(self.slowest_seconds, seconds)
        if batch.deadline_seconds > 0:
            self.slowest_share = max(self.slowest_share, seconds / batch.deadline_seconds)
        self.ranges = merge_ranges((*self.ranges, *batch.processed))
        self.skipped += len(batch.skipped)

    @property
    def offsets(self) -> int:
        """The number of processed offsets, an upper bound on records."""
        return sum(r.size for r in self.ranges)

    @property
    def summary(self) -> str:
        """The tally in one sentence, with units.

        >>> print(Tally(batches=4, rows=9_000, seconds=3.0, slowest_seconds=1.5).summary)
        9,000 rows from 0 offsets in 4 batches: 3,000 rows per second; slowest batch 1.5 s, 0.0 % of its...
        """
        counted = f"{row_count_text(self.rows)} from {format_count(self.offsets, 'offset')}"
        if not self.batches:
            return counted
        rate = "".join(f": {value:,.0f} {name.replace('_', ' ')}" for name, value in self._rates.items())
        return (
            f"{counted} in {format_count(self.batches, 'batch')}{rate}; slowest batch "
            f"{self.slowest_seconds:,.1f} s, {100 * self.slowest_share:.1f} % of its run budget"
        )

    def metadata(self) -> dict[str, dg.MetadataValue]:
        """Return the tally as metadata of a materialization; Dagster plots its numbers."""
        return {
            "summary": dg.MetadataValue.text(self.summary),
            "batches": dg.MetadataValue.int(self.batches),
            "offsets": dg.MetadataValue.int(self.offsets),
            **({} if self.rows is None else {"rows_written": dg.MetadataValue.int(self.rows)}),
            "slowest_batch_percent_of_budget": dg.MetadataValue.float(round(100 * self.slowest_share, 1)),
            **{name: dg.MetadataValue.float(value) for name, value in self._rates.items()},
            **({"dead_letters": dg.MetadataValue.int(self.skipped)} if self.skipped else {}),
            "processed": range_table(self.ranges),
        }

    @property
    def _rates(self) -> dict[str, float]:
        """The speed of Spark; empty without batches, because 0 would be a point in the plot."""
        if not self.seconds:
            return {}
        if self.rows is None:
            return {"offsets_per_second": round(self.offsets / self.seconds, 1)}
        return {"rows_per_second": round(self.rows / self.seconds, 1)}

    def of_run(self, partitions: int) -> dict[str, dg.MetadataValue]:
        """Return the work of a run with several partitions, because a batch may have offsets of several."""
        several = f"{format_count(partitions, 'partition')} together: " if partitions > 1 else ""
        return {"run_summary": dg.MetadataValue.text(several + self.summary)}


def merge_ranges(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the same offsets as the fewest ranges."""
    spans: dict[TopicPartition, list[Span]] = {}
    for r in ranges:
        spans.setdefault(r.topic_partition, []).append(r.span)
    return [OffsetRange(*tp, *span) for tp in sorted(spans) for span in union(spans[tp])]


def range_table(
    ranges: Sequence[OffsetRange], event_times: Mapping[OffsetRange, str] | None = None
) -> dg.MetadataValue:
    """Return offset ranges as a table: one row for each of the ten largest, one for all others.

    With ``event_times`` it has a column with the event time of each range, ``unknown`` without one.
    """
    shown, others = split_worst(ranges, lambda r: r.size)
    rows = [
        {
            "partition": str(r.topic_partition),
            "range": str(r.span),
            "offsets": f"{r.size:,}",
            **({} if event_times is None else {"event_time": event_times.get(r, "unknown")}),
        }
        for r in shown
    ]
    if others:
        rest = {"partition": f"{len(others):,} more", "offsets": f"{sum(r.size for r in others):,}"}
        rows.append({name: rest.get(name, "") for name in rows[0]})
    columns = [*_COLUMNS.columns, *([] if event_times is None else [_EVENT_TIME])]
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows], schema=dg.TableSchema(columns))


def split_worst(items: Sequence[_T], badness: Callable[[_T], int]) -> tuple[list[_T], list[_T]]:
    """Return the ten items to show, and all others; both in their order."""
    chosen = set(sorted(range(len(items)), key=lambda at: badness(items[at]), reverse=True)[:_MAX_ROWS])
    shown, others = (
        [one for at, one in enumerate(items) if (at in chosen) is is_chosen] for is_chosen in (True, False)
    )
    return shown, others


def row_count_text(rows: int | None) -> str:
    """Return a number of rows with its noun, also for a sink that does not count its rows."""
    return "rows not counted" if rows is None else format_count(rows, "row")


def describe_departures(left: Iterable[MemberLeft]) -> str:
    """Return the unexpected departures as text; empty without one."""
    return "; ".join(f"run {gone.run} {gone.reason.value}" for gone in left if not gone.reason.in_good_order)


def range_metadata(
    group_id: str,
    requested: OffsetRange,
    pending: Iterable[OffsetRange],
    lost: Iterable[OffsetRange],
    of_run: Mapping[str, dg.MetadataValue],
    *,
    is_reprocessed: bool = False,
    written_off: Iterable[OffsetRange] = (),
) -> dict[str, dg.MetadataValue]:
    """Return the metadata of one crash lag partition after its run.

    Args:
        group_id: the live lane's group.
        requested: range of the partition.
        pending: ranges that were pending when the run began.
        lost: ranges whose records had expired.
        of_run: metadata of the whole run.
        is_reprocessed: whether the run processed the range although it was not pending.
        written_off: parts of requested ranges that were written off before the run.
    """
    was_pending = any(requested.overlaps(r) for r in pending)
    gone = [r for r in lost if r.overlaps(requested)]
    state = "processed by this run" if was_pending else "processed before this run"
    if is_reprocessed and was_pending:
        state = "reprocessed by this run"
    closed = [r for r in written_off if r.overlaps(requested)]
    if closed:
        count = sum(r.size for r in closed)
        state = (
            "written off, not processed"
            if count == requested.size
            else f"{state}, except {format_count(count, 'offset')} that were written off"
        )
    return {
        "group": dg.MetadataValue.text(group_id),
        "range": dg.MetadataValue.text(str(requested)),
        "offsets": dg.MetadataValue.text(format_count(requested.size, "offset")),
        "state": dg.MetadataValue.text(state),
        **({"written_off": range_table(closed)} if closed else {}),
        **({"expired_unprocessed": range_table(gone)} if gone else {}),
        **(of_run if was_pending else {}),
    }


def group_metadata(
    group_id: str, partitions: Sequence[PartitionSnapshot], left: Sequence[MemberLeft]
) -> Mapping[str, dg.MetadataValue]:
    """Return the state of a group's partitions; lag and pending offsets are numbers, which Dagster plots."""
    shown, others = split_worst(partitions, lambda seen: seen.lag + seen.pending_offsets)
    records = [
        dg.TableRecord(
            {
                "partition": str(seen.topic_partition),
                "committed": "none" if seen.committed is None else str(seen.committed),
                "log_end": str(seen.log_end),
                "lag": f"{seen.lag:,}",
                "pending": join_some(seen.outstanding) or "none",
                "last_commit_by_run": seen.live_metadata.run_id if seen.live_metadata else "none",
                "owner_state": seen.live_metadata.owner_state.value if seen.live_metadata else "none",
            }
        )
        for seen in shown
    ]
    if others:
        pending = sum(seen.pending_offsets for seen in others)
        rest = {"partition": f"{len(others):,} more", "lag": f"{sum(seen.lag for seen in others):,}"}
        rest["pending"] = format_count(pending, "offset")
        records.append(dg.TableRecord({name: rest.get(name, "") for name in records[0].data}))
    departures = describe_departures(left)
    return {
        "group": dg.MetadataValue.text(group_id),
        "lag": dg.MetadataValue.int(sum(seen.lag for seen in partitions)),
        "pending_offsets": dg.MetadataValue.int(sum(seen.pending_offsets for seen in partitions)),
        **({"unexpected_departures": dg.MetadataValue.text(departures)} if departures else {}),
        **({"partitions": dg.MetadataValue.table(records, schema=_GROUP_COLUMNS)} if records else {}),
    }


def window_metadata(group_id: str, ranges: Sequence[OffsetRange]) -> dict[str, dg.MetadataValue]:
    """Return the metadata of one window: its offsets."""
    return {
        "group": dg.MetadataValue.text(group_id),
        "offsets": dg.MetadataValue.int(sum(r.size for r in ranges)),
        **({"ranges": range_table(ranges)} if ranges else {}),
    }


def late_metadata(
    group_id: str, total: int, count: int, ranges: Sequence[OffsetRange]
) -> dict[str, dg.MetadataValue]:
    """Return the metadata of records that came after their window was marked complete.

    Args:
        group_id: the live lane's group.
        total: late records of the window so far.
        count: late records of one batch.
        ranges: ranges of the batch, which contain the late records.
    """
    return {
        "group": dg.MetadataValue.text(group_id),
        LATE_RECORDS: dg.MetadataValue.int(total),
        "late_records_of_batch": dg.MetadataValue.int(count),
        _LATE_RANGES: dg.MetadataValue.json([str(r) for r in ranges]),
    }


def late_ranges(observation: dg.AssetObservation | None) -> list[OffsetRange]:
    """Return the ranges of ``late_metadata``; none for an observation of another kind."""
    return [OffsetRange.parse(str(one)) for one in stored_list(observation, _LATE_RANGES)]


def stored_list(observation: dg.AssetObservation | None, name: str) -> list[Any]:
    """Return a list in the metadata of an observation; empty without one."""
    found = None if observation is None else observation.metadata.get(name)
    return found.data if isinstance(found, dg.JsonMetadataValue) and isinstance(found.data, list) else []
