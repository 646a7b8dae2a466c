"""Sorted, disjoint, half-open spans of offsets; a log of 500,000 offsets is a few of them.

It holds no partition names: the callers keep one list of spans for each partition.

>>> difference([(0, 120)], [(70, 100)])
[(0, 70), (100, 120)]
>>> intersection([(0, 70), (100, 120)], [(60, 110)])
[(60, 70), (100, 110)]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    Span = tuple[int, int]


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the same offsets as the fewest spans.

    >>> union([(100, 120), (0, 70), (60, 100)])
    [(0, 120)]
    """
    merged: list[Span] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def intersection(some: list[Span], others: list[Span]) -> list[Span]:
    """Return the offsets that both have."""
    common, i, j = [], 0, 0
    while i < len(some) and j < len(others):
        start, end = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        if start < end:
            common.append((start, end))
        if some[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return common


def difference(some: list[Span], others: list[Span]) -> list[Span]:
    """Return the offsets that only the first has."""
    rest, j = [], 0
    for start, end in some:
        while j < len(others) and others[j][1] <= start:
            j += 1
        k = j
        while k < len(others) and others[k][0] < end:
            if start < others[k][0]:
                rest.append((start, others[k][0]))
            start = max(start, others[k][1])  # noqa: PLW2901 - the rest of the span, behind the cut
            k += 1
        if start < end:
            rest.append((start, end))
    return rest


def runs(offsets: Iterable[int]) -> list[tuple[int, int, int]]:
    """Return sorted offsets as ``(start, end, count)``: consecutive offsets, each of them ``count`` times.

    >>> runs([0, 1, 2, 2, 3, 3, 7])
    [(0, 2, 1), (2, 4, 2), (7, 8, 1)]
    """
    found: list[tuple[int, int, int]] = []
    counted: list[list[int]] = []
    for offset in offsets:
        if counted and counted[-1][0] == offset:
            counted[-1][1] += 1
        else:
            counted.append([offset, 1])
    for offset, count in counted:
        if found and found[-1][1] == offset and found[-1][2] == count:
            found[-1] = (found[-1][0], offset + 1, count)
        else:
            found.append((offset, offset + 1, count))
    return found
