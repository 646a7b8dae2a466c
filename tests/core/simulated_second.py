"""How is the second commit log written? As ``kafka.second_log`` does it, for both lanes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.commit_log import DoneLog, Origin
from kafka_liveness_dagster.core.offsets import intersection, union

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from kafka_liveness_dagster.core.offsets import Span, TopicPartition
    from tests.core.simulation import Simulation

_WRITES = 5


class SecondLog:
    """The second log, and what one process has seen of it."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._seen: dict[TopicPartition, DoneLog] = {}

    def put(self, logs: Mapping[TopicPartition, tuple[DoneLog, DoneLog]]) -> None:
        """Write what these logs must say from now on, where it is not what they say: ``{tp: (before, after)}``."""
        self._seen.update({tp: after for tp, (_, after) in logs.items()})
        self._write({tp: after for tp, (before, after) in logs.items() if _text(before) != _text(after)})

    def tell(self, told: Mapping[TopicPartition, tuple[Span, ...]]) -> None:
        """Write down that offsets are accounted for without having been processed."""
        facts = self._world.broker.facts("", told)
        before = {tp: facts[tp].second for tp in told}
        begun = {tp: Origin(facts[tp].committed or 0, facts[tp].topic_id) for tp in told}
        origins = {tp: before[tp].origin or facts[tp].origin or begun[tp] for tp in told}
        self.put(
            {
                tp: (log, replace(log, told=union((*log.told, *told[tp])), origin=origins[tp]))
                for tp, log in before.items()
            }
        )

    def renew(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit what is there once more; what is not there any more as it was seen last."""
        found = {tp: self._world.partitions[tp] for tp in partitions}
        self._seen.update({tp: p.second_log for tp, p in found.items() if p.second is not None})
        self._write({tp: self._seen[tp] for tp in found if tp in self._seen})

    def record(self, name: str, done: Mapping[TopicPartition, tuple[Span, ...]]) -> Generator[str, None, bool]:
        """Write that this is done, look, and write again when another run's write replaced this one's."""
        for attempt in range(_WRITES):
            firsts = {tp: self._world.partitions[tp].first_log for tp in done}
            if self._world.chance(0.2):
                yield "looked at the first log"  # the two logs are not read at once
            facts = {tp: self._world.partitions[tp].facts(firsts[tp]) for tp in done}
            missing = {tp: spans for tp, spans in done.items() if intersection(facts[tp].outstanding, spans)}
            if not missing:
                return True
            if attempt:
                self._world.note("update lost", name)
            logs = {tp: facts[tp].second.record(facts[tp].owed, spans) for tp, spans in missing.items()}
            yield "recording"
            self._write(logs)
            self._world.note("recorded", name, *(f"{tp}:{span}" for tp, spans in done.items() for span in spans))
            yield "verifying"
        return False

    def _write(self, logs: Mapping[TopicPartition, DoneLog]) -> None:
        for tp, log in logs.items():
            self._world.partitions[tp].commit_second(log.watermark, log.encode())


def _text(log: DoneLog) -> tuple[int, str]:
    return log.watermark, log.encode()
