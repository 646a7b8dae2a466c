"""What does a run's log say of its batches? Of the first at once, then of all since the last line together.

A lane at work commits twice a second for days, and each line is a row in Dagster's event log: so there is one in ten
seconds, as short for a thousand partitions as for one. Which offsets a commit had is in the snapshot's own summary.
What is unusual is told at once.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from kafka_liveness_dagster.core.names import listed
from kafka_liveness_dagster.core.progress import TELL_EVERY_SECONDS, ProgressLog
from kafka_liveness_dagster.metadata import Tally, counted, number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from logging import Logger

    from typing_extensions import Self

    from kafka_liveness_dagster.core.fairness import Batch
    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.lanes.lane import Lane
    from kafka_liveness_dagster.spark.iceberg import Written

EVERY_SECONDS = TELL_EVERY_SECONDS


class BatchLines:
    """The lines of one run. As a context manager: none is left untold.

    Attributes:
        log: the run's.
    """

    def __init__(self, log: Logger) -> None:
        self.log = log
        self._since, self._last = Tally(), ""
        self._told_at = -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tell()

    def committed(
        self, batch: Batch, written: Written, seconds: float, handed_over: Sequence[TopicPartition] = ()
    ) -> None:
        """A batch is in the table and committed, but for what its new owner writes again."""
        if written.unanswered:
            self.log.warning(
                "the catalog did not say whether it took the commit of %s (%s): the table was asked, each row is once",
                batch,
                number(written.unanswered, "answer") + " lost",
            )
        if written.attempts - written.unanswered > 1:
            again = "its files" if written.rewritten else "the same offsets"
            self.log.info("another writer had touched %s: written at attempt %d", again, written.attempts)
        if handed_over:
            but = "written %s and committed but for %s, which its new owner writes again: %s in %.2f s"
            self.log.info(but, batch, listed(handed_over), counted(written.rows), seconds)
            return
        self._since.add(batch, written.rows, seconds)
        self._last, now = str(batch), time.monotonic()
        if now - self._told_at >= EVERY_SECONDS:
            self._told_at = now
            self._tell()

    def _tell(self) -> None:
        since, self._since = self._since, Tally()
        if since.batches == 1:
            self.log.info("committed %s: %s in %.2f s", self._last, counted(since.rows), since.seconds)
        elif since.batches:
            told = "committed %s up to %s: %s in %.2f s"
            self.log.info(told, number(since.batches, "batch"), self._last, counted(since.rows), since.seconds)


def listeners(
    batch: Batch, lane: Lane, log: Logger, liveness: Literal["poll", "progress"]
) -> tuple[Callable[[int, int], None] | None, Callable[[int, int], None]]:
    """Who is told of a batch's finished tasks, and who of any news of it; on Spark's turn, so neither may fail."""
    progress = ProgressLog(str(batch), time.monotonic(), TELL_EVERY_SECONDS)

    def progressed(_completed: int, _total: int) -> None:
        with suppress(Exception):  # a fence is raised where the batch is committed, not inside Spark's client
            lane.heartbeat()

    def reported(completed: int, total: int) -> None:
        line = progress.report(completed, total, time.monotonic())
        if line is not None:  # a line now and then, after the heartbeat
            with suppress(Exception):  # one line less of a batch's progress
                log.info("%s", line)

    return progressed if liveness == "progress" else None, reported
