"""Judge whether every offset of a group is in the table once, from the states of its partitions.

Reads nothing: ``audit.audit`` fetches the states, the ledger's commits and the rows.

>>> from kafka_liveness_dagster.core.commit_metadata import GroupOrigin, LiveCommitMetadata, OwnerState
>>> from kafka_liveness_dagster.core.ledger import LedgerEntry
>>> metadata = LiveCommitMetadata(OwnerState.RELEASED, "0badcafe", (Span(70, 100),), origin=GroupOrigin(0))
>>> entry = LedgerEntry((Span(0, 70), Span(100, 120)), first_offset=0)
>>> state = PartitionState(120, metadata, log_start=0, log_end=120, ledger_entry=entry)
>>> print(PartitionCertificate(TopicPartition("orders", 3), state).verdict)
every offset from 0 to 120 is in the table once, except 30 pending (70-100)
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from kafka_liveness_dagster.audit.rows import RowComparison, count_offsets
from kafka_liveness_dagster.core.names import join_some
from kafka_liveness_dagster.core.offsets import (
    OffsetRange,
    Span,
    TopicPartition,
    difference,
    intersection,
    size,
    union,
)
from kafka_liveness_dagster.core.partition_state import (
    PartitionState,
    TopicRecreatedError,
    check_identity,
    check_offset_in_log,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kafka_liveness_dagster.core.sink_ledger import LedgerCommit


class SpanFinding(NamedTuple):
    """One kind of offsets that the audit names.

    Attributes:
        key: the key in the JSON of each partition; ``<key>_offsets`` is the total of the group.
        attribute: the attribute of ``PartitionCertificate`` that has the spans.
        column: the column of the text output; empty for a kind that only the sentences name.
    """

    key: str
    attribute: str
    column: str = ""


SPAN_FINDINGS = (
    SpanFinding("in_table", "in_table", "in table"),
    SpanFinding("pending", "pending", "pending"),
    SpanFinding("pending_expired", "pending_expired"),
    SpanFinding("written_off", "written_off", "written off"),
    SpanFinding("missing", "missing_rows", "missing"),
    SpanFinding("by_commits_only", "by_commits_only"),
    SpanFinding("uncommitted", "uncommitted"),
    SpanFinding("rewritten", "rewritten", "written twice"),
)
"""All kinds, in the order of the JSON keys and of the columns; docs/audit.md explains each key."""


@dataclass(frozen=True)
class PartitionCertificate:
    """The certificate of one partition.

    Attributes:
        state: the partition's commits and its ledger entry; no entry where no ledger can be read.
        rewritten: offsets that more than one snapshot wrote.
        rows: the comparison of the rows; None without a deep audit.
        group_id: the audited group; empty where only its commits are known.
        is_table: whether the rows go to a table; else to a custom sink.
    """

    topic_partition: TopicPartition
    state: PartitionState
    _: KW_ONLY
    rewritten: tuple[Span, ...] = ()
    rows: RowComparison | None = None
    group_id: str = ""
    is_table: bool = True

    @property
    def other_groups(self) -> tuple[str, ...]:
        """The other groups that wrote rows of this topic to the table."""
        groups = self.state.ledger_entry.groups if self.state.ledger_entry else frozenset[str]()
        return tuple(sorted(groups - {self.group_id})) if self.group_id else ()

    @property
    def start(self) -> int | None:
        """The first offset of the group; None where it is not recorded."""
        return self.state.origin.start if self.state.origin else None

    @cached_property
    def certified_range(self) -> tuple[Span, ...]:
        """The offsets to certify: from the group's start on this log to its commit."""
        if self.start is None or self.state.committed is None:
            return ()
        return union([Span(self.start, self.state.committed)])

    @cached_property
    def pending(self) -> tuple[Span, ...]:
        """Pending offsets that neither a commit log nor the ledger proves done."""
        return self.state.outstanding

    @property
    def pending_expired(self) -> tuple[Span, ...]:
        """Pending offsets below the log start: the broker deleted their records, so no backfill can work."""
        return intersection(self.pending, [Span(0, self.state.log_start)])

    @cached_property
    def written_off(self) -> tuple[Span, ...]:
        """Offsets that were written off, or reported as lost."""
        return difference(intersection(self.state.written_off, self.certified_range), self._written)

    @cached_property
    def missing_rows(self) -> tuple[Span, ...]:
        """Committed offsets that are neither in the table, nor pending, nor written off.

        The table lost their rows, or an external commit removed the record that they are pending.
        """
        if self.state.ledger_entry is None:  # an external commit in the live commit log proves nothing
            return (
                () if self.state.live_metadata else difference(self.certified_range, self.state.written_off)
            )
        return () if self.state.committed is None else self.state.missing_rows(self.state.committed)

    @property
    def is_record_replaced(self) -> bool:
        """Return whether an external commit removed the record of the missing offsets.

        Otherwise the table has lost their rows.
        """
        return not self.state.proves_loss

    @cached_property
    def in_table(self) -> tuple[Span, ...]:
        """Certified offsets that the ledger has and that are not pending."""
        return difference(intersection(self._written, self.certified_range), self.pending)

    @property
    def uncommitted(self) -> tuple[Span, ...]:
        """Offsets in the table above the commit: a batch in flight, or one that will be retried."""
        return difference(self._written, [Span(0, self.state.committed or 0)])

    @cached_property
    def by_commits_only(self) -> tuple[Span, ...]:
        """Offsets that only the commit logs prove done."""
        return difference(
            self.certified_range, (*self._written, *self.pending, *self.written_off, *self.missing_rows)
        )

    @property
    def done(self) -> tuple[Span, ...]:
        """Offsets that the ledger or a commit log proves done, also above the commit."""
        return union((*self._written, *self.by_commits_only))

    @cached_property
    def faults(self) -> tuple[str, ...]:
        """Why the partition is not certified, with a fix for each reason."""
        return tuple(self._find_faults())

    @property
    def is_certified(self) -> bool:
        """Return whether the partition is certified."""
        return not self.faults

    @property
    def statement(self) -> str:
        """The sentence on a partition without faults."""
        if not self.certified_range:
            return (
                "nothing is committed yet"
                if self.start is None
                else f"nothing is committed above {self.start}"
            )
        (life,) = self.certified_range
        if self.state.ledger_entry is None:
            sentence = (
                f"according to both commit logs, every offset from {life.start} to {life.end} is processed"
            )
        else:
            sentence = f"every offset from {life.start} to {life.end} is in the {self._target} once"
        return sentence + _exceptions_text(
            *(
                (size(spans), format_spans(spans))
                for spans in (self.pending, self.pending_expired, self.written_off)
            )
        )

    @property
    def verdict(self) -> str:
        """The certificate, or why there is none."""
        sentence = f"NOT certified: {'. '.join(self.faults)}" if self.faults else self.statement
        return "; ".join((sentence, *self._notes()))

    @property
    def _target(self) -> str:
        return "table" if self.is_table else "sink"

    @property
    def _written(self) -> tuple[Span, ...]:
        return self.state.ledger_entry.written if self.state.ledger_entry else ()

    def _find_faults(self) -> Iterator[str]:
        state = self.state
        try:
            check_identity(self.topic_partition, state)
            check_offset_in_log(self.topic_partition, state.committed or 0, 0, log_end=state.log_end)
        except TopicRecreatedError as error:
            yield str(error)
            return
        if state.committed is None and self.start is not None:
            yield (
                f"No offset is committed, but the group began at {self.start} and the {self._target} has "
                f"{format_spans(self._written)}. Its offsets were deleted or expired. Fix: start a live run, "
                f"which continues from the {self._target}"
            )
        if state.committed is not None and self.start is None:
            yield (
                "The group's start on this log is not recorded. A lane without a table or another client "
                "committed last, or this is not the group's table. Fix: run the live lane once, or name "
                "the table with --table"
            )
        if self.other_groups:
            yield (
                f"Group {', '.join(self.other_groups)} wrote rows of topic {self.topic_partition.topic} to "
                f"this {self._target} too, and the rows of two groups replace each other. Fix: give each "
                f"group its own {self._target}, or run `kafka-liveness adopt` for a deliberate successor"
            )
        if self.missing_rows:
            yield self._missing_fault()
        yield from self.rows.faults() if self.rows else ()

    def _missing_fault(self) -> str:
        sentence = f"{count_offsets(size(self.missing_rows))} missing ({format_spans(self.missing_rows)})"
        if not self.is_record_replaced:
            return (
                f"{sentence}: they were committed after their rows were written, and the {self._target} has "
                "lost them. It was dropped, replaced or rolled back. Fix: restore it, or set "
                "on_missing_rows='crash_lag'"
            )
        unknown = self.state.ledger_entry is None or not self.state.ledger_entry.is_complete
        why = f", and the {self._target} has no record" if unknown else ""
        return (
            f"{sentence}: an external commit removed the record that they are pending{why}. Fix: start a "
            "live run, which makes them pending again"
        )

    def _notes(self) -> Iterator[str]:
        for one in self.state.external_commits:
            if one.log == "first":
                yield f"another client committed the metadata {one.metadata[:80]!r}"
            else:
                by = "a newer version" if one.is_from_newer_version else "an external commit"
                if one.is_from_newer_version or self.state.ledger_entry is None:
                    rewritten = ""
                else:
                    rewritten = ", which the next run rewrites"
                yield f"{by} replaced the catch-up commit log ({one}){rewritten}"
        if self.by_commits_only and self.state.ledger_entry is not None:
            sentence = f"the {self._target}'s history of these offsets expired"
            yield f"{format_spans(self.by_commits_only)} is recorded by the commit logs alone: {sentence}"
        if self.uncommitted:
            yield f"the {self._target} already has {format_spans(self.uncommitted)}, above the commit"
        if (
            self.state.committed is not None
            and (unread := Span(self.state.committed, self.state.log_start)).size > 0
        ):
            yield f"{unread} expired before the group read it"
        yield from self.rows.notes() if self.rows else ()


