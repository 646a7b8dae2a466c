"""Where does a live run go on? As ``kafka.live`` settles what arrives; what both lanes have in common comes first.

Each ``yield`` is a moment in which the process may be killed, stopped or overtaken by another one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.accounts import Account
from kafka_liveness_dagster.core.commit_log import Mark
from kafka_liveness_dagster.core.resume import Owned, resume
from tests.core.simulated_broker import Refusal
from tests.core.simulated_second import SecondLog

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
    from kafka_liveness_dagster.core.resume import Resumed
    from kafka_liveness_dagster.core.witnesses import PartitionFacts
    from tests.core.simulation import Simulation


class Run:
    """A process; ``steps`` is its life."""

    stopped = False

    def __init__(self, world: Simulation, name: str) -> None:
        self.world, self.name = world, name
        self.ledger, self.losses_before = world.table.ledger(), world.table.losses
        self.steps = self._life()

    def _life(self) -> Generator[str, None, None]:
        raise NotImplementedError

    def _may_go_on(self) -> None:
        """Raise ``Fenced`` when the process knows that it may not."""

    def fail(self) -> None:
        """An error ended it."""

    def _write(self, ranges: Sequence[OffsetRange]) -> Generator[str, None, None]:
        """Into the table, again and again until it is there: others may be quicker."""
        table, planned = self.world.table, self.world.topic_id
        while True:
            self._may_go_on()
            told = self.ledger.properties(table, table.current_id, ranges)
            write = table.begin(self.name, ranges, told, planned)
            yield "writing"
            if write in table.in_flight:
                table.land(write)
            if write.landed:
                break
            self.world.note("write refused", self.name)
        self.ledger.landed(ranges)
        self.world.note("wrote", self.name, *ranges)
        self._may_go_on()
        yield "written"


class Settles(Run):
    """What a live run knows of the partitions it has, and how it comes to have them."""

    def __init__(self, world: Simulation, name: str) -> None:
        super().__init__(world, name)
        self.policy = world.policy
        self.arrived: dict[TopicPartition, object] = {}  # each time a partition arrives it is another arrival
        self.owned: dict[TopicPartition, Owned] = {}
        self.began_at: dict[TopicPartition, int] = {}
        self.poison: list[OffsetRange] = []
        self._second = SecondLog(world)
        self._debts: dict[TopicPartition, tuple[Span, ...]] = {}
        self._topic_id = ""

    def _commit_once(self, commits: Mapping[TopicPartition, tuple[int, Mark, Owned]]) -> Refusal | None:
        raise NotImplementedError

    def _is_still(self, arrival: object, tp: TopicPartition) -> bool:
        """Whether the partition was here all the time since it was looked at."""
        return self.arrived.get(tp) is arrival

    def _ask_before_joining(self) -> Generator[str, None, None]:
        """What can be refused is refused before the group is disturbed."""
        facts = yield from self._look(list(self.world.partitions))
        for tp, one in facts.items():
            resume(tp, one, self.policy)

    def _look(self, partitions: Sequence[TopicPartition]) -> Generator[str, None, dict[TopicPartition, PartitionFacts]]:
        """Both commit logs first, then the table: what is committed was written before the table is asked."""
        facts = self.world.broker.facts("", partitions)
        if self.world.chance(0.1):
            yield "looked at the logs"
        accounts = self.ledger.accounts(partitions)
        return {tp: replace(one, account=accounts[tp], remembered=self._debts.get(tp, ())) for tp, one in facts.items()}

    def _settle(self, arrived: Mapping[TopicPartition, object]) -> Generator[str, None, None]:
        facts = yield from self._look(list(arrived))
        resumed = {tp: self._resume(tp, one) for tp, one in facts.items()}
        yield "looked"
        self._put_second(facts, resumed)
        if self.world.chance(0.2):
            yield "put the second log"
        if not self._adopt({tp: r for tp, r in resumed.items() if self._is_still(arrived[tp], tp)}, facts):
            self.fail()

    def _put_second(
        self, facts: Mapping[TopicPartition, PartitionFacts], resumed: Mapping[TopicPartition, Resumed]
    ) -> None:
        target = self.ledger.target
        self._second.put({tp: (facts[tp].second, replace(r.second, target=target)) for tp, r in resumed.items()})

    def _resume(self, tp: TopicPartition, facts: PartitionFacts) -> Resumed:
        poison = tuple(r.span for r in self.poison if r.topic_partition == tp)
        found = resume(tp, facts, self.policy, poison)
        if found.skipped is None and found.position == (facts.committed or 0) + 1:
            self.world.note("passed a poisoned offset", self.name, tp, found.position - 1)
        return found

    def _adopt(self, resumed: Mapping[TopicPartition, Resumed], facts: Mapping[TopicPartition, PartitionFacts]) -> bool:
        """One commit of position and token before the first record; False when it was refused for good."""
        owned = {tp: Owned(r.position, r.position, r.owed, again=r.again, origin=r.origin) for tp, r in resumed.items()}
        for tp, r in resumed.items():
            p = self.world.partitions[tp]
            if r.overflow is not None and (p.enemy or not _tells(facts[tp])):
                p.acknowledged = min(p.acknowledged, r.position)  # what is missing does not fit: in order from there
        refusal = self._commit_once({tp: (o.committed, Mark.RUNNING, o) for tp, o in owned.items()})
        if refusal in {None, Refusal.IN_DOUBT}:
            self._begin_life({tp: facts[tp] for tp in resumed})
        if refusal is not None:
            return refusal is Refusal.REBALANCING
        self.owned.update(owned)
        for tp, r in resumed.items():
            self.began_at[tp], self._debts[tp], self._topic_id = r.position, r.owed, facts[tp].topic_id
            del self.arrived[tp]
            self.world.lose(tp, r.lost)
            self._learn(tp, facts[tp], r)
            self.world.note(_told(r), self.name, tp, "at", r.position, "owing", *r.owed)
            if r.forgotten:
                self.world.note("owed again", tp, *r.forgotten)
        return True

    def _begin_life(self, settled: Mapping[TopicPartition, PartitionFacts]) -> None:
        for tp, facts in settled.items():
            self.world.partitions[tp].begin_life(self._start(facts))

    def _start(self, facts: PartitionFacts) -> int:
        """Where the group is, as the oracle sees it."""
        if facts.committed is not None:
            return facts.committed
        return facts.log_end if self.policy.auto_offset_reset == "latest" else facts.log_start

    def _learn(self, tp: TopicPartition, facts: PartitionFacts, r: Resumed) -> None:
        """What is known besides what the table says goes into it with the next write."""
        assert facts.account is not None
        assert r.origin is not None
        known = Account((), r.second.told, r.origin.start, r.origin.topic_id)
        self.ledger.learn({tp: known})
        if not facts.account.complete:
            self.ledger.believe({tp: replace(known, done=facts.said_done((*r.owed, *r.second.told)))})


def _tells(facts: PartitionFacts) -> bool:
    return facts.account is not None and facts.account.complete


def _told(resumed: Resumed) -> str:
    if resumed.overflow is not None:
        return "no room for the token"
    if resumed.skipped is None:
        return "resumed"
    return "jumped" if len(resumed.owed) == 1 else "jumped again"
