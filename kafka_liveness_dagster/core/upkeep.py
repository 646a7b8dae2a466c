"""What of a table may be tidied up while both lanes write to it? Decides which offsets and how old; touches nothing.

A file that a lane may still have to replace is left as it is, and so is the snapshot that tells what the table holds.

>>> settled(100, [Span(20, 50)])
(Span(start=0, end=20), Span(start=50, end=100))
>>> expire_before([90, 80, 70, 60], needed=[70], now=100, max_age=25, max_snapshots=9)
70
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.offsets import Span, difference

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

READERS_SECONDS = 3_600
"""However many snapshots there are: a query that began with one has so long to end, a stream to go on from it."""


def settled(committed: int | None, owed: Iterable[Span]) -> tuple[Span, ...]:
    """The stretches of a partition that neither lane writes again: below the committed offset, between what is owed.

    Each by itself: a file over two of them would hold offsets of the owed range between them, by all that is known of
    a file, and be rewritten when that is caught up.
    """
    return difference([Span(0, committed)], owed) if committed else ()


def expire_before(
    committed_at: Sequence[float], *, needed: Iterable[float], now: float, max_age: float, max_snapshots: int
) -> float:
    """Snapshots before this moment may go, all in seconds.

    Args:
        committed_at: when each snapshot was committed, the newest first.
        needed: when those were that together tell what the table holds; none of them goes.
        now: the time.
        max_age: older ones go,
        max_snapshots: and of the others those beyond so many, if they are older than ``READERS_SECONDS``.

    >>> at = [9_990.0, 9_000.0, 8_000.0, 5_000.0, 1_000.0]
    >>> expire_before(at, needed=[], now=10_000.0, max_age=9_500.0, max_snapshots=2)
    6400.0
    >>> expire_before(at, needed=[5_000.0], now=10_000.0, max_age=9_500.0, max_snapshots=2)
    5000.0
    """
    moments = [now - max_age]
    if len(committed_at) > max_snapshots:
        moments.append(min(committed_at[max_snapshots - 1], now - READERS_SECONDS))
    return min([max(moments), *needed])
