"""How does a live run act around the core? As a generator.

``LiveRun`` takes the steps of ``kafka.member`` and ``kafka.live``; every decision is the core's. Each ``yield`` is a
moment in which the process may be killed, stopped or overtaken by another one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.accounts import Account
from kafka_liveness_dagster.core.commit_log import LiveMark, Mark
from kafka_liveness_dagster.core.fairness import plan
from kafka_liveness_dagster.core.offsets import Span
from kafka_liveness_dagster.core.resume import Owned, still_owed
from kafka_liveness_dagster.core.witnesses import TopicRecreatedError, check_log
from tests.core.simulated_broker import Refusal
from tests.core.simulated_settling import Settles

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Mapping

    from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
    from tests.core.simulation import Simulation

IN_ORDER = "batches are committed in the order of their planning"
RUN_MARK = "0badcafe"
Batch = dict["TopicPartition", tuple["OffsetRange", Owned]]  # with the ownership that planned it
_TRIES = 5


class Fenced(Exception):  # noqa: N818 - a jump to the end of a membership
    """This process notices that its membership is over."""


class LiveRun(Settles):
    """A run of the live lane; a ``pipelined`` one polls once more before it commits."""

    def __init__(self, world: Simulation, name: str, *, pipelined: bool = False) -> None:
        super().__init__(world, name)
        self.depth = 1 + pipelined
        self.member: int | None = None
        self.open: deque[Batch] = deque()
        self.finishing = self.fenced = False
        self.may_rejoin = True
        self._last: TopicPartition | None = None

    def fence(self, why: str, *, release: bool = False, rejoin: bool = True) -> None:
        """The watchdog gives everything up at once; the rest of the process learns of it when it asks."""
        if self.member is not None and not self.fenced:
            self.world.note(f"fenced: {why}", self.name)
            self.fenced, self.may_rejoin = True, rejoin
            self._leave(release=release)

    def quarantine(self) -> None:
        """The next offset is too slow alone: the watchdog cancels and leaves; the next membership goes on behind it."""
        table = self.world.table
        under_way = [write for write in table.in_flight if write.author == self.name]
        if under_way and self.open and not self.fenced:
            table.in_flight.remove(under_way[-1])
            (r, _), *_ = self.open[0].values()
            self.poison.append(replace(r, end=r.start + 1))
        self.fence("poll timeout")

    def serve(self) -> None:
        """Poll the client: rebalances happen in here."""
        broker = self.world.broker
        if self.member is None:
            return
        if self.member not in broker.joined:
            self.fence("partitions lost")
            return
        if given_up := broker.to_give_up(self.member):
            self._release(given_up)
            self._forget(given_up)
            self.world.note("handed over", self.name, *given_up)
        self.arrived.update((tp, object()) for tp in broker.assign(self.member))

    def _life(self) -> Generator[str, None, None]:
        while self.may_rejoin and not self.finishing:
            yield from self._ask_before_joining()
            self.member, self.fenced = self.world.broker.join(), False
            self.world.note("joined", self.name, "as member", self.member)
            yield "joined"
            try:
                yield from self._membership()
            except Fenced:
                self.world.note("noticed the fence", self.name)
            self.open.clear()

    def _membership(self) -> Generator[str, None, None]:
        while True:
            self.serve()
            self._may_go_on()
            if self.finishing:
                self._leave(release=True)
                return
            if self.arrived:
                yield from self._settle(dict(self.arrived))
                if self.fenced:
                    return
                yield "settled"
            elif len(self.open) == self.depth or not self._plan():
                yield from self._process()

    def _process(self) -> Generator[str, None, None]:
        if not self.open:
            yield "idle"
            return
        yield from self._write([r for r, _ in self.open[0].values()])
        if not self._commit(self.open.popleft()) and self.world.chance(0.5):
            self.fail()  # otherwise whoever wrote the op catches the error and polls again
        yield "committed"

    def _plan(self) -> bool:
        if self.world.chance(0.1):
            self._forget_done()
        partitions = self.world.partitions
        for tp, o in self.owned.items():
            self._pass_expired(tp, o)
            check_log(tp, o.position, partitions[tp].log_start, partitions[tp].log_end)
        pending = {tp: (Span(o.position, partitions[tp].log_end),) for tp, o in self.owned.items()}
        ranges, self._last = plan(pending, self.world.max_poll_records, self._last)
        self._check_identity(ranges)
        batch: Batch = {r.topic_partition: (r, self.owned[r.topic_partition]) for r in ranges}
        for tp, (r, owned) in batch.items():
            owned.position, partitions[tp].changed = r.end, True
        if batch:
            self.open.append(batch)
        return bool(batch)

    def _check_identity(self, of: Collection[object]) -> None:
        """Before records are planned, and before they are committed."""
        if of and self._topic_id != self.world.topic_id:
            raise TopicRecreatedError(f"{self._topic_id} is {self.world.topic_id} now")

    def _pass_expired(self, tp: TopicPartition, owned: Owned) -> None:
        """With ``on_data_loss="skip"``, between two batches: go on at the log start, and report what is gone."""
        log_start = self.world.partitions[tp].log_start
        if self.policy.on_data_loss == "skip" and owned.committed == owned.position < log_start:
            lost = (Span(owned.position, log_start),)
            self._second.tell({tp: lost})
            self.ledger.learn({tp: Account(told=lost)})
            self.world.lose(tp, lost)
            owned.committed = owned.position = log_start

    def _forget_done(self) -> None:
        """The second log may expire before this member ends."""
        if self.world.chance(0.3):
            self._second.renew(self.owned)
        owing = [tp for tp, owned in self.owned.items() if owned.owed]
        accounts = self.ledger.accounts(owing) if owing else {}
        for tp in owing:
            owned, facts = self.owned[tp], self.world.partitions[tp].facts(account=accounts[tp])
            mark = LiveMark(Mark.RUNNING, RUN_MARK, owned.owed, owned.again, owned.origin)
            owned.owed = self._debts[tp] = still_owed(replace(facts, committed=owned.committed, mark=mark))

    def _commit(self, batch: Batch) -> bool:
        """Only what the ownership that planned it still has: the broker would accept the rest."""
        self._may_go_on()
        self._check_identity(batch)
        for tp, (r, owned) in batch.items():
            if self.owned.get(tp) is owned and r.start != owned.committed:
                raise self.world.violation(IN_ORDER, f"({r} by {self.name}, {owned})")
        while mine := {tp: (r, o) for tp, (r, o) in batch.items() if self.owned.get(tp) is o}:
            refusal = self._commit_once({tp: (r.end, Mark.RUNNING, o) for tp, (r, o) in mine.items()})
            if refusal is None:
                break
            if refusal is not Refusal.REBALANCING:
                self._replan()
                return False
            self.serve()
        for r, owned in mine.values():
            owned.committed = r.end
        if len(mine) < len(batch):
            self.world.note("left to the new owner", self.name)
        self.world.note("committed", self.name, *(r for r, _ in mine.values()))
        return True

    def _replan(self) -> None:
        """The batch that was refused, and all that was planned after it, comes again."""
        for owned in self.owned.values():
            owned.position = owned.committed
        self.open.clear()

    def _commit_once(self, commits: Mapping[TopicPartition, tuple[int, Mark, Owned]]) -> Refusal | None:
        if self.member is None or not commits:
            return None
        texts = {
            tp: (offset, LiveMark(mark, RUN_MARK, o.owed, o.again, o.origin).encode())
            for tp, (offset, mark, o) in commits.items()
        }
        refusal = self.world.broker.commit(self.member, texts)
        if refusal is not None:
            self.world.note(f"commit refused: {refusal.value}", self.name)
        return refusal

    def _release(self, partitions: Iterable[TopicPartition]) -> None:
        """At their last committed position; failing to costs a replay or a jump, no data."""
        owned = {tp: self.owned[tp] for tp in partitions if tp in self.owned}
        marks = {tp: (o.committed, Mark.RELEASED, o) for tp, o in owned.items()}
        for _ in range(_TRIES):
            if self._commit_once(marks) is not Refusal.REBALANCING:
                return

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self.owned.pop(tp, None)
            self.arrived.pop(tp, None)
            self.world.partitions[tp].holder = None

    def _leave(self, *, release: bool) -> None:
        if self.member is not None:
            if release:
                self._release(list(self.owned))
            self.world.note("released all" if release else "left as after a crash", self.name)
            self.world.broker.leave(self.member)
        self.member = None
        self.owned.clear()
        self.arrived.clear()

    def fail(self) -> None:
        """An error ends the run, which leaves the group without releasing anything."""
        self.fence("the run failed", rejoin=False)

    def _may_go_on(self) -> None:
        """A zombie notices sooner or later; what it does until then is for the others to bear."""
        if not self.fenced and self.member not in self.world.broker.joined and self.world.chance(0.3):
            self.fence("partitions lost")
        if self.fenced:
            raise Fenced
