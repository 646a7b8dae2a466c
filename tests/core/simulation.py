"""What can happen to a group, its two commit logs, its topic and its table? Seeded histories around the real core.

A history is a function of its seed alone. After each event, and after each step of a process, all invariants of
DESIGN.md are checked; at the end everything is caught up and must be there. To read one history:

    SIMULATION_SEEDS=4711 python -m pytest -s tests/core/test_simulation.py -k invariants
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.core import commit_log
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.core.resume import ResumePolicy
from kafka_liveness_dagster.partitions import range_of
from tests.core import simulated_oracle as oracle
from tests.core.simulated_broker import SimulatedBroker
from tests.core.simulated_catch_up import CatchUpRun, sensor_tick
from tests.core.simulated_enemies import ENEMIES, begin_anew, remove_foreign_commits
from tests.core.simulated_events import WEIGHTS, Weights, begin_in_the_middle, expire_sessions, land, produce
from tests.core.simulated_partition import SimulatedPartition
from tests.core.simulated_runs import LiveRun
from tests.core.simulated_table import SimulatedTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kafka_liveness_dagster.core.offsets import Span
    from tests.core.simulated_settling import Run

DISJOINT = "live ranges and owed ranges are disjoint"
DURABLE = "a live lane begins where the first log says"
GROWS = "the live lane's position goes back to its last commit at most"
DRAINED = "when all is caught up, everything up to the log end is in the table, and nothing waits"
NOTHING_RAISES = "nothing raises"
ENDS = "without trouble everybody comes to an end"
MAX_CALM_STEPS = 1_000


class Violation(AssertionError):  # noqa: N818 - what is looked for, no failure of the simulation
    """An invariant does not hold: which, the seed, and the history up to there."""


@dataclass(frozen=True)
class Scenario:
    """What is the same all through one history."""

    partitions: int
    log_start: int
    policy: ResumePolicy
    max_metadata_bytes: int
    max_poll_records: int
    max_runs: int
    progress: bool
    failure_rate: float
    events: int

    @classmethod
    def random(cls, rng: Random) -> Scenario:
        """Mostly with the mode on; at times with room for two or three owed ranges only."""
        log_start = rng.choice((0, 0, 0, 7, 10**15))
        small = 55 + 55 * (log_start > 7)  # an origin, what is done again, and not much more
        return cls(
            partitions=rng.choice((1, 1, 1, 2, 3)),
            log_start=log_start,
            policy=ResumePolicy(
                enable_parallel_rebalance=rng.random() < 0.9,
                auto_offset_reset=rng.choice(("earliest", "earliest", "latest")),
                min_crash_lag=rng.choice((1, 1, 1, 3, 10)),
                on_data_loss=rng.choice(("raise", "skip")),
                on_missing_rows=rng.choice(("raise", "owe", "owe")),
            ),
            max_metadata_bytes=rng.choice((4_095, 4_095, 4_095, small + 30, small)),
            max_poll_records=rng.choice((3, 8, 8, 20, 50)),
            max_runs=rng.choice((1, 2, 3, 3)),
            progress=rng.random() < 0.4,
            failure_rate=rng.choice((0.0, 0.0, 0.0, 0.2)),
            events=20 + int(rng.random() ** 2 * 41),
        )


class Simulation:
    """One history: the processes, what Dagster knows, and what befalls them.

    Attributes:
        keys: partition keys the sensor has added; ``materialized``: those that are.
        calm: nothing goes wrong any more; ``set_back``: somebody else has committed to the first log.
        history: what happened; the first word of each entry says what kind of thing.
    """

    def __init__(self, seed: int, scenario: Scenario | None = None, weights: Weights | None = None) -> None:
        self.seed, self.rng = seed, Random(seed)  # noqa: S311 - a history is to be repeated, not to be secret
        self.scenario = scenario = scenario or Scenario.random(self.rng)
        self._weights = weights or {**WEIGHTS, **ENEMIES}
        self.policy, self.max_poll_records = scenario.policy, scenario.max_poll_records
        tps = [TopicPartition("orders", p) for p in range(scenario.partitions)]
        partitions = [SimulatedPartition(tp, scenario.log_start, scenario.log_start) for tp in tps]
        self.broker = SimulatedBroker(partitions, self.rng, scenario.failure_rate)
        self.partitions = self.broker.partitions
        self.table = SimulatedTable(self.partitions, self.rng)
        self.runs: list[LiveRun] = []
        self.catch_ups: list[CatchUpRun] = []
        self.sensor: Iterator[str] = iter(())
        self.keys: list[str] = []
        self.materialized: set[str] = set()
        self.history: list[tuple[Any, ...]] = [("scenario", scenario)]
        self.calm = self.set_back = False
        self._checked = -1
        self._named = self._calm_steps = 0

    def run(self) -> Simulation:
        """Everything from the first event to the last check.

        Raises:
            Violation: with the seed and the history.
        """
        limit, commit_log.MAX_METADATA_BYTES = commit_log.MAX_METADATA_BYTES, self.scenario.max_metadata_bytes
        try:
            self._happen()
            self._drain()
        except Violation:
            raise
        except Exception as error:
            raise self.violation(NOTHING_RAISES, repr(error)) from error
        finally:
            commit_log.MAX_METADATA_BYTES = limit
        return self

    def note(self, what: str, *details: object) -> None:
        """Write the history."""
        self.history.append((what, *details))

    def name(self, kind: str) -> str:
        """A name for a process."""
        self._named += 1
        return f"{kind}-{self._named}"

    def chance(self, probability: float) -> bool:
        """Whether it happens this time."""
        return self.rng.random() < probability

    def violation(self, invariant: str, details: object = "") -> Violation:
        """The end of a history."""
        return Violation(f"seed {self.seed}: {invariant} {details}\n{self}")

    def __str__(self) -> str:
        told = [f"{n:4} {' '.join(map(str, entry))}" for n, entry in enumerate(self.history)]
        ended = [
            f"{p.tp} ends at {p.log_end}, first log {p.first}, second log {p.second}, table {p.names(p.rows)}"
            for p in self.partitions.values()
        ]
        return "\n".join((*told, *ended))

    def check(self) -> None:
        """All invariants, where anything changed."""
        if self._checked != self.table.version:
            self._checked = self.table.version
            oracle.check_table(self)
        for p in self.partitions.values():
            if p.changed:
                p.changed = False
                oracle.check_partition(self, p)
                self._check_live(p)

    @property
    def topic_id(self) -> str:
        """The topic's, as the broker tells it now."""
        return next(iter(self.partitions.values())).topic_id

    @property
    def is_anew(self) -> bool:
        """Whether the topic was made anew and nobody has cleared up after the old one."""
        return any(p.topic_id != p.born for p in self.partitions.values())

    def _check_live(self, p: SimulatedPartition) -> None:
        for run in self.runs:
            owned = run.owned.get(p.tp)
            if owned is None or p.holder != run.member or self.is_anew:
                continue
            if p.bits(owned.committed, owned.position) & p.outstanding:
                raise self.violation(DISJOINT, f"({p.tp}: {run.name} owns {owned})")
            durable = p.below_first | p.lost  # what expired is passed before that is committed
            if not p.erased and p.below(owned.committed) & ~durable:
                raise self.violation(DURABLE, f"({p.tp}: {run.name} owns {owned})")
            if not p.acknowledged <= owned.committed <= owned.position <= p.log_end:
                raise self.violation(GROWS, f"({p.tp}: {run.name} owns {owned})")

    def step(self, process: Run) -> str | None:
        """Up to the next moment in which something may happen to the process; None at its end."""
        self._calm_steps += self.calm
        if self._calm_steps > MAX_CALM_STEPS:
            raise self.violation(ENDS)
        at = self._next(process)
        if at is None:
            self._bury(process)
        if self.scenario.progress:
            self._answer()
        self.check()
        return at

    def _next(self, process: Run) -> str | None:
        try:
            return next(process.steps, None)
        except KafkaLivenessError as error:
            oracle.check_error(self, error, process.losses_before)
            self.note(type(error).__name__, process.name, str(error)[:100])
            process.fail()
            return None

    def _answer(self) -> None:
        """With ``liveness="progress"`` a thread answers rebalances, whatever its process is busy with."""
        if self.chance(0.2):
            self.broker.rebalance()
        for run in self.runs:
            if not run.stopped and not run.fenced:
                run.serve()

    def kill(self, process: Run) -> None:
        """Nothing of it runs any more, and neither the group nor Spark knows yet."""
        self.note("killed", process.name)
        process.steps.close()
        self._bury(process)

    def is_alive(self, name: str) -> bool:
        """Whether the process is still there."""
        return any(process.name == name for process in (*self.runs, *self.catch_ups))

    def catch_up(self, keys: list[str]) -> CatchUpRun:
        """A run of the catch-up lane over these partition keys."""
        self.catch_ups.append(CatchUpRun(self, self.name("catch-up"), keys))
        return self.catch_ups[-1]

    def waiting(self) -> list[str]:
        """Keys that are not materialised."""
        return [key for key in self.keys if key not in self.materialized]

    def materialize(self, keys: list[str]) -> None:
        """Dagster shows these keys as done from now on."""
        self.note("materialized", *keys)
        for r in map(range_of, keys):
            p = self.partitions[r.topic_partition]
            if bits := p.bits(r.start, r.end) & ~p.processed:
                raise self.violation(oracle.PROVEN, f"({p.tp}: {p.names(bits)})")
        self.materialized.update(keys)

    def lose(self, tp: TopicPartition, spans: Iterable[Span]) -> None:
        """These offsets are told as lost."""
        for span in spans:
            self.note("lost", tp, span)
            self.partitions[tp].lose(self.partitions[tp].bits(*span))
            self.partitions[tp].changed = True

    def _bury(self, process: Run) -> None:
        self.runs = [run for run in self.runs if run is not process]
        self.catch_ups = [run for run in self.catch_ups if run is not process]

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
        produce(self)
        for _ in range(self.scenario.events):
            event = events[bisect(up_to, self.rng.random() * up_to[-1])]
            if event is begin_anew or event not in ENEMIES or not self.is_anew:
                event(self)
            self.check()

    def _drain(self) -> None:
        """Everybody dies; one live run without trouble, and backfills of all that is missing, remain."""
        self.note("draining")
        self.calm, self.broker.failure_rate, self.max_poll_records = True, 0.0, 10_000
        for process in (*self.runs, *self.catch_ups):
            self.kill(process)
        expire_sessions(self)
        begin_anew(self)
        remove_foreign_commits(self)
        self.policy = replace(self.policy, on_missing_rows="owe", on_data_loss="skip")
        for _ in range(6):
            self._live_to_the_end()
            for _ in sensor_tick(self):
                pass
            self._catch_up_to_the_end()
            if self._is_drained():
                break
        while self.table.in_flight:
            land(self)
        self.check()
        if not self._is_drained():
            raise self.violation(DRAINED, f"(waiting: {self.waiting()})")

    def _live_to_the_end(self) -> None:
        self.runs = [run := LiveRun(self, self.name("live"))]
        while self.runs:
            run.finishing = self.step(run) == "idle"

    def _catch_up_to_the_end(self) -> None:
        if keys := self.waiting():
            run = self.catch_up(keys)
            while self.catch_ups:
                self.step(run)

    def _is_drained(self) -> bool:
        return not self.waiting() and not any(
            p.below(p.log_end) & ~p.processed or p.below(p.log_end) != p.below_first or p.outstanding & ~p.processed
            for p in self.partitions.values()
        )
