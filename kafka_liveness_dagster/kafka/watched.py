"""What does a lane's owner know of its fence? It asks, is told when it goes up, and says that the work goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_liveness_dagster.kafka.errors import FencedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafka_liveness_dagster.core.fairness import Batch
    from kafka_liveness_dagster.kafka.watchdog import Watchdog


class Watched:
    """What both lanes let their owner know of the fence."""

    _watchdog: Watchdog
    _epoch: int

    def check(self) -> None:
        """Raise when this process may not commit any more: ask before starting anything long.

        Raises:
            FencedError: the fence is up.
        """
        self._watchdog.check()

    def is_open(self, batch: Batch) -> bool:
        """Whether a batch is of the membership that goes on: none is, while the fence is up."""
        return self._watchdog.reason is None and batch.epoch == self._epoch

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

    def _still_polling(self) -> bool:
        """Report a poll; False when it comes too late and what is planned must be planned again."""
        try:
            self._watchdog.polled()
        except FencedError as error:
            if not error.reason.may_rejoin:
                raise
            return False
        return True
