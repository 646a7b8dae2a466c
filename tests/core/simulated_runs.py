"""How does a run act around the core? What both lanes have in common, and the live lane, as generators.

``LiveRun`` takes the steps of ``kafka.member`` and ``kafka.live``; every decision is the core's. Each ``yield`` is a
moment in which the process may be killed, stopped or overtaken by another one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.commit_log import LiveMark, Mark
from kafka_liveness_dagster.core.fairness import plan
from kafka_liveness_dagster.core.offsets import Span
from kafka_liveness_dagster.core.resume import Owned, check_log, resume, still_owed
from tests.core.simulated_broker import Refusal

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
    from kafka_liveness_dagster.core.resume import Resumed
    from tests.core.simulation import Simulation

IN_ORDER = "batches are committed in the order of their planning"
RUN_MARK = "0badcafe"
Batch = dict["TopicPartition", tuple["OffsetRange", Owned]]  # with the ownership that planned it
_TRIES = 5


class Fenced(Exception):  # noqa: N818 - a jump to the end of a membership
    """This process notices that its membership is over."""


class Run:
    """A process; ``steps`` is its life."""

    stopped = False

    def __init__(self, world: Simulation, name: str) -> None:
        self.world, self.name = world, name
        self.steps = self._life()

    def _life(self) -> Generator[str, None, None]:
        raise NotImplementedError

    def _may_go_on(self) -> None:
        """Raise ``Fenced`` when the process knows that it may not."""

    def _write(self, ranges: Iterable[OffsetRange]) -> Generator[str, None, None]:
        """Into the table, again and again until it is there: others may be quicker."""
        table = self.world.table
        while True:
            self._may_go_on()
            write = table.begin(self.name, ranges)
            yield "writing"
            if write in table.in_flight:
                table.land(write)
            if write.landed:
                break
            self.world.note("write refused", self.name)
        self.world.note("wrote", self.name, *ranges)
        self._may_go_on()
        yield "written"


class LiveRun(Run):
    """A run of the live lane; a ``pipelined`` one polls once more before it commits."""

    def __init__(self, world: Simulation, name: str, *, pipelined: bool = False) -> None:
        super().__init__(world, name)
        self.policy, self.depth = world.policy, 1 + pipelined
        self.member: int | None = None
        self.arrived: dict[TopicPartition, object] = {}  # each time a partition arrives it is another arrival
        self.owned: dict[TopicPartition, Owned] = {}
        self.began_at: dict[TopicPartition, int] = {}
        self.open: deque[Batch] = deque()
        self.poison: list[OffsetRange] = []
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
            for tp, p in self.world.partitions.items():
                resume(tp, p.facts(), self.policy)  # what can be refused is refused before joining
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
                arrived = dict(self.arrived)
                resumed = {tp: self._resume(tp) for tp in arrived}
                yield "looked"
                if not self._adopt({tp: r for tp, r in resumed.items() if self._is_still(arrived[tp], tp)}):
                    self._fail()
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
            self._fail()  # otherwise whoever wrote the op catches the error and polls again
        yield "committed"

    def _resume(self, tp: TopicPartition) -> Resumed:
        poison = tuple(r.span for r in self.poison if r.topic_partition == tp)
        facts = self.world.partitions[tp].facts()
        found = resume(tp, facts, self.policy, poison)
        if found.skipped is None and found.position == (facts.committed or 0) + 1:
            self.world.note("passed a poisoned offset", self.name, tp, found.position - 1)
        return found

    def _adopt(self, resumed: Mapping[TopicPartition, Resumed]) -> bool:
        """One commit of position and token before the first record; False when it was refused for good."""
        refusal = self._commit_once({tp: (r.position, Mark.RUNNING, r.owed) for tp, r in resumed.items()})
        if refusal is not None:
            return refusal is Refusal.REBALANCING
        for tp, r in resumed.items():
            self.owned[tp] = Owned(r.position, r.position, r.owed)
            self.began_at[tp] = r.position
            del self.arrived[tp]
            self.world.note(_told(r), self.name, tp, "at", r.position, "owing", *r.owed)
        return True

    def _is_still(self, arrival: object, tp: TopicPartition) -> bool:
        """Whether the partition was here all the time since it was looked at."""
        return self.arrived.get(tp) is arrival

    def _plan(self) -> bool:
        if self.world.chance(0.1):
            self._forget_done()
        partitions = self.world.partitions
        for tp, o in self.owned.items():
            check_log(tp, o.position, partitions[tp].log_start, partitions[tp].log_end)
        pending = {tp: (Span(o.position, partitions[tp].log_end),) for tp, o in self.owned.items()}
        ranges, self._last = plan(pending, self.world.max_poll_records, self._last)
        batch: Batch = {r.topic_partition: (r, self.owned[r.topic_partition]) for r in ranges}
        for tp, (r, owned) in batch.items():
            owned.position, partitions[tp].changed = r.end, True
        if batch:
            self.open.append(batch)
        return bool(batch)

    def _forget_done(self) -> None:
        """The second log may expire before this member ends."""
        for tp, owned in self.owned.items():
            owned.owed = still_owed(self.world.partitions[tp].second_log, owned.owed)

    def _commit(self, batch: Batch) -> bool:
        """Only what the ownership that planned it still has: the broker would accept the rest."""
        self._may_go_on()
        for tp, (r, owned) in batch.items():
            if self.owned.get(tp) is owned and r.start != owned.committed:
                raise self.world.violation(IN_ORDER, f"({r} by {self.name}, {owned})")
        while mine := {tp: (r, o) for tp, (r, o) in batch.items() if self.owned.get(tp) is o}:
            refusal = self._commit_once({tp: (r.end, Mark.RUNNING, o.owed) for tp, (r, o) in mine.items()})
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

    def _commit_once(self, commits: Mapping[TopicPartition, tuple[int, Mark, tuple[Span, ...]]]) -> Refusal | None:
        if self.member is None or not commits:
            return None
        texts = {tp: (offset, LiveMark(mark, RUN_MARK, owed).encode()) for tp, (offset, mark, owed) in commits.items()}
        refusal = self.world.broker.commit(self.member, texts)
        if refusal is not None:
            self.world.note(f"commit refused: {refusal.value}", self.name)
        return refusal

    def _release(self, partitions: Iterable[TopicPartition]) -> None:
        """At their last committed position; failing to costs a replay or a jump, no data."""
        marks = {
            tp: (self.owned[tp].committed, Mark.RELEASED, self.owned[tp].owed) for tp in partitions if tp in self.owned
        }
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

    def _fail(self) -> None:
        """An error ends the run, which leaves the group without releasing anything."""
        self.fence("the run failed", rejoin=False)

    def _may_go_on(self) -> None:
        """A zombie notices sooner or later; what it does until then is for the others to bear."""
        if not self.fenced and self.member not in self.world.broker.joined and self.world.chance(0.3):
            self.fence("partitions lost")
        if self.fenced:
            raise Fenced


def _told(resumed: Resumed) -> str:
    if resumed.overflow is not None:
        return "no room for the token"
    if resumed.skipped is None:
        return "resumed"
    return "jumped" if len(resumed.owed) == 1 else "jumped again"
