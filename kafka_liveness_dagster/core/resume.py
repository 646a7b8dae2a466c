"""Where does the live lane go on, and what does it owe from now on? One decision per assigned partition (KIP-333).

Told both commit logs, the ends of the log and what the table says it holds, it answers; the caller commits the answer
before any record.

The worked example: committed 70, crashed at 100, log end 120 on return.

>>> from kafka_liveness_dagster.core.commit_metadata import LiveMark
>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> from kafka_liveness_dagster.core.partition_state import PartitionFacts
>>> facts = PartitionFacts(70, LiveMark(Mark.RUNNING, "0badcafe"), log_start=0, log_end=120)
>>> resume(TopicPartition("orders", 3), facts, ResumePolicy(enable_parallel_rebalance=True))
Resumed(position=120, owed=(Span(start=70, end=120),), skipped=Span(start=70, end=120))
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from kafka_liveness_dagster.core.commit_metadata import DoneLog, Mark, Origin, fits
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.fencing import RETRIED
from kafka_liveness_dagster.core.offsets import Span, difference, intersection, size, union
from kafka_liveness_dagster.core.partition_state import check_identity, check_log, rows_missing

if TYPE_CHECKING:
    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.partition_state import PartitionFacts


class NoCommittedOffsetError(KafkaLivenessError):
    """Nothing is committed and ``auto_offset_reset`` is ``error``."""


@dataclass(frozen=True)
class ResumePolicy:
    """What the user chose. ``enable_parallel_rebalance`` is KIP-333's mode, off by default as there.

    Attributes:
        min_crash_lag: with fewer offsets behind, resume in order.
        max_owed_ranges: with more ranges owed on a partition, resume in order; None for as many as a commit holds.
        on_data_loss: offsets that expired before they were processed are an error, or are written off and reported.
        on_missing_rows: committed offsets whose rows the table has lost are an error, or are owed again.
    """

    enable_parallel_rebalance: bool = False
    auto_offset_reset: Literal["earliest", "latest", "error"] = "earliest"
    min_crash_lag: int = 1
    max_owed_ranges: int | None = None
    on_data_loss: Literal["raise", "write_off"] = "raise"
    on_missing_rows: Literal["raise", "crash_lag"] = "raise"

    @property
    def after_fence(self) -> str:
        """The outcome of a batch whose member lost its partitions before the commit, as a clause.

        >>> ResumePolicy(enable_parallel_rebalance=True).after_fence
        'with enable_parallel_rebalance the batch becomes crash lag, pending: the live lane skips ahead to the log end'
        """
        if not self.enable_parallel_rebalance:
            return RETRIED
        becomes = "with enable_parallel_rebalance the batch becomes crash lag, pending"
        return f"{becomes}: the live lane skips ahead to the log end{self._if_enough}"

    @property
    def after_error(self) -> str:
        """What the next live run does after one that ended by an error, as a sentence.

        >>> ResumePolicy().after_error
        'The next live run resumes at the committed offsets'
        """
        if not self.enable_parallel_rebalance:
            return "The next live run resumes at the committed offsets"
        return (
            f"The next live run skips ahead to the log end{self._if_enough}: with enable_parallel_rebalance all that "
            "the broker has by then and that is not committed becomes crash lag, pending, a partition for each range"
        )

    @property
    def _if_enough(self) -> str:
        few = self.min_crash_lag
        return f" if at least {few:,} offsets of a partition wait there" if few > 1 else ""


@dataclass(frozen=True)
class Resumed:
    """Where the live lane goes on, what it owes, and what it has just skipped.

    ``crash_lag`` is what of ``skipped`` is owed: all of it but what is in the table already. That is ``landed``: rows
    of a dead run that were never committed and are not written again. ``overflow`` holds crash
    lag that was not skipped since its token would not fit the commit metadata, or ``max_owed_ranges``; ``lost`` what
    expired before the live lane processed it; ``forgotten`` what is owed again, though nobody remembered it; ``again``
    and ``second`` what the first log's mark and the second log say from now on.
    """

    position: int
    owed: tuple[Span, ...] = ()
    skipped: Span | None = None
    overflow: Span | None = field(default=None, repr=False)
    lost: tuple[Span, ...] = field(default=(), repr=False)
    paused: bool = field(default=False, repr=False)
    forgotten: tuple[Span, ...] = field(default=(), repr=False)
    again: Span | None = field(default=None, repr=False)
    crash_lag: tuple[Span, ...] = field(default=(), repr=False, compare=False)
    landed: tuple[Span, ...] = field(default=(), repr=False, compare=False)
    second: DoneLog = field(default_factory=DoneLog, repr=False, compare=False)

    @property
    def origin(self) -> Origin | None:
        """Where the group's life on this log began."""
        return self.second.origin


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
    again: Span | None = None
    origin: Origin | None = None

    def owing(self, spans: tuple[Span, ...]) -> Owned:
        """The same when these are owed too."""
        return replace(self, owed=union((*self.owed, *spans))) if spans else self

    def has_room(self, spans: tuple[Span, ...]) -> bool:
        """Whether its commit can say that these are owed too."""
        return fits(self.owing(spans).owed, self.origin, self.again)


