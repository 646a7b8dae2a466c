"""Build the metadata of runs, assets and partitions in Dagster's metadata types.

The metadata is as small for a thousand partitions as for ten: each event is a row in Dagster's event log, for
years. Totals include all partitions. Tables have the worst ones, and a last row with the number of others.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, TypeVar

import dagster as dg

from kafka_liveness_dagster.core.names import join_some
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
        dg.TableColumn("offsets", "int", description="an upper bound on records"),
    ]
)
_GROUP_COLUMNS = dg.TableSchema(
    [
        dg.TableColumn("partition", "string"),
        dg.TableColumn("committed", "string", description="the offset at which the live lane continues"),
        dg.TableColumn("log_end", "int"),
        dg.TableColumn("lag", "int", description="offsets that the live lane has not read yet"),
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
    """The totals of a run so far."""

    batches: int = 0
    rows: int | None = 0
    """None once a sink returned no number of rows."""
    seconds: float = 0.0
    _: KW_ONLY
    slowest_seconds: float = 0.0
    slowest_share: float = 0.0
    """The largest share of its run budget that a batch took; 1 is the whole budget."""
    ranges: list[OffsetRange] = field(default_factory=list)
    skipped: int = 0
    """The number of quarantined offsets, which cannot be processed."""

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

    def metadata(self) -> dict[str, dg.MetadataValue]:
        """Return the totals as run metadata."""
        return {
            "batches": dg.MetadataValue.int(self.batches),
            "offsets": dg.MetadataValue.int(self.offsets),
            **({} if self.rows is None else {"rows_written": dg.MetadataValue.int(self.rows)}),
            "seconds_in_batches": dg.MetadataValue.float(round(self.seconds, 3)),
            "slowest_batch_seconds": dg.MetadataValue.float(round(self.slowest_seconds, 3)),
            "slowest_batch_percent_of_budget": dg.MetadataValue.float(round(100 * self.slowest_share, 1)),
            **self._rates(),
            **({"quarantined_offsets": dg.MetadataValue.int(self.skipped)} if self.skipped else {}),
            "processed": range_table(self.ranges),
        }

    def _rates(self) -> dict[str, dg.MetadataValue]:
        """Return the rates of Spark, without the waits between batches.

        Empty for a run without batches, which then has no point in the plot.
        """
        counts = {"offsets_per_second": self.offsets, "rows_per_second": self.rows}
        return {
            name: dg.MetadataValue.float(round(count / self.seconds, 1))
            for name, count in counts.items()
            if self.seconds and count is not None
        }

    def of_run(self, partitions: int) -> dict[str, dg.MetadataValue]:
        """Return the totals of a run that processed several partitions together.

        They are not split by partition, because batches are not cut at the borders of partitions.
        """
        return {
            "partitions_of_run": dg.MetadataValue.int(partitions),
            "batches_of_run": dg.MetadataValue.int(self.batches),
            **({} if self.rows is None else {"rows_of_run": dg.MetadataValue.int(self.rows)}),
            "seconds_of_run": dg.MetadataValue.float(round(self.seconds, 3)),
            **self._rates(),
        }


def merge_ranges(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the same offsets as the fewest ranges."""
    spans: dict[TopicPartition, list[Span]] = {}
    for r in ranges:
        spans.setdefault(r.topic_partition, []).append(r.span)
    return [OffsetRange(*tp, *span) for tp in sorted(spans) for span in union(spans[tp])]


def range_table(ranges: Sequence[OffsetRange]) -> dg.MetadataValue:
    """Return offset ranges as a table: a row for each of the largest, and one for all others."""
    shown, others = split_worst(ranges, lambda r: r.size)
    rows: list[dict[str, str | int]] = [
        {"partition": str(r.topic_partition), "range": str(r.span), "offsets": r.size} for r in shown
    ]
    if others:
        rows.append(
            {"partition": f"{len(others):,} more", "range": "", "offsets": sum(r.size for r in others)}
        )
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows], schema=_COLUMNS)


def split_worst(items: Sequence[_T], badness: Callable[[_T], int]) -> tuple[list[_T], list[_T]]:
    """Return the ten worst items, and all others; both in their order."""
    chosen = set(sorted(range(len(items)), key=lambda at: badness(items[at]), reverse=True)[:_MAX_ROWS])
    shown, others = (
        [one for at, one in enumerate(items) if (at in chosen) is is_chosen] for is_chosen in (True, False)
    )
    return shown, others


def row_count_text(rows: int | None) -> str:
    """Return a number of rows as text; None means that the sink does not count."""
    return "rows not counted" if rows is None else format_count(rows, "row")


