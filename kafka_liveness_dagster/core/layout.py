"""How is a table laid out, and how do batches become its snapshots? What was declared of it; asks no table.

>>> field("bucket(16, customer_id)")
Field(transform='bucket', column='customer_id', buckets=16)
>>> field("topic")
Field(transform='', column='topic', buckets=0)
>>> field("truncate(4, id)")
Traceback (most recent call last):
ValueError: truncate(4, id)
>>> Layout().is_by_kafka_partition, Layout(partition_by=("days(placed_at)",)).is_by_kafka_partition
(True, False)
>>> SORT_FIELD.fits("placed_at desc nulls last"), PARTITION_FIELD.fits("truncate(4, id)")
(True, False)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from dataclasses import field as _field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

from kafka_liveness_dagster.core.names import Name

if TYPE_CHECKING:
    from collections.abc import Mapping

BY_KAFKA_PARTITION = ("topic", "partition")
_COLUMN = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_FIELD = re.compile(
    rf"(?:(?P<transform>years|months|days|hours)\((?P<time>{_COLUMN})\))"
    rf"|(?:bucket\((?P<buckets>[1-9]\d{{0,8}}), ?(?P<bucketed>{_COLUMN})\))"
    rf"|(?P<itself>{_COLUMN})",
    re.ASCII,
)
_SORTED = re.compile(rf"{_COLUMN}(?: (?:asc|desc))?(?: nulls (?:first|last))?", re.ASCII | re.IGNORECASE)

PARTITION_FIELD = Name(
    "a column, or days(column), hours(…), months(…), years(…), bucket(16, column); for other transforms make the table "
    "yourself, with CREATE TABLE",
    lambda text: _FIELD.fullmatch(text) is not None,
)
SORT_FIELD = Name(
    "a column, and after a blank ASC or DESC, NULLS FIRST or NULLS LAST",
    lambda text: _SORTED.fullmatch(text) is not None,
)


class Field(NamedTuple):
    """One field that a table is partitioned by; without a transform it is the column itself."""

    transform: str
    column: str
    buckets: int


@dataclass(frozen=True)
class Layout:
    """What was declared of a table.

    Attributes:
        snapshots: how a new range is committed: by an overwrite of its offsets, or as an append that readers of a
            stream take. What comes again replaces what was there, either way.
        partition_by, sort_by, table_properties: of a table that is created.
    """

    snapshots: Literal["overwrite", "append"] = "overwrite"
    partition_by: tuple[str, ...] = BY_KAFKA_PARTITION
    sort_by: tuple[str, ...] = ()
    table_properties: Mapping[str, str] = _field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_by_kafka_partition(self) -> bool:
        """Whether no file can hold offsets of two of Kafka's partitions."""
        return set(BY_KAFKA_PARTITION) <= set(self.partition_by)


def field(text: str) -> Field:
    """A partition field as it was declared; ``PARTITION_FIELD`` says which texts are."""
    found = _FIELD.fullmatch(text)
    if found is None:
        raise ValueError(text)
    if found["buckets"]:
        return Field("bucket", found["bucketed"], int(found["buckets"]))
    return Field(found["transform"] or "", found["time"] or found["itself"], 0)


DEFAULT = Layout()
