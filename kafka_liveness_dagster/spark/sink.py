"""Interface for custom sinks, which replace the rows of a batch and may be a ledger.

The built-in sink is ``spark.table.write``. ``docs/sinks.md`` has three custom sinks. Contains no code for a
storage, and imports nothing of Spark before a batch is written.

>>> from kafka_liveness_dagster.core.offsets import OffsetRange
>>> Replacement(None, (OffsetRange("orders", 3, 70, 120),), lambda: None).condition
"(`topic` = 'orders' AND (`partition` = 3 AND `offset` >= 70 AND `offset` < 120))"
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kafka_liveness_dagster.core.ledger import (
    ALL_OFFSETS,
    WRITTEN_KEY,
    Ledger,
    LedgerEntry,
    decode_entries,
    encode_entries,
    merge_entries,
)
from kafka_liveness_dagster.core.names import sink_name
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.sink_ledger import LedgerCommit, LedgerHistory, LedgerRecord
from kafka_liveness_dagster.spark.ranges import describe, ranges_condition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from kafka_liveness_dagster.core.ledger import LedgerEntries
    from kafka_liveness_dagster.core.offsets import Span, TopicPartition
    from kafka_liveness_dagster.core.sink_ledger import LaneLedger
    from kafka_liveness_dagster.spark.table.write import WriteResult


@dataclass(frozen=True)
class Replacement:
    """One batch for a sink: its rows replace all rows of these ranges in the sink.

    Attributes:
        rows: rows from the transform, with the columns topic, partition, offset and any others. An offset may
            have none, one or many rows. Spark computes the rows when they are used, and again with every
            use. A row outside of the ranges fails the job that reads it. The session is
            ``rows.sparkSession``.
        ranges: offsets of the batch, half-open, at least one range. Several partitions and topics are
            possible.
        raise_if_fenced: raises if this process may not write any more, because it is fenced or Spark was
            canceled. Call it before the commit, before every other step that readers can see, and before
            each new attempt.
        ledger_text: entry of the batch in the sink's ledger, up to a few kilobytes. A sink that has
            ``ledger_commits()`` stores it in the same transaction as the rows. Empty without a ledger.
    """

    rows: DataFrame
    ranges: tuple[OffsetRange, ...]
    raise_if_fenced: Callable[[], None]
    ledger_text: str = ""

    @property
    def condition(self) -> str:
        """SQL condition on topic, partition and offset for the rows of the ranges."""
        return ranges_condition(self.ranges)


class Sink(Protocol):
    """A callable that takes a :class:`Replacement`; ``kafka_asset(sink=...)``.

    The run calls it once for each attempt at a batch, in its own thread. It commits the offsets after the
    sink returned. Without that commit the same offsets are retried, though batches may have other boundaries.

    1. When the sink returns, it holds exactly ``rows`` for the offsets in ``ranges``. This is true also if
       there is no row, and for any earlier rows, including those of batches with other boundaries.
    2. Rows of other offsets stay as they are.
    3. If the sink raises, or the process dies in it, readers find the former state or the new state. An
       intermediate state is allowed if a retry of the ranges repairs it. Any exception ends the run, and the
       next run begins with the same offsets.
    4. If ``raise_if_fenced`` raises, the sink stops and does not catch the exception.
    5. Two processes may call the sink at once. The two lanes call it with disjoint ranges. Because Spark
       continues the work of a dead client, two calls may also have the same ranges. Document the guarantee of
       your sink for this case.

    Use Spark only in the calling thread: operations of other threads are not canceled at the deadline.
    """

    def __call__(self, replacement: Replacement, /) -> int | None:
        """Replace the rows; return their number if known, for display only, or None."""

    # A sink may also be a ledger, by one of two methods. ``ledger_commits()`` returns each ``SinkCommit``
    # that it stored, with the ``ledger_text`` of its batch. ``covered(ranges)`` returns which of these
    # offsets it has, including offsets without rows. None means that the sink cannot answer now. With either
    # method a crash lag partition is green only if the sink has its offsets, and the runs find pending
    # offsets that an external commit removed. With ``ledger_commits`` the audit certifies each offset.
    # Without a method the two commit logs decide alone.


class SinkCommit(NamedTuple):
    """One commit of a custom sink, as its ``ledger_commits()`` returns it.

    Attributes:
        text: ``ledger_text`` of its batch, or several texts merged by ``merge_ledger_texts``.
        commit_id: the sink's id of the commit, for display only.
        committed_at: time of the commit, as text that sorts. Without it ``ledger_commits`` must return the
            commits in their order.
        rows: number of rows that it wrote.
    """

    text: str
    commit_id: str = ""
    committed_at: str = ""
    rows: int = 0


def merge_ledger_texts(texts: Iterable[str], group_id: str | None = None) -> str:
    """Merge several ledger texts into one, so that a sink keeps few texts.

    Args:
        texts: ledger texts in the order of their commits.
        group_id: consumer group that succeeds the recorded one; the recorded one by default.

    Raises:
        UnknownLedgerFormatError: this version cannot read one of the texts.

    >>> merge_ledger_texts(["orders/ 3:0-70", "orders/ 3:70-120 4:0-9"])
    'orders/ 3:0-120 4:0-9'
    """
    merged = merge_entries(decode_entries(text) for text in texts)
    if group_id is not None:
        merged = {tp: replace(entry, groups=frozenset({group_id})) for tp, entry in merged.items()}
    return encode_entries(merged)


def replace_rows(
    sink: Sink,
    ranges: Sequence[OffsetRange],
    make_frame: Callable[[], DataFrame],
    *,
    may_go_on: Callable[[], None] = lambda: None,
) -> WriteResult:
    """Replace all rows of these ranges in a sink by the rows of a frame.

    Args:
        sink: the sink that writes.
        ranges: offsets of the rows.
        make_frame: returns the rows.
        may_go_on: raises if this process may not write any more.

    Raises:
        TableSchemaError: the rows lack topic, partition and offset, or two columns have one name. The sink
            was not called.
        RowsOutsideBatchError: a row's offset is in none of the ranges.
        UnreadableRecordError: Spark cannot read one of the records.
        Exception: any exception of the sink.
    """
    writing = SinkWrite(sink, ranges, make_frame, may_go_on=may_go_on)
    return writing.execute_with_retries(writing.prepare())


class SinkLedgerAdapter:
    """The ledger of a custom sink, read by its method ``ledger_commits`` or ``covered``.

    Args:
        sink: a sink with one of the two methods.
        group_id: consumer group that writes the rows; empty for a reader.
    """

    def __init__(self, sink: Sink, group_id: str = "") -> None:
        self.target = sink_name(sink)
        self._commits: Callable[[], Iterable[SinkCommit] | None] | None = getattr(
            sink, "ledger_commits", None
        )
        self._covered: Callable[[Sequence[OffsetRange]], Iterable[OffsetRange] | None] | None = getattr(
            sink, "covered", None
        )
        self._groups = frozenset({group_id} if group_id else ())
        self._recorded: dict[TopicPartition, LedgerEntry] = {}

    @classmethod
    def from_sink(cls, sink: Sink, group_id: str = "") -> SinkLedgerAdapter | None:
        """Return the sink's ledger; None for a sink with neither method."""
        is_ledger = hasattr(sink, "ledger_commits") or hasattr(sink, "covered")
        return cls(sink, group_id) if is_ledger else None

    def read(self, partitions: Mapping[TopicPartition, Span]) -> LedgerEntries:
        """Return which of these offsets the sink has.

        Raises:
            UnknownLedgerFormatError: this version cannot read a text of its ``ledger_commits``.
            Exception: any exception of the sink.
        """
        if self._commits is not None:
            history = self.prove()
            ledger = Ledger(is_complete=False) if history is None else history.ledger
            return {tp: ledger.entry(tp) for tp in partitions}
        ranges = [OffsetRange(*tp, *span) for tp, span in partitions.items() if span.size]
        ranges_held = self._covered(ranges) if self._covered is not None else None
        found = merge_entries({r.topic_partition: LedgerEntry((r.span,))} for r in ranges_held or ())
        unknown = ALL_OFFSETS if ranges_held is None else ()
        return {tp: found.get(tp, LedgerEntry(unknown=unknown)) for tp in partitions}

    def assume_written(self, entries: LedgerEntries) -> None:
        """Do nothing: a sink keeps its commits, or the next read calls its ``covered``."""

    def record(
        self,
        ranges: Sequence[OffsetRange],
        known: LedgerEntries,
        as_of: None = None,  # noqa: ARG002
    ) -> LedgerRecord:
        """Return the ledger text of a batch, for ``Replacement.ledger_text``.

        The text also has the known entries of other partitions, until a commit has recorded them.
        """
        written = merge_entries({r.topic_partition: LedgerEntry((r.span,))} for r in ranges)
        new = {tp: entry for tp, entry in known.items() if tp in written or self._recorded.get(tp) != entry}
        entries = {
            tp: replace(entry, groups=self._groups) for tp, entry in merge_entries((written, new)).items()
        }
        return LedgerRecord({WRITTEN_KEY: encode_entries(entries)}, lambda: self._recorded.update(new))

    def prove(self) -> LedgerHistory | None:
        """Return the sink's commits, the newest first; None if the sink cannot list them.

        Raises:
            UnknownLedgerFormatError: this version cannot read the text of a commit.
            Exception: any exception of the sink.
        """
        found = None if self._commits is None else self._commits()
        if found is None:
            return None
        commits = [
            LedgerCommit(
                one.commit_id, one.committed_at, "", added_rows=one.rows, deleted_rows=0, text=one.text
            )
            for one in sorted(found, key=lambda one: one.committed_at)
        ]
        # Merged in the order of the commits, because the last id of a recreated topic must win
        entries = merge_entries(decode_entries(one.text) for one in commits)
        return LedgerHistory(ledger=Ledger(entries), commits=tuple(reversed(commits)))