def format_count(count: int, noun: str) -> str:
    """Return a number with its noun."""
    if count == 1:
        return f"1 {noun}"
    ending = "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


def describe_departures(left: Iterable[MemberLeft]) -> str:
    """Return the unexpected departures as text; empty for none."""
    return "; ".join(f"run {gone.run} {gone.reason.value}" for gone in left if not gone.reason.in_good_order)


def range_metadata(
    group_id: str,
    requested: OffsetRange,
    pending: Iterable[OffsetRange],
    lost: Iterable[OffsetRange],
    of_run: Mapping[str, dg.MetadataValue],
    *,
    is_reprocessed: bool = False,
) -> dict[str, dg.MetadataValue]:
    """Return the metadata of one crash lag range after its run.

    ``is_reprocessed`` is true if the run processed the range whether it was pending or not.
    """
    was_owed = any(requested.overlaps(r) for r in pending)
    gone = [r for r in lost if r.overlaps(requested)]
    state = "processed by this run" if was_owed else "processed before this run"
    return {
        "group": dg.MetadataValue.text(group_id),
        "range": dg.MetadataValue.text(str(requested)),
        "offsets": dg.MetadataValue.int(requested.size),
        "state": dg.MetadataValue.text("reprocessed by this run" if is_reprocessed and was_owed else state),
        **({"expired_unprocessed": range_table(gone)} if gone else {}),
        **(of_run if was_owed else {}),
    }


def group_metadata(
    group_id: str, partitions: Sequence[PartitionSnapshot], members: int, left: Sequence[MemberLeft]
) -> Mapping[str, dg.MetadataValue]:
    """Return the metadata of a group's observation by the sensor."""
    shown, others = split_worst(partitions, lambda seen: seen.lag + seen.pending_offsets)
    records = [
        dg.TableRecord(
            {
                "partition": str(seen.topic_partition),
                "committed": "none" if seen.committed is None else str(seen.committed),
                "log_end": seen.log_end,
                "lag": seen.lag,
                "pending": join_some(seen.outstanding) or "none",
                "last_commit_by_run": seen.live_metadata.run_id if seen.live_metadata else "none",
                "owner_state": seen.live_metadata.owner_state.value if seen.live_metadata else "none",
            }
        )
        for seen in shown
    ]
    if others:
        lag = sum(seen.lag for seen in others)
        pending = sum(seen.pending_offsets for seen in others)
        rest: dict[str, str | int] = {"partition": f"{len(others):,} more", "log_end": 0, "lag": lag}
        rest["pending"] = format_count(pending, "offset")
        records.append(dg.TableRecord({name: rest.get(name, "") for name in records[0].data}))
    return {
        "group": dg.MetadataValue.text(group_id),
        "members": dg.MetadataValue.int(members),
        "partition_count": dg.MetadataValue.int(len(partitions)),
        "lag": dg.MetadataValue.int(sum(seen.lag for seen in partitions)),
        "pending_offsets": dg.MetadataValue.int(sum(seen.pending_offsets for seen in partitions)),
        "unexpected_departures": dg.MetadataValue.text(describe_departures(left) or "none"),
        **({"partitions": dg.MetadataValue.table(records, schema=_GROUP_COLUMNS)} if records else {}),
    }


def window_metadata(group_id: str, ranges: Sequence[OffsetRange]) -> dict[str, dg.MetadataValue]:
    """Return the metadata of one window of time, with its offset ranges."""
    return {
        "group": dg.MetadataValue.text(group_id),
        "offsets": dg.MetadataValue.int(sum(r.size for r in ranges)),
        "partition_count": dg.MetadataValue.int(len(ranges)),
        **({"ranges": range_table(ranges)} if ranges else {}),
    }


def late_metadata(
    group_id: str, total: int, count: int, ranges: Sequence[OffsetRange]
) -> dict[str, dg.MetadataValue]:
    """Return the metadata of a batch's records that arrived after their window was marked complete.

    ``ranges`` are the ranges of the batch that have such records.
    """
    return {
        "group": dg.MetadataValue.text(group_id),
        LATE_RECORDS: dg.MetadataValue.int(total),
        "late_records_of_batch": dg.MetadataValue.int(count),
        _LATE_RANGES: dg.MetadataValue.json([str(r) for r in ranges]),
    }


def late_ranges(observation: dg.AssetObservation | None) -> list[OffsetRange]:
    """Return the ranges of ``late_metadata``; empty for any other observation."""
    told = None if observation is None else observation.metadata.get(_LATE_RANGES)
    texts = told.data if isinstance(told, dg.JsonMetadataValue) and isinstance(told.data, list) else []
    return [OffsetRange.parse(str(one)) for one in texts]
