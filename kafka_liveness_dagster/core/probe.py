"""Is a group well, as far as Kafka alone can tell? What a probe asks that knows nothing of Dagster.

>>> from kafka_liveness_dagster.core.membership import PartitionSnapshot
>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> waits = PartitionSnapshot(TopicPartition("orders", 0), 70, None, 120)
>>> [verdict.sentence for verdict in probe([waits], members=0) if verdict.gravity is not Gravity.FINE]
['50 offsets wait and the group has no member: is its sensor on? Else start the live job']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.batch_sizer import FIRST_OFFSETS
from kafka_liveness_dagster.core.health import Gravity, Verdict, lag_below, retention, waiting
from kafka_liveness_dagster.core.transactions import judged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.core.membership import PartitionSnapshot
    from kafka_liveness_dagster.core.transactions import HeldBack


def probe(
    partitions: Sequence[PartitionSnapshot],
    members: int,
    *,
    max_lag: int | None = None,
    max_pending: int | None = None,
    held: Sequence[HeldBack] = (),
) -> list[Verdict]:
    """Each thing that can be wrong, wrong or not.

    Args:
        partitions: the group's.
        members: how many it has.
        max_lag: offsets that may wait for the live lane; None for any number.
        max_pending: offsets of crash lag that may be pending; None for any number.
        held: what waits behind open transactions.
    """
    return [
        _is_read(partitions, members),
        judged(lag_below(partitions, max_lag), held),
        _is_caught_up(partitions, max_pending),
        retention(partitions, FIRST_OFFSETS),
    ]


def _is_read(partitions: Sequence[PartitionSnapshot], members: int) -> Verdict:
    if members:
        return Verdict(Gravity.FINE, f"members: {members}")
    if not (waits := waiting(partitions)):
        return Verdict(Gravity.FINE, "no member, and nothing waits")
    remedy = "is its sensor on? Else start the live job"
    return Verdict(Gravity.ERROR, f"{waits:,} offsets wait and the group has no member: {remedy}")


def _is_caught_up(partitions: Sequence[PartitionSnapshot], max_pending: int | None) -> Verdict:
    owed = sum(seen.owed for seen in partitions)
    if max_pending is None or owed <= max_pending:
        return Verdict(Gravity.FINE, f"pending offsets: {owed:,}")
    return Verdict(
        Gravity.WARNING,
        f"{owed:,} offsets are pending, more than {max_pending:,}: materialize the partitions of the crash lag asset, "
        "or let its sensor do it (auto_catch_up)",
    )