@dataclass(frozen=True)
class SinkWrite:
    """One ``replace_rows`` in two steps, prepare and execute, like ``spark.table.write.TableWrite``."""

    sink: Sink
    ranges: Sequence[OffsetRange]
    make_frame: Callable[[], DataFrame]
    may_go_on: Callable[[], None]
    ledger: LaneLedger | None = None

    def prepare(self) -> Callable[[], int | None]:
        """Make the frame and return a function that calls the sink with it."""
        from kafka_liveness_dagster.spark.row_guard import require_rows_in_ranges  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.schema_check import require_row_columns  # noqa: PLC0415 - see execute_with_retries

        self.may_go_on()
        frame = self.make_frame()
        require_row_columns(frame, f"the rows for {sink_name(self.sink)}")
        self.may_go_on()
        rows = require_rows_in_ranges(frame, self.ranges)
        record = LedgerRecord({}, lambda: None)
        if self.ledger is not None:
            record = self.ledger.record(self.ranges, None)
        replacement = Replacement(
            rows, tuple(self.ranges), self.may_go_on, record.properties.get(WRITTEN_KEY, "")
        )

        def replace_and_record() -> int | None:
            rows_written = self.sink(replacement)
            record.mark_committed()
            return rows_written

        return replace_and_record

    def execute_with_retries(self, execute: Callable[[], int | None]) -> WriteResult:
        """Execute the write once; a sink is never called twice for one write."""
        from pyspark.errors import PySparkException  # noqa: PLC0415 - a sink is declared where Spark may be absent

        from kafka_liveness_dagster.failpoints import Failpoint, failpoint  # noqa: PLC0415
        from kafka_liveness_dagster.spark.errors import RowsOutsideBatchError, SparkFailedError  # noqa: PLC0415
        from kafka_liveness_dagster.spark.row_guard import metadata_column_advice, row_outside_ranges  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.write import WriteResult  # noqa: PLC0415
        from kafka_liveness_dagster.spark.transform import TransformedBatch  # noqa: PLC0415

        try:
            rows = execute()
        except PySparkException as error:
            if row := row_outside_ranges(error):
                raise RowsOutsideBatchError(
                    f"the transform returned a row of {row}, which is not in the batch "
                    f"{describe(self.ranges)} for {sink_name(self.sink)}. No offset of the batch was "
                    f"committed. Fix: {metadata_column_advice(row)}."
                ) from error
            if isinstance(self.make_frame, TransformedBatch) and (
                unreadable := self.make_frame.unreadable_record(error)
            ):
                raise unreadable from error
            if isinstance(self.make_frame, TransformedBatch) and (bad := self.make_frame.bad_json(error)):
                raise SparkFailedError(
                    f"Batch {describe(self.ranges)} could not be written to {sink_name(self.sink)} ({bad}). "
                    "No offsets were committed; the batch is retried. Fix: correct the schema of from_json, "
                    "or set on_bad_record='dead_letter'"
                ) from error
            raise
        failpoint(Failpoint.AFTER_TABLE_COMMIT)
        return WriteResult(rows, attempts=1, rewrote_files=False)
