"""Which rows and which whole files do these offset ranges mean? Arithmetic only; never asks Spark.

>>> print(ranges_condition([OffsetRange("orders", 3, 70, 100), OffsetRange("orders", 3, 100, 120)]))
(`topic` = 'orders' AND `partition` = 3 AND `offset` >= 70 AND `offset` < 120)
>>> describe(widen_to_files([OffsetRange("orders", 3, 80, 110)], [OffsetRange("orders", 3, 70, 100)]))
'orders:3:70-110'
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
_MAX_DESCRIPTION_CHARS = 1000  # characters; a snapshot's properties stay in the table's metadata for good


def ranges_condition(ranges: Iterable[OffsetRange], table: str = "") -> str:
    """The rows of these offsets, as SQL; ``table`` a table, where others have columns of these names.

    Raises:
        InvalidSettingError: there is no range, or a topic is not one of Kafka's.
    """
    at = f"{table}." if table else ""
    return " OR ".join(
        f"({at}`topic` = '{part.topic}' AND {at}`partition` = {part.partition} "
        f"AND {at}`offset` >= {part.start} AND {at}`offset` < {part.end})"
        for part in limit_for_sql(ranges)
    )


def limit_for_sql(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """The same offsets as the fewest ranges; raises as ``ranges_condition`` does."""
    parts = merge_ranges(ranges)
    wrong = [part.topic for part in parts if not _TOPIC.fullmatch(part.topic)]
    if wrong or not parts:
        raise InvalidSettingError(
            f"no rows can be told by {wrong[0]!r}: topics have letters, digits, '.', '_' and '-' only"
            if wrong
            else "no offset ranges to write: skip the batch when it is empty"
        )
    return parts


def merge_ranges(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """The same offsets as the fewest ranges, in order."""
    return _offset_ranges(_spans_by_partition(ranges))


def subtract(ranges: Iterable[OffsetRange], removed: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """The offsets of ``ranges`` that are not in ``removed``."""
    out = _spans_by_partition(removed)
    return _offset_ranges(
        {at: difference(spans, out.get(at, ())) for at, spans in _spans_by_partition(ranges).items()}
    )


def one_per_partition(ranges: Iterable[OffsetRange]) -> list[list[OffsetRange]]:
    """The ranges dealt out so that each layer has one a partition: what one read, or one file, can hold."""
    by_partition = [
        list(parts) for _, parts in groupby(merge_ranges(ranges), key=lambda part: part.topic_partition)
    ]
    return [[part for part in layer if part is not None] for layer in zip_longest(*by_partition)]


def widen_to_files(ranges: Iterable[OffsetRange], files: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """The ranges, widened until they cut through no file.

    Args:
        ranges: what is to be replaced.
        files: first to last offset of each of the table's files; they may overlap.
    """
    held: dict[TopicPartition, list[Span]] = {}
    for file in files:
        held.setdefault(file.topic_partition, []).append(file.span)
    return _offset_ranges(
        {at: _widen_spans(spans, held.get(at, [])) for at, spans in _spans_by_partition(ranges).items()}
    )


def describe(ranges: Iterable[OffsetRange]) -> str:
    """The ranges for people and snapshot properties: ``orders:3:70-120,orders:4:0-9``, cut when very long."""
    text = ",".join(map(str, ranges))
    return (
        text
        if len(text) <= _MAX_DESCRIPTION_CHARS
        else text[:_MAX_DESCRIPTION_CHARS].rpartition(",")[0] + ",…"
    )


def _widen_spans(spans: tuple[Span, ...], files: list[Span]) -> tuple[Span, ...]:
    """A file that is touched comes in as a whole, and may touch others."""
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
