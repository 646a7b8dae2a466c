"""The report of a history, as text.

Events by type, each kind of anomaly with its first evidence, a last line.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.history.checker import Anomaly
    from tests.history.events import Event

_SHOWN = 3


def report(events: Sequence[Event], anomalies: Sequence[Anomaly]) -> Iterator[str]:
    """Return the lines of the report; the anomalies are sorted by kind."""
    counts = Counter(event.type for event in events)
    yield "events: " + ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))
    for kind, several in groupby(anomalies, lambda anomaly: anomaly.kind):
        found = list(several)
        yield (
            f"{kind}: {sum(anomaly.end - anomaly.start for anomaly in found):,} offsets in {len(found):,} "
            "ranges"
        )
        for anomaly in found[:_SHOWN]:
            yield f"  {anomaly}"
        if len(found) > _SHOWN:
            yield f"  and {len(found) - _SHOWN:,} more ranges"
    yield f"history: {len(events):,} events, {len(anomalies):,} anomalies"
