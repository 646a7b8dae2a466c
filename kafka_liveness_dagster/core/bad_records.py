"""Find the records of a failed batch that fail alone, by halving the batch.

The caller tries the offsets and returns whether they fail. This module tries and passes nothing by itself.

>>> tried = []
>>> def fails(part):
...     tried.append(part)
...     return any(r.start <= 75 < r.end for r in part)
>>> print(*bisect_failing_offsets([OffsetRange("orders", 3, 70, 78)], fails, max_offsets=20))
p3:orders:75-76
>>> [str(r) for part in tried for r in part]  # 74-78 failed, for 70-74 did not
['p3:orders:70-74', 'p3:orders:74-76', 'p3:orders:74-75', 'p3:orders:75-76', 'p3:orders:76-78']
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.names import format_count, join_some
from kafka_liveness_dagster.core.offsets import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_MAX_REASONS = 3  # in one message


class BadRecordError(KafkaLivenessError):
    """Records fail, each of them alone, whatever is processed together with them.

    Attributes:
        offsets: ranges of one offset each.
    """

    def __init__(self, offsets: Iterable[OffsetRange], reasons: str, outcome: str) -> None:
        self.offsets = tuple(offsets)
        named = [f"offset {r.start} of {r.topic_partition}" for r in self.offsets]
        verb = "fails" if len(named) == 1 else "fail"
        super().__init__(
            f"{join_some(named)} {verb} alone{f', with {reasons}' if reasons else ''}. {outcome}"
        )


def join_reasons(errors: Iterable[str]) -> str:
    """Return the most frequent errors, each with its number of records if they differ.

    >>> join_reasons(["X: no"] * 2), join_reasons(["X: no", "Y: b", "Y: b", "Z: c", "W: d", "V: e"])
    ('X: no', '2 times Y: b; 1 time X: no; 1 time Z: c; 2 times other errors')
    """
    counts = Counter(errors)
    if len(counts) <= 1:
        return "".join(counts)
    named = [f"{format_count(number, 'time')} {error}" for error, number in counts.most_common(_MAX_REASONS)]
    others = counts.total() - sum(number for _, number in counts.most_common(_MAX_REASONS))
    return "; ".join([*named, *([f"{format_count(others, 'time')} other errors"] if others else [])])


class PendingDeadLetters(NamedTuple):
    """The pending dead letters: their number, the first of them, and its error."""

    offset_count: int = 0
    first_offsets: tuple[OffsetRange, ...] = ()
    reason: str = ""


class _Verdict(Enum):
    """The known result for offsets that are still to be tried."""

    UNKNOWN = "nothing"
    FAILS_WITH_OTHERS = "they must fail: they failed together with others that do not fail"
    FAILED = "they failed"


def bisect_failing_offsets(
    ranges: Sequence[OffsetRange], fails: Callable[[Sequence[OffsetRange]], bool], max_offsets: int
) -> list[OffsetRange]:
    """Return the offsets that fail alone, in the batch's order; at most one more than ``max_offsets``.

    Each found offset costs at most two tries per halving of the batch: 34 tries for 100,000 offsets.

    Args:
        ranges: batch that has failed.
        fails: tries some of its offsets; called with a single offset once, when it is found.
        max_offsets: number of found offsets above which the search ends.

    Returns:
        Nothing if no offset fails alone: some fail together, but neither half of them does.
    """
    found: list[OffsetRange] = []
    waiting = [(list(ranges), _Verdict.FAILS_WITH_OTHERS)]
    while waiting and len(found) <= max_offsets:
        part, known = waiting.pop()
        is_single = sum(r.size for r in part) == 1
        if (known is _Verdict.UNKNOWN or (is_single and known is _Verdict.FAILS_WITH_OTHERS)) and not fails(
            part
        ):
            if known is _Verdict.FAILS_WITH_OTHERS:
                return []
            continue
        if is_single:
            found += part
            continue
        first, second = split_in_half(part)
        if fails(first):
            waiting += [(second, _Verdict.UNKNOWN), (first, _Verdict.FAILED)]
        else:
            waiting.append((second, _Verdict.FAILS_WITH_OTHERS))
    return found


def split_in_half(ranges: Iterable[OffsetRange]) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """Return the same offsets in two lists of about equal size.

    >>> print(*split_in_half([OffsetRange("orders", 3, 70, 71), OffsetRange("orders", 4, 0, 3)])[0])
    p3:orders:70-71 p4:orders:0-1
    """
    parts = list(ranges)
    room = sum(part.size for part in parts) // 2
    first: list[OffsetRange] = []
    second: list[OffsetRange] = []
    for part in parts:
        cut = part.start + min(part.size, room)
        room -= cut - part.start
        first += [OffsetRange(*part.topic_partition, part.start, cut)] if cut > part.start else []
        second += [OffsetRange(*part.topic_partition, cut, part.end)] if cut < part.end else []
    return first, second
