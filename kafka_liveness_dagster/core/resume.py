"""Decide where the live lane continues and which offsets are pending, per assigned partition (KIP-333).

Decides from both commit logs, the bounds of the log and the table's ledger; never reads or commits itself.
The caller commits the decision before it processes any record.

The worked example: committed 70, crashed at 100, log end 120 on return.

>>> from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata
>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> from kafka_liveness_dagster.core.partition_state import PartitionState
>>> state = PartitionState(70, LiveCommitMetadata(OwnerState.RUNNING, "0badcafe"), log_start=0, log_end=120)
>>> decide_resume(TopicPartition("orders", 3), state, ResumePolicy(enable_parallel_rebalance=True))
ResumeDecision(position=120, pending=(Span(start=70, end=120),), skipped=Span(start=70, end=120))
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from kafka_liveness_dagster.core.commit_metadata import (
    CatchUpCommitMetadata,
    GroupOrigin,
    OwnerState,
    fits_commit_metadata,
)
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.fencing import RETRY_OUTCOME
from kafka_liveness_dagster.core.offsets import Span, difference, intersection, size, union
from kafka_liveness_dagster.core.partition_state import (
    check_identity,
    check_offset_in_log,
    rows_missing_error,
)

if TYPE_CHECKING:
    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.partition_state import PartitionState


class NoCommittedOffsetError(KafkaLivenessError):
    """Nothing is committed and ``auto_offset_reset`` is ``error``."""


@dataclass(frozen=True)
class ResumePolicy:
    """The user's settings. ``enable_parallel_rebalance`` is KIP-333's mode, off by default as there.

    Attributes:
        min_crash_lag: with fewer offsets behind, resume in order.
        max_owed_ranges: with more pending ranges on a partition, resume in order; None for as many as a
            commit's metadata can hold.
        on_data_loss: offsets that expired before they were processed are an error, or are written off and
            reported.
        on_missing_rows: committed offsets whose rows the table has lost are an error, or are pending again.
    """

    enable_parallel_rebalance: bool = False
    auto_offset_reset: Literal["earliest", "latest", "error"] = "earliest"
    min_crash_lag: int = 1
    _: KW_ONLY
    max_owed_ranges: int | None = None
    on_data_loss: Literal["raise", "write_off"] = "raise"
    on_missing_rows: Literal["raise", "crash_lag"] = "raise"

    @property
    def outcome_after_fence(self) -> str:
        """The outcome of a batch whose member lost its partitions before the commit, as a clause.

        >>> ResumePolicy(enable_parallel_rebalance=True).outcome_after_fence
        'with enable_parallel_rebalance the batch becomes crash lag, pending: the live lane skips ahead to...'
        """
        if not self.enable_parallel_rebalance:
            return RETRY_OUTCOME
        becomes = "with enable_parallel_rebalance the batch becomes crash lag, pending"
        return f"{becomes}: the live lane skips ahead to the log end{self._crash_lag_condition}"

    @property
    def outcome_after_error(self) -> str:
        """What the next live run does after one that ended by an error, as a sentence.

        >>> ResumePolicy().outcome_after_error
        'The next live run resumes at the committed offsets'
        """
        if not self.enable_parallel_rebalance:
            return "The next live run resumes at the committed offsets"
        return (
            f"The next live run skips ahead to the log end{self._crash_lag_condition}. With "
            "enable_parallel_rebalance all uncommitted offsets up to there become crash lag, pending, a "
            "partition for each range"
        )

    @property
    def _crash_lag_condition(self) -> str:
        few = self.min_crash_lag
        return f" if at least {few:,} offsets of a partition wait there" if few > 1 else ""


@dataclass(frozen=True)
class ResumeDecision:
    """The live lane's next position, the pending ranges, and the range that it has just skipped.

    Attributes:
        crash_lag: offsets of ``skipped`` that are pending: all but those in the table already.
        written_uncommitted: rows of a dead run that are in the table and were never committed; they are not
            written again.
        overflow: crash lag that was not skipped, because its range would not fit the commit metadata or
            ``max_owed_ranges``.
        lost: offsets that expired before the live lane processed them.
        forgotten_pending: offsets that are pending again, though no record listed them.
        reprocess: the same field of the live commit log from now on.
        catch_up_log: the catch-up commit log from now on.
    """

    position: int
    pending: tuple[Span, ...] = ()
    skipped: Span | None = None
    _: KW_ONLY
    overflow: Span | None = field(default=None, repr=False)
    lost: tuple[Span, ...] = field(default=(), repr=False)
    paused: bool = field(default=False, repr=False)
    forgotten_pending: tuple[Span, ...] = field(default=(), repr=False)
    reprocess: Span | None = field(default=None, repr=False)
    crash_lag: tuple[Span, ...] = field(default=(), repr=False, compare=False)
    written_uncommitted: tuple[Span, ...] = field(default=(), repr=False, compare=False)
    catch_up_log: CatchUpCommitMetadata = field(
        default_factory=CatchUpCommitMetadata, repr=False, compare=False
    )

    @property
    def origin(self) -> GroupOrigin | None:
        """Origin of the group on this log."""
        return self.catch_up_log.origin


@dataclass
class OwnedPartition:
    """A partition that a member owns: offsets below ``committed`` are done, below ``position`` planned.

    ``assignment_id`` distinguishes this ownership from others of the same partition by the same member. While
    ``is_paused`` is true, neither lane plans any of its offsets.
    """

    committed: int
    position: int
    pending: tuple[Span, ...] = ()
    _: KW_ONLY
    assignment_id: int = 0
    is_paused: bool = False
    reprocess: Span | None = None
    origin: GroupOrigin | None = None

    def with_pending(self, spans: tuple[Span, ...]) -> OwnedPartition:
        """Return the partition with these offsets pending too."""
        return replace(self, pending=union((*self.pending, *spans))) if spans else self

    def fits_commit_metadata(self, spans: tuple[Span, ...]) -> bool:
        """Return whether its commit metadata can hold these pending offsets too."""
        return fits_commit_metadata(self.with_pending(spans).pending, self.origin, self.reprocess)


def decide_resume(
    tp: TopicPartition, state: PartitionState, policy: ResumePolicy, poison: tuple[Span, ...] = ()
) -> ResumeDecision:
    """Decide where the live lane resumes ``tp`` after an assignment (KIP-333, Design).

    The caller commits the decision before it processes any record.

    Args:
        tp: the partition.
        state: its records and its log bounds.
        policy: the user's settings.
        poison: offsets that may not stop the live lane again. If such an offset is next, the live lane
            continues after it, and the offset is pending.

    Raises:
        NoCommittedOffsetError, DataExpiredError, TopicRecreatedError: the log does not match the commits.
        RowsMissingError: the table has lost committed rows.
    """
    check_identity(tp, state)
    found = _decide_resume(tp, state, policy)
    stuck = next((span for span in poison if span.start == found.position), None)
    pending = found.pending if stuck is None else union((*found.pending, stuck))
    if stuck is None or not fits_commit_metadata(pending, found.origin, found.reprocess):
        return found
    # The catch-up commit log may have these offsets as done from an earlier pass: they would never be retried
    return replace(
        found, position=stuck.end, pending=pending, catch_up_log=found.catch_up_log.reopen((stuck,))
    )


def _decide_resume(tp: TopicPartition, state: PartitionState, policy: ResumePolicy) -> ResumeDecision:
    # Rule 1: start at the last commit, or by the reset policy for a partition without a commit
    start, lost = (
        _skip_expired(tp, state, policy)
        if state.committed is not None
        else (_reset_position(tp, state, policy), ())
    )
    origin = _origin(state, start)
    again = _ranges_to_reprocess(state, start)
    written_uncommitted = _written_uncommitted(state, again)
    lost = difference(lost, written_uncommitted)
    # Rule 2: offsets below the start that no record closes are pending again, or the table has lost rows
    missing = difference(state.missing_rows(start), lost)
    if missing and state.proves_loss and policy.on_missing_rows == "raise":
        raise rows_missing_error(tp, state, missing)
    gone = intersection(missing, (Span(0, state.log_start),))
    if gone and (state.is_committed_by_this_package or policy.on_data_loss == "write_off"):
        missing = difference(missing, gone)
        lost = union((*lost, *gone))
    second = _updated_catch_up_log(state, origin, start, missing_and_lost=(missing, lost))
    pending = intersection(pending_to_keep(state), (Span(0, start),))
    if missing and not _fits_commit_metadata(union((*pending, *missing)), policy, origin, again=again):
        back = max(missing[0].start, state.log_start)  # resume there in order: slow, but complete
        pending = intersection(pending, (Span(0, back),))
        overflow = Span(back, start)
        second = replace(second.reopen((overflow,)), written_off=second.written_off)
        expired = intersection(written_uncommitted, (Span(0, state.log_start),))
        found = ResumeDecision(
            back,
            pending,
            overflow=overflow,
            lost=lost,
            reprocess=again,
            catch_up_log=second,
            written_uncommitted=expired,
        )
        return replace(found, paused=state.is_paused)
    pending = union((*pending, *missing))
    # Only expired offsets keep the rows that a dead run wrote; the others are reprocessed, unless the live
    # lane skips them
    expired = intersection(written_uncommitted, (Span(0, start),))
    found = ResumeDecision(
        start,
        pending,
        lost=lost,
        forgotten_pending=missing,
        reprocess=again,
        catch_up_log=second,
        written_uncommitted=expired,
    )
    lag = Span(start, state.log_end)
    left = difference((lag,), written_uncommitted)
    # Rule 3: a paused partition stays paused, whatever happened to its owner
    if state.is_paused:
        return replace(found, paused=True)
    # Rule 4: a handover is not a crash
    crashed = state.live_metadata is not None and state.live_metadata.owner_state is OwnerState.RUNNING
    # Rule 5: below min_crash_lag the backlog costs less than a backfill
    if not (policy.enable_parallel_rebalance and crashed and size(left) >= max(1, policy.min_crash_lag)):
        return found
    # Rule 6: pending ranges that do not fit the metadata would be lost, so resume in order
    jumped = union((*pending, *left))
    if not _fits_commit_metadata(jumped, policy, origin, again=again):
        return replace(found, overflow=lag)
    # Rule 7: the live lane skips to the log end, and the lag becomes pending
    return replace(
        found,
        position=lag.end,
        pending=jumped,
        skipped=lag,
        crash_lag=left,
        written_uncommitted=written_uncommitted,
    )


def _written_uncommitted(state: PartitionState, again: Span | None) -> tuple[Span, ...]:
    """Return offsets that a dead run had written and not committed: their rows need not be written again."""
    if state.ledger_entry is None or state.committed is None:
        return ()
    redone = [
        span
        for span in (again, state.live_metadata.reprocess if state.live_metadata else None)
        if span is not None
    ]
    return difference(
        intersection(state.ledger_entry.written, (Span(state.committed, state.log_end),)), redone
    )


def _skip_expired(
    tp: TopicPartition, state: PartitionState, policy: ResumePolicy
) -> tuple[int, tuple[Span, ...]]:
    """Return the live lane's first offset that was not deleted, and the deleted offsets before it.

    Pending ranges that expired stay pending: the catch-up lane or ``write-off`` records and reports them.
    """
    assert state.committed is not None  # noqa: S101 - asked for committed partitions only
    if policy.on_data_loss == "raise" or state.committed >= state.log_start:
        check_offset_in_log(tp, state.committed, state.log_start, log_end=state.log_end)
        return state.committed, ()
    return state.log_start, (Span(state.committed, state.log_start),)


def _origin(state: PartitionState, start: int) -> GroupOrigin:
    """Return the group's origin, as commits record it from now on."""
    # After an external commit, without a ledger, no record proves the offsets below it: begin there
    known = None if state.ledger_entry is None and state.live_metadata is None else state.origin
    topic_id = state.topic_id or (known.topic_id if known else "")
    return GroupOrigin(start if known is None else min(known.start, start), topic_id)


