"""Spark as a process sees it: a session, frames that stand for offsets, and a table for the writes.

A write goes on at the server when its client is dead or frozen, may be cancelled too late, and may fail.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from kafka_liveness_dagster.core.ledger import decode_entries
from kafka_liveness_dagster.spark.table.table import TableShape
from tests.simulation.scheduler import Killed, clock
from tests.simulation.table import SimulatedConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kafka_liveness_dagster.core.offsets import OffsetRange
    from tests.simulation.table import SimulatedTable, Write

_CANCELS = 0.7
_SLOW_LOOK_SECONDS = 5.0
_CONFLICT = "(org.apache.iceberg.exceptions.ValidationException) Found conflicting files"


class SparkError(PySparkException):
    """As Spark Connect raises it."""

    def __init__(self, message: str, condition: str | None = None) -> None:
        super().__init__(message)
        self._condition = condition

    def getCondition(self) -> str | None:  # noqa: N802 - pyspark's name
        """What its kind is called, if it has a name."""
        return self._condition

    def __str__(self) -> str:
        return str(self.args[0])


class Session:
    """A Spark Connect session of one process."""

    client = SimpleNamespace(_builder=SimulatedConnection())

    def __init__(self, process: Any) -> None:
        self._process, self._table = process, process.world.table
        self.tags: dict[Any, str] = {}
        self.handlers: list[Callable[..., None]] = []

    def addTag(self, tag: str) -> None:  # noqa: N802
        """For what this thread does."""
        self.tags[getcurrent()] = tag

    def removeTag(self, _tag: str) -> None:  # noqa: N802
        """No more."""
        self.tags.pop(getcurrent(), None)

    def registerProgressHandler(self, handler: Callable[..., None]) -> None:  # noqa: N802
        """Called while a write goes on."""
        self.handlers.append(handler)

    def removeProgressHandler(self, handler: Callable[..., None]) -> None:  # noqa: N802
        """No more."""
        self.handlers.remove(handler)

    def interruptTag(self, tag: str) -> None:  # noqa: N802
        """Cancel what has this tag; it may land all the same."""
        clock.point(0.3)
        for write in list(self._table.in_flight):
            if write.tag == tag and not write.over:
                write.cancelled = write.over = True
                if self._process.world.chance(_CANCELS):
                    self._table.in_flight.remove(write)
                if write.waiting is not None:
                    clock.wake(write.waiting)

    def sql(self, query: str) -> Any:
        """A look at the table's snapshots, for which a busy Spark may take seconds."""
        clock.point(0.5)
        if self._process.world.chance(self._process.world.scenario.slow_looks):
            seconds = _SLOW_LOOK_SECONDS * clock.rng.random()
            self._process.held_up_at = clock.now + seconds
            clock.block(seconds)
        return self._table.sql(query)


class SeenTable:
    """The table as one process asks for it; as ``spark.table.table.IcebergTable``."""

    def __init__(self, _name: str = "") -> None:
        me: Any = getcurrent()
        self.process: Any = me.process
        self._table: SimulatedTable = self.process.world.table
        self.name, self.quoted = self._table.name, self._table.quoted

    def shape(self, _session: object) -> TableShape:
        """It is always there."""
        clock.point(0.1)
        return TableShape(StructType(), is_by_kafka_partition=True)

    writable_shape = shape

    def snapshot_id(self, _session: object) -> int | None:
        """The current one."""
        return self._table.current_id

    def current_snapshot_id(self, _session: object, _known: object = ()) -> int | None:
        """The same."""
        clock.point(0.1)
        return self._table.current_id

    def refresh(self, _session: object, *, keep_shape: bool = False) -> None:
        """It is always asked anew."""

    def check_main(self, _session: object, *, is_new: bool) -> None:
        """Pass: nobody has a branch."""


class Frame:
    """The rows of a batch; as ``spark.transform.TransformedBatch`` makes them."""

    def __init__(
        self, _transform: object, session: Session, ranges: Sequence[OffsetRange], **_: object
    ) -> None:
        me: Any = getcurrent()
        self.session, self.ranges, self.planned = session, ranges, me.process.topic_id

    def mean_bytes(self) -> None:
        """Nobody weighs."""

    def __call__(self) -> Frame:
        """The transform's turn."""
        clock.point(0.1)
        return self


def overwrite(
    frame: Frame, table: SeenTable, snapshot_id: int | None, *, summary: Mapping[str, str], **_: object
) -> None:
    """As ``spark.table.write`` has Spark replace the ranges."""
    process, world = table.process, table.process.world
    clock.point(0.3)
    write = world.table.begin(process.name, frame.ranges, summary, frame.planned, snapshot_id)
    if write is None:
        process.spark_failed = True
        raise SparkError("Job aborted: Lost task 0.0: offsets out of range")
    if process.is_live:
        for tp, account in decode_entries(summary["kafka-liveness.written"]).items():
            world.partitions[tp].unsaid |= account.first_offset is None
    write.tag = frame.session.tags.get(getcurrent(), "")
    seconds, fails = process.seconds_of(frame.ranges), world.spark_fails()
    clock.call(seconds, lambda: _end(world, write, fails=fails))
    if frame.session.handlers and world.chance(0.3):
        clock.block(seconds / 2)
        _progress(frame.session, write)
    try:
        while not write.over:
            write.waiting = getcurrent()
            clock.block()
    finally:
        write.waiting = None  # a dead process's thread is another's by the time it lands
    clock.point(0.2)
    if write.landed:
        return
    if write.cancelled:
        raise SparkError("[OPERATION_CANCELED] Operation was canceled", "OPERATION_CANCELED")
    process.spark_failed = process.spark_failed or fails
    process.held_up_at = clock.now
    world.note("write refused", process.name)
    raise SparkError("Job aborted: disk is full" if fails else _CONFLICT)


def _progress(session: Session, write: Write) -> None:
    if write.over:
        return
    me: Any = getcurrent()
    if me.process.dead:
        raise Killed
    stage = SimpleNamespace(num_completed_tasks=1, num_tasks=2)
    for handler in list(session.handlers):
        handler(stages=[stage], inflight_tasks=1, operation_id=write.tag, done=False)


def _end(world: Any, write: Write, *, fails: bool) -> None:
    """The server comes to the end of a write, whoever still wants it."""
    if write in world.table.in_flight:
        if fails or (not world.is_alive(write.author) and world.chance(0.2)):
            world.table.in_flight.remove(write)
        else:
            world.table.land(write)
            if not world.is_alive(write.author) or write.cancelled:
                world.note("landed by itself" if write.landed else "late write refused", write.author)
    write.over = True
    if write.waiting is not None:
        clock.wake(write.waiting)
