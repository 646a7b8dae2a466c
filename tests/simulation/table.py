"""What does Iceberg say? Snapshots with parents, rows and summaries, and writes on their way.

It answers as Iceberg was measured to answer. What the summaries say is the product's own:
``spark.table.ledger.TableLedger`` asks this table as if it were a catalog's.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from kafka_liveness_dagster.spark.table.ledger import TableLedger
from tests.simulation.scheduler import clock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from random import Random

    from kafka_liveness_dagster.core.ledger import LedgerEntry
    from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
    from tests.simulation.partition import SimulatedPartition

Bits = dict["TopicPartition", int]
_TEXTS = [f"kafka-liveness.{word}" for word in ("written", "total", "total-as-of")]


@dataclass(frozen=True)
class TableSnapshot:
    """A snapshot: what it wrote, and all the rows there are with it."""

    snapshot_id: int
    parent: int | None
    written: Bits
    rows: Bits
    twice: Bits
    summary: Mapping[str, str]

    @property
    def row(self) -> tuple[Any, ...]:
        """As a query of the snapshots gives it."""
        return (self.snapshot_id, self.parent, *(self.summary.get(name) for name in _TEXTS))


@dataclass(eq=False)
class Write:
    """A batch on its way into the table, by ``author``, validated from snapshot ``since``."""

    author: str
    bits: Bits
    told: Mapping[str, str]
    since: int | None
    planned: str
    topic_id: str
    tag: str = ""
    landed: bool = False
    cancelled: bool = False
    over: bool = False
    waiting: Any = None


class SimulatedConnection:
    """A connection that never falls silent, and is never given up."""

    is_aborted, has_pending_call, is_released, address = False, True, False, "sc://spark"

    def check(self) -> None:
        """Pass."""

    def abort(self, _what: str) -> None:
        """Nobody waits for it in vain."""

    def abort_after(self, *_: object) -> Any:
        """As long as it takes."""
        return nullcontext()


@dataclass
class SimulatedTable:
    """Iceberg's ``overwrite(ranges)``, serializable, validated from the snapshot at the write's beginning.

    Attributes:
        parents: of all snapshots that ever were; ``dropped``: those of former tables.
        intruders: what was planned and written of a topic made anew, beside, or over, the rows of the old
            one.
        losses: how often the table was set back, dropped or replaced; ``lost_at``: when it was last.
        version: changes with what the table says.
    """

    partitions: Mapping[TopicPartition, SimulatedPartition]
    rng: Random
    name: str = "lake.shop.orders"
    quoted: str = "`lake`.`shop`.`orders`"
    snapshots: dict[int, TableSnapshot] = field(default_factory=dict)
    current_id: int | None = None
    in_flight: list[Write] = field(default_factory=list)
    parents: dict[int, int | None] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    intruders: int = 0
    losses: int = 0
    lost_at: float = 0.0
    version: int = 0
    client: ClassVar = SimpleNamespace(_builder=SimulatedConnection())
    _named: int = 0
    _read: tuple[int, dict[TopicPartition, LedgerEntry]] = (-1, {})

    def entries(self) -> dict[TopicPartition, LedgerEntry]:
        """What a process that begins now reads of each partition."""
        if self._read[0] != self.version:
            self._read = self.version, dict(TableLedger(self, lambda: self).read(list(self.partitions)))  # type: ignore[arg-type, return-value]
        return self._read[1]

    def current_snapshot_id(self, _session: object, _known: object = ()) -> int | None:
        """As the product's ``IcebergTable`` is asked."""
        return self.current_id

    def refresh(self, _session: object, *, keep_shape: bool = False) -> None:
        """It is always asked anew."""

    def sql(self, query: str) -> SimulatedTable:
        """As a Spark session is asked for the table's snapshots; the answer is ``collect``-ed."""
        self._query = query
        return self

    def collect(self) -> list[tuple[Any, ...]]:
        """The answer to the last query."""
        found = [one.row for one in self.snapshots.values()]
        if limit := re.search(r"DESC LIMIT (\d+)$", self._query):
            return found[::-1][: int(limit[1])]
        if wanted := re.search(r"IN \(([\d, ]*)\)$", self._query):
            ids = {int(one) for one in wanted[1].split(",")}
            return [row for row in found if row[0] in ids]
        return [(*row[:2], "", "", row[4]) for row in found]

    def begin(
        self,
        author: str,
        ranges: Iterable[OffsetRange],
        told: Mapping[str, str],
        planned: str,
        since: int | None,
    ) -> Write | None:
        """Start to write; it may land at any time, whatever becomes of its author.

        None: what it reads has expired.
        """
        bits: Bits = {}
        now = planned
        for r in ranges:
            tp = r.topic_partition
            p = self.partitions[tp]
            if r.start < p.log_start:
                return None
            bits[tp] = bits.get(tp, 0) | p.bits(r.start, r.end)
            now = p.topic_id
        self.in_flight.append(Write(author, bits, told, since, planned, now))
        return self.in_flight[-1]

    def land(self, write: Write) -> None:
        """The end of a write.

        It replaces its ranges, or is refused since somebody wrote to them meanwhile.
        """
        self.in_flight.remove(write)
        since = list(self._after(write.since))
        if None in since or any(
            bits & s.written.get(tp, 0) for s in since if s for tp, bits in write.bits.items()
        ):
            return
        write.landed = True
        for tp, bits in write.bits.items():
            p = self.partitions[tp]
            if write.planned == write.topic_id != p.born:
                self.intruders |= bits
        self.write(write.bits, write.told)

    def write(self, bits: Bits, told: Mapping[str, str]) -> None:
        """A snapshot in which the rows of these offsets are replaced."""
        before = self.snapshots.get(self.current_id) if self.current_id is not None else None
        rows, twice = (dict(before.rows), dict(before.twice)) if before else ({}, {})
        for tp, one in bits.items():
            rows[tp], twice[tp] = self.replaced(rows.get(tp, 0), twice.get(tp, 0), one)
        self.add(bits, rows, twice, told)

    @staticmethod
    def replaced(rows: int, twice: int, bits: int) -> tuple[int, int]:
        """Rows, and those that are there twice, after these offsets' rows were replaced."""
        return rows | bits, twice & ~bits

    def add(self, wrote: Bits, rows: Bits, twice: Bits, summary: Mapping[str, str]) -> None:
        """A new snapshot on top."""
        self._named += 1
        self.parents[self._named] = self.current_id
        self.snapshots[self._named] = TableSnapshot(self._named, self.current_id, wrote, rows, twice, summary)
        self.point_to(self._named)

    def point_to(self, snapshot_id: int | None) -> None:
        """The table is as it is with this snapshot."""
        self.current_id = snapshot_id
        self.version += 1
        clock.changed = True
        at = self.snapshots[snapshot_id] if snapshot_id is not None else None
        for tp, p in self.partitions.items():
            rows, p.twice = (at.rows.get(tp, 0), at.twice.get(tp, 0)) if at else (0, 0)
            p.removed_by_fault = (p.removed_by_fault | p.rows) & ~rows  # only an enemy takes rows away
            p.rows, p.changed = rows, True

    def ancestors(self) -> list[int]:
        """The snapshots from the current one back, as far as they were not expired."""
        found, at = [], self.current_id
        while at is not None and at in self.snapshots:
            found.append(at)
            at = self.snapshots[at].parent
        return found

    def ever_before(self, snapshot_id: int) -> list[int]:
        """All ancestors of a snapshot, those that were expired too."""
        found = [snapshot_id]
        while (parent := self.parents[found[-1]]) is not None:
            found.append(parent)
        return found

    def drop(self) -> None:
        """Dropped; the next write creates it anew."""
        self.dropped |= set(self.snapshots)
        self.snapshots = {}
        self.lose_rows()
        for write in self.in_flight:
            write.since = -1  # of another table: it is refused
        self.point_to(None)

    def lose_rows(self) -> None:
        """Somebody has taken rows away."""
        self.losses, self.lost_at = self.losses + 1, clock.now

    def expire(self, gone: Iterable[int]) -> None:
        """These snapshots are told no more; their rows stay as far as they are the current one's too."""
        for one in gone:
            self.snapshots.pop(one)
        self.version += 1
        clock.changed = True

    def _after(self, since: int | None) -> Iterator[TableSnapshot | None]:
        """The snapshots after this one.

        None at the end where it is no ancestor: the history cannot be determined.
        """
        at = self.current_id
        while at != since:
            found = self.snapshots.get(at) if at is not None else None
            yield found
            if found is None:
                return
            at = found.parent