def _ranges_to_reprocess(state: PartitionState, start: int) -> Span | None:
    """Return the offsets to process again although they are done, because the group's offsets were reset."""
    known = (
        []
        if state.live_metadata is None or state.live_metadata.reprocess is None
        else [state.live_metadata.reprocess]
    )
    if state.live_metadata is None and state.ledger_entry is not None and state.ledger_entry.written:
        known.append(Span(start, state.ledger_entry.written[-1].end))
    if state.catch_up_log.end > start:
        known.append(Span(start, state.catch_up_log.end))
    known = [span for span in known if span.end > start or intersection((span,), state.outstanding)]
    if not known:
        return None
    return Span(min(span.start for span in known), max(span.end for span in known))


def _updated_catch_up_log(
    state: PartitionState,
    origin: GroupOrigin,
    start: int,
    missing_and_lost: tuple[tuple[Span, ...], tuple[Span, ...]],
) -> CatchUpCommitMetadata:
    """Return the catch-up commit log as it must be before the live commit log is written.

    No offset that is pending from now on counts as done in it.
    """
    missing, lost = missing_and_lost
    ahead = (Span(start, state.catch_up_log.end),) if state.catch_up_log.end > start else ()
    log = state.catch_up_log.reopen((*missing, *ahead)) if missing or ahead else state.catch_up_log
    if log.missing and state.ledger_entry is not None:  # rows that are there again
        log = replace(log, missing=difference(log.missing, state.ledger_entry.written))
    return replace(log, written_off=union((*log.written_off, *lost)), origin=origin)


