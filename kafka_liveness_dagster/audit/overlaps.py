"""Find the offsets that more than one commit of a ledger wrote.

>>> from kafka_liveness_dagster.core.sink_ledger import LedgerCommit

>>> texts = ("orders/ 3@0:0-100", "orders/ 3@0:70-120")
>>> find_overlaps([
...     LedgerCommit(n, "", "overwrite", added_rows=50, deleted_rows=0, text=text)
...     for n, text in enumerate(texts)
... ])
{TopicPartition(topic='orders', partition=3): (Span(start=70, end=100),)}
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.ledger import (
    UnknownLedgerFormatError,
    decompress,
    unreadable_summary_error,
)
from kafka_liveness_dagster.core.offsets import MAX_OFFSET, MAX_PARTITION, Span, TopicPartition, union

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kafka_liveness_dagster.core.sink_ledger import LedgerCommit

_ENTRY = re.compile("(?P<topic>[^ /]+)/[^ ]*|(?P<partition>[0-9]+)(?:@[0-9]+)?:(?P<done>[0-9,-]*)[^ ]*")


def find_overlaps(history: Iterable[LedgerCommit]) -> dict[TopicPartition, tuple[Span, ...]]:
    """Return the offsets that more than one snapshot wrote, by partition.

    Such offsets were replayed: the later write replaced the earlier one.

    Raises:
        UnknownLedgerFormatError: a snapshot's text cannot be read.
    """
    found: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for write in history:
        try:
            _scan_spans(decompress(write.text), found)
        except (ValueError, UnknownLedgerFormatError):
            raise unreadable_summary_error(write.commit_id, write.text) from None
    twice = {TopicPartition(topic, int(at)): _overlapping(spans) for (topic, at), spans in found.items()}
    return {tp: spans for tp, spans in sorted(twice.items()) if spans}


def _scan_spans(text: str, found: defaultdict[tuple[str, str], list[tuple[int, int]]]) -> None:
    """Collect the offsets of a text; takes a sixth of the time of decoding it."""
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
