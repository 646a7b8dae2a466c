"""Is every record of a window of time in the table? As far as offsets and timestamps can tell; asks nobody.

A log is in order of offsets, and of timestamps only roughly: a window ends, in a partition, at the first
offset whose timestamp lies at or above its end. It is complete when all below these offsets is done, in
whichever lane.

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
    """What may be said of a window of time."""

    COMPLETE = "complete"
    WAITING = "waiting"
    UNKNOWN = "unknown"  # the group began in the middle of it, or after it: what was before that it never had
    BEFORE = "before"  # it ends before the first record that the group answers for, in every partition


@dataclass(frozen=True)
class JudgedWindow:
    """A window of time, judged.

    Attributes:
        ranges: the offsets from the first record of the window on, to the first one behind it.
        written_off: what was not processed, of them, or expired and maybe of them: written off, or lost and
            told.
        waiting_for: what is not processed yet, in words.
        is_empty: no partition ever had a record of a complete window. False where records may have expired.
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
        partitions: all of the group's, looked at before the next two were asked for.
        begins: the first offset that is of the window or later; None where there is none.
        ends: the first offset that is later than the window; the log's very end where there is none, open
            transactions included.
        started_in_group_lifetime: the window began when the group was at work and somebody looked: what
            expired was processed.
    """
    if unknown := next((one for one in partitions if _first_offset(one) is None), None):
        return JudgedWindow(
            WindowStatus.WAITING, waiting_for=f"a commit that says where {unknown.topic_partition} began"
        )
    if not has_records(partitions, ends):
        return JudgedWindow(WindowStatus.BEFORE)
    if any(
        not _was_observed(one, begins[one.topic_partition], is_of_our_time=started_in_group_lifetime)
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
    """Return whether any offset that the group answers for lies below these ends."""
    return any(ends[one.topic_partition] > (_first_offset(one) or 0) for one in partitions)


def are_processed(partitions: Sequence[PartitionSnapshot], ranges: Collection[OffsetRange]) -> bool:
    """Whether every one of these offsets is processed."""
    known = {one.topic_partition: one for one in partitions}
    return not any(
        intersection((one.span,), _unprocessed(known[one.topic_partition], one.end))
        for one in ranges
        if one.topic_partition in known
    )


def _first_offset(one: PartitionSnapshot) -> int | None:
    """The first offset that the group answers for.

    Of a log that nobody has read yet its very first one alone.
    """
    if one.committed is not None:
        return one.origin
    return 0 if one.log_start == 0 else None


def _was_observed(one: PartitionSnapshot, begin: int | None, *, is_of_our_time: bool) -> bool:
    """Whether the group answers for all of the window that was ever in this partition."""
    first = one.log_end if begin is None else begin
    floor = _first_offset(one) or 0
    # Rule 1: what lies below its beginning was never its to process
    if first < floor:
        return False
    # Rule 2: where nothing older is left, some of the window may have expired before anybody looked
    return first > max(floor, one.log_start) or floor == 0 == one.log_start or is_of_our_time


def _with_expired_before(one: PartitionSnapshot, span: Span) -> Span:
    """With what has expired in front of it, which may have been of the window."""
    return Span(0, span.end) if span.start <= one.log_start else span


def _unprocessed(one: PartitionSnapshot, end: int) -> tuple[Span, ...]:
    """What lies below ``end`` and is not processed."""
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
    """The partition that is worst off, and the others in one number."""
    worst = max(left, key=lambda tp: left[tp])
    pending = next(size(one.outstanding) for one in partitions if one.topic_partition == worst)
    others = [count for tp, count in left.items() if count and tp != worst]
    text = f"{left[worst]:,} offsets of {worst}"
    text += f", {min(pending, left[worst]):,} of them pending" if pending else ""
    return text + (f"; {sum(others):,} offsets of {len(others):,} more partitions" if others else "")
