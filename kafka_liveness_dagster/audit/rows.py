"""Do the rows of a table agree with what the ledger says is done, and with the records of the topic?

Told counts of offsets, gives sentences; never sees a row. Where the offsets of one finding lie is known by stretches of
the log, so that what is told of a million offsets is as short as of ten.

>>> print(*joined([Stretch(0, 4, 2), Stretch(70, 80, 10), Stretch(80, 120, 40)]), sep=", ")
2 within 0-4, 70-120
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.offsets import Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SHOWN = 6  # stretches in a sentence


@dataclass(frozen=True)
class Stretch:
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


def joined(stretches: Iterable[Stretch]) -> tuple[Stretch, ...]:
    """The same offsets; what is dense and touches becomes one."""
    found: list[Stretch] = []
    for one in sorted(stretches, key=lambda stretch: stretch.start):
        if found and found[-1].end == one.start and found[-1].is_dense and one.is_dense:
            found[-1] = Stretch(found[-1].start, one.end, found[-1].offsets + one.offsets)
        else:
            found.append(one)
    return tuple(found)


@dataclass(frozen=True)
class RowFindings:
    """What a partition's rows say beside the ledger and the topic's records.

    Attributes:
        rows: how many the table has.
        outside: offsets with rows of which no witness says that they are done.
        unrecorded: offsets with rows between log start and log end, of which the topic has no record.
        without_rows: records that are done and have no row: the transform dropped them, or somebody deleted rows.
        doubled: offsets with rows that are equal in every column.
        compacted: the topic's own cleanup may have removed records that were there.
    """

    rows: int = 0
    outside: tuple[Stretch, ...] = ()
    unrecorded: tuple[Stretch, ...] = ()
    without_rows: tuple[Stretch, ...] = ()
    doubled: tuple[Stretch, ...] = ()
    compacted: bool = False

    def faults(self) -> Iterator[str]:
        """What cannot be, and what helps."""
        if self.outside:
            yield (
                f"rows of which nobody says that they are done, of {_offsets(self.outside)}: another program writes to "
                "the table. Delete those rows"
            )
        if self.unrecorded and not self.compacted:
            yield (
                f"rows without a record in the topic, of {_offsets(self.unrecorded)}: they are of another log, or were "
                "never in one. Look whose they are"
            )

    def notes(self) -> Iterator[str]:
        """What may be, and should be known."""
        yield f"{self.rows:,} rows were compared"
        if self.without_rows:
            yield f"no row for the record of {_offsets(self.without_rows)}"
        if self.doubled:
            yield f"rows that are equal in every column, of {_offsets(self.doubled)}"
        if self.unrecorded and self.compacted:
            yield f"rows without a record any more, of {_offsets(self.unrecorded)}: the topic is compacted"


def counted(offsets: int) -> str:
    """``1 offset``, ``1,000 offsets``."""
    return f"{offsets:,} offset{'' if offsets == 1 else 's'}"


def _offsets(found: tuple[Stretch, ...]) -> str:
    total, rest = sum(one.offsets for one in found), len(found) - _SHOWN
    named = ", ".join(map(str, found[:_SHOWN])) + (f" and {rest} more stretches" if rest > 0 else "")
    return f"{counted(total)} ({named})"
