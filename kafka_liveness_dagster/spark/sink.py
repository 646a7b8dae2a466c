"""What must a sink of your own do? Hold exactly these rows of these offsets, whatever it held of them before.

The built-in sink is ``iceberg.write``. This module is the seam for any other, and ``docs/sinks.md`` has two of them.
Knows no storage, and imports nothing of Spark before a batch is written.

>>> from kafka_liveness_dagster.core.offsets import OffsetRange
>>> Replacement(None, (OffsetRange("orders", 3, 70, 120),), lambda: None).condition
"(`topic` = 'orders' AND `partition` = 3 AND `offset` >= 70 AND `offset` < 120)"
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kafka_liveness_dagster.core.ledger import Account, total
from kafka_liveness_dagster.core.names import name_of_sink
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.spark.ranges import condition, names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from kafka_liveness_dagster.core.ledger import Accounts
    from kafka_liveness_dagster.core.offsets import Span, TopicPartition
    from kafka_liveness_dagster.spark.table.write import Written


@dataclass(frozen=True)
class Replacement:
    """One batch on its way into a sink: these rows instead of all that the sink holds of these ranges.

    Attributes:
        rows: what the transform made of the batch: topic, partition, offset and whatever else; none, one or many rows
            an offset. Spark computes them when they are used, and again with every use. A row outside of the ranges
            fails the job that comes upon it. The session is ``rows.sparkSession``.
        ranges: the offsets of the batch, half-open, at least one range; several partitions and topics are possible.
        may_go_on: raises when this process may not write any more: it is fenced, or Spark was cancelled. Call it
            before every step that others can see, the one that commits above all, and before each new attempt.
    """

    rows: DataFrame
    ranges: tuple[OffsetRange, ...]
    may_go_on: Callable[[], None]

    @property
    def condition(self) -> str:
        """The rows of the ranges, as an SQL condition on topic, partition and offset."""
        return condition(self.ranges)


class Sink(Protocol):
    """Anything that can be called with a :class:`Replacement`; ``kafka_asset(sink=...)``.

    Called once for each attempt at a batch, in the thread of the run; offsets are committed after it returned. A batch
    whose offsets were not committed comes again: the same offsets, though not in the same batches.

    1. When it returns, the sink holds exactly ``rows`` of the offsets in ``ranges``: also where that is no row, and
       whatever it held before, from batches with other boundaries too.
    2. Rows of other offsets stay as they are.
    3. When it raises, or the process dies in it, readers find the former state, or the new one, or one that is mended
       when the ranges are written again. Any exception ends the run, and the next run begins with the same offsets.
    4. It comes to an end when ``may_go_on`` raises, and lets that exception pass.
    5. Two processes may call it at once: with disjoint ranges, as the two lanes do; and, since Spark goes on with what
       a dead client began, with the same ones. Say what yours guarantees then.

    Use Spark in the thread you are called in: what other threads begin is not cancelled at the deadline.
    """

    def __call__(self, replacement: Replacement, /) -> int | None:
        """Replace; give the number of rows when it is known, for people to see."""

    # A sink may also have ``covered(ranges)``: which of these offsets it holds, offsets without rows included; what it
    # leaves out was never written, or was lost. None says that it cannot tell. With it a crash lag partition is green
    # only when the sink says so, and what somebody else's commit made the group forget is owed again. Without it the
    # two commit logs are all there is to ask.


def replace(
    sink: Sink,
    ranges: Sequence[OffsetRange],
    make_frame: Callable[[], DataFrame],
    *,
    may_go_on: Callable[[], None] = lambda: None,
) -> Written:
    """Have a sink hold exactly these rows for these ranges.

    Args:
        sink: who writes.
        ranges: the offsets the rows come from.
        make_frame: gives the rows.
        may_go_on: raises when this process may not write any more.

    Raises:
        TableSchemaError: the rows lack topic, partition and offset, or two columns have one name; the sink was not
            called.
        RowsOutsideBatchError: a row's offset is in none of the ranges.
        UnreadableRecordError: Spark cannot read one of the records.
        Exception: whatever the sink raised.
    """
    writing = SinkWrite(sink, ranges, make_frame, may_go_on)
    return writing.finish(writing.begin())


@dataclass(frozen=True)
class SinkWitness:
    """What a sink says that it holds, for the lanes to ask; see :meth:`Sink.covered`."""

    covered: Callable[[Sequence[OffsetRange]], Iterable[OffsetRange] | None]
    target: str
    _learned: dict[TopicPartition, Account] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, sink: Sink) -> SinkWitness | None:
        """The sink itself where it can be asked."""
        covered = getattr(sink, "covered", None)
        return None if covered is None else cls(covered, name_of_sink(sink))

    def accounts(self, asked: Mapping[TopicPartition, Span]) -> Accounts:
        """What the sink holds of these offsets, and what this process learned of reported ones."""
        ranges = [OffsetRange(*tp, *span) for tp, span in asked.items() if span.size]
        ranges_held = self.covered(ranges)
        found = total({r.topic_partition: Account((r.span,))} for r in ranges_held or ())
        held = {tp: found.get(tp, Account(complete=ranges_held is not None)) for tp in asked}
        return {tp: one + self._learned[tp] if tp in self._learned else one for tp, one in held.items()}

    def learn(self, accounts: Accounts) -> None:
        """A sink is told nothing: the reported offsets are known while this process runs."""
        self._learned.update(total((self._learned, {tp: Account(reported=a.reported) for tp, a in accounts.items()})))

    def believe(self, accounts: Accounts) -> None:
        """A sink is told nothing."""


@dataclass(frozen=True)
class SinkWrite:
    """One ``replace`` in halves, like ``iceberg.TableWrite``."""

    sink: Sink
    ranges: Sequence[OffsetRange]
    make_frame: Callable[[], DataFrame]
    may_go_on: Callable[[], None]

    def begin(self) -> Callable[[], int | None]:
        """Make the frame; gives what calls the sink."""
        from kafka_liveness_dagster.spark.row_guard import inside  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.schema_check import check_rows  # noqa: PLC0415 - see finish

        self.may_go_on()
        frame = self.make_frame()
        check_rows(frame, f"the rows for {name_of_sink(self.sink)}")
        self.may_go_on()
        replacement = Replacement(inside(frame, self.ranges), tuple(self.ranges), self.may_go_on)
        return lambda: self.sink(replacement)

    def finish(self, execute: Callable[[], int | None]) -> Written:
        """Have it executed; a sink is not called again by itself."""
        from pyspark.errors import PySparkException  # noqa: PLC0415 - a sink is declared where Spark may be absent

        from kafka_liveness_dagster.failpoints import Failpoint, failpoint  # noqa: PLC0415
        from kafka_liveness_dagster.spark.errors import RowsOutsideBatchError  # noqa: PLC0415
        from kafka_liveness_dagster.spark.row_guard import kept, stray  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.write import Written  # noqa: PLC0415
        from kafka_liveness_dagster.spark.transform import Transformed  # noqa: PLC0415

        try:
            rows = execute()
        except PySparkException as error:
            if row := stray(error):
                raise RowsOutsideBatchError(
                    f"the transform gave a row of {row}, which is not in the batch {names(self.ranges)} for "
                    f"{name_of_sink(self.sink)}: {kept(row)}"
                ) from error
            if isinstance(self.make_frame, Transformed) and (unreadable := self.make_frame.unreadable(error)):
                raise unreadable from error
            raise
        failpoint(Failpoint.AFTER_TABLE_COMMIT)
        return Written(rows, attempts=1, rewritten=False)
