"""Judge whether a table is as fresh and as complete as its owner promised, by the records' timestamps.

Judges one snapshot of the group, over both lanes; reads no timestamp itself and keeps no state.

>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> orders = TopicPartition("orders", 3)
>>> behind = PartitionSnapshot(orders, 70, None, log_end=120)
>>> sla = ServiceLevel(fresh_seconds=30.0)
>>> print(judge_freshness([behind], {(orders, 70): 1_000}, sla, now_ms=96_000).message)
the table is 95 s behind the log, the limit is 30 s (fresh_seconds): the oldest unread record is at...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kafka_liveness_dagster.core.health import Severity, Verdict
from kafka_liveness_dagster.core.names import join_some
from kafka_liveness_dagster.core.offsets import difference, union
from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot, replaced_log_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kafka_liveness_dagster.core.offsets import TopicPartition

_FRESH_FIX = (
    "Fix: check group_alive; if a run works, let more runs share the lag (max_live_runs), or raise "
    "fresh_seconds"
)
_COMPLETE_FIX = (
    "Fix: materialize the failed and missing partitions of the crash lag asset, or set auto_catch_up"
)


@dataclass(frozen=True)
class ServiceLevel:
    """The limits of an asset; None for no limit.

    Attributes:
        fresh_seconds: largest age of the oldest record that the live lane has not committed.
        complete_seconds: largest age of the oldest record of either lane that is not in the table.
    """

    fresh_seconds: float | None = None
    complete_seconds: float | None = None

    @property
    def is_set(self) -> bool:
        """Whether there is a limit."""
        return self.fresh_seconds is not None or self.complete_seconds is not None


NO_SERVICE_LEVEL = ServiceLevel()
Position = tuple["TopicPartition", int]
"""A partition and an offset in it."""


class _Oldest(NamedTuple):
    """The oldest record of one lane.

    Attributes:
        seconds: age of the oldest known record; 0 without one.
        where: its position; empty without one.
        unknown: positions whose timestamp is unknown.
    """

    seconds: float
    where: str
    unknown: tuple[str, ...]


def unread_positions(partitions: Iterable[PartitionSnapshot]) -> list[Position]:
    """Return the first unread offset of each partition with lag.

    Paused partitions are held on purpose and do not count.

    >>> from kafka_liveness_dagster.core.offsets import TopicPartition
    >>> unread_positions([PartitionSnapshot(TopicPartition("orders", 3), 70, None, log_end=120)])
    [(TopicPartition(topic='orders', partition=3), 70)]
    """
    return [
        (seen.topic_partition, max(seen.log_start, seen.committed or 0))
        for seen in partitions
        if seen.lag and not seen.paused
    ]


def pending_positions(partitions: Iterable[PartitionSnapshot]) -> list[Position]:
    """Return the first offset of each partition that was passed and is not in the table.

    If the broker has deleted it, the first one that the broker still has. The age is then too small, and the
    check ``retention`` reports the loss.
    """
    found = []
    for seen in partitions:
        missing = union((*difference(seen.outstanding, seen.unrecorded), *seen.missing_rows))
        if missing and not seen.paused:
            found.append((seen.topic_partition, max(seen.log_start, missing[0].start)))
    return found


def judge_freshness(
    partitions: Sequence[PartitionSnapshot],
    timestamps_ms: Mapping[Position, int],
    sla: ServiceLevel,
    now_ms: float,
) -> Verdict:
    """Judge both limits by the age of the oldest record of each lane.

    A missed limit is an error, because the owner promised it. If an unknown timestamp may hide a missed
    limit, the verdict is a warning.

    Args:
        partitions: the group's partitions.
        timestamps_ms: timestamps of the records at ``unread_positions`` and ``pending_positions``, in
            milliseconds since the epoch; unknown ones are left out.
        sla: the limits.
        now_ms: current time in milliseconds since the epoch.
    """
    unread = _oldest(unread_positions(partitions), timestamps_ms, now_ms)
    pending = _oldest(pending_positions(partitions), timestamps_ms, now_ms)
    lag = sum(seen.lag for seen in partitions if not seen.paused)
    pending_offsets = sum(seen.pending_offsets for seen in partitions)
    numbers: dict[str, int | float | str] = {"lag": lag, "pending_offsets": pending_offsets}
    if not unread.unknown:
        numbers["seconds_behind"] = round(unread.seconds, 3)
    if not pending.unknown:
        numbers["pending_age_seconds"] = round(pending.seconds, 3)
    missed: list[str] = []
    kept: list[str] = []
    unread_at: list[str] = []
    unsure: list[str] = []
    if sla.fresh_seconds is not None:
        numbers["fresh_limit_seconds"] = sla.fresh_seconds
        sentence = f"the table is {unread.seconds:,.0f} s behind the log"
        limit = f"the limit is {sla.fresh_seconds:,g} s (fresh_seconds)"
        if unread.seconds > sla.fresh_seconds:
            missed.append(
                f"{sentence}, {limit}: the oldest unread record is at {unread.where}, lag {lag:,}. "
                f"{_FRESH_FIX}"
            )
        else:
            kept.append(f"{sentence}, {limit}")
            unread_at += unread.unknown
    if sla.complete_seconds is not None:
        numbers["complete_limit_seconds"] = sla.complete_seconds
        oldest = max(unread, pending)
        sentence = f"the oldest record that is not in the table is {oldest.seconds:,.0f} s old"
        limit = f"the limit is {sla.complete_seconds:,g} s (complete_minutes)"
        if oldest.seconds > sla.complete_seconds:
            fix = f". {_COMPLETE_FIX}" if oldest is pending else ""
            missed.append(
                f"{sentence}, {limit}: it is at {oldest.where}, {pending_offsets:,} offsets are pending{fix}"
            )
        else:
            kept.append(f"{sentence}, {limit}")
            unread_at += (*unread.unknown, *pending.unknown)
            unsure += replaced_log_lines(seen for seen in partitions if seen.is_upper_bound)
    if missed:
        return Verdict(Severity.ERROR, "; ".join((*missed, *kept)), numbers)
    if unread_at:
        unsure.append(
            f"Kafka returned no timestamp of {join_some(list(dict.fromkeys(unread_at)))} within 2 s. Fix: "
            "check that the broker responds; the next evaluation reads it again"
        )
    if unsure:  # an age may be larger than the known ones
        return Verdict(Severity.WARNING, f"unknown: {join_some(unsure)}", numbers)
    return Verdict(Severity.FINE, "; ".join(kept), numbers)


def _oldest(positions: Iterable[Position], timestamps_ms: Mapping[Position, int], now_ms: float) -> _Oldest:
    known = {one: timestamps_ms[one] for one in positions if one in timestamps_ms}
    unknown = tuple(f"{tp}:{offset}" for tp, offset in positions if (tp, offset) not in known)
    if not known:
        return _Oldest(0.0, "", unknown)
    (tp, offset), at_ms = min(known.items(), key=lambda one: one[1])
    return _Oldest(max(0.0, (now_ms - at_ms) / 1000), f"{tp}:{offset}", unknown)
