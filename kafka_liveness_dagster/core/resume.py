"""Where does the live lane go on, and what does it owe from now on? One decision per assigned partition (KIP-333).

Told both commit logs and the ends of the log, it answers; the caller commits the answer before any record.

The worked example: committed 70, crashed at 100, log end 120 on return.

>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> facts = PartitionFacts(70, LiveMark(Mark.RUNNING, "0badcafe"), log_start=0, log_end=120)
>>> resume(TopicPartition("orders", 3), facts, ResumePolicy(enable_parallel_rebalance=True))
Resumed(position=120, owed=(Span(start=70, end=120),), skipped=Span(start=70, end=120))
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from kafka_liveness_dagster.core.commit_log import CATCH_UP_SUFFIX, DoneLog, LiveMark, Mark, fits
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.offsets import Span, union

if TYPE_CHECKING:
    from kafka_liveness_dagster.core.offsets import TopicPartition


class NoCommittedOffsetError(KafkaLivenessError):
    """Nothing is committed and ``auto_offset_reset`` is ``error``."""


class DataExpiredError(KafkaLivenessError):
    """Committed offsets lie below the log start: the broker's retention deleted unprocessed records."""


class TopicRecreatedError(KafkaLivenessError):
    """Committed offsets lie above the log end: this is not the log they were committed for."""


class SecondLogAheadError(KafkaLivenessError):
    """The second commit log is of an earlier life of the group: believing it would take new crash lag for done."""


@dataclass(frozen=True)
class PartitionFacts:
    """What the broker says of one partition when it is assigned; offsets of ``read_committed``."""

    committed: int | None
    mark: LiveMark | None
    log_start: int
    log_end: int
    second: DoneLog = field(default_factory=DoneLog)


@dataclass(frozen=True)
class ResumePolicy:
    """What the user chose. ``enable_parallel_rebalance`` is KIP-333's mode, off by default as there."""

    enable_parallel_rebalance: bool = False
    auto_offset_reset: Literal["earliest", "latest", "error"] = "earliest"
    min_crash_lag: int = 1


@dataclass(frozen=True)
class Resumed:
    """Where the live lane goes on, what it owes, and what it has just skipped.

    ``overflow`` holds crash lag that was not skipped since its token would not fit the commit metadata.
    """

    position: int
    owed: tuple[Span, ...] = ()
    skipped: Span | None = None
    overflow: Span | None = field(default=None, repr=False)


@dataclass
class Owned:
    """A partition that a member owns: offsets below ``committed`` are done, below ``position`` planned.

    ``arrival`` tells this ownership from others of the same partition by the same member.
    """

    committed: int
    position: int
    owed: tuple[Span, ...] = ()
    arrival: int = 0


def resume(tp: TopicPartition, facts: PartitionFacts, policy: ResumePolicy, poison: tuple[Span, ...] = ()) -> Resumed:
    """What an assignment of ``tp`` means (KIP-333, Design). The caller commits the answer before any record.

    Args:
        tp: the partition.
        facts: what the broker says of it.
        policy: what the user chose.
        poison: offsets that may not stop the live lane again; it goes on behind one that is next, and owes it.

    Raises:
        NoCommittedOffsetError, DataExpiredError, TopicRecreatedError: the log is not where it was left.
        SecondLogAheadError: the second log is not of this life of the group.
    """
    found = _resume(tp, facts, policy)
    stuck = next((span for span in poison if span.start == found.position), None)
    owed = found.owed if stuck is None else union((*found.owed, stuck))
    if stuck is None or not fits(owed):
        return found
    return Resumed(stuck.end, owed, found.skipped, found.overflow)


def _resume(tp: TopicPartition, facts: PartitionFacts, policy: ResumePolicy) -> Resumed:
    # Rule 1: a partition nobody committed
    if facts.committed is None:
        start = _reset(tp, facts, policy)
        _check_second(tp, facts, policy, start)
        return Resumed(start)
    check_log(tp, facts.committed, facts.log_start, facts.log_end)
    _check_second(tp, facts, policy, facts.committed)
    owed = still_owed(facts.second, facts.mark.owed if facts.mark else ())
    lag = Span(facts.committed, facts.log_end)
    # Rule 2: a handover is not a crash
    crashed = facts.mark is not None and facts.mark.mark is Mark.RUNNING
    # Rule 3: below min_crash_lag the backlog costs less than a backfill
    if not (policy.enable_parallel_rebalance and crashed and lag.size >= max(1, policy.min_crash_lag)):
        return Resumed(lag.start, owed)
    # Rule 4: a token that does not fit may not be half written
    jumped = union((*owed, lag))
    if not fits(jumped):
        return Resumed(lag.start, owed, overflow=lag)
    # Rule 5: the live lane is fresh, the lag is owed
    return Resumed(lag.end, jumped, skipped=lag)


def still_owed(second: DoneLog, owed: tuple[Span, ...]) -> tuple[Span, ...]:
    """What of ``owed`` the first log must go on to carry: what is not done, or all where that would not fit.

    A range with done islands is more ranges than before, and what is done may stay in the first log.
    """
    rest = second.outstanding(owed)
    return rest if fits(rest) else owed


def _reset(tp: TopicPartition, facts: PartitionFacts, policy: ResumePolicy) -> int:
    if policy.auto_offset_reset == "error":
        raise NoCommittedOffsetError(
            f"{tp} has no committed offset and auto_offset_reset is 'error': commit one "
            f"({facts.log_start} is the log start, {facts.log_end} the log end) or choose 'earliest' or 'latest'"
        )
    return facts.log_end if policy.auto_offset_reset == "latest" else facts.log_start


def check_log(tp: TopicPartition, offset: int, log_start: int, log_end: int) -> None:
    """Whether the log is still the one in which ``offset`` is the next to process.

    Raises:
        DataExpiredError, TopicRecreatedError: it is not; with both offsets and the remedy.
    """
    if offset > log_end:
        raise TopicRecreatedError(
            f"{tp} is committed at {offset} but its log ends at {log_end}: the topic was deleted and created again. "
            "Reset the group's offsets (kafka-consumer-groups --reset-offsets) once you know why"
        )
    if offset < log_start:
        raise DataExpiredError(
            f"{tp} is committed at {offset} but its log starts at {log_start}: {log_start - offset} offsets were "
            "deleted before they were processed. Raise the topic's retention; to go on without them, reset the "
            "group's offsets (kafka-consumer-groups --reset-offsets --to-earliest)"
        )


def _check_second(tp: TopicPartition, facts: PartitionFacts, policy: ResumePolicy, position: int) -> None:
    if policy.enable_parallel_rebalance and facts.second.end > position:
        raise SecondLogAheadError(
            f"the second commit log of {tp} reaches to {facts.second.end}, but the group begins at {position}: its "
            "offsets were reset or deleted, and crash lag in between would count as done. Delete what group_id"
            f"{CATCH_UP_SUFFIX} committed too (kafka-consumer-groups --delete-offsets --group …{CATCH_UP_SUFFIX})"
        )
