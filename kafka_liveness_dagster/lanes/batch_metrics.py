"""What is measured of a batch when it has ended? What it took and gave, and a trace of its phases.

The same facts that a run's log and its materializations tell, for OpenTelemetry.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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
from kafka_liveness_dagster.telemetry.tell import labels_of, tell
from kafka_liveness_dagster.telemetry.traces import trace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
    from kafka_liveness_dagster.lanes.dead_letters import Landed
    from kafka_liveness_dagster.lanes.in_flight import InFlightWrite

_OF_BROKER = {"poll": "receive", "commit": "settle"}
_OURS = ("transform", "write", "dead letters")


@dataclass(frozen=True)
class BatchMetrics:
    """Those of one run.

    Attributes:
        run_id: Dagster's.
    """

    group_id: str = ""
    lane: Literal["live", "catch-up"] = "live"
    run_id: str = ""

    @contextmanager
    def traced(self, one: InFlightWrite) -> Iterator[None]:
        """Trace a batch to the end of this: its commit, or what it fails with."""
        try:
            yield
        except BaseException as error:
            self._trace(one, error)
            raise
        self._trace(one)

    def committed(
        self, one: InFlightWrite, landed: Landed, seconds: float, handed_over: Collection[TopicPartition]
    ) -> None:
        """A batch is in the table and committed, but for what its new owner writes again."""
        of_lane, written = {GROUP: self.group_id, LANE: self.lane}, landed.written
        tell(PROCESS_DURATION, seconds, {**of_lane, **_operation("process", "process")})
        took = one.phases.seconds()
        for name, kind in _OF_BROKER.items():
            tell(CLIENT_DURATION, took.get(name, 0.0), {**of_lane, **_operation(name, kind)})
        for name in took.keys() & set(_OURS):
            tell(PHASE_DURATION, took[name], {**of_lane, PHASE: name})
        self.processed(part for part in landed.batch.done if part.topic_partition not in handed_over)
        if written.rows is not None:
            tell(ROWS, written.rows, of_lane)
        again = {
            COMMIT_CONFLICT: written.attempts - written.unanswered - 1,
            COMMIT_STATE_UNKNOWN: written.unanswered,
        }
        for reason, count in again.items():
            if count > 0:
                tell(RETRIES, count, {**of_lane, REASON: reason})

    def processed(self, ranges: Iterable[OffsetRange]) -> None:
        """Count offsets that are processed from now on, by this run or by a dead one that could not count them."""
        offsets = Counter[tuple[tuple[str, str], ...]]()
        for part in ranges:
            offsets[tuple(labels_of(self.group_id, part.topic_partition).items())] += part.size
        for of, size in offsets.items():
            tell(OFFSETS, size, {**dict(of), LANE: self.lane})

    def _trace(self, one: InFlightWrite, failed: BaseException | None = None) -> None:
        topics = {part.topic for part in one.batch.ranges}
        attributes: dict[str, str | int] = {
            **_operation("process", "process"),
            GROUP: self.group_id,
            LANE: self.lane,
            **({TOPIC: topics.pop()} if len(topics) == 1 else {}),
            "dagster.run.id": self.run_id,
            "kafka_liveness.batch.ranges": str(one.batch),
            "kafka_liveness.batch.offsets": one.batch.max_records,
        }
        trace(f"process {attributes.get(TOPIC, self.group_id)}", one.phases, attributes, failed)


def _operation(name: str, kind: str) -> dict[str, str]:
    return {SYSTEM: "kafka", OPERATION: name, OPERATION_TYPE: kind}