def resume(tp: TopicPartition, facts: PartitionFacts, policy: ResumePolicy, poison: tuple[Span, ...] = ()) -> Resumed:
    """What an assignment of ``tp`` means (KIP-333, Design). The caller commits the answer before any record.

    Args:
        tp: the partition.
        facts: what the broker and the table say of it.
        policy: what the user chose.
        poison: offsets that may not stop the live lane again; it goes on behind one that is next, and owes it.

    Raises:
        NoCommittedOffsetError, DataExpiredError, TopicRecreatedError: the log is not where it was left.
        RowsMissingError: the table is not as it was left.
    """
    check_identity(tp, facts)
    found = _resume(tp, facts, policy)
    stuck = next((span for span in poison if span.start == found.position), None)
    owed = found.owed if stuck is None else union((*found.owed, stuck))
    if stuck is None or not fits(owed, found.origin, found.again):
        return found
    # The second log may say of another pass over these offsets that this one is done
    return replace(found, position=stuck.end, owed=owed, second=found.second.without((stuck,)))


def _resume(tp: TopicPartition, facts: PartitionFacts, policy: ResumePolicy) -> Resumed:
    # Rule 1: where the last commit is, or the reset policy for a partition nobody committed
    start, lost = _not_expired(tp, facts, policy) if facts.committed is not None else (_reset(tp, facts, policy), ())
    origin, again = _origin(facts, start), _again(facts, start)
    landed = _landed(facts, again)
    lost = difference(lost, landed)
    # Rule 2: what is below it and not accounted for is owed again, or the table is not as it was left
    missing = difference(facts.missing(start), lost)
    if missing and facts.proves_loss and policy.on_missing_rows == "raise":
        raise rows_missing(tp, facts, missing)
    gone = intersection(missing, (Span(0, facts.log_start),))
    if gone and (facts.vouched or policy.on_data_loss == "write_off"):
        missing, lost = difference(missing, gone), union((*lost, *gone))
    second = _second(facts, origin, start, (missing, lost))
    owed = intersection(still_owed(facts), (Span(0, start),))
    if missing and not _has_room(union((*owed, *missing)), policy, origin, again):
        back = max(missing[0].start, facts.log_start)  # in order from there: dear, but nothing is left out
        owed, overflow = intersection(owed, (Span(0, back),)), Span(back, start)
        second = replace(second.without((overflow,)), reported=second.reported)
        expired = intersection(landed, (Span(0, facts.log_start),))
        found = Resumed(back, owed, overflow=overflow, lost=lost, again=again, second=second, landed=expired)
        return replace(found, paused=facts.is_paused)
    owed = union((*owed, *missing))
    # Only what has expired stays as it landed: the rest comes again, unless the live lane skips it
    expired = intersection(landed, (Span(0, start),))
    found = Resumed(start, owed, lost=lost, forgotten=missing, again=again, second=second, landed=expired)
    lag = Span(start, facts.log_end)
    left = difference((lag,), landed)
    # Rule 3: what was paused stays so, whoever owns it and however its owner ended
    if facts.is_paused:
        return replace(found, paused=True)
    # Rule 4: a handover is not a crash
    crashed = facts.mark is not None and facts.mark.mark is Mark.RUNNING
    # Rule 5: below min_crash_lag the backlog costs less than a backfill
    if not (policy.enable_parallel_rebalance and crashed and size(left) >= max(1, policy.min_crash_lag)):
        return found
    # Rule 6: a token that does not fit may not be half written
    jumped = union((*owed, *left))
    if not _has_room(jumped, policy, origin, again):
        return replace(found, overflow=lag)
    # Rule 7: the live lane is fresh, the lag is owed
    return replace(found, position=lag.end, owed=jumped, skipped=lag, crash_lag=left, landed=landed)


