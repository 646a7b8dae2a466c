"""Track the batches on their way into the table: at most two, committed in planned order.

While Spark reads and writes one batch, the next one is planned, transformed and begun: small batches cost
mostly what surrounds the work. A transform is always called in the run's thread. Never commits an offset.
"""

from __future__ import annotations

import concurrent.futures
import logging
import math
import time
from collections import deque
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kafka_liveness_dagster.concurrency import start_daemon_thread
from kafka_liveness_dagster.telemetry.otel import BatchPhases

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.spark.connect.job import SparkJob
    from kafka_liveness_dagster.spark.table.write import WriteResult
    from kafka_liveness_dagster.spark.transform import TransformedBatch

POLL_SECONDS = 0.1
log = logging.getLogger(__name__)


def _clock() -> float:
    return time.monotonic()


class BatchWrite(Protocol):
    """One batch's write in halves: ``spark.table.write.TableWrite`` and ``spark.sink.SinkWrite``."""

    def prepare(self) -> Callable[[], int | None]: ...  # noqa: D102 - the two classes document it
    def execute_with_retries(self, execute: Callable[[], Any]) -> WriteResult: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class InFlightWrite:
    """A batch that is being written.

    Attributes:
        job: its Spark work, to be cancelled from any thread.
        frame: its rows, which know of its records when it is written; None in a test.
        began_at: by ``time.monotonic``, when it was planned.
        phases: what its time was spent on.
    """

    batch: Batch
    job: SparkJob
    write: BatchWrite
    _: KW_ONLY
    frame: TransformedBatch | None = None
    began_at: float = field(default_factory=_clock)
    phases: BatchPhases = field(default_factory=BatchPhases)
    _rows: concurrent.futures.Future[int | None] = field(default_factory=concurrent.futures.Future)

    def begin(self) -> None:
        """Prepare it in this thread, then let Spark work in another. What fails is told where it lands."""
        try:
            with self.job, self.phases("transform"):
                execute = self.write.prepare()
        except Exception as error:  # noqa: BLE001 - raised by finish, when all before it has landed
            self._rows.set_exception(error)
            return
        work = partial(self._execute, execute)
        if not start_daemon_thread(work, self.job.tag):
            work()

    def run(self) -> WriteResult:
        """All of it in this thread."""
        with self.job:
            with self.phases("transform"):
                execute = self.write.prepare()
            with self.phases("write"):
                return self.write.execute_with_retries(execute)

    def finish(self) -> WriteResult:
        """Wait for Spark; begin again in this thread when another writer was quicker.

        Raises:
            Exception: whatever the transform, Spark or the sink raised.
        """
        while not (self._rows.done() or self.job.is_abandoned):  # the job is the other thread's until then
            with suppress(concurrent.futures.TimeoutError):
                self._rows.exception(POLL_SECONDS)
        with self.job, self.phases("write"):
            return self.write.execute_with_retries(self._rows.result)

    def wait_until_written(self, check_deadline: Callable[[], None]) -> bool:
        """Whether Spark did its work; waits for it until ``check_deadline`` raises."""
        while True:
            check_deadline()
            with suppress(concurrent.futures.TimeoutError):  # not the builtin one before Python 3.11
                return self._rows.exception(POLL_SECONDS) is None

    @property
    def mean_bytes(self) -> float | None:
        """What a record of it weighed, when it is written; None where nobody weighs."""
        return self.frame.mean_bytes() if self.frame is not None else None

    @property
    def has_failed(self) -> bool:
        """Whether it is known already that it will not land."""
        return self._rows.done() and self._rows.exception() is not None

    def _execute(self, execute: Callable[[], int | None]) -> None:
        try:
            with self.job, self.phases("write"):
                rows = execute()
        except BaseException as error:  # noqa: BLE001 - raised where it lands
            self._rows.set_exception(error)
        else:
            self._rows.set_result(rows)


class InFlightWrites(deque[InFlightWrite]):
    """The batches in flight, the oldest first. As a context manager: none is left behind."""

    _committed_at = -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def pop_committed(self) -> float:
        """Remove the oldest batch, which is committed, and return the seconds it took.

        They begin with its plan, or when the one before it was committed. So the seconds of all are the time
        in which there was something to do, and none of it is counted twice.
        """
        began_at = max(self.popleft().began_at, self._committed_at)
        self._committed_at = time.monotonic()
        return self._committed_at - began_at

    def cancel_fenced(self, is_open: Callable[[Batch], bool]) -> None:
        """Cancel what is fenced, and no batch of the membership after it.

        Caller: a thread of the watchdog's. Affects: the Spark jobs of batches; does not wait for them.
        """
        for one in tuple(self):
            if not is_open(one.batch):
                one.job.cancel(timeout_seconds=0.0)

    def commit_finished(self, check_deadline: Callable[[], None], commit: Callable[[], None]) -> None:
        """Commit, oldest first, until one failed or ``check_deadline`` raises.

        So no other member does it again. Caller: the lane's poll, in the run's thread, when partitions are
        about to go. Affects: the table and the live commit log; raises nothing. What failed stays in flight,
        and is told where the run lands it.
        """
        try:
            while self and self[0].wait_until_written(check_deadline):
                commit()
        except Exception as error:  # noqa: BLE001 - raised again where the run lands it
            log.debug("not committed before its partitions went: %s", error)

    def abandon(self, epoch: int | None = None) -> None:
        """Give up those planned by a membership, or all: cancel them, and wait a moment for their end."""
        dropped = [one for one in self if epoch is None or one.batch.membership_epoch <= epoch]
        for seconds in (0.0, 2.0):
            for one in dropped:
                try:
                    one.job.cancel(seconds)
                except Exception:  # logged; the others are cancelled all the same
                    log.exception("could not cancel the batch %s", one.batch)
        for one in dropped:
            self.remove(one)
