"""Read and write the ledger of a table in the summaries of its snapshots; see ``core.ledger``.

Each write tells its own offsets and, as of the last look, all that the table held. A look costs a query of the
snapshots, so it is taken at the start, and then as often as a hundredth of the time allows; or at once where
the table's snapshot shows that it was dropped, replaced or rolled back. Never writes by itself.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark.errors import AnalysisException, PySparkException

from kafka_liveness_dagster.core.ledger import (
    LONG,
    NOTHING_READ,
    Account,
    Ledger,
    Reading,
    Snapshot,
    chain,
    encode,
    goes_on,
    is_set_back,
    lineage,
    read_ledger,
    since_of,
    total,
    written_since,
)
from kafka_liveness_dagster.core.offsets import OffsetRange, difference, intersection
from kafka_liveness_dagster.core.partition_state import RowsMissingError, check_groups
from kafka_liveness_dagster.spark.connect.connection import line_of
from kafka_liveness_dagster.spark.error_classification import NOT_FOUND, unreadable
from kafka_liveness_dagster.spark.ranges import names

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.core.ledger import Accounts
    from kafka_liveness_dagster.core.offsets import Span, TopicPartition
    from kafka_liveness_dagster.spark.table.table import IcebergTable


WROTE, HAD, SINCE = (f"kafka-liveness.{word}" for word in ("written", "total", "total-as-of"))
NEWEST = 128
"""Snapshots that ``newest`` gives: writers sum up more often than that."""
_TEXTS = f"SELECT snapshot_id, parent_id, summary['{WROTE}'], summary['{HAD}'], summary['{SINCE}'] FROM {{}}"


def newest(session: SparkSession, table: IcebergTable) -> dict[int, Snapshot]:
    """The last ``NEWEST`` snapshots that were committed, those that were rolled away too."""
    return _found(session, table, f"{_TEXTS} ORDER BY committed_at DESC LIMIT {NEWEST}")


def without_texts(session: SparkSession, table: IcebergTable) -> dict[int, Snapshot]:
    """All snapshots there are, without what they wrote and had."""
    return _found(session, table, f"SELECT snapshot_id, parent_id, '', '', summary['{SINCE}'] FROM {{}}")


def of(session: SparkSession, table: IcebergTable, snapshot_ids: Iterable[int]) -> dict[int, Snapshot]:
    """Those of these snapshots that are there."""
    wanted = ", ".join(map(str, snapshot_ids))
    return _found(session, table, f"{_TEXTS} WHERE snapshot_id IN ({wanted})") if wanted else {}


def _found(session: SparkSession, table: IcebergTable, sql: str) -> dict[int, Snapshot]:
    try:
        rows = session.sql(sql.format(f"{table.quoted}.`snapshots`")).collect()
    except AnalysisException as error:
        if error.getCondition() == NOT_FOUND:
            return {}
        raise
    return {
        one: Snapshot(one, parent, wrote or "", had or "", since_of(one, since))
        for one, parent, wrote, had, since in rows
    }


ANSWER_SECONDS = 25.0
_ATTEMPTS = 3
_LOOK_SHARE = 0.01
_LONGEST_SECONDS = 300.0


class Entry(NamedTuple):
    """What one write records. Two writes of the same offsets have two: both may be in flight.

    Attributes:
        spans: the offsets it writes, by partition.
        began_with: the snapshot from which it is validated.
        replaced: those of the offsets whose rows the table contained then.
        summary: the properties of its snapshot.
    """

    spans: Mapping[TopicPartition, tuple[Span, ...]]
    began_with: int | None
    replaced: Accounts
    summary: dict[str, str]


class TableLedger:
    """The witness of one table, for one process.

    Args:
        table: the table; it may not exist yet.
        session: gives a Spark session of a server whose catalog has it.
        answer_seconds: how long ``accounts`` may take: it is asked outside of batches, where nobody watches Spark.
        last: what another witness of this table has read; where nobody has written since it is not read again.
        group_id: the consumer group whose rows this process writes; empty for a reader.
    """

    def __init__(
        self,
        table: IcebergTable,
        session: Callable[[], SparkSession],
        answer_seconds: float = ANSWER_SECONDS,
        last: Reading = NOTHING_READ,
        group_id: str = "",
    ) -> None:
        self._groups = frozenset({group_id} if group_id else ())
        self._group_id, self._landings = group_id, 0
        self._table, self._session, self._answer_seconds = table, session, answer_seconds
        self._read_before, self._reading = last, NOTHING_READ
        self._says = Ledger()
        self._known: dict[TopicPartition, Account] = {}
        self._written: dict[TopicPartition, Account] = {}
        self._replacing: list[tuple[int | None, Accounts]] = []  # landed, and not seen in a snapshot yet
        self._replaced: dict[TopicPartition, Account] = {}
        self._known_as_of: set[int | None] = set()
        self._seen: set[int | None] = set()
        self._passed: tuple[int, ...] = ()
        self._last: int | None = None
        self._landed_since, self._look_at = False, 0.0
        self._lacking: list[OffsetRange] = []

    @property
    def target(self) -> str:
        """The table's name."""
        return self._table.name

    @property
    def reading(self) -> Reading:
        """What the table said at the last look."""
        return self._reading

    def accounts(self, asked: Collection[TopicPartition]) -> Accounts:
        """What the table says of these partitions, as of now, with the reported offsets that were learned since.

        Raises:
            RowsMissingError: it has lost what this process wrote, or what it said before.
            LedgerError: a newer version wrote to it.
            SparkSilentError: Spark did not answer in time.
            TableUnreadableError: catalog or store is away, or refuses.
        """
        session = self._session()
        try:
            self._look_in_time(session)
        except PySparkException:
            if (anew := self._session()) is session:
                raise
            self._look_in_time(anew)  # Spark was started anew, and refused the session of before
        return {tp: self._says.of(tp) + Account(reported=self._known.get(tp, Account()).reported) for tp in asked}

    def learn(self, accounts: Accounts) -> None:
        """What is known besides what the table says: where a group began, what was lost. Told with the next write."""
        self._known = total((self._known, accounts))

    def believe(self, accounts: Accounts) -> None:
        """All that is there of these partitions, where the table cannot tell since its history was expired.

        Told with the next write. The table says it then; where that is expired too before this process looks again,
        it does not know what others have written since, and nor does anybody.
        """
        lost = {tp: one for tp, one in accounts.items() if not self._says.of(tp).complete}
        added = {tp: replace(self._says.of(tp) + one, complete=True) for tp, one in lost.items()}
        self._says = replace(self._says, accounts={**self._says.accounts, **added})

    def entry(self, session: SparkSession, snapshot_id: int | None, ranges: Sequence[OffsetRange]) -> Entry:
        """Return what a write of these ranges, validated from this snapshot, records in its own snapshot's summary.

        Raises:
            RowsMissingError: the table has lost what this process wrote, or what it said before.
            OtherGroupError: the table contains rows of these topics that another group wrote.
        """
        if self._is_odd(snapshot_id) or time.monotonic() >= self._look_at or self._may_be_shared(snapshot_id):
            self._look(session)
        else:
            self._see(snapshot_id)
        by_partition = _by_partition(ranges)
        if self._group_id:
            check_groups(self._group_id, {tp: self._says.of(tp) for tp in by_partition}, self.target)
        wrote = {tp: Account(spans, *self._besides(tp), groups=self._groups) for tp, spans in by_partition.items()}
        # What was written since the last look says so itself, if nobody has rolled it back
        had = encode(self._with_known(), complete=self._says.complete)
        summary = {WROTE: encode(wrote)}
        since = self._reading.snapshot_id
        if since is not None and (len(had) <= LONG or since == snapshot_id):
            summary |= {HAD: had, SINCE: str(since)}
        return Entry(by_partition, snapshot_id, self._held(by_partition), summary)

    def landed(self, entry: Entry) -> None:
        """Take note that this write is in the table now."""
        self._landings += 1
        self._written = total((self._written, {tp: Account(spans) for tp, spans in entry.spans.items()}))
        self._known_as_of.add(entry.began_with)
        if entry.replaced:
            self._replacing.append((entry.began_with, entry.replaced))
        # Which says something of the snapshot it began with; one that was seen meanwhile may have it already
        self._landed_since = self._landed_since or entry.began_with == self._last

    def _held(self, spans: Mapping[TopicPartition, tuple[Span, ...]]) -> Accounts:
        """Those of these offsets whose rows the table contains: a roll back may bring them back after a replay."""
        found = {tp: intersection(one, self._says.of(tp).done) for tp, one in spans.items()}
        return {tp: Account(held) for tp, held in found.items() if held}

    def _with_known(self) -> Accounts:
        return {tp: self._says.of(tp) + self._known.get(tp, Account()) for tp in {*self._says.accounts, *self._known}}

    def _besides(self, tp: TopicPartition) -> tuple[tuple[Span, ...], int | None, str]:
        both = self._says.of(tp) + self._known.get(tp, Account())
        return both.reported, both.start, both.topic_id

    def _is_odd(self, snapshot_id: int | None) -> bool:
        """Whether this cannot be the next snapshot of a table that only grows."""
        if snapshot_id == self._last:
            return self._landed_since
        return snapshot_id in self._seen or (snapshot_id is None and bool(self._seen))

    def _may_be_shared(self, snapshot_id: int | None) -> bool:
        """Return whether another group may have begun to write since the last look.

        Two groups that begin at the same time both see a table without rows of the other. From the first landed write
        on, each ledger shows its group, so one more look before the second write finds the other group.
        """
        return self._landings <= 1 and bool(self._group_id) and snapshot_id != self._reading.snapshot_id

    def _see(self, snapshot_id: int | None) -> None:
        if snapshot_id != self._last or not self._seen:
            self._seen.add(snapshot_id)
            self._last, self._landed_since = snapshot_id, False
            if snapshot_id is not None:
                self._passed = (snapshot_id, *self._passed)

    def _look_in_time(self, session: SparkSession) -> None:
        try:
            with line_of(session).within(self._answer_seconds, f"it was asked what {self.target} holds"):
                self._look(session)
        except PySparkException as error:
            raise unreadable(error, self.target) or error from error

    def _look(self, session: SparkSession) -> None:
        began_at = time.monotonic()
        landed = tuple(self._replacing)  # before the snapshot is read: what lands meanwhile is not in it
        snapshot_id, snapshots = self._now(session)
        before, is_odd = total((self._says.accounts, self._written)), self._is_odd(snapshot_id)
        line_before, self._passed = (*self._passed, *self._reading.chain), ()
        known_as_of, self._known_as_of = self._known_as_of, {snapshot_id}
        if is_new := snapshot_id is None or snapshot_id != self._reading.snapshot_id:
            self._reading = self._read(session, snapshot_id, snapshots)
            took = time.monotonic() - began_at
            self._look_at = began_at + min(took / _LOOK_SHARE, _LONGEST_SECONDS)
        if is_new or self._written:
            self._says = self._reading.ledger  # without what was believed, which proves nothing of what others wrote
            line = self._reading.chain
            was_set_back, went_on = is_set_back(line, line_before), goes_on(line, known_as_of)
            self._check(before, is_odd=is_odd, was_set_back=was_set_back, went_on=went_on)
            self._check_replaced(landed, snapshots, snapshot_id, was_set_back=was_set_back)
            self._written = {}
        self._see(snapshot_id)

    def _now(self, session: SparkSession) -> tuple[int | None, Mapping[int, Snapshot]]:
        """The current snapshot, and the newest ones unless it is the one that is known: as of one moment.

        What is current may be expired before its history is read; the table has gone on then, and is asked anew.
        """
        for _ in range(_ATTEMPTS):
            self._table.refresh(session)  # a catalog that caches shows what others committed half a minute late
            snapshot_id = self._table.current(session)
            if snapshot_id in (None, self._reading.snapshot_id, self._read_before.snapshot_id):
                return snapshot_id, {}
            snapshots = newest(session, self._table)
            if snapshot_id in snapshots:
                break
        return snapshot_id, snapshots

    def _check(self, before: Accounts, *, is_odd: bool, was_set_back: bool, went_on: bool) -> None:
        """Whether all is there that was there before; where the table cannot tell, what was known goes on to be so.

        Not where it was set back, or may have been: that costs rework, and else was told on as if the rows were there.
        """
        kept = dict(self._says.accounts)
        for tp, account in before.items():
            now = self._says.of(tp)
            if now.complete or was_set_back or (is_odd and tp in self._written):
                known = account if now.complete or was_set_back else self._written[tp]
                self._lacking += [OffsetRange(*tp, *span) for span in difference(known.done, now.done)]
            elif went_on:
                kept[tp] = replace(now + account, complete=False)
        self._says = replace(self._says, accounts=kept)
        if lacking := self._lacking:  # for good: this process cannot go on as if nothing had been
            raise RowsMissingError(
                f"table {self.target} lacks {names(lacking)}, {sum(r.size for r in lacking):,} offsets that it held "
                "while this run was at work: it was dropped, replaced or rolled back, and what was committed of "
                "them is missing. Restore the table; or set on_missing_rows='crash_lag': the next live run owes "
                "it again",
                lacking,
            )

    def _check_replaced(
        self,
        landed: Sequence[tuple[int | None, Accounts]],
        snapshots: Mapping[int, Snapshot],
        snapshot_id: int | None,
        *,
        was_set_back: bool,
    ) -> None:
        """Check that rows which this process replaced are its own, and not the former rows again.

        A replacement is in the table if a snapshot after the one it began with wrote its offsets. After that, only a
        roll back removes it. If the snapshots in between expired, nothing shows it, and it counts as written.
        """
        former: list[OffsetRange] = []
        for began_with, replaced in landed:
            wrote = written_since(snapshots, snapshot_id, began_with)
            if wrote is None and not snapshots:
                continue  # the snapshots were not read this time
            self._replacing.remove((began_with, replaced))
            self._replaced = total((self._replaced, replaced))
            if wrote is None:
                continue
            for tp, one in replaced.items():
                former += [OffsetRange(*tp, *s) for s in difference(one.done, wrote.get(tp, Account()).done)]
        if was_set_back:
            former = [OffsetRange(*tp, *span) for tp, one in self._replaced.items() for span in one.done]
        if former:
            raise RowsMissingError(
                f"Table {self.target} was rolled back while this run replaced {names(former)}, "
                f"{sum(r.size for r in former):,} offsets. It contains the former rows of some of them again. "
                "Fix: materialize the partition again."
            )

    def _read(self, session: SparkSession, snapshot_id: int | None, snapshots: Mapping[int, Snapshot]) -> Reading:
        if snapshot_id is None:
            return NOTHING_READ
        if snapshot_id == self._read_before.snapshot_id:
            return self._read_before
        found = lineage(snapshots, snapshot_id)
        if not found.complete and len(snapshots) >= NEWEST:
            known = without_texts(session, self._table)
            found = lineage(known, snapshot_id)
            snapshots = known | of(session, self._table, {*found.path, *found.summed_up})
        self._seen |= set(snapshots)
        return Reading(snapshot_id, read_ledger(snapshots, found), chain(snapshots, snapshot_id))


def _by_partition(ranges: Iterable[OffsetRange]) -> dict[TopicPartition, tuple[Span, ...]]:
    found = total({r.topic_partition: Account((r.span,))} for r in ranges)
    return {tp: account.done for tp, account in found.items()}
