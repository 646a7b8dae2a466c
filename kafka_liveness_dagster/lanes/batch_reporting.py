"""Report batches: log lines, progress of a slow batch, and OpenTelemetry metrics and traces.

>>> log = BatchProgress("p3:orders:70-120", began_seconds=100.0)
>>> log.next_line(2, 40, now_seconds=105.0)
>>> log.next_line(12, 40, now_seconds=115.0)
'p3:orders:70-120: 12 of 40 tasks after 15 s'
>>> log.next_line(13, 40, now_seconds=117.0)

A busy lane commits twice a second for days, and each line is a row in Dagster's event log. So there is one
line in ten seconds, as short for a thousand partitions as for one. The snapshot's summary has the offsets of
each commit. Unusual events are logged at once.

OpenTelemetry gets the same facts as the run's log and its materializations. Never fails a batch.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from kafka_liveness_dagster.core.names import format_count, join_some
from kafka_liveness_dagster.metadata import Tally, row_count_text
from kafka_liveness_dagster.telemetry.metrics import (
    CLIENT_DURATION,
    COMMIT_CONFLICT,
    COMMIT_STATE_UNKNOWN,
    GROUP,
    LANE,
    OFFSETS,
    OPERATION,
    OPERATION_TYPE,
    PHASE,
    PHASE_DURATION,
    PROCESS_DURATION,
    REASON,
    RETRIES,
    ROWS,
    SYSTEM,
    TOPIC,
)
from kafka_liveness_dagster.telemetry.otel import labels_of, record, record_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from logging import Logger

    from typing_extensions import Self

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
    from kafka_liveness_dagster.lanes.dead_letters import WriteOutcome
    from kafka_liveness_dagster.lanes.in_flight import InFlightWrite
    from kafka_liveness_dagster.lanes.protocols import Lane
    from kafka_liveness_dagster.spark.table.write import WriteResult


PROGRESS_EVERY_SECONDS = 10.0


@dataclass
class BatchProgress:
    """The progress lines of one batch.

    Attributes:
        name: name of the batch.
        began_seconds: time at which Spark began it.
        every_seconds: shortest time between two lines, and before the first.
    """

    name: str
    began_seconds: float
    every_seconds: float = PROGRESS_EVERY_SECONDS
    _reported_seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self._reported_seconds = self.began_seconds

    def next_line(self, completed: int, total: int, now_seconds: float) -> str | None:
        """Return the next line for the run's log; None if none is due.

        Args:
            completed: finished tasks of the running operation.
            total: tasks that it has now; 0 before Spark has planned it.
            now_seconds: current time, on the clock of ``began_seconds``.
        """
        # Rule 1: people read the log, so lines are rare; after a finished operation the next one begins
        if now_seconds - self._reported_seconds < self.every_seconds or completed >= total:
            return None
        self._reported_seconds = now_seconds
        return f"{self.name}: {completed:,} of {total:,} tasks after {now_seconds - self.began_seconds:.0f} s"


LINES_EVERY_SECONDS = PROGRESS_EVERY_SECONDS


class BatchLog:
    """The lines of one run; as a context manager it logs the remaining ones at its end.

    Attributes:
        log: log of the run.
    """

    def __init__(self, log: Logger) -> None:
        self.log = log
        self._since = Tally()
        self._last_batch = ""
        self._logged_at = -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log_batches()

    def log_committed(
        self, batch: Batch, written: WriteResult, seconds: float, handed_over: Sequence[TopicPartition] = ()
    ) -> None:
        """Log a committed batch, without the partitions that a new owner writes again."""
        if written.unknown_commits:
            self.log.warning(
                "The catalog's response to the commit of %s was lost (%s). Read the table: each row is "
                "there once",
                batch,
                format_count(written.unknown_commits, "response"),
            )
        if written.attempts - written.unknown_commits > 1:
            again = "its files" if written.rewrote_files else "the same offsets"
            self.log.info(
                "Another writer committed rows of %s: written at attempt %d", again, written.attempts
            )
        if handed_over:
            but = "Written %s, and committed without %s, which its new owner writes again: %s in %.2f s"
            self.log.info(but, batch, join_some(handed_over), row_count_text(written.rows), seconds)
            return
        self._since.add(batch, written.rows, seconds)
        self._last_batch = str(batch)
        now = time.monotonic()
        if now - self._logged_at >= LINES_EVERY_SECONDS:
            self._logged_at = now
            self._log_batches()

    def _log_batches(self) -> None:
        since, self._since = self._since, Tally()
        if since.batches == 1:
            self.log.info(
                "Committed %s: %s in %.2f s", self._last_batch, row_count_text(since.rows), since.seconds
            )
        elif since.batches:
            told = "Committed %s up to %s: %s in %.2f s"
            self.log.info(
                told,
                format_count(since.batches, "batch"),
                self._last_batch,
                row_count_text(since.rows),
                since.seconds,
            )


def progress_listeners(
    batch: Batch, lane: Lane, log: Logger, liveness: Literal["poll", "progress"]
) -> tuple[Callable[[int, int], None] | None, Callable[[int, int], None]]:
    """Return the callbacks for a batch's finished tasks, and for any progress of it.

    pyspark calls them, so neither may raise.
    """
    progress = BatchProgress(str(batch), time.monotonic(), PROGRESS_EVERY_SECONDS)

    def progressed(_completed: int, _total: int) -> None:
        with suppress(Exception):  # the fence is raised at the commit, not inside Spark's client
            lane.heartbeat()

    def reported(completed: int, total: int) -> None:
        line = progress.next_line(completed, total, time.monotonic())
        if line is not None:  # after the heartbeat, which must not wait for the log
            with suppress(Exception):  # a failure costs only one line of progress
                log.info("%s", line)

    return progressed if liveness == "progress" else None, reported


_BROKER_OPERATIONS = {"poll": "receive", "commit": "settle"}
_OWN_OPERATIONS = ("transform", "write", "dead letters")


@dataclass(frozen=True)
class BatchMetrics:
    """The batch metrics of one run.

    Attributes:
        run_id: id of the Dagster run.
    """

    group_id: str = ""
    lane: Literal["live", "catch-up"] = "live"
    run_id: str = ""

    @contextmanager
    def trace(self, one: InFlightWrite) -> Iterator[None]:
        """Trace a batch to the end of this block: its commit, or its error."""
        try:
            yield
        except BaseException as error:
            self._end_trace(one, error)
            raise
        self._end_trace(one)

    def record_committed(
        self,
        one: InFlightWrite,
        outcome: WriteOutcome,
        seconds: float,
        handed_over: Collection[TopicPartition],
    ) -> None:
        """Record a committed batch, without the partitions that a new owner writes again."""
        of_lane = {GROUP: self.group_id, LANE: self.lane}
        written = outcome.written
        record(PROCESS_DURATION, seconds, {**of_lane, **_operation_labels("process", "process")})
        took = one.phases.seconds()
        for name, kind in _BROKER_OPERATIONS.items():
            record(CLIENT_DURATION, took.get(name, 0.0), {**of_lane, **_operation_labels(name, kind)})
        for name in took.keys() & set(_OWN_OPERATIONS):
            record(PHASE_DURATION, took[name], {**of_lane, PHASE: name})
        self.record_processed(
            part for part in outcome.batch.processed if part.topic_partition not in handed_over
        )
        if written.rows is not None:
            record(ROWS, written.rows, of_lane)
        again = {
            COMMIT_CONFLICT: written.attempts - written.unknown_commits - 1,
            COMMIT_STATE_UNKNOWN: written.unknown_commits,
        }
        for reason, count in again.items():
            if count > 0:
                record(RETRIES, count, {**of_lane, REASON: reason})

    def record_processed(self, ranges: Iterable[OffsetRange]) -> None:
        """Count processed offsets, of this run or of a dead run that could not count them."""
        offsets = Counter[tuple[tuple[str, str], ...]]()
        for part in ranges:
            offsets[tuple(labels_of(self.group_id, part.topic_partition).items())] += part.size
        for of, size in offsets.items():
            record(OFFSETS, size, {**dict(of), LANE: self.lane})

    def _end_trace(self, one: InFlightWrite, failed: BaseException | None = None) -> None:
        topics = {part.topic for part in one.batch.ranges}
        attributes: dict[str, str | int] = {
            **_operation_labels("process", "process"),
            GROUP: self.group_id,
            LANE: self.lane,
            **({TOPIC: topics.pop()} if len(topics) == 1 else {}),
            "dagster.run.id": self.run_id,
            "kafka_liveness.batch.ranges": str(one.batch),
            "kafka_liveness.batch.offsets": one.batch.max_records,
        }
        record_trace(f"process {attributes.get(TOPIC, self.group_id)}", one.phases, attributes, failed=failed)


def _operation_labels(name: str, kind: str) -> dict[str, str]:
    return {SYSTEM: "kafka", OPERATION: name, OPERATION_TYPE: kind}
