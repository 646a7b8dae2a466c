"""Which offsets that a group has processed lie between two times? Those to process again; what is missing is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, difference, intersection
from kafka_liveness_dagster.core.witnesses import DataExpiredError
from kafka_liveness_dagster.kafka.times import offsets_at, window_bounds
from kafka_liveness_dagster.kafka.witness import check_second_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.witnesses import PartitionFacts
    from kafka_liveness_dagster.kafka.admin import Cluster


@dataclass(frozen=True)
class Processed:
    """What of a group's offsets lies between two times.

    Attributes:
        ranges: processed once.
        owed: not processed yet, and owed.
        ahead: how many the live lane has still to read, open transactions and partitions without a commit included.
    """

    ranges: tuple[OffsetRange, ...]
    owed: tuple[OffsetRange, ...]
    ahead: int

    def left_out(self) -> Iterator[str]:
        """A line for each reason why something of it is none of the ranges."""
        if self.owed:
            yield f"since they are owed and have partitions of their own: {', '.join(map(str, self.owed))}"
        if self.ahead:
            yield f"since the live lane comes to them: {self.ahead:,} offsets"


def processed(
    cluster: Cluster,
    group_id: str,
    topics: Sequence[str],
    begin_ms: int,
    end_ms: int | None,
    *,
    allow_expired: bool = False,
) -> Processed:
    """The offsets of a group whose timestamps lie from ``begin_ms`` to before ``end_ms``, both since the epoch.

    Args:
        cluster: where the group is.
        group_id: of the live lane.
        topics: only these; all that the group has commits of where there are none.
        begin_ms: of the window.
        end_ms: of the window; None for all that is committed.
        allow_expired: take what the broker still has of it.

    Raises:
        InvalidSettingError: the group has committed nothing.
        DataExpiredError: the broker has deleted records, maybe some of the window's.
        ForeignCommitError: an external commit replaced the second log; the next run with a table rewrites it.
    """
    known = cluster.partitions(list(topics) or cluster.topics())
    facts = cluster.facts(group_id, sorted(cluster.commits(group_id, known)))
    check_second_log(cluster, group_id, facts)
    if not facts:
        raise InvalidSettingError(f"group {group_id} has committed nothing{' of these topics' if topics else ''}")
    first: Mapping[TopicPartition, int | None]
    behind: Mapping[TopicPartition, int | None] = dict.fromkeys(facts)
    if end_ms is None:
        first = offsets_at(cluster, facts, begin_ms)
    else:
        first, behind = window_bounds(cluster, list(facts), begin_ms, end_ms)
    spans = {tp: _span(first[tp], behind[tp], one.log_end) for tp, one in facts.items()}
    new = cluster.log_bounds(tp for tp in known if topics and tp not in facts)
    if not allow_expired:
        _check_whole(facts, spans)
    return Processed(
        tuple(OffsetRange(*tp, *span) for tp, one in facts.items() for span in _done(one, spans[tp])),
        tuple(OffsetRange(*tp, *s) for tp, one in facts.items() for s in intersection(one.outstanding, (spans[tp],))),
        sum(max(0, spans[tp].end - max(spans[tp].start, one.committed or 0)) for tp, one in facts.items())
        + sum(end - start for start, end in new.values()),
    )


def _check_whole(facts: Mapping[TopicPartition, PartitionFacts], spans: Mapping[TopicPartition, Span]) -> None:
    cut = [tp for tp, one in facts.items() if 0 < one.log_start == spans[tp].start]
    if cut:
        raise DataExpiredError(
            f"the broker has deleted the first {facts[cut[0]].log_start:,} offsets of {cut[0]}"
            f"{f' and of {len(cut) - 1} more partitions' if cut[1:] else ''}, and nobody can tell whether some of them "
            "are of this time too"
        )


def _span(first: int | None, behind: int | None, log_end: int) -> Span:
    """Of one partition; there may be no record of the window, or none behind it."""
    start = log_end if first is None else first
    return Span(start, max(start, log_end if behind is None else behind))


def _done(one: PartitionFacts, asked: Span) -> tuple[Span, ...]:
    """What of these offsets the group has processed."""
    below = intersection((asked,), (Span(one.log_start, one.committed or 0),))
    return difference(below, (*one.outstanding, *one.reported))
