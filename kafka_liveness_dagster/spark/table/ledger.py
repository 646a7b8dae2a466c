"""Read and write the ledger of a table in the summaries of its snapshots; see ``core.ledger``.

Each write records its own offsets and all offsets that the table had at the last read. A read costs a query
of the snapshots. So the first write reads, and later reads take at most a hundredth of the time. A write
reads at once if the table's snapshot shows that the table was dropped, replaced or rolled back. Never writes
by itself.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pyspark.errors import PySparkException

from kafka_liveness_dagster.core.ledger import (
    COMPRESS_ABOVE_CHARS,
    EMPTY_LEDGER_SNAPSHOT,
    TOTAL_AS_OF_KEY,
    TOTAL_KEY,
    WRITTEN_KEY,
    Ledger,
    LedgerEntry,
    LedgerSnapshot,
    ancestor_ids,
    ancestors,
    encode_entries,
    is_continuation_of,
    lineage,
    merge_entries,
    read_ledger,
    was_rolled_back,
    written_since,
)
from kafka_liveness_dagster.core.offsets import OffsetRange, difference, intersection, union
from kafka_liveness_dagster.core.partition_state import RowsMissingError, check_groups
from kafka_liveness_dagster.core.sink_ledger import READ_TIMEOUT_SECONDS, LedgerRecord
from kafka_liveness_dagster.spark.connect.connection import connection_of
from kafka_liveness_dagster.spark.error_classification import storage_read_error
from kafka_liveness_dagster.spark.ranges import describe
from kafka_liveness_dagster.spark.table.snapshots import (
    LATEST_COUNT,
    READ_ATTEMPTS,
    has_grown,
    latest_summaries,
    read_history,
    summaries_of,
    summaries_without_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.core.ledger import LedgerEntries, SnapshotSummary
    from kafka_liveness_dagster.core.offsets import Span, TopicPartition
    from kafka_liveness_dagster.core.sink_ledger import LedgerHistory
    from kafka_liveness_dagster.spark.table.table import IcebergTable


READ_TIME_SHARE = 0.01
"""The largest share of its time that a ledger spends on reading the snapshots."""
_MAX_READ_SECONDS = 300.0


class TableVersion(NamedTuple):
    """The state of a table that a write is validated from.

    Attributes:
        session: Spark session of the write.
        snapshot_id: current snapshot of the table in that session; None for a table without one.
    """

    session: SparkSession
    snapshot_id: int | None


class _Write(NamedTuple):
    """One recorded write. Two writes of the same offsets have two records, because both may be in flight.

    Attributes:
        spans: offsets of the write, by partition.
        parent_snapshot_id: snapshot from which the write is validated.
        replaced_spans: offsets of the write with rows in the table at that snapshot.
    """

    spans: Mapping[TopicPartition, tuple[Span, ...]]
    parent_snapshot_id: int | None
    replaced_spans: LedgerEntries


class TableLedger:
    """The ledger of one table, for one process.

    Args:
        table: the table; it may not exist yet.
        session: returns a Spark session of a server with the table's catalog.
        answer_seconds: timeout of ``read``, which runs outside of batches. No watchdog limits Spark there.
        last: last read of another ledger object of this table; it is not repeated without a write since.
        group_id: consumer group of the rows that this process writes; empty for a reader.
    """

    def __init__(
        self,
        table: IcebergTable,
        session: Callable[[], SparkSession],
        answer_seconds: float = READ_TIMEOUT_SECONDS,
        last: LedgerSnapshot = EMPTY_LEDGER_SNAPSHOT,
        group_id: str = "",
    ) -> None:
        self._groups = frozenset({group_id} if group_id else ())
        self._group_id = group_id
        self._commits = 0
        self._table = table
        self._session = session
        self._answer_seconds = answer_seconds
        self._read_before = last
        self._snapshot = EMPTY_LEDGER_SNAPSHOT
        self._ledger = Ledger()
        self._written: dict[TopicPartition, LedgerEntry] = {}
        self._replacing: list[tuple[int | None, LedgerEntries]] = []  # committed, not read in a snapshot yet
        self._replaced: dict[TopicPartition, LedgerEntry] = {}
        self._known_as_of: set[int | None] = set()
        self._seen_snapshot_ids: set[int | None] = set()
        self._seen_ancestors: tuple[int, ...] = ()
        self._last_snapshot_id: int | None = None
        self._committed_since_read = False
        self._reload_due_at = 0.0
        self._missing: list[OffsetRange] = []

    @property
    def target(self) -> str:
        """The table's name."""
        return self._table.name

    @property
    def snapshot(self) -> LedgerSnapshot:
        """The ledger of the table at the last read."""
        return self._snapshot

    def read(self, partitions: Collection[TopicPartition]) -> LedgerEntries:
        """Return the current entries of these partitions.

        Raises:
            RowsMissingError: the table has lost rows that this process wrote, or read before.
            UnknownLedgerFormatError: a newer version wrote to the table.
            SparkNotRespondingError: Spark did not respond in time.
            TableUnreadableError: catalog or storage is unavailable, or refuses.
        """
        session = self._session()
        try:
            self._reload_with_timeout(session)
        except PySparkException:
            if (anew := self._session()) is session:
                raise
            self._reload_with_timeout(anew)  # Spark was restarted, and refused the old session
        return {tp: self._ledger.entry(tp) for tp in partitions}

    def assume_written(self, entries: LedgerEntries) -> None:
        """Add the offsets that the commit logs prove to entries with expired snapshots.

        The next write records them. A rollback after the read that they complete is still detected.
        """
        lost = {tp: one for tp, one in entries.items() if not self._ledger.entry(tp).is_complete}
        added = {tp: replace(self._ledger.entry(tp) + one, unknown=one.unknown) for tp, one in lost.items()}
        self._ledger = replace(self._ledger, entries={**self._ledger.entries, **added})

    def record(
        self, ranges: Sequence[OffsetRange], known: LedgerEntries, as_of: TableVersion
    ) -> LedgerRecord:
        """Return the record of a write, for the summary of its own snapshot.

        Args:
            ranges: the offsets that the write replaces.
            known: facts that the table does not have yet: group start, topic id, offsets written off.
            as_of: the snapshot that the write is validated from.

        Raises:
            RowsMissingError: the table has lost rows that this process wrote, or read before.
            GroupMismatchError: the table contains rows of these topics that another group wrote.
        """
        session, snapshot_id = as_of
        if (
            self._is_unexpected(snapshot_id)
            or time.monotonic() >= self._reload_due_at
            or self._may_be_shared(snapshot_id)
        ):
            self._reload(session)
        else:
            self._note_snapshot(snapshot_id)
        by_partition = _by_partition(ranges)
        if self._group_id:
            check_groups(self._group_id, {tp: self._ledger.entry(tp) for tp in by_partition}, self.target)
        wrote = {tp: self._entry_to_write(tp, spans, known) for tp, spans in by_partition.items()}
        # Writes since the last read have their own records, unless they were rolled back
        had = encode_entries(self._ledger_with(known), complete=self._ledger.is_complete)
        summary = {WRITTEN_KEY: encode_entries(wrote)}
        since = self._snapshot.snapshot_id
        if since is not None and (len(had) <= COMPRESS_ABOVE_CHARS or since == snapshot_id):
            summary |= {TOTAL_KEY: had, TOTAL_AS_OF_KEY: str(since)}
        write = _Write(by_partition, snapshot_id, self._contained(by_partition))
        return LedgerRecord(summary, partial(self._mark_committed, write))

    def prove(self) -> LedgerHistory:
        """Return the snapshots that led to the current one, by one query of metadata.

        Raises:
            TableSchemaError: the table lacks topic, partition and offset.
            UnknownLedgerFormatError: a newer version wrote to the table.
            TableUnreadableError: Spark could not read its snapshots.
            SparkNotRespondingError: Spark did not respond in time.
        """
        return read_history(self._session(), self._table)

    def _mark_committed(self, entry: _Write) -> None:
        self._commits += 1
        self._written = merge_entries(
            (self._written, {tp: LedgerEntry(spans) for tp, spans in entry.spans.items()})
        )
        self._known_as_of.add(entry.parent_snapshot_id)
        if entry.replaced_spans:
            self._replacing.append((entry.parent_snapshot_id, entry.replaced_spans))
        # The write is relative to its parent snapshot; a snapshot read after that may contain it already
        self._committed_since_read = (
            self._committed_since_read or entry.parent_snapshot_id == self._last_snapshot_id
        )

    def _contained(self, spans: Mapping[TopicPartition, tuple[Span, ...]]) -> LedgerEntries:
        """Return the offsets that have rows in the table.

        After a replay a rollback may restore these former rows.
        """
        found = {tp: intersection(one, self._ledger.entry(tp).written) for tp, one in spans.items()}
        return {tp: LedgerEntry(held) for tp, held in found.items() if held}

    def _ledger_with(self, known: LedgerEntries) -> LedgerEntries:
        return {
            tp: self._ledger.entry(tp) + known.get(tp, LedgerEntry())
            for tp in {*self._ledger.entries, *known}
        }

    def _entry_to_write(
        self, tp: TopicPartition, spans: tuple[Span, ...], known: LedgerEntries
    ) -> LedgerEntry:
        both = self._ledger.entry(tp) + known.get(tp, LedgerEntry())
        return LedgerEntry(
            written=spans,
            written_off=both.written_off,
            first_offset=both.first_offset,
            topic_id=both.topic_id,
            groups=self._groups,
        )

    def _is_unexpected(self, snapshot_id: int | None) -> bool:
        """Return whether this cannot be the next snapshot of a table that only grows."""
        if snapshot_id == self._last_snapshot_id:
            return self._committed_since_read
        return snapshot_id in self._seen_snapshot_ids or (
            snapshot_id is None and bool(self._seen_snapshot_ids)
        )

    def _may_be_shared(self, snapshot_id: int | None) -> bool:
        """Return whether another group may have begun to write since the last read.

        Two groups that begin at the same time both read a table without rows of the other. After the first
        committed write each ledger shows its group. So one more read before the second write finds the other
        group.
        """
        return self._commits <= 1 and bool(self._group_id) and snapshot_id != self._snapshot.snapshot_id

    def _note_snapshot(self, snapshot_id: int | None) -> None:
        if snapshot_id != self._last_snapshot_id or not self._seen_snapshot_ids:
            self._seen_snapshot_ids.add(snapshot_id)
            self._last_snapshot_id = snapshot_id
            self._committed_since_read = False
            if snapshot_id is not None:
                self._seen_ancestors = (snapshot_id, *self._seen_ancestors)

    def _reload_with_timeout(self, session: SparkSession) -> None:
        try:
            with connection_of(session).abort_after(
                self._answer_seconds, f"it was queried for the ledger of {self.target}"
            ):
                self._reload(session)
        except PySparkException as error:
            raise storage_read_error(error, self.target) or error from error

    def _reload(self, session: SparkSession) -> None:
        began_at = time.monotonic()
        landed = tuple(self._replacing)  # before the read of the snapshot, which may lack later writes
        snapshot_id, snapshots = self._read_current(session)
        before = merge_entries((self._ledger.entries, self._written))
        is_odd = self._is_unexpected(snapshot_id)
        line_before = (*self._seen_ancestors, *self._snapshot.ancestor_ids)
        self._seen_ancestors = ()
        known_as_of, self._known_as_of = self._known_as_of, {snapshot_id}
        if is_new := snapshot_id is None or snapshot_id != self._snapshot.snapshot_id:
            self._snapshot = self._read(session, snapshot_id, snapshots)
            took = time.monotonic() - began_at
            self._reload_due_at = began_at + min(took / READ_TIME_SHARE, _MAX_READ_SECONDS)
        if is_new or self._written:
            # Assumed offsets are left out, because they prove nothing about other writers
            self._ledger = self._snapshot.ledger
            line = self._snapshot.ancestor_ids
            was_set_back = was_rolled_back(line, line_before)
            went_on = is_continuation_of(line, known_as_of)
            self._require_no_missing(
                before, is_unexpected=is_odd, was_rolled_back=was_set_back, is_continuation=went_on
            )
            self._require_own_rows_replaced(landed, snapshots, snapshot_id, was_rolled_back=was_set_back)
            self._written = {}
        self._note_snapshot(snapshot_id)

    def _read_current(self, session: SparkSession) -> tuple[int | None, Mapping[int, SnapshotSummary]]:
        """Return the current snapshot, and the newest ones if it has changed, as of one moment.

        If the current snapshot expires before its history is read, the table has grown, and is read again.
        """
        snapshots: dict[int, SnapshotSummary] = {}
        read_before = (self._snapshot.snapshot_id, self._read_before.snapshot_id)
        known = [one for one in read_before if one is not None]
        for _ in range(READ_ATTEMPTS):
            # Without it a caching catalog shows other writers' commits half a minute late
            self._table.refresh(session, keep_shape=True)
            snapshot_id = self._table.current_snapshot_id(session, known)
            if snapshot_id is None or snapshot_id in known:
                return snapshot_id, {}
            snapshots = latest_summaries(session, self._table)
            if snapshot_id in snapshots and not has_grown(session, self._table, snapshots, snapshot_id):
                return snapshot_id, snapshots
        return snapshot_id, {one: snapshots[one] for one in ancestors(snapshots, snapshot_id)}

    def _require_no_missing(
        self, before: LedgerEntries, *, is_unexpected: bool, was_rolled_back: bool, is_continuation: bool
    ) -> None:
        """Check that the table still has all offsets of the last read.

        Offsets that the table's history no longer shows count as present. If the table was rolled back, or
        may have been, they count as missing and are reprocessed. Otherwise lost rows would be recorded as
        written.
        """
        kept = dict(self._ledger.entries)
        for tp, entry in before.items():
            now = self._ledger.entry(tp)
            gone = difference(entry.written, now.written)
            if not was_rolled_back:
                gone = difference(gone, now.unknown)
            if is_unexpected and tp in self._written:
                gone = union((*gone, *difference(self._written[tp].written, now.written)))
            elif is_continuation and not was_rolled_back and now.unknown:
                kept[tp] = replace(now + entry, unknown=now.unknown)
            self._missing += [OffsetRange(*tp, *span) for span in gone]
        self._ledger = replace(self._ledger, entries=kept)
        if lacking := self._missing:  # kept for good, because this process must not continue after a loss
            raise RowsMissingError(
                f"table {self.target} lacks {describe(lacking)}, {sum(r.size for r in lacking):,} offsets "
                "that it held during this run: it was dropped, replaced or rolled back. Rows of committed "
                "offsets are missing. Fix: restore the table, or set on_missing_rows='crash_lag': the next "
                "live run makes the offsets crash lag.",
                lacking,
            )

    def _require_own_rows_replaced(
        self,
        committed: Sequence[tuple[int | None, LedgerEntries]],
        snapshots: Mapping[int, SnapshotSummary],
        snapshot_id: int | None,
        *,
        was_rolled_back: bool,
    ) -> None:
        """Check that the table has the rows that this process wrote, not the rows that they replaced.

        A replacement is in the table if a snapshot after its parent wrote its offsets. After that only a
        rollback removes it. If the snapshots in between have expired, the replacement counts as written.
        """
        former: list[OffsetRange] = []
        for began_with, replaced in committed:
            wrote = written_since(snapshots, snapshot_id, began_with)
            if wrote is None and not snapshots:
                continue  # the snapshots were not read this time
            self._replacing.remove((began_with, replaced))
            self._replaced = merge_entries((self._replaced, replaced))
            if wrote is None:
                continue
            for tp, one in replaced.items():
                former += [
                    OffsetRange(*tp, *s)
                    for s in difference(one.written, wrote.get(tp, LedgerEntry()).written)
                ]
        if was_rolled_back:
            former = [OffsetRange(*tp, *span) for tp, one in self._replaced.items() for span in one.written]
        if former:
            raise RowsMissingError(
                f"Table {self.target} was rolled back while this run replaced {describe(former)}, "
                f"{sum(r.size for r in former):,} offsets. It contains the former rows of some of them "
                "again. Fix: materialize the partition again."
            )

    def _read(
        self, session: SparkSession, snapshot_id: int | None, snapshots: Mapping[int, SnapshotSummary]
    ) -> LedgerSnapshot:
        if snapshot_id is None:
            return EMPTY_LEDGER_SNAPSHOT
        if snapshot_id == self._read_before.snapshot_id:
            return self._read_before
        found = lineage(snapshots, snapshot_id)
        if not found.is_complete and len(snapshots) >= LATEST_COUNT:
            known = summaries_without_text(session, self._table)
            found = lineage(known, snapshot_id)
            listed = tuple(one for one in found.rolled_back if one in snapshots)  # the others may be newer
            found = replace(found, rolled_back=listed)
            needed = {*found.path, *found.totals, *listed}
            snapshots = known | summaries_of(session, self._table, needed)
        self._seen_snapshot_ids |= set(snapshots)
        return LedgerSnapshot(
            snapshot_id, read_ledger(snapshots, found), ancestor_ids(snapshots, snapshot_id)
        )


def _by_partition(ranges: Iterable[OffsetRange]) -> dict[TopicPartition, tuple[Span, ...]]:
    found = merge_entries({r.topic_partition: LedgerEntry((r.span,))} for r in ranges)
    return {tp: entry.written for tp, entry in found.items()}
