"""Track the batches in flight to the table: at most two, committed in planned order.

While Spark reads and writes one batch, the next one is planned, transformed and begun, because most of a
small batch's time is overhead. The run's thread calls every transform. Never commits an offset.
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
    """A batch's write in two steps: ``spark.table.write.TableWrite`` and ``spark.sink.SinkWrite``."""

    def prepare(self) -> Callable[[], int | None]: ...  # noqa: D102 - the two classes document it
    def execute_with_retries(self, execute: Callable[[], Any]) -> WriteResult: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class InFlightWrite:
    """A batch that is being written.

    Attributes:
        job: its Spark work, which any thread may cancel.
        frame: its rows, which have the measurements of its records after the write; None in a test.
        began_at: time of its plan by ``time.monotonic``.
        phases: time of each phase.
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
        """Prepare the batch in this thread, then write it in another; ``finish`` raises the errors."""
        try:
            with self.job, self.phases("transform"):
                execute = self.write.prepare()
        except Exception as error:  # noqa: BLE001 - raised by finish, when all batches before it are finished
            self._rows.set_exception(error)
            return
        work = partial(self._execute, execute)
        if not start_daemon_thread(work, self.job.tag):
            work()

    def run(self) -> WriteResult:
        """Prepare and write the batch in this thread."""
        with self.job:
            with self.phases("transform"):
                execute = self.write.prepare()
            with self.phases("write"):
                return self.write.execute_with_retries(execute)

    def finish(self) -> WriteResult:
        """Wait for Spark; retry in this thread if another writer committed first.

        Raises:
            Exception: error of the transform, Spark or the sink.
        """
        while not (self._rows.done() or self.job.is_abandoned):  # until then the other thread uses the job
            with suppress(concurrent.futures.TimeoutError):
                self._rows.exception(POLL_SECONDS)
        with self.job, self.phases("write"):
            return self.write.execute_with_retries(self._rows.result)

    def wait_until_written(self, check_deadline: Callable[[], None]) -> bool:
        """Wait for Spark until ``check_deadline`` raises; return whether the write succeeded."""
        while True:
            check_deadline()
            with suppress(concurrent.futures.TimeoutError):  # before Python 3.11 not the builtin TimeoutError
                return self._rows.exception(POLL_SECONDS) is None

    @property
    def mean_bytes(self) -> float | None:
        """The mean size of its records in bytes, after the write; None if it is not measured."""
        return self.frame.mean_bytes() if self.frame is not None else None

    @property
    def has_failed(self) -> bool:
        """Whether the write has already failed."""
        return self._rows.done() and self._rows.exception() is not None

    def _execute(self, execute: Callable[[], int | None]) -> None:
        try:
            with self.job, self.phases("write"):
                rows = execute()
        except BaseException as error:  # noqa: BLE001 - raised when the batch is finished
            self._rows.set_exception(error)
        else:
            self._rows.set_result(rows)


class InFlightWrites(deque[InFlightWrite]):
    """The batches in flight, the oldest first; as a context manager it abandons the rest at its end."""

    _committed_at = -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def pop_committed(self) -> float:
        """Remove the oldest batch, which is committed, and return the seconds it took.

        The time begins with its plan, or with the commit of the batch before, whichever is later. So no time
        counts twice, and the sum is the time with a batch in flight.
        """
        began_at = max(self.popleft().began_at, self._committed_at)
        self._committed_at = time.monotonic()
        return self._committed_at - began_at

    def cancel_fenced(self, is_open: Callable[[Batch], bool]) -> None:
        """Cancel the fenced batches, but no batch of the next membership.

        Caller: a thread of the watchdog. Affects: the Spark jobs of batches; does not wait for them.
        """
        for one in tuple(self):
            if not is_open(one.batch):
                one.job.cancel(timeout_seconds=0.0)

    def commit_finished(self, check_deadline: Callable[[], None], commit: Callable[[], None]) -> None:
        """Commit batches, the oldest first, until one failed or ``check_deadline`` raises.

        Then no other member processes them again. A failed batch stays in flight; its error is raised when
        the run finishes it. Caller: the lane's poll, in the run's thread, before partitions are revoked.
        Affects: the table and the live commit log; raises nothing.
        """
        try:
            while self and self[0].wait_until_written(check_deadline):
                commit()
        except Exception as error:  # noqa: BLE001 - raised again when the run finishes the batch
            log.debug("Not committed before its partitions were revoked: %s", error)

    def abandon(self, epoch: int | None = None) -> None:
        """Cancel and remove the batches of a membership and earlier ones, or all; wait up to 2 s for each."""
        dropped = [one for one in self if epoch is None or one.batch.membership_epoch <= epoch]
        for seconds in (0.0, 2.0):
            for one in dropped:
                try:
                    one.job.cancel(seconds)
                except Exception:  # logged, so that the other batches are canceled too
                    log.exception("Could not cancel the batch %s", one.batch)
        for one in dropped:
            self.remove(one)