def _landed(facts: PartitionFacts, again: Span | None) -> tuple[Span, ...]:
    """Return offsets that a dead run had written and not committed: their rows need not be written again."""
    if facts.account is None or facts.committed is None:
        return ()
    redone = [span for span in (again, facts.mark.again if facts.mark else None) if span is not None]
    return difference(intersection(facts.account.done, (Span(facts.committed, facts.log_end),)), redone)


def _not_expired(tp: TopicPartition, facts: PartitionFacts, policy: ResumePolicy) -> tuple[int, tuple[Span, ...]]:
    """The live lane's first offset that was not deleted, and what was deleted before it.

    Owed ranges that expired stay owed: the catch-up lane, or who forgives them, records and reports those.
    """
    assert facts.committed is not None  # noqa: S101 - asked for committed partitions only
    if policy.on_data_loss == "raise" or facts.committed >= facts.log_start:
        check_log(tp, facts.committed, facts.log_start, facts.log_end)
        return facts.committed, ()
    return facts.log_start, (Span(facts.committed, facts.log_start),)


def _origin(facts: PartitionFacts, start: int) -> Origin:
    """Where the life of the group begins that is written down from now on."""
    # A stranger's commit, and nobody to hold it against: what lies below it is not ours to answer for
    known = None if facts.account is None and facts.mark is None else facts.origin
    topic_id = facts.topic_id or (known.topic_id if known else "")
    return Origin(start if known is None else min(known.start, start), topic_id)


def _again(facts: PartitionFacts, start: int) -> Span | None:
    """What is to be processed although it was done: the group's offsets were set back, by whomever."""
    known = [] if facts.mark is None or facts.mark.again is None else [facts.mark.again]
    if facts.mark is None and facts.account is not None and facts.account.done:
        known.append(Span(start, facts.account.done[-1].end))
    if facts.second.end > start:
        known.append(Span(start, facts.second.end))
    known = [span for span in known if span.end > start or intersection((span,), facts.outstanding)]
    if not known:
        return None
    return Span(min(span.start for span in known), max(span.end for span in known))


def _second(
    facts: PartitionFacts, origin: Origin, start: int, missing_and_lost: tuple[tuple[Span, ...], tuple[Span, ...]]
) -> DoneLog:
    """The second log as it must be before the first one says the same: nothing that is owed from now on is done."""
    missing, lost = missing_and_lost
    ahead = (Span(start, facts.second.end),) if facts.second.end > start else ()
    log = facts.second.without((*missing, *ahead)) if missing or ahead else facts.second
    if log.missing and facts.account is not None:  # rows that are there again
        log = replace(log, missing=difference(log.missing, facts.account.done))
    return replace(log, reported=union((*log.reported, *lost)), origin=origin)


def _has_room(owed: tuple[Span, ...], policy: ResumePolicy, origin: Origin, again: Span | None) -> bool:
    most = policy.max_owed_ranges
    return fits(owed, origin, again) and (most is None or len(owed) <= most)


def still_owed(facts: PartitionFacts) -> tuple[Span, ...]:
    """What the first log must go on to carry of what it owes: what is not done, or all where that would not fit.

    A range with done islands is more ranges than before, and what is done may stay in the first log. Offsets that only
    the table has stay until a catch-up run has recorded them: it repeats what their dead writer may have skipped.
    """
    rest = union((*facts.outstanding, *facts.recordable))
    return rest if fits(rest, facts.origin, facts.mark.again if facts.mark else None) else facts.owed


def _reset(tp: TopicPartition, facts: PartitionFacts, policy: ResumePolicy) -> int:
    if policy.auto_offset_reset == "error":
        raise NoCommittedOffsetError(
            f"{tp} has no committed offset and auto_offset_reset is 'error': commit one "
            f"({facts.log_start} is the log start, {facts.log_end} the log end) or choose 'earliest' or 'latest'"
        )
    return facts.log_end if policy.auto_offset_reset == "latest" else facts.log_start
