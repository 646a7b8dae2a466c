"""Define the ledger of a target as an interface: read it, record a batch in it, prove its offsets.

A ledger belongs to one target (a table, or a custom sink) and one consumer group. It names offsets and never
rows. ``spark.table.ledger`` implements it for Iceberg tables, ``spark.sink`` for custom sinks;
``core.ledger`` has the entries and their text. Decides nothing from an entry: ``core.partition_state`` does.

>>> from kafka_liveness_dagster.core.ledger import encode_entries
>>> from kafka_liveness_dagster.core.offsets import Span, TopicPartition
>>> text = encode_entries({TopicPartition("orders", 3): LedgerEntry((Span(0, 70),))})
>>> commit = LedgerCommit(1, "2026-01-01 00:00:00", "append", added_rows=70, deleted_rows=0, text=text)
>>> commit.written[TopicPartition("orders", 3)]
(Span(start=0, end=70),)
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from kafka_liveness_dagster.core.ledger import Ledger, LedgerEntry, decode_summary, merge_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kafka_liveness_dagster.core.ledger import LedgerEntries
    from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition

READ_TIMEOUT_SECONDS = 25.0
"""Time limit of a read of a ledger outside of batches, where no watchdog limits it."""
AsOf_contra = TypeVar("AsOf_contra", contravariant=True)


class LedgerRecord(NamedTuple):
    """The record of one batch, on its way into the target.

    Attributes:
        properties: names and texts that the writer stores in the same commit as the rows.
        mark_committed: called once, after the target has both.
    """

    properties: Mapping[str, str]
    mark_committed: Callable[[], None]


@dataclass(frozen=True)
class LedgerCommit:
    """One commit of the target's visible history.

    Attributes:
        commit_id: the target's id of it: an Iceberg snapshot id, or a custom sink's own id.
        committed_at: time of the commit, as the target shows it; empty if it keeps none.
        operation: Iceberg's word: append, overwrite, delete, replace (maintenance); empty for a sink.
        added_rows, deleted_rows: counts of the target; 0 if it keeps none.
        text: the recorded entries, see ``core.ledger``; empty for a commit of another writer.
        parent_id: the commit before it; None for the first one. It may be expired.
    """

    commit_id: int | str
    committed_at: str
    operation: str
    _: KW_ONLY
    added_rows: int
    deleted_rows: int
    text: str = ""
    parent_id: int | None = None

    @property
    def written(self) -> dict[TopicPartition, tuple[Span, ...]]:
        """The offsets that the commit wrote.

        Raises:
            UnknownLedgerFormatError: the text cannot be read.
        """
        return {tp: entry.written for tp, entry in decode_summary(self.commit_id, self.text).items()}


@dataclass(frozen=True)
class LedgerHistory:
    """The proof of a target's offsets at one moment, from metadata alone.

    Attributes:
        snapshot_id: the table's current snapshot; None for a table without one, and for a sink.
        ledger: entries of all commits together.
        commits: commits that led to the current state, the newest first.
    """

    snapshot_id: int | None = None
    ledger: Ledger = field(default_factory=Ledger)
    commits: tuple[LedgerCommit, ...] = ()


class ReadableLedger(Protocol):
    """A ledger that can only be read, as the sensor and ``status`` do."""

    @property
    def target(self) -> str:
        """The table's name, or the sink's."""

    def read(self, partitions: Mapping[TopicPartition, Span]) -> LedgerEntries | None:
        """Return which of these offsets the target has, as of now.

        A partition that is left out has no rows. None means that the target gave no response, which proves
        nothing.

        Args:
            partitions: partitions, each with the requested span; a ledger may return more.

        Raises:
            RowsMissingError: the target lost rows that this process wrote, or read before.
        """


class SinkLedger(ReadableLedger, Protocol[AsOf_contra]):
    """The ledger of one target; ``AsOf_contra`` is the state of the target that a write is validated from."""

    def assume_written(self, entries: LedgerEntries) -> None:
        """Complete the entries of the last read by what the commit logs prove.

        Called directly after a read whose entries are not ``is_complete``, because the target's history
        expired. A ledger that never loses history does nothing.
        """

    def record(self, ranges: Sequence[OffsetRange], known: LedgerEntries, as_of: AsOf_contra) -> LedgerRecord:
        """Return the record of a batch, which the writer commits together with its rows.

        Args:
            ranges: the offsets that the write replaces.
            known: facts that the target does not have yet: group start, topic id, offsets written off.
            as_of: the state of the target that the write is validated from.

        Raises:
            RowsMissingError: the target lost rows that this process wrote, or read before.
            GroupMismatchError: the target has rows of these topics that another group wrote.
        """

    def prove(self) -> LedgerHistory | None:
        """Return the target's commits and their entries together; None if it cannot list its commits."""


class LaneLedger:
    """The ledger of one lane: the target's ledger, with the lane's facts that the target lacks.

    Args:
        target: the table's name, or the sink's.
        open_ledger: returns the ledger of the target. Called once, by the first read: a table's ledger
            imports PySpark, which takes half a second.
    """

    def __init__(self, target: str, open_ledger: Callable[[], SinkLedger[Any]]) -> None:
        self.target = target
        self._open_ledger = open_ledger
        self._known: dict[TopicPartition, LedgerEntry] = {}

    @classmethod
    def of(cls, ledger: SinkLedger[Any] | LaneLedger | None) -> LaneLedger | None:
        """Return the ledger for one lane; the same object if it already is a lane's ledger."""
        if ledger is None or isinstance(ledger, LaneLedger):
            return ledger
        return cls(ledger.target, lambda: ledger)

    @cached_property
    def _ledger(self) -> SinkLedger[Any]:
        return self._open_ledger()

    def read(self, partitions: Mapping[TopicPartition, Span]) -> LedgerEntries | None:
        """Return which offsets the target has, with the lane's written-off offsets.

        Returns and raises the same as the target's ledger.
        """
        entries = self._ledger.read(partitions)
        if entries is None:
            return None
        return {tp: entry + self._written_off(tp) for tp, entry in entries.items()}

    def add_known(self, entries: LedgerEntries) -> None:
        """Keep facts for each write to record: where the group began, and the offsets written off."""
        self._known = merge_entries((self._known, entries))

    def assume_written(self, entries: LedgerEntries) -> None:
        """Complete the entries of the last read by what the commit logs prove."""
        self._ledger.assume_written(entries)

    def record(self, ranges: Sequence[OffsetRange], as_of: object) -> LedgerRecord:
        """Return the record of a batch, with all facts of the lane."""
        return self._ledger.record(ranges, self._known, as_of)

    def _written_off(self, tp: TopicPartition) -> LedgerEntry:
        return LedgerEntry(written_off=self._known[tp].written_off if tp in self._known else ())
