"""Judge whether the rows of a table agree with the ledger and with the records of the topic.

Takes counts of offsets and returns sentences; never reads a row. A finding names stretches of the log, so its
text is as short for a million offsets as for ten.

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
    """A number of offsets within ``[start, end)``, of which the first and the last belong to them."""

    start: int
    end: int
    offsets: int

    def __str__(self) -> str:
        span = str(Span(self.start, self.end))
        return span if self.is_dense else f"{self.offsets:,} within {span}"

    @property
    def is_dense(self) -> bool:
        """Return whether the run has every offset of its range."""
        return self.offsets == self.end - self.start


def merge_dense(stretches: Iterable[OffsetRun]) -> tuple[OffsetRun, ...]:
    """Return the same offsets in order, with adjacent dense runs merged."""
    found: list[OffsetRun] = []
    for one in sorted(stretches, key=lambda stretch: stretch.start):
        if found and found[-1].end == one.start and found[-1].is_dense and one.is_dense:
            found[-1] = OffsetRun(found[-1].start, one.end, found[-1].offsets + one.offsets)
        else:
            found.append(one)
    return tuple(found)


@dataclass(frozen=True)
class RowComparison:
    """The comparison of a partition's rows with the ledger and the topic's records.

    Attributes:
        rows: the number of rows in the table.
        outside: offsets with rows that neither the ledger nor a commit log proves done.
        unrecorded: offsets between log start and log end that have rows, but no record in the topic.
        without_rows: offsets that are done and have a record, but no row. The transform dropped the record,
            or another writer deleted the rows.
        doubled: offsets with rows that are equal in every column.
        compacted: whether the topic is compacted, so its cleanup may have removed records.
    """

    rows: int = 0
    outside: tuple[OffsetRun, ...] = ()
    unrecorded: tuple[OffsetRun, ...] = ()
    _: KW_ONLY
    without_rows: tuple[OffsetRun, ...] = ()
    doubled: tuple[OffsetRun, ...] = ()
    compacted: bool = False

    def faults(self) -> Iterator[str]:
        """Yield the findings that fail the audit, each with its fix."""
        if self.outside:
            yield (
                f"Rows of {_describe_runs(self.outside)} are not recorded as done: another program writes "
                "to the table. Fix: delete those rows"
            )
        if self.unrecorded and not self.compacted:
            yield (
                f"Rows of {_describe_runs(self.unrecorded)} have no record in the topic: they are of another "
                "log, or were never in one. Fix: find their writer; the audit lists the commits by others"
            )

    def notes(self) -> Iterator[str]:
        """Yield the findings that do not fail the audit."""
        yield f"{self.rows:,} rows were compared"
        if self.without_rows:
            yield f"no row for the record of {_describe_runs(self.without_rows)}"
        if self.doubled:
            yield f"rows of {_describe_runs(self.doubled)} are equal in every column"
        if self.unrecorded and self.compacted:
            yield (
                f"rows of {_describe_runs(self.unrecorded)} have no record any more: the topic is compacted"
            )


def count_offsets(offsets: int) -> str:
    """Return a number of offsets with its noun: ``1 offset``, ``1,000 offsets``."""
    return f"{offsets:,} offset{'' if offsets == 1 else 's'}"


def _describe_runs(found: tuple[OffsetRun, ...]) -> str:
    total = sum(one.offsets for one in found)
    rest = len(found) - _MAX_SHOWN
    named = ", ".join(map(str, found[:_MAX_SHOWN])) + (f" and {rest} more stretches" if rest > 0 else "")
    return f"{count_offsets(total)} ({named})"
