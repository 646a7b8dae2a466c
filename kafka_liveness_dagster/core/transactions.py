"""Do records wait behind a transaction that nobody ends? Whoever reads committed gets none of them, and no lag tells.

>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> hanging = HeldBack(TopicPartition("orders", 3), offset=100, offsets=20, seconds=1200.0)
>>> print(judged(Verdict(Gravity.FINE, "lag 0; no bound is set (max_lag)"), [hanging]).sentence)
lag 0; no bound is set (max_lag). 20 offsets of orders:3 wait behind a transaction that has been open at 100 for...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.health import Gravity, Verdict
from kafka_liveness_dagster.core.names import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.core.offsets import TopicPartition

HANGING_SECONDS = 900.0
"""No producer may leave one open for longer, unless the broker's ``transaction.max.timeout.ms`` was changed."""
_REMEDY = (
    "Nobody who reads committed gets them before it ends. One whose producer is gone: `kafka-transactions.sh "
    "--bootstrap-server … find-hanging`, then `abort`"
)


@dataclass(frozen=True)
class HeldBack:
    """What of a partition is not to be read yet (KIP-98, last stable offset).

    Attributes:
        offset: of the oldest open transaction's first record.
        offsets: how many wait, that one and those of others included.
        seconds: how old it is by its timestamp; None where nobody could tell in time.
    """

    topic_partition: TopicPartition
    offset: int
    offsets: int
    seconds: float | None = None

    @property
    def is_hanging(self) -> bool:
        """Whether no producer can be expected to end it any more."""
        return self.seconds is not None and self.seconds >= HANGING_SECONDS

    def __str__(self) -> str:
        since = "" if self.seconds is None else f" for {self.seconds:,.0f} s"
        who = f"{self.offsets:,} offsets of {self.topic_partition} wait"
        return f"{who} behind a transaction that has been open at {self.offset}{since}"


def judged(lag: Verdict, held: Sequence[HeldBack]) -> Verdict:
    """The verdict on the lag, which is counted to the last stable offset: with what waits behind that."""
    if not held:
        return lag
    numbers = {**lag.numbers, "behind_open_transactions": sum(one.offsets for one in held)}
    hanging = sorted((one for one in held if one.is_hanging), key=lambda one: -one.offsets)
    if not hanging:
        return Verdict(lag.gravity, lag.sentence, numbers)
    gravity = lag.gravity if lag.gravity is Gravity.ERROR else Gravity.WARNING
    return Verdict(gravity, f"{lag.sentence}. {listed(hanging)}. {_REMEDY}", numbers)
