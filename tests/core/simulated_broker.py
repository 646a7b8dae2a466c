"""What do the broker and the table say? The state that all processes of a simulated history share.

It answers as Apache Kafka and Iceberg were measured to answer, and decides nothing. A set of offsets is an integer,
bit 0 being the log start, and commit metadata is read here by other code than the core's: an invariant is one line
of set algebra, and no mistake in ``core.offsets`` can hide from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core import commit_log
from kafka_liveness_dagster.core.commit_log import DoneLog, LiveMark
from kafka_liveness_dagster.core.offsets import Span
from kafka_liveness_dagster.core.resume import PartitionFacts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from random import Random

    from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition

FirstLog = tuple[int | None, LiveMark | None]  # as the core reads it
_OWED = 3  # which word of "kl1 running 0badcafe 70-120" holds the owed ranges


class Refusal(Enum):
    """How the broker refuses a commit."""

    NO_MEMBER = "UNKNOWN_MEMBER_ID"
    REBALANCING = "REBALANCE_IN_PROGRESS"
    TOO_LARGE = "OFFSET_METADATA_TOO_LARGE"
    FAILED = "no answer, nothing written"
    IN_DOUBT = "no answer, but written"


@dataclass
class SimulatedPartition:
    """A log, its commits in both groups, and what the table holds of it.

    Attributes:
        first, second: the commits as written; ``first_log``, ``second_log``: as the core reads them.
        owner: the member that is to have it; ``holder``: the one that has it until it gives it up.
        acknowledged: the last first-log commit whose author knows of it.
        rows: offsets in the table; ``twice``: those in it more than once.
        owed, done: what the commits say; ``waived``: what nobody asked to process.
        went_back: offsets below an acknowledged commit that a later commit was below.
        changed: since the invariants were checked.
    """

    tp: TopicPartition
    log_start: int
    log_end: int
    first: tuple[int, str] | None = None
    second: tuple[int, str] | None = None
    first_log: FirstLog = (None, None)
    second_log: DoneLog = field(default_factory=DoneLog)
    owner: int | None = None
    holder: int | None = None
    acknowledged: int = 0
    rows: int = 0
    twice: int = 0
    materialized: int = 0
    waived: int = 0
    owed: int = 0
    done: int = 0
    below_first: int = 0
    below_committed: int | None = None
    went_back: int = 0
    changed: bool = True

    def below(self, offset: int) -> int:
        """All offsets below this one."""
        return (1 << (offset - self.log_start)) - 1 if offset > self.log_start else 0

    def bits(self, start: int, end: int) -> int:
        """The offsets ``[start, end)``."""
        return self.below(end) & ~self.below(start)

    @property
    def outstanding(self) -> int:
        """What is owed and not done."""
        return self.owed & ~self.done

    @property
    def processed(self) -> int:
        """What is in the table, and what nobody asked for."""
        return self.rows | self.waived

    def facts(self, first: FirstLog | None = None) -> PartitionFacts:
        """What a process reads: a look at the first log, perhaps an old one, and the rest as it is now."""
        offset, mark = first or self.first_log
        return PartitionFacts(offset, mark, self.log_start, self.log_end, self.second_log)

    def commit_first(self, offset: int, metadata: str) -> None:
        """Write the first log."""
        if self.first is None:
            self.waived = self.below(offset)  # auto_offset_reset
        self.went_back |= self.bits(offset, self.acknowledged)
        self.first, self.first_log = (offset, metadata), (offset, LiveMark.decode(metadata))
        words = metadata.split(" ")
        self.owed = self._read(words[_OWED]) if len(words) > _OWED else 0
        self.below_first, self.below_committed, self.changed = self.below(offset), None, True

    def commit_second(self, offset: int, metadata: str) -> None:
        """Write the second log: anybody may, the last one wins."""
        self.second, self.second_log = (offset, metadata), DoneLog.decode(offset, metadata)
        self.done = self.below(offset) | self._read(metadata.removeprefix("kl1 done").strip())
        self.below_committed, self.changed = None, True

    def expire_second(self) -> None:
        """The broker's offsets retention: nobody committed to the second log for a week."""
        self.second, self.second_log, self.done = None, DoneLog(), 0
        self.below_committed, self.changed = None, True

    def write(self, bits: int) -> None:
        """Replace the rows of these offsets."""
        self.rows, self.twice = self.rows & ~bits, self.twice & ~bits
        self.append(bits)

    def append(self, bits: int) -> None:
        """Add rows of these offsets."""
        self.twice |= self.rows & bits
        self.rows, self.changed = self.rows | bits, True

    def materialize(self, span: Span) -> None:
        """Dagster shows these offsets as done from now on."""
        self.materialized |= self.bits(*span)
        self.changed = True

    def names(self, bits: int) -> str:
        """Offsets to be read, like ``70-120,140-190``."""
        spans: list[Span] = []
        for offset in (self.log_start + n for n in range(bits.bit_length()) if bits >> n & 1):
            if spans and spans[-1].end == offset:
                spans[-1] = Span(spans[-1].start, offset + 1)
            else:
                spans.append(Span(offset, offset + 1))
        return ",".join(map(str, spans))

    def _read(self, spans: str) -> int:
        found = 0
        for span in spans.split(",") if spans else ():
            start, _, end = span.partition("-")
            found |= self.bits(int(start), int(end))
        return found


