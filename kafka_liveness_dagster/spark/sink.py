"""What must a sink of your own do? Hold exactly these rows of these offsets, whatever it held of them before.

The built-in sink is ``spark.table.write``. This module is the seam for any other; ``docs/sinks.md`` has two
of them. Knows no storage, and imports nothing of Spark before a batch is written.

>>> from kafka_liveness_dagster.core.offsets import OffsetRange
>>> Replacement(None, (OffsetRange("orders", 3, 70, 120),), lambda: None).condition
"(`topic` = 'orders' AND `partition` = 3 AND `offset` >= 70 AND `offset` < 120)"
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kafka_liveness_dagster.core.ledger import LedgerEntry, merge_entries
from kafka_liveness_dagster.core.names import sink_name
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.spark.ranges import describe, ranges_condition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from kafka_liveness_dagster.core.ledger import LedgerEntries
    from kafka_liveness_dagster.core.offsets import Span, TopicPartition
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
    """

    rows: DataFrame
    ranges: tuple[OffsetRange, ...]
    raise_if_fenced: Callable[[], None]

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

    # A sink may also have ``covered(ranges)``: which of these offsets it holds, offsets without rows
    # included; what it leaves out was never written, or was lost. None says that it cannot tell. With it a
    # crash lag partition is green only when the sink says so, and what somebody else's commit made the group
    # forget is owed again. Without it the two commit logs are all there is to ask.


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


@dataclass(frozen=True)
class SinkLedgerAdapter:
    """What a sink says that it holds, for the lanes to ask; see :meth:`Sink.covered`."""

    covered: Callable[[Sequence[OffsetRange]], Iterable[OffsetRange] | None]
    target: str
    _known: dict[TopicPartition, LedgerEntry] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_sink(cls, sink: Sink) -> SinkLedgerAdapter | None:
        """The sink itself where it can be asked."""
        covered = getattr(sink, "covered", None)
        return None if covered is None else cls(covered, sink_name(sink))

    def entries(self, partitions: Mapping[TopicPartition, Span]) -> LedgerEntries:
        """What the sink holds of these offsets, and what this process learned of reported ones."""
        ranges = [OffsetRange(*tp, *span) for tp, span in partitions.items() if span.size]
        ranges_held = self.covered(ranges)
        found = merge_entries({r.topic_partition: LedgerEntry((r.span,))} for r in ranges_held or ())
        held = {tp: found.get(tp, LedgerEntry(is_complete=ranges_held is not None)) for tp in partitions}
        return {tp: one + self._known[tp] if tp in self._known else one for tp, one in held.items()}

    def add_known(self, entries: LedgerEntries) -> None:
        """A sink is told nothing: the reported offsets are known while this process runs."""
        self._known.update(
            merge_entries(
                (self._known, {tp: LedgerEntry(written_off=a.written_off) for tp, a in entries.items()})
            )
        )

    def assume_written(self, entries: LedgerEntries) -> None:
        """A sink is told nothing."""


@dataclass(frozen=True)
class SinkWrite:
    """One ``replace_rows`` in halves, like ``spark.table.write.TableWrite``."""

    sink: Sink
    ranges: Sequence[OffsetRange]
    make_frame: Callable[[], DataFrame]
    may_go_on: Callable[[], None]

    def prepare(self) -> Callable[[], int | None]:
        """Make the frame; gives what calls the sink."""
        from kafka_liveness_dagster.spark.row_guard import require_rows_in_ranges  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.schema_check import require_row_columns  # noqa: PLC0415 - see finish

        self.may_go_on()
        frame = self.make_frame()
        require_row_columns(frame, f"the rows for {sink_name(self.sink)}")
        self.may_go_on()
        replacement = Replacement(
            require_rows_in_ranges(frame, self.ranges), tuple(self.ranges), self.may_go_on
        )
        return lambda: self.sink(replacement)

    def execute_with_retries(self, execute: Callable[[], int | None]) -> WriteResult:
        """Have it executed; a sink is not called again by itself."""
        from pyspark.errors import PySparkException  # noqa: PLC0415 - a sink is declared where Spark may be absent

        from kafka_liveness_dagster.failpoints import Failpoint, failpoint  # noqa: PLC0415
        from kafka_liveness_dagster.spark.errors import RowsOutsideBatchError  # noqa: PLC0415
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
            raise
        failpoint(Failpoint.AFTER_TABLE_COMMIT)
        return WriteResult(rows, attempts=1, rewrote_files=False)
