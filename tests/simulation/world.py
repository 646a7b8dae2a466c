"""Seeded histories of a group, its two commit logs, its topic and its table, around the real product.

A history is a function of its seed alone. After each step that changed something all invariants
(docs/internals/crash-lag.md) are checked; at the end everything is caught up and must be there.
To read one history:

    SIMULATION_SEEDS=4711 python -m pytest -s tests/simulation -k invariants
"""

from __future__ import annotations

from bisect import bisect
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.core import commit_metadata
from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
from kafka_liveness_dagster.core.partition_keys import parse_key
from kafka_liveness_dagster.kafka.live.planner import LOST_LINE
from tests.simulation import invariants
from tests.simulation.broker import SimulatedBroker
from tests.simulation.drain import drain
from tests.simulation.events import (
    OF_REBALANCES,
    WEIGHTS,
    Weights,
    begin_in_the_middle,
    produce,
    start_live,
)
from tests.simulation.faults import ENEMIES, start_over_with_new_table
from tests.simulation.partition import SimulatedPartition
from tests.simulation.run_workers import CatchUpRun, LiveRun, RunWorker
from tests.simulation.scenario import Scenario
from tests.simulation.scheduler import Process, clock
from tests.simulation.table import SimulatedTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kafka_liveness_dagster.core.offsets import Span
    from tests.simulation.client import MemberClient

IN_TIME = "who keeps a rebalance waiting gives up in time"
STANDS_STILL = "nothing hangs and nobody stands still"


class Violation(AssertionError):  # noqa: N818 - what is looked for, no failure of the simulation
    """An invariant does not hold: which, the seed, and the history up to there."""