class SimulatedBroker:
    """Partitions and the coordinator of one group.

    It fences members, not partitions: a member's commit of what it gave up is written (measured).
    """

    def __init__(self, partitions: Iterable[SimulatedPartition], rng: Random, failure_rate: float) -> None:
        self.partitions = {partition.tp: partition for partition in partitions}
        self.joined: dict[int, int] = {}  # member -> the generation it knows
        self.generation, self.failure_rate = 0, failure_rate
        self._rng, self._members = rng, 0

    def join(self) -> int:
        """A new member; gives its id. The others learn of it when they are served."""
        self._members += 1
        self.joined[self._members] = self.generation
        self.rebalance()
        return self._members

    def leave(self, member: int) -> None:
        """LeaveGroup, or the end of a session: what the member held is free at once."""
        if self.joined.pop(member, None) is None:
            return
        for partition in self.partitions.values():
            if partition.holder == member:
                partition.holder = None
        self.rebalance()

    def rebalance(self) -> None:
        """Deal the partitions out anew; cooperative, so holders keep them until they give them up."""
        self.generation += 1
        members = list(self.joined)
        turn = int(self._rng.random() * len(members))
        for place, partition in enumerate(self.partitions.values()):
            partition.owner = members[(place + turn) % len(members)] if members else None

    def to_give_up(self, member: int) -> list[TopicPartition]:
        """What the member holds and another one is to have."""
        return [tp for tp, p in self.partitions.items() if p.holder == member != p.owner]

    def assign(self, member: int) -> list[TopicPartition]:
        """Bring the member to this generation; gives what it holds from now on."""
        self.joined[member] = self.generation
        free = [p for p in self.partitions.values() if p.owner == member and p.holder is None]
        for partition in free:
            partition.holder = member
        return [partition.tp for partition in free]

    def commit(self, member: int, offsets: Mapping[TopicPartition, tuple[int, str]]) -> Refusal | None:
        """One OffsetCommit to the first log: all of it or nothing."""
        if member not in self.joined:
            return Refusal.NO_MEMBER
        if self.joined[member] != self.generation and self._rng.random() < 0.5:
            return Refusal.REBALANCING  # once all have joined; until then a commit is accepted
        if any(len(metadata) > commit_log.MAX_METADATA_BYTES for _, metadata in offsets.values()):
            return Refusal.TOO_LARGE
        failed = self.failure_rate > 0 and self._rng.random() < self.failure_rate
        if failed and self._rng.random() < 0.5:
            return Refusal.FAILED
        for tp, (offset, metadata) in offsets.items():
            self.partitions[tp].commit_first(offset, metadata)
            if not failed:
                self.partitions[tp].acknowledged = offset
        return Refusal.IN_DOUBT if failed else None


@dataclass(eq=False)
class Write:
    """A batch on its way into the table, by ``author``, validated from snapshot ``since``."""

    author: str
    bits: dict[TopicPartition, int]
    since: int
    landed: bool = False
    refused: bool = False


@dataclass
class SimulatedTable:
    """Iceberg's ``overwrite(ranges)``, serializable, validated from the snapshot at the beginning of the write."""

    partitions: Mapping[TopicPartition, SimulatedPartition]
    snapshots: list[dict[TopicPartition, int]] = field(default_factory=list)
    in_flight: list[Write] = field(default_factory=list)

    def begin(self, author: str, ranges: Iterable[OffsetRange]) -> Write:
        """Start to write; from now on it may land at any time, whatever becomes of its author."""
        bits: dict[TopicPartition, int] = {}
        for r in ranges:
            tp = r.topic_partition
            bits[tp] = bits.get(tp, 0) | self.partitions[tp].bits(r.start, r.end)
        self.in_flight.append(Write(author, bits, len(self.snapshots)))
        return self.in_flight[-1]

    def land(self, write: Write) -> None:
        """The end of a write: it replaces its ranges, or is refused since somebody wrote to them meanwhile."""
        self.in_flight.remove(write)
        write.refused = any(
            bits & later.get(tp, 0) for later in self.snapshots[write.since :] for tp, bits in write.bits.items()
        )
        if write.refused:
            return
        write.landed = True
        self.snapshots.append(write.bits)
        for tp, bits in write.bits.items():
            self.partitions[tp].write(bits)
