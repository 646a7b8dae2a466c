"""What did each snapshot of the table write, and what was written more than once?

>>> texts = ("orders/ 3@0:0-100", "orders/ 3@0:70-120")
>>> find_overlaps([
...     SnapshotRecord(n, "", "overwrite", added_rows=50, deleted_rows=0, text=text)
...     for n, text in enumerate(texts)
... ])
{TopicPartition(topic='orders', partition=3): (Span(start=70, end=100),)}
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.ledger import (
    UnknownLedgerFormatError,
    decode_summary,
    decompress,
    unreadable_summary_error,
)
from kafka_liveness_dagster.core.offsets import MAX_OFFSET, MAX_PARTITION, Span, TopicPartition, union

if TYPE_CHECKING:
    from collections.abc import Iterable

_ENTRY = re.compile("(?P<topic>[^ /]+)/[^ ]*|(?P<partition>[0-9]+)(?:@[0-9]+)?:(?P<done>[0-9,-]*)[^ ]*")


@dataclass(frozen=True)
class SnapshotRecord:
    """One snapshot of the table's visible history.

    Attributes:
        operation: Iceberg's word: append, overwrite, delete, replace (maintenance).
        text: what its commit told, see ``core.ledger``; empty for somebody else's.
        parent_id: the table before it; None for the first one. It may be expired.
    """

    snapshot_id: int
    committed_at: str
    operation: str
    _: KW_ONLY
    added_rows: int
    deleted_rows: int
    text: str = ""
    parent_id: int | None = None

    @property
    def written(self) -> dict[TopicPartition, tuple[Span, ...]]:
        """Its offsets.

        Raises:
            UnknownLedgerFormatError: its text cannot be read.
        """
        return {tp: entry.written for tp, entry in decode_summary(self.snapshot_id, self.text).items()}


def find_overlaps(history: Iterable[SnapshotRecord]) -> dict[TopicPartition, tuple[Span, ...]]:
    """Offsets that more than one snapshot wrote: replays, of which the later replaced the earlier.

    Raises:
        UnknownLedgerFormatError: one of their texts cannot be read.
    """
    found: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for write in history:
        try:
            _scan_spans(decompress(write.text), found)
        except (ValueError, UnknownLedgerFormatError):
            raise unreadable_summary_error(write.snapshot_id, write.text) from None
    twice = {TopicPartition(topic, int(at)): _overlapping(spans) for (topic, at), spans in found.items()}
    return {tp: spans for tp, spans in sorted(twice.items()) if spans}


def _scan_spans(text: str, found: defaultdict[tuple[str, str], list[tuple[int, int]]]) -> None:
    """Collect the offsets of a text, in a sixth of the time that decoding takes."""
    topic = ""
    words = _ENTRY.findall(text)
    if len(words) != len(text.split()):
        raise ValueError(text)
    for named, at, done in words:
        if named:
            topic = named
            continue
        if not topic or int(at) > MAX_PARTITION:
            raise ValueError(text)
        for span in done.split(",") if done else ():
            start, end = map(int, span.split("-"))
            if not start < end <= MAX_OFFSET:
                raise ValueError(text)
            found[topic, at].append((start, end))


def _overlapping(spans: list[tuple[int, int]]) -> tuple[Span, ...]:
    reached = 0
    again = []
    for start, end in sorted(spans):
        if start < reached:
            again.append(Span(start, min(end, reached)))
        reached = max(reached, end)
    return union(again)
