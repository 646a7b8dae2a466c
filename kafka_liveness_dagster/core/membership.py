"""Who left the group, why, and does the live lane need a run? Group snapshots in, events out.

Level-triggered: the same snapshot gives the same answer however often it is asked, so a sensor tick that is
repeated changes nothing. Never asks Kafka or Dagster.

>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> running = PartitionSnapshot(TopicPartition("orders", 3), 70, LiveMark(Mark.RUNNING, "0badcafe"), 120)
>>> [gone] = departures([running], members=set(), fates={"0badcafe": RunFate.FAILED})
>>> gone.run, gone.reason.value, *map(str, gone.partitions)
('0badcafe', 'crashed', 'orders:3')
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.commit_log import LiveMark, Mark

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from kafka_liveness_dagster.core.offsets import Span, TopicPartition

_PATIENT_FAILURES = 3
_MAX_BACKOFF_SECONDS = 300.0
_FIRST_BACKOFF_SECONDS = 10.0
_OLDEST_PARTS = 10


class RunFate(Enum):
    """What became of a Dagster run; ``UNKNOWN`` for a run that Dagster does not list: deleted, or no run at all."""

    IN_PROGRESS = "in progress"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    UNKNOWN = "unknown"


class LeaveReason(Enum):
    """Why a member is gone without having released its partitions."""

    CRASHED = "crashed"
    POLL_TIMEOUT = "left by poll timeout"
    LOST = "lost its partitions"


class Expiry(Enum):
    """How near the broker's retention is to an owed range."""

    SAFE = "safe"
    NEAR = "about to expire"
    BEGUN = "partly expired"
    GONE = "expired"


def expiry(owed: Span, log_start: int, log_end: int) -> Expiry:
    """Whether owed data still exists, and whether it will for long.

    >>> from kafka_liveness_dagster.core.offsets import Span
    >>> expiry(Span(70, 120), log_start=100, log_end=190).value
    'partly expired'
    """
    # Rule 1: below the log start the broker has deleted it
    if owed.end <= log_start:
        return Expiry.GONE
    if owed.start < log_start:
        return Expiry.BEGUN
    # Rule 2: retention is at work, and this is in the oldest tenth of what it has left
    near = log_start > 0 and (owed.start - log_start) * _OLDEST_PARTS < log_end - log_start
    return Expiry.NEAR if near else Expiry.SAFE


@dataclass(frozen=True)
class PartitionSnapshot:
    """One partition as both commit logs and the broker show it."""

    topic_partition: TopicPartition
    committed: int | None
    mark: LiveMark | None
    log_end: int
    outstanding: tuple[Span, ...] = ()
    log_start: int = 0

    @property
    def lag(self) -> int:
        """Offsets the live lane has not committed; all of the log while nothing is committed."""
        return max(0, self.log_end - (self.log_start if self.committed is None else self.committed))

    @property
    def paused(self) -> bool:
        """Whether both lanes are held: no run would process it."""
        return self.mark is not None and self.mark.mark is Mark.PAUSED

    @property
    def owed(self) -> int:
        """Offsets the live lane jumped over that are not done."""
        return sum(span.size for span in self.outstanding)


@dataclass(frozen=True)
class MemberLeft:
    """A member of a run is gone and its partitions still carry its ``running`` mark."""

    run: str
    reason: LeaveReason
    partitions: tuple[TopicPartition, ...]


def departures(
    partitions: Iterable[PartitionSnapshot], members: AbstractSet[str], fates: Mapping[str, RunFate]
) -> list[MemberLeft]:
    """The runs that left ``running`` marks behind, and why; a released partition is no departure.

    Args:
        partitions: the group's partitions now.
        members: runs (8 hex digits) the coordinator lists now.
        fates: what became of the runs Dagster knows.
    """
    marked: dict[str, list[TopicPartition]] = {}
    for seen in partitions:
        if seen.mark is not None and seen.mark.mark is Mark.RUNNING:
            marked.setdefault(seen.mark.run, []).append(seen.topic_partition)
    found = ((run, _reason(fates.get(run, RunFate.UNKNOWN), is_member=run in members)) for run in sorted(marked))
    return [MemberLeft(run, reason, tuple(sorted(marked[run]))) for run, reason in found if reason is not None]


def _reason(fate: RunFate, *, is_member: bool) -> LeaveReason | None:
    # Rule 1: a run that is over owns nothing, though the broker may list it until its session times out
    if fate is RunFate.SUCCEEDED:
        return LeaveReason.LOST
    if fate in (RunFate.FAILED, RunFate.CANCELED):
        return LeaveReason.CRASHED
    # Rule 2: the coordinator's word counts for the living
    if is_member:
        return None
    # Rule 3: at work but not a member: its watchdog took it out, it comes back with its next poll
    return LeaveReason.POLL_TIMEOUT if fate is RunFate.IN_PROGRESS else LeaveReason.CRASHED


def wants_live_run(
    partitions: Sequence[PartitionSnapshot],
    left: Sequence[MemberLeft],
    *,
    in_progress: int,
    max_live_runs: int,
    seconds_since_failure: float,
    failures_in_a_row: int,
) -> bool:
    """Whether to start a live run: there is lag, or a crash to recover from, and room for one more run."""
    if in_progress >= max_live_runs or seconds_since_failure < restart_delay_seconds(failures_in_a_row):
        return False
    return any(seen.lag for seen in partitions if not seen.paused) or any(
        gone.reason is LeaveReason.CRASHED for gone in left
    )


def restart_delay_seconds(failures_in_a_row: int) -> float:
    """No delay after a crash; a run that fails every time is started more and more rarely, at last every 5 min."""
    if failures_in_a_row < _PATIENT_FAILURES:
        return 0.0
    doubled = min(failures_in_a_row - _PATIENT_FAILURES, 10)
    return min(_MAX_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * float(2**doubled))
