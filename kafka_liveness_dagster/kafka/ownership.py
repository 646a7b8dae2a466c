"""What does one member own? Partitions arrive, are settled, and go; each arrival is told from every other."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from kafka_liveness_dagster.kafka.errors import CommitRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kafka_liveness_dagster.core.offsets import Span, TopicPartition
    from kafka_liveness_dagster.core.resume import Owned


class Ownership:
    """The partitions of one member.

    Attributes:
        is_given: the coordinator has given this member its part, which may be no partition at all.
        arrived: assigned but not settled, each with the number of its arrival: the consumer decides where each goes on.
        owned: settled.
    """

    def __init__(self) -> None:
        self.is_given = False
        self.arrived: dict[TopicPartition, int] = {}
        self.owned: dict[TopicPartition, Owned] = {}
        self._arrivals = itertools.count(1)

    def arrive(self, partitions: Iterable[TopicPartition]) -> None:
        """They were assigned; what comes back after it went has another number."""
        self.is_given = True
        self.arrived.update({tp: next(self._arrivals) for tp in partitions})

    def as_looked_at(self, settled: Mapping[TopicPartition, Owned]) -> dict[TopicPartition, Owned]:
        """What of it is still to be settled: another member may have committed what went and came back."""
        return {tp: owned for tp, owned in settled.items() if self.arrived.get(tp) == owned.arrival}

    def settle(self, settled: Mapping[TopicPartition, Owned]) -> None:
        """It is committed where these go on: they count as owned from now on."""
        self.owned.update(settled)
        for tp in settled:
            del self.arrived[tp]

    def since(self, arrivals: Mapping[TopicPartition, int]) -> dict[TopicPartition, Owned]:
        """What of them is owned by the same ownership as then."""
        return {tp: one for tp, one in self.owned.items() if one.arrival == arrivals.get(tp)}

    def in_order(
        self, done: Mapping[TopicPartition, Span], arrivals: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Owned]:
        """Those of them of which a span is done.

        Raises:
            CommitRefusedError: a span does not follow on what is committed.
        """
        found = {tp: one for tp, one in self.since(arrivals).items() if tp in done}
        for tp, one in found.items():
            if done[tp].start != one.committed:
                raise CommitRefusedError(
                    f"commit of {tp}:{done[tp]} is out of order: {one.committed} is committed, so the batch before it "
                    "is still open or this one was committed already. Commit batches in the order poll() gave them"
                )
        return found

    def still(self, owned: Mapping[TopicPartition, Owned]) -> dict[TopicPartition, Owned]:
        """What of them has not gone since."""
        return {tp: one for tp, one in owned.items() if self.owned.get(tp) is one}

    def plan_again(self) -> None:
        """What is planned and not committed comes again."""
        for one in self.owned.values():
            one.position = one.committed

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """They went, in whichever way."""
        for tp in partitions:
            self.owned.pop(tp, None)
            self.arrived.pop(tp, None)

    def clear(self) -> None:
        """All went."""
        self.owned.clear()
        self.arrived.clear()