@dataclass(frozen=True)
class GroupCertificate:
    """The certificate of a group.

    Attributes:
        target: the table, or a custom sink.
        is_table: whether the target is a table.
        snapshot_id: the audited snapshot of the table; None for a sink, and for a table without snapshots.
        history: the table's visible snapshots, the newest first.
    """

    group_id: str
    target: str
    is_table: bool
    _: KW_ONLY
    snapshot_id: int | None
    partitions: tuple[PartitionCertificate, ...]
    history: Sequence[LedgerCommit] = ()

    @property
    def is_certified(self) -> bool:
        """Return whether every partition is certified."""
        return all(p.is_certified for p in self.partitions)

    @property
    def verdict(self) -> str:
        """The certificate, or why there is none."""
        failed = [p for p in self.partitions if not p.is_certified]
        of = f"group {self.group_id}, {'table' if self.is_table else 'sink'} {self.target}"
        if failed:
            first = f"{failed[0].topic_partition}: {'. '.join(failed[0].faults)}"
            return f"NOT certified: {of}: {len(failed)} of {len(self.partitions)} partitions. {first}"
        certain = sum(
            size(difference(p.certified_range, (*p.pending, *p.written_off))) for p in self.partitions
        )
        has_ledger = any(p.state.ledger_entry is not None for p in self.partitions)
        how = "is processed according to both commit logs"
        if self.is_table or has_ledger:
            how = f"is in the {'table' if self.is_table else 'sink'} once"
        count = f"{len(self.partitions)} partition{'s' if self.partitions[1:] else ''}"
        sentence = f"certified: {of}: every committed offset of {count} {how}, {certain:,} in all"
        sentence += _exceptions_text(
            self._count_all("pending"), self._count_all("pending_expired"), self._count_all("written_off")
        )
        by_commits = sum(size(p.by_commits_only) for p in self.partitions) if has_ledger else 0
        if by_commits:
            sentence += f"; {by_commits:,} of them by the commit logs alone, since the history expired"
        empty = sum(one.offsets for p in self.partitions if p.rows for one in p.rows.without_rows)
        return sentence + (f"; {empty:,} of them have a record, but no row" if empty else "")

    def _count_all(self, name: str) -> tuple[int, str]:
        """Return the number of a kind's offsets in all partitions, and the first of their ranges as text."""
        found = [OffsetRange(*p.topic_partition, *s) for p in self.partitions for s in getattr(p, name)]
        return sum(one.size for one in found), join_some(found)


def format_spans(spans: Iterable[Span]) -> str:
    """Return the first spans as text; ``nothing`` for none."""
    return join_some(list(spans)) or "nothing"


def _exceptions_text(
    pending: tuple[int, str], expired_pending: tuple[int, str], written_off: tuple[int, str]
) -> str:
    """Return the clause on the exceptions: how many offsets, and which; empty for none."""
    parts = []
    if pending[0]:
        expired = f", {expired_pending[0]:,} of them expired at the broker" if expired_pending[0] else ""
        parts.append(f"{pending[0]:,} pending ({pending[1]}{expired})")
    if written_off[0]:
        parts.append(f"{written_off[0]:,} written off ({written_off[1]})")
    return f", except {' and '.join(parts)}" if parts else ""
