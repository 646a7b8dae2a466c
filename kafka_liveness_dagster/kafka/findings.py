"""What did the memberships of one consumer come upon? Kept for the run's page, and told in its log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition

if TYPE_CHECKING:
    from logging import Logger

    from kafka_liveness_dagster.core.resume import Resumed


@dataclass
class Found:
    """What one consumer found.

    Attributes:
        jumped: crash lag, in the order of finding.
        lost: what expired before it was processed.
        forgotten: what is owed again: the commit that said so was replaced, or the table has lost it.
        debts: what this consumer last wrote down as owed, of each partition it ever had.
        topic_ids: of the topics as it first saw them.
    """

    jumped: list[OffsetRange] = field(default_factory=list)
    lost: list[OffsetRange] = field(default_factory=list)
    forgotten: list[OffsetRange] = field(default_factory=list)
    debts: dict[TopicPartition, tuple[Span, ...]] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)

    def tell(self, tp: TopicPartition, resumed: Resumed, log: Logger) -> None:
        """A partition was settled."""
        self.debts[tp] = resumed.owed
        for lost in resumed.lost:
            self.lose(tp, lost, log)
        for forgotten in resumed.forgotten:
            self.forgotten.append(OffsetRange(*tp, *forgotten))
            message = (
                "%s, %d offsets, is below the committed offset and neither in the table nor owed: somebody's commit "
                "replaced what was owed, or the table lost it. It is owed again and becomes a partition"
            )
            log.warning(message, self.forgotten[-1], forgotten.size)
        if resumed.paused:
            log.warning("%s is paused at %d, in both lanes: resume() lets it go on", tp, resumed.position)
        for skipped in resumed.crash_lag:
            self.jumped.append(OffsetRange(*tp, *skipped))
            message = "crash lag %s, %d offsets, is owed and becomes a partition; live goes on at %d"
            log.warning(message, self.jumped[-1], skipped.size, resumed.position)
        if resumed.overflow is not None:
            message = (
                "%s resumes in order at %d: its owed ranges are too many for a commit, or for max_ranges of CrashLag"
            )
            log.warning(message, tp, resumed.overflow.start)

    def lose(self, tp: TopicPartition, lost: Span, log: Logger) -> None:
        """Offsets expired before they were processed."""
        self.lost.append(OffsetRange(*tp, *lost))
        message = "lost: %s, %d offsets, expired before it was processed; going on without it"
        log.error(message, self.lost[-1], lost.size)
