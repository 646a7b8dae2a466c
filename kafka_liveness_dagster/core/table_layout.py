"""The declared layout of a table, and what maintenance may compact and expire. Never reads a table.

>>> parse_partition_field("bucket(16, customer_id)")
Field(transform='bucket', column='customer_id', buckets=16)
>>> parse_partition_field("topic")
Field(transform='', column='topic', buckets=0)
>>> parse_partition_field("truncate(4, id)")
Traceback (most recent call last):
ValueError: truncate(4, id)
>>> TableLayout().is_by_kafka_partition, TableLayout(partition_by=("days(placed_at)",)).is_by_kafka_partition
(True, False)
>>> SORT_FIELD.matches("placed_at desc nulls last"), PARTITION_FIELD.matches("truncate(4, id)")
(True, False)

Maintenance must keep each file that a lane may still replace, and the snapshots that record the table's
offsets.

>>> compactable_ranges(100, [Span(20, 50)])
(Span(start=0, end=20), Span(start=50, end=100))
>>> expiry_cutoff([90, 80, 70, 60], needed_since=[70], now=100, max_age=25, max_snapshots=9)
70
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from dataclasses import field as _field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

from kafka_liveness_dagster.core.names import NameRule
from kafka_liveness_dagster.core.offsets import Span, difference

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


BY_KAFKA_PARTITION = ("topic", "partition")
_COLUMN = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_FIELD = re.compile(
    rf"(?:(?P<transform>years|months|days|hours)\((?P<time>{_COLUMN})\))"
    rf"|(?:bucket\((?P<buckets>[1-9]\d{{0,8}}), ?(?P<bucketed>{_COLUMN})\))"
    rf"|(?P<itself>{_COLUMN})",
    re.ASCII,
)
_SORT_FIELD = re.compile(rf"{_COLUMN}(?: (?:asc|desc))?(?: nulls (?:first|last))?", re.ASCII | re.IGNORECASE)

PARTITION_FIELD = NameRule(
    "a column, or days(column), hours(…), months(…), years(…), bucket(16, column); for other transforms "
    "create the table yourself, with CREATE TABLE",
    lambda text: _FIELD.fullmatch(text) is not None,
)
SORT_FIELD = NameRule(
    "a column, then optionally ASC or DESC, and NULLS FIRST or NULLS LAST",
    lambda text: _SORT_FIELD.fullmatch(text) is not None,
)


class Field(NamedTuple):
    """A partition field of a table; without a transform it is the column itself."""

    transform: str
    column: str
    buckets: int


@dataclass(frozen=True)
class TableLayout:
    """The declared layout of a table.

    Attributes:
        snapshots: whether a new range is committed by an overwrite of its offsets, or by an append, which
            streaming readers accept. In both cases a retried range replaces its earlier rows.
        partition_by, sort_by, table_properties: settings of a table that is created.
    """

    snapshots: Literal["overwrite", "append"] = "overwrite"
    partition_by: tuple[str, ...] = BY_KAFKA_PARTITION
    sort_by: tuple[str, ...] = ()
    table_properties: Mapping[str, str] = _field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_by_kafka_partition(self) -> bool:
        """Whether no file can contain offsets of two Kafka partitions."""
        return set(BY_KAFKA_PARTITION) <= set(self.partition_by)


def parse_partition_field(text: str) -> Field:
    """Return the declared partition field; ``PARTITION_FIELD`` describes the accepted texts."""
    found = _FIELD.fullmatch(text)
    if found is None:
        raise ValueError(text)
    if found["buckets"]:
        return Field("bucket", found["bucketed"], int(found["buckets"]))
    return Field(found["transform"] or "", found["time"] or found["itself"], 0)


DEFAULT_LAYOUT = TableLayout()


READER_GRACE_SECONDS = 3_600
"""Age below which no snapshot expires because of their number.

It is the time for a query on a snapshot to end, and for a stream to continue from it.
"""


def compactable_ranges(committed: int | None, pending: Iterable[Span]) -> tuple[Span, ...]:
    """Return the ranges of a partition that neither lane writes again.

    They are below the committed offset, between the pending ranges. Each must be compacted by itself. The
    bounds of a file over two of them would include the pending range between them. The catch-up of that range
    would rewrite the file.
    """
    return difference([Span(0, committed)], pending) if committed else ()


def expiry_cutoff(
    committed_at: Sequence[float],
    *,
    needed_since: Iterable[float],
    now: float,
    max_age: float,
    max_snapshots: int,
) -> float:
    """Return the time before which snapshots may expire; all times in seconds.

    Args:
        committed_at: commit times of the snapshots, the newest first.
        needed_since: commit times of the snapshots that together record the table's offsets; none of them
            expires.
        now: current time.
        max_age: age from which snapshots expire.
        max_snapshots: number of younger snapshots to keep; further ones expire if they are older than
            ``READER_GRACE_SECONDS``.

    >>> at = [9_990.0, 9_000.0, 8_000.0, 5_000.0, 1_000.0]
    >>> expiry_cutoff(at, needed_since=[], now=10_000.0, max_age=9_500.0, max_snapshots=2)
    6400.0
    >>> expiry_cutoff(at, needed_since=[5_000.0], now=10_000.0, max_age=9_500.0, max_snapshots=2)
    5000.0
    """
    moments = [now - max_age]
    if len(committed_at) > max_snapshots:
        moments.append(min(committed_at[max_snapshots - 1], now - READER_GRACE_SECONDS))
    return min([max(moments), *needed_since])
