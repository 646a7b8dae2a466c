"""Decide whether every record of a time window is in the table, by offsets and timestamps. Queries nothing.

A log is ordered by offsets, and only roughly by timestamps. In a partition a window ends at the first offset
with a timestamp at or after its end. The window is complete when all offsets below these are done, in either
lane.

>>> from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> orders = TopicPartition("orders", 3)
>>> jumped = PartitionSnapshot(orders, 120, None, log_end=190, outstanding=(Span(70, 90),), origin=0)
>>> judge_window([jumped], {orders: 40}, {orders: 130}, started_in_group_lifetime=False).waiting_for
'30 offsets of orders:3, 20 of them pending'
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.offsets import OffsetRange, Span, intersection, size, union

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot


class WindowStatus(Enum):
    """The status of a time window."""

    COMPLETE = "complete"
    WAITING = "waiting"
    UNKNOWN = "unknown"  # the group began during or after the window, so it never had the records before
    BEFORE = "before"  # the window ends before the group's first record, in every partition


@dataclass(frozen=True)
class JudgedWindow:
    """A time window and its status.

    Attributes:
        ranges: offsets from the window's first record to the first one behind it.
        written_off: unprocessed offsets of the window that were written off, or lost and reported. Expired
            offsets that may be of the window are included.
        waiting_for: description of the offsets that are not processed yet.
        is_empty: whether no partition ever had a record of this complete window. False if records may have
            expired.
    """

    status: WindowStatus
    ranges: tuple[OffsetRange, ...] = ()
    written_off: int = 0
    _: KW_ONLY
    waiting_for: str = ""
    is_empty: bool = False


def judge_window(
    partitions: Sequence[PartitionSnapshot],
    begins: Mapping[TopicPartition, int | None],
    ends: Mapping[TopicPartition, int],
    *,
    started_in_group_lifetime: bool,
) -> JudgedWindow:
    """Judge one window.

    Args:
        partitions: all partitions of the group, read before ``begins`` and ``ends``.
        begins: first offset in or after the window; None without one.
        ends: first offset after the window; without one the end of the whole log, open transactions included.
        started_in_group_lifetime: whether the group was active and observed when the window began, so that
            expired records were processed.
    """
    if unknown := next((one for one in partitions if _first_offset(one) is None), None):
        return JudgedWindow(
            WindowStatus.WAITING, waiting_for=f"a commit that records where {unknown.topic_partition} began"
        )
    if not has_records(partitions, ends):
        return JudgedWindow(WindowStatus.BEFORE)
    if any(
        not _was_observed(
            one, begins[one.topic_partition], started_in_group_lifetime=started_in_group_lifetime
        )
        for one in partitions
    ):
        return JudgedWindow(WindowStatus.UNKNOWN)
    left = {one.topic_partition: size(_unprocessed(one, ends[one.topic_partition])) for one in partitions}
    if any(left.values()):
        return JudgedWindow(WindowStatus.WAITING, waiting_for=_describe_unprocessed(left, partitions))
    spans = {one.topic_partition: _window_span(one, begins, ends) for one in partitions}
    return JudgedWindow(
        WindowStatus.COMPLETE,
        tuple(OffsetRange(*tp, *span) for tp, span in spans.items() if span.size),
        sum(
            size(intersection((_with_expired_before(one, spans[one.topic_partition]),), one.written_off))
            for one in partitions
        ),
        is_empty=not any(_with_expired_before(one, spans[one.topic_partition]).size for one in partitions),
    )


def has_records(partitions: Sequence[PartitionSnapshot], ends: Mapping[TopicPartition, int]) -> bool:
    """Return whether any offset from the group's first one on lies below these ends."""
    return any(ends[one.topic_partition] > (_first_offset(one) or 0) for one in partitions)


def are_processed(partitions: Sequence[PartitionSnapshot], ranges: Collection[OffsetRange]) -> bool:
    """Return whether all of these offsets are processed."""
    known = {one.topic_partition: one for one in partitions}
    return not any(
        intersection((one.span,), _unprocessed(known[one.topic_partition], one.end))
        for one in ranges
        if one.topic_partition in known
    )


def _first_offset(one: PartitionSnapshot) -> int | None:
    """Return the group's first offset on this log; None if unknown.

    Without a commit it is only known for a log that still begins at offset 0.
    """
    if one.committed is not None:
        return one.origin
    return 0 if one.log_start == 0 else None


def _was_observed(one: PartitionSnapshot, begin: int | None, *, started_in_group_lifetime: bool) -> bool:
    """Return whether the group had all records that this partition ever had in the window."""
    first = one.log_end if begin is None else begin
    floor = _first_offset(one) or 0
    # Rule 1: the group never had to process offsets below its first one
    if first < floor:
        return False
    # Rule 2: without an older record, records of the window may have expired before they were observed
    return first > max(floor, one.log_start) or floor == 0 == one.log_start or started_in_group_lifetime


def _with_expired_before(one: PartitionSnapshot, span: Span) -> Span:
    """Return the span, extended by the expired offsets before it, which may have been of the window."""
    return Span(0, span.end) if span.start <= one.log_start else span


def _unprocessed(one: PartitionSnapshot, end: int) -> tuple[Span, ...]:
    """Return the offsets below ``end`` that are not processed."""
    behind = one.log_start if one.committed is None else one.committed
    unread = (Span(behind, end),) if behind < end else ()
    return union((*unread, *intersection((*one.outstanding, *one.missing_rows), (Span(0, end),))))


def _window_span(
    one: PartitionSnapshot, begins: Mapping[TopicPartition, int | None], ends: Mapping[TopicPartition, int]
) -> Span:
    end = ends[one.topic_partition]
    begin = begins[one.topic_partition]
    return Span(end if begin is None else min(begin, end), end)


def _describe_unprocessed(left: Mapping[TopicPartition, int], partitions: Sequence[PartitionSnapshot]) -> str:
    """Describe the partition with the most unprocessed offsets, and the others in one number."""
    worst = max(left, key=lambda tp: left[tp])
    pending = next(size(one.outstanding) for one in partitions if one.topic_partition == worst)
    others = [count for tp, count in left.items() if count and tp != worst]
    text = f"{left[worst]:,} offsets of {worst}"
    text += f", {min(pending, left[worst]):,} of them pending" if pending else ""
    return text + (f"; {sum(others):,} offsets of {len(others):,} more partitions" if others else "")