def _fits_commit_metadata(
    pending: tuple[Span, ...], policy: ResumePolicy, origin: GroupOrigin, again: Span | None
) -> bool:
    most = policy.max_owed_ranges
    return fits_commit_metadata(pending, origin, again) and (most is None or len(pending) <= most)


def pending_to_keep(state: PartitionState) -> tuple[Span, ...]:
    """Return the pending ranges that the live commit log must keep: those that are not done.

    Return all of them if the remaining ones would not fit. Done offsets split a range into more ranges, and
    done ranges may stay in the live commit log. Offsets that only the table proves stay pending until a
    catch-up run records them. It repeats the steps that their dead writer may have skipped.
    """
    rest = union((*state.outstanding, *state.recordable))
    reprocess = state.live_metadata.reprocess if state.live_metadata else None
    return rest if fits_commit_metadata(rest, state.origin, reprocess) else state.pending_by_live_log


def _reset_position(tp: TopicPartition, state: PartitionState, policy: ResumePolicy) -> int:
    if policy.auto_offset_reset == "error":
        raise NoCommittedOffsetError(
            f"{tp} has no committed offset and auto_offset_reset is 'error'. Its log is "
            f"{state.log_start}-{state.log_end}. Fix: commit an offset, or choose 'earliest' or 'latest'."
        )
    return state.log_end if policy.auto_offset_reset == "latest" else state.log_start
