"""Where does the live lane go on, and what does it owe from now on? One decision per assigned partition (KIP-333).

Told both commit logs and the ends of the log, it answers; the caller commits the answer before any record.

The worked example: committed 70, crashed at 100, log end 120 on return.

>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> facts = PartitionFacts(70, LiveMark(Mark.RUNNING, "0badcafe"), log_start=0, log_end=120)
>>> resume(TopicPartition("orders", 3), facts, ResumePolicy(enable_parallel_rebalance=True))
Resumed(position=120, owed=(Span(start=70, end=120),), skipped=Span(start=70, end=120))
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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

    @property
    def owed(self) -> tuple[Span, ...]:
        """What the first log says is owed."""
        return self.mark.owed if self.mark else ()

    @property
    def outstanding(self) -> tuple[Span, ...]:
        """What of it the second log does not say is done."""
        return self.second.outstanding(self.owed)

    @property
    def is_paused(self) -> bool:
        """Whether neither lane may process the partition."""
        return self.mark is not None and self.mark.mark is Mark.PAUSED


@dataclass(frozen=True)
class ResumePolicy:
    """What the user chose. ``enable_parallel_rebalance`` is KIP-333's mode, off by default as there.

    Attributes:
        min_crash_lag: with fewer offsets behind, resume in order.
        max_owed_ranges: with more ranges owed on a partition, resume in order; None for as many as a commit holds.
        on_data_loss: offsets that expired before they were processed are an error, or are skipped and reported.
    """

    enable_parallel_rebalance: bool = False
    auto_offset_reset: Literal["earliest", "latest", "error"] = "earliest"
    min_crash_lag: int = 1
    max_owed_ranges: int | None = None
    on_data_loss: Literal["raise", "skip"] = "raise"


@dataclass(frozen=True)
class Resumed:
    """Where the live lane goes on, what it owes, and what it has just skipped.

    ``overflow`` holds crash lag that was not skipped since its token would not fit the commit metadata, or
    ``max_owed_ranges``; ``lost`` what expired before the live lane processed it.
    """

    position: int
    owed: tuple[Span, ...] = ()
    skipped: Span | None = None
    overflow: Span | None = field(default=None, repr=False)
    lost: tuple[Span, ...] = field(default=(), repr=False)
    paused: bool = field(default=False, repr=False)


@dataclass
class Owned:
    """A partition that a member owns: offsets below ``committed`` are done, below ``position`` planned.

    ``arrival`` tells this ownership from others of the same partition by the same member. While it is ``paused``
    nothing of it is planned, in either lane.
    """

    committed: int
    position: int
    owed: tuple[Span, ...] = ()
    arrival: int = 0
    paused: bool = False


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
    return replace(found, position=stuck.end, owed=owed)


def _resume(tp: TopicPartition, facts: PartitionFacts, policy: ResumePolicy) -> Resumed:
    # Rule 1: a partition nobody committed
    if facts.committed is None:
        start = _reset(tp, facts, policy)
        _check_second(tp, facts, policy, start)
        return Resumed(start)
    start, lost = _not_expired(tp, facts, policy)
    _check_second(tp, facts, policy, start)
    mark = facts.mark
    owed = still_owed(facts.second, facts.owed)
    lag = Span(start, facts.log_end)
    # Rule 2: what was paused stays so, whoever owns it and however its owner ended
    if facts.is_paused:
        return Resumed(start, owed, lost=lost, paused=True)
    # Rule 3: a handover is not a crash
    crashed = mark is not None and mark.mark is Mark.RUNNING
    # Rule 4: below min_crash_lag the backlog costs less than a backfill
    if not (policy.enable_parallel_rebalance and crashed and lag.size >= max(1, policy.min_crash_lag)):
        return Resumed(start, owed, lost=lost)
    # Rule 5: a token that does not fit may not be half written
    jumped = union((*owed, lag))
    if not fits(jumped) or (policy.max_owed_ranges is not None and len(jumped) > policy.max_owed_ranges):
        return Resumed(start, owed, overflow=lag, lost=lost)
    # Rule 6: the live lane is fresh, the lag is owed
    return Resumed(lag.end, jumped, skipped=lag, lost=lost)


def _not_expired(tp: TopicPartition, facts: PartitionFacts, policy: ResumePolicy) -> tuple[int, tuple[Span, ...]]:
    """The live lane's first offset that was not deleted, and what was deleted before it.

    Owed ranges that expired stay owed: the catch-up lane, or who forgives them, records and reports those.
    """
    assert facts.committed is not None  # noqa: S101 - asked for committed partitions only
    if policy.on_data_loss == "raise" or facts.committed >= facts.log_start:
        check_log(tp, facts.committed, facts.log_start, facts.log_end)
        return facts.committed, ()
    return facts.log_start, (Span(facts.committed, facts.log_start),)


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
            "deleted before they were processed. Raise the topic's retention; to go on without them, and have them "
            "reported as lost, set on_data_loss='skip'"
        )


def _check_second(tp: TopicPartition, facts: PartitionFacts, policy: ResumePolicy, position: int) -> None:
    if policy.enable_parallel_rebalance and facts.second.end > position:
        raise SecondLogAheadError(
            f"the second commit log of {tp} reaches to {facts.second.end}, but the group begins at {position}: its "
            "offsets were reset or deleted, and crash lag in between would count as done. Delete what group_id"
            f"{CATCH_UP_SUFFIX} committed too (kafka-consumer-groups --delete-offsets --group …{CATCH_UP_SUFFIX})"
        )
