"""How do a catch-up run and the sensor act around the core? As generators, like ``simulated_runs``.

They follow ``kafka.catch_up``, ``lanes.run_catch_up`` and ``sensors`` step by step; every decision is the core's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.fairness import plan
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition, difference, intersection, union
from kafka_liveness_dagster.partitions import new_keys, range_of
from tests.core.simulated_runs import Run

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from kafka_liveness_dagster.core.resume import PartitionFacts
    from tests.core.simulation import Simulation

Spans = tuple[Span, ...]
NOT_REFUSED = "a partition the sensor added is never refused"
_WRITES = 5


class CatchUpRun(Run):
    """A run of the catch-up lane over some partition keys."""

    def __init__(self, world: Simulation, name: str, keys: list[str]) -> None:
        super().__init__(world, name)
        self.keys, self._asked = keys, _by_partition(map(range_of, keys))
        self._planned: dict[TopicPartition, Spans] = {}
        self._left_out: list[OffsetRange] = []
        self._last: TopicPartition | None = None
        world.note("backfill", name, *keys)

    def _life(self) -> Generator[str, None, None]:
        self._check_asked()
        yield "opened"
        while ranges := self._plan():
            if not self.world.calm and self.world.chance(0.03):
                self._leave_out(ranges[0])
                continue
            yield from self._write(ranges)
            if not (yield from self._record(ranges)):
                self.world.note("record refused", self.name)
                return
        if not self._left_out:
            self.world.materialize(self.keys)

    def _check_asked(self) -> None:
        """What is below the first log is in the table or owed; above it nobody skipped anything yet."""
        for tp, asked in self._asked.items():
            if unknown := difference(asked, (Span(0, self.world.partitions[tp].facts().committed or 0),)):
                raise self.world.violation(NOT_REFUSED, f"({tp}:{unknown[0]})")

    def _leave_out(self, ranges: OffsetRange) -> None:
        """Its first offset is too slow alone: what is planned and not done comes again, without it."""
        self._left_out.append(replace(ranges, end=ranges.start + 1))
        self._planned = _by_partition(self._left_out)
        self.world.note("left out a poisoned offset", self.name, self._left_out[-1])

    def _plan(self) -> tuple[OffsetRange, ...]:
        pending = {}
        for tp, asked in self._asked.items():
            left = intersection(outstanding(self.world.partitions[tp].facts()), asked)
            pending[tp] = difference(left, self._planned.get(tp, ()))
        ranges, self._last = plan(pending, self.world.max_poll_records, self._last)
        for r in ranges:
            self._planned[r.topic_partition] = union((*self._planned.get(r.topic_partition, ()), r.span))
        return ranges

    def _record(self, ranges: Iterable[OffsetRange]) -> Generator[str, None, bool]:
        """Write the second log, look, and write again when another run's write replaced this one's."""
        done = _by_partition(ranges)
        for attempt in range(_WRITES):
            firsts = {tp: self.world.partitions[tp].first_log for tp in done}
            if self.world.chance(0.2):
                yield "looked at the first log"  # the two logs are not read at once
            facts = {tp: self.world.partitions[tp].facts(firsts[tp]) for tp in done}
            missing = {tp: spans for tp, spans in done.items() if intersection(outstanding(facts[tp]), spans)}
            if not missing:
                return True
            if attempt:
                self.world.note("update lost", self.name)
            logs = {tp: facts[tp].second.record(owed_of(facts[tp]), spans) for tp, spans in missing.items()}
            yield "recording"
            for tp, log in logs.items():
                self.world.partitions[tp].commit_second(log.watermark, log.encode())
            self.world.note("recorded", self.name, *ranges)
            yield "verifying"
        return False


def sensor_tick(world: Simulation) -> Iterator[str]:
    """Dagster first, then Kafka; the keys for what is owed and has none."""
    existing, materialized = list(world.keys), set(world.materialized)
    firsts = {tp: p.first_log for tp, p in world.partitions.items()}
    yield "looked at Dagster and at the first log"
    owed = [OffsetRange(*tp, *s) for tp, p in world.partitions.items() for s in outstanding(p.facts(firsts[tp]))]
    if keys := new_keys(owed, existing, materialized):
        world.note("partitions added", *keys)
        world.keys += [key for key in keys if key not in world.keys]


def outstanding(facts: PartitionFacts) -> Spans:
    """What the group owes and has not done, as every reader of both logs computes it."""
    return facts.second.outstanding(owed_of(facts))


def owed_of(facts: PartitionFacts) -> Spans:
    """What the first log says is owed, done or not."""
    return facts.mark.owed if facts.mark else ()


def _by_partition(ranges: Iterable[OffsetRange]) -> dict[TopicPartition, Spans]:
    found: dict[TopicPartition, Spans] = {}
    for r in ranges:
        found[r.topic_partition] = union((*found.get(r.topic_partition, ()), r.span))
    return found
