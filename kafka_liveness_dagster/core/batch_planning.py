"""Plan the next offsets: bounded and fair batches over positions (KIP-41).

Fetches nothing, so nothing is discarded: the next plan begins where one ends.

>>> A, B, C = (TopicPartition("orders", p) for p in range(3))
>>> fair_share({A: 1000, B: 1000, C: 1000}, 300, None).counts.values()
dict_values([100, 100, 100])
>>> fair_share({A: 1000, B: 1000, C: 0}, 300, None).counts
{TopicPartition(topic='orders', partition=0): 150, TopicPartition(topic='orders', partition=1): 150}
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import join_some
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition, difference, union

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

MAX_SHARES = 64
"""Number of readers that Spark caches by default (``spark.kafka.consumer.cache.capacity``)."""
LARGE_BATCH_OFFSETS = 50_000
"""Size of a batch from which partitions take turns, because each range costs Spark a task and a file.

In a smaller batch a fair share for each partition is worth that cost.
"""
LARGE_BATCH_TURNS = 4


@dataclass(frozen=True)
class Shares:
    """The number of offsets of each partition, and the partition that was favored last."""

    counts: dict[TopicPartition, int]
    rotation_start: TopicPartition | None


class BatchRequest(NamedTuple):
    """The request for a batch.

    Attributes:
        max_records: largest number of offsets.
        min_records: smallest number of offsets; with fewer there is no batch yet,
        max_wait_seconds: unless some have waited for so long; None for no limit.
    """

    max_records: int
    min_records: int = 1
    max_wait_seconds: float | None = None

    def is_satisfied(self, records: int, waited_seconds: float) -> bool:
        """Return whether so many offsets make a batch after this wait.

        >>> minutely = BatchRequest(500, min_records=500, max_wait_seconds=60.0)
        >>> [minutely.is_satisfied(*one) for one in ((120, 59.0), (120, 60.0), (500, 0.0), (0, 99.0))]
        [False, True, True, False]
        """
        has_waited = self.max_wait_seconds is not None and waited_seconds >= self.max_wait_seconds
        return records > 0 and (records >= self.min_records or has_waited)


@dataclass(frozen=True)
class Batch:
    """Offset ranges to process together, at most ``max_poll_records`` offsets in all.

    Attributes:
        ranges: half-open, disjoint, sorted ranges.
        deadline_seconds: longest processing time before the member leaves the group.
        membership_epoch: membership that planned it; a batch of a former one is refused at commit.
        rotation_start: partition after which the next shares begin.
        assignment_ids: assignment number by which each partition was planned; with a later one its part is
            not committed, and is processed again.
        skipped: single offsets that cannot be processed; the commit passes them, and they become pending.
        planning_seconds: time to read the log ends and to plan.
        offsets_left: number of offsets that were left for the next batches.
    """

    ranges: tuple[OffsetRange, ...]
    deadline_seconds: float
    membership_epoch: int = 0
    _: KW_ONLY
    rotation_start: TopicPartition | None = None
    assignment_ids: Mapping[TopicPartition, int] = field(default_factory=dict, repr=False, compare=False)
    skipped: tuple[OffsetRange, ...] = ()
    planning_seconds: float = field(default=0.0, repr=False, compare=False)
    offsets_left: int = field(default=0, repr=False, compare=False)

    @property
    def max_records(self) -> int:
        """The largest possible number of records; holes in the log make it smaller."""
        return sum(r.size for r in self.ranges)

    @property
    def spans(self) -> dict[TopicPartition, Span]:
        """The span of each partition; a batch of the live lane has one range per partition."""
        return {r.topic_partition: r.span for r in self.ranges}

    @property
    def processed(self) -> tuple[OffsetRange, ...]:
        """The ranges without the skipped offsets.

        >>> Batch((OffsetRange("t", 0, 7, 9),), 60.0, skipped=(OffsetRange("t", 0, 8, 9),)).processed
        (OffsetRange(topic='t', partition=0, start=7, end=8),)
        """
        if not self.skipped:
            return self.ranges
        return tuple(
            OffsetRange(*r.topic_partition, *rest) for r in self.ranges for rest in self._remainder(r)
        )

    def pending_of(self, tp: TopicPartition) -> tuple[Span, ...]:
        """Return the offsets of a partition that are pending after the commit."""
        return union(r.span for r in self.skipped if r.topic_partition == tp)

    def _remainder(self, part: OffsetRange) -> tuple[Span, ...]:
        return difference((part.span,), self.pending_of(part.topic_partition))

    def __str__(self) -> str:
        return join_some(self.ranges, max_items=1)


@dataclass
class Rotation:
    """The partition of a lane that was favored last; the next shares begin after it.

    Attributes:
        planned: the one in the last planned batch; ``committed``: the one in the last committed batch.
    """

    planned: TopicPartition | None = None
    committed: TopicPartition | None = None

    def reset(self) -> None:
        """Go back to the committed one, so that uncommitted ranges get the same shares again."""
        self.planned = self.committed


def fair_share(
    lag: Mapping[TopicPartition, int],
    max_records: int,
    rotation_start: TopicPartition | None,
    min_share: int = 1,
) -> Shares:
    """Return an equal share for each partition with lag; the others get what a partition cannot use.

    The remainder of an uneven division rotates, beginning with the partition after ``rotation_start``. If an
    equal share would be smaller than ``min_share`` (1 or more), shares of ``min_share`` rotate too. The
    partitions without one are first the next time.

    >>> A, B, C = (TopicPartition("orders", p) for p in range(3))
    >>> fair_share({A: 1000, B: 1000, C: 1000}, 300, A, min_share=150).counts.keys() == {B, C}
    True
    """
    _check_bound(max_records)
    in_line = _with_lag(lag)
    counts = [lag[tp] for tp in in_line]  # read once: with many partitions each look-up waits for memory
    level, odd = _water_level(sorted(counts), max_records)
    if level < min_share and any(count > level for count in counts):
        return greedy_share(lag, max_records, rotation_start, max_share=min_share)
    favoured = _rotate(
        [tp for tp, count in zip(in_line, counts, strict=True) if count > level], rotation_start
    )[:odd]
    each = [min(count, level) for count in counts]
    taken = dict(zip(in_line, each, strict=True))
    for tp in favoured:
        taken[tp] += 1
    return Shares(taken, favoured[-1] if favoured else rotation_start)


def greedy_share(
    lag: Mapping[TopicPartition, int],
    max_records: int,
    rotation_start: TopicPartition | None,
    max_share: int | None = None,
) -> Shares:
    """Take all, or at most ``max_share``, from one partition before the next.

    The next plan begins after the last partition.
    """
    _check_bound(max_records)
    left = max_records
    taken = {}
    for tp in _rotate(_with_lag(lag), rotation_start):
        if left == 0:
            break
        taken[tp] = min(lag[tp], left, max_share or left)
        left -= taken[tp]
        rotation_start = tp
    return Shares({tp: taken[tp] for tp in sorted(taken)}, rotation_start)


def rotate_large_batches(
    fair: Shares, lag: Mapping[TopicPartition, int], rotation_start: TopicPartition | None
) -> Shares:
    """Give the share of the partitions whose lag exceeds it to a quarter of them, in turns.

    The next plan gives it to the next ones. All other shares stay the same.

    >>> A, B, C, D, E = (TopicPartition("orders", p) for p in range(5))
    >>> lag = {A: 7, B: 900, C: 900, D: 900, E: 900}
    >>> rotate_large_batches(fair_share(lag, 107, None), lag, B).counts == {A: 7, C: 100}
    True
    """
    waiting = {tp: count for tp, count in lag.items() if count > fair.counts.get(tp, 0)}
    served = {tp: count for tp, count in fair.counts.items() if tp not in waiting}
    left = sum(fair.counts.values()) - sum(served.values())
    if not left:
        return fair
    shares = min(MAX_SHARES, math.ceil(len(waiting) / LARGE_BATCH_TURNS))
    turns = greedy_share(waiting, left, rotation_start, max_share=math.ceil(left / shares))
    return Shares(dict(sorted((served | turns.counts).items())), turns.rotation_start)


def plan_ranges(
    pending: Mapping[TopicPartition, Sequence[Span]],
    max_records: int,
    rotation_start: TopicPartition | None,
    *,
    greedy: bool = False,
) -> tuple[tuple[OffsetRange, ...], TopicPartition | None]:
    """Plan the next ranges from what is pending, the oldest offsets of each partition first.

    They are shared fairly or greedily. With more partitions than ``MAX_SHARES`` the shares rotate instead of
    becoming smaller. Each range costs Spark a task, a reader and a file. So 1,000 ranges of 100 records
    take longer than 64 of 1,560; 8 of 12,500 take longer than 2 of 50,000. A large batch has only a quarter
    of the partitions whose lag does not fit.
    """
    whole = {tp: union(spans) for tp, spans in pending.items()}
    lag = {tp: sum(end - start for start, end in spans) for tp, spans in whole.items()}
    if greedy:
        shares = greedy_share(lag, max_records, rotation_start)
    else:
        shares = fair_share(lag, max_records, rotation_start, min_share=max(1, max_records // MAX_SHARES))
        shares = (
            rotate_large_batches(shares, lag, rotation_start)
            if max_records >= LARGE_BATCH_OFFSETS
            else shares
        )
    ranges = tuple(
        OffsetRange(*tp, *span)
        for tp, count in shares.counts.items()
        for span in lowest_offsets(whole[tp], count)
    )
    return ranges, shares.rotation_start


def lowest_offsets(spans: Iterable[Span], count: int) -> Iterator[Span]:
    """Yield the lowest ``count`` offsets of ``spans``, which are disjoint and in order."""
    for start, end in spans:
        if count <= 0:
            return
        yield Span(start, min(end, start + count))
        count -= end - start


def _check_bound(max_records: int) -> None:
    if max_records < 1:
        raise InvalidSettingError(f"max_poll_records is {max_records}: wanted at least 1 record")


def _with_lag(lag: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    return sorted(tp for tp, count in lag.items() if count > 0)


def _rotate(partitions: list[TopicPartition], rotation_start: TopicPartition | None) -> list[TopicPartition]:
    """Return sorted partitions, beginning after ``rotation_start`` (which may no longer be owned)."""
    first = 0 if rotation_start is None else bisect_right(partitions, rotation_start)
    return partitions[first:] + partitions[:first]


def _water_level(lags: Sequence[int], remaining: int) -> tuple[int, int]:
    """Return the share of ``remaining`` for each partition, and how many partitions get one offset more.

    A partition with a smaller lag gets its lag. The lags are sorted.
    """
    for waiting, lag in zip(range(len(lags), 0, -1), lags, strict=True):
        if lag * waiting > remaining:  # so are all larger lags: these partitions share the rest
            return divmod(remaining, waiting)
        remaining -= lag
    return lags[-1] if lags else 0, 0
