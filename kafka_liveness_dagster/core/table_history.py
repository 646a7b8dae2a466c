"""Rebuild what a table lacked at each moment, from the times and offsets of its commits.

Knows no clock, and reads neither table nor Kafka. Never fills a gap: before the first known commit there is
no step.

>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> orders = TopicPartition("orders", 3)
>>> first = TableCommit(10.0, {orders: (Span(0, 70),)})
>>> second = TableCommit(20.0, {orders: (Span(120, 150),)})
>>> for step in partition_steps(orders, [first, second], until=30.0):
...     print(step.since, step.until, step.position, step.missing)
10.0 20.0 70 ()
20.0 30.0 150 (Span(start=70, end=120),)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from kafka_liveness_dagster.core.offsets import Span, difference, intersection, union

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kafka_liveness_dagster.core.offsets import TopicPartition


class TableCommit(NamedTuple):
    """One commit of the table; times are seconds since the epoch.

    Attributes:
        written: the offsets that it wrote, by partition; empty for maintenance and for other writers.
        rows: number of added rows.
    """

    at: float
    written: Mapping[TopicPartition, tuple[Span, ...]]
    rows: int = 0


@dataclass(frozen=True)
class Step:
    """The state of one partition between two commits that changed it.

    Attributes:
        position: the first offset that the live lane had not written.
        missing: offsets below the position that the table lacked.
    """

    topic_partition: TopicPartition
    since: float
    until: float
    position: int
    missing: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Gap:
    """Offsets that the live lane passed.

    Attributes:
        appeared: when the table first had a later offset.
        closed: when the table had all of them; None while it lacks some.
        last_commit: the commit of the partition before the gap appeared.
    """

    topic_partition: TopicPartition
    span: Span
    appeared: float
    closed: float | None
    last_commit: float


def partition_steps(
    tp: TopicPartition,
    commits: Iterable[TableCommit],
    *,
    until: float,
    origin: int | None = None,
    base: Sequence[Span] = (),
    written_off: Sequence[Span] = (),
    skips: Iterable[tuple[float, int]] = (),
) -> list[Step]:
    """Return the steps of a partition, the oldest first.

    Args:
        tp: the partition.
        commits: commits of the table, the oldest first; the first one begins the history.
        until: end of the last step; later commits do not count.
        origin: the group's first offset; None for the first written one.
        base: offsets that the table had before the first commit.
        written_off: offsets that count as done.
        skips: when the live lane skipped ahead, and to which offset; the table shows it only with the next
            commit.
    """
    written = union(base)
    begin: int | None = origin
    steps: list[Step] = []
    changes = [(commit.at, commit.written.get(tp, ()), 0) for commit in commits]
    first = changes[0][0] if changes else until
    skipped_to = 0
    for at, spans, skip in sorted((*changes, *((at, (), end) for at, end in skips if at >= first))):
        if at >= until:
            break
        skipped_to = max(skipped_to, skip)
        written = union((*written, *spans))
        if begin is None and written:
            begin = written[0].start
        position = max(written[-1].end if written else 0, begin or 0, skipped_to)
        missing = difference((Span(begin or 0, position),), (*written, *written_off))
        if steps and (steps[-1].position, steps[-1].missing) == (position, missing):
            continue
        if steps:
            steps[-1] = replace(steps[-1], until=at)
        steps.append(Step(tp, at, until, position=position, missing=missing))
    return steps


def find_gaps(steps: Sequence[Step]) -> list[Gap]:
    """Return the gaps of one partition, in the order in which they appeared.

    >>> from kafka_liveness_dagster.core.offsets import TopicPartition
    >>> orders = TopicPartition("orders", 3)
    >>> lacking = Step(orders, 20.0, 30.0, 150, (Span(70, 120),))
    >>> [gap] = find_gaps([Step(orders, 10.0, 20.0, 70), lacking, Step(orders, 30.0, 40.0, 150)])
    >>> gap.span, gap.appeared, gap.closed, gap.last_commit
    (Span(start=70, end=120), 20.0, 30.0, 10.0)
    """
    found = []
    known: tuple[Span, ...] = ()
    before = steps[0].since if steps else 0.0
    for index, step in enumerate(steps):
        for span in difference(step.missing, known):
            closed = (later.since for later in steps[index:] if not intersection(later.missing, (span,)))
            gap = Gap(step.topic_partition, span, step.since, closed=next(closed, None), last_commit=before)
            found.append(gap)
        known = step.missing
        before = step.since
    return found
