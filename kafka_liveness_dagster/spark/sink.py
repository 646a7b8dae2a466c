"""Let a custom sink replace the rows of a batch, and be a ledger.

The built-in sink is ``spark.table.write``. This module is the interface for any other; ``docs/sinks.md`` has
three of them. Knows no storage, and imports nothing of Spark before a batch is written.

>>> from kafka_liveness_dagster.core.offsets import OffsetRange
>>> Replacement(None, (OffsetRange("orders", 3, 70, 120),), lambda: None).condition
"(`topic` = 'orders' AND `partition` = 3 AND `offset` >= 70 AND `offset` < 120)"
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
    """One batch on its way into a sink: these rows instead of all that the sink holds of these ranges.

    Attributes:
        rows: what the transform made of the batch: topic, partition, offset and whatever else; none, one or
            many rows an offset. Spark computes them when they are used, and again with every use. A row
            outside of the ranges fails the job that comes upon it. The session is ``rows.sparkSession``.
        ranges: the offsets of the batch, half-open, at least one range; several partitions and topics are
            possible.
        raise_if_fenced: raises when this process may not write any more: it is fenced, or Spark was
            cancelled. Call it before every step that others can see, the one that commits above all, and
            before each new attempt.
        ledger_text: the batch's entry in the sink's ledger, up to a few kilobytes. A sink that has
            ``ledger_commits()`` stores it in the same transaction as the rows. Empty without a ledger.
    """

    rows: DataFrame
    ranges: tuple[OffsetRange, ...]
    raise_if_fenced: Callable[[], None]
    ledger_text: str = ""

    @property
    def condition(self) -> str:
        """The rows of the ranges, as an SQL condition on topic, partition and offset."""
        return ranges_condition(self.ranges)


class Sink(Protocol):
    """Anything that can be called with a :class:`Replacement`; ``kafka_asset(sink=...)``.

    Called once for each attempt at a batch, in the thread of the run; offsets are committed after it
    returned. A batch whose offsets were not committed comes again: the same offsets, though not in the same
    batches.

    1. When it returns, the sink holds exactly ``rows`` of the offsets in ``ranges``: also where that is no
       row, and whatever it held before, from batches with other boundaries too.
    2. Rows of other offsets stay as they are.
    3. When it raises, or the process dies in it, readers find the former state, or the new one, or one that
       is mended when the ranges are written again. Any exception ends the run, and the next run begins with
       the same offsets.
    4. It comes to an end when ``raise_if_fenced`` raises, and lets that exception pass.
    5. Two processes may call it at once: with disjoint ranges, as the two lanes do; and, since Spark goes on
       with what a dead client began, with the same ones. Say what yours guarantees then.

    Use Spark in the thread you are called in: what other threads begin is not cancelled at the deadline.
    """

    def __call__(self, replacement: Replacement, /) -> int | None:
        """Replace; give the number of rows when it is known, for people to see."""

    # A sink may also be a ledger, by one of two methods. ``ledger_commits()`` returns each ``SinkCommit``
    # that it stored, with the ``ledger_text`` of its batch; ``covered(ranges)`` returns which of these
    # offsets it has, offsets without rows included. None: it cannot tell now. With either a crash lag
    # partition is green only when the sink has its offsets, and pending offsets that an external commit
    # removed are found again. With ``ledger_commits`` the audit certifies each offset. Without them both
    # commit logs decide alone.


class SinkCommit(NamedTuple):
    """One commit of a custom sink, as its ``ledger_commits()`` returns it.

    Attributes:
        text: the ``ledger_text`` of its batch, or several merged by ``merge_ledger_texts``.
        commit_id: the sink's id of it, for people.
        committed_at: when it was committed, in a form that sorts; without it ``ledger_commits`` returns
            the commits in their order.
        rows: how many rows it wrote.
    """

    text: str
    commit_id: str = ""
    committed_at: str = ""
    rows: int = 0


def merge_ledger_texts(texts: Iterable[str], group_id: str | None = None) -> str:
    """Return one ledger text in place of several, so that a sink keeps few of them.

    Args:
        texts: in the order of their commits.
        group_id: the consumer group that succeeds the recorded one; that one unless given.

    Raises:
        UnknownLedgerFormatError: one of them cannot be read.

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
    """Have a sink hold exactly these rows for these ranges.

    Args:
        sink: who writes.
        ranges: the offsets the rows come from.
        make_frame: gives the rows.
        may_go_on: raises when this process may not write any more.

    Raises:
        TableSchemaError: the rows lack topic, partition and offset, or two columns have one name; the sink
            was not called.
        RowsOutsideBatchError: a row's offset is in none of the ranges.
        UnreadableRecordError: Spark cannot read one of the records.
        Exception: whatever the sink raised.
    """
    writing = SinkWrite(sink, ranges, make_frame, may_go_on=may_go_on)
    return writing.execute_with_retries(writing.prepare())


