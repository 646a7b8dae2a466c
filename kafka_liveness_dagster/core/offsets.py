"""Represent offsets as half-open ranges of one Kafka partition, with set operations on them.

Never counts records: compaction, aborted transactions and control records leave holes, so a range's
size is an upper bound.

>>> orders = OffsetRange("orders", 3, 70, 120)
>>> str(orders), orders.size
('p3:orders:70-120', 50)
>>> difference([Span(70, 120)], [Span(80, 100)])
(Span(start=70, end=80), Span(start=100, end=120))
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from kafka_liveness_dagster.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from collections.abc import Iterable

_TOPIC = r"(?P<topic>[a-zA-Z0-9._-]{1,249})"
_PARTITION = r"(?P<partition>[0-9]{1,10})"
_SPAN = r"(?P<start>[0-9]{1,19})-(?P<end>[0-9]{1,19})"
_RANGE = re.compile(f"p{_PARTITION}:{_TOPIC}:{_SPAN}")
_FORMER_RANGE = re.compile(f"{_TOPIC}:{_PARTITION}:{_SPAN}")
"""The form that earlier versions stored; ``p3:7:70-120`` is topic ``p3``."""
_ONLY_DIGITS = re.compile(r"[0-9]+")


RANGE_FORM = "p<partition>:<topic>:<start>-<end>, like p3:orders:70-120"
"""The form of a range, for errors."""
MAX_OFFSET = 2**63 - 1
"""The largest offset; Kafka's offsets are signed 64-bit numbers."""
MAX_PARTITION = 2**31 - 1
"""The largest partition, a signed 32-bit number; a larger one ends in a traceback of Kafka's client."""


class TopicPartition(NamedTuple):
    """One partition of one topic: Kafka's unit of ownership and order."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


class Span(NamedTuple):
    """Offsets ``[start, end)`` of a partition that the context names."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.start}-{self.end}"

    @property
    def size(self) -> int:
        """The number of offsets, an upper bound on records."""
        return self.end - self.start


@dataclass(frozen=True, order=True)
class OffsetRange:
    """Offsets ``[start, end)`` of one partition of one topic.

    Raises:
        InvalidSettingError: the range is empty, backwards or negative.
    """

    topic: str
    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if not (0 <= self.partition <= MAX_PARTITION and 0 <= self.start < self.end <= MAX_OFFSET):
            raise InvalidSettingError(
                f"offset range {self} is invalid: wanted partition 0 to {MAX_PARTITION}, and 0 <= start "
                f"< end <= {MAX_OFFSET}"
            )

    def __str__(self) -> str:
        """Return ``p3:orders:70-120``: Dagster's launch dialog shows about seven characters of each end.

        A topic of digits only keeps the former form, because ``p3:7:70-120`` is partition 7 of topic ``p3``.
        """
        if _ONLY_DIGITS.fullmatch(self.topic):
            return self.former_text
        return f"p{self.partition}:{self.topic}:{self.start}-{self.end}"

    @property
    def former_text(self) -> str:
        """The text that earlier versions stored, such as ``orders:3:70-120``."""
        return f"{self.topic}:{self.partition}:{self.start}-{self.end}"

    @classmethod
    def parse(cls, text: str) -> OffsetRange:
        """Read ``p3:orders:70-120``, or the form of earlier versions, ``orders:3:70-120``.

        Each text of an earlier version keeps its meaning: if both forms fit, the former one counts.

        Raises:
            InvalidSettingError: the text has another form.
        """
        found = _FORMER_RANGE.fullmatch(text) or _RANGE.fullmatch(text)
        if found is None:
            raise InvalidSettingError(f"{text!r} is not an offset range: wanted {RANGE_FORM}")
        return cls(found["topic"], int(found["partition"]), int(found["start"]), end=int(found["end"]))

    @property
    def size(self) -> int:
        """The number of offsets, an upper bound on records."""
        return self.end - self.start

    def overlaps(self, other: OffsetRange) -> bool:
        """Return whether some offset is in both."""
        same = self.topic_partition == other.topic_partition
        return same and self.start < other.end and other.start < self.end

    @property
    def span(self) -> Span:
        """The offsets without their partition."""
        return Span(self.start, self.end)

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the offsets."""
        return TopicPartition(self.topic, self.partition)


def union(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the same offsets as the fewest spans, in order; adjacent spans become one."""
    merged: list[Span] = []
    for span in sorted(spans):
        start, end = span
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = Span(merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append(span)
    return tuple(merged)


def difference(spans: Iterable[Span], removed: Iterable[Span]) -> tuple[Span, ...]:
    """Return the offsets of ``spans`` that are not in ``removed``."""
    rest: list[Span] = []
    holes = iter(union(removed))
    hole = next(holes, None)
    for start, end in union(spans):
        while hole is not None and hole.start < end:
            if start < hole.start:
                rest.append(Span(start, hole.start))
            start = max(start, hole.end)  # noqa: PLW2901 - what of the span is not decided yet
            if hole.end > end:  # the hole may reach into the next span
                break
            hole = next(holes, None)
        if start < end:
            rest.append(Span(start, end))
    return tuple(rest)


def intersection(spans: Iterable[Span], others: Iterable[Span]) -> tuple[Span, ...]:
    """Return the offsets that are in both."""
    spans = union(spans)
    others = union(others)
    both = []
    at = 0
    for start, end in spans:
        while at < len(others) and others[at].end <= start:
            at += 1
        for other in islice(others, at, None):
            if other.start >= end:
                break
            both.append(Span(max(start, other.start), min(end, other.end)))
    return tuple(both)


def size(spans: Iterable[Span]) -> int:
    """Return the number of offsets in ``spans``, each counted once."""
    return sum(span.size for span in union(spans))