class Simulation:
    """One history: the processes, what Dagster knows, and what befalls them.

    Attributes:
        keys: partition keys the sensor has added; ``materialized``: those that are.
        poison: offsets that no batch can be done with in time.
        calm: nothing goes wrong any more; ``set_back``: somebody else has committed to the live commit log,
            last at ``set_back_at``.
        history: what happened, and when; the first word of each entry says what kind of thing.
    """

    def __init__(
        self,
        seed: int,
        scenario: Scenario | None = None,
        weights: Weights | None = None,
        of_rebalances: float = 0.3,
    ) -> None:
        self.seed, self.rng = seed, Random(seed)  # noqa: S311 - a history is to be repeated, not to be secret
        self.scenario = scenario = scenario or Scenario.random(self.rng, of_rebalances=of_rebalances)
        self._weights = weights or (OF_REBALANCES if scenario.is_about_rebalances else {**WEIGHTS, **ENEMIES})
        self.policy, self.max_poll_records = scenario.policy, scenario.max_poll_records
        tps = [TopicPartition("orders", p) for p in range(scenario.partitions)]
        partitions = [SimulatedPartition(tp, scenario.log_start, scenario.log_start) for tp in tps]
        self.broker = SimulatedBroker(partitions, self.rng, scenario.failure_rate, scenario.protocol)
        self.broker.group.on_eviction = self._evicted
        self.partitions = self.broker.partitions
        self.table = SimulatedTable(self.partitions, self.rng)
        self.runs: list[LiveRun] = []
        self.catch_ups: list[CatchUpRun] = []
        self.sensor: Iterator[str] = iter(())
        self.keys: list[str] = []
        self.materialized: set[str] = set()
        self.poison: list[OffsetRange] = []
        self.history: list[tuple[Any, ...]] = [(0.0, "scenario", scenario)]
        self.calm = self.set_back = False
        self.set_back_at = 0.0
        self.checked = -1
        self._named = 0

    def run(self) -> Simulation:
        """Everything from the first event to the last check.

        Raises:
            Violation: with the seed and the history.
        """
        limit, commit_metadata.MAX_METADATA_BYTES = (
            commit_metadata.MAX_METADATA_BYTES,
            self.scenario.max_metadata_bytes,
        )
        clock.reset(self.rng)
        clock.look, clock.slow = lambda: invariants.check(self), self.scenario.slow_answers
        try:
            clock.run(Process("the world"), self._all)
        except Violation:
            raise
        except Exception as error:
            what = STANDS_STILL if type(error).__module__.startswith("tests.") else invariants.NOTHING_RAISES
            raise self.violation(what, repr(error), error) from error
        finally:
            commit_metadata.MAX_METADATA_BYTES = limit
        return self

    def note(self, what: str, *details: object) -> None:
        """Write the history."""
        self.history.append((clock.now, what, *details))

    def on_log_line(self, process: RunWorker, text: str, details: tuple[object, ...]) -> None:
        """A process has logged a line."""
        self.history.append((clock.now, text, process.name, *details))
        if text == LOST_LINE:
            named, _, _ = str(details[0]).partition(" and ")  # at most five ranges are named
            for lost in map(OffsetRange.parse, named.split(", ")):
                self.write_off(lost.topic_partition, [lost.span])

    def name(self, kind: str) -> str:
        """A name for a process."""
        self._named += 1
        return f"{kind}-{self._named}"

    def chance(self, probability: float) -> bool:
        """Whether it happens this time."""
        return self.rng.random() < probability

    def spark_fails(self) -> bool:
        """Whether Spark fails at this write."""
        return not self.calm and self.chance(self.scenario.spark_failure_rate)

    def violation(
        self, invariant: str, details: object = "", cause: BaseException | None = None
    ) -> Violation:
        """The end of a history."""
        found = Violation(f"seed {self.seed}: {invariant} {details}\n{self}")
        found.__cause__ = cause
        return found

    def __str__(self) -> str:
        told = [f"{at - 1_000:8.3f} {' '.join(map(str, entry))}" for at, *entry in self.history[1:]]
        ended = [
            f"{p.tp} ends at {p.log_end}, live commit log {p.live_commit}, catch-up commit log "
            f"{p.catch_up_commit}, table {p.names(p.rows)}"
            for p in self.partitions.values()
        ]
        return "\n".join((str(self.scenario), *told, *ended))

    @property
    def topic_id(self) -> str:
        """The topic's, as the broker tells it now."""
        return next(iter(self.partitions.values())).topic_id

    @property
    def is_anew(self) -> bool:
        """Whether the topic was made anew and nobody has cleared up after the old one."""
        return any(p.topic_id != p.born for p in self.partitions.values())

    def _evicted(self, client: MemberClient) -> None:
        """The coordinator throws out who keeps a rebalance waiting."""
        self.note("thrown out", client.process.name, client.name)
        if not client.process.dead and client.process.was_well(self.scenario.process_ms / 1000):
            clock.fail(self.violation(IN_TIME, f"({client.process.name}, {client.name})"))

    def kill(self, process: RunWorker) -> None:
        """Nothing of it runs any more, and neither the group nor Spark knows yet."""
        self.note("killed", process.name)
        clock.kill(process)

    def stop(self, process: RunWorker) -> None:
        """SIGSTOP: no heartbeats either."""
        self.note("stopped", process.name)
        process.was_slow = True  # for the watchdog there is no difference
        process.stopped = True
        for client in process.clients:
            client.silences += 1
            self.broker.group.silent(client)

    def wake(self, process: RunWorker) -> None:
        """SIGCONT."""
        if not process.stopped or process.dead:
            return
        self.note("woken", process.name)
        process.held_up_at = clock.now
        clock.go_on(process)
        for client in process.clients:
            client.silences += 1
            unheard, client.unheard = client.unheard, []
            for what in unheard:
                what()

    def is_alive(self, name: str) -> bool:
        """Whether the process is still there."""
        return any(process.name == name for process in (*self.runs, *self.catch_ups))

    def catch_up(self, keys: list[str]) -> CatchUpRun:
        """A run of the catch-up lane over these partition keys."""
        self.catch_ups.append(CatchUpRun(self, "catch-up", keys))
        return self.catch_ups[-1]

    def waiting(self) -> list[str]:
        """Keys that are not materialised."""
        return [key for key in self.keys if key not in self.materialized]

    def materialize(self, keys: list[str], asked_at: float) -> None:
        """Dagster shows these keys as done from now on.

        What the table loses after it was asked, nobody can know.
        """
        self.note("materialized", *keys)
        for r in map(parse_key, keys):
            p = self.partitions[r.topic_partition]
            lost_just_now = p.removed_by_fault if self.table.lost_at >= asked_at else 0
            if bits := p.bits(r.start, r.end) & ~p.processed & ~lost_just_now:
                clock.fail(self.violation(invariants.PROVEN, f"({p.tp}: {p.names(bits)})"))
        self.materialized.update(keys)

    def write_off(self, tp: TopicPartition, spans: Iterable[Span]) -> None:
        """These offsets are told as lost."""
        for span in spans:
            self.partitions[tp].lose(self.partitions[tp].bits(*span))
            self.partitions[tp].changed = clock.changed = True

    def bury(self, process: RunWorker) -> None:
        """It is gone."""
        self.runs = [run for run in self.runs if run is not process]
        self.catch_ups = [run for run in self.catch_ups if run is not process]

    def _all(self) -> None:
        self._happen()
        drain(self)

    def _happen(self) -> None:
        # every history has a temper of its own: some know no crash, some little else
        there = 0.0 if self.chance(0.2) else 0.4
        tempers = [
            weight * self.rng.choice((0.1, 1, 1, 4, 12)) * (event not in ENEMIES or self.chance(there))
            for event, weight in self._weights.items()
        ]
        events, up_to = list(self._weights), list(accumulate(tempers))
        for p in self.partitions.values():
            if self.chance(0.5):
                begin_in_the_middle(self, p)
        for p in self.partitions.values():
            p.log_end += 60 * self.scenario.is_about_rebalances
        produce(self)
        start_live(self)
        for _ in range(self.scenario.events):
            event = events[bisect(up_to, self.rng.random() * up_to[-1])]
            if event is start_over_with_new_table or event not in ENEMIES or not self.is_anew:
                event(self)
            clock.changed = True
            clock.block(self.rng.random() ** 2)