class SinkLedgerAdapter:
    """The ledger of a custom sink, by its ``ledger_commits`` or its ``covered``.

    Args:
        sink: has one of both.
        group_id: the consumer group whose rows this process writes; empty for a reader.
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
            UnknownLedgerFormatError: a text of its ``ledger_commits`` cannot be read.
            Exception: whatever the sink raised.
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
        """Do nothing: a sink keeps its commits, or is called again."""

    def record(
        self,
        ranges: Sequence[OffsetRange],
        known: LedgerEntries,
        as_of: None = None,  # noqa: ARG002
    ) -> LedgerRecord:
        """Return the text of a batch, for ``Replacement.ledger_text``.

        It has what is known of other partitions too, until a commit has recorded that.
        """
        written = merge_entries({r.topic_partition: LedgerEntry((r.span,))} for r in ranges)
        new = {tp: entry for tp, entry in known.items() if tp in written or self._recorded.get(tp) != entry}
        entries = {
            tp: replace(entry, groups=self._groups) for tp, entry in merge_entries((written, new)).items()
        }
        return LedgerRecord({WRITTEN_KEY: encode_entries(entries)}, lambda: self._recorded.update(new))

    def prove(self) -> LedgerHistory | None:
        """Return the sink's commits, the newest first; None where it cannot list them.

        Raises:
            UnknownLedgerFormatError: one of their texts cannot be read.
            Exception: whatever the sink raised.
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
        # In the order of the commits: of a recreated topic the last id counts
        entries = merge_entries(decode_entries(one.text) for one in commits)
        return LedgerHistory(ledger=Ledger(entries), commits=tuple(reversed(commits)))


@dataclass(frozen=True)
class SinkWrite:
    """One ``replace_rows`` in halves, like ``spark.table.write.TableWrite``."""

    sink: Sink
    ranges: Sequence[OffsetRange]
    make_frame: Callable[[], DataFrame]
    may_go_on: Callable[[], None]
    ledger: LaneLedger | None = None

    def prepare(self) -> Callable[[], int | None]:
        """Make the frame; gives what calls the sink."""
        from kafka_liveness_dagster.spark.row_guard import require_rows_in_ranges  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.schema_check import require_row_columns  # noqa: PLC0415 - see finish

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
        """Have it executed; a sink is not called again by itself."""
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
                    f"the transform gave a row of {row}, which is not in the batch {describe(self.ranges)} "
                    f"for {sink_name(self.sink)}: {metadata_column_advice(row)}"
                ) from error
            if isinstance(self.make_frame, TransformedBatch) and (
                unreadable := self.make_frame.unreadable_record(error)
            ):
                raise unreadable from error
            if isinstance(self.make_frame, TransformedBatch) and (bad := self.make_frame.bad_json(error)):
                raise SparkFailedError(
                    f"Spark could not write {describe(self.ranges)} to {sink_name(self.sink)} ({bad}). No "
                    "offset of it was committed, and the batch is retried. Fix: correct the schema of "
                    "from_json."
                ) from error
            raise
        failpoint(Failpoint.AFTER_TABLE_COMMIT)
        return WriteResult(rows, attempts=1, rewrote_files=False)
