"""What did the memberships of one consumer come upon? Kept for the run's page; its log has a line of each kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kafka_liveness_dagster.core.names import listed
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition, difference, intersection

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from logging import Logger

    from kafka_liveness_dagster.core.resume import Resumed

CRASH_LAG = "crash lag %s, %d offsets, is owed, a partition for each range; live goes on behind it"
FORGOTTEN = (
    "%s, %d offsets, is below the committed offset and neither in the table nor owed: somebody's commit replaced what "
    "was owed, or the table lost it. It is owed again, a partition for each range"
)
LANDED = "recovered %s, %d offsets, from the table: a run died after it wrote them and before it committed them"
LOST = "lost: %s, %d offsets, expired before it was processed; going on without it"
IN_ORDER = "resumes in order, since there are too many owed ranges for a commit, or for max_ranges of CrashLag: %s"
PAUSED = "paused in both lanes until resume() lets it go on: %s"


class Recovery(Protocol):
    """Repeats what a dead writer of rows may have skipped between the table's commit and the commit of the offsets."""

    def __call__(self, ranges: Sequence[OffsetRange], deleted: Sequence[OffsetRange], /) -> None:
        """Repeat it for ``ranges``; the broker has ``deleted`` the records of the others."""


@dataclass
class Found:
    """What one consumer found.

    Attributes:
        jumped: crash lag, in the order of finding.
        lost: what expired before it was processed.
        forgotten: what is owed again: the commit that said so was replaced, or the table has lost it.
        recovered: ranges that were in the table and in neither commit log.
        on_recovered: repeats what their dead writer may have skipped; called before they are committed.
        debts: what this consumer last wrote down as owed, of each partition it ever had.
        topic_ids: of the topics as it first saw them.
        began: positions at which its live lane began to read, as far as they matter: the last, and those inside of
            crash lag.
    """

    jumped: list[OffsetRange] = field(default_factory=list)
    lost: list[OffsetRange] = field(default_factory=list)
    forgotten: list[OffsetRange] = field(default_factory=list)
    recovered: list[OffsetRange] = field(default_factory=list)
    on_recovered: Recovery | None = None
    debts: dict[TopicPartition, tuple[Span, ...]] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    began: dict[TopicPartition, frozenset[int]] = field(default_factory=dict)

    def recover(
        self, spans: Mapping[TopicPartition, Iterable[Span]], log_starts: Mapping[TopicPartition, int]
    ) -> list[OffsetRange]:
        """Repeat what the dead writer of these offsets may have skipped, once.

        Args:
            spans: offsets that are in the table and in neither commit log; the caller commits them after this.
            log_starts: the broker has deleted what lies below.

        Returns:
            The ranges of which it was repeated now. Nothing is logged yet: a slow handler would hold up the group.
        """
        known = self.recovered
        new = {tp: difference(found, [r.span for r in known if r.topic_partition == tp]) for tp, found in spans.items()}
        ranges = _ranges(new)
        if not ranges:
            return []
        if self.on_recovered is not None:
            deleted = {tp: intersection(found, (Span(0, log_starts[tp]),)) for tp, found in new.items()}
            there = {tp: difference(found, deleted[tp]) for tp, found in new.items()}
            self.on_recovered(_ranges(there), _ranges(deleted))
        self.recovered += ranges
        return ranges

    def tell(self, settled: Mapping[TopicPartition, Resumed], log: Logger) -> None:
        """These partitions were settled."""
        self.debts.update({tp: resumed.owed for tp, resumed in settled.items()})
        self.began.update({tp: self._began(tp, resumed) for tp, resumed in settled.items()})
        self.lose({tp: resumed.lost for tp, resumed in settled.items()}, log)
        forgotten = _ranges({tp: resumed.forgotten for tp, resumed in settled.items()})
        jumped = _ranges({tp: resumed.crash_lag for tp, resumed in settled.items()})
        landed = _ranges({tp: resumed.landed for tp, resumed in settled.items()})
        self.forgotten += forgotten
        self.jumped += jumped
        for told, ranges in ((LANDED, landed), (FORGOTTEN, forgotten), (CRASH_LAG, jumped)):
            if ranges:
                log.warning(told, listed(ranges), sum(found.size for found in ranges))
        paused = [f"{tp} at {resumed.position}" for tp, resumed in settled.items() if resumed.paused]
        in_order = [f"{tp} at {resumed.overflow.start}" for tp, resumed in settled.items() if resumed.overflow]
        for told, partitions in ((PAUSED, paused), (IN_ORDER, in_order)):
            if partitions:
                log.warning(told, listed(partitions))

    def lose(self, spans: Mapping[TopicPartition, Iterable[Span]], log: Logger) -> None:
        """These offsets expired before they were processed."""
        self.lost += (lost := _ranges(spans))
        if lost:
            log.error(LOST, listed(lost), sum(found.size for found in lost))

    def _began(self, tp: TopicPartition, resumed: Resumed) -> frozenset[int]:
        before = self.began.get(tp, ())
        inside = {start for start in before if any(span.start < start < span.end for span in resumed.owed)}
        return frozenset({*inside, resumed.position})


def _ranges(spans: Mapping[TopicPartition, Iterable[Span]]) -> list[OffsetRange]:
    return [OffsetRange(*tp, *span) for tp, found in spans.items() for span in found]
