"""Do the rows of a table agree with what the ledger says is done, and with the records of the topic?

Told counts of offsets, gives sentences; never sees a row. Where the offsets of one finding lie is known by
stretches of the log, so that what is told of a million offsets is as short as of ten.

>>> print(*merge_dense([OffsetRun(0, 4, 2), OffsetRun(70, 80, 10), OffsetRun(80, 120, 40)]), sep=", ")
2 within 0-4, 70-120
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.offsets import Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAX_SHOWN = 6  # stretches in a sentence


@dataclass(frozen=True)
class OffsetRun:
    """So many offsets, somewhere in ``[start, end)``: its first and its last are among them."""

    start: int
    end: int
    offsets: int

    def __str__(self) -> str:
        span = str(Span(self.start, self.end))
        return span if self.is_dense else f"{self.offsets:,} within {span}"

    @property
    def is_dense(self) -> bool:
        """Whether it is all of them."""
        return self.offsets == self.end - self.start


def merge_dense(stretches: Iterable[OffsetRun]) -> tuple[OffsetRun, ...]:
    """The same offsets; what is dense and touches becomes one."""
    found: list[OffsetRun] = []
    for one in sorted(stretches, key=lambda stretch: stretch.start):
        if found and found[-1].end == one.start and found[-1].is_dense and one.is_dense:
            found[-1] = OffsetRun(found[-1].start, one.end, found[-1].offsets + one.offsets)
        else:
            found.append(one)
    return tuple(found)


@dataclass(frozen=True)
class RowComparison:
    """What a partition's rows say beside the ledger and the topic's records.

    Attributes:
        rows: how many the table has.
        outside: offsets with rows that no record proves done.
        unrecorded: offsets with rows between log start and log end, of which the topic has no record.
        without_rows: records that are done and have no row: the transform dropped them, or somebody deleted
            rows.
        doubled: offsets with rows that are equal in every column.
        compacted: the topic's own cleanup may have removed records that were there.
    """

    rows: int = 0
    outside: tuple[OffsetRun, ...] = ()
    unrecorded: tuple[OffsetRun, ...] = ()
    _: KW_ONLY
    without_rows: tuple[OffsetRun, ...] = ()
    doubled: tuple[OffsetRun, ...] = ()
    compacted: bool = False

    def faults(self) -> Iterator[str]:
        """What cannot be, and what helps."""
        if self.outside:
            yield (
                f"rows of which nobody says that they are done, of {_describe_runs(self.outside)}: another "
                "program writes to the table. Delete those rows"
            )
        if self.unrecorded and not self.compacted:
            yield (
                f"rows without a record in the topic, of {_describe_runs(self.unrecorded)}: they are of "
                "another log, or were never in one. Look whose they are"
            )

    def notes(self) -> Iterator[str]:
        """What may be, and should be known."""
        yield f"{self.rows:,} rows were compared"
        if self.without_rows:
            yield f"no row for the record of {_describe_runs(self.without_rows)}"
        if self.doubled:
            yield f"rows that are equal in every column, of {_describe_runs(self.doubled)}"
        if self.unrecorded and self.compacted:
            yield (
                f"rows without a record any more, of {_describe_runs(self.unrecorded)}: the topic is "
                "compacted"
            )


def count_offsets(offsets: int) -> str:
    """``1 offset``, ``1,000 offsets``."""
    return f"{offsets:,} offset{'' if offsets == 1 else 's'}"


def _describe_runs(found: tuple[OffsetRun, ...]) -> str:
    total = sum(one.offsets for one in found)
    rest = len(found) - _MAX_SHOWN
    named = ", ".join(map(str, found[:_MAX_SHOWN])) + (f" and {rest} more stretches" if rest > 0 else "")
    return f"{count_offsets(total)} ({named})"
