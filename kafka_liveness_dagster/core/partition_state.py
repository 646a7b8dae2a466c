"""Derive the progress of one partition from its three records and the broker's log bounds.

The records are both commit logs and the ledger. An offset is done only if a record proves it, never because
no record lists it as pending. Reads no log or table, and decides nothing: ``core.resume`` does.

>>> from kafka_liveness_dagster.core.ledger import LedgerEntry
>>> done = CatchUpCommitMetadata(origin=GroupOrigin(0), target="t")
>>> rows = LedgerEntry((Span(0, 70),))
>>> erased = PartitionState(120, None, 0, log_end=120, catch_up_log=done, ledger_entry=rows)
>>> erased.missing_rows(120)  # an external commit at 120 has replaced the record that 70-120 is pending
(Span(start=70, end=120),)
"""

from __future__ import annotations

import shlex
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.commit_metadata import (
    CatchUpCommitMetadata,
    GroupOrigin,
    LiveCommitMetadata,
    OwnerState,
)
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.names import is_table_name, join_some
from kafka_liveness_dagster.core.offsets import (
    MAX_OFFSET,
    OffsetRange,
    Span,
    difference,
    intersection,
    size,
    union,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kafka_liveness_dagster.core.commit_metadata import ExternalCommit
    from kafka_liveness_dagster.core.ledger import LedgerEntry
    from kafka_liveness_dagster.core.offsets import TopicPartition


class DataExpiredError(KafkaLivenessError):
    """Committed offsets lie below the log start: the broker's retention deleted unprocessed records."""


class TopicRecreatedError(KafkaLivenessError):
    """The offsets were committed for another log: the topic was deleted and recreated."""


class TableMismatchError(KafkaLivenessError):
    """The group's commits name another table.

    Either two assets have one group, or the table was renamed.
    """


class GroupMismatchError(KafkaLivenessError):
    """The table contains rows of the topic that another consumer group wrote."""


class RowsMissingError(KafkaLivenessError):
    """The table has lost rows of offsets that were committed: it was dropped, replaced or rolled back.

    Attributes:
        ranges: the offsets; the run records them in the catch-up commit log before it ends.
    """

    def __init__(self, message: str, ranges: Collection[OffsetRange] = ()) -> None:
        super().__init__(message)
        self.ranges = tuple(ranges)


@dataclass(frozen=True)
class PartitionState:
    """The three records of one partition, and its log bounds; offsets of ``read_committed``.

    Attributes:
        committed, live_metadata: the live commit log.
        catch_up_log: the catch-up commit log.
        ledger_entry: the table's entry; None without a ledger (a custom sink, a plain consumer).
        topic_id: the topic's current id; empty if the broker returns none.
        external_live_commit: the commit of another client that replaced the metadata of the live commit log.
        remembered_pending: pending offsets that this process committed itself.
    """

    committed: int | None
    live_metadata: LiveCommitMetadata | None
    log_start: int
    _: KW_ONLY
    log_end: int
    catch_up_log: CatchUpCommitMetadata = field(default_factory=CatchUpCommitMetadata)
    ledger_entry: LedgerEntry | None = None
    topic_id: str = ""
    remembered_pending: tuple[Span, ...] = ()
    external_live_commit: ExternalCommit | None = None

    @property
    def external_commits(self) -> tuple[ExternalCommit, ...]:
        """Commits of other clients, in the live commit log first."""
        found = (self.external_live_commit, self.catch_up_log.external)
        return tuple(one for one in found if one is not None)

    @property
    def pending_by_live_log(self) -> tuple[Span, ...]:
        """Pending offsets by the live commit log; under an external commit, those of this process.

        Without ``pending_beyond_commit``, which the live lane reads anyway.
        """
        if self.live_metadata is None:
            return self.remembered_pending
        if self.pending_beyond_commit:
            return difference(self.live_metadata.pending, self.pending_beyond_commit)
        return self.live_metadata.pending

    @property
    def pending_beyond_commit(self) -> tuple[Span, ...]:
        """Pending offsets in the live commit log at or above its own commit: no live lane skipped them."""
        pending = self.live_metadata.pending if self.live_metadata else ()
        return difference(pending, (Span(0, self.committed or 0),)) if pending else ()

    @property
    def is_catch_up_log_rebuilt(self) -> bool:
        """Whether the ledger takes the place of an external commit in the catch-up commit log."""
        external = self.catch_up_log.external
        return external is not None and not external.is_from_newer_version and self.ledger_entry is not None

    @property
    def outstanding(self) -> tuple[Span, ...]:
        """Pending offsets that are not proven done."""
        return self.not_done(self.pending_by_live_log)

    @property
    def unrecorded(self) -> tuple[Span, ...]:
        """Pending offsets whose rows are in the table, and which the catch-up commit log lacks.

        Their writer died in between, so it may have skipped whatever follows the table's commit. A deleted
        or expired catch-up commit log proves nothing.
        """
        if self.ledger_entry is None or self.catch_up_log.origin is None:
            return ()
        in_table = intersection(
            self.catch_up_log.outstanding(self.pending_by_live_log), self.ledger_entry.written
        )
        return difference(in_table, (*self.written_off, *self.outstanding))

    @property
    def done_in_rebuilt_log(self) -> tuple[Span, ...]:
        """Pending offsets that are done in a rebuilt catch-up commit log.

        Their writer may have died before it recorded them.
        """
        if self.catch_up_log.external is None:
            return ()
        return difference(self.pending_by_live_log, self.catch_up_log.outstanding(self.pending_by_live_log))

    @property
    def recordable(self) -> tuple[Span, ...]:
        """The unrecorded offsets, if the metadata limit allows a record of them; else none.

        Without a record in the catch-up commit log they would stay pending indefinitely, though they are
        done.
        """
        found = self.unrecorded
        return found if found and self.can_record(found) else ()

    def unrecorded_of(self, spans: tuple[Span, ...]) -> tuple[Span, ...]:
        """Return the unrecorded offsets of these spans.

        Return all unrecorded offsets if only a record of all of them is within the metadata limit.
        """
        found = intersection(self.unrecorded, spans)
        return found if not found or self.can_record(found) else self.recordable or found

    def can_record(self, done: tuple[Span, ...]) -> bool:
        """Return whether the catch-up commit log's metadata limit allows a record that these are done."""
        log = self.catch_up_log.mark_done(self.pending_by_live_log, done)
        log = replace(log, origin=log.origin or self.origin)
        return CatchUpCommitMetadata.decode(log.watermark, log.encode()).done == log.done

    @property
    def is_paused(self) -> bool:
        """Whether neither lane may process the partition."""
        return self.live_metadata is not None and self.live_metadata.owner_state is OwnerState.PAUSED

    @property
    def origin(self) -> GroupOrigin | None:
        """Origin of the group on this log: the live commit log's, else the earlier of the other records'."""
        if self.live_metadata is not None and self.live_metadata.origin is not None:
            return self.live_metadata.origin
        # A lane without a ledger records no target. Its origin would make offsets count as missing that
        # were never this table's
        second = self.catch_up_log.origin if self.catch_up_log.target or self.ledger_entry is None else None
        known = [] if second is None else [second]
        if self.ledger_entry is not None and self.ledger_entry.first_offset is not None:
            known.append(GroupOrigin(self.ledger_entry.first_offset, self.ledger_entry.topic_id))
        return min(known, key=lambda origin: origin.start, default=None)

    @property
    def is_committed_by_this_package(self) -> bool:
        """Whether the last commit is of a lane with a table.

        Such a commit follows the rows of all offsets below it that are not pending.
        """
        return self.live_metadata is not None and self.live_metadata.origin is not None

    @property
    def proves_loss(self) -> bool:
        """Whether missing rows prove that the table lost them; else they are pending again.

        An external commit may have replaced the only record that offsets were written off.
        """
        return self.is_committed_by_this_package and self.catch_up_log.external is None

    @property
    def written_off(self) -> tuple[Span, ...]:
        """Offsets that are closed without rows: written off by hand, or lost and reported."""
        return union(
            (*self.catch_up_log.written_off, *(self.ledger_entry.written_off if self.ledger_entry else ()))
        )

    @property
    def ledger_scope(self) -> tuple[Span, ...]:
        """Offsets from the group's origin on for which the ledger decides."""
        if self.ledger_entry is None or self.origin is None:
            return ()
        return difference((Span(self.origin.start, MAX_OFFSET),), self.ledger_entry.unknown)

    def not_done(self, spans: tuple[Span, ...]) -> tuple[Span, ...]:
        """Return the offsets of these spans that are not proven done.

        The table decides where its ledger is complete; elsewhere both commit logs decide. An offset does not
        count as done because no record lists it as pending.
        """
        in_table = self.ledger_entry.written if self.ledger_entry else ()
        judged = self.ledger_scope
        by_table = difference(intersection(spans, judged), in_table)
        elsewhere = difference(spans, (*judged, *in_table))
        pending = self.catch_up_log.outstanding(intersection(elsewhere, self.pending_by_live_log))
        forgotten = difference(elsewhere, (*self.pending_by_live_log, *self._done_by_last_commit))
        again = (self.live_metadata.reprocess,) if self.live_metadata and self.live_metadata.reprocess else ()
        redone = self.catch_up_log.outstanding(
            intersection(intersection(spans, self.pending_by_live_log), again)
        )
        missing = intersection(elsewhere, self.catch_up_log.missing)
        return difference((*by_table, *pending, *forgotten, *redone, *missing), self.written_off)

    def missing_rows(self, position: int) -> tuple[Span, ...]:
        """Return the offsets below ``position`` that are neither in the table, pending, nor written off.

        Only offsets from the group's origin on count. With ``proves_loss`` the table has lost the rows;
        otherwise no record shows what happened to them. Below a commit of this package only ``ledger_scope``
        can prove rows missing. Offsets that an earlier run found missing stay missing until their rows are
        there.
        """
        if self.ledger_entry is None or self.origin is None:
            return ()
        life = (Span(self.origin.start, MAX_OFFSET),)
        judged = self.ledger_scope if self.is_committed_by_this_package else life
        return difference(
            intersection(union((*judged, *self.catch_up_log.missing)), (Span(self.origin.start, position),)),
            (*self.ledger_entry.written, *self.written_off, *self.pending_by_live_log),
        )

    @property
    def lost_rows(self) -> tuple[Span, ...]:
        """Missing rows of committed offsets that the table has lost."""
        return self._missing_below_commit if self.proves_loss else ()

    @property
    def forgotten_pending(self) -> tuple[Span, ...]:
        """Missing rows of committed offsets whose record an external commit replaced: pending again."""
        return () if self.proves_loss else self._missing_below_commit

    def done_by_commit(self, without: tuple[Span, ...]) -> tuple[Span, ...]:
        """Return the offsets that are in the table by the last commit.

        These are all offsets from the group's origin up to the commit, except pending and written-off ones.
        """
        if self.live_metadata is None or self.live_metadata.origin is None or self.committed is None:
            return ()
        return difference(
            (Span(self.live_metadata.origin.start, self.committed),), (*without, *self.written_off)
        )

    @property
    def _missing_below_commit(self) -> tuple[Span, ...]:
        return () if self.committed is None else self.missing_rows(self.committed)

    @property
    def _done_by_last_commit(self) -> tuple[Span, ...]:
        """Offsets that are done by the last commit: from the group's origin up to it, except pending ones.

        A commit of a lane without a table records no origin.
        """
        if self.live_metadata is None or self.committed is None:
            return ()
        begun = self.live_metadata.origin or self.catch_up_log.origin
        return difference((Span(begun.start if begun else 0, self.committed),), self.pending_by_live_log)


def rebuild_catch_up_log(state: PartitionState) -> CatchUpCommitMetadata:
    """Return the catch-up commit log as the table's ledger has it, in the place of an external commit.

    Pending offsets whose rows are in the table are done, unless the group was reset below them. A newer
    version's log stays as it is.
    """
    if not state.is_catch_up_log_rebuilt or state.ledger_entry is None:
        return state.catch_up_log
    again = (state.live_metadata.reprocess,) if state.live_metadata and state.live_metadata.reprocess else ()
    done = difference(intersection(state.pending_by_live_log, state.ledger_entry.written), again)
    empty = CatchUpCommitMetadata(
        written_off=state.ledger_entry.written_off, origin=state.origin, external=state.catch_up_log.external
    )
    return empty.mark_done(state.pending_by_live_log, done)


def check_identity(tp: TopicPartition, state: PartitionState) -> None:
    """Check that the topic is still the one whose offsets were committed, or are in the table.

    Raises:
        TopicRecreatedError: the topic was recreated, however many records it has by now; with both ids and
            the fix.
    """
    origins = (
        (state.live_metadata.origin if state.live_metadata else None, "the live commit log"),
        (state.catch_up_log.origin, "the catch-up commit log"),
    )
    ids = [(origin.topic_id, where) for origin, where in origins if origin is not None]
    if state.ledger_entry is not None:
        ids.append((state.ledger_entry.topic_id, "the table"))
    for topic_id, where in ids:
        if topic_id and state.topic_id and topic_id != state.topic_id:
            raise TopicRecreatedError(topic_recreated_message(tp, topic_id, state.topic_id, where=where))


def check_target(group_id: str, states: Mapping[TopicPartition, PartitionState], target: str) -> None:
    """Check that the group's commits name the table that this run writes to.

    Raises:
        TableMismatchError: they name another table. Each of two tables would get a part of the records, and
            both would look complete.
    """
    others = {
        one.catch_up_log.target: tp
        for tp, one in states.items()
        if one.catch_up_log.target not in {None, target}
    }
    if others:
        theirs, tp = next(iter(others.items()))
        raise TableMismatchError(
            f"This run writes to {target}, but the commits of group {group_id} name {theirs} ({tp}). "
            "Two assets with one group, here or in two Dagster instances, would get a part of the "
            "records each. Nothing was written or committed. Fix: give one of them its own group_id. If "
            f"{theirs} was renamed or moved to {target}, end its runs and run `kafka-liveness move "
            f"{group_id} {target}`."
        )


def check_groups(group_id: str, entries: Mapping[TopicPartition, LedgerEntry | None], target: str) -> None:
    """Check that no other group wrote rows of these topics to the table or sink.

    The rows of two groups have the same topic, partition and offset, so each write replaces the other group's
    rows.

    Raises:
        GroupMismatchError: with the groups, the offsets, and the command for a deliberate successor.
    """
    for tp, entry in sorted(entries.items()):
        others = sorted(entry.groups - {group_id}) if entry else []
        if entry and others:
            groups = ", ".join(others)
            written = [OffsetRange(*tp, *span) for span in entry.written]
            offsets = f", among them {join_some(written[:3])}" if written else ""
            kind = "table" if is_table_name(target) else "sink"
            succeed = (
                f"run `kafka-liveness adopt {shlex.quote(group_id)} {target}`"
                if kind == "table"
                else f"replace the texts of its ledger by kl.merge_ledger_texts(texts, group_id={group_id!r})"
            )
            raise GroupMismatchError(
                f"{target} contains rows of topic {tp.topic} that group {groups} wrote{offsets}. Rows "
                f"of group {group_id} would replace them. This run wrote and committed nothing more. Fix: "
                f"give the asset of {group_id} its own {kind}. If {group_id} is the successor of {groups}, "
                f"end the runs of {groups} and {succeed}."
            )


def topic_recreated_message(
    tp: TopicPartition, was: str, now: str, where: str, outcome: str = "nothing was written or committed"
) -> str:
    """Return the message for a recreated topic, with its fix."""
    return (
        f"Topic {tp.topic} was deleted and created again: {where} has offsets of {tp} with topic id {was}, "
        f"the broker's is {now}. New records have the old offsets, so they would replace the old rows: "
        f"{outcome}. Fix: to keep the old rows, give the asset a new table and a new group_id. To start from "
        "scratch, drop the table and delete the offsets of the group and of its .catch-up "
        "(kafka-consumer-groups --delete-offsets)."
    )


def check_offset_in_log(tp: TopicPartition, offset: int, log_start: int, log_end: int) -> None:
    """Check that ``offset`` is still in the log as the next offset to process.

    Raises:
        DataExpiredError, TopicRecreatedError: it is not; with both offsets and the fix.
    """
    if offset > log_end:
        raise TopicRecreatedError(
            f"{tp} is committed at {offset} but its log ends at {log_end}. The topic was deleted and "
            "created again, or another client committed an offset that does not exist. Nothing was "
            "committed. Fix: find out which, then reset the group's offsets (kafka-consumer-groups "
            "--reset-offsets)."
        )
    if offset < log_start:
        raise DataExpiredError(
            f"{tp} is committed at {offset} but its log starts at {log_start}: {log_start - offset} offsets "
            "were deleted before they were processed. Nothing was committed. Fix: raise the topic's "
            "retention. To continue without them, and report them as lost, set on_data_loss='write_off'."
        )


def rows_missing_error(
    tp: TopicPartition,
    state: PartitionState,
    missing: tuple[Span, ...],
    outcome: str = "Nothing was written or committed",
) -> RowsMissingError:
    """Return the error for a table that has lost committed rows, with its fix."""
    gone = size(intersection(missing, (Span(0, state.log_start),)))
    ranges = [OffsetRange(*tp, *span) for span in missing]
    return RowsMissingError(
        f"the table lacks {join_some(ranges)}, {size(missing):,} offsets that were committed after their "
        f"rows were written (committed {state.committed}): it was dropped, replaced or rolled back. The "
        f"broker still has {size(missing) - gone:,} of them. {outcome}. Fix: restore the table, or set "
        "on_missing_rows='crash_lag': offsets that the broker has become crash lag, the others are reported "
        "as lost.",
        ranges,
    )
