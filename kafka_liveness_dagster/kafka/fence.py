"""What does a lane's owner know of its fence? It asks, is told when it goes up, and says that the work goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.heartbeat import FenceReason
from kafka_liveness_dagster.kafka.errors import FencedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafka_liveness_dagster.core.fairness import Batch
    from kafka_liveness_dagster.kafka.watchdog import Watchdog


class Fence:
    """The fence of one lane, and which of its batches are on this side of it.

    A fence that is down again has cut off what was planned before: each batch carries the epoch of its plan.

    Args:
        watchdog: raises it, and takes it down.
        lapsed: what is said of a batch of a former epoch.
        begun: whether anything is planned before the first ``cut_off``; a live lane has to join for that.

    Attributes:
        epoch: of what is planned now.
    """

    def __init__(self, watchdog: Watchdog, lapsed: str, *, begun: bool) -> None:
        self._watchdog, self._lapsed, self._begun = watchdog, lapsed, begun
        self.epoch, self._cut_off_by = 0, FenceReason.POLL_TIMEOUT

    def check(self) -> None:
        """Raise when this process may not commit any more: ask before starting anything long.

        Raises:
            FencedError: the fence is up.
        """
        self._watchdog.check()

    def check_open(self, batch: Batch) -> None:
        """Raise when this batch may not be committed any more, also after a new membership has begun.

        Raises:
            FencedError: the fence is up, or it was since the batch was planned.
        """
        self.check()
        self.check_epoch(batch)

    def check_epoch(self, batch: Batch) -> None:
        """Raise when a fence has been up since the batch was planned, whether it is up now or not.

        Raises:
            FencedError: it has.
        """
        if not self._is_of_now(batch):
            raise FencedError(self._cut_off_by, self._lapsed, self._watchdog.outcome)

    def is_open(self, batch: Batch) -> bool:
        """Whether a batch is of the membership that goes on: none is, while the fence is up."""
        return self._watchdog.reason is None and self._is_of_now(batch)

    def heartbeat(self) -> None:
        """Say that the work on the open batch goes on: the process timeout begins anew.

        Raises:
            FencedError: it had passed, or this process may not go on: stop the work.
        """
        self._watchdog.polled()

    def on_fence(self, cancel: Callable[[], None]) -> None:
        """Register what to cancel when the fence goes up, a Spark job for one.

        Caller: a thread of the watchdog's, once per fence. It may come late, when work of the next membership has
        begun: ``is_open`` tells them apart. Affects: work already under way.
        """
        self._watchdog.on_fence(cancel)

    def still_polling(self) -> bool:
        """Report a poll; False when it comes too late and what is planned must be planned again."""
        try:
            self._watchdog.polled()
        except FencedError as error:
            if not error.reason.may_rejoin:
                raise
            return False
        return True

    def cut_off(self, why: FenceReason) -> None:
        """What was planned until now may not be committed any more; what is planned from now on may."""
        self.epoch, self._begun, self._cut_off_by = self.epoch + 1, True, why

    def _is_of_now(self, batch: Batch) -> bool:
        return self._begun and batch.epoch == self.epoch
