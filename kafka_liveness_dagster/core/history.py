"""What did each snapshot of the table write, and what was written more than once?

>>> from kafka_liveness_dagster.core.ledger import Account
>>> orders = TopicPartition("orders", 3)
>>> begun, replay = ({orders: Account((span,))} for span in (Span(0, 100), Span(70, 120)))
>>> overlaps([Write(1, "", "append", 100, 0, begun), Write(2, "", "overwrite", 50, 30, replay)])[orders]
(Span(start=70, end=100),)
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.offsets import Span, TopicPartition, union

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kafka_liveness_dagster.core.ledger import Accounts


@dataclass(frozen=True)
class Write:
    """One snapshot of the table's visible history.

    Attributes:
        operation: Iceberg's word: append, overwrite, delete, replace (maintenance).
        wrote: the offsets its commit told; empty for somebody else's.
    """

    snapshot_id: int
    committed_at: str
    operation: str
    added_rows: int
    deleted_rows: int
    wrote: Accounts = field(default_factory=dict)


def overlaps(history: Iterable[Write]) -> dict[TopicPartition, tuple[Span, ...]]:
    """Offsets that more than one snapshot wrote: replays, of which the later replaced the earlier."""
    found: defaultdict[TopicPartition, list[Span]] = defaultdict(list)
    for write in history:
        for tp, account in write.wrote.items():
            found[tp] += account.done
    return {tp: _twice(spans) for tp, spans in found.items()}


def _twice(spans: Iterable[Span]) -> tuple[Span, ...]:
    reached, again = 0, []
    for start, end in sorted(spans):
        again.append(Span(start, min(end, reached)))
        reached = max(reached, end)
    return union(again)
