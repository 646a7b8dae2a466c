"""How do a catch-up run and the sensor act around the core? As generators, like ``simulated_runs``.

They follow ``kafka.catch_up``, ``lanes.run_catch_up`` and ``sensors`` step by step; every decision is the core's, and
what is proven is asked of the product's own ``kafka.proof``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.fairness import plan
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition, difference, intersection, union
from kafka_liveness_dagster.core.witnesses import DataExpiredError
from kafka_liveness_dagster.kafka.proof import Proof
from kafka_liveness_dagster.partitions import new_keys, range_of
from tests.core.simulated_second import SecondLog
from tests.core.simulated_settling import Run

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from kafka_liveness_dagster.core.witnesses import PartitionFacts
    from tests.core.simulation import Simulation

Spans = tuple[Span, ...]
NOT_REFUSED = "a partition the sensor added is never refused"


class NotOwedError(KafkaLivenessError):
    """The live lane comes to it: the group's offsets were set back."""


class CatchUpRun(Run):
    """A run of the catch-up lane over some partition keys."""

    def __init__(self, world: Simulation, name: str, keys: list[str]) -> None:
        super().__init__(world, name)
        self.keys, self._asked = keys, _by_partition(map(range_of, keys))
        self._skips = world.policy.on_data_loss == "skip"
        self._second = SecondLog(world)
        cluster: Any = world.broker
        self._proof = Proof(cluster, "", self._asked, self.ledger)
        self._planned: dict[TopicPartition, Spans] = {}
        self._left_out: list[OffsetRange] = []
        self._last: TopicPartition | None = None
        world.note("backfill", name, *keys)

    def _life(self) -> Generator[str, None, None]:
        self._check_asked(self._proof.look())
        yield "opened"
        while ranges := self._plan():
            if not self.world.calm and self.world.chance(0.03):
                self._leave_out(ranges[0])
                continue
            yield from self._write(ranges)
            if not (yield from self._record(ranges)):
                self.world.note("record refused", self.name)
                return
        self._check_proven()
        if not self._left_out:
            self.world.materialize(self.keys)

    def _check_asked(self, facts: dict[TopicPartition, PartitionFacts]) -> None:
        """What is below the first log is in the table or owed; above it nobody skipped anything yet."""
        for tp, asked in self._asked.items():
            if unknown := difference(facts[tp].left_of(asked), (Span(0, facts[tp].committed or 0),)):
                if not (self.world.set_back or self.world.is_anew):
                    raise self.world.violation(NOT_REFUSED, f"({tp}:{unknown[0]})")
                raise NotOwedError(f"{tp}:{unknown[0]}")

    def _check_proven(self) -> None:
        self._proof.check(self._left_out)

    def _leave_out(self, ranges: OffsetRange) -> None:
        """Its first offset is too slow alone: what is planned and not done comes again, without it."""
        self._left_out.append(replace(ranges, end=ranges.start + 1))
        self._planned = _by_partition(self._left_out)
        self.world.note("left out a poisoned offset", self.name, self._left_out[-1])

    def _plan(self) -> tuple[OffsetRange, ...]:
        left = self._left()
        pending = {tp: difference(left[tp], self._planned.get(tp, ())) for tp in left}
        ranges, self._last = plan(pending, self.world.max_poll_records, self._last)
        for r in ranges:
            self._planned[r.topic_partition] = union((*self._planned.get(r.topic_partition, ()), r.span))
        return ranges

    def _left(self) -> dict[TopicPartition, Spans]:
        facts = self._proof.known()
        left = {tp: facts[tp].left_of(asked) for tp, asked in self._asked.items()}
        gone = {tp: intersection(spans, (Span(0, facts[tp].log_start),)) for tp, spans in left.items()}
        if expired := {tp: spans for tp, spans in gone.items() if spans}:
            self._lose(expired)
        return {tp: difference(spans, gone[tp]) for tp, spans in left.items()}

    def _lose(self, expired: dict[TopicPartition, Spans]) -> None:
        if not self._skips:
            raise DataExpiredError(f"{expired} expired before they were caught up")
        for _ in self._second.record(self.name, expired):
            pass
        self._second.tell(expired)
        self._proof.lost(expired)
        for tp, spans in expired.items():
            self.world.lose(tp, spans)

    def _record(self, ranges: Iterable[OffsetRange]) -> Generator[str, None, bool]:
        lasted = yield from self._second.record(self.name, _by_partition(ranges))
        self._proof.wrote(ranges)
        return lasted


def sensor_tick(world: Simulation) -> Iterator[str]:
    """Dagster first, then Kafka and the table; the keys for what is owed and has none."""
    existing, materialized = list(world.keys), set(world.materialized)
    firsts = {tp: p.first_log for tp, p in world.partitions.items()}
    yield "looked at Dagster and at the first log"
    owed = [
        OffsetRange(*tp, *span)
        for tp, p in world.partitions.items()
        if p.foreign is None
        for span in seen_owed(p.facts(firsts[tp], world.table.accounts()[tp]))
    ]
    if keys := new_keys(owed, existing, materialized):
        world.note("partitions added", *keys)
        world.keys += [key for key in keys if key not in world.keys]


def seen_owed(facts: PartitionFacts) -> Spans:
    """What the sensor makes partitions of: what is owed, and what a stranger's commit made the group forget."""
    forgotten = () if facts.vouched or facts.committed is None else facts.missing(facts.committed)
    return union((*facts.outstanding, *forgotten))


def _by_partition(ranges: Iterable[OffsetRange]) -> dict[TopicPartition, Spans]:
    found: dict[TopicPartition, Spans] = {}
    for r in ranges:
        found[r.topic_partition] = union((*found.get(r.topic_partition, ()), r.span))
    return found
