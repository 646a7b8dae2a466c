"""Evaluate the state of one partition, for rules over a whole group: sensor, ``status``, health, metrics.

A ``PartitionSnapshot`` has the results of a ``PartitionState``, and is comparable with other snapshots.
Decides nothing about members and runs: ``core.departures`` does.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.commit_metadata import ExternalCommit, LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.names import join_some
from kafka_liveness_dagster.core.offsets import Span, difference, intersection, union

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.partition_state import PartitionState

_NEARLY_EXPIRED_PARTS = 10


class Expiry(Enum):
    """The degree to which the broker's retention threatens a pending range."""

    SAFE = "safe"
    NEARLY = "about to expire"
    PARTLY = "partly expired"
    EXPIRED = "expired"


def expiry(pending: Span, log_start: int, log_end: int) -> Expiry:
    """Return whether the records of a pending range still exist, or will expire soon.

    >>> from kafka_liveness_dagster.core.offsets import Span
    >>> expiry(Span(70, 120), log_start=100, log_end=190).value
    'partly expired'
    """
    # Rule 1: the broker has deleted offsets below the log start
    if pending.end <= log_start:
        return Expiry.EXPIRED
    if pending.start < log_start:
        return Expiry.PARTLY
    # Rule 2: retention deletes records of this log, and the range is in the oldest tenth of the rest
    near = log_start > 0 and (pending.start - log_start) * _NEARLY_EXPIRED_PARTS < log_end - log_start
    return Expiry.NEARLY if near else Expiry.SAFE


@dataclass(frozen=True)
class PartitionSnapshot:
    """The results of a partition's state at one moment.

    Attributes:
        outstanding: pending offsets that table and catch-up commit log together do not prove done, including
            forgotten ones.
        forgotten_pending: outstanding offsets that no commit records any more.
        missing_rows: committed offsets whose rows the table has lost.
        origin: the group's first offset on this log; None if unknown.
        written_off: offsets that are closed without rows: written off, or lost and reported.
        external: commit of another client that replaced the catch-up commit log.
        unrecorded: outstanding offsets that are in the table; a run died before it recorded them.
        is_upper_bound: whether ``outstanding`` may be too large, because no ledger shows what is done since.
    """

    topic_partition: TopicPartition
    committed: int | None
    live_metadata: LiveCommitMetadata | None
    _: KW_ONLY
    log_end: int
    outstanding: tuple[Span, ...] = ()
    log_start: int = 0
    forgotten_pending: tuple[Span, ...] = ()
    missing_rows: tuple[Span, ...] = ()
    origin: int | None = None
    written_off: tuple[Span, ...] = ()
    external: ExternalCommit | None = None
    is_upper_bound: bool = False
    unrecorded: tuple[Span, ...] = ()

    @classmethod
    def from_state(cls, tp: TopicPartition, state: PartitionState) -> PartitionSnapshot:
        """Return the snapshot of a partition in this state."""
        unrecorded = state.recordable
        return cls(
            tp,
            state.committed,
            state.live_metadata,
            log_end=state.log_end,
            outstanding=intersection(
                (*state.outstanding, *unrecorded, *state.forgotten_pending), (Span(0, state.log_end),)
            ),
            log_start=state.log_start,
            forgotten_pending=state.forgotten_pending,
            missing_rows=state.lost_rows,
            origin=state.origin.start if state.origin else None,
            written_off=state.written_off,
            external=state.catch_up_log.external,
            is_upper_bound=state.catch_up_log.external is not None and not state.is_catch_up_log_rebuilt,
            unrecorded=unrecorded,
        )

    @property
    def pending(self) -> tuple[Span, ...]:
        """Offsets below the live commit log that are not proven done.

        Crash lag, and rows that the table has lost.
        """
        return union((*self.outstanding, *self.missing_rows))

    @property
    def unprocessed(self) -> tuple[Span, ...]:
        """The outstanding offsets whose records must still be processed."""
        return difference(self.outstanding, self.unrecorded) if self.unrecorded else self.outstanding

    @property
    def lag(self) -> int:
        """The number of offsets that the live lane has not committed; the whole log without a commit."""
        return max(0, self.log_end - (self.log_start if self.committed is None else self.committed))

    @property
    def paused(self) -> bool:
        """Whether both lanes are paused, so that no run processes the partition."""
        return self.live_metadata is not None and self.live_metadata.owner_state is OwnerState.PAUSED

    @property
    def pending_offsets(self) -> int:
        """The number of pending offsets, which the live lane skipped and no lane has done."""
        return sum(span.size for span in self.outstanding)


def replaced_log_lines(partitions: Iterable[PartitionSnapshot]) -> list[str]:
    """Return a line, with its fix, for each partition whose catch-up commit log was replaced.

    >>> from kafka_liveness_dagster.core.offsets import TopicPartition
    >>> at, found = TopicPartition("orders", 3), ExternalCommit("second", 120, "")
    >>> print(*replaced_log_lines([PartitionSnapshot(at, 120, None, log_end=120, external=found)]))
    orders:3: an external commit replaced the catch-up commit log (offset 120, metadata ''). The next run ...
    """
    return [
        f"{seen.topic_partition}: {_replaced_log_line(seen)}"
        for seen in partitions
        if seen.external is not None
    ]


def _replaced_log_line(seen: PartitionSnapshot) -> str:
    if seen.external is not None and seen.external.is_from_newer_version:
        return (
            f"a newer version wrote the catch-up commit log ({seen.external}). Fix: upgrade "
            "kafka-liveness-dagster"
        )
    sentence = f"an external commit replaced the catch-up commit log ({seen.external})"
    if not seen.is_upper_bound:
        return f"{sentence}. The next run of either lane rewrites it from the table's ledger"
    return (
        f"{sentence}. Some of the {seen.pending_offsets:,} pending offsets may be done. Fix: with a "
        "table, start a run of either lane, which rewrites the commit. Without one, delete the commit "
        "(ExternalCommitError has the command); both lanes refuse to run until then"
    )


def ignored_pending_lines(partitions: Iterable[PartitionSnapshot]) -> list[str]:
    """Return a line for each partition whose live commit log lists pending offsets that cannot be pending."""
    found = {
        seen.topic_partition: (seen.live_metadata.pending if seen.live_metadata else (), seen.committed or 0)
        for seen in partitions
    }
    above = {tp: difference(pending, (Span(0, committed),)) for tp, (pending, committed) in found.items()}
    return [
        f"{tp}: pending offsets at or above the committed offset are ignored: {join_some(spans)}"
        for tp, spans in above.items()
        if spans
    ]
